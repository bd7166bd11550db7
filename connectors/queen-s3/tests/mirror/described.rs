//! Blocks of which the broker says what is in them.

use std::sync::Arc;

use queen_s3::broker::Name;
use queen_s3::lake::{Compression, Format};

use crate::answers::Form;
use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::log::Log;
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
