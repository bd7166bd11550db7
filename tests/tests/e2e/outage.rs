//! A bucket or a broker that is away for a while: the sink lags and never drops.

use anyhow::Result;
use queen_dev::{Ledger, Sink, SinkOptions, WAIT, eventually};
use queen_e2e::{events, settled};

use crate::at_each_store;

/// Waits until the sink has met at least `count` failures of `metric` with that label.
async fn failures(sink: &Sink, metric: &str, label: (&str, &str), count: f64) -> Result<()> {
    let met = async || {
        let value = sink.metrics().await?.get(metric, Some(label));
        Ok(value.filter(|value| *value >= count))
    };
    eventually(WAIT, met).await.map(|_| ())
}

#[tokio::test]
async fn a_bucket_that_is_away_delays_a_window_and_loses_nothing() -> Result<()> {
    at_each_store(&["orders"], async |mut stack| {
        let sink = stack.sink(&SinkOptions::new("orders"))?;
        let lake = stack.lake("default");
        let mut pushed = stack
            .client()
            .push_all(events("orders", 0, 500, 10), |_| {})
            .await?;
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;

        stack.s3.stop().await;
        pushed.extend(
            stack
                .client()
                .push_all(events("orders", 1, 500, 10), |_| {})
                .await?,
        );
        failures(&sink, "queen_s3_s3_requests_total", ("code", "0"), 3.0).await?;
        assert_eq!(sink.status(), None, "the sink gave up");
        stack.s3.start_again().await?;
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        assert_eq!(sink.status(), None);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_broker_that_is_away_is_waited_for_and_loses_nothing() -> Result<()> {
    at_each_store(&["orders"], async |mut stack| {
        let sink = stack.sink(&SinkOptions::new("orders"))?;
        let lake = stack.lake("default");
        let mut pushed = stack
            .client()
            .push_all(events("orders", 0, 500, 10), |_| {})
            .await?;
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;

        pushed.extend(
            stack
                .client()
                .push_all(events("orders", 1, 500, 10), |_| {})
                .await?,
        );
        let mark = sink.logs().mark();
        stack.broker.kill();
        sink.logs()
            .wait_for(mark, WAIT, |line| line.contains("WARN"))
            .await?;
        assert_eq!(sink.status(), None, "the sink gave up");

        stack.broker.start_again().await?;
        pushed.extend(
            stack
                .client()
                .push_all(events("orders", 2, 500, 10), |_| {})
                .await?,
        );
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        assert_eq!(sink.status(), None);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_the_broker_loses_nothing() -> Result<()> {
    at_each_store(&["orders"], async |mut stack| {
        let sink = stack.sink(&SinkOptions::new("orders"))?;
        let pushed = stack
            .client()
            .push_all(events("orders", 0, 500, 10), |_| {})
            .await?;
        let lake = stack.lake("default");
        settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
        tokio::task::block_in_place(|| {
            stack.postgres.kill();
            stack.postgres.restart()
        })?;
        let client = stack.client();
        let again = async || Ok(client.push(events("orders", 1, 500, 10)).await.ok());
        let more = eventually(WAIT, again).await?;

        // A push whose answer was lost may be in the log twice: the log says what the lake must hold.
        let log = client.read_log("orders").await?;
        assert!(log.len() >= pushed.len() + more.len());
        settled(&lake, "orders", &log).await?;
        assert_eq!(sink.status(), None, "the sink gave up");
        Ok(())
    })
    .await
}
