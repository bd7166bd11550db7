//! The shipped queue task in a simulated world: every seed is another history of faults, and
//! after each write to the bucket and to the key/value store a checker looks whether the lake is
//! still whole.
//!
//! `QUEEN_SIM_SEEDS=n` runs the first n seeds (250 by default) and `QUEEN_SIM_FIRST=m` starts at
//! another one; `QUEEN_SIM_SEED=s` replays one and prints its events.

mod world;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use world::run::{Broken, Report, run};

/// Seeds of an ordinary run.
const SEEDS: u64 = 250;
/// Failing seeds that a run shows before it gives up.
const SHOWN: usize = 3;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name)
        .ok()
        .filter(|text| !text.trim().is_empty())?;
    Some(
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

/// Runs `seeds` on all cores.
fn run_all(seeds: std::ops::Range<u64>) -> (Vec<Report>, Vec<Broken>) {
    let next = AtomicU64::new(seeds.start);
    let results = Mutex::new((Vec::new(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = run(seed);
                    let mut results = results.lock().expect("no holder panics");
                    match result {
                        Ok(report) => results.0.push(report),
                        Err(broken) => results.1.push(*broken),
                    }
                    if results.1.len() >= SHOWN {
                        return;
                    }
                }
            });
        }
    });
    results.into_inner().expect("no holder panics")
}

#[test]
fn the_lake_stays_whole_whatever_happens() {
    let seeds = match setting("QUEEN_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = setting("QUEEN_SIM_FIRST").unwrap_or(1);
            first..first + setting("QUEEN_SIM_SEEDS").unwrap_or(SEEDS)
        }
    };
    let (reports, mut broken) = run_all(seeds);
    broken.sort_by_key(|broken| broken.seed);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    println!(
        "{} seeds: {} calls, {} windows, {} idle moves, {} records, {} deleted unread, {} of them unnamed, {:.0} virtual hours",
        reports.len(),
        sum(|report| report.calls),
        sum(|report| report.windows),
        sum(|report| report.idle_moves),
        sum(|report| report.records),
        sum(|report| report.lost),
        sum(|report| report.unannounced),
        reports
            .iter()
            .map(|report| report.elapsed.as_secs_f64())
            .sum::<f64>()
            / 3_600.0,
    );
    for failure in &broken {
        eprintln!("{failure}");
    }
    let failed: Vec<u64> = broken.iter().map(|broken| broken.seed).collect();
    assert!(
        failed.is_empty(),
        "the invariants broke under seeds {failed:?}"
    );
}

#[test]
fn a_seed_replays_the_same_history() {
    let digest = |seed| match run(seed) {
        Ok(report) => report.digest,
        Err(broken) => panic!("{broken}"),
    };
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3), digest(4));
}
