//! Reads a fetch answer without copying its records.
//!
//! The body is checked to be UTF-8 once, and then scanned once: every value that the sink keeps
//! stays where it is, and a record costs one [`RecordIndex`] and no allocation.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memchr;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;
use uuid::Uuid;

use super::Ids;
use super::gather::{Gather, Place, excerpt};
use crate::broker::{EntryError, FetchAnswer, FetchRequest};
use crate::memory::MemoryBudget;
use crate::time::Micros;

/// Why a fetch answer does not read.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// It is no JSON of the fetch answer's shape. The text is cut: it holds what the answer said.
    #[error("{}", excerpt(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// It reads, but contradicts its request or itself.
    #[error("{0}")]
    Contradiction(String),
}

/// Reads the answer `body` to `request`.
///
/// Unknown fields, any field order, and absent `records` or `error` are taken. Fails when it is
/// not aligned with the request, when an offset is below the one asked for or does not rise, or
/// when the bounds of a log are impossible. From a record on whose `ts` falls within its entry the
/// records are left out, as if the answer had ended there: the next one begins with it.
///
/// A watermark at or below the last record of its entry is raised above it: a broker may read the
/// bounds before the records, and a record proves that its offset was assigned.
pub fn decode_fetch(
    request: &FetchRequest,
    body: Bytes,
    budget: &Arc<MemoryBudget>,
) -> Result<FetchAnswer, DecodeError> {
    // Index entries hold positions as u32.
    if u32::try_from(body.len()).is_err() {
        return Err(DecodeError::Contradiction(format!(
            "the answer is {} bytes long, more than any fetch call may return",
            body.len()
        )));
    }
    let text = body.clone();
    let mut scan = Scan::new(request, &text);
    match (scan.read(&text), scan.contradiction) {
        (Ok(()), _) => {}
        (Err(_), Some(text)) => return Err(DecodeError::Contradiction(text)),
        (Err(error), None) => return Err(error.into()),
    }
    let answer = scan.gather.finish(body, budget);
    answer.map_err(DecodeError::Contradiction)
}

/// The state of one scan: what was found, and what the next value must agree with.
struct Scan<'a> {
    gather: Gather<'a>,
    /// Address of the body's first byte, from which borrowed slices tell their position.
    base: usize,
    /// The `ts` text read last and its value: records of one segment share it, so that most need no
    /// calendar arithmetic.
    ts: (&'a str, Micros),
    /// Why the scan was stopped, when it was not for the JSON.
    contradiction: Option<String>,
}

impl<'a> Scan<'a> {
    fn new(request: &'a FetchRequest, body: &'a [u8]) -> Self {
        Self {
            gather: Gather::new(request),
            base: body.as_ptr() as usize,
            ts: ("", Micros::MIN),
            contradiction: None,
        }
    }

    fn read(&mut self, body: &'a [u8]) -> Result<(), serde_json::Error> {
        let text = std::str::from_utf8(body).map_err(de::Error::custom)?;
        // From checked text: from bytes, every raw value would be checked for UTF-8 once more.
        let mut deserializer = serde_json::Deserializer::from_str(text);
        AnswerSeed(self).deserialize(&mut deserializer)?;
        deserializer.end()
    }

    /// Stops the scan where the answer contradicts its request or itself.
    fn agree<T, E: de::Error>(&mut self, outcome: Result<T, String>) -> Result<T, E> {
        outcome.map_err(|text| {
            self.contradiction = Some(text);
            E::custom("contradiction")
        })
    }

    /// Position and length in the body of a slice borrowed from it.
    fn locate(&self, slice: &str) -> Place {
        let start = slice.as_ptr() as usize - self.base;
        // Both fit: the body's length does, and the slice lies within it.
        (start as u32, slice.len() as u32)
    }

    fn parse_ts<E: de::Error>(&mut self, raw: &'a RawValue) -> Result<Micros, E> {
        let text = raw.get();
        if text != self.ts.0 {
            self.ts = (text, timestamp(text).map_err(E::custom)?);
        }
        Ok(self.ts.1)
    }

