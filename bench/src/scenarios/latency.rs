//! A store far away: throughput when every request to it waits.

use std::time::Duration;

use anyhow::Result;
use queen_dev::{SinkOptions, Stack};

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
/// `QUEEN_S3_TARGET_MB`: the default, whose two requests a window take longer than its encoding when
/// each takes 200 ms, and what is for a store so far away.
const WINDOWS_MB: [usize; 2] = [128, 512];
/// Of the throughput without a delay, with the larger windows.
const BAR: f64 = 0.85;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(plan.stack()).await?;
    let payloads = Payloads::of_the_demo()?;
    let batches = plan.scaled(BATCHES);
    let client = stack.client();
    let backlog =
        workload::push_backlog(client, QUEUE, &payloads, batches, BATCH, PARTITIONS).await?;
    let mut figures = Vec::new();
    for window in WINDOWS_MB {
        figures.extend(throughput(&stack, window, backlog.records).await?);
    }
    Ok(figures)
}

/// Throughput at each delay with windows of `window` MB.
async fn throughput(stack: &Stack, window: usize, records: u64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut near = None;
    for delay in DELAYS_MS {
        let mut options = SinkOptions::new(QUEUE)
            .with("QUEEN_S3_TARGET_MB", window)
            .with("QUEEN_S3_MEMORY_MB", 4 * window)
            .with("QUEEN_S3_MAX_WINDOW_MS", 3_000)
            .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
        options.name = format!("delay-{delay}-{window}");
        options.instance = options.name.clone();
        stack.s3.delay(Duration::from_millis(delay));
        let run = run::backlog(stack, &options, QUEUE, records).await;
        stack.s3.delay(Duration::ZERO);
        let run = run?;
        let rate = run.records_per_second;
        std::fs::remove_dir_all(stack.lake(&options.name).folder())?;
        let near = *near.get_or_insert(rate);
        let name = format!("{window} MB windows, {delay} ms a request: throughput");
        let figure = Figure::new(name.clone(), "of that at 0", vec![rate / near]);
        figures.push(Figure::new(name.clone(), "records/s", vec![rate]));
        figures.push(match delay {
            // What a backlog keeps busy once its start and end do not count for much.
            0 => {
                let name = format!("{window} MB windows, {delay} ms a request: cores busy");
                Figure::new(name, "", vec![run.busy])
            }
            200 if window > WINDOWS_MB[0] => figure.bar(Bar::AtLeast(BAR)),
            _ => figure,
        });
    }
    Ok(figures)
}
