//! What `/metrics` shows of a queue that this instance cannot or need not work on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::limits::SAFE_TIME_STANDS;

use crate::answers::Form;
use crate::bucket::{Do, MemoryBucket};
use crate::log::{Log, SAFE_LAG};
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
const LAG: &str = "queen_s3_lag_seconds{queue=\"orders\"}";
const SAFE_LAG_SHOWN: &str = "queen_s3_safe_lag_seconds";
const STOPPED: &str = "queen_s3_queue_stopped{queue=\"orders\"}";
const POINTER: &str = "s3:main:orders:committed";
const MINUTE: Duration = Duration::from_secs(60);

/// A log of one record in its last whole hour.
fn one_record() -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
    log.create(QUEUE);
    log.write(QUEUE, &Name::from("p"), TEN, 1);
    log
}

/// The greatest value of `series` in so many minutes; `None` when one was without it.
async fn greatest(sink: &Sink, series: &str, minutes: u32) -> Option<f64> {
    let mut greatest = 0_f64;
    for _ in 0..minutes * 6 {
        tokio::time::sleep(MINUTE / 6).await;
        greatest = greatest.max(sink.shown(series)?);
    }
    Some(greatest)
}

#[test]
fn the_safe_lag_is_the_broker_s_and_is_not_shown_where_nobody_asks_for_it() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        let owned = greatest(&sink, SAFE_LAG_SHOWN, 30).await;
        assert!(owned.is_some_and(|lag| lag < 10.0), "{owned:?}");

        log.give_away(QUEUE, MINUTE * 30);
        let shown = || sink.shown(SAFE_LAG_SHOWN);
        tokio::time::sleep(SAFE_TIME_STANDS + MINUTE).await;
        while log
            .document("s3:main:orders:lease")
            .is_some_and(|lease| lease["instance"] == "another")
        {
            assert_eq!(shown(), None);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        eventually("it asks again", || shown().is_some_and(|lag| lag < 10.0)).await;

        // A broker that is gone while it is asked is behind for as long.
        log.mute(true);
        tokio::time::sleep(MINUTE * 10).await;
        assert!(shown().is_some_and(|lag| lag > 590.0), "{:?}", shown());
        sink.kill();
    });
}

#[test]
fn a_queue_that_is_not_there_lets_no_lag_grow() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let sink = Sink::start(&log, &bucket, &[QUEUE, "clicks"], &Options::new());
        eventually("a window", || sink.shown(LAG).is_some()).await;
        log.deny(true);
        eventually("it is believed", || sink.shown(LAG).is_none()).await;
        // It is looked for once a minute.
        let most = MINUTE.as_secs_f64() + 5.0 + (SAFE_LAG / SECOND) as f64;
        let safe = greatest(&sink, SAFE_LAG_SHOWN, 120).await;
        assert!(safe.is_some_and(|lag| lag < most), "{safe:?}");
        assert_eq!(sink.shown(LAG), None);
        assert_eq!(sink.shown(STOPPED), Some(0.0));
        log.deny(false);
        eventually("it is back", || sink.shown(LAG).is_some()).await;
        sink.stop().await;
    });
}

#[test]
fn a_queue_that_an_error_stopped_is_shown_until_it_goes_on_here_or_elsewhere() {
    for elsewhere in [false, true] {
        in_virtual_time(async {
            let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            eventually("a window", || committed(&log, QUEUE).0 == 1).await;
            assert_eq!(sink.shown(STOPPED), Some(0.0));
            sink.stop().await;
            // The bucket's manifests without the pointer are an operator's to judge.
            let pointer = log.take_away(POINTER);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            eventually("the stop", || sink.shown(STOPPED) == Some(1.0)).await;
            let all_along = greatest(&sink, STOPPED, 10).await;
            assert_eq!(all_along, Some(1.0));
            if elsewhere {
                log.give_away(QUEUE, MINUTE * 30);
            } else {
                log.put_back(POINTER, pointer);
            }
            eventually("the end of it", || sink.shown(STOPPED) == Some(0.0)).await;
            sink.stop().await;
        });
    }
}

