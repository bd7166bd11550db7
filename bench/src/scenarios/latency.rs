//! A store far away: throughput when every request to it waits.

use std::time::Duration;

use anyhow::Result;
use queen_dev::{SinkOptions, Stack, StackOptions};

use crate::report::{Bar, Figure};
use crate::workload::{self, BATCH, Payloads};
use crate::{Plan, run};

/// The scenario's name.
pub const NAME: &str = "latency";
const QUEUE: &str = "far";
const PARTITIONS: usize = 1_000;
/// About 4 GB of JSON lines.
const BATCHES: usize = 88_000;
const DELAYS_MS: [u64; 3] = [0, 50, 200];
/// Of the throughput without a delay.
const BAR: f64 = 0.85;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(StackOptions::default()).await?;
    let payloads = Payloads::of_the_demo()?;
    let batches = plan.scaled(BATCHES);
    let client = stack.client();
    let backlog =
        workload::push_backlog(client, QUEUE, &payloads, batches, BATCH, PARTITIONS).await?;
    let mut figures = Vec::new();
    let mut near = None;
    for delay in DELAYS_MS {
        let mut options = SinkOptions::new(QUEUE)
            .with("QUEEN_S3_MAX_WINDOW_MS", 3_000)
            .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
        options.name = format!("delay-{delay}");
        options.instance = options.name.clone();
        stack.s3.delay(Duration::from_millis(delay));
        let run = run::backlog(&stack, &options, QUEUE, backlog.records).await;
        stack.s3.delay(Duration::ZERO);
        let rate = run?.records_per_second;
        std::fs::remove_dir_all(stack.lake(&options.name).folder())?;
        let near = *near.get_or_insert(rate);
        let name = format!("throughput with {delay} ms a request");
        let figure = Figure::new(name, "of that at 0", vec![rate / near]);
        figures.push(Figure::new(format!("{delay} ms"), "records/s", vec![rate]));
        figures.push(match delay {
            0 => continue,
            200 => figure.bar(Bar::AtLeast(BAR)),
            _ => figure,
        });
    }
    Ok(figures)
}
