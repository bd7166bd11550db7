//! A partition that ends and begins another, longer life while it is read for a window, or an
//! interrupted one is read again.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::lake::Layout;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::answers::Form;
use crate::bucket::{Do, MemoryBucket};
use crate::bytes::interrupted;
use crate::history::records;
use crate::log::{Limits, Log};
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
const PARTITION: &str = "p";
/// Records of the partition before the window, and in it.
const BEFORE: i64 = 20;
const WITHIN: i64 = 30;
/// Records that a fetch brings.
const AT_ONCE: usize = 5;
/// Fetches that find out where the window begins.
const SEARCHING: u64 = 2;
/// Records of its second life.
const LATER: i64 = 100;

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset}}}")
}

/// The partition ends and begins another life, which is longer.
fn begin_again(log: &Log) {
    let name = Name::from(PARTITION);
    log.end(QUEUE, &name);
    for _ in 0..LATER {
        log.write(QUEUE, &name, log.now(), 1);
    }
}

async fn second_life_is_read(bucket: &MemoryBucket) {
    eventually("the second life", || {
        let records = records(bucket);
        let second = records.iter().filter(|(_, _, ts)| *ts >= TEN + HOUR);
        second.count() == LATER as usize
    })
    .await;
}

/// What tells two lives of a partition apart.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// The listing and every answer to a fetch, by their ids.
    Answer,
    /// The listing, by their ids.
    Id,
    /// The time of the last write that the listing shows.
    Time,
    /// The record before the position alone.
    Record,
}

/// The partition, with records of the window from `first` on.
fn log(first: i64, told: Told) -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
    log.identify(matches!(told, Told::Answer | Told::Id));
    log.tell_lives(matches!(told, Told::Answer));
    log.tell_times(!matches!(told, Told::Record));
    log.limit(Limits {
        entry_records: AT_ONCE,
        ..Limits::default()
    });
    log.create(QUEUE);
    for record in -first..WITHIN {
        let ts = TEN + record * SECOND;
        log.write(QUEUE, &Name::from(PARTITION), ts, 1);
    }
    log
}

/// What becomes of the partition.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It begins a second life of so many records.
    Reborn(i64),
    /// So it does, and its queue seems to be gone for a while.
    Missing,
    /// Its queue is gone.
    Gone,
}

/// Redoes the window while the partition begins its second life, of [`LATER`] records, at the fetch
/// after so many. Answers whether it was begun before the window was committed.
fn redo(first: i64, told: Told, layout: Layout, fetches: u64) -> bool {
    meet(Fate::Reborn(LATER), first, told, layout, fetches)
}

fn meet(fate: Fate, first: i64, told: Told, layout: Layout, fetches: u64) -> bool {
    in_virtual_time(async {
        let case = format!("{fate:?}, {first} before, {told:?}, {layout:?}, {fetches} fetches");
        let log = log(first, told);
        let mut options = Options::new();
        options.settings.shape.layout = layout;
        interrupted(&log, options.settings.shape, TEN);
        let met = Arc::<AtomicBool>::default();
        let meets = Arc::clone(&met);
        log.after_fetches(fetches, move |log| {
            let name = Name::from(PARTITION);
            log.end(QUEUE, &name);
            let records = match fate {
                Fate::Reborn(records) => records,
                Fate::Missing => LATER,
                Fate::Gone => 0,
            };
            for _ in 0..records {
                log.write(QUEUE, &name, log.now(), 1);
            }
            log.deny(!matches!(fate, Fate::Reborn(_)));
            meets.store(true, Relaxed);
        });
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let over = || committed(&log, QUEUE).0 >= 1;
        if matches!(fate, Fate::Missing) {
            eventually("its fate", || met.load(Relaxed) || over()).await;
            sleep(Duration::from_secs(60)).await;
            log.deny(false);
        }
        eventually("the window", over).await;
        sink.stop().await;

        let window = &bucket.manifests(QUEUE)[0];
        let (held, lost) = accounted(&bucket, window, first, &case);
        if fetches > SEARCHING + first as u64 / AT_ONCE as u64 {
            let written: Vec<&i64> = lost.range(..first).collect();
            assert!(
                written.is_empty(),
                "{written:?} are in earlier windows: {case}"
            );
        }
        held.len() < WITHIN as usize
    })
}

