//! Several sinks at one broker.

use anyhow::{Context, Result};
use queen_dev::{Ledger, Pushed, Sink, SinkOptions, Stack, WAIT, eventually};
use queen_e2e::{events, settled};

use crate::at_each_store;

/// The instance that holds the lease of `orders`.
async fn holder(stack: &Stack) -> Result<Option<String>> {
    let lease = stack
        .client()
        .kv_get("queen-s3", "s3:default:orders:lease")
        .await?;
    Ok(lease.and_then(|lease| lease["instance"].as_str().map(str::to_owned)))
}

fn instance(stack: &Stack, name: &str) -> Result<Sink> {
    // So long that a busy machine does not lose it by being slow.
    let mut options = SinkOptions::new("orders").with("QUEEN_S3_LEASE_TTL_MS", 10_000);
    options.instance = name.into();
    stack.sink(&options)
}

#[tokio::test]
async fn two_instances_on_one_queue_write_one_lake_and_the_second_takes_over() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        let first = instance(&stack, "first")?;
        eventually(WAIT, async || holder(&stack).await).await?;
        let second = instance(&stack, "second")?;
        second.port().await?;
        let mut pushed: Vec<Pushed> = Vec::new();
        for round in 0..4 {
            pushed.extend(
                stack
                    .client()
                    .push_all(events("orders", round, 300, 10), |_| {})
                    .await?,
            );
        }
        let lake = stack.lake("default");
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        assert_eq!(holder(&stack).await?.as_deref(), Some("first"));

        first.kill();
        pushed.extend(
            stack
                .client()
                .push_all(events("orders", 4, 300, 10), |_| {})
                .await?,
        );
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        let held = holder(&stack).await?.context("nobody holds the queue")?;
        assert_eq!(held, "second");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_sinks_on_one_queue_are_two_independent_lakes() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        let named = |name: &str| {
            let mut options = SinkOptions::new("orders");
            options.name = name.into();
            options.instance = name.into();
            stack.sink(&options)
        };
        let (east, _west) = (named("east")?, named("west")?);
        let mut pushed = stack
            .client()
            .push_all(events("orders", 0, 500, 10), |_| {})
            .await?;
        settled(
            &stack.lake("east"),
            "orders",
            &Ledger::of(&pushed, "orders")?,
        )
        .await?;
        east.kill();
        pushed.extend(
            stack
                .client()
                .push_all(events("orders", 1, 500, 10), |_| {})
                .await?,
        );
        settled(
            &stack.lake("west"),
            "orders",
            &Ledger::of(&pushed, "orders")?,
        )
        .await
    })
    .await
}
