//! A queue with a history, read from its start: the cost of every step beside that of compressing
//! the same bytes, by format and compression.

use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{SinkOptions, Stack, StackOptions};

use crate::report::{Bar, Figure};
use crate::run::{self, Run};
use crate::usage;
use crate::workload::{self, BATCH, Payloads};
use crate::{Plan, mebibytes};

/// The scenario's name.
pub const NAME: &str = "backlog";
const QUEUE: &str = "backlog";
const PARTITIONS: usize = 1_000;
/// Batches of the whole scenario: about 1 GB of JSON lines.
const BATCHES: usize = 22_000;
/// Format, the variable that sets its compression, and that compression. The first one's objects
/// are the lines that the floor is taken from.
const SHAPES: [(&str, &str, &str); 5] = [
    ("jsonl", "QUEEN_S3_COMPRESSION", "none"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "zstd"),
    ("jsonl", "QUEEN_S3_COMPRESSION", "gzip"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "zstd"),
    ("parquet", "QUEEN_S3_PARQUET_CODEC", "snappy"),
];
/// Sink CPU over zstd alone, by format with zstd.
const SINK_BARS: [(&str, f64); 2] = [("jsonl", 1.9), ("parquet", 1.7)];
/// CPU of sink, broker and PostgreSQL over zstd alone.
const DEPLOYMENT_BAR: f64 = 4.5;
const BUSY_BAR: f64 = 0.9;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(StackOptions::default()).await?;
    let payloads = Payloads::of_the_demo()?;
    let batches = plan.scaled(BATCHES);
    let client = stack.client();
    let backlog =
        workload::push_backlog(client, QUEUE, &payloads, batches, BATCH, PARTITIONS).await?;
    let mut figures = vec![
        Figure::new("records", "", vec![backlog.records as f64]),
        Figure::new(
            "push, one sender of 8 calls",
            "records/s",
            vec![backlog.records as f64 / backlog.took.as_secs_f64()],
        ),
    ];
    let mut floor = Vec::new();
    for (format, variable, compression) in SHAPES {
        let shape = format!("{format} {compression}");
        let mut runs = Vec::new();
        for repetition in 0..plan.repetitions {
            let mut options = SinkOptions::new(QUEUE)
                .with("QUEEN_S3_FORMAT", format)
                .with(variable, compression)
                .with("QUEEN_S3_MAX_WINDOW_MS", 3_000)
                .with("QUEEN_S3_LEASE_TTL_MS", 30_000);
            options.name = format!("{format}-{compression}-{repetition}");
            options.instance = options.name.clone();
            let run = run::backlog(&stack, &options, QUEUE, backlog.records).await?;
            if floor.is_empty() {
                floor = zstd_alone(&stack, &options.name, plan.repetitions)?;
            }
            std::fs::remove_dir_all(stack.lake(&options.name).folder())?;
            runs.push(run);
        }
        figures.extend(figures_of(&shape, compression, format, &runs, &floor));
    }
    let floor = floor.iter().map(Duration::as_secs_f64).collect();
    figures.insert(2, Figure::new("zstd level 3 alone", "CPU s", floor));
    Ok(figures)
}

fn figures_of(
    shape: &str,
    compression: &str,
    format: &str,
    runs: &[Run],
    floor: &[Duration],
) -> Vec<Figure> {
    let ratio = |cpu: fn(&Run) -> Duration| -> Vec<f64> {
        runs.iter()
            .zip(floor)
            .map(|(run, floor)| cpu(run).as_secs_f64() / floor.as_secs_f64())
            .collect()
    };
    let each = |value: fn(&Run) -> f64| runs.iter().map(value).collect();
    let mut sink = Figure::new(
        format!("{shape}: sink"),
        "x zstd",
        ratio(|run| run.cpu.sink),
    );
    let mut deployment = Figure::new(
        format!("{shape}: sink, broker, PostgreSQL"),
        "x zstd",
        ratio(|run| run.cpu.deployment()),
    );
    let mut busy = Figure::new(format!("{shape}: cores busy"), "", each(|run| run.busy));
    if compression == "zstd" {
        let bar = SINK_BARS.iter().find(|(bar, _)| *bar == format);
        sink = match bar {
            Some((_, bar)) => sink.bar(Bar::AtMost(*bar)),
            None => sink,
        };
        deployment = deployment.bar(Bar::AtMost(DEPLOYMENT_BAR));
        busy = busy.bar(Bar::AtLeast(BUSY_BAR));
    }
    vec![
        sink,
        deployment,
        Figure::new(
            format!("{shape}: broker"),
            "x zstd",
            ratio(|run| run.cpu.broker),
        ),
        Figure::new(
            format!("{shape}: PostgreSQL"),
            "x zstd",
            ratio(|run| run.cpu.postgres),
        ),
        busy,
        Figure::new(
            format!("{shape}: throughput"),
            "records/s",
            each(|run| run.records_per_second),
        ),
        Figure::new(
            format!("{shape}: peak memory"),
            "MiB",
            runs.iter().map(|run| mebibytes(run.peak)).collect(),
        ),
        Figure::new(
            format!("{shape}: windows"),
            "",
            each(|run| run.windows as f64),
        ),
    ]
}

/// CPU time of compressing the lines of the lake `name` with zstd, level 3, one worker.
fn zstd_alone(stack: &Stack, name: &str, repetitions: usize) -> Result<Vec<Duration>> {
    let objects = stack.lake(name).objects(QUEUE)?;
    ensure!(!objects.is_empty(), "the lake {name} holds no object");
    let mut times = Vec::new();
    for _ in 0..repetitions {
        let before = usage::own_cpu();
        for object in &objects {
            let mut encoder = zstd::Encoder::new(Vec::new(), 3)?;
            encoder.multithread(1)?;
            encoder.write_all(&object.bytes).context("compress lines")?;
            black_box(encoder.finish()?);
        }
        times.push(usage::own_cpu() - before);
    }
    Ok(times)
}
