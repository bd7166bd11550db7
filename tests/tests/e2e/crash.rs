//! A sink that dies without warning at any moment, while records come in.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{Lake, Ledger, SinkOptions};
use queen_e2e::{events, settled};

use crate::stack_with;

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
    let mut rng = fastrand::Rng::with_seed(SEED);
    let stack = stack_with(&["orders"]).await?;
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
}
