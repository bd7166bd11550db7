//! Whether a lake holds exactly what it must, judged from the bucket alone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{Lake, Ledger, WAIT, check, eventually};
use serde_json::Value;

/// How often a lake that does not hold everything yet is looked at: a look may be a copy.
const LOOK: Duration = Duration::from_millis(250);

/// Waits until the manifests of `queue` tell of as many records as `log` has, and then holds the
/// lake to the log: every record once, with its payload's bytes, in objects that the manifests
/// name, in windows that tile time.
///
/// # Errors
///
/// Names the records, objects or windows that are wrong.
pub async fn settled(lake: &Lake, queue: &str, log: &Ledger) -> Result<()> {
    let told = |manifests: &[Value]| manifests.iter().filter_map(|m| m["records"].as_u64()).sum();
    let wait = eventually(WAIT, async || {
        let records: u64 = told(&lake.manifests(queue).unwrap_or_default());
        if records >= log.len() as u64 {
            return Ok(Some(()));
        }
        tokio::time::sleep(LOOK).await;
        Ok(None)
    });
    let waited = wait.await;
    let verdict = check(log, &lake.records(queue)?);
    ensure!(
        verdict.is_exact(),
        "the lake of {queue} differs from its log:\n{verdict}"
    );
    waited.with_context(|| format!("the manifests of {queue} do not tell of every record"))?;
    let manifests = lake.manifests(queue)?;
    assert_windows_tile(&manifests)?;
    let named: BTreeSet<&str> = manifests
        .iter()
        .flat_map(|manifest| manifest["objects"].as_array().into_iter().flatten())
        .filter_map(|object| object["key"].as_str())
        .collect();
    for object in lake.objects(queue)? {
        ensure!(
            named.contains(object.key.as_str()),
            "no manifest names {}",
            object.key
        );
    }
    Ok(())
}

/// Checks that windows are numbered from 1 without a gap and that none begins before the former
/// pointer: together they tile the time that the pointer has passed.
pub fn assert_windows_tile(manifests: &[Value]) -> Result<()> {
    let mut end = None;
    for (number, manifest) in (1_u64..).zip(manifests) {
        let field = |name: &str| {
            manifest[name]
                .as_i64()
                .with_context(|| format!("window {number}: no {name}"))
        };
        ensure!(
            manifest["k"] == number,
            "window {number} is missing, {} follows",
            manifest["k"]
        );
        let (start, former) = (field("tStart")?, field("prevTEnd")?);
        ensure!(
            former <= start,
            "window {number} begins at {start}, before {former}"
        );
        ensure!(
            end.is_none_or(|end| end <= former),
            "window {number} overlaps the former one"
        );
        ensure!(start < field("tEnd")?, "window {number} is empty time");
        end = Some(field("tEnd")?);
    }
    Ok(())
}
