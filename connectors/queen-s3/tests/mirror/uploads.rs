//! How windows go up, and what a store that is busy, forgetful or unwilling makes of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::lake::Layout;
use queen_s3::limits::{MIB, PART_BYTES, PARTS_IN_FLIGHT};

use crate::bucket::{Asked, Do, MemoryBucket};
use crate::bytes::interrupted;
use crate::history::records;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";

fn is_data(asked: &Asked) -> bool {
    !asked.key.contains("/_queen/")
}

fn a_mebibyte(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(MIB))
}

/// A log with so many records of a mebibyte in its last whole hour.
fn mebibytes(records: i64) -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, a_mebibyte);
    log.create(QUEUE);
    for record in 0..records {
        log.write(QUEUE, &Name::from("p"), TEN + record * SECOND, 1);
    }
    log
}

/// A sink whose objects go up in parts from 5 MiB on.
fn in_parts() -> Options {
    let mut options = Options::new();
    options.settings.multipart_threshold_bytes = 5 * MIB as u64;
    options
}

#[test]
fn a_large_object_goes_up_in_parts_of_16_mib_as_many_at_a_time_as_memory_allows() {
    for (memory, at_once) in [(1_024, PARTS_IN_FLIGHT), (256, 3)] {
        goes_up_in_parts(memory, at_once);
    }
}

