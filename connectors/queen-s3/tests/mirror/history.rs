//! A long log read from its start, records larger than every limit, short memory, and nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::time::Micros;
use serde::Deserialize;

use crate::bucket::{Do, MemoryBucket};
use crate::bytes::interrupted;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually, verified};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const HOURS: i64 = 48;

#[derive(Deserialize)]
struct Line {
    partition: String,
    offset: i64,
    ts: String,
}

/// Every record of the objects, each once, as partition, offset, ts.
pub fn records(bucket: &MemoryBucket) -> BTreeSet<(String, i64, i64)> {
    let mut records = BTreeSet::new();
    for content in bucket.data().values() {
        let text = std::str::from_utf8(content).expect("JSON lines without compression");
        for line in text.lines() {
            let line: Line = serde_json::from_str(line).expect("a record");
            let ts = Micros::parse(&line.ts).expect("a timestamp").0;
            let record = (line.partition, line.offset, ts);
            let text = format!("{record:?} is there twice");
            assert!(records.insert(record), "{text}");
        }
    }
    records
}

fn about_a_kibibyte(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(900))
}

#[test]
fn days_of_history_become_aligned_windows_that_each_keep_to_the_size_target() {
    const TARGET: usize = 256 * KIB;
    // With memory for all of it, and with memory for little more than one window.
    for memory in [1_024 * MIB, 2 * MIB] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOURS * HOUR + 10 * SECOND, about_a_kibibyte);
            log.create("orders");
            let names: Vec<Name> = (0..20).map(|n| Name::from(format!("p-{n:02}"))).collect();
            for hour in 0..HOURS {
                for segment in 0..100_i64 {
                    let name = &names[segment as usize % names.len()];
                    log.write("orders", name, TEN + hour * HOUR + segment * 35 * SECOND, 7);
                }
            }
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.target_bytes = TARGET as u64;
            options.memory = memory;
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            let end = TEN + HOURS * HOUR;
            eventually("the history", || committed(&log, "orders").1 >= end).await;
            sink.stop().await;

            assert_eq!(records(&bucket), log.records("orders"));
            let windows = bucket.manifests("orders");
            let all: usize = bucket.data().values().map(|object| object.len()).sum();
            // No window of 256 KiB can hold more; three make up nearly all of an hour.
            assert!(windows.len() >= all / TARGET, "{} windows", windows.len());
            for window in &windows {
                let number = |field: &str| window[field].as_i64().expect("an integer");
                let bytes = number("bytes");
                assert!(bytes <= TARGET as i64, "window {} has {bytes}", window["k"]);
                let (start, last) = (number("tStart"), number("tEnd") - 1);
                assert_eq!(start.div_euclid(HOUR), last.div_euclid(HOUR), "{window}");
            }
            if memory > all {
                let hours = HOURS as usize;
                assert!(windows.len() <= 4 * hours, "{} windows", windows.len());
            }
        });
    }
}

fn huge_in_huge(partition: &str, offset: i64) -> String {
    // More than the room that a queue has however short memory is.
    let bytes = if partition == "huge" { 5 * MIB } else { 100 };
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(bytes))
}

#[test]
fn a_record_larger_than_the_target_and_than_the_memory_goes_through() {
    for memory in [MIB, 1_024 * MIB] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOUR + 10 * SECOND, huge_in_huge);
            log.create("orders");
            for minute in 0..50 {
                let ts = TEN + minute * 60 * SECOND;
                log.write("orders", &Name::from("small"), ts, 3);
                if minute % 10 == 5 {
                    log.write("orders", &Name::from("huge"), ts, 1);
                }
            }
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.target_bytes = 256 * KIB as u64;
            options.memory = memory;
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("the hour", || committed(&log, "orders").1 >= TEN + HOUR).await;
            sink.stop().await;
            assert_eq!(records(&bucket), log.records("orders"));
            let large = bucket.manifests("orders");
            let large = large
                .iter()
                .filter(|window| window["bytes"].as_i64() > Some(MIB as i64));
            assert_eq!(large.count(), 5, "a window for each");
        });
    }
}

#[test]
fn memory_that_is_left_to_encoded_bytes_holds_no_window_up() {
    in_virtual_time(async {
        // All within the present hour, and less than the target: only memory closes anything.
        let log = Log::new(TEN + HOUR / 2, about_a_kibibyte);
        log.create("orders");
        for second in 0..40 {
            log.write("orders", &Name::from("p"), TEN + second * SECOND, 1_000);
        }
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.max_window = Duration::from_secs(24 * 3_600);
        options.settings.target_bytes = 1_024 * MIB as u64;
        options.memory = 16 * MIB;
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("two windows", || committed(&log, "orders").0 >= 2).await;
        sink.stop().await;
        assert!(records(&bucket).is_subset(&log.records("orders")));
    });
}

