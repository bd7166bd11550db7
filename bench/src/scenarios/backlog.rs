//! A queue with a history, read from its start: the cost of every step beside that of compressing
//! the same bytes, by format and compression.

use std::hint::black_box;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{SinkOptions, Stack};

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
    let stack = Stack::start(plan.stack()).await?;
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
    let mut lines = Vec::new();
    let mut floors = Vec::new();
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
            let lake = stack.lake(&options.name);
            if lines.is_empty() {
                let objects = lake.objects(QUEUE)?;
                lines = objects.into_iter().map(|object| object.bytes).collect();
                ensure!(!lines.is_empty(), "the first lake holds no object");
            }
            std::fs::remove_dir_all(lake.folder())?;
            runs.push((run, Floor::measure(&lines)?));
        }
        floors.extend(runs.iter().map(|(_, floor)| *floor));
        figures.extend(figures_of(&shape, compression, format, &runs));
    }
    let seconds = |time: fn(&Floor) -> Duration| {
        let times = floors.iter().map(time);
        times.map(|time| time.as_secs_f64()).collect()
    };
    let alone = Figure::new("zstd level 3 alone", "CPU s", seconds(|floor| floor.alone));
    let beside = Figure::new(
        "zstd level 3, all cores busy",
        "CPU s",
        seconds(|floor| floor.busy),
    );
    figures.splice(2..2, [alone, beside]);
    Ok(figures)
}

fn figures_of(shape: &str, compression: &str, format: &str, runs: &[(Run, Floor)]) -> Vec<Figure> {
    let over = |cpu: fn(&Run) -> Duration, floor: fn(&Floor) -> Duration| -> Vec<f64> {
        let ratio = |(run, of): &(Run, Floor)| cpu(run).as_secs_f64() / floor(of).as_secs_f64();
        runs.iter().map(ratio).collect()
    };
    let ratio = |cpu| over(cpu, |floor| floor.alone);
    let each = |value: fn(&Run) -> f64| runs.iter().map(|(run, _)| value(run)).collect();
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
        Figure::new(
            format!("{shape}: sink"),
            "x zstd on cores as busy",
            over(|run| run.cpu.sink, |floor| floor.busy),
        ),
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
            each(|run| mebibytes(run.peak)),
        ),
        Figure::new(
            format!("{shape}: windows"),
            "",
            each(|run| run.windows as f64),
        ),
    ]
}

/// CPU time of compressing the same lines with zstd, level 3, one worker, taken right after a run:
/// the machine's speed drifts.
#[derive(Debug, Clone, Copy)]
struct Floor {
    /// While nothing else runs.
    alone: Duration,
    /// While every core does the same. Cores share caches and execution units, and a run of a sink keeps
    /// all of them busy.
    busy: Duration,
}

impl Floor {
    fn measure(lines: &[Vec<u8>]) -> Result<Self> {
        let cores = thread::available_parallelism()?.get();
        Ok(Self {
            alone: compressing(lines, 1)?,
            busy: compressing(lines, cores)?,
        })
    }
}

/// CPU time that compressing `lines` takes each of so many threads that do it at once.
fn compressing(lines: &[Vec<u8>], threads: usize) -> Result<Duration> {
    let before = usage::own_cpu();
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| compress(lines)))
            .collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().expect("compressing does not panic"))
    })?;
    Ok((usage::own_cpu() - before) / u32::try_from(threads)?)
}

fn compress(lines: &[Vec<u8>]) -> Result<()> {
    for object in lines {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3)?;
        encoder.multithread(1)?;
        encoder.write_all(object).context("compress lines")?;
        black_box(encoder.finish()?);
    }
    Ok(())
}