/// The offsets of the window that are written, and those that `window`, its manifest, names as lost:
/// each record of the first life from `first` on is in one of them.
fn accounted(
    bucket: &MemoryBucket,
    window: &Value,
    first: i64,
    case: &str,
) -> (BTreeSet<i64>, BTreeSet<i64>) {
    let held = records(bucket);
    let held: BTreeSet<i64> = held
        .iter()
        .filter(|(_, _, ts)| *ts < TEN + HOUR)
        .map(|(_, offset, _)| *offset)
        .collect();
    let mut lost = BTreeSet::new();
    for range in window["lost"].as_array().expect("a list") {
        let bound = |field: &str| range[field].as_i64().expect("an offset");
        lost.extend(bound("from")..=bound("to"));
    }
    for offset in first..first + WITHIN {
        assert!(
            held.contains(&offset) || lost.contains(&offset),
            "{offset} is neither written nor lost: {case}: {window}"
        );
        assert!(
            !(held.contains(&offset) && lost.contains(&offset)),
            "{offset} is written and lost: {case}: {window}"
        );
    }
    (held, lost)
}

#[test]
fn what_a_former_life_had_in_a_window_is_written_or_lost_there_where_answers_tell_lives() {
    for form in Form::ALL {
        for layout in [Layout::Merged, Layout::PerPartition] {
            for fetches in 0..WITHIN as u64 / AT_ONCE as u64 {
                in_virtual_time(async {
                    let case = format!("{form:?}, {layout:?}, {fetches} fetches");
                    let log = log(0, Told::Answer);
                    log.answer_in(form);
                    let mut options = Options::new();
                    options.settings.shape.layout = layout;
                    // No pass shows the second life before the window is full.
                    options.settings.discovery_interval = Duration::from_secs(60);
                    log.after_fetches(fetches, begin_again);
                    let bucket = Arc::<MemoryBucket>::default();
                    let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
                    second_life_is_read(&bucket).await;
                    sink.stop().await;
                    let windows = bucket.manifests(QUEUE);
                    let (held, _) = accounted(&bucket, &windows[0], 0, &case);
                    assert_eq!(held.len(), fetches as usize * AT_ONCE, "{case}");
                    for window in &windows[1..] {
                        assert_eq!(window["lost"], json!([]), "{case}");
                    }
                });
            }
        }
    }
}

#[test]
fn what_a_former_life_had_in_a_window_under_redo_is_written_or_lost() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        for (first, told) in [
            (0, Told::Answer),
            (BEFORE, Told::Answer),
            (0, Told::Id),
            (BEFORE, Told::Id),
            (0, Told::Time),
            (BEFORE, Told::Time),
        ] {
            let met = (0..30).take_while(|fetches| redo(first, told, layout, *fetches));
            let met = met.count();
            // Both times that the window is read are met, at each of their fetches.
            let least = 2 * WITHIN as usize / AT_ONCE - 1;
            assert!(met >= least, "{met} of the fetches were met");
        }
        // Not before the first fetch of a reading: nothing is left that tells then.
        for fetches in SEARCHING + 1..SEARCHING + (BEFORE + WITHIN) as u64 / AT_ONCE as u64 {
            assert!(redo(BEFORE, Told::Record, layout, fetches));
        }
    }
}

