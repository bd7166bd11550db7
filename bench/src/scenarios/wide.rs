//! A million partitions, of which a few are written to: what the idle ones cost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use queen_dev::{Signal, Sink, SinkOptions, Stack, eventually};
use queen_protocol::partitions::{ChangedEntry, ChangedRequest};
use tokio::time::{MissedTickBehavior, interval};

use crate::report::{Bar, Figure};
use crate::workload::Payloads;
use crate::{Plan, database, run, usage};

/// The scenario's name.
pub const NAME: &str = "wide";
const WIDE: &str = "wide";
const NARROW: &str = "narrow";
const IDLE: usize = 1_000_000;
const BUSY: usize = 50;
/// Records of each push and pushes a second: 1,000 records a second.
const RECORDS: usize = 20;
const PUSHES_A_SECOND: u32 = 50;
const SECONDS: usize = 30;
/// Enough for a few windows of each queue, whatever the scale.
const LEAST_SECONDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of memory per partition.
const MEMORY_BAR: f64 = 200.0;
/// Time of a discovery page in the wide queue over that in one with a thousand partitions.
const PAGE_BAR: f64 = 1.5;
const PAGES: usize = 50;
/// The default: a checkpoint costs by the tracked partition, and belongs to so many windows.
const CHECKPOINT_EVERY: usize = 20;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(plan.stack()).await?;
    let database = database::connect(&stack).await?;
    let payloads = Payloads::of_the_demo()?;
    let idle = plan.scaled(IDLE);
    for (queue, count) in [(WIDE, idle), (NARROW, 1_000)] {
        stack.client().configure(queue).await?;
        stack.client().push(payloads.batch(queue, 0, 1, 1)).await?;
        database::multiply_partition(&database, queue, count).await?;
    }
    let mut figures = vec![Figure::new("partitions", "", vec![idle as f64])];

    let narrow_page = page_time(&stack, NARROW).await?;
    let wide_page = page_time(&stack, WIDE).await?;
    figures.push(Figure::new(
        "discovery page of 1,000",
        "ms",
        vec![wide_page.as_secs_f64() * 1e3],
    ));
    figures.push(
        Figure::new(
            "discovery page of 1,000",
            "x 1,000 partitions",
            vec![wide_page.as_secs_f64() / narrow_page.as_secs_f64()],
        )
        .bar(Bar::AtMost(PAGE_BAR)),
    );

    let seconds = plan.scaled(SECONDS).max(LEAST_SECONDS);
    let records = Stream::new(&stack, NARROW, &payloads);
    let (narrow, narrow_sink) = stream(&records, 1_001, seconds).await?;
    narrow_sink.signal(Signal::TERM);
    narrow_sink.ended(LIMIT).await?;
    let records = Stream::new(&stack, WIDE, &payloads);
    let (wide, mut sink) = stream(&records, idle + 1, seconds).await?;

    let bytes = (wide.resident as f64 - narrow.resident as f64) / (idle as f64 - 1_000.0);
    figures.extend([
        Figure::new(
            "first sweep, one record each",
            "s",
            vec![wide.sweep.as_secs_f64()],
        ),
        Figure::new("memory per partition", "bytes", vec![bytes]).bar(Bar::AtMost(MEMORY_BAR)),
        Figure::new("calls of Queen and S3 per window", "", vec![wide.calls]),
        Figure::new(
            "calls per window",
            "x 1,000 partitions",
            vec![wide.calls / narrow.calls],
        ),
        Figure::new("CPU per window", "ms", vec![wide.cpu * 1e3]),
        Figure::new(
            "CPU per window",
            "x 1,000 partitions",
            vec![wide.cpu / narrow.cpu],
        ),
    ]);

    let sidecars = stack.lake(WIDE).bucket().join(Stack::PREFIX).join("_queen");
    let checkpoints = sidecars.join(WIDE).join(WIDE).join("checkpoint");
    let written = async || {
        records.push(1).await?;
        Ok(std::fs::read_dir(&checkpoints)
            .is_ok_and(|mut files| files.next().is_some())
            .then_some(()))
    };
    eventually(LIMIT, written)
        .await
        .with_context(|| format!("a checkpoint:{}", sink.logs().tail()))?;
    for (name, keep) in [("with a checkpoint", true), ("without a checkpoint", false)] {
        // A clean stop hands the lease over: what is measured is not the wait for it.
        sink.signal(Signal::TERM);
        sink.ended(LIMIT).await?;
        if !keep {
            std::fs::remove_dir_all(&checkpoints)
                .with_context(|| checkpoints.display().to_string())?;
        }
        let (took, fetches) = restart(&records, &mut sink).await?;
        figures.push(Figure::new(
            format!("restart {name}, to the next window"),
            "s",
            vec![took.as_secs_f64()],
        ));
        figures.push(Figure::new(
            format!("restart {name}, fetch calls"),
            "",
            vec![fetches],
        ));
    }
    Ok(figures)
}

