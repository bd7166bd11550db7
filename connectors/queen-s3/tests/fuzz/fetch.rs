//! Fetch answers, against a reading by serde_json alone.

use bytes::Bytes;
use queen_protocol::FetchResponse;
use queen_s3::broker::{EntryError, FetchAnswer, FetchEntry, FetchRequest};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Chunk, RecordIndex, decode_fetch};
use queen_s3::time::Micros;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Verdict, ensure, told};

/// What every answer of the corpus is an answer to.
const WANTED: [(&str, i64); 3] = [("p", 7), ("q \u{e9}", 0), ("3", 0)];

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    entries: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    queue: String,
    #[serde(borrow)]
    partition: &'a RawValue,
    #[serde(borrow, default)]
    records: Option<Vec<Record<'a>>>,
    #[serde(default, deserialize_with = "present")]
    high_watermark: Option<i64>,
    #[serde(default, deserialize_with = "present")]
    log_start_offset: Option<i64>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<String>,
}

/// A number that may be left out, and is no null where it is not.
fn present<'de, D: Deserializer<'de>>(number: D) -> Result<Option<i64>, D::Error> {
    i64::deserialize(number).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    offset: i64,
    #[serde(borrow)]
    transaction_id: &'a RawValue,
    #[serde(borrow)]
    payload: &'a RawValue,
    ts: String,
}

/// What is to be found: for each entry its records, bounds, life and error.
type Found = Vec<(
    Vec<(i64, String, String, Micros)>,
    i64,
    i64,
    Option<Uuid>,
    Option<EntryError>,
)>;

/// Reads `body` step by step, by the words of the API: `None` where it is no answer.
fn expected(body: &[u8]) -> Option<Found> {
    let answer: Answer<'_> = serde_json::from_str(std::str::from_utf8(body).ok()?).ok()?;
    if answer.entries.len() != WANTED.len() {
        return None;
    }
    let mut found = Vec::new();
    for (entry, (partition, offset)) in answer.entries.into_iter().zip(WANTED) {
        let name = entry.partition.get();
        let named = match serde_json::from_str::<String>(name) {
            Ok(name) => name == partition,
            // A number is the name that its digits spell.
            Err(_) => name == partition,
        };
        if entry.queue != "orders" || !named {
            return None;
        }
        let mut last = offset - 1;
        let mut records = Vec::new();
        let (mut last_ts, mut fell) = (Micros::MIN, false);
        for record in entry.records.into_iter().flatten() {
            let id = record.transaction_id.get();
            let id = id.strip_prefix('"')?.strip_suffix('"')?;
            let ts = Micros::parse(&record.ts).ok()?;
            if record.offset <= last || record.offset == i64::MAX {
                return None;
            }
            fell |= ts < last_ts;
            if !fell {
                last = record.offset;
                last_ts = ts;
                let payload = record.payload.get().to_owned();
                records.push((record.offset, id.to_owned(), payload, ts));
            }
        }
        let error = entry.error.as_deref().map(EntryError::from_code);
        let bounded = matches!(error, None | Some(EntryError::OffsetOutOfRange));
        let (mut high, low) = match (entry.high_watermark, entry.log_start_offset) {
            (Some(high), Some(low)) if bounded => (high, low),
            _ if bounded => return None,
            (high, low) => {
                let low = low.unwrap_or(0).max(0);
                (high.unwrap_or(0).max(low), low)
            }
        };
        if low < 0 || high < low {
            return None;
        }
        if let Some((last, ..)) = records.last() {
            high = high.max(last.saturating_add(1));
        }
        let id = entry.id.and_then(|id| serde_json::from_str(id.get()).ok());
        let life = id.and_then(|id: String| id.parse().ok());
        found.push((records, high, low, life, error));
    }
    Some(found)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the decoder checked the whole body")
}

fn read(answer: &FetchAnswer) -> Found {
    let entries = answer.entries.iter().map(|entry| {
        let chunk = Chunk::whole(&answer.batch).part(entry.records.clone());
        let records = told(&chunk).expect("nothing is compressed").into_iter();
        let records =
            records.map(|(offset, ts, id, payload)| (offset, text(id), text(payload), ts));
        let records = records.collect();
        let error = entry.error.clone();
        let bounds = (entry.high_watermark, entry.log_start);
        (records, bounds.0, bounds.1, entry.life, error)
    });
    entries.collect()
}

pub fn as_serde_json_reads_it(body: &[u8]) -> Result<Verdict, String> {
    let entries = WANTED.map(|(partition, offset)| FetchEntry {
        partition: partition.into(),
        offset,
        max_bytes: 1 << 20,
    });
    let request = FetchRequest {
        queue: "orders".into(),
        entries: entries.into(),
        max_wait_ms: 0,
    };
    let budget = MemoryBudget::new(0);
    let decoded = decode_fetch(&request, Bytes::copy_from_slice(body), &budget);
    let expected = expected(body);
    let answer = match decoded {
        Ok(answer) => answer,
        Err(error) => {
            ensure(expected.is_none(), || format!("refused: {error}"))?;
            let said = error.to_string();
            ensure(said.len() < 2_000, || format!("a long error: {said}"))?;
            return Ok(Verdict::Refused);
        }
    };
    let told = read(&answer);
    let expected = expected.ok_or_else(|| format!("accepted as {told:?}"))?;
    ensure(told == expected, || {
        format!("{told:?} instead of {expected:?}")
    })?;

    // A record takes more of the body than of the index.
    let most = 2 * body.len() + size_of::<RecordIndex>();
    ensure(budget.used() <= most, || {
        format!("it holds {} bytes", budget.used())
    })?;

    // The published types know less (they parse payloads), and agree where they read it.
    if let Ok(published) = serde_json::from_slice::<FetchResponse>(body) {
        for (entry, (records, ..)) in published.entries.iter().zip(&told) {
            let offsets = records.iter().map(|record| record.0);
            let same = entry
                .records
                .iter()
                .map(|record| record.offset)
                .zip(offsets);
            ensure(same.into_iter().all(|(a, b)| a == b), || {
                format!("queen-protocol reads {entry:?}")
            })?;
        }
    }
    Ok(Verdict::Accepted)
}
