//! What must hold once the faults are over.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use queen_dev::{Event, Lake, LakeRecord, Pushed, check, verify};
use queen_e2e::assert_windows_tile;

use super::producers::Ledger;
use super::stage::{LARGE, QUEUES, Stage, THRESHOLD_BYTES};

/// How long the lakes may take to hold everything. Longest is the way back of a sink whose
/// connection fell silent: it gives an upload up after one minute, and waits up to one more.
const DRAIN: Duration = Duration::from_secs(150);
/// How often the lakes are asked how far they are.
const LOOK: Duration = Duration::from_millis(200);

pub async fn judge(stage: &mut Stage, ledger: &Ledger) -> Result<()> {
    drained(stage).await?;
    for logs in stage.logs() {
        let text = logs.text()?;
        let panic = text.lines().find(|line| line.contains("panicked at"));
        ensure!(panic.is_none(), "{}: {panic:?}", logs.path().display());
    }
    let mut logs = BTreeMap::new();
    for queue in QUEUES {
        logs.insert(queue, stage.client().read_log(queue).await?);
    }
    for (sink, queues) in Stage::lakes() {
        let lake = stage.lake(sink)?;
        for queue in queues {
            let judged = || -> Result<()> {
                let records = lake.records(queue)?;
                let of_queue = |event: &&Event| event.queue == *queue;
                let acknowledged = ledger.acknowledged.iter();
                exactly_once(
                    acknowledged.filter(|pushed| pushed.event.queue == *queue),
                    ledger.unsettled.iter().filter(of_queue),
                    &records,
                )?;
                let verdict = check(&logs[queue], &records);
                ensure!(verdict.is_exact(), "it differs from the log:\n{verdict}");
                assert_windows_tile(&lake.manifests(queue)?)
            };
            judged().with_context(|| format!("the lake {sink} of {queue}"))?;
        }
    }
    went_up_in_parts(&stage.lake("east")?)?;
    let folder = stage.dir().join("logs");
    for (instance, variables) in stage.instances() {
        verify(variables, &folder, &format!("{instance}-verify"))
            .await
            .with_context(|| format!("the lake of {instance}"))?;
    }
    Ok(())
}

/// Checks that the run was what it says: objects of the large queue were too large for one request.
fn went_up_in_parts(lake: &Lake) -> Result<()> {
    let manifests = lake.manifests(LARGE)?;
    let objects = manifests
        .iter()
        .filter_map(|manifest| manifest["objects"].as_array());
    let bytes = objects
        .flatten()
        .filter_map(|object| object["bytes"].as_u64());
    let large = bytes.filter(|bytes| *bytes > THRESHOLD_BYTES).count();
    eprintln!("{large} objects went up in parts");
    ensure!(large > 0, "no object of {LARGE} went up in parts");
    Ok(())
}

/// Waits until every pointer has passed this moment, so that every record is below it.
async fn drained(stage: &mut Stage) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let now = i64::try_from(now)?;
    let begin = Instant::now();
    loop {
        stage.revive()?;
        let mut behind = Vec::new();
        for (sink, queues) in Stage::lakes() {
            for queue in queues {
                match stage.pointer(sink, queue).await {
                    Ok(Some(end)) if end >= now => {}
                    Ok(end) => behind.push(format!("{sink}/{queue} at {end:?} of {now}")),
                    // A node that is not back yet.
                    Err(error) => behind.push(format!("{sink}/{queue}: {error:#}")),
                }
            }
        }
        if behind.is_empty() {
            eprintln!("drained within {:.1} s", begin.elapsed().as_secs_f32());
            return Ok(());
        }
        if begin.elapsed() > DRAIN {
            bail!("behind after {} s: {}", DRAIN.as_secs(), behind.join(", "));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Checks by transaction ids that each acknowledged record is in the lake once, where the broker
/// said and as it was pushed; each unsettled one at most once; and nothing else.
fn exactly_once<'a>(
    acknowledged: impl Iterator<Item = &'a Pushed>,
    unsettled: impl Iterator<Item = &'a Event>,
    records: &[LakeRecord],
) -> Result<()> {
    let mut lake: HashMap<&str, &LakeRecord> = HashMap::with_capacity(records.len());
    for record in records {
        let former = lake.insert(&record.transaction_id, record);
        ensure!(
            former.is_none(),
            "{} is in {} and in {former:?}",
            record.transaction_id,
            record.key
        );
    }
    for pushed in acknowledged {
        let event = &pushed.event;
        let record = lake
            .remove(&*event.transaction_id)
            .with_context(|| format!("{pushed:?} was acknowledged and is missing"))?;
        let as_pushed = record.partition == event.partition
            && record.offset == pushed.offset
            && record.payload.get() == &*event.payload;
        ensure!(as_pushed, "{pushed:?} was acknowledged and is {record:?}");
    }
    for event in unsettled {
        if let Some(record) = lake.remove(&*event.transaction_id) {
            let as_pushed =
                record.partition == event.partition && record.payload.get() == &*event.payload;
            ensure!(as_pushed, "{event:?} was pushed and is {record:?}");
        }
    }
    ensure!(lake.is_empty(), "nobody pushed {:?}", lake.values().next());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str) -> Event {
        Event {
            queue: "q".into(),
            partition: "p".into(),
            transaction_id: id.into(),
            payload: "1".into(),
        }
    }

    fn record(id: &str, offset: i64) -> LakeRecord {
        serde_json::from_value(serde_json::json!({"partition": "p", "offset": offset,
            "transactionId": id, "ts": "t", "payload": 1}))
        .expect("a record's fields")
    }

    #[test]
    fn what_is_missing_doubled_moved_or_foreign_is_told() {
        let pushed = |id: &str, offset| Pushed {
            event: event(id),
            offset,
        };
        let acknowledged = [pushed("a", 0), pushed("b", 1)];
        let unsettled = [event("c")];
        let judge = |records: &[LakeRecord]| {
            exactly_once(acknowledged.iter(), unsettled.iter(), records)
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(judge(&[record("a", 0), record("b", 1)]), None);
        assert_eq!(
            judge(&[record("a", 0), record("b", 1), record("c", 2)]),
            None
        );
        for (lake, word) in [
            (vec![record("a", 0)], "missing"),
            (
                vec![record("a", 0), record("b", 1), record("b", 2)],
                "is in",
            ),
            (vec![record("a", 0), record("b", 5)], "acknowledged and is"),
            (
                vec![record("a", 0), record("b", 1), record("d", 2)],
                "nobody",
            ),
        ] {
            let told = judge(&lake).unwrap_or_default();
            assert!(told.contains(word), "{told}");
        }
    }
}
