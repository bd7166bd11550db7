//! The shipped queue task in a simulated world: every seed is another history of faults, and
//! after each write to the bucket and to the key/value store a checker looks whether the lake is
//! still whole.
//!
//! `QUEEN_SIM_SEEDS=n` runs the first n seeds (500 by default) and `QUEEN_SIM_FIRST=m` starts at
//! another one; `QUEEN_SIM_SEED=s` replays one, and `QUEEN_SIM_TRACE=1` prints its events.

mod mutations;
mod world;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use world::run::{Broken, Report, run};
use world::visits::Situation;

/// Seeds of an ordinary run.
const SEEDS: u64 = 500;
/// Seeds that broke once, and what they met; every run of the first seeds has them too. A history
/// changes with everything that draws from its dice, so that planted bugs, in `mutations`, are what
/// shows that the simulation still finds them.
const KEPT: &[(u64, &str)] = &[
    (
        198,
        "a record below the cut comes to a partition that was met empty",
    ),
    (
        287,
        "a partition that only the look before the first pass names is deleted",
    ),
    (
        341,
        "a manifest names offsets of a former life that the present one loses later",
    ),
    (
        404,
        "a record comes late into an interrupted window whose object is up",
    ),
    (
        481,
        "a later life's offsets are lost while a window is owed the first life's",
    ),
    (
        1251,
        "a partition begins another life between two passes, and a window closes before the second",
    ),
];
/// What an ordinary run is to take of each core: whoever runs the tests waits no longer for it. Time of the
/// processor, because what else the machine does is no fault of it.
const SEEDS_WITHIN: Duration = Duration::from_secs(120);
/// How much slower a machine may be, or be made by what shares its cores, before the tests fail.
const SLOWER: u32 = 3;
/// Failing seeds that a run shows before it gives up.
const SHOWN: usize = 3;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var_os(name)?;
    // What is no text is no number.
    let text = value.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

/// Cores that a run uses.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Time of the processor that this process has taken, on all cores.
fn processor_time() -> Duration {
    let taken = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(taken).expect("no process has taken less than nothing")
}

/// Runs `seeds` on all cores.
fn run_all(seeds: &[u64]) -> (Vec<Report>, Vec<Broken>) {
    let next = AtomicUsize::new(0);
    let results = Mutex::new((Vec::new(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        return;
                    };
                    let result = run(*seed);
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

/// The seeds that the environment asks for.
fn seeds() -> Vec<u64> {
    if let Some(seed) = setting("QUEEN_SIM_SEED") {
        return vec![seed];
    }
    let first = setting("QUEEN_SIM_FIRST");
    let from = first.unwrap_or(1);
    let range = from..from + setting("QUEEN_SIM_SEEDS").unwrap_or(SEEDS);
    let kept = KEPT.iter().map(|(seed, _)| *seed);
    let beyond = kept.filter(|seed| first.is_none() && !range.contains(seed));
    range.clone().chain(beyond).collect()
}

#[test]
fn the_lake_stays_whole_whatever_happens() {
    let seeds = seeds();
    let before = processor_time();
    let (reports, mut broken) = run_all(&seeds);
    let taken = processor_time() - before;
    broken.sort_by_key(|broken| broken.seed);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    println!(
        "{} seeds: {} calls, {} windows, {} idle moves, {} records, {} deleted unread, {} of them unnamed, {} uploads counted wrong, {} queues stopped by a broken promise, {:.0} virtual hours, {:.1} s of the processor",
        reports.len(),
        sum(|report| report.calls),
        sum(|report| report.windows),
        sum(|report| report.idle_moves),
        sum(|report| report.records),
        sum(|report| report.lost),
        sum(|report| report.unannounced),
        sum(|report| report.miscounted),
        sum(|report| report.stopped),
        reports
            .iter()
            .map(|report| report.elapsed.as_secs_f64())
            .sum::<f64>()
            / 3_600.0,
        taken.as_secs_f64(),
    );
    let met = |situation: Situation| {
        let met = reports
            .iter()
            .filter(|report| report.visits.of(situation) > 0);
        met.count()
    };
    println!("seeds in which");
    for situation in Situation::ALL {
        println!("{:>7} {}", met(*situation), situation.text());
    }
    for failure in &broken {
        eprintln!("{failure}");
        if let Some((_, met)) = KEPT.iter().find(|(seed, _)| *seed == failure.seed) {
            eprintln!("it broke before: {met}");
        }
    }
    let failed: Vec<u64> = broken.iter().map(|broken| broken.seed).collect();
    assert!(
        failed.is_empty(),
        "the invariants broke under seeds {failed:?}"
    );
    if seeds.len() as u64 >= SEEDS {
        let unmet: Vec<&str> = Situation::ALL
            .iter()
            .filter(|situation| met(**situation) == 0)
            .map(|situation| situation.text())
            .collect();
        assert!(
            unmet.is_empty(),
            "no seed meets what the simulation is to prove something of: {unmet:#?}"
        );
        let ordinary = taken.mul_f64(SEEDS as f64 / seeds.len() as f64);
        let bound = SEEDS_WITHIN * u32::try_from(cores()).unwrap_or(u32::MAX) * SLOWER;
        assert!(
            ordinary <= bound,
            "{SEEDS} seeds take {ordinary:?} of the processor, and {bound:?} are allowed: {SLOWER} times what \
             these cores have in {SEEDS_WITHIN:?}"
        );
    }
}

#[test]
fn a_seed_replays_the_same_history() {
    let digest = |seed| match run(seed) {
        Ok(report) => report.digest,
        Err(broken) => panic!("{broken}"),
    };
    for seed in [3, 9, 55] {
        assert_eq!(digest(seed), digest(seed), "seed {seed}");
    }
    assert_ne!(digest(3), digest(4));
}
