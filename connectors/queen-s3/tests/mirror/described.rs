//! Blocks of which the broker says what is in them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queen_s3::broker::Name;
use queen_s3::lake::{Compression, Format};

use crate::answers::Form;
use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::lines::Lines;
use crate::log::{Limits, Log};
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";

fn payload(_: &str, offset: i64) -> String {
    match offset % 3 {
        0 => "null".to_owned(),
        _ => format!("{{\"n\":{offset}}}"),
    }
}

/// Three partitions with records in one whole hour.
fn log(form: Form) -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
    log.create(QUEUE);
    for second in 0..30 {
        for partition in ["a", "b", "c"] {
            log.write(QUEUE, &Name::from(partition), TEN + second * SECOND, 7);
        }
    }
    log.answer_in(form);
    log
}

#[test]
fn a_broker_whose_descriptions_are_not_true_costs_a_window_a_second_reading_and_no_record() {
    for (format, compression) in [
        (Format::Jsonl, Compression::None),
        (Format::Parquet, Compression::Snappy),
    ] {
        let fetches = [Form::Described, Form::Misdescribed].map(|form| {
            in_virtual_time(async move {
                let (lines, _guard) = Lines::start();
                let (log, bucket) = (log(form), Arc::<MemoryBucket>::default());
                let mut options = Options::new();
                options.settings.shape.format = format;
                options.settings.shape.compression = compression;
                let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
                eventually("the window", || committed(&log, QUEUE).0 == 1).await;
                sink.stop().await;
                if format == Format::Jsonl {
                    assert_eq!(records(&bucket), log.records(QUEUE));
                }
                let said = lines.with("read again, without descriptions");
                assert_eq!(said.len(), usize::from(form == Form::Misdescribed));
                for line in said {
                    assert!(line.contains(" queue=orders k=1 "), "{line}");
                }
                (log.take_counts().fetches, bucket.data())
            })
        });
        let [(believed, objects), (read_again, same)] = fetches;
        assert!(
            read_again > believed,
            "{read_again}, {believed} when they are true"
        );
        assert_eq!(objects, same);
    }
}

/// The offsets of `partition` that manifests name as lost.
fn lost(bucket: &MemoryBucket, partition: &str) -> BTreeSet<i64> {
    let mut lost = BTreeSet::new();
    for window in bucket.manifests(QUEUE) {
        for range in window["lost"].as_array().expect("a list") {
            let bound = |field: &str| range[field].as_i64().expect("an offset");
            if range["partition"] == partition {
                for offset in bound("from")..=bound("to") {
                    assert!(lost.insert(offset), "{offset} is named twice: {window}");
                }
            }
        }
    }
    lost
}

#[test]
fn what_retention_takes_before_the_second_reading_is_named() {
    let partition = "b";
    let mut read_again = 0;
    for fetches in 0.. {
        let met = in_virtual_time(async {
            let (log, bucket) = (log(Form::Misdescribed), Arc::<MemoryBucket>::default());
            log.limit(Limits {
                entry_records: 70,
                call_records: 140,
                ..Limits::default()
            });
            let met = Arc::<AtomicBool>::default();
            let meets = Arc::clone(&met);
            log.after_fetches(fetches, move |log| {
                log.delete(QUEUE, &Name::from(partition));
                meets.store(true, Ordering::Relaxed);
            });
            let mut options = Options::new();
            options.settings.shape.compression = Compression::None;
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the window", || committed(&log, QUEUE).0 == 1).await;
            sink.stop().await;
            let records = records(&bucket).into_iter();
            let of_it = records.filter(|(name, ..)| name == partition);
            let written: BTreeSet<i64> = of_it.map(|(_, offset, _)| offset).collect();
            let lost = lost(&bucket, partition);
            let accounted: Vec<i64> = written.union(&lost).copied().collect();
            let all: Vec<i64> = (0..210).collect();
            assert_eq!(accounted, all, "after {fetches} fetches");
            assert!(written.is_disjoint(&lost), "after {fetches} fetches");
            if written.is_empty() {
                read_again += 1;
            }
            met.load(Ordering::Relaxed)
        });
        if !met {
            break;
        }
    }
    // The first reading had all of it at some of these moments.
    assert!(read_again > 5, "{read_again}");
}
