//! How a queue starts: its first pointer, and pointers and buckets that contradict each other.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::config::Start;
use queen_s3::lake::{Compression, Format};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::bucket::{Do, MemoryBucket};
use crate::bytes::interrupted;
use crate::history::records;
use crate::lines::Lines;
use crate::log::{Limits, Log};
use crate::sink::{Options, Sink, committed, eventually, verified};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
const POINTER: &str = "s3:main:orders:committed";
const INTENT: &str = "s3:main:orders:intent";
const LAG: &str = "queen_s3_lag_seconds{queue=\"orders\"}";

fn payload(_: &str, offset: i64) -> String {
    offset.to_string()
}

/// A log of so many hours with a record each.
fn hours(hours: i64) -> Arc<Log> {
    let log = Log::new(TEN + hours * HOUR + 10 * SECOND, payload);
    log.create(QUEUE);
    for hour in 0..hours {
        log.write(QUEUE, &Name::from("p"), TEN + hour * HOUR, 1);
    }
    log
}

/// A sink that has mirrored `log`, a window an hour, and has ended.
async fn mirrored(log: &Arc<Log>, bucket: &Arc<MemoryBucket>) {
    let windows = log.records(QUEUE).len() as u64;
    let sink = Sink::start(log, bucket, &[QUEUE], &Options::new());
    eventually("its windows", || committed(log, QUEUE).0 == windows).await;
    sink.stop().await;
}

/// Starts a sink, waits until it has stopped the queue, and answers why. It must have written
/// nothing but its lease, and be red.
async fn refused(log: &Arc<Log>, bucket: &Arc<MemoryBucket>) -> String {
    let (lines, _guard) = Lines::start();
    let documents = || [POINTER, INTENT].map(|key| log.document(key));
    let (before, objects) = (documents(), bucket.data());
    let puts = bucket.asked("put", "").len();
    let sink = Sink::start(log, bucket, &[QUEUE], &Options::new());
    let status = sink.status.queue(QUEUE);
    eventually("the stop", || status.stopped.load(Relaxed)).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(status.stopped.load(Relaxed), "it stays stopped");
    assert!(!sink.health().ok);
    assert_eq!(documents(), before);
    assert_eq!(bucket.asked("put", "").len(), puts);
    assert_eq!(bucket.data(), objects);
    sink.stop().await;
    let errors = lines.with("ERROR");
    assert!(errors[0].contains("queue=orders"), "{errors:?}");
    errors[0].clone()
}

/// Lets a sink go on with what an operator has mended; every record is there once.
async fn goes_on(log: &Arc<Log>, bucket: &Arc<MemoryBucket>) {
    let sink = Sink::start(log, bucket, &[QUEUE], &Options::new());
    let written = log.now();
    log.write(QUEUE, &Name::from("p"), written, 1);
    eventually("one more", || committed(log, QUEUE).1 > written).await;
    sink.stop().await;
    assert_eq!(records(bucket), log.records(QUEUE));
    verified(bucket, QUEUE).await;
}

#[test]
fn a_first_pointer_is_durable_before_anything_is_read() {
    for start in [Start::Earliest, Start::Latest] {
        in_virtual_time(async {
            let (log, bucket) = (hours(1), Arc::<MemoryBucket>::default());
            let mut options = Options::new();
            options.settings.start = start;
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            let written = log.now();
            log.write(QUEUE, &Name::from("p"), written, 1);
            eventually("a window", || committed(&log, QUEUE).1 > written).await;
            let counts = log.take_counts();
            assert!(counts.fetches > 0);
            assert_eq!(
                counts.unpointed, 0,
                "fetches before the queue had a pointer"
            );
            sink.stop().await;
        });
    }
}