#[test]
fn an_answer_of_another_life_ends_a_try_at_a_window_under_redo_at_once() {
    for fetches in 0..2 * WITHIN as u64 / AT_ONCE as u64 {
        in_virtual_time(async {
            let log = log(0, Told::Answer);
            let options = Options::new();
            interrupted(&log, options.settings.shape, TEN);
            let pages = Arc::new(Mutex::new(None));
            let counted = Arc::clone(&pages);
            log.after_fetches(fetches, |log| {
                begin_again(log);
                log.take_counts();
                log.after_fetches(0, move |log| {
                    *counted.lock().expect("no holder panics") = Some(log.take_counts().pages);
                });
            });
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the window", || committed(&log, QUEUE).0 >= 1).await;
            sink.kill();
            // The partition is not asked again before a pass has looked at it.
            let pages = *pages.lock().expect("no holder panics");
            assert_ne!(pages, Some(0), "after {fetches} fetches");
        });
    }
}

#[test]
fn answers_that_name_lives_of_their_own_make_nothing_lost() {
    for interrupts in [false, true] {
        for form in Form::ALL {
            in_virtual_time(async {
                let log = log(BEFORE, Told::Answer);
                log.answer_in(form);
                log.misname_lives(true);
                let options = Options::new();
                if interrupts {
                    interrupted(&log, options.settings.shape, TEN);
                }
                let bucket = Arc::<MemoryBucket>::default();
                let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
                let all = if interrupts { WITHIN } else { BEFORE + WITHIN };
                eventually("the window", || records(&bucket).len() as i64 >= all).await;
                eventually("its end", || committed(&log, QUEUE).0 >= 1).await;
                sink.stop().await;
                for window in bucket.manifests(QUEUE) {
                    assert_eq!(window["lost"], json!([]), "{form:?}: {window}");
                }
            });
        }
    }
}

/// Large records of one instant.
const WIDE: usize = 40;

/// Large records of one partition, and small ones.
fn wide(partition: &str, offset: i64) -> String {
    let bytes = if partition == "wide" { 256 << 10 } else { 100 };
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(bytes))
}

#[test]
fn what_was_read_of_a_life_that_is_over_is_named_where_memory_makes_the_sink_read_the_log_again() {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, wide);
        log.identify(true);
        log.limit(Limits {
            entry_records: AT_ONCE,
            ..Limits::default()
        });
        log.create(QUEUE);
        let name = Name::from(PARTITION);
        // One instant that does not fit in memory, and a partition that is read beyond it meanwhile.
        for _ in 0..WIDE {
            log.write(QUEUE, &Name::from("wide"), TEN, 1);
        }
        for record in 1..=WITHIN {
            log.write(QUEUE, &name, TEN + record * SECOND, 1);
        }
        log.after_fetches(1, begin_again);
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.memory = 6 << 20;
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        second_life_is_read(&bucket).await;
        sink.stop().await;
        let mut lost = BTreeSet::new();
        for window in bucket.manifests(QUEUE) {
            for range in window["lost"].as_array().expect("a list") {
                assert_eq!(range["partition"], json!(PARTITION));
                let bound = |field: &str| range[field].as_i64().expect("an offset");
                lost.extend(bound("from")..=bound("to"));
            }
        }
        assert_eq!(lost, (0..WITHIN).collect());
        let first = records(&bucket);
        let first = first.iter().filter(|(_, _, ts)| *ts < TEN + HOUR);
        assert!(first.clone().all(|(partition, ..)| partition == "wide"));
        assert_eq!(first.count(), WIDE);
    });
}

#[test]
fn a_queue_that_goes_while_its_window_is_redone_takes_nothing_unnamed_with_it() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        for fate in [Fate::Missing, Fate::Gone] {
            for told in [Told::Answer, Told::Id, Told::Time] {
                let met = (0..30).take_while(|at| meet(fate, BEFORE, told, layout, *at));
                assert!(met.count() > WITHIN as usize / AT_ONCE, "{fate:?}");
            }
        }
    }
}

