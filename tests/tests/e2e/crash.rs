//! A sink that dies without warning at any moment, while records come in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{Event, Lake, Ledger, SinkOptions, WAIT, eventually, verify};
use queen_e2e::{events, settled};

use crate::at_each_store;

/// The objects of `queue` by key.
fn visible(lake: &Lake, queue: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    Ok(lake
        .objects(queue)?
        .into_iter()
        .map(|object| (object.key, object.bytes))
        .collect())
}

/// Checks that every object of `before` still has its name and its bytes.
fn unchanged(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    for (key, bytes) in before {
        let now = after.get(key).with_context(|| format!("{key} is gone"))?;
        ensure!(now == bytes, "{key} has other bytes than before");
    }
    Ok(())
}

#[tokio::test]
async fn kills_at_random_moments_never_change_a_visible_object() -> Result<()> {
    const SEED: u64 = 7;
    const KILLS: usize = 8;
    at_each_store(&["orders"], async |stack| {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let lake = stack.lake("default");
        let mut sink = stack.sink(&SinkOptions::new("orders"))?;
        let mut pushed = Vec::new();
        let mut before = BTreeMap::new();
        for round in 0..KILLS {
            pushed.extend(
                stack
                    .client()
                    .push_all(events("orders", round, 400, 25), |_| {})
                    .await?,
            );
            // The moment is the point of this test: it may fall anywhere between two windows.
            tokio::time::sleep(Duration::from_millis(rng.u64(0..2_500))).await;
            sink.kill();
            let now = visible(&lake, "orders")?;
            unchanged(&before, &now)?;
            before = now;
            sink.start_again(&[])?;
        }
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        unchanged(&before, &visible(&lake, "orders")?)
    })
    .await
}

/// A record too long for one PUT at the least threshold, whatever compresses it.
fn long_record() -> Event {
    let mut dice = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| dice.alphanumeric())
        .take(8 << 20)
        .collect();
    Event {
        queue: "orders".into(),
        partition: "long".into(),
        transaction_id: "long".into(),
        payload: Arc::from(format!("\"{text}\"")),
    }
}

#[tokio::test]
async fn a_record_longer_than_a_part_is_whole_in_both_formats_over_a_kill() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        let client = stack.client();
        let mut sinks = Vec::new();
        for format in ["jsonl", "parquet"] {
            let mut options = SinkOptions::new("orders")
                .with("QUEEN_S3_FORMAT", format)
                .with("QUEEN_S3_MULTIPART_THRESHOLD_MB", 5);
            options.name = format.into();
            options.instance = format.into();
            sinks.push((stack.sink(&options)?, options));
        }
        let mut pushed = client
            .push_all(events("orders", 0, 1_000, 20), |_| {})
            .await?;
        pushed.extend(client.push(vec![long_record()]).await?);
        for (sink, options) in &sinks {
            let written = async || {
                let metrics = sink.metrics().await?;
                Ok((metrics.records_written("orders") > 1_000).then_some(metrics))
            };
            let metrics = eventually(WAIT, written).await;
            let metrics = metrics.with_context(|| sink.logs().tail())?;
            let parts = ("op", "multipart_complete");
            let parts = metrics.get("queen_s3_s3_requests_total", Some(parts));
            ensure!(parts >= Some(1.0), "{}: nothing in parts", options.name);
        }
        pushed.extend(
            client
                .push_all(events("orders", 1, 500, 20), |_| {})
                .await?,
        );
        for (sink, _) in &mut sinks {
            sink.kill();
            sink.start_again(&[])?;
        }
        pushed.extend(
            client
                .push_all(events("orders", 2, 500, 20), |_| {})
                .await?,
        );
        let log = Ledger::of(&pushed, "orders")?;
        for (_, options) in &sinks {
            settled(&stack.lake(&options.name), "orders", &log).await?;
            let name = format!("{}-verify", options.name);
            verify(&stack.variables(options), &stack.dir().join("logs"), &name).await?;
        }
        Ok(())
    })
    .await
}
