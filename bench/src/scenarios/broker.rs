//! The broker alone: pushes beside a bare COPY of the same blocks, fetches beside decompression.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{SinkExt, TryStreamExt};
use queen_dev::{Stack, StackOptions};
use tokio_postgres::Client;

use crate::report::Figure;
use crate::workload::{self, BATCH, Payloads};
use crate::{Plan, database, usage};

/// The scenario's name.
pub const NAME: &str = "broker";
const PARTITIONS: usize = 1_000;
/// About 250 MB of payloads.
const BATCHES: usize = 8_000;

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(StackOptions::default()).await?;
    let database = database::connect(&stack).await?;
    let payloads = Payloads::of_the_demo()?;
    let batches = plan.scaled(BATCHES);
    let [mut push_rate, mut push_cpu, mut push_ratio] = [const { Vec::new() }; 3];
    let [mut fetch_rate, mut fetch_ratio] = [const { Vec::new() }; 2];
    for repetition in 0..plan.repetitions {
        let queue = format!("queue-{repetition}");
        let before = deployment_cpu(&stack)?;
        let client = stack.client();
        let pushed =
            workload::push_backlog(client, &queue, &payloads, batches, BATCH, PARTITIONS).await?;
        let pushing = deployment_cpu(&stack)? - before;
        let copying = copy_blocks(&stack, &database, &queue).await?;
        let records = pushed.records as f64;
        push_rate.push(records / pushed.took.as_secs_f64());
        push_cpu.push(pushing.as_secs_f64() * 1e6 / records);
        push_ratio.push(pushing.as_secs_f64() / copying.as_secs_f64());

        let before = deployment_cpu(&stack)?;
        let log = client.read_log(&queue).await?;
        let fetching = deployment_cpu(&stack)? - before;
        ensure!(log.len() as u64 == pushed.records, "the log is not whole");
        fetch_rate.push(pushed.payload_bytes as f64 / 1e6 / fetching.as_secs_f64());
        let decompressing = decompress_blocks(&database, &queue).await?;
        fetch_ratio.push(fetching.as_secs_f64() / decompressing.as_secs_f64());
    }
    Ok(vec![
        Figure::new("push", "records/s", push_rate),
        Figure::new("push, CPU of broker and PostgreSQL", "us/record", push_cpu),
        Figure::new("push, CPU", "x bare COPY", push_ratio),
        Figure::new("fetch, payloads per CPU second", "MB", fetch_rate),
        Figure::new("fetch, CPU", "x zstd -d", fetch_ratio),
    ])
}

fn deployment_cpu(stack: &Stack) -> Result<Duration> {
    let broker = stack.broker.pid().context("the broker runs")?;
    let postgres = stack.postgres.pid().context("PostgreSQL runs")?;
    Ok(usage::cpu(broker)? + usage::cpu_of_family(postgres)?)
}

/// CPU time of PostgreSQL for a COPY of the segments of `queue` into a table of the same shape.
async fn copy_blocks(stack: &Stack, client: &Client, queue: &str) -> Result<Duration> {
    let id: i64 = client
        .query_one("SELECT id FROM queen.queues WHERE name = $1", &[&queue])
        .await?
        .get(0);
    let read = format!(
        "COPY (SELECT s.* FROM queen.segments s
               JOIN queen.partitions p ON p.id = s.partition_id WHERE p.queue_id = {id})
         TO STDOUT (FORMAT binary)"
    );
    let pieces: Vec<_> = client.copy_out(&read).await?.try_collect().await?;
    client
        .batch_execute(
            "DROP TABLE IF EXISTS copied;
             CREATE TABLE copied (LIKE queen.segments INCLUDING ALL)",
        )
        .await?;
    let postgres = stack.postgres.pid().context("PostgreSQL runs")?;
    let before = usage::cpu_of_family(postgres)?;
    let copy = client
        .copy_in("COPY copied FROM STDIN (FORMAT binary)")
        .await?;
    tokio::pin!(copy);
    for piece in pieces {
        copy.send(piece).await?;
    }
    copy.finish().await?;
    Ok(usage::cpu_of_family(postgres)? - before)
}

/// CPU time of decompressing every block of `queue`, one after the other.
async fn decompress_blocks(client: &Client, queue: &str) -> Result<Duration> {
    const BLOCKS: &str = "
        SELECT s.block, s.raw_bytes FROM queen.segments s
        JOIN queen.partitions p ON p.id = s.partition_id
        JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1";
    let rows = client.query(BLOCKS, &[&queue]).await?;
    let mut decompressor = zstd::bulk::Decompressor::new()?;
    let begin = Instant::now();
    let before = usage::own_cpu();
    for row in &rows {
        let raw: i32 = row.get(1);
        std::hint::black_box(decompressor.decompress(row.get(0), usize::try_from(raw)?)?);
    }
    // One thread does it: where others of this process work meanwhile, its wall time is closer.
    Ok((usage::own_cpu() - before).min(begin.elapsed()))
}
