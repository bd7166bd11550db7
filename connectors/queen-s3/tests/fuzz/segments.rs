//! Fetch answers of compressed segments, and what is inside their blocks.

use std::sync::Arc;

use bytes::Bytes;
use queen_s3::broker::{EntryError, FetchAnswer, FetchEntry, FetchRequest};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Chunk, Mark, Trust, decode_segments};
use serde_json::value::RawValue;

use super::describe::{described, lz4};
use super::{Verdict, ensure, told};

/// What every answer of the corpus is an answer to.
const WANTED: [(&str, i64); 2] = [("p", 7), ("q \u{e9}", 0)];
/// Greatest content that is decompressed of an input of the fuzzer.
const CONTENT_BYTES: usize = 256 << 20;

fn request(wanted: &[(&str, i64)]) -> FetchRequest {
    let entries = wanted.iter().map(|(partition, offset)| FetchEntry {
        partition: (*partition).into(),
        offset: *offset,
        max_bytes: 1 << 20,
    });
    FetchRequest {
        queue: "orders".into(),
        entries: entries.collect(),
        max_wait_ms: 0,
    }
}

/// A record as it was read: offset, id between its quotes, payload.
type Told = (i64, Vec<u8>, Vec<u8>);

/// The records of `answer`; `None` where a block is not what its description says.
fn read(answer: &FetchAnswer) -> Option<Vec<Told>> {
    let records = told(&Chunk::whole(&answer.batch)).ok()?.into_iter();
    Some(
        records
            .map(|(offset, _, id, payload)| (offset, id, payload))
            .collect(),
    )
}

fn is_text(id: &[u8], payload: &[u8]) -> bool {
    let quoted = [b"\"", id, b"\""].concat();
    serde_json::from_slice::<&RawValue>(&quoted).is_ok() && std::str::from_utf8(payload).is_ok()
}

pub fn whole_or_refused(body: &[u8]) -> Result<Verdict, String> {
    let budget = MemoryBudget::new(0);
    let (asked, bytes, trust) = (
        request(&WANTED),
        Bytes::copy_from_slice(body),
        Arc::default(),
    );
    let answer = match decode_segments(&asked, bytes, &budget, &trust) {
        Ok(answer) => answer,
        Err(error) => {
            let said = error.to_string();
            ensure(said.len() < 2_000, || format!("a long error: {said}"))?;
            return Ok(Verdict::Refused);
        }
    };
    ensure(budget.used() <= CONTENT_BYTES, || {
        format!("it holds {} bytes", budget.used())
    })?;
    let version = body[4];
    for entry in &answer.entries {
        let told = version > 1 || entry.life.is_none();
        ensure(told, || format!("version {version} tells {entry:?}"))?;
    }
    for (offset, id, payload) in read(&answer).unwrap_or_default() {
        ensure(is_text(&id, &payload), || {
            format!("record {offset} is no text: {id:?}, {payload:?}")
        })?;
    }
    for (entry, (_, from)) in answer.entries.iter().zip(WANTED) {
        let records = Chunk::whole(&answer.batch).part(entry.records.clone());
        let records: Vec<Mark> = records.marks().collect();
        let rises = records.windows(2).all(|two| {
            let [first, second] = two else { return true };
            first.offset < second.offset && first.ts <= second.ts
        });
        let within = records
            .iter()
            .all(|record| (from..entry.high_watermark).contains(&record.offset));
        ensure(rises && within, || format!("{entry:?}: {records:?}"))?;
    }
    Ok(Verdict::Accepted)
}

/// Reads the content of a block by the words of its layout: `None` where it is none.
fn expected(content: &[u8], records: usize) -> Option<Vec<Told>> {
    let mut rest = content.strip_prefix(b"\x01")?;
    let mut found = Vec::new();
    for offset in 0..records as i64 {
        let id_length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let payload_length = u32::from_le_bytes(rest.get(4..8)?.try_into().ok()?) as usize;
        let id = rest.get(8..8 + id_length)?;
        let payload = rest.get(8 + id_length..8 + id_length + payload_length)?;
        rest = &rest[8 + id_length + payload_length..];
        let id = id.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if !is_text(id, payload) {
            return None;
        }
        let payload = if payload.is_empty() { b"null" } else { payload };
        found.push((offset, id.to_vec(), payload.to_vec()));
    }
    rest.is_empty().then_some(found)
}

/// Input: the number of records, and the content of a block.
pub fn content_as_laid_out(input: &[u8]) -> Result<Verdict, String> {
    let Some((&records, content)) = input.split_first() else {
        return Ok(Verdict::Refused);
    };
    let records = usize::from(records);
    let expected = expected(content, records);
    let frame = zstd::bulk::compress(content, 1).map_err(|error| error.to_string())?;
    let texts = expected.iter().flatten().map(|(_, id, payload)| {
        let id = std::str::from_utf8(id).unwrap_or_default();
        (id, if payload == b"null" { "" } else { "x" })
    });
    let stored_null = content.windows(4).any(|bytes| bytes == b"null");
    let texts: Vec<_> = texts.collect();
    let blocks = [frame.clone(), lz4(content)].map(|frame| {
        let texts = texts.iter().copied();
        described(texts, &frame, &frame)
    });
    let trust = Arc::default();
    let plain = as_laid_out(records, content, &frame, expected.as_deref(), &trust);
    // What is empty cannot be told here from what is stored as `null`.
    for block in blocks.iter().filter(|_| !stored_null) {
        let verdict = as_laid_out(records, content, block, expected.as_deref(), &trust)?;
        ensure(plain == Ok(verdict), || {
            format!("{plain:?}, described {verdict:?}")
        })?;
    }
    plain
}

fn as_laid_out(
    records: usize,
    content: &[u8],
    block: &[u8],
    expected: Option<&[Told]>,
    trust: &Arc<Trust>,
) -> Result<Verdict, String> {
    let mut body = b"QSEG\x04\x01\0\0\0\x06\0orders\x01\0p".to_vec();
    body.extend_from_slice(&1_000_i64.to_le_bytes());
    body.extend_from_slice(&0_i64.to_le_bytes());
    body.extend_from_slice(&[0; 16]);
    body.push(1);
    body.extend_from_slice(&0_i64.to_le_bytes());
    body.extend_from_slice(&1_788_516_221_918_204_i64.to_le_bytes());
    for number in [records, content.len(), block.len()] {
        body.extend_from_slice(&(number as u32).to_le_bytes());
    }
    body.extend_from_slice(block);
    body.extend_from_slice(b"\0\0");

    let body = Bytes::from(body);
    let decode = || {
        decode_segments(
            &request(&[("p", 0)]),
            body.clone(),
            &MemoryBudget::new(0),
            trust,
        )
    };
    let mut decoded = decode();
    if decoded.as_ref().is_ok_and(|answer| read(answer).is_none()) {
        // Its description is not believed any more.
        decoded = decode();
    }
    let answer = match decoded {
        Ok(answer) => answer,
        // More records than the content could hold.
        Err(error) => {
            ensure(expected.is_none(), || format!("refused: {error}"))?;
            return Ok(Verdict::Refused);
        }
    };
    match (answer.entries[0].error.as_ref(), expected) {
        (None, Some(expected)) => {
            let told = read(&answer).ok_or("it is believed still")?;
            ensure(told == expected, || {
                format!("{told:?} instead of {expected:?}")
            })?;
            Ok(Verdict::Accepted)
        }
        (Some(EntryError::Unreadable), None) => Ok(Verdict::Refused),
        (error, expected) => Err(format!("{error:?}, and {expected:?} was expected")),
    }
}
