//! One run: a time of faults, then a calm in which everything must come right.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::scenario::Scenario;
use super::verified::verified;
use super::visits::{Situation, Visits};
use super::{State, World, disaster, process, writers};

/// Lag allowed once all is well: the longest window (30 s), the broker's guard and the sink's
/// (5 s each), and a while to read, write and commit.
const LAG_MICROS: i64 = 60_000_000;
/// Virtual time in which that lag must be reached after the faults: the longest pauses of the
/// sink's retries and of its look for an absent queue (60 s each), leases left behind, and the
/// backlog.
const RECOVERY: Duration = Duration::from_secs(900);
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// A run in which everything held.
#[derive(Debug)]
pub struct Report {
    /// Digest of everything that happened.
    pub digest: u64,
    /// Calls that the processes made.
    pub calls: u64,
    /// Windows committed.
    pub windows: u64,
    /// Pointer moves without a window.
    pub idle_moves: u64,
    /// Records in the lakes.
    pub records: u64,
    /// Records deleted before they were read.
    pub lost: u64,
    /// Such records that no manifest names.
    pub unannounced: u64,
    /// Queues that are stopped because an object contradicts a log that broke its promise.
    pub stopped: u64,
    /// Completed uploads whose parts the store counted wrong.
    pub miscounted: u64,
    /// What was met, and how often.
    pub visits: Visits,
    /// Virtual time.
    pub elapsed: Duration,
}

/// A run in which something did not hold.
#[derive(Debug)]
pub struct Broken {
    /// The run's seed.
    pub seed: u64,
    why: String,
    at: Duration,
    scenario: Scenario,
    trace: String,
}

impl Broken {
    fn of(world: &World, seed: u64, why: String, at: Duration) -> Box<Self> {
        Box::new(Self {
            seed,
            why,
            at,
            scenario: world.scenario.clone(),
            trace: world.with(|state| state.trace.tail()),
        })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n{:#?}\nseed {} broke after {:.3} virtual seconds: {}\nreplay it: \
             QUEEN_SIM_SEED={} cargo test --manifest-path connectors/queen-s3/Cargo.toml \
             --test simulation whatever_happens -- --nocapture\n",
            self.trace,
            self.scenario,
            self.seed,
            self.at.as_secs_f64(),
            self.why,
            self.seed
        )
    }
}

/// Runs the history of `seed`.
pub fn run(seed: u64) -> Result<Report, Box<Broken>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the machine");
    // Virtual time begins in the runtime.
    let world = runtime.block_on(async { Arc::new(World::new(seed)) });
    let report = runtime.block_on(history(&world, seed))?;
    match verified(&world) {
        Ok(()) => Ok(report),
        Err(why) => Err(Broken::of(&world, seed, why, report.elapsed)),
    }
}

async fn history(world: &Arc<World>, seed: u64) -> Result<Report, Box<Broken>> {
    let mut tasks = JoinSet::new();
    tasks.spawn(writers::create_queues(Arc::clone(world)));
    tasks.spawn(writers::delete(Arc::clone(world)));
    tasks.spawn(writers::disturb(Arc::clone(world)));
    tasks.spawn(writers::damage_checkpoints(Arc::clone(world)));
    tasks.spawn(disaster::strike(Arc::clone(world)));
    for slot in 0..world.scenario.instances {
        tasks.spawn(process::supervise(Arc::clone(world), slot));
    }
    let pushes = tokio::spawn(writers::push(Arc::clone(world)));
    let why = {
        let stages = stages(world, &pushes);
        let operator = disaster::operate(Arc::clone(world));
        tokio::pin!(stages, operator);
        loop {
            tokio::select! {
                biased;
                () = world.broken.notified() => break None,
                Some(ended) = tasks.join_next() => if let Err(panic) = ended {
                    break Some(format!("a task panicked: {panic}"));
                },
                why = &mut stages => break why.err(),
                () = &mut operator => {}
            }
        }
    };
    let failure = world.with(|state| state.failure.take()).or(why);
    let at = world.elapsed();
    tasks.abort_all();
    match failure {
        Some(why) => Err(Broken::of(world, seed, why, at)),
        None => Ok(report(world)),
    }
}

