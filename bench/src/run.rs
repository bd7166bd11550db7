//! One sink's run over a backlog, with what it cost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use queen_dev::{Metrics, Signal, SinkOptions, Stack, eventually};

use crate::usage;

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(1_200);
/// The part of the backlog over which throughput is taken: the last window waits for its age.
const STEADY_PART: f64 = 0.8;

/// CPU time of the processes of a deployment; the S3 server is this process and not among them.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// The sink's.
    pub sink: Duration,
    /// The broker's.
    pub broker: Duration,
    /// PostgreSQL's, all of its processes.
    pub postgres: Duration,
    /// The S3 server's, and that of the measuring itself.
    pub bench: Duration,
}

impl Cpu {
    /// The deployment's: sink, broker and PostgreSQL.
    pub fn deployment(&self) -> Duration {
        self.sink + self.broker + self.postgres
    }

    fn now(stack: &Stack, sink: i32) -> Result<Self> {
        let broker = stack.broker.pid().context("the broker runs")?;
        let postgres = stack.postgres.pid().context("PostgreSQL runs")?;
        Ok(Self {
            sink: usage::cpu(sink)?,
            broker: usage::cpu(broker)?,
            postgres: usage::cpu_of_family(postgres)?,
            bench: usage::own_cpu(),
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            sink: self.sink.saturating_sub(before.sink),
            broker: self.broker.saturating_sub(before.broker),
            postgres: self.postgres.saturating_sub(before.postgres),
            bench: self.bench.saturating_sub(before.bench),
        }
    }
}

/// What a run over a backlog cost.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// CPU time of the whole run, the sink's start included.
    pub cpu: Cpu,
    /// The most memory that the sink had resident, in bytes.
    pub peak: u64,
    /// Records written per second of wall time, without the last windows.
    pub records_per_second: f64,
    /// Of the cores, the part that was busy meanwhile: 1.0 is all of them.
    pub busy: f64,
    /// Windows committed.
    pub windows: u64,
}

/// Starts a sink on `queue`, waits until it has written `records` records, and stops it.
pub async fn backlog(
    stack: &Stack,
    options: &SinkOptions,
    queue: &str,
    records: u64,
) -> Result<Run> {
    let cores = std::thread::available_parallelism()?.get() as f64;
    let sink = stack.sink(options)?;
    let pid = sink.pid();
    let before = Cpu::now(stack, pid)?;
    let begin = Instant::now();
    let mut steady = None;
    let steady_records = (records as f64 * STEADY_PART) as u64;
    let metrics = eventually(LIMIT, async || {
        if let Some(status) = sink.status() {
            anyhow::bail!("the sink ended ({status}):{}", sink.logs().tail());
        }
        let metrics = sink.metrics().await?;
        let written = metrics.records_written(queue);
        if written >= steady_records && steady.is_none() {
            let cpu = Cpu::now(stack, pid)?.since(before);
            steady = Some((written, begin.elapsed(), cpu));
        }
        Ok((written >= records).then_some(metrics))
    })
    .await
    .with_context(|| format!("the sink's last lines:{}", sink.logs().tail()))?;
    let cpu = Cpu::now(stack, pid)?.since(before);
    let peak = usage::peak_resident(pid)?;
    sink.signal(Signal::TERM);
    sink.ended(LIMIT).await?;
    let (written, took, steady_cpu) = steady.context("all records come after the first ones")?;
    let used = steady_cpu.deployment() + steady_cpu.bench;
    Ok(Run {
        cpu,
        peak,
        records_per_second: written as f64 / took.as_secs_f64(),
        busy: used.as_secs_f64() / took.as_secs_f64() / cores,
        windows: metrics
            .get("queen_s3_windows_committed_total", Some(("queue", queue)))
            .unwrap_or_default() as u64,
    })
}

/// Requests that a sink has made to the bucket.
pub fn s3_requests(sink: &Metrics) -> f64 {
    sink.get("queen_s3_s3_requests_total", None)
        .unwrap_or_default()
}

/// Calls that sinks have made to the broker of `stack`: nobody else makes these.
pub async fn queen_requests(stack: &Stack) -> Result<f64> {
    let metrics = Metrics::of(stack.broker.address()).await?;
    let of = |route| metrics.get("queen_requests_total", Some(("route", route)));
    let routes = ["/api/v1/fetch", "/api/v1/partitions/changed", "/api/v1/kv"];
    Ok(routes.into_iter().filter_map(of).sum())
}
