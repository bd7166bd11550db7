//! Queen's public clients, as they are published, against the broker.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{Stack, StackOptions, python};
use queen_mq::{Config, PushItem, PushStatus, Queen, QueueOptions, StopReason, SubscriptionMode};
use serde_json::json;

async fn connected() -> Result<(Stack, Queen)> {
    let stack = Stack::start(StackOptions::default()).await?;
    let queen = Queen::connect(Config::new(stack.broker.url()))?;
    Ok((stack, queen))
}

#[tokio::test]
async fn the_rust_client_configures_pushes_pops_and_settles() -> Result<()> {
    let (_stack, queen) = connected().await?;
    let orders = queen.queue("orders").partition("eu/1").group("billing");
    let configured = orders
        .configure(QueueOptions {
            lease_time: Some(30),
            retry_limit: Some(1),
            ..QueueOptions::default()
        })
        .await?;
    assert_eq!(configured["options"]["retryLimit"], json!(1));

    let item = |n: i32| {
        PushItem::new("orders", json!({"n": n}))
            .partition("eu/1")
            .transaction_id(format!("order-{n}"))
    };
    let pushed = orders.push_items((0..3).map(item).collect()).await?;
    assert!(
        pushed
            .iter()
            .all(|result| result.status == PushStatus::Queued)
    );
    let again = orders.push_items(vec![item(1)]).await?;
    assert_eq!(again[0].status, PushStatus::Duplicate);
    assert_eq!(again[0].message_id, pushed[1].message_id);

    let pop = || async {
        let messages = orders
            .clone()
            .batch(10)
            .subscription_mode(SubscriptionMode::All)
            .poll_timeout(Duration::from_secs(20))
            .pop()
            .await?;
        anyhow::Ok(messages)
    };
    let messages = pop().await?;
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[0].id, pushed[0].message_id);
    assert!(queen.ack(&messages[0]).await?.success);
    assert!(queen.renew(&messages[1], Some(60)).await?);
    // The second fails once more than it may; the third comes again each time, and then is alone.
    assert!(queen.nack(&messages[1], "no stock").await?.success);
    let messages = pop().await?;
    assert_eq!(messages.len(), 2);
    assert!(queen.nack(&messages[0], "still no stock").await?.dlq);
    let messages = pop().await?;
    assert_eq!(messages[0].data, json!({"n": 2}));
    let settled = queen.ack_all(&messages).await?;
    assert!(
        settled
            .iter()
            .all(|result| result.success && result.lease_released)
    );

    let dead = orders.dlq(Some(10), None).await?;
    assert_eq!(dead.total, 1);
    assert_eq!(dead.messages[0].data, json!({"n": 1}));
    assert_eq!(dead.messages[0].error.as_deref(), Some("still no stock"));
    queen.queue("orders").delete().await?;
    assert_eq!(orders.dlq(Some(10), None).await?.total, 0);
    Ok(())
}

#[tokio::test]
async fn consumers_of_the_rust_client_share_a_queue_and_miss_nothing() -> Result<()> {
    const RECORDS: u64 = 300;
    let (_stack, queen) = connected().await?;
    let seen: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let consumer = queen
        .queue("events")
        .group("workers")
        .subscription_mode(SubscriptionMode::All)
        .concurrency(4)
        .batch(10)
        .limit(RECORDS)
        .poll_timeout(Duration::from_secs(1));
    let consume = {
        let seen = Arc::clone(&seen);
        consumer.consume(move |message| {
            let n = message.data.as_u64().unwrap_or(u64::MAX);
            if let Ok(mut seen) = seen.lock() {
                seen.push((message.partition, n));
            }
            async { Ok::<_, Infallible>(()) }
        })
    };
    let produce = async {
        for n in 0..RECORDS {
            let queue = queen.queue("events").partition(format!("p{}", n % 7));
            queue.push(n).await?;
        }
        anyhow::Ok(())
    };
    let (summary, produced) = tokio::join!(consume, produce);
    produced?;
    let summary = summary?;
    assert_eq!((summary.acked, summary.nacked), (RECORDS, 0));
    assert_eq!(summary.stopped_by, StopReason::Limit);
    let mut seen = seen
        .lock()
        .map_err(|_| anyhow::anyhow!("a handler panicked"))?
        .clone();
    let of = |partition: &str| -> Vec<u64> {
        let own = seen.iter().filter(|(name, _)| name == partition);
        own.map(|(_, n)| *n).collect()
    };
    for partition in 0..7 {
        assert!(of(&format!("p{partition}")).is_sorted(), "{seen:?}");
    }
    seen.sort_by_key(|(_, n)| *n);
    assert!(seen.iter().map(|(_, n)| *n).eq(0..RECORDS));
    Ok(())
}

const PYTHON: &str = r#"
import asyncio, sys
from queen import Queen

async def main():
    async with Queen(sys.argv[1]) as queen:
        await queen.queue("orders").config({"lease_time": 30, "retry_limit": 1}).create()
        items = [{"data": {"n": n}, "transactionId": f"order-{n}"} for n in range(4)]
        results = await queen.queue("orders").partition("eu").push(items)
        assert [r["status"] for r in results] == ["queued"] * 4, results
        repeated = []
        async def on_duplicate(duplicates, error):
            repeated.extend(duplicates)
        await queen.queue("orders").partition("eu").push(items[:1]).on_duplicate(on_duplicate)
        assert len(repeated) == 1, repeated

        def billing():
            return queen.queue("orders").partition("eu").group("billing").subscription_mode("all").batch(10)
        messages = await billing().pop()
        assert [m["data"]["n"] for m in messages] == [0, 1, 2, 3], messages
        group = {"group": "billing"}
        acked = await queen.ack(messages[0], True, group)
        assert acked["success"], acked
        renewed = await queen.renew(messages[1])
        assert renewed["success"] and renewed["newExpiresAt"], renewed
        failed = await queen.ack(messages[1], False, {**group, "error": "no stock"})
        assert failed["success"], failed
        messages = await billing().pop()
        assert [m["data"]["n"] for m in messages] == [1, 2, 3], messages
        dead = await queen.ack(messages[0], False, {**group, "error": "still no stock"})
        assert dead["success"] and dead["dlq"], dead

        seen = []
        async def handle(message):
            seen.append(message["data"]["n"])
        await billing().each().limit(2).idle_millis(20000).consume(handle)
        assert seen == [2, 3], seen
        letters = await queen.queue("orders").dlq("billing").get()
        assert letters["total"] == 1, letters
        assert letters["messages"][0]["data"] == {"n": 1}, letters
        assert letters["messages"][0]["errorMessage"] == "still no stock", letters

        # Without a group: everybody's backlog, settled in one call.
        messages = await queen.queue("orders").batch(10).pop()
        assert len(messages) == 4, messages
        acked = await queen.ack(messages)
        assert acked["success"] and all(r["success"] for r in acked["results"]), acked
        await queen.delete_consumer_group("billing")
        await queen.queue("orders").delete()
        assert (await queen.queue("orders").dlq().get())["total"] == 0

asyncio.run(main())
"#;

#[tokio::test]
async fn the_python_client_configures_pushes_pops_and_settles() -> Result<()> {
    let stack = Stack::start(StackOptions::default()).await?;
    let output = tokio::process::Command::new(python())
        .args(["-c", PYTHON, &stack.broker.url()])
        .output()
        .await
        .with_context(|| format!("run {}; scripts/setup run makes it", python().display()))?;
    ensure!(
        output.status.success(),
        "the client failed: {}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
