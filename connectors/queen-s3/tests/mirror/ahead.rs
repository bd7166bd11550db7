//! The window after the one that is being committed: encoded meanwhile, written in its turn.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use queen_s3::broker::Name;
use queen_s3::bucket::Bucket;
use queen_s3::lake::checkpoint::Checkpoint;
use queen_s3::lake::{Compression, Layout};
use queen_s3::limits::{MIB, OBJECTS_IN_FLIGHT};
use tokio::time::Instant;

use crate::bucket::{Do, MemoryBucket};
use crate::history::records;
use crate::log::{Limits, Log};
use crate::sink::{Options, SINK, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
const WINDOWS: u64 = 5;
/// Records of a window, of about 100 KiB each.
const RECORDS: i64 = 10;
/// Payload bytes of a window.
const WINDOW: u64 = RECORDS as u64 * (100 << 10);
/// How long a manifest takes to be written.
const SLOW: Duration = Duration::from_secs(20);

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(100 << 10))
}

/// A log of so many windows of a mebibyte and half a one, in its last whole hour.
fn log() -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
    log.create(QUEUE);
    for record in 0..WINDOWS as i64 * RECORDS + RECORDS / 2 {
        log.write(QUEUE, &Name::from("p"), TEN + record * SECOND, 1);
    }
    log
}

/// A store that is slow to take a manifest.
fn bucket() -> Arc<MemoryBucket> {
    let bucket = Arc::<MemoryBucket>::default();
    bucket.plan(
        |asked| match asked.operation == "put" && asked.key.contains("/windows/") {
            true => Do::Slowly(SLOW),
            false => Do::Go,
        },
    );
    bucket
}

fn options() -> Options {
    let mut options = Options::new();
    options.settings.target_bytes = MIB as u64;
    options.settings.checkpoint_every = 1;
    options.settings.lease_ttl = Duration::from_secs(120);
    options
}

/// A sink that commits its first window and has closed the one after it.
async fn two_windows_are_closed() -> (Arc<Log>, Arc<MemoryBucket>, Sink) {
    let (log, bucket) = (log(), bucket());
    let sink = Sink::start(&log, &bucket, &[QUEUE], &options());
    let status = sink.status.queue(QUEUE);
    eventually("two windows are closed", || {
        status.writing.load(Relaxed) >= 2 * WINDOW
    })
    .await;
    (log, bucket, sink)
}

/// When the PUT of the object whose key holds `part` was made.
fn put(bucket: &MemoryBucket, part: &str) -> Option<Instant> {
    bucket.asked("put", part).first().map(|asked| asked.at)
}