    fn record<E: de::Error>(&mut self, fields: RecordFields<'a>) -> Result<(), E> {
        let offset = fields.offset.ok_or_else(|| E::missing_field("offset"))?;
        let transaction_id = fields
            .transaction_id
            .ok_or_else(|| E::missing_field("transactionId"))?;
        let payload = fields.payload.ok_or_else(|| E::missing_field("payload"))?;
        let ts = fields.ts.ok_or_else(|| E::missing_field("ts"))?;

        let transaction_id = unquoted(transaction_id)
            .ok_or_else(|| E::custom("a record's transactionId is not a string"))?;
        if memchr(b'\\', transaction_id.as_bytes()).is_some() {
            self.gather.met(Ids::Escaped);
        }
        let ts = self.parse_ts(ts)?;
        let places = (self.locate(transaction_id), self.locate(payload.get()));
        let taken = self.gather.record(offset, ts, places.0, places.1);
        self.agree(taken)
    }
}

impl<'a> Scan<'a> {
    /// Makes ready for the records of the next entry.
    fn begin_entry<E: de::Error>(&mut self) -> Result<(), E> {
        let begun = self.gather.begin_entry();
        self.agree(begun)
    }

    fn end_entry<E: de::Error>(&mut self, fields: EntryFields<'a>) -> Result<(), E> {
        let wanted = self.gather.wanted();
        let wanted = self.agree(wanted)?;
        let queue = fields.queue.ok_or_else(|| E::missing_field("queue"))?;
        let partition = fields
            .partition
            .ok_or_else(|| E::missing_field("partition"))?;
        for (found, wanted, what) in [
            (queue, wanted.0, "queue"),
            (partition, wanted.1, "partition"),
        ] {
            if !names(found, wanted) {
                let place = self.gather.place();
                let text = format!("{place}: the {what} is {}", excerpt(found.get()));
                return self.agree(Err(text));
            }
        }
        let error = match fields.error {
            Some(raw) => {
                let code: Option<String> = serde_json::from_str(raw.get()).map_err(E::custom)?;
                code.map(|code| EntryError::from_code(&code))
            }
            None => None,
        };
        let bounds = (fields.high_watermark, fields.log_start);
        let (high_watermark, log_start) = match (bounds, &error) {
            (
                (Some(high_watermark), Some(log_start)),
                None | Some(EntryError::OffsetOutOfRange),
            ) => (high_watermark, log_start),
            ((None, _), None | Some(EntryError::OffsetOutOfRange)) => {
                return Err(E::missing_field("highWatermark"));
            }
            ((_, None), None | Some(EntryError::OffsetOutOfRange)) => {
                return Err(E::missing_field("logStartOffset"));
            }
            // Other errors promise no bounds: -1 and nothing at all are common.
            ((high_watermark, log_start), Some(_)) => {
                let log_start = log_start.unwrap_or(0).max(0);
                (high_watermark.unwrap_or(0).max(log_start), log_start)
            }
        };
        // An id of another shape tells nothing that this version could compare.
        let life = fields
            .id
            .and_then(|id| serde_json::from_str::<Cow<'_, str>>(id.get()).ok())
            .and_then(|id| Uuid::try_parse(&id).ok());
        let ended = self
            .gather
            .end_entry(high_watermark, log_start, life, error);
        self.agree(ended)
    }
}

/// Whether a JSON string, or a number, is the name `wanted`.
fn names(raw: &RawValue, wanted: &str) -> bool {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => match unquoted(raw) {
            Some(name) if !name.contains('\\') => name == wanted,
            _ => serde_json::from_str::<String>(text).is_ok_and(|name| name == wanted),
        },
        Some(b'0'..=b'9' | b'-') => text == wanted,
        _ => false,
    }
}

/// What stands between the quotes of a JSON string, escapes and all; `None` for other values.
fn unquoted(raw: &RawValue) -> Option<&str> {
    raw.get().strip_prefix('"')?.strip_suffix('"')
}

/// The instant that a JSON string names.
fn timestamp(text: &str) -> Result<Micros, String> {
    let escaped = text.contains('\\');
    let plain = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match plain {
        Some(plain) if !escaped => Micros::parse(plain).map_err(|error| error.to_string()),
        _ => {
            let owned: String = serde_json::from_str(text).map_err(|error| error.to_string())?;
            Micros::parse(&owned).map_err(|error| error.to_string())
        }
    }
}

