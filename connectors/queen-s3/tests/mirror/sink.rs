//! The shipped queue tasks between a log and a bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use futures::future::join_all;
use queen_s3::broker::{Broker, Name};
use queen_s3::clock::Clock;
use queen_s3::compute::Compute;
use queen_s3::config::{CrashPoint, Start};
use queen_s3::lake::{Align, Compression, Format, Layout, Shape};
use queen_s3::limits::PART_BYTES;
use queen_s3::memory::MemoryBudget;
use queen_s3::observe::health::{self, Health};
use queen_s3::observe::metrics::Metrics;
use queen_s3::observe::status::Status;
use queen_s3::ownership::Identity;
use queen_s3::queue::{self, Context, Settings};
use queen_s3::retry::Jitter;
use queen_s3::sink::{FirstQueues, QueueSet};
use queen_s3::verify::{Progress, Store, verify};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::bucket::MemoryBucket;
use crate::link::Link;
use crate::log::Log;

/// The sink's prefix.
pub const PREFIX: &str = "lake";
/// Its name.
pub const SINK: &str = "main";
const MIB: usize = 1 << 20;

/// What a test sets of a sink; the rest is as shipped.
#[derive(Clone)]
pub struct Options {
    /// The queues' settings.
    pub settings: Settings,
    /// Where long computations run.
    pub compute: Compute,
    /// Bytes of the buffer budget.
    pub memory: usize,
    /// What the times of its calls follow from, and its incarnation.
    pub seed: u64,
    /// Its instance name.
    pub instance: &'static str,
    /// How long a queue rests whose task panicked; without it a panic ends the test.
    pub rest: Option<Duration>,
}

impl Options {
    /// The documented defaults, but for `earliest` and no guard.
    pub fn new() -> Self {
        let settings = Settings {
            prefix: PREFIX.to_owned(),
            sink: SINK.to_owned(),
            shape: Shape {
                format: Format::Jsonl,
                compression: Compression::None,
                layout: Layout::Merged,
                align: Align::Hour,
            },
            start: Start::Earliest,
            target_bytes: 128 * MIB as u64,
            max_window: Duration::from_secs(300),
            checkpoint_every: 20,
            fetch_concurrency: 4,
            discovery_interval: Duration::from_secs(2),
            safe_guard: Duration::ZERO,
            lease_ttl: Duration::from_secs(30),
            multipart_threshold_bytes: 64 * MIB as u64,
            part_bytes: PART_BYTES,
            crash_at: CrashPoint::Never,
        };
        Self {
            settings,
            compute: Compute::InPlace,
            memory: 1_024 * MIB,
            seed: 1,
            instance: "sink-0",
            rest: None,
        }
    }
}

/// A running sink.
pub struct Sink {
    stop: CancellationToken,
    tasks: JoinHandle<()>,
    /// What it shows.
    pub status: Arc<Status>,
    /// Its memory budget.
    pub budget: Arc<MemoryBudget>,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    started: Duration,
    /// What is added to its wall clock, ms.
    pub stepped_ms: Arc<AtomicI64>,
    max_window: Duration,
}

struct VirtualClock {
    start: Instant,
    log: Arc<Log>,
    stepped_ms: Arc<AtomicI64>,
}

impl Clock for VirtualClock {
    fn boottime(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        self.log.now() / 1_000 + self.stepped_ms.load(Relaxed)
    }
}

impl Sink {
    /// Starts one over a simulated link.
    pub fn start(
        log: &Arc<Log>,
        bucket: &Arc<MemoryBucket>,
        queues: &[&str],
        options: &Options,
    ) -> Self {
        let budget = MemoryBudget::new(options.memory);
        let link = Arc::new(Link::new(log, &budget, options.seed));
        Self::over(link, budget, log, bucket, queues, options)
    }

