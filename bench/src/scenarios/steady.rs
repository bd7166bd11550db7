//! A steady stream: how far the lake is behind, and what a record costs beside one of a backlog.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use queen_dev::{Signal, Sink, SinkOptions, Stack, eventually};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::report::{Bar, Figure};
use crate::workload::{BATCH, Payloads};
use crate::{Plan, run, usage};

/// The scenario's name.
pub const NAME: &str = "steady";
const QUEUE: &str = "steady";
const PARTITIONS: usize = 1_000;
/// Batches of 100 records a second.
const BATCHES_A_SECOND: usize = 200;
const SECONDS: usize = 180;
const WINDOW: Duration = Duration::from_secs(10);
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Sink CPU per record over that of a backlog.
const COST_BAR: f64 = 1.5;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(plan.stack()).await?;
    stack.client().configure(QUEUE).await?;
    let batches = plan.scaled(SECONDS) * BATCHES_A_SECOND;
    let records = (batches * BATCH) as u64;
    let sink = stack.sink(&options("steady"))?;
    let mut samples = Samples::default();
    let pushing = push(&stack, batches);
    tokio::pin!(pushing);
    let push_seconds = loop {
        tokio::select! {
            pushed = &mut pushing => break pushed?,
            () = tokio::time::sleep(SAMPLE_EVERY) => samples.take(&sink).await?,
        }
    };
    let all = async || Ok((sink.metrics().await?.records_written(QUEUE) >= records).then_some(()));
    eventually(queen_dev::WAIT, all)
        .await
        .with_context(|| format!("the sink's last lines:{}", sink.logs().tail()))?;
    let steady = usage::cpu(sink.pid())?;
    sink.signal(Signal::TERM);
    sink.ended(queen_dev::WAIT).await?;
    let backlog = run::backlog(&stack, &options("backlog"), QUEUE, records).await?;

    samples.lags.sort_unstable_by(f64::total_cmp);
    samples.safe_lags.sort_unstable_by(f64::total_cmp);
    let expected = WINDOW.as_secs_f64() + percentile(&samples.safe_lags, 50);
    let (p50, p99) = (percentile(&samples.lags, 50), percentile(&samples.lags, 99));
    let cost = |cpu: Duration| cpu.as_secs_f64() * 1e6 / records as f64;
    let (steady, backlog) = (cost(steady), cost(backlog.cpu.sink));
    Ok(vec![
        Figure::new("pushed", "records/s", vec![records as f64 / push_seconds]),
        Figure::new("window and safe lag", "s", vec![expected]),
        Figure::new("lag, median", "of that", vec![p50 / expected]),
        Figure::new("lag, 99 %", "of that", vec![p99 / expected]),
        Figure::new("sink CPU", "us/record", vec![steady]),
        Figure::new("sink CPU", "x backlog", vec![steady / backlog]).bar(Bar::AtMost(COST_BAR)),
    ])
}

fn options(name: &str) -> SinkOptions {
    let mut options = SinkOptions::new(QUEUE)
        .with("QUEEN_S3_MAX_WINDOW_MS", WINDOW.as_millis())
        .with("QUEEN_S3_DISCOVERY_INTERVAL_MS", 2_000)
        .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
    options.name = name.into();
    options.instance = name.into();
    options
}

/// Pushes one batch a tick, each on its own, and answers how many seconds it took.
async fn push(stack: &Stack, batches: usize) -> Result<f64> {
    let payloads = Payloads::of_the_demo()?;
    let begin = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(BATCHES_A_SECOND)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut calls = JoinSet::new();
    for batch in 0..batches {
        ticks.tick().await;
        let events = payloads.batch(QUEUE, batch, BATCH, PARTITIONS);
        let client = stack.client().clone();
        calls.spawn(async move { client.push(events).await.map(|_| ()) });
        while let Some(done) = calls.try_join_next() {
            done??;
        }
    }
    while let Some(done) = calls.join_next().await {
        done??;
    }
    Ok(begin.elapsed().as_secs_f64())
}

#[derive(Default)]
struct Samples {
    lags: Vec<f64>,
    safe_lags: Vec<f64>,
}

impl Samples {
    async fn take(&mut self, sink: &Sink) -> Result<()> {
        let metrics = sink.metrics().await?;
        // Before the first window there is no lag to speak of.
        if metrics.records_written(QUEUE) > 0 {
            self.lags
                .extend(metrics.get("queen_s3_lag_seconds", Some(("queue", QUEUE))));
            self.safe_lags
                .extend(metrics.get("queen_s3_safe_lag_seconds", None));
        }
        Ok(())
    }
}

/// The value that `part` of a hundred do not pass.
fn percentile(sorted: &[f64], part: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * part / 100).copied().unwrap_or(f64::NAN)
}