#[test]
fn short_memory_closes_the_largest_buffer_of_all_queues_first() {
    in_virtual_time(async {
        // All within the present hour, so that neither alignment nor age closes anything.
        let log = Log::new(TEN + HOUR / 2, about_a_kibibyte);
        let name = Name::from("p");
        for (queue, records) in [("large", 4_300), ("small", 500)] {
            log.create(queue);
            log.write(queue, &name, TEN, records);
        }
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.max_window = Duration::from_secs(24 * 3_600);
        // Nothing makes a queue look at memory again while the other's window is written.
        options.settings.discovery_interval = Duration::from_secs(60);
        // A quarter is left to what is encoded.
        options.memory = 8 * MIB;
        let sink = Sink::start(&log, &bucket, &["large", "small"], &options);
        let buffered = |queue: &str| sink.status.queue(queue).buffered.load(Relaxed) as usize;
        eventually("both are read", || {
            buffered("large") > 4 * MIB && buffered("small") > 400 * KIB
        })
        .await;
        assert_eq!(committed(&log, "large").0 + committed(&log, "small").0, 0);
        // It is the smaller one that memory now does not suffice for.
        log.write("small", &name, log.now(), 1_500);
        eventually("a window", || committed(&log, "large").0 > 0).await;
        eventually("the rest is read", || buffered("small") > MIB).await;
        assert_eq!(committed(&log, "small").0, 0, "the smaller one is kept");
        sink.stop().await;
    });
}

#[test]
fn a_small_buffer_is_kept_while_a_larger_window_is_written() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR / 2, about_a_kibibyte);
        let name = Name::from("p");
        for (queue, records) in [("large", 7_000), ("small", 500)] {
            log.create(queue);
            log.write(queue, &name, TEN, records);
        }
        let bucket = Arc::<MemoryBucket>::default();
        bucket.plan(|asked| match asked.key.contains("/queue=large/") {
            true => Do::Slowly(Duration::from_secs(300)),
            false => Do::Go,
        });
        let mut options = Options::new();
        options.settings.max_window = Duration::from_secs(24 * 3_600);
        options.memory = 6 * MIB;
        let sink = Sink::start(&log, &bucket, &["large", "small"], &options);
        eventually("the upload", || !bucket.asked("put", "large").is_empty()).await;
        let buffered = || sink.status.queue("small").buffered.load(Relaxed) as usize;
        while committed(&log, "large").0 == 0 {
            log.write("small", &name, log.now(), 3);
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(
                committed(&log, "small").0,
                0,
                "nothing is won by closing it"
            );
        }
        assert!(buffered() > 600 * KIB, "it went on reading: {}", buffered());
        sink.stop().await;
    });
}

#[test]
fn what_is_held_stays_within_the_budget_and_one_fetch_call_of_each_queue() {
    for queues in [&["one"][..], &["one", "two", "three"]] {
        in_virtual_time(async {
            const MEMORY: usize = 16 * MIB;
            let log = Log::new(TEN + HOUR + 10 * SECOND, about_a_kibibyte);
            for queue in queues {
                log.create(queue);
                for segment in 0..400 {
                    let name = Name::from(format!("p-{:02}", segment % 20));
                    log.write(queue, &name, TEN + segment * SECOND, 100);
                }
            }
            let bucket = Arc::<MemoryBucket>::default();
            bucket.plan(|asked| match asked.operation {
                "put" => Do::Slowly(Duration::from_secs(20)),
                _ => Do::Go,
            });
            let mut options = Options::new();
            options.memory = MEMORY;
            let sink = Sink::start(&log, &bucket, queues, &options);
            for queue in queues {
                eventually("the hour", || committed(&log, queue).1 >= TEN + HOUR).await;
            }
            sink.stop().await;
            let most = log.take_counts().most_held;
            let read: usize = bucket.data().values().map(|object| object.len()).sum();
            assert!(read > 2 * MEMORY * queues.len(), "{read}");
            // Each queue may have one call under way however short memory is.
            let call = MEMORY / (options.settings.fetch_concurrency + 1);
            let bound = MEMORY + queues.len() * call;
            assert!(
                most > MEMORY / 2 && most <= bound,
                "{most}, {bound} at most"
            );
        });
    }
}

