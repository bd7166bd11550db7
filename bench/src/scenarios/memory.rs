//! Peak memory over window size, by format, and with small and large records.

use anyhow::Result;
use queen_dev::{SinkOptions, Stack};

use crate::report::{Bar, Figure};
use crate::workload::{self, BATCH, Payloads};
use crate::{Plan, mebibytes, run};

/// The scenario's name.
pub const NAME: &str = "memory";
const PARTITIONS: usize = 1_000;
/// Record bytes of each backlog, about: twice the greatest window.
const BACKLOG_BYTES: usize = 1 << 30;
/// `QUEEN_S3_TARGET_MB`; the budget is twice that.
const WINDOWS_MB: [usize; 3] = [32, 128, 512];
/// Format, the variable that sets its compression, and that compression.
const SHAPES: [(&str, &str, &str); 5] = [
    ("jsonl", "QUEEN_S3_COMPRESSION", "none"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "zstd"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "gzip"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "zstd"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "snappy"),
];
/// Of the peak, what the budget may be exceeded by: a part of it, and a constant.
const BAR_PART: f64 = 1.15;
const BAR_MIB: f64 = 64.0;

/// Payload bytes, name of the queue, records of a batch, bytes of a line.
const SIZES: [(usize, &str, usize, usize); 3] = [
    (300, "usual", BATCH, 440),
    (100, "small", BATCH, 160),
    (1_000_000, "large", 1, 1_000_100),
];

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (payload, queue, batch, line) in SIZES {
        let stack = Stack::start(plan.stack()).await?;
        let payloads = if payload == 300 {
            Payloads::of_the_demo()?
        } else {
            Payloads::of_size(payload)?
        };
        let batches = plan.scaled(BACKLOG_BYTES / line / batch);
        let client = stack.client();
        let backlog =
            workload::push_backlog(client, queue, &payloads, batches, batch, PARTITIONS).await?;
        for (format, variable, compression) in SHAPES {
            for window in WINDOWS_MB {
                // Small and large records show what they change with one window.
                if payload != 300 && window != 128 {
                    continue;
                }
                let budget = 2 * window;
                let mut options = SinkOptions::new(queue)
                    .with("QUEEN_S3_FORMAT", format)
                    .with(variable, compression)
                    .with("QUEEN_S3_TARGET_MB", window)
                    .with("QUEEN_S3_MEMORY_MB", budget)
                    .with("QUEEN_S3_MAX_WINDOW_MS", 3_000)
                    .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
                options.name = format!("{format}-{compression}-{window}");
                options.instance = options.name.clone();
                let run = run::backlog(&stack, &options, queue, backlog.records).await?;
                std::fs::remove_dir_all(stack.lake(&options.name).folder())?;
                let name = format!("{queue} records, {format} {compression}, {window} MB windows");
                let bar = budget as f64 * BAR_PART + BAR_MIB;
                figures.push(
                    Figure::new(name, "MiB", vec![mebibytes(run.peak)]).bar(Bar::AtMost(bar)),
                );
            }
        }
    }
    Ok(figures)
}