#[test]
fn the_buffer_is_what_records_hold_of_the_budget_and_a_window_as_large_as_its_object() {
    const BUFFER: &str = "queen_s3_buffer_bytes";
    for form in Form::ALL {
        in_virtual_time(async move {
            let payload = |_: &str, offset: i64| format!("\"{offset}{}\"", "x".repeat(2_000));
            // All within the present hour: nothing closes before the age that is told below.
            let log = Log::new(TEN + HOUR / 2, payload);
            log.create(QUEUE);
            log.write(QUEUE, &Name::from("p"), TEN, 1_000);
            log.answer_in(form);
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            assert_eq!(sink.shown(BUFFER), Some(0.0));
            let status = sink.status.queue(QUEUE);
            eventually("it is read", || status.buffered.load(Relaxed) > 0).await;
            tokio::time::sleep(MINUTE).await;
            assert_eq!(committed(&log, QUEUE).0, 0, "its age is five minutes");
            assert_eq!(sink.shown(BUFFER), Some(sink.budget.used() as f64));
            let held = sink.shown(BUFFER).expect("a gauge");
            match form {
                Form::Described | Form::Lz4 => {
                    assert!(held > 0.0 && held < 200_000.0, "{held} compressed");
                }
                _ => assert!(held > 2_000_000.0, "{held} as texts"),
            }
            eventually("a window", || committed(&log, QUEUE).0 == 1).await;
            eventually("nothing is held", || sink.shown(BUFFER) == Some(0.0)).await;

            let bytes = bucket.manifests(QUEUE)[0]["bytes"].as_u64();
            let bytes = bytes.expect("an object's length") as f64;
            assert!(bytes > 2_000_000.0, "{bytes}");
            let shown = |series: &str| sink.shown(&format!("queen_s3_window_bytes_{series}"));
            assert_eq!((shown("count"), shown("sum")), (Some(1.0), Some(bytes)));
            let buckets =
                ["1.048576e+06", "8.388608e+06"].map(|le| shown(&format!("bucket{{le=\"{le}\"}}")));
            assert_eq!(buckets, [Some(0.0), Some(1.0)], "{bytes}");
            sink.stop().await;
        });
    }
}

#[test]
fn a_step_of_the_wall_clock_neither_hides_a_sink_that_stands_still_nor_turns_one_red() {
    in_virtual_time(async {
        const HOUR_MS: i64 = 3_600_000;
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        for step in [HOUR_MS, -HOUR_MS] {
            sink.stepped_ms.store(step, Relaxed);
            assert!(sink.health().ok, "{step}");
        }
        bucket.plan(|asked| match asked.operation {
            "put" => Do::Refuse(503, "SlowDown", None),
            _ => Do::Go,
        });
        log.write(QUEUE, &Name::from("p"), log.now(), 1);
        tokio::time::sleep(MINUTE * 21).await;
        assert!(
            !sink.health().ok,
            "nothing has been committed for 15 minutes"
        );
        sink.kill();
    });
}

#[test]
fn a_sink_that_starts_behind_is_red_until_it_has_committed() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        assert!(sink.health().ok);
        sink.stop().await;

        // Nothing goes up any more, and no process lives long enough to be stale by itself.
        bucket.plan(|asked| match asked.operation {
            "put" => Do::Refuse(503, "SlowDown", None),
            _ => Do::Go,
        });
        tokio::time::sleep(MINUTE * 10).await;
        log.write(QUEUE, &Name::from("p"), log.now(), 1);
        for minute in 11..=40 {
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            tokio::time::sleep(MINUTE).await;
            assert_eq!(sink.health().ok, minute < 15, "minute {minute}");
            sink.kill();
        }

        bucket.plan(|_| Do::Go);
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("it shows the pointer", || sink.shown(LAG).is_some()).await;
        assert!(!sink.health().ok, "a start is no commit");
        eventually("a commit", || sink.health().ok).await;
        assert_eq!(committed(&log, QUEUE).0, 2);
        sink.stop().await;
    });
}