async fn stages(world: &Arc<World>, pushes: &tokio::task::JoinHandle<()>) -> Result<(), String> {
    sleep(world.scenario.chaos).await;
    world.note(format_args!("faults end"));
    world.with(|state| state.calm = true);
    world.calm.set(true);
    reached(world, "its lag is not small again", || {
        let now = world.broker_now();
        move |committed| committed >= now - LAG_MICROS
    })
    .await?;
    pushes.abort();
    writers::push_to_all(world).await;
    world.note(format_args!("pushes end"));
    reached(world, "the log's end is not reached", || {
        let (end, open) = world.with(|state| (state.log.end(), state.log.open()));
        move |committed| !open && committed > end
    })
    .await?;
    no_upload_left(world).await?;
    world.with(|state| state.checker.complete(&state.log))
}

/// Waits until every queue's pointer satisfies what `wanted` makes of each moment.
async fn reached<W: Fn(i64) -> bool>(
    world: &World,
    otherwise: &str,
    wanted: impl Fn() -> W,
) -> Result<(), String> {
    // A clock that was ahead, or steps back, holds every later ts up.
    let now = world.broker_now();
    let behind = world.with(|state| state.clock_step.unsigned_abs().max(state.log.ahead(now)));
    let patience = RECOVERY + Duration::from_micros(behind);
    let until = world.elapsed() + patience;
    loop {
        let there = wanted();
        let waiting = world.with(|state| {
            let mut queues = world.scenario.queues.iter();
            queues
                .find(|queue| {
                    let reached = state.checker.committed(queue).is_some_and(&there);
                    !reached && !state.checker.contradicted(queue, &state.log)
                })
                .cloned()
        });
        let Some(queue) = waiting else { return Ok(()) };
        if world.elapsed() > until {
            let committed = world.with(|state| state.checker.committed(&queue));
            return Err(format!(
                "{queue}: {otherwise} after {patience:?} without faults; committed {committed:?}, now {}",
                world.broker_now()
            ));
        }
        sleep(LOOK).await;
    }
}

/// Waits until nobody holds an upload open: what a process began it completes or aborts, unless it
/// died, never learnt of the upload, or was not heard when it aborted it.
async fn no_upload_left(world: &World) -> Result<(), String> {
    let until = world.elapsed() + RECOVERY;
    loop {
        let left = world.with(|state| {
            let open = state.objects.open(|who| !state.ended.contains(who));
            (!open.is_empty()).then(|| open.join(", "))
        });
        match left {
            None => return Ok(()),
            Some(left) if world.elapsed() > until => {
                return Err(format!("uploads are left open: {left}"));
            }
            Some(_) => sleep(LOOK).await,
        }
    }
}

fn report(world: &World) -> Report {
    world.with(|state| {
        let truths = || {
            state
                .log
                .queues
                .values()
                .flat_map(|queue| queue.truth.values())
        };
        let count =
            |of: fn(&super::log::Truth) -> bool| truths().filter(|truth| of(truth)).count() as u64;
        Report {
            digest: state.trace.digest(),
            calls: state.calls,
            windows: state.checker.windows,
            idle_moves: state.checker.idle_moves,
            records: count(|truth| truth.placed.is_some()),
            lost: count(|truth| truth.deleted && truth.placed.is_none()),
            unannounced: state.checker.unannounced(&state.log),
            stopped: stopped(world, state),
            miscounted: state.doubts.met,
            visits: visits(world, state),
            elapsed: world.elapsed(),
        }
    })
}

/// What the run has met, with what only its end shows.
fn visits(world: &World, state: &State) -> Visits {
    let mut visits = state.checker.visits.clone();
    let left = state.objects.abandoned(|who| !state.ended.contains(who));
    visits.met_times(Situation::LeftOpen, left as u64);
    visits.met_times(Situation::Miscounted, state.doubts.met);
    visits.met_times(Situation::IdleMove, state.checker.idle_moves);
    visits.met_times(Situation::Contradicted, stopped(world, state));
    visits
}

fn stopped(world: &World, state: &State) -> u64 {
    let queues = world.scenario.queues.iter();
    queues
        .filter(|queue| state.checker.contradicted(queue, &state.log))
        .count() as u64
}
