//! A sink that the broker runs: one command, and the lake holds the log.

use anyhow::{Context, Result};
use queen_dev::{Broker, BrokerOptions, Ledger, SinkOptions, Stack, sink_binary};
use queen_e2e::{events, settled};

use crate::at_each_store;

/// A broker on the stack's database that embeds a sink for `queue`.
async fn embedding(stack: &Stack, queue: &str) -> Result<Broker> {
    let mut variables = stack.variables(&SinkOptions::new(queue));
    // The sink finds the broker that runs it by itself.
    variables.retain(|(name, _)| name != "QUEEN_URL");
    let program = sink_binary()?;
    let program = program.to_str().context("the sink's path is not text")?;
    variables.push(("QUEEN_S3_EMBEDDED".into(), "true".into()));
    variables.push(("QUEEN_S3_BIN".into(), program.into()));
    let logs = stack.dir().join("embedding");
    std::fs::create_dir_all(&logs)?;
    Broker::start(BrokerOptions { variables }, &stack.postgres, &logs).await
}

#[tokio::test]
async fn an_embedded_sink_mirrors_the_log_and_goes_on_after_each_end_of_its_broker() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        let mut broker = embedding(&stack, "orders").await?;
        let lake = stack.lake("default");
        let mut pushed = Vec::new();
        for round in 0..3 {
            let batch = events("orders", round, 500, 10);
            pushed.extend(broker.client().push_all(batch, |_| {}).await?);
            settled(&lake, "orders", &Ledger::of(&pushed, "orders")?).await?;
            if round == 0 {
                broker.stop().await?;
            } else {
                broker.kill();
            }
            broker.start_again().await?;
        }
        let log = broker.client().read_log("orders").await?;
        assert_eq!(log, Ledger::of(&pushed, "orders")?);
        Ok(())
    })
    .await
}
