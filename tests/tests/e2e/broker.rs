//! The broker alone: what it acknowledged is in the log, whatever happens to it.

use anyhow::Result;
use queen_dev::Ledger;
use queen_e2e::events;

use crate::stack_with;

#[tokio::test]
async fn a_log_is_read_back_as_it_was_pushed() -> Result<()> {
    let stack = stack_with(&["orders"]).await?;
    let pushed = stack
        .client()
        .push_all(events("orders", 0, 5_000, 1_200), |_| {})
        .await?;
    let log = stack.client().read_log("orders").await?;
    assert_eq!(log, Ledger::of(&pushed, "orders")?);
    Ok(())
}

#[tokio::test]
async fn a_broker_killed_between_pushes_keeps_every_acknowledged_one() -> Result<()> {
    let mut stack = stack_with(&["orders"]).await?;
    let mut pushed = Vec::new();
    for round in 0..4 {
        pushed.extend(stack.client().push(events("orders", round, 200, 3)).await?);
        stack.broker.kill();
        stack.broker.start_again().await?;
    }
    let log = stack.client().read_log("orders").await?;
    assert_eq!(log, Ledger::of(&pushed, "orders")?);
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_the_broker_well_and_it_comes_back_on_the_same_port() -> Result<()> {
    let mut stack = stack_with(&["orders"]).await?;
    let url = stack.broker.url();
    let pushed = stack.client().push(events("orders", 0, 10, 2)).await?;
    stack.broker.stop().await?;
    stack.broker.start_again().await?;
    assert_eq!(stack.broker.url(), url);
    assert_eq!(
        stack.client().read_log("orders").await?,
        Ledger::of(&pushed, "orders")?
    );
    Ok(())
}
