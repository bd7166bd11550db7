//! What single variables promise, seen in the bucket, and what the figures say of it.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::config::Start;

use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::log::{Limits, Log, SAFE_LAG};
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset}}}")
}

/// A log of one partition with a record in each of the last `hours` whole hours.
fn hours_of_records(hours: i64) -> Arc<Log> {
    let log = Log::new(TEN + hours * HOUR + 10 * SECOND, payload);
    log.create("orders");
    for hour in 0..hours {
        log.write(
            "orders",
            &Name::from("p"),
            TEN + hour * HOUR + 60 * SECOND,
            1,
        );
    }
    log
}

#[test]
fn latest_begins_at_the_present_safe_time_and_earliest_at_the_first_record() {
    for (start, mirrored) in [(Start::Latest, 1), (Start::Earliest, 3)] {
        in_virtual_time(async {
            let log = hours_of_records(2);
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.start = start;
            let began = log.now();
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("a pointer", || committed(&log, "orders").1 >= 0).await;
            let (k, end) = committed(&log, "orders");
            let safe = began - SAFE_LAG..=log.safe_time();
            match start {
                Start::Latest => assert!(k == 0 && safe.contains(&end), "{end}"),
                Start::Earliest => assert!(end == 0 || k > 0, "{end}"),
            }
            let written = log.now();
            log.write("orders", &Name::from("p"), written, 1);
            eventually("the record", || committed(&log, "orders").1 > written).await;
            sink.stop().await;
            assert_eq!(records(&bucket).len(), mirrored);
        });
    }
}

#[test]
fn checkpoints_come_every_so_many_windows_and_the_two_newest_stay() {
    in_virtual_time(async {
        let log = hours_of_records(9);
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.checkpoint_every = 2;
        options.settings.max_window = Duration::from_secs(24 * 3_600);
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("nine windows", || committed(&log, "orders").0 == 9).await;
        let kept = || -> Vec<String> {
            let keys = bucket.checkpoints().into_iter();
            keys.filter_map(|key| Some(key.rsplit('/').next()?.to_owned()))
                .collect()
        };
        let newest = ["0000000006.json.zst", "0000000008.json.zst"];
        eventually("the checkpoints", || kept() == newest).await;
        let age = &sink.status.queue("orders").checkpoint_age;
        assert_eq!(age.load(Relaxed), 1, "one window since");
        sink.stop().await;
    });
}

#[test]
fn an_object_above_the_threshold_goes_up_in_parts_and_one_at_it_in_one_piece() {
    let upload = |threshold: u64| {
        in_virtual_time(async {
            let log = hours_of_records(1);
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.multipart_threshold_bytes = threshold;
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("the window", || committed(&log, "orders").0 == 1).await;
            sink.stop().await;
            let length = bucket
                .data()
                .values()
                .map(|object| object.len())
                .sum::<usize>();
            (length as u64, bucket.in_parts())
        })
    };
    let (length, _) = upload(1 << 20);
    assert_eq!(upload(length), (length, 0));
    assert_eq!(upload(length - 1), (length, 1));
}

#[test]
fn the_figures_of_a_queue_are_those_of_its_manifests() {
    in_virtual_time(async {
        let log = hours_of_records(3);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        eventually("three windows", || committed(&log, "orders").0 == 3).await;
        let status = sink.status.queue("orders");
        let shown = |counter: &AtomicU64| counter.load(Relaxed);
        eventually("the last one is shown", || shown(&status.windows) == 3).await;
        let manifests = bucket.manifests("orders");
        let sum = |field: &str| -> u64 { manifests.iter().filter_map(|m| m[field].as_u64()).sum() };
        assert_eq!(shown(&status.records), sum("records"));
        assert_eq!(shown(&status.jsonl_bytes), sum("bytes"));
        assert_eq!(shown(&status.parquet_bytes), 0);
        assert_eq!(shown(&status.lost) + shown(&status.late), 0);
        assert_eq!(
            shown(&status.discovered),
            1,
            "as many as the last pass listed"
        );
        let counts = log.take_counts();
        assert_eq!(shown(&status.fetches_ok), counts.fetches);
        assert_eq!(shown(&status.fetches_failed), 0);
        let (_, windows, _) = sink.status.window_records.snapshot();
        assert_eq!(windows.iter().sum::<u64>(), 3);
        let end = status.t_end().expect("it has committed").0;
        assert_eq!(end, committed(&log, "orders").1);
        let lag = sink.shown("queen_s3_safe_lag_seconds");
        let least = (SAFE_LAG / SECOND) as f64;
        let near = least..least + 5.0;
        assert!(
            lag.is_some_and(|lag| near.contains(&lag)),
            "the last answer's: {lag:?}"
        );
        sink.stop().await;
    });
}