fn goes_up_in_parts(memory: usize, most: usize) {
    in_virtual_time(async {
        let (log, bucket) = (mebibytes(120), Arc::<MemoryBucket>::default());
        bucket.plan(|asked| match asked.operation {
            "multipart_part" => Do::Slowly(Duration::from_secs(30)),
            _ => Do::Go,
        });
        let mut options = in_parts();
        options.memory = memory * MIB;
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        sink.stop().await;
        let parts = bucket.asked("multipart_part", "");
        let (last, whole) = parts.split_last().expect("it went up in parts");
        assert_eq!(whole.len(), 7);
        assert!(whole.iter().all(|part| part.bytes == PART_BYTES));
        assert!(last.bytes > 0 && last.bytes <= PART_BYTES);
        let at_once = parts.iter().map(|part| part.at_once).max();
        assert_eq!(at_once, Some(most));
        assert_eq!(bucket.in_parts(), 1);
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn what_is_on_its_way_up_takes_room_in_the_memory_budget() {
    for (options, operation) in [(Options::new(), "put"), (in_parts(), "multipart_part")] {
        in_virtual_time(async {
            let (log, bucket) = (mebibytes(40), Arc::<MemoryBucket>::default());
            bucket.plan(
                move |asked| match is_data(asked) && asked.operation == operation {
                    true => Do::Slowly(Duration::from_secs(30)),
                    false => Do::Go,
                },
            );
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            let budget = Arc::clone(&sink.budget);
            let mut most = 0;
            eventually("the window", || {
                most = most.max(budget.reserved());
                committed(&log, QUEUE).0 == 1
            })
            .await;
            assert_eq!(budget.reserved(), 0);
            sink.stop().await;
            let object: usize = bucket.data().values().map(bytes::Bytes::len).sum();
            assert_eq!(most, object, "{operation}");
        });
    }
}

#[test]
fn a_completion_whose_answer_is_lost_is_looked_for_and_not_repeated() {
    // The look after it may miss the object; then the store knows the upload no more.
    for misses in [0, 1] {
        in_virtual_time(async {
            let (log, bucket) = (mebibytes(8), Arc::<MemoryBucket>::default());
            let (mut lost, mut missed) = (0, 0);
            bucket.plan(move |asked| match asked.operation {
                "multipart_complete" if lost == 0 => {
                    lost += 1;
                    Do::Lose
                }
                "head" if is_data(asked) && missed < misses => {
                    missed += 1;
                    Do::Miss
                }
                _ => Do::Go,
            });
            let sink = Sink::start(&log, &bucket, &[QUEUE], &in_parts());
            eventually("the window", || committed(&log, QUEUE).0 == 1).await;
            sink.stop().await;
            assert_eq!(bucket.asked("multipart_create", "").len(), 1);
            let completions = bucket.asked("multipart_complete", "").len();
            assert_eq!(completions, 1 + misses);
            assert_eq!(bucket.in_parts(), 1);
            assert_eq!(records(&bucket), log.records(QUEUE));
        });
    }
}

#[test]
fn records_are_dropped_as_they_are_encoded_and_what_became_of_them_when_it_is_up() {
    for threshold in [5, 64] {
        in_virtual_time(async {
            let (log, bucket) = (mebibytes(8), Arc::<MemoryBucket>::default());
            bucket.plan(|asked| match asked.key.contains("/checkpoint/") {
                true => Do::Go,
                false => Do::Slowly(Duration::from_secs(20)),
            });
            let mut options = in_parts();
            options.settings.multipart_threshold_bytes = threshold * MIB as u64;
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            let writes =
                || bucket.asked("put", "").len() + bucket.asked("multipart_part", "").len();
            eventually("an upload", || writes() > 0).await;
            assert_eq!(sink.budget.buffered(), 0, "records");
            assert!(sink.budget.used() > 8 * MIB, "their lines");
            eventually("the manifest's", || {
                !bucket.asked("put", "/windows/").is_empty()
            })
            .await;
            assert_eq!((committed(&log, QUEUE).0, sink.budget.used()), (0, 0));
            sink.kill();
        });
    }
}

#[test]
fn a_window_whose_upload_the_store_forgot_is_written_again() {
    // Which of three parts is told so, or the completion; and of how many uploads in turn.
    for (part, times) in [(Some(1), 1), (Some(2), 2), (Some(3), 1), (None, 2)] {
        in_virtual_time(async {
            let (log, bucket) = (mebibytes(40), Arc::<MemoryBucket>::default());
            let (mut parts, mut forgotten) = (0, 0);
            bucket.plan(move |asked| {
                let meant = match asked.operation {
                    "multipart_create" => {
                        parts = 0;
                        false
                    }
                    "multipart_part" => {
                        parts += 1;
                        part == Some(parts)
                    }
                    "multipart_complete" => part.is_none(),
                    _ => false,
                };
                if meant && forgotten < times {
                    forgotten += 1;
                    return Do::Refuse(404, "NoSuchUpload", None);
                }
                Do::Go
            });
            let sink = Sink::start(&log, &bucket, &[QUEUE], &in_parts());
            eventually("the window", || committed(&log, QUEUE).0 == 1).await;
            assert_eq!(
                bucket.open_uploads(),
                0,
                "one that was forgotten is given up"
            );
            sink.stop().await;
            assert_eq!(bucket.asked("multipart_create", "").len(), 1 + times);
            assert_eq!(bucket.in_parts(), 1);
            assert_eq!(records(&bucket), log.records(QUEUE));
        });
    }
}

#[test]
fn all_that_a_forgotten_window_names_as_lost_is_named_by_the_one_written_instead() {
    const PARTITIONS: u64 = 2_000;
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        let names: Vec<Name> = (0..PARTITIONS)
            .map(|n| Name::from(format!("p-{n:04}")))
            .collect();
        for name in &names {
            log.write(QUEUE, name, TEN, 1);
        }
        let cut = names.clone();
        log.after_fetches(0, move |log| {
            cut.iter().for_each(|name| log.delete(QUEUE, name))
        });
        log.write(QUEUE, &Name::from("whole"), TEN, 1);
        let bucket = Arc::<MemoryBucket>::default();
        let mut forgotten = false;
        bucket.plan(
            move |asked| match asked.operation == "multipart_complete" && !forgotten {
                true => {
                    forgotten = true;
                    Do::Refuse(404, "NoSuchUpload", None)
                }
                false => Do::Go,
            },
        );
        let mut options = in_parts();
        options.settings.multipart_threshold_bytes = 1;
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        sink.stop().await;
        assert_eq!(bucket.asked("multipart_create", "").len(), 2);
        let manifests = bucket.manifests(QUEUE);
        let lost = manifests[0]["lost"].as_array().expect("a list");
        let lost: BTreeSet<&str> = lost
            .iter()
            .filter(|range| (range["from"].as_i64(), range["to"].as_i64()) == (Some(0), Some(0)))
            .filter_map(|range| range["partition"].as_str())
            .collect();
        assert_eq!(lost.len() as u64, PARTITIONS);
        assert_eq!(records(&bucket).len(), 1);
    });
}

#[test]
fn an_upload_that_cannot_be_finished_is_given_up() {
    in_virtual_time(async {
        let (log, bucket) = (mebibytes(40), Arc::<MemoryBucket>::default());
        bucket.plan(|asked| match asked.operation {
            "multipart_part" => Do::Slowly(Duration::from_secs(3_600)),
            _ => Do::Go,
        });
        let sink = Sink::start(&log, &bucket, &[QUEUE], &in_parts());
        eventually("an upload", || bucket.open_uploads() == 1).await;
        eventually("a part", || !bucket.asked("multipart_part", "").is_empty()).await;
        log.give_away(QUEUE, Duration::from_secs(600));
        eventually("the end of it", || bucket.open_uploads() == 0).await;
        assert_eq!(bucket.asked("multipart_abort", "").len(), 1);
        assert!(bucket.asked("multipart_complete", "").is_empty());
        sink.stop().await;
    });
}

#[test]
fn a_busy_store_is_asked_again_after_a_growing_pause_or_the_one_that_it_asks_for() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        log.write(QUEUE, &Name::from("p"), TEN, 1);
        let bucket = Arc::<MemoryBucket>::default();
        let mut tries = 0;
        bucket.plan(move |asked| {
            if asked.operation != "put" || !is_data(asked) {
                return Do::Go;
            }
            tries += 1;
            match tries {
                1..=3 => Do::Refuse(503, "SlowDown", None),
                4 => Do::Refuse(503, "SlowDown", Some(Duration::from_secs(200))),
                _ => Do::Go,
            }
        });
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        sink.stop().await;
        let puts: Vec<Asked> = bucket
            .asked("put", "")
            .into_iter()
            .filter(is_data)
            .collect();
        let pauses = puts.windows(2).map(|two| two[1].at - two[0].at);
        let pauses: Vec<f64> = pauses.map(|pause| pause.as_secs_f64()).collect();
        let [first, second, third, asked] = pauses[..] else {
            panic!("{pauses:?}");
        };
        // Each is doubled, and up to as much again is added by chance.
        assert!((1.0..2.1).contains(&first), "{pauses:?}");
        assert!((2.0..4.1).contains(&second), "{pauses:?}");
        assert!((4.0..8.1).contains(&third), "{pauses:?}");
        assert!((200.0..201.0).contains(&asked), "{pauses:?}");
    });
}

