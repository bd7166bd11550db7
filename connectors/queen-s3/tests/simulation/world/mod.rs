//! A world in one thread of virtual time: a broker, a key/value store, a bucket and sink
//! processes between which everything can go wrong, and a checker that watches.

pub mod bodies;
pub mod broker;
pub mod bucket;
pub mod checker;
pub mod clock;
pub mod describe;
pub mod dice;
pub mod disaster;
pub mod doubt;
pub mod flag;
pub mod gate;
pub mod log;
pub mod network;
pub mod objects;
pub mod process;
pub mod run;
pub mod scenario;
pub mod sight;
pub mod sink;
pub mod spelling;
pub mod store;
pub mod verified;
pub mod visits;
pub mod window;
pub mod writers;

use std::collections::{BTreeSet, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use checker::Checker;
use dice::Dice;
use doubt::Doubts;
use flag::Flag;
use log::Log;
use objects::Objects;
use scenario::Scenario;
use store::Store;
use visits::Situation;

/// Events kept to explain a failure.
const TRACE_KEPT: usize = 120;
/// Calls after which a run is taken for one that spins.
const CALLS_AT_MOST: u64 = 400_000;

/// Everything of a run that its tasks share.
pub struct World {
    /// What the run is like.
    pub scenario: Scenario,
    state: Mutex<State>,
    start: Instant,
    /// A segment became visible.
    pub written: Notify,
    /// An invariant is broken.
    pub broken: Notify,
    /// Turns true when faults end.
    pub calm: Flag,
    /// True while no sink process may run.
    pub down: Flag,
}

/// What changes.
pub struct State {
    /// Chance.
    pub dice: Dice,
    /// Chance of what histories in which it does not happen do not follow from.
    pub own: Dice,
    /// The broker's log.
    pub log: Log,
    /// The broker's key/value store.
    pub store: Store,
    /// The bucket.
    pub objects: Objects,
    /// What it counted wrong.
    pub doubts: Doubts,
    /// What must hold.
    pub checker: Checker,
    /// Whether faults have ended.
    pub calm: bool,
    /// How far the broker's clock is off, µs.
    pub clock_step: i64,
    /// Queue and key of another lake's manifest, while it lies in the bucket.
    pub planted: Option<(String, String)>,
    /// Processes that have ended.
    pub ended: BTreeSet<String>,
    /// The first broken invariant.
    pub failure: Option<String>,
    /// What happened.
    pub trace: Trace,
    /// Calls made so far.
    pub calls: u64,
}

impl World {
    /// A world for `seed`.
    pub fn new(seed: u64) -> Self {
        let (mut dice, mut own) = (Dice::new(seed), Dice::new(!seed));
        let scenario = Scenario::draw(&mut dice, &mut own);
        let log = Log::new(scenario.write_at_lag);
        let state = State {
            dice,
            own,
            log,
            store: Store::default(),
            objects: Objects::default(),
            doubts: Doubts::default(),
            checker: Checker::new(&scenario),
            calm: false,
            clock_step: 0,
            planted: None,
            ended: BTreeSet::new(),
            failure: None,
            trace: Trace::default(),
            calls: 0,
        };
        Self {
            scenario,
            state: Mutex::new(state),
            start: Instant::now(),
            written: Notify::new(),
            broken: Notify::new(),
            calm: Flag::default(),
            down: Flag::default(),
        }
    }

    /// Looks at or changes the world, at one instant.
    pub fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// True time, µs since the epoch.
    pub fn true_now(&self) -> i64 {
        self.scenario.epoch + i64::try_from(self.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    /// The broker's clock, µs since the epoch.
    pub fn broker_now(&self) -> i64 {
        self.true_now() + self.with(|state| state.clock_step)
    }

    /// Notes an event.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        let at = self.elapsed();
        self.with(|state| state.trace.note(at, event));
    }

    /// Notes what the checker found.
    pub fn judge(&self, verdict: Result<(), String>) {
        if let Err(broken) = verdict {
            let at = self.elapsed();
            self.with(|state| {
                state.trace.note(at, format_args!("BROKEN: {broken}"));
                state.failure.get_or_insert(broken);
            });
            self.broken.notify_one();
        }
    }

    /// Counts a situation that is met.
    pub fn met(&self, situation: Situation) {
        self.with(|state| state.checker.visits.met(situation));
    }

    /// Counts a call; a run that makes too many of them fails.
    pub fn count_call(&self) {
        let calls = self.with(|state| {
            state.calls += 1;
            state.calls
        });
        if calls == CALLS_AT_MOST {
            self.judge(Err(format!("{CALLS_AT_MOST} calls: the sink spins")));
        }
    }
}

/// The last events, and a digest of all.
pub struct Trace {
    last: VecDeque<String>,
    digest: DefaultHasher,
    print: bool,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            last: VecDeque::new(),
            digest: DefaultHasher::new(),
            print: std::env::var_os("QUEEN_SIM_TRACE").is_some(),
        }
    }
}

impl Trace {
    fn note(&mut self, at: Duration, event: fmt::Arguments<'_>) {
        let mut line = String::new();
        // Writing into a String does not fail.
        let _ = write!(line, "{:>12.6} {event}", at.as_secs_f64());
        line.hash(&mut self.digest);
        if self.print {
            eprintln!("{line}");
        }
        if self.last.len() == TRACE_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// A digest of every event.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// The last events, one a line.
    pub fn tail(&self) -> String {
        self.last.iter().map(|line| format!("{line}\n")).collect()
    }
}