/// What a stream of records over a few partitions costs beside all the idle ones.
struct Cost {
    sweep: Duration,
    resident: u64,
    /// Calls of Queen and S3 per window.
    calls: f64,
    /// CPU seconds per window.
    cpu: f64,
}

async fn stream(records: &Stream<'_>, partitions: usize, seconds: usize) -> Result<(Cost, Sink)> {
    let Stream { stack, queue, .. } = *records;
    let mut options = SinkOptions::new(queue)
        .with("QUEEN_S3_MAX_WINDOW_MS", 2_000)
        .with("QUEEN_S3_DISCOVERY_INTERVAL_MS", 500)
        .with("QUEEN_S3_CHECKPOINT_EVERY", CHECKPOINT_EVERY)
        .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
    options.name = queue.into();
    options.instance = queue.into();
    let begin = Instant::now();
    let sink = stack.sink(&options)?;
    // Every partition has one record: once all are in the lake, all are tracked.
    let swept = async || {
        let written = sink.metrics().await?.records_written(queue);
        Ok((written >= partitions as u64).then_some(()))
    };
    eventually(LIMIT, swept)
        .await
        .with_context(|| format!("the first sweep:{}", sink.logs().tail()))?;
    let sweep = begin.elapsed();

    records.push(5).await?;
    let before = (
        usage::cpu(sink.pid())?,
        Counts::now(stack, &sink, queue).await?,
    );
    records.push(seconds).await?;
    let after = (
        usage::cpu(sink.pid())?,
        Counts::now(stack, &sink, queue).await?,
    );
    let windows = after.1.windows - before.1.windows;
    let cost = Cost {
        sweep,
        resident: usage::resident(sink.pid())?,
        calls: (after.1.calls - before.1.calls) / windows,
        cpu: (after.0 - before.0).as_secs_f64() / windows,
    };
    Ok((cost, sink))
}

struct Counts {
    windows: f64,
    calls: f64,
}

impl Counts {
    async fn now(stack: &Stack, sink: &Sink, queue: &str) -> Result<Self> {
        let metrics = sink.metrics().await?;
        let windows = metrics.get("queen_s3_windows_committed_total", Some(("queue", queue)));
        Ok(Self {
            windows: windows.unwrap_or_default(),
            calls: run::s3_requests(&metrics) + run::queen_requests(stack).await?,
        })
    }
}

/// Pushes a thousand records a second over a queue's busy partitions.
struct Stream<'a> {
    stack: &'a Stack,
    queue: &'static str,
    payloads: &'a Payloads,
    /// A batch that came twice would be dropped as a repetition.
    next: AtomicUsize,
}

impl<'a> Stream<'a> {
    fn new(stack: &'a Stack, queue: &'static str, payloads: &'a Payloads) -> Self {
        let next = AtomicUsize::new(1);
        Self {
            stack,
            queue,
            payloads,
            next,
        }
    }

    async fn push(&self, seconds: usize) -> Result<()> {
        let mut ticks = interval(Duration::from_secs(1) / PUSHES_A_SECOND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..seconds * PUSHES_A_SECOND as usize {
            ticks.tick().await;
            let batch = self.next.fetch_add(1, Ordering::Relaxed);
            let events = self.payloads.batch(self.queue, batch, RECORDS, BUSY);
            self.stack.client().push(events).await?;
        }
        Ok(())
    }
}

/// Starts the sink again while records come, and waits for its next window.
async fn restart(records: &Stream<'_>, sink: &mut Sink) -> Result<(Duration, f64)> {
    let begin = Instant::now();
    sink.start_again(&[])?;
    let sink = &*sink;
    let committed = async || {
        records.push(1).await?;
        let metrics = sink.metrics().await?;
        Ok((metrics.records_written(records.queue) > 0).then_some(metrics))
    };
    let metrics = eventually(LIMIT, committed)
        .await
        .with_context(|| format!("the restart:{}", sink.logs().tail()))?;
    let fetches = metrics.get("queen_s3_fetch_calls_total", None);
    Ok((begin.elapsed(), fetches.unwrap_or_default()))
}

/// The median time of a discovery page from the middle of `queue`.
async fn page_time(stack: &Stack, queue: &str) -> Result<Duration> {
    let mut times = Vec::with_capacity(PAGES);
    let mut after = None;
    for _ in 0..PAGES {
        let mut entry = ChangedEntry::new(queue).limit(1_000);
        entry.after = after;
        let begin = Instant::now();
        let answer = stack
            .client()
            .changed(ChangedRequest::new(vec![entry]))
            .await?;
        times.push(begin.elapsed());
        // The last page leads back to the first one.
        after = answer.entries.into_iter().next().and_then(|page| page.next);
    }
    times.sort_unstable();
    // The pages of a small queue are a whole one and an almost empty one by turns.
    Ok(times[times.len() * 3 / 4])
}