#[test]
fn refused_keys_delay_a_window_and_turn_health_red_until_they_are_mended() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        log.write(QUEUE, &Name::from("p"), TEN, 1);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        assert!(sink.health().ok);

        bucket.plan(|_| Do::Refuse(403, "InvalidAccessKeyId", None));
        let refused_from = log.now();
        log.write(QUEUE, &Name::from("p"), refused_from, 1);
        eventually("red health", || !sink.health().ok).await;
        let offender = sink.health().offender.expect("it is named");
        assert_eq!(
            (offender.queue.as_str(), offender.limit_ms),
            (QUEUE, 900_000)
        );
        let stale = offender.stale_ms;
        assert!((900_001..900_200).contains(&stale), "{stale}");
        let (k, end) = committed(&log, QUEUE);
        assert!(k == 1 && end <= refused_from, "nothing is dropped");
        let shown = sink.status.queue(QUEUE).t_end().expect("it committed").0;
        assert_eq!(shown, end, "lag counts from there");

        bucket.plan(|_| Do::Go);
        eventually("the window", || committed(&log, QUEUE).0 == 2).await;
        eventually("green health", || sink.health().ok).await;
        assert_eq!(sink.status.queue(QUEUE).lost.load(Relaxed), 0);
        sink.stop().await;
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn a_stop_gives_up_all_that_a_try_at_a_window_left_open() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        for partition in ["a", "b"] {
            log.write(QUEUE, &Name::from(partition), TEN, 1);
        }
        let mut options = Options::new();
        options.settings.shape.layout = Layout::PerPartition;
        options.settings.multipart_threshold_bytes = 1;
        interrupted(&log, options.settings.shape, TEN);
        let bucket = Arc::<MemoryBucket>::default();
        bucket.plan(|asked| match asked.operation {
            "multipart_complete" => Do::Refuse(404, "NoSuchUpload", None),
            "multipart_abort" => Do::Slowly(Duration::from_secs(5)),
            _ => Do::Go,
        });
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let begun = || bucket.asked("multipart_create", "").len();
        let asked = || bucket.asked("multipart_abort", "").len();
        eventually("one is being given up", || asked() == 1).await;
        let open = begun();
        assert!(open > 1, "one upload tells nothing");
        sink.stop().await;
        assert_eq!(begun(), open);
        assert_eq!(bucket.open_uploads(), 0);
    });
}

#[test]
fn a_window_that_a_stop_finds_being_written_is_redone_before_the_end() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
        log.create(QUEUE);
        log.write(QUEUE, &Name::from("p"), TEN, 5);
        let mut options = Options::new();
        options.settings.multipart_threshold_bytes = 1;
        let bucket = Arc::<MemoryBucket>::default();
        let completed = AtomicUsize::new(0);
        bucket.plan(move |asked| match asked.operation {
            "multipart_create" => Do::Slowly(Duration::from_secs(5)),
            "multipart_complete" if completed.fetch_add(1, Relaxed) == 0 => {
                Do::Refuse(404, "NoSuchUpload", None)
            }
            _ => Do::Go,
        });
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let begun = || !bucket.asked("multipart_create", "").is_empty();
        eventually("an upload", begun).await;
        sink.stop().await;
        assert!(bucket.asked("multipart_complete", "").len() > 1);
        assert_eq!(committed(&log, QUEUE).0, 1);
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}
