//! A sink that dies without warning, at every step and at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{Lake, Ledger, SinkOptions, WAIT};
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

/// Lets a sink die at `point`, starts another and holds the lake to the log. Gives the number of
/// objects that were visible when the sink was dead.
async fn dies_at(point: &str) -> Result<usize> {
    let stack = stack_with(&["orders"]).await?;
    let pushed = stack
        .client()
        .push_all(events("orders", 0, 800, 12), |_| {})
        .await?;
    let log = Ledger::of(&pushed, "orders")?;
    let options = SinkOptions::new("orders").with("QUEEN_S3_CRASH_AT", point);
    let mut sink = stack.sink(&options)?;
    let status = sink.ended(WAIT).await?;
    ensure!(!status.success(), "the sink ended well at {point}");

    let lake = stack.lake("default");
    let before = visible(&lake, "orders")?;
    let intent = stack
        .client()
        .kv_get("queen-s3", "s3:default:orders:intent")
        .await?
        .context("no intent was written")?;
    sink.start_again(&[("QUEEN_S3_CRASH_AT", "never")])?;
    settled(&lake, "orders", &log).await?;
    let after = visible(&lake, "orders")?;
    unchanged(&before, &after)?;

    let bounds = format!(
        "w-{:010}-{:016}-{:016}.",
        intent["k"].as_u64().unwrap_or_default(),
        intent["tStart"].as_u64().unwrap_or_default(),
        intent["tEnd"].as_u64().unwrap_or_default()
    );
    ensure!(
        after.keys().any(|key| key.contains(&bounds)),
        "no object of the intent {bounds}"
    );
    Ok(before.len())
}

#[tokio::test]
async fn a_death_after_the_intent_is_redone_at_its_bounds() -> Result<()> {
    assert_eq!(dies_at("after_intent").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_death_in_the_middle_of_an_upload_leaves_nothing_to_see_and_is_redone() -> Result<()> {
    assert_eq!(dies_at("mid_upload").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_death_between_upload_and_manifest_keeps_the_objects_bytes() -> Result<()> {
    assert_eq!(dies_at("after_upload").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_death_between_manifest_and_commit_keeps_the_objects_bytes() -> Result<()> {
    assert_eq!(dies_at("before_commit").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_death_after_the_commit_repeats_nothing() -> Result<()> {
    assert_eq!(dies_at("after_commit").await?, 1);
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