#[test]
fn an_idle_queue_moves_its_pointer_and_asks_the_bucket_for_nothing() {
    for windows in [0, 1] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOUR + 10 * SECOND, about_a_kibibyte);
            log.create("orders");
            if windows > 0 {
                log.write("orders", &Name::from("p"), TEN, 1);
            }
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
            let moved = |to: i64| committed(&log, "orders").1 > to;
            eventually("what there is", || moved(TEN + HOUR)).await;
            // A window's checkpoint, and what it supersedes, come after its pointer.
            tokio::time::sleep(Duration::from_secs(60)).await;
            let requests = bucket.requests();
            eventually("two hours", || moved(TEN + 3 * HOUR)).await;
            assert_eq!(bucket.requests(), requests, "requests of an idle queue");
            assert_eq!(committed(&log, "orders").0, windows);
            assert_eq!(bucket.manifests("orders").len() as u64, windows);
            let status = sink.status.queue("orders");
            assert_eq!(status.windows.load(Relaxed), windows);
            assert!(sink.health().ok);
            sink.stop().await;
        });
    }
}

fn sixty_four_kibibytes(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(64 * KIB))
}

#[test]
fn first_records_that_memory_has_no_room_for_are_read_again_and_no_window_is_one_instant() {
    const PARTITIONS: i64 = 64;
    const RECORDS: i64 = 10;
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, sixty_four_kibibytes);
        log.create("orders");
        for record in 0..PARTITIONS * RECORDS {
            let name = Name::from(format!("p-{}", record % PARTITIONS));
            log.write("orders", &name, TEN + record, 1);
        }
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.target_bytes = MIB as u64 / 2;
        options.memory = MIB;
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        let last = TEN + PARTITIONS * RECORDS;
        eventually("every record", || committed(&log, "orders").1 >= last).await;
        sink.stop().await;
        assert_eq!(records(&bucket), log.records("orders"));
        let windows = bucket.manifests("orders").len() as i64;
        assert!(windows < PARTITIONS * RECORDS / 2, "{windows} windows");
    });
}

#[test]
fn a_redo_holds_a_few_fetches_of_a_window_that_is_larger_than_the_memory() {
    in_virtual_time(async {
        const MEMORY: usize = 4 * MIB;
        let log = Log::new(TEN + HOUR + 10 * SECOND, sixty_four_kibibytes);
        log.create("orders");
        for record in 0..1_000 {
            let name = Name::from(format!("p-{:02}", record % 20));
            log.write("orders", &name, TEN + record * SECOND, 1);
        }
        let mut options = Options::new();
        options.memory = MEMORY;
        options.settings.multipart_threshold_bytes = 2 * MIB as u64;
        options.settings.part_bytes = MIB;
        interrupted(&log, options.settings.shape, 0);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("the window", || committed(&log, "orders").0 == 1).await;
        let most = log.take_counts().most_held;
        sink.stop().await;
        assert_eq!(records(&bucket), log.records("orders"));
        let window: usize = bucket.data().values().map(|object| object.len()).sum();
        assert!(window > 15 * MEMORY, "{window}");
        // The first records of its partitions together, the next ones of one of them, and parts.
        assert!(most > MIB && most < window / 4, "{most} of {window}");
    });
}

#[test]
fn a_ts_that_falls_leaves_records_in_the_order_of_their_offsets_in_every_way_of_writing() {
    let written = |redo: bool| {
        in_virtual_time(async move {
            let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
            log.create("orders");
            let name = Name::from("p");
            log.write("orders", &name, TEN + 50 * SECOND, 1);
            log.break_promise("orders", &name, TEN + 20 * SECOND, 2);
            log.write("orders", &name, TEN + 60 * SECOND, 1);
            let (bucket, options) = (Arc::<MemoryBucket>::default(), Options::new());
            if redo {
                interrupted(&log, options.settings.shape, 0);
            }
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("a window", || committed(&log, "orders").0 == 1).await;
            sink.stop().await;
            assert_eq!(records(&bucket), log.records("orders"));
            verified(&bucket, "orders").await;
            bucket.data()
        })
    };
    let objects = written(false);
    let content = objects.values().next().expect("an object");
    let lines = std::str::from_utf8(content).expect("JSON lines").lines();
    let line = |line| serde_json::from_str::<Line>(line).expect("a record");
    let offsets: Vec<i64> = lines.map(|text| line(text).offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3]);
    assert_eq!(written(true), objects);
}
