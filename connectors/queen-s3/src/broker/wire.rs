//! The bodies of Queen's API, rendered without owned copies and read tolerantly: unknown fields
//! are passed over, optional ones may be absent or null.

use std::borrow::Cow;

use queen_protocol::kv::{KvOperation, KvResult};
use serde::ser::{Serialize, SerializeSeq, SerializeStruct, Serializer};
use serde::{Deserialize, Serialize as DeriveSerialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Changed, ChangedRequest, EntryError, FetchRequest, KvAnswer, ListedPartition};
use crate::time::Micros;

/// Why an answer of the small calls does not read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no JSON of its shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It reads, but contradicts its request or itself.
    #[error("{0}")]
    Contradiction(String),
}

/// The body of a fetch call.
pub fn fetch_body(request: &FetchRequest) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&FetchBody(request))
}

/// The body of a discovery call; without a queue the batch is empty and answers `safeTime` alone.
pub fn changed_body(request: Option<&ChangedRequest>) -> Result<Vec<u8>, serde_json::Error> {
    // `lastWriteAt` never lies before the epoch, and an earlier `since` may not print as a date.
    let since = request
        .and_then(|r| r.since)
        .map(|since| since.max(Micros::ZERO).to_string());
    let entry = request.map(|request| ChangedEntryBody {
        queue: &request.queue,
        since: since.as_deref(),
        after: request.after.as_deref(),
        limit: request.limit,
    });
    serde_json::to_vec(&Entries {
        entries: entry.as_slice(),
    })
}

/// The body of a key/value batch.
pub fn kv_body(operations: &[KvOperation]) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Operations { operations })
}

/// Reads a discovery answer to `request`.
pub fn read_changed(request: Option<&ChangedRequest>, body: &[u8]) -> Result<Changed, Unreadable> {
    let answer: ChangedAnswer<'_> = serde_json::from_slice(body)?;
    let safe_time =
        Micros::parse(&answer.safe_time).map_err(|error| contradiction(error.to_string()))?;
    let mut changed = Changed {
        safe_time,
        degraded: answer.safe_time_degraded.unwrap_or(false),
        partitions: Vec::new(),
        next: None,
        error: None,
    };
    let Some(request) = request else {
        return Ok(changed);
    };

    let mut entries = answer.entries.unwrap_or_default();
    let (Some(entry), true) = (entries.pop(), entries.is_empty()) else {
        return Err(contradiction(
            "one queue was asked for and not one entry came back".into(),
        ));
    };
    if entry.queue.is_some_and(|queue| queue != *request.queue) {
        return Err(contradiction(
            "the entry is of another queue than was asked for".into(),
        ));
    }
    changed.error = entry.error.as_deref().map(EntryError::from_code);
    changed.partitions = entry
        .partitions
        .unwrap_or_default()
        .into_iter()
        .map(ChangedPartition::listed)
        .collect::<Result<_, _>>()?;
    changed.next = entry
        .next
        .filter(|next| !next.is_empty())
        .map(Cow::into_owned);
    if changed.next.is_some() && changed.next == request.after {
        return Err(contradiction(
            "the cursor of the next page is the one of this page".into(),
        ));
    }
    Ok(changed)
}

/// Reads the answer to a key/value batch.
pub fn read_kv(operations: &[KvOperation], body: &[u8]) -> Result<KvAnswer, Unreadable> {
    let answer: KvEnvelope<'_> = serde_json::from_slice(body)?;
    if answer.ok == Some(false) || answer.reason.as_deref() == Some(KV_PRECONDITION) {
        return match answer.reason.as_deref() {
            Some(KV_PRECONDITION) => Ok(KvAnswer::RolledBack(answer.failed_index.or(answer.index))),
            reason => Err(contradiction(format!(
                "ok is false for the reason {:?}, which this version does not know",
                reason
                    .unwrap_or_default()
                    .chars()
                    .take(100)
                    .collect::<String>()
            ))),
        };
    }
    let Some(results) = answer.results else {
        return Err(contradiction("there are no results".into()));
    };
    if results.len() != operations.len() {
        return Err(contradiction(format!(
            "{} operations were sent and {} results came back",
            operations.len(),
            results.len()
        )));
    }
    let mut read = Vec::with_capacity(results.len());
    for (at, (operation, result)) in operations.iter().zip(results).enumerate() {
        let result: KvResult = serde_json::from_str(result.get())?;
        // A fence adopts the version of a result, so a result must belong to its operation.
        if result.key.is_some() && result.key != operation.key {
            return Err(contradiction(format!(
                "result {at} is of another key than its operation"
            )));
        }
        read.push(result);
    }
    Ok(KvAnswer::Done(read))
}

