//! The broker alone: pushes beside a bare COPY of the same blocks, fetches beside decompression.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{SinkExt, TryStreamExt};
use queen_dev::Stack;
use tokio_postgres::Client;
use zstd::bulk::Decompressor;

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
    let stack = Stack::start(plan.stack()).await?;
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
        Figure::new("fetch, CPU", "x decompressing", fetch_ratio),
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
    let mut decompressor = Decompressor::new()?;
    let mut content = Vec::new();
    let begin = Instant::now();
    let before = usage::own_cpu();
    for row in &rows {
        let raw: i32 = row.get(1);
        content.resize(usize::try_from(raw)?, 0);
        decompress(row.get(0), &mut decompressor, &mut content)?;
        std::hint::black_box(&content);
    }
    // One thread does it: where others of this process work meanwhile, its wall time is closer.
    Ok((usage::own_cpu() - before).min(begin.elapsed()))
}

/// What a frame of LZ4 begins with, its content's length and its header's checksum behind it.
const LZ4_HEAD: usize = 4 + 2 + 8 + 1;

/// Decompresses a stored block: a frame of LZ4 or zstd, and a description that may stand before it.
fn decompress(block: &[u8], zstd: &mut Decompressor<'_>, content: &mut [u8]) -> Result<()> {
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(*bytes.first_chunk()?));
    let frame = match (number(block), block.get(4..).and_then(number)) {
        (Some(0x184D_2A50..=0x184D_2A5F), Some(length)) => block.get(8 + length as usize..),
        _ => Some(block),
    };
    let frame = frame.context("a block is shorter than its description")?;
    if number(frame) != Some(0x184D_2204) {
        zstd.decompress_to_buffer(frame, content)?;
        return Ok(());
    }
    // One block, and an empty one at the end.
    let block = frame.get(LZ4_HEAD + 4..frame.len() - 4);
    let length = frame.get(LZ4_HEAD..).and_then(number);
    let (Some(block), Some(length)) = (block, length) else {
        bail!("a frame of LZ4 is cut");
    };
    match length >> 31 {
        0 => drop(lz4_flex::block::decompress_into(block, content)?),
        _ => content.copy_from_slice(block),
    }
    Ok(())
}