/// Puts a field's value in its place; a field given twice is refused, as no reading of it is right.
fn once<T, E: de::Error>(slot: &mut Option<T>, value: T, name: &'static str) -> Result<(), E> {
    match slot.replace(value) {
        Some(_) => Err(E::duplicate_field(name)),
        None => Ok(()),
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum AnswerField {
    Entries,
    #[serde(other)]
    Unknown,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum EntryField {
    Queue,
    Partition,
    Records,
    HighWatermark,
    LogStartOffset,
    Id,
    Error,
    #[serde(other)]
    Unknown,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum RecordField {
    Offset,
    TransactionId,
    Payload,
    Ts,
    #[serde(other)]
    Unknown,
}

#[derive(Default)]
struct EntryFields<'a> {
    queue: Option<&'a RawValue>,
    partition: Option<&'a RawValue>,
    high_watermark: Option<i64>,
    log_start: Option<i64>,
    id: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

#[derive(Default)]
struct RecordFields<'a> {
    offset: Option<i64>,
    transaction_id: Option<&'a RawValue>,
    payload: Option<&'a RawValue>,
    ts: Option<&'a RawValue>,
}

struct AnswerSeed<'s, 'a>(&'s mut Scan<'a>);
struct EntriesSeed<'s, 'a>(&'s mut Scan<'a>);
struct EntrySeed<'s, 'a>(&'s mut Scan<'a>);
struct RecordsSeed<'s, 'a>(&'s mut Scan<'a>);
struct RecordSeed<'s, 'a>(&'s mut Scan<'a>);

/// A seed that is its own visitor.
macro_rules! seed {
    ($seed:ident, $method:ident, $expecting:literal, $($visit:item)+) => {
        impl<'a> DeserializeSeed<'a> for $seed<'_, 'a> {
            type Value = ();

            fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.$method(self)
            }
        }

        impl<'a> Visitor<'a> for $seed<'_, 'a> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }

            $($visit)+
        }
    };
}

seed! {
    AnswerSeed,
    deserialize_map,
    "a fetch answer",
    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let mut entries = None;
        while let Some(field) = map.next_key()? {
            match field {
                AnswerField::Entries => {
                    map.next_value_seed(EntriesSeed(self.0))?;
                    once(&mut entries, (), "entries")?;
                }
                AnswerField::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        entries.ok_or_else(|| de::Error::missing_field("entries"))
    }
}

seed! {
    EntriesSeed,
    deserialize_seq,
    "the entries of a fetch answer",
    fn visit_seq<S: SeqAccess<'a>>(self, mut seq: S) -> Result<(), S::Error> {
        while seq.next_element_seed(EntrySeed(self.0))?.is_some() {}
        Ok(())
    }
}

seed! {
    EntrySeed,
    deserialize_map,
    "an entry of a fetch answer",
    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        self.0.begin_entry()?;
        let mut fields = EntryFields::default();
        let mut records = None;
        while let Some(field) = map.next_key()? {
            match field {
                EntryField::Queue => once(&mut fields.queue, map.next_value()?, "queue")?,
                EntryField::Partition => {
                    once(&mut fields.partition, map.next_value()?, "partition")?;
                }
                EntryField::Records => {
                    map.next_value_seed(RecordsSeed(self.0))?;
                    once(&mut records, (), "records")?;
                }
                EntryField::HighWatermark => {
                    once(
                        &mut fields.high_watermark,
                        map.next_value()?,
                        "highWatermark",
                    )?;
                }
                EntryField::LogStartOffset => {
                    once(&mut fields.log_start, map.next_value()?, "logStartOffset")?;
                }
                EntryField::Id => once(&mut fields.id, map.next_value()?, "id")?,
                EntryField::Error => once(&mut fields.error, map.next_value()?, "error")?,
                EntryField::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        self.0.end_entry(fields)
    }
}

seed! {
    RecordsSeed,
    deserialize_option,
    "the records of an entry",
    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<S: SeqAccess<'a>>(self, mut seq: S) -> Result<(), S::Error> {
        while seq.next_element_seed(RecordSeed(self.0))?.is_some() {}
        Ok(())
    }
}

seed! {
    RecordSeed,
    deserialize_map,
    "a record",
    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let mut fields = RecordFields::default();
        while let Some(field) = map.next_key()? {
            match field {
                RecordField::Offset => once(&mut fields.offset, map.next_value()?, "offset")?,
                RecordField::TransactionId => {
                    once(
                        &mut fields.transaction_id,
                        map.next_value()?,
                        "transactionId",
                    )?;
                }
                RecordField::Payload => once(&mut fields.payload, map.next_value()?, "payload")?,
                RecordField::Ts => once(&mut fields.ts, map.next_value()?, "ts")?,
                RecordField::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        self.0.record(fields)
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