#[test]
fn fetch_calls_that_fail_are_counted_apart_and_tried_again() {
    in_virtual_time(async {
        let log = hours_of_records(3);
        log.refuse_fetches(3);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        eventually("three windows", || committed(&log, "orders").0 == 3).await;
        let calls = |result: &str| {
            let labels = format!("{{queue=\"orders\",result=\"{result}\"}}");
            sink.shown(&format!("queen_s3_fetch_calls_total{labels}"))
        };
        assert_eq!(calls("error"), Some(3.0));
        assert_eq!(calls("ok"), Some(log.take_counts().fetches as f64));
        sink.stop().await;
        assert_eq!(records(&bucket), log.records("orders"));
    });
}

#[test]
fn an_idle_queue_asks_which_partitions_moved_once_an_interval_and_for_no_record() {
    in_virtual_time(async {
        let log = hours_of_records(1);
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.discovery_interval = Duration::from_secs(7);
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("the window", || committed(&log, "orders").0 == 1).await;
        log.take_counts();
        tokio::time::sleep(Duration::from_secs(700)).await;
        let counts = log.take_counts();
        assert!(
            (98..=101).contains(&counts.pages),
            "{} passes",
            counts.pages
        );
        assert_eq!(counts.fetches, 0);
        sink.stop().await;
    });
}

#[test]
fn windows_close_at_their_age_however_seldom_an_idle_queue_is_asked_about() {
    for interval in [6, 60, 3_600] {
        in_virtual_time(async move {
            let log = hours_of_records(1);
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.discovery_interval = Duration::from_secs(interval);
            options.settings.max_window = Duration::from_secs(5);
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("the first window", || committed(&log, "orders").0 == 1).await;
            // Idle: one request a window's age, by which the pointer moves; no more.
            log.take_counts();
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let behind = log.now() - committed(&log, "orders").1;
                assert!(behind < SAFE_LAG + 11 * SECOND, "{behind} at {interval}");
            }
            let pages = log.take_counts().pages;
            assert!((48..=60).contains(&pages), "{pages} passes at {interval}");
            // Busy: what is written now is in the bucket one window and one pass later.
            for _ in 0..300 {
                log.write("orders", &Name::from("p"), log.now(), 1);
                tokio::time::sleep(Duration::from_secs(1)).await;
                let behind = log.now() - committed(&log, "orders").1;
                assert!(behind < SAFE_LAG + 11 * SECOND, "{behind} at {interval}");
            }
            let pages = log.take_counts().pages;
            assert!(pages <= 150, "{pages} passes at {interval}");
            sink.stop().await;
        });
    }
}

#[test]
fn a_window_that_cannot_close_at_its_age_does_not_ask_all_the_time() {
    for (window, least, most) in [(5_000, 100, 550), (100, 200, 300)] {
        asks_while_a_window_waits(Duration::from_millis(window), least..=most);
    }
}

fn asks_while_a_window_waits(window: Duration, expected: RangeInclusive<u64>) {
    in_virtual_time(async {
        let log = hours_of_records(1);
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.discovery_interval = Duration::from_secs(3_600);
        options.settings.max_window = window;
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        eventually("the first window", || committed(&log, "orders").0 == 1).await;
        log.refuse_fetches(10_000);
        log.write("orders", &Name::from("p"), log.now(), 1);
        log.take_counts();
        tokio::time::sleep(Duration::from_secs(250)).await;
        let pages = log.take_counts().pages;
        assert!(expected.contains(&pages), "{pages} passes, {window:?}");
        sink.stop().await;
    });
}