    /// Starts one over any broker.
    pub fn over(
        broker: Arc<dyn Broker>,
        budget: Arc<MemoryBudget>,
        log: &Arc<Log>,
        bucket: &Arc<MemoryBucket>,
        queues: &[&str],
        options: &Options,
    ) -> Self {
        let status = Arc::new(Status::default());
        let stepped_ms = Arc::<AtomicI64>::default();
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock {
            start: Instant::now(),
            log: Arc::clone(log),
            stepped_ms: Arc::clone(&stepped_ms),
        });
        let metrics = Metrics::new(
            Arc::clone(&status),
            Arc::clone(&budget),
            Arc::clone(&clock),
            options.settings.shape.format,
        );
        let asked = Arc::clone(&broker);
        let context = Arc::new(Context {
            broker,
            bucket: Arc::clone(bucket) as _,
            clock: Arc::clone(&clock),
            budget: Arc::clone(&budget),
            status: Arc::clone(&status),
            jitter: Jitter::new(options.seed),
            identity: Identity {
                instance: options.instance.to_owned(),
                incarnation: format!("{:016x}", options.seed),
            },
            compute: options.compute,
            settings: options.settings.clone(),
        });
        let stop = CancellationToken::new();
        let names: Vec<Name> = queues.iter().map(|name| Name::from(*name)).collect();
        let run = move |name, absent_since, stop| {
            queue::run(Arc::clone(&context), name, absent_since, stop)
        };
        let tasks = match options.rest {
            Some(rest) => {
                let set = QueueSet {
                    broker: asked,
                    status: Arc::clone(&status),
                    jitter: Jitter::new(options.seed),
                    relist: Duration::MAX,
                    rest,
                    run,
                };
                tokio::spawn(set.mirror(FirstQueues::Named(names), stop.clone()))
            }
            None => {
                let runs = names.into_iter().map(|name| run(name, None, stop.clone()));
                let runs: Vec<_> = runs.collect();
                tokio::spawn(async move {
                    join_all(runs).await;
                })
            }
        };
        Self {
            stop,
            tasks,
            status,
            budget,
            metrics,
            started: clock.boottime(),
            stepped_ms,
            clock,
            max_window: options.settings.max_window,
        }
    }

    /// Stops it as a signal does.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.await.expect("a queue's task does not panic");
    }
}

impl Sink {
    /// What `/metrics` shows of `series`, a name and its labels, now.
    pub fn shown(&self, series: &str) -> Option<f64> {
        let text = self.metrics.render().expect("a String takes everything");
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|rest| rest.strip_prefix(' '))
            .map(|value| value.parse().expect("a number"))
    }

    /// What `/healthz` answers now.
    pub fn health(&self) -> Health {
        let (now, limit) = (self.clock.boottime(), health::limit(self.max_window));
        health::judge(&self.status.queues(), now, self.started, limit)
    }

    /// Ends it as a kill does.
    pub fn kill(self) {
        self.tasks.abort();
    }
}

/// The window that `queue`'s pointer stands at, and the pointer's `tEnd`; before the first pointer
/// 0 and the least instant.
pub fn committed(log: &Log, queue: &str) -> (u64, i64) {
    let document = log.document(&format!("s3:{SINK}:{queue}:committed"));
    document.map_or((0, i64::MIN), |pointer| {
        let number = |field: &str| pointer[field].as_i64().expect("a pointer has both");
        (number("k").unsigned_abs(), number("tEnd"))
    })
}

/// Waits until `there`, an hour of the test's time at most.
pub async fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(4 * 3_600);
    while !there() {
        assert!(Instant::now() < until, "still waiting: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Holds the lake of `queue` to what `queen-s3 verify` asks of one.
pub async fn verified(bucket: &Arc<MemoryBucket>, queue: &str) {
    let store = Store::new(Arc::clone(bucket) as _, Jitter::new(1));
    let queues = [queue.to_owned()];
    let mut progress = Progress::hidden();
    let report = verify(&store, PREFIX, SINK, Some(&queues), &mut progress).await;
    let report = report.expect("a bucket in memory answers");
    assert!(report.ok, "{:#?}", report.queues[0].findings);
    assert!(report.queues[0].records > 0, "nothing was verified");
}
