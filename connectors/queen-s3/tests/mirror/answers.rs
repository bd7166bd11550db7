//! The bodies of fetch answers, in each form that brokers have.

use std::fmt::Write as _;

use queen_s3::broker::Name;
use queen_s3::time::Micros;
use serde_json::Value;
use uuid::Uuid;

use crate::describe::{described, lz4};
use crate::log::{Payload, Segment};

/// How a broker answers fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As JSON.
    Json,
    /// In compressed segments.
    Segments,
    /// In compressed segments whose blocks are described.
    Described,
    /// The same, with blocks of LZ4.
    Lz4,
    /// In compressed segments whose descriptions are not true.
    Misdescribed,
}

impl Form {
    /// Every true one.
    pub const ALL: [Self; 4] = [Self::Json, Self::Segments, Self::Described, Self::Lz4];
}

/// What one entry of a fetch is answered with.
pub struct Entry<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The partition.
    pub partition: &'a Name,
    /// First offset asked for.
    pub from: i64,
    /// Segments with something at or above it.
    pub segments: Vec<Segment>,
    /// Which of those cannot be read.
    pub damaged: Option<usize>,
    /// Next offset to be assigned.
    pub end: i64,
    /// First offset still held.
    pub log_start: i64,
    /// The life that it is of, from a broker that tells.
    pub life: Option<Uuid>,
    /// An error's code.
    pub error: Option<&'static str>,
}

impl Form {
    /// The answer with `entries`, whose records hold what `payload` says.
    pub fn body(self, entries: &[Entry<'_>], payload: Payload, tells_lives: bool) -> Vec<u8> {
        match self {
            Self::Json => json(entries, payload).into_bytes(),
            Self::Segments => segments(
                entries,
                payload,
                if tells_lives { 2 } else { 1 },
                tells_lives,
            ),
            Self::Described => segments(entries, payload, 3, tells_lives),
            Self::Lz4 => segments(entries, payload, 4, tells_lives),
            Self::Misdescribed => segments(entries, payload, MISDESCRIBED, tells_lives),
        }
    }
}

/// The version of segments that are described, with descriptions of a record that is not there.
const MISDESCRIBED: u8 = 5;

fn json(entries: &[Entry<'_>], payload: Payload) -> String {
    let quote = |text: &str| Value::from(text).to_string();
    let mut body = String::from("{\"entries\":[");
    for (index, entry) in entries.iter().enumerate() {
        let _ = write!(
            body,
            "{}{{\"queue\":{},\"partition\":{},\"records\":[",
            if index > 0 { "," } else { "" },
            quote(entry.queue),
            quote(entry.partition),
        );
        let mut comma = "";
        let readable = entry.damaged.unwrap_or(entry.segments.len());
        for segment in &entry.segments[..readable] {
            for offset in segment.first.max(entry.from)..segment.end() {
                let _ = write!(
                    body,
                    "{comma}{{\"offset\":{offset},\"transactionId\":\"t-{offset}\",\"payload\":{},\
                     \"ts\":\"{}\"}}",
                    payload(entry.partition, offset),
                    Micros(segment.ts)
                );
                comma = ",";
            }
        }
        let (end, log_start) = (entry.end, entry.log_start);
        let _ = write!(
            body,
            "],\"highWatermark\":{end},\"logStartOffset\":{log_start}"
        );
        if let Some(life) = entry.life {
            let _ = write!(body, ",\"id\":\"{life}\"");
        }
        let unreadable = entry.damaged.map(|_| "UNREADABLE");
        if let Some(error) = entry.error.or(unreadable) {
            let _ = write!(body, ",\"error\":\"{error}\"");
        }
        body.push('}');
    }
    body.push_str("]}");
    body
}

fn segments(entries: &[Entry<'_>], payload: Payload, version: u8, tells_lives: bool) -> Vec<u8> {
    let mut body = b"QSEG".to_vec();
    body.push(version.min(4));
    number(&mut body, entries.len());
    for entry in entries {
        for name in [entry.queue, entry.partition] {
            let length = u16::try_from(name.len()).expect("a name of a test is short");
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(name.as_bytes());
        }
        body.extend_from_slice(&entry.end.to_le_bytes());
        body.extend_from_slice(&entry.log_start.to_le_bytes());
        if version > 1 {
            let life = entry.life.filter(|_| tells_lives).unwrap_or_default();
            body.extend_from_slice(life.as_bytes());
        }
        for (place, segment) in entry.segments.iter().enumerate() {
            let records = records(segment, |offset| payload(entry.partition, offset));
            let content = content(&records);
            let there = match entry.damaged {
                Some(damaged) if damaged == place => &content[1..],
                _ => &content[..],
            };
            let frame = match version {
                4 => lz4(there),
                _ => zstd::bulk::compress(there, 1).expect("room in memory"),
            };
            let block = if version > 2 {
                let texts = records
                    .iter()
                    .map(|(id, payload)| (id.as_str(), payload.as_str()));
                let untrue = (version == MISDESCRIBED).then_some(("", ""));
                described(texts.chain(untrue), &frame, &frame)
            } else {
                frame
            };
            body.push(1);
            body.extend_from_slice(&segment.first.to_le_bytes());
            body.extend_from_slice(&segment.ts.to_le_bytes());
            number(&mut body, segment.records as usize);
            number(&mut body, content.len());
            number(&mut body, block.len());
            body.extend_from_slice(&block);
        }
        let error = entry.error.unwrap_or_default();
        body.extend_from_slice(&[0, error.len() as u8]);
        body.extend_from_slice(error.as_bytes());
    }
    body
}

/// Ids and payloads as they are stored.
fn records(segment: &Segment, payload: impl Fn(i64) -> String) -> Vec<(String, String)> {
    let record = |offset| {
        // What was pushed as null is stored as nothing.
        let payload = Some(payload(offset)).filter(|payload| payload != "null");
        (format!("\"t-{offset}\""), payload.unwrap_or_default())
    };
    (segment.first..segment.end()).map(record).collect()
}

fn content(records: &[(String, String)]) -> Vec<u8> {
    let mut content = vec![1];
    for (id, payload) in records {
        number(&mut content, id.len());
        number(&mut content, payload.len());
        content.extend_from_slice(id.as_bytes());
        content.extend_from_slice(payload.as_bytes());
    }
    content
}

fn number(body: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("an answer of a test is small");
    body.extend_from_slice(&number.to_le_bytes());
}