#[test]
fn a_backlog_is_read_with_as_many_calls_at_once_as_are_allowed() {
    for concurrency in [1, 3, 8] {
        in_virtual_time(async {
            let log = hours_of_records(1);
            for number in 0..2_000 {
                log.write(
                    "orders",
                    &Name::from(format!("q-{number}")),
                    TEN + 90 * SECOND,
                    1,
                );
            }
            let bucket = Arc::<MemoryBucket>::default();
            let mut options = Options::new();
            options.settings.fetch_concurrency = concurrency;
            let sink = Sink::start(&log, &bucket, &["orders"], &options);
            eventually("the window", || committed(&log, "orders").0 == 1).await;
            sink.stop().await;
            assert_eq!(log.take_counts().at_once, concurrency);
        });
    }
}

#[test]
fn a_queue_that_is_not_there_is_looked_for_once_a_minute_and_mirrored_from_its_first_record() {
    in_virtual_time(async {
        let log = Log::new(TEN, payload);
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.start = Start::Latest;
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let looks = log.take_counts().pages;
        assert!((8..=11).contains(&looks), "{looks} looks in ten minutes");
        assert!(log.document("s3:main:orders:committed").is_none());
        log.create("orders");
        let written = log.now();
        log.write("orders", &Name::from("p"), written, 1);
        eventually("its record", || committed(&log, "orders").1 > written).await;
        sink.stop().await;
        assert_eq!(records(&bucket), log.records("orders"));
    });
}

#[test]
fn a_queue_that_is_gone_costs_the_bucket_nothing_until_it_is_back() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR / 2, payload);
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 500);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        eventually("a window", || committed(&log, "orders").0 == 1).await;
        log.deny(true);
        let status = sink.status.queue("orders");
        eventually("it is believed", || !status.present.load(Relaxed)).await;
        let asked = || -> usize {
            let operations = ["head", "get", "list", "put"].iter();
            operations.map(|one| bucket.asked(one, "").len()).sum()
        };
        let before = asked();
        log.take_counts();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(asked(), before);
        let looks = log.take_counts().pages;
        assert!((8..=11).contains(&looks), "{looks} looks in ten minutes");
        log.deny(false);
        let written = log.now();
        log.write("orders", &Name::from("p"), written, 1);
        eventually("its record", || committed(&log, "orders").1 > written).await;
        sink.stop().await;
        assert_eq!(records(&bucket), log.records("orders"));
    });
}

#[test]
fn a_broker_that_denies_a_queue_for_a_minute_makes_nothing_lost_of_it() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR / 2, payload);
        log.create("orders");
        log.write("orders", &Name::from("p"), TEN, 500);
        // One record a call: most are unread when the broker slips.
        log.limit(Limits {
            entry_records: 1,
            call_records: 1,
            ..Limits::default()
        });
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
        let status = sink.status.queue("orders");
        eventually("it is being read", || status.buffered.load(Relaxed) > 0).await;
        log.deny(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        log.deny(false);
        eventually("a window", || committed(&log, "orders").0 > 0).await;
        sink.stop().await;
        assert_eq!(status.lost.load(Relaxed), 0);
        assert_eq!(records(&bucket), log.records("orders"));
    });
}

#[test]
fn a_stop_commits_a_window_of_a_mebibyte_and_leaves_a_small_young_one_to_the_next_start() {
    for (records_written, windows) in [(20_000, 1), (20, 0)] {
        in_virtual_time(async {
            let log = Log::new(TEN + HOUR / 2, payload);
            log.create("orders");
            log.write("orders", &Name::from("p"), TEN, records_written);
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &["orders"], &Options::new());
            let status = sink.status.queue("orders");
            eventually("it is read", || status.buffered.load(Relaxed) > 0).await;
            assert_eq!(committed(&log, "orders").0, 0);
            sink.stop().await;
            assert_eq!(committed(&log, "orders").0, windows);
            let next = Sink::start(&log, &bucket, &["orders"], &Options::new());
            eventually("the next start", || committed(&log, "orders").0 == 1).await;
            next.stop().await;
            assert_eq!(records(&bucket), log.records("orders"));
        });
    }
}
