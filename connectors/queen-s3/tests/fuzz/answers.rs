//! The small answers of a broker, against the published types.

use queen_protocol::kv::{KvOperation, KvResult};
use queen_protocol::partitions::ChangedResponse;
use queen_s3::broker::wire::{read_changed, read_kv, read_queues};
use queen_s3::broker::{ChangedRequest, EntryError, KvAnswer};
use queen_s3::time::Micros;
use serde_json::Value;

use super::{Verdict, ensure};

const CURSOR: &str = "page-2";

fn short(error: &impl std::fmt::Display) -> Result<Verdict, String> {
    let said = error.to_string();
    ensure(said.len() < 200_000, || {
        format!("a long error: {} bytes", said.len())
    })?;
    Ok(Verdict::Refused)
}

pub fn discovery(body: &[u8]) -> Result<Verdict, String> {
    let request = ChangedRequest {
        queue: "orders".into(),
        since: None,
        after: Some(CURSOR.into()),
        limit: 1_000,
    };
    let changed = match read_changed(Some(&request), body) {
        Ok(changed) => changed,
        Err(error) => return short(&error),
    };
    ensure(changed.next.as_deref() != Some(CURSOR), || {
        "a pass without end".into()
    })?;
    ensure(changed.next.as_deref() != Some(""), || {
        "an empty cursor".into()
    })?;
    for listed in &changed.partitions {
        let lasts = -1..i64::MAX;
        let sane = lasts.contains(&listed.last_offset) && listed.log_start >= 0;
        ensure(sane, || format!("{listed:?}"))?;
    }
    // The published types are stricter in what may be absent, and agree where they read it.
    let Ok(published) = serde_json::from_slice::<ChangedResponse>(body) else {
        return Ok(Verdict::Accepted);
    };
    let entry = match published.entries.as_slice() {
        [entry] => entry,
        other => return Err(format!("accepted with {} entries", other.len())),
    };
    ensure(entry.queue == "orders", || {
        format!("of the queue {}", entry.queue)
    })?;
    ensure(
        Micros::parse(&published.safe_time) == Ok(changed.safe_time),
        || format!("safeTime {} is {}", published.safe_time, changed.safe_time),
    )?;
    ensure(published.safe_time_degraded == changed.degraded, || {
        "degraded differs".into()
    })?;
    let error = entry.error.as_deref().map(EntryError::from_code);
    ensure(error == changed.error, || {
        format!("{error:?} is {:?}", changed.error)
    })?;
    let next = entry.next.as_deref().filter(|next| !next.is_empty());
    ensure(next == changed.next.as_deref(), || {
        format!("{next:?} is {:?}", changed.next)
    })?;
    ensure(entry.partitions.len() == changed.partitions.len(), || {
        format!("{} partitions", changed.partitions.len())
    })?;
    for (published, listed) in entry.partitions.iter().zip(&changed.partitions) {
        let id = published.id.as_deref().and_then(|id| id.parse().ok());
        let same = *published.name == *listed.name
            && published.last_offset == listed.last_offset
            && published.log_start == listed.log_start
            && id == listed.id;
        ensure(same, || format!("{published:?} is {listed:?}"))?;
    }
    Ok(Verdict::Accepted)
}

/// The batch that every answer of the corpus answers.
fn batch() -> [KvOperation; 2] {
    [
        KvOperation::get("queen-s3", "s3:default:orders:lease"),
        KvOperation::get("queen-s3", "s3:default:orders:committed"),
    ]
}

pub fn key_value(body: &[u8]) -> Result<Verdict, String> {
    let operations = batch();
    let answer = match read_kv(&operations, body) {
        Ok(answer) => answer,
        Err(error) => return short(&error),
    };
    let results = match answer {
        KvAnswer::Done(results) => results,
        KvAnswer::RolledBack(_) => {
            let said = String::from_utf8_lossy(body);
            let plain = said.contains("kv_precondition") || said.contains('\\');
            ensure(plain, || "rolled back without the reason".into())?;
            return Ok(Verdict::Accepted);
        }
    };
    ensure(results.len() == operations.len(), || {
        format!("{} results", results.len())
    })?;
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Ok(Verdict::Accepted);
    };
    ensure(value["ok"] != Value::Bool(false), || {
        "done although ok is false".into()
    })?;
    for (at, (result, operation)) in results.iter().zip(&operations).enumerate() {
        let published: KvResult = serde_json::from_value(value["results"][at].clone())
            .map_err(|error| format!("accepted what queen-protocol refuses: {error}"))?;
        ensure(*result == published, || {
            format!("{published:?} is {result:?}")
        })?;
        ensure(result.key.is_none() || result.key == operation.key, || {
            format!("of another key: {result:?}")
        })?;
    }
    Ok(Verdict::Accepted)
}

pub fn queues(body: &[u8]) -> Result<Verdict, String> {
    let names = match read_queues(body) {
        Ok(names) => names,
        Err(error) => return short(&error),
    };
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Ok(Verdict::Accepted);
    };
    let listed = value["queues"].as_array().ok_or("no list of queues")?;
    let same = listed.len() == names.len()
        && listed
            .iter()
            .zip(&names)
            .all(|(queue, name)| queue["name"] == **name);
    ensure(same, || format!("{names:?}"))?;
    Ok(Verdict::Accepted)
}
