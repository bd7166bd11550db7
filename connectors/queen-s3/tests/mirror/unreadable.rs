//! Segments that the broker cannot read: what lies before them is mirrored, and they wait.

use std::sync::Arc;
use std::time::Duration;

use queen_s3::broker::Name;
use tokio::time::sleep;

use crate::answers::Form;
use crate::bucket::MemoryBucket;
use crate::bytes::interrupted;
use crate::history::records;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";

/// Five segments of ten records in an hour, and two in the next.
fn log(form: Form) -> Arc<Log> {
    let log = Log::new(TEN + 2 * HOUR, |_, offset| offset.to_string());
    log.create(QUEUE);
    for minute in 0..5 {
        log.write(QUEUE, &Name::from("p"), TEN + minute * 60 * SECOND, 10);
    }
    log.write(QUEUE, &Name::from("p"), TEN + HOUR, 10);
    log.write(QUEUE, &Name::from("p"), TEN + HOUR + SECOND, 10);
    log.answer_in(form);
    log
}

/// Offsets that are in the lake.
fn offsets(bucket: &MemoryBucket) -> Vec<i64> {
    let records = records(bucket).into_iter();
    records.map(|(_, offset, _)| offset).collect()
}

#[test]
fn records_before_an_unreadable_segment_are_mirrored_and_those_behind_it_wait() {
    for form in Form::ALL {
        in_virtual_time(async {
            let (log, bucket) = (log(form), Arc::<MemoryBucket>::default());
            log.damage(&[30]);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            // No later record may have the ts of the last one that is read, as far as the sink knows.
            eventually("a window", || committed(&log, QUEUE).0 == 1).await;
            assert_eq!(offsets(&bucket), (0..20).collect::<Vec<_>>(), "{form:?}");
            sleep(Duration::from_secs(1_800)).await;
            assert_eq!(committed(&log, QUEUE).0, 1, "{form:?}");
            log.damage(&[]);
            eventually("the rest", || offsets(&bucket).len() == 70).await;
            assert!(
                bucket
                    .manifests(QUEUE)
                    .iter()
                    .all(|window| { window["lost"].as_array().is_some_and(Vec::is_empty) })
            );
            sink.stop().await;
        });
    }
}

#[test]
fn a_window_is_read_again_whatever_lies_unreadable_behind_it() {
    for form in Form::ALL {
        in_virtual_time(async {
            let (log, bucket) = (log(form), Arc::<MemoryBucket>::default());
            log.damage(&[60]);
            interrupted(&log, Options::new().settings.shape, 0);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            eventually("the window", || committed(&log, QUEUE).0 == 1).await;
            assert_eq!(offsets(&bucket), (0..50).collect::<Vec<_>>(), "{form:?}");
            sink.stop().await;
        });
    }
}