#[test]
fn a_stop_does_not_wait_until_a_queue_counts_as_gone() {
    in_virtual_time(async {
        let log = log(BEFORE, Told::Answer);
        let options = Options::new();
        interrupted(&log, options.settings.shape, TEN);
        let met = Arc::<AtomicBool>::default();
        let meets = Arc::clone(&met);
        log.after_fetches(SEARCHING, move |log| {
            log.end(QUEUE, &Name::from(PARTITION));
            log.deny(true);
            meets.store(true, Relaxed);
        });
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        eventually("it is gone", || met.load(Relaxed)).await;
        sleep(Duration::from_secs(10)).await;
        let told = Instant::now();
        sink.stop().await;
        assert!(told.elapsed() < Duration::from_secs(1));
        assert_eq!(committed(&log, QUEUE).0, 0);
        // The next start looks for the queue before anything else.
        log.deny(false);
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        sink.stop().await;
    });
}

#[test]
fn an_interrupted_window_waits_for_a_queue_that_is_not_there_and_is_looked_for_once_a_minute() {
    in_virtual_time(async {
        let log = log(BEFORE, Told::Answer);
        let options = Options::new();
        interrupted(&log, options.settings.shape, TEN);
        log.deny(true);
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        let status = sink.status.queue(QUEUE);
        sleep(Duration::from_secs(60)).await;
        log.take_counts();
        sleep(Duration::from_secs(900)).await;
        // A look, and before it a TTL in which whoever wrote the intent may be at its objects.
        let looks = log.take_counts().pages;
        assert!((8..=15).contains(&looks), "{looks} looks in 15 minutes");
        assert!(!status.present.load(Relaxed) && !status.stopped.load(Relaxed));
        assert_eq!(committed(&log, QUEUE).0, 0);
        log.deny(false);
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        sink.stop().await;
        let written = records(&bucket);
        let within = written.iter().filter(|(_, _, ts)| *ts < TEN + HOUR);
        assert_eq!(within.count(), WITHIN as usize);
    });
}

#[test]
fn a_later_life_that_is_shorter_is_told_by_its_end() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        // All of the window, read from the log's start: no record before tells.
        for fetches in 0..2 {
            let reborn = Fate::Reborn(WITHIN / 2);
            assert!(meet(reborn, 0, Told::Record, layout, fetches));
        }
    }
}

/// Lets the partition begin another life at every third fetch.
fn churn(log: &Log) {
    let name = Name::from("restless");
    log.end(QUEUE, &name);
    log.write(QUEUE, &name, log.now(), 1);
    log.after_fetches(2, churn);
}

#[test]
fn a_partition_that_never_stops_beginning_lives_does_not_hold_a_redo_back() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        in_virtual_time(async {
            let log = log(0, Told::Id);
            log.write(QUEUE, &Name::from("restless"), TEN + SECOND, 1);
            let mut options = Options::new();
            options.settings.shape.layout = layout;
            interrupted(&log, options.settings.shape, TEN);
            log.after_fetches(2, churn);
            let bucket = Arc::<MemoryBucket>::default();
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the window", || committed(&log, QUEUE).0 >= 1).await;
            sink.kill();
            let window = &bucket.manifests(QUEUE)[0];
            assert_eq!(window["records"].as_i64(), Some(WITHIN), "{window}");
            let lost = window["lost"].to_string();
            assert!(lost.contains("restless"), "{lost}");
        });
    }
}

#[test]
fn what_comes_late_after_the_window_does_not_hide_its_records_from_the_next_try() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        in_virtual_time(async {
            let log = log(BEFORE, Told::Id);
            let mut options = Options::new();
            options.settings.shape.layout = layout;
            options.settings.multipart_threshold_bytes = 1;
            interrupted(&log, options.settings.shape, TEN);
            log.break_promise(QUEUE, &Name::from(PARTITION), TEN - SECOND, 5);
            let bucket = Arc::<MemoryBucket>::default();
            let mut tries = 0;
            bucket.plan(move |asked| match asked.operation {
                "multipart_complete" if tries == 0 => {
                    tries += 1;
                    Do::Refuse(404, "NoSuchUpload", None)
                }
                _ => Do::Go,
            });
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("the window", || committed(&log, QUEUE).0 >= 1).await;
            sink.kill();
            let window = &bucket.manifests(QUEUE)[0];
            assert_eq!(window["records"].as_i64(), Some(WITHIN), "{window}");
        });
    }
}