#[test]
fn a_lake_without_its_pointer_stops_the_queue_and_names_adopt() {
    in_virtual_time(async {
        let (log, bucket) = (hours(2), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        let pointer = log.take_away(POINTER);
        let why = refused(&log, &bucket).await;
        for part in [
            "lake/_queen/main/orders/windows/0000000001.json",
            "no commit pointer",
            "`queen-s3 adopt`",
            "QUEEN_S3_SINK",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
        log.put_back(POINTER, pointer);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn a_manifest_of_another_lineage_stops_the_queue_and_says_that_two_sinks_write() {
    // That of the pointer's window, and that of the next one.
    for k in [2, 3] {
        in_virtual_time(async {
            let (log, bucket) = (hours(2), Arc::<MemoryBucket>::default());
            mirrored(&log, &bucket).await;
            let mine = bucket.manifests(QUEUE).pop().expect("a window");
            let mut theirs: Value = mine.clone();
            theirs["k"] = k.into();
            theirs["lineage"] = "theirs".into();
            let key = format!("lake/_queen/main/orders/windows/{k:010}.json");
            let before = bucket.place(&key, Some(theirs.to_string().into()));
            let why = refused(&log, &bucket).await;
            for part in [
                &*key,
                "another lake",
                "lineage theirs",
                "two sinks write to the same prefix",
                "QUEEN_S3_SINK or QUEEN_S3_PREFIX",
            ] {
                assert!(why.contains(part), "{part}: {why}");
            }
            bucket.place(&key, before);
            goes_on(&log, &bucket).await;
        });
    }
}

#[test]
fn an_object_of_the_next_window_that_no_intent_names_stops_the_queue_and_is_named() {
    in_virtual_time(async {
        let (log, bucket) = (hours(2), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        let (first, content) = bucket.data().pop_first().expect("an object");
        let start = committed(&log, QUEUE).1;
        let key = format!(
            "lake/main/queue=orders/dt=2026-09-04/hour=12/w-0000000003-{start}-{}.jsonl",
            start + SECOND
        );
        assert_eq!(first.split('/').count(), key.split('/').count(), "{first}");
        bucket.place(&key, Some(content));
        let why = refused(&log, &bucket).await;
        for part in [&*key, "no intent names window 3", "move the object away"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        bucket.place(&key, None);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn a_manifest_that_cannot_be_used_stops_the_queue_and_is_named() {
    in_virtual_time(async {
        let (log, bucket) = (hours(2), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        let key = "lake/_queen/main/orders/windows/0000000002.json";
        let before = bucket.place(key, Some("{".into()));
        let why = refused(&log, &bucket).await;
        for part in [
            key,
            "cannot be used as a manifest",
            "put it and its objects back",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
        bucket.place(key, before);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn an_intent_of_an_unknown_shape_stops_the_queue_and_is_named() {
    in_virtual_time(async {
        let (log, bucket) = (hours(2), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        let intent = log.take_away(INTENT);
        let mut unknown = intent.clone();
        unknown["format"] = "orc".into();
        log.put_back(INTENT, unknown);
        let why = refused(&log, &bucket).await;
        for part in [INTENT, "orc", "move it away or mend it"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        log.put_back(INTENT, intent);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn an_object_that_lacks_a_record_stops_the_interrupted_window_and_is_named() {
    in_virtual_time(async {
        let (log, bucket) = (hours(1), Arc::<MemoryBucket>::default());
        let mut shape = Options::new().settings.shape;
        (shape.format, shape.compression) = (Format::Jsonl, Compression::None);
        interrupted(&log, shape, 0);
        let key = format!(
            "lake/main/queue=orders/dt=2026-09-04/hour=10/w-0000000001-{TEN}-{}.jsonl",
            TEN + HOUR
        );
        let other = "{\"partition\":\"p\",\"offset\":7,\"transactionId\":\"t\",\"ts\":\
                     \"2026-09-04T10:00:00.000000Z\",\"payload\":7}\n";
        bucket.place(&key, Some(other.into()));
        let why = refused(&log, &bucket).await;
        for part in [&*key, "other content than window 1 has", "keep a copy"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        bucket.place(&key, None);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn a_pointer_behind_the_bucket_moves_over_its_windows_and_says_so_in_one_line() {
    in_virtual_time(async {
        let (log, bucket) = (hours(1), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        let restored = log.take_away(POINTER);
        log.put_back(POINTER, restored.clone());
        for k in 2..=5 {
            log.write(QUEUE, &Name::from("p"), log.now(), 1);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            eventually("a window", || committed(&log, QUEUE).0 == k).await;
            sink.stop().await;
        }
        let mirrored = records(&bucket);
        log.put_back(POINTER, restored);
        log.take_away(INTENT);

        let (lines, _guard) = Lines::start();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("the pointer", || committed(&log, QUEUE).0 == 5).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let said = lines.with("older than the lake");
        assert_eq!(said.len(), 1, "{said:#?}");
        for part in ["WARN", "queue=orders", "windows=4", "first=2", "last=5"] {
            assert!(said[0].contains(part), "{part}: {said:?}");
        }
        sink.stop().await;
        assert_eq!(records(&bucket), mirrored);
        goes_on(&log, &bucket).await;
    });
}

#[test]
fn a_stop_ends_a_redo_for_which_nothing_can_be_read() {
    for discovered in [true, false] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
            log.create(QUEUE);
            log.write(QUEUE, &Name::from("p"), TEN, 5);
            let options = Options::new();
            interrupted(&log, options.settings.shape, TEN);
            log.refuse_fetches(u64::MAX);
            log.mute(!discovered);
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            let status = sink.status.queue(QUEUE);
            if discovered {
                eventually("refusals", || status.fetches_failed.load(Relaxed) > 3).await;
            } else {
                sleep(Duration::from_secs(300)).await;
            }
            let stopped = timeout(Duration::from_secs(30), sink.stop()).await;
            stopped.expect("the redo hears of it");
            assert_eq!(committed(&log, QUEUE).0, 0);
            log.refuse_fetches(0);
            log.mute(false);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the window", || committed(&log, QUEUE).0 == 1).await;
            sink.stop().await;
            assert_eq!(records(&bucket), log.records(QUEUE));
        });
    }
}

#[test]
fn a_stop_lets_a_redo_that_reads_come_to_its_end() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        for second in 0..50 {
            log.write(QUEUE, &Name::from("p"), TEN + second * SECOND, 5);
        }
        log.limit(Limits {
            entry_records: 5,
            ..Limits::default()
        });
        let options = Options::new();
        interrupted(&log, options.settings.shape, TEN);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let status = sink.status.queue(QUEUE);
        eventually("some answers", || status.fetches_ok.load(Relaxed) > 3).await;
        assert_eq!(committed(&log, QUEUE).0, 0);
        sink.stop().await;
        assert_eq!(committed(&log, QUEUE).0, 1);
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn a_redo_has_its_time_after_a_stop_once() {
    // Once its object is there, what it asks of the broker is not answered, or the bucket takes no manifest.
    for muted in [true, false] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
            log.create(QUEUE);
            log.write(QUEUE, &Name::from("p"), TEN, 5);
            let options = Options::new();
            interrupted(&log, options.settings.shape, TEN);
            let bucket = Arc::<MemoryBucket>::default();
            bucket.plan(|asked| match asked.operation {
                "put" if asked.key.contains("/_queen/") => Do::Refuse(503, "SlowDown", None),
                "put" => Do::Slowly(Duration::from_secs(18)),
                _ => Do::Go,
            });
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the object", || !bucket.asked("put", "").is_empty()).await;
            log.mute(muted);
            let stopped = timeout(Duration::from_secs(25), sink.stop()).await;
            stopped.expect("the redo ends");
            assert_eq!(committed(&log, QUEUE).0, 0);
            log.mute(false);
            bucket.plan(|_| Do::Go);
            goes_on(&log, &bucket).await;
        });
    }
}

#[test]
fn a_queue_that_is_back_is_shown_as_behind_although_nothing_can_be_done_for_it() {
    // It is idle, or has a window that was interrupted.
    for open in [false, true] {
        in_virtual_time(async {
            let (log, bucket) = (hours(1), Arc::<MemoryBucket>::default());
            mirrored(&log, &bucket).await;
            if open {
                let mut intent = log.document(INTENT).expect("that of the window");
                intent["k"] = 2.into();
                intent["tStart"] = (TEN + HOUR).into();
                intent["tEnd"] = (TEN + 2 * HOUR).into();
                log.put_back(INTENT, intent);
            }
            log.deny(true);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            let status = sink.status.queue(QUEUE);
            eventually("it is gone", || !status.present.load(Relaxed)).await;
            sleep(Duration::from_secs(900)).await;
            assert!(sink.health().ok && sink.shown(LAG).is_none());
            bucket.plan(|asked| match asked.operation {
                "get" => Do::Refuse(503, "SlowDown", None),
                _ => Do::Go,
            });
            if open {
                let asked = bucket.asked("get", "").len();
                eventually("a look", || bucket.asked("get", "").len() > asked).await;
            }
            log.create(QUEUE);
            log.deny(false);
            sleep(Duration::from_secs(1_000)).await;
            assert!(!sink.health().ok, "open: {open}");
            assert!(sink.shown(LAG).is_some(), "open: {open}");
            assert_eq!(committed(&log, QUEUE).0, 1);
            sink.stop().await;
        });
    }
}

#[test]
fn a_queue_that_another_instance_holds_is_there_as_soon_as_the_broker_says_so() {
    in_virtual_time(async {
        let (log, bucket) = (hours(1), Arc::<MemoryBucket>::default());
        mirrored(&log, &bucket).await;
        log.deny(true);
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        let status = sink.status.queue(QUEUE);
        eventually("it is gone", || !status.present.load(Relaxed)).await;
        log.give_away(QUEUE, Duration::from_secs(4 * 3_600));
        sleep(Duration::from_secs(1_000)).await;
        assert!(sink.health().ok && sink.shown(LAG).is_none());
        log.deny(false);
        sleep(Duration::from_secs(1_000)).await;
        assert!(!sink.health().ok && sink.shown(LAG).is_some());
        assert!(!status.owned.load(Relaxed));
        sink.stop().await;
    });
}