#[test]
fn a_full_window_is_encoded_while_the_one_before_it_is_committed_and_goes_up_in_its_turn() {
    in_virtual_time(async {
        let (log, bucket, sink) = two_windows_are_closed().await;
        assert_eq!(committed(&log, QUEUE).0, 0, "the first is not committed");
        eventually("every window", || committed(&log, QUEUE).0 > WINDOWS).await;
        sink.stop().await;
        for k in 2..=WINDOWS {
            let data = put(&bucket, &format!("/w-{k:010}-")).expect("it went up");
            let before = put(&bucket, &format!("/windows/{:010}", k - 1)).expect("a manifest");
            assert!(data >= before + SLOW, "window {k} went up before its turn");
        }
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn two_windows_are_encoded_ahead_and_no_more() {
    in_virtual_time(async {
        let (log, bucket) = (log(), bucket());
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options());
        let status = sink.status.queue(QUEUE);
        let mut most = 0;
        eventually("every window", || {
            most = most.max(status.writing.load(Relaxed));
            committed(&log, QUEUE).0 > WINDOWS
        })
        .await;
        sink.stop().await;
        // The one that is being committed, and those.
        assert!(
            (3 * WINDOW..4 * WINDOW).contains(&most),
            "{most} bytes were being written"
        );
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

/// Layout, and from how many bytes on an object goes up in parts.
const WAYS: [(Layout, u64); 3] = [
    (Layout::Merged, 64 * MIB as u64),
    (Layout::Merged, 100 << 10),
    (Layout::PerPartition, 64 * MIB as u64),
];

#[test]
fn nothing_of_a_window_goes_up_before_its_own_intent_is_durable() {
    for (layout, threshold) in WAYS {
        in_virtual_time(async {
            // Of more partitions than objects may be on their way to their end.
            let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
            log.create(QUEUE);
            for record in 0..3 * RECORDS {
                for partition in 0..=OBJECTS_IN_FLIGHT {
                    let name = Name::from(format!("p-{partition}"));
                    log.write(QUEUE, &name, TEN + record * SECOND, 1);
                }
            }
            let bucket = Arc::<MemoryBucket>::default();
            let (early, seen) = (Arc::<Mutex<Vec<String>>>::default(), Arc::clone(&log));
            let found = Arc::clone(&early);
            bucket.plan(move |asked| {
                let window = asked
                    .key
                    .rsplit("/w-")
                    .next()
                    .and_then(|rest| rest.get(..10));
                let writes = ["put", "multipart_create"].contains(&asked.operation);
                if let Some(Ok(k)) = window.map(str::parse::<u64>).filter(|_| writes) {
                    let intent = seen.document(&format!("s3:{SINK}:{QUEUE}:intent"));
                    let named = intent.and_then(|intent| intent["k"].as_u64());
                    if named != Some(k) || committed(&seen, QUEUE).0 + 1 != k {
                        found.lock().expect("no panic").push(asked.key.clone());
                    }
                }
                match asked.key.contains("/windows/") && asked.operation == "put" {
                    true => Do::Slowly(SLOW),
                    false => Do::Go,
                }
            });
            let mut options = options();
            options.settings.target_bytes = 10 * WINDOW;
            options.settings.shape.layout = layout;
            options.settings.multipart_threshold_bytes = threshold;
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            let status = sink.status.queue(QUEUE);
            let mut ahead = false;
            eventually("every record", || {
                ahead |= status.writing.load(Relaxed) > 15 * WINDOW;
                committed(&log, QUEUE).1 > TEN + 3 * RECORDS * SECOND
            })
            .await;
            sink.stop().await;
            assert!(ahead, "no window was closed ahead of its turn");
            assert_eq!(*early.lock().expect("no panic"), Vec::<String>::new());
            assert_eq!(records(&bucket), log.records(QUEUE));
        });
    }
}

#[test]
fn a_checkpoint_is_of_its_window_whatever_is_closed_by_then() {
    in_virtual_time(async {
        let (log, bucket) = (log(), bucket());
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options());
        let mut seen = Vec::new();
        eventually("every window", || {
            seen.extend(bucket.checkpoints());
            committed(&log, QUEUE).0 >= WINDOWS
        })
        .await;
        sink.stop().await;
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() as u64 >= WINDOWS - 1, "{seen:?}");
        let manifests = bucket.manifests(QUEUE);
        for key in bucket.checkpoints() {
            let object = bucket.get(&key).await.expect("an answer");
            let pieces = object.expect("it is there").stream.try_collect::<Vec<_>>();
            let object = pieces.await.expect("its bytes").concat();
            let checkpoint = Checkpoint::decode(&object).expect("a checkpoint");
            let records: u64 = manifests
                .iter()
                .filter(|manifest| manifest["k"].as_u64() <= Some(checkpoint.k))
                .filter_map(|manifest| manifest["records"].as_u64())
                .sum();
            let offsets: Vec<i64> = checkpoint.positions.iter().map(|one| one.offset).collect();
            assert_eq!(offsets, [records as i64], "after window {}", checkpoint.k);
        }
    });
}

#[test]
fn room_for_what_records_are_likely_to_become_is_enough_once_a_window_has_shown_it() {
    in_virtual_time(async {
        let (log, bucket) = (log(), bucket());
        let mut options = options();
        options.settings.shape.compression = Compression::Zstd;
        options.settings.fetch_concurrency = 1;
        // The one fetch call leaves half of it: room for a window's records, but not for as much again.
        options.memory = 9 * MIB / 2;
        log.limit(Limits {
            entry_records: RECORDS as usize / 2,
            ..Limits::default()
        });
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let status = sink.status.queue(QUEUE);
        let (mut first, mut later) = (0, 0);
        eventually("every window", || {
            let (k, _) = committed(&log, QUEUE);
            let most = if k == 0 { &mut first } else { &mut later };
            *most = (*most).max(status.writing.load(Relaxed));
            k > WINDOWS
        })
        .await;
        sink.stop().await;
        assert!(first < 2 * WINDOW, "{first} bytes were being written");
        assert!(later >= 2 * WINDOW, "{later} bytes were being written");
        let manifests = bucket.manifests(QUEUE);
        let written = manifests.iter().filter_map(|one| one["records"].as_u64());
        assert_eq!(written.sum::<u64>(), log.records(QUEUE).len() as u64);
    });
}

#[test]
fn reading_goes_on_as_soon_as_there_is_room_again() {
    in_virtual_time(async {
        let (log, bucket) = (log(), Arc::<MemoryBucket>::default());
        bucket.plan(|_| Do::Slowly(SLOW));
        let mut options = options();
        options.settings.shape.compression = Compression::Zstd;
        options.settings.discovery_interval = Duration::from_secs(300);
        options.settings.fetch_concurrency = 1;
        options.memory = 5 * MIB / 4;
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        // Nothing else happens that would have it looked for room.
        eventually("the next window is read while the first goes up", || {
            put(&bucket, "/w-").is_some() && sink.budget.buffered() as u64 > WINDOW / 2
        })
        .await;
        let windows = committed(&log, QUEUE).0;
        assert_eq!(windows, 0, "the first window goes up meanwhile");
        sink.kill();
    });
}

#[test]
fn without_room_for_it_no_window_is_closed_before_its_turn() {
    in_virtual_time(async {
        let (log, bucket) = (log(), bucket());
        let mut options = options();
        options.memory = 3 * MIB;
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let status = sink.status.queue(QUEUE);
        let mut most = 0;
        eventually("every window", || {
            most = most.max(status.writing.load(Relaxed));
            committed(&log, QUEUE).0 > WINDOWS
        })
        .await;
        sink.stop().await;
        assert!(most < 2 * WINDOW, "{most} bytes were being written");
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn a_stop_commits_the_window_that_is_encoded_ahead_and_all_that_was_read() {
    in_virtual_time(async {
        let (log, bucket, sink) = two_windows_are_closed().await;
        sink.stop().await;
        let windows = bucket.manifests(QUEUE);
        assert!(windows.len() >= 2, "{} windows", windows.len());
        assert_eq!(committed(&log, QUEUE).0, windows.len() as u64);
        let written: u64 = windows
            .iter()
            .filter_map(|window| window["records"].as_u64())
            .sum();
        assert_eq!(records(&bucket).len() as u64, written);
    });
}

#[test]
fn a_window_that_is_encoded_ahead_goes_with_a_lost_lease() {
    const HELD: Duration = Duration::from_secs(600);
    in_virtual_time(async {
        let (log, bucket, sink) = two_windows_are_closed().await;
        let status = sink.status.queue(QUEUE);
        log.give_away(QUEUE, HELD);
        let given = Instant::now();
        eventually("the queue is given up", || !status.owned.load(Relaxed)).await;
        assert_eq!(status.writing.load(Relaxed), 0, "nothing is kept of it");
        eventually("every window", || committed(&log, QUEUE).0 > WINDOWS).await;
        sink.stop().await;
        let second = put(&bucket, "/w-0000000002-").expect("it went up");
        assert!(second >= given + HELD, "it went up under another's lease");
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}
