//! A partition that ends and begins another, longer life while an interrupted window is read again.

use std::collections::BTreeSet;
use std::sync::Arc;

use queen_s3::broker::Name;
use queen_s3::lake::Layout;

use crate::bucket::MemoryBucket;
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

/// What tells two lives of a partition apart.
#[derive(Clone, Copy, Debug)]
enum Told {
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
    log.identify(matches!(told, Told::Id));
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

/// Redoes the window while the partition begins its second life at the fetch after so many.
/// Answers whether it was begun before the window was committed.
fn redo(first: i64, told: Told, layout: Layout, fetches: u64) -> bool {
    in_virtual_time(async {
        let case = format!("{first} before, {told:?}, {layout:?}, {fetches} fetches");
        let log = log(first, told);
        let mut options = Options::new();
        options.settings.shape.layout = layout;
        interrupted(&log, options.settings.shape, TEN);
        log.after_fetches(fetches, |log| {
            let name = Name::from(PARTITION);
            log.end(QUEUE, &name);
            for _ in 0..LATER {
                log.write(QUEUE, &name, log.now(), 1);
            }
        });
        let bucket = Arc::<MemoryBucket>::default();
        let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
        eventually("the window", || committed(&log, QUEUE).0 >= 1).await;
        sink.stop().await;

        let window = &bucket.manifests(QUEUE)[0];
        let held = records(&bucket);
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
        held.len() < WITHIN as usize
    })
}

#[test]
fn what_a_former_life_had_in_a_window_under_redo_is_written_or_lost() {
    for layout in [Layout::Merged, Layout::PerPartition] {
        for (first, told) in [
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
