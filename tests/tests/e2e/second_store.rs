//! The sink at an S3 server that shares no code with the one of the other tests.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use queen_dev::{Event, Lake, Ledger, Moto, SinkOptions, Stack, WAIT, eventually, verify};
use queen_e2e::{count_with_duckdb, events, settled};

use crate::stack_with;

const QUEUE: &str = "orders";

/// A record too long for one PUT at the least threshold, whatever compresses it.
fn long_record() -> Event {
    let mut dice = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| dice.alphanumeric())
        .take(8 << 20)
        .collect();
    Event {
        queue: QUEUE.into(),
        partition: "long".into(),
        transaction_id: "long".into(),
        payload: Arc::from(format!("\"{text}\"")),
    }
}

#[tokio::test]
async fn a_lake_at_another_s3_server_is_exact_over_a_kill_and_an_upload_in_parts() -> Result<()> {
    is_exact("jsonl").await
}

#[tokio::test]
async fn so_is_one_of_parquet_objects() -> Result<()> {
    is_exact("parquet").await
}

async fn is_exact(format: &str) -> Result<()> {
    let stack = stack_with(&[QUEUE]).await?;
    let logs = stack.dir().join("logs");
    let moto = Moto::start(&logs, Stack::BUCKET).await?;
    let options = SinkOptions::new(QUEUE)
        .with("QUEEN_S3_ENDPOINT", moto.endpoint())
        .with("QUEEN_S3_FORMAT", format)
        .with("QUEEN_S3_MULTIPART_THRESHOLD_MB", 5);
    let mut sink = stack.sink(&options)?;
    let client = stack.client();
    let mut pushed = client.push_all(events(QUEUE, 0, 1_000, 20), |_| {}).await?;
    let written = async |count: u64| {
        let written =
            async || Ok((sink.metrics().await?.records_written(QUEUE) >= count).then_some(()));
        eventually(WAIT, written)
            .await
            .with_context(|| format!("{count} records are not written:{}", sink.logs().tail()))
    };
    written(1_000).await?;
    pushed.extend(client.push(vec![long_record()]).await?);
    written(1_001).await?;
    let uploads = sink.metrics().await?;
    let label = ("op", "multipart_complete");
    let uploads = uploads.get("queen_s3_s3_requests_total", Some(label));
    ensure!(uploads >= Some(1.0), "nothing went up in parts");

    pushed.extend(client.push_all(events(QUEUE, 1, 500, 20), |_| {}).await?);
    sink.kill();
    sink.start_again(&[])?;
    pushed.extend(client.push_all(events(QUEUE, 2, 500, 20), |_| {}).await?);
    let pointer = "s3:default:orders:committed";
    let until = pushed.len() as u64;
    let manifests = async |copy: &Lake| -> Result<u64> {
        moto.export(Stack::BUCKET, stack.dir()).await?;
        let manifests = copy.manifests(QUEUE)?;
        Ok(manifests.iter().filter_map(|m| m["records"].as_u64()).sum())
    };
    // Copied out of the server by a client of its own.
    let copy = Lake::new(&stack.dir().join(Stack::BUCKET), Stack::PREFIX, "default");
    let mut seen = 0;
    eventually(WAIT, async || {
        let k = client.kv_get("queen-s3", pointer).await?;
        let k = k.and_then(|pointer| pointer["k"].as_u64()).unwrap_or(0);
        if k == seen {
            return Ok(None);
        }
        seen = k;
        Ok((manifests(&copy).await? >= until).then_some(()))
    })
    .await
    .context("the lake does not hold every record")?;
    settled(&copy, QUEUE, &Ledger::of(&pushed, QUEUE)?).await?;
    if format == "jsonl" {
        let (records, places, _) = count_with_duckdb(&copy.glob(QUEUE))?;
        ensure!(
            (records, places) == (pushed.len(), pushed.len()),
            "DuckDB counts {records}"
        );
    }
    verify(&stack.variables(&options), &logs, "verify").await
}