/// Reads the list of queues.
pub fn read_queues(body: &[u8]) -> Result<Vec<String>, Unreadable> {
    let answer: QueuesAnswer = serde_json::from_slice(body)?;
    Ok(answer.queues.into_iter().map(|queue| queue.name).collect())
}

const KV_PRECONDITION: &str = "kv_precondition";

fn contradiction(text: String) -> Unreadable {
    Unreadable::Contradiction(text)
}

struct FetchBody<'a>(&'a FetchRequest);

impl Serialize for FetchBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waits = self.0.max_wait_ms > 0;
        let mut body = serializer.serialize_struct("FetchRequest", 1 + usize::from(waits))?;
        body.serialize_field("entries", &FetchEntries(self.0))?;
        if waits {
            body.serialize_field("maxWaitMs", &self.0.max_wait_ms)?;
        }
        body.end()
    }
}

struct FetchEntries<'a>(&'a FetchRequest);

impl Serialize for FetchEntries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_seq(Some(self.0.entries.len()))?;
        for entry in &self.0.entries {
            entries.serialize_element(&FetchEntryBody {
                queue: &self.0.queue,
                partition: &entry.partition,
                offset: entry.offset,
                max_bytes: entry.max_bytes,
            })?;
        }
        entries.end()
    }
}

#[derive(DeriveSerialize)]
#[serde(rename_all = "camelCase")]
struct FetchEntryBody<'a> {
    queue: &'a str,
    partition: &'a str,
    offset: i64,
    max_bytes: u32,
}

#[derive(DeriveSerialize)]
struct Entries<'a, T> {
    entries: &'a [T],
}

#[derive(DeriveSerialize)]
struct ChangedEntryBody<'a> {
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a str>,
    limit: u32,
}

#[derive(DeriveSerialize)]
struct Operations<'a> {
    operations: &'a [KvOperation],
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangedAnswer<'a> {
    #[serde(borrow)]
    safe_time: Cow<'a, str>,
    safe_time_degraded: Option<bool>,
    #[serde(borrow)]
    entries: Option<Vec<ChangedEntry<'a>>>,
}

#[derive(Deserialize)]
struct ChangedEntry<'a> {
    #[serde(borrow)]
    queue: Option<Cow<'a, str>>,
    #[serde(borrow)]
    partitions: Option<Vec<ChangedPartition<'a>>>,
    #[serde(borrow)]
    next: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangedPartition<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    last_offset: i64,
    log_start: i64,
    #[serde(borrow)]
    last_write_at: Option<&'a RawValue>,
}

impl ChangedPartition<'_> {
    fn listed(self) -> Result<ListedPartition, Unreadable> {
        // No offset follows the greatest one.
        let lasts = -1..i64::MAX;
        if !lasts.contains(&self.last_offset) || self.log_start < 0 {
            return Err(contradiction(format!(
                "partition {:?} has lastOffset {} and logStart {}",
                self.name, self.last_offset, self.log_start
            )));
        }
        Ok(ListedPartition {
            name: self.name.as_ref().into(),
            // An id of another shape tells nothing that this version could compare.
            id: self
                .id
                .and_then(|id| serde_json::from_str::<Cow<'_, str>>(id.get()).ok())
                .and_then(|id| Uuid::try_parse(&id).ok()),
            last_offset: self.last_offset,
            log_start: self.log_start,
            // Nor does a time of another shape.
            last_write_at: self
                .last_write_at
                .and_then(|at| serde_json::from_str::<Cow<'_, str>>(at.get()).ok())
                .and_then(|at| Micros::parse(&at).ok()),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KvEnvelope<'a> {
    ok: Option<bool>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
    failed_index: Option<usize>,
    index: Option<usize>,
    #[serde(borrow)]
    results: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct QueuesAnswer {
    queues: Vec<QueueName>,
}

#[derive(Deserialize)]
struct QueueName {
    name: String,
}
