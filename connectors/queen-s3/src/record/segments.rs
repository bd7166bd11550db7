//! Reads a fetch answer of compressed segments: the blocks as the broker's log has them.
//!
//! A broker that offers [`SEGMENTS`] neither decompresses nor renders what it sends, and nothing is
//! parsed here: a record is found by its lengths. Integers are little-endian, instants are
//! microseconds since the Unix epoch.
//!
//! ```text
//! "QSEG" | u8 version | u32 entries
//! per entry:   u16 queue length, queue | u16 partition length, partition
//!              i64 high watermark | i64 log start | life | segments | u8 0 | u8 error length, error
//! life:        16 bytes, the UUID of the partition's life, all 0 where there is none
//! per segment: u8 1 | i64 base offset | i64 ts | u32 records | u32 raw bytes
//!              u32 block length, block
//! a block is one zstd frame of:  u8 1 | records
//! per record:  u32 id length | u32 payload length | id, a JSON string | payload, JSON text
//! ```
//!
//! Version 1 has no life. It is what a broker answers that does not know the parameter `version`, by
//! which the sink asks for the other.
//!
//! An empty payload stands for `null`; that a payload is JSON was checked when it was pushed, and the
//! frame's checksum that it still is what was pushed. Segments are whole, so the first one may begin below the
//! offset asked for. A block that does not decompress to what its segment says is what a broker
//! that renders its answers reports as `UNREADABLE`, and reads as that here.

use std::io::Cursor;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::value::RawValue;
use uuid::Uuid;
use zstd::zstd_safe::{DCtx, get_frame_content_size};

use super::gather::{Gather, excerpt};
use super::{DecodeError, Ids};
use crate::broker::{EntryError, FetchAnswer, FetchRequest};
use crate::limits::FETCH_BODY_BYTES;
use crate::memory::MemoryBudget;
use crate::time::Micros;

/// Media type of such an answer, by which the sink asks for it.
pub const SEGMENTS: &str = "application/vnd.queen.segments";

const MAGIC: &[u8] = b"QSEG";
/// Versions that are read.
const WITHOUT_LIVES: u8 = 1;
const WITH_LIVES: u8 = 2;
const SEGMENT: u8 = 1;
const NO_MORE_SEGMENTS: u8 = 0;
/// Layout of a block's content.
const LAYOUT: u8 = 1;
/// What a record takes beside its id and payload.
const RECORD_HEAD: usize = 8;
/// What an empty payload stands for, and is read as.
const NULL: &[u8] = b"null";

/// Reads the answer `body` to `request`. What it takes and refuses is what
/// [`decode_fetch`](super::decode_fetch) does.
pub fn decode_segments(
    request: &FetchRequest,
    body: &[u8],
    budget: &Arc<MemoryBudget>,
) -> Result<FetchAnswer, DecodeError> {
    read(request, body, budget).map_err(DecodeError::Contradiction)
}

fn read(
    request: &FetchRequest,
    body: &[u8],
    budget: &Arc<MemoryBudget>,
) -> Result<FetchAnswer, String> {
    let entries = outline(body)?;
    let segments = || entries.iter().flat_map(|entry| &entry.segments);
    // Room for `null` after a segment that has an empty payload.
    let length: usize = segments()
        .map(|segment| segment.raw_bytes + NULL.len())
        .sum();
    if length > FETCH_BODY_BYTES {
        return Err(format!(
            "its segments are {length} bytes long, more than any fetch call may return"
        ));
    }
    let hold = budget.hold(length);
    let mut gather = Gather::new(request);
    let mut content = Content {
        bytes: budget.buffer(length),
        decompressor: DCtx::create(),
    };
    for entry in &entries {
        gather.begin_entry()?;
        let wanted = gather.wanted()?;
        if (entry.queue, entry.partition) != (wanted.0.as_bytes(), wanted.1.as_bytes()) {
            let named = |name| excerpt(&String::from_utf8_lossy(name));
            return Err(format!(
                "{}: the answer is of queue {}, partition {}",
                gather.place(),
                named(entry.queue),
                named(entry.partition)
            ));
        }
        let mut error = entry.error.as_deref().map(EntryError::from_code);
        for segment in &entry.segments {
            if !content.append(segment, &mut gather)? {
                error = Some(EntryError::Unreadable);
                break;
            }
        }
        let (mut high_watermark, mut log_start) = (entry.high_watermark, entry.log_start);
        if !matches!(error, None | Some(EntryError::OffsetOutOfRange)) {
            // Other errors promise no bounds.
            log_start = log_start.max(0);
            high_watermark = high_watermark.max(log_start);
        }
        gather.end_entry(high_watermark, log_start, entry.life, error)?;
    }
    let answer = gather.finish(budget.share(content.bytes), budget);
    // The batch counts the content from here on.
    drop(hold);
    answer
}

/// An entry as it lies in the body.
struct Entry<'a> {
    queue: &'a [u8],
    partition: &'a [u8],
    high_watermark: i64,
    log_start: i64,
    life: Option<Uuid>,
    segments: Vec<Segment<'a>>,
    error: Option<String>,
}

/// A segment as it lies in the body.
struct Segment<'a> {
    base_offset: i64,
    ts: Micros,
    records: usize,
    raw_bytes: usize,
    block: &'a [u8],
}

/// Finds entries and segments, and decompresses nothing.
fn outline(body: &[u8]) -> Result<Vec<Entry<'_>>, String> {
    let mut reader = Reader(body);
    if reader.take(MAGIC.len())? != MAGIC {
        return Err("it does not begin as segments do".into());
    }
    let lives = match reader.u8()? {
        WITHOUT_LIVES => false,
        WITH_LIVES => true,
        version => {
            return Err(format!(
                "its segments have the layout {version}, which this version does not know"
            ));
        }
    };
    let count = reader.u32()?;
    // What is counted has to be there: nothing is reserved on a count's word.
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(reader.entry(lives)?);
    }
    if reader.0.is_empty() {
        Ok(entries)
    } else {
        Err(format!("{} bytes follow its last entry", reader.0.len()))
    }
}

/// What is left of a body.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("it is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("it is cut short")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<usize, String> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn i64(&mut self) -> Result<i64, String> {
        self.array().map(i64::from_le_bytes)
    }

    fn name(&mut self) -> Result<&'a [u8], String> {
        let length = u16::from_le_bytes(self.array()?);
        self.take(length.into())
    }

    fn life(&mut self) -> Result<Option<Uuid>, String> {
        let life = Uuid::from_bytes(self.array()?);
        Ok(Some(life).filter(|life| !life.is_nil()))
    }

    fn entry(&mut self, lives: bool) -> Result<Entry<'a>, String> {
        let mut entry = Entry {
            queue: self.name()?,
            partition: self.name()?,
            high_watermark: self.i64()?,
            log_start: self.i64()?,
            life: match lives {
                true => self.life()?,
                false => None,
            },
            segments: Vec::new(),
            error: None,
        };
        loop {
            match self.u8()? {
                NO_MORE_SEGMENTS => break,
                SEGMENT => entry.segments.push(self.segment()?),
                other => return Err(format!("{other} where a segment or none must come")),
            }
        }
        let length = self.u8()?;
        if length > 0 {
            let code = self.take(length.into())?;
            entry.error = Some(String::from_utf8_lossy(code).into_owned());
        }
        Ok(entry)
    }

    fn segment(&mut self) -> Result<Segment<'a>, String> {
        let base_offset = self.i64()?;
        let ts = self.i64()?;
        if Timestamp::from_microsecond(ts).is_err() {
            return Err(format!("the ts {ts} is no instant"));
        }
        let records = self.u32()?;
        let raw_bytes = self.u32()?;
        let length = self.u32()?;
        let segment = Segment {
            base_offset,
            ts: Micros(ts),
            records,
            raw_bytes,
            block: self.take(length)?,
        };
        if records.saturating_mul(RECORD_HEAD) >= raw_bytes
            || base_offset < 0
            || base_offset.checked_add(records as i64).is_none()
        {
            return Err(format!(
                "a segment of {records} records from offset {base_offset} in {raw_bytes} bytes"
            ));
        }
        Ok(segment)
    }
}

/// The decompressed segments, one after the other.
struct Content {
    bytes: Vec<u8>,
    decompressor: DCtx<'static>,
}

impl Content {
    /// Appends the records of `segment` from the offset asked for; `false` when it is damaged, and
    /// then nothing of it is taken.
    fn append(&mut self, segment: &Segment<'_>, gather: &mut Gather<'_>) -> Result<bool, String> {
        let start = self.bytes.len();
        let ids = match self.decompress(segment) {
            true => checked(&self.bytes[start..], segment.records),
            false => None,
        };
        let Some(ids) = ids else {
            self.bytes.truncate(start);
            return Ok(false);
        };
        gather.met(ids);
        gather.reserve(segment.records);
        let mut null = None;
        let mut at = start + 1;
        let from = gather.from();
        for offset in (segment.base_offset..).take(segment.records) {
            let (id_length, payload_length) = lengths(&self.bytes[at..]);
            let id = at + RECORD_HEAD;
            let payload = id + id_length;
            at = payload + payload_length;
            if offset < from {
                continue;
            }
            let payload = if payload_length > 0 {
                (payload as u32, payload_length as u32)
            } else {
                let null = *null.get_or_insert_with(|| {
                    self.bytes.extend_from_slice(NULL);
                    self.bytes.len() - NULL.len()
                });
                (null as u32, NULL.len() as u32)
            };
            // Every position fits: so does the content's length.
            let id = (id as u32 + 1, id_length as u32 - 2);
            gather.record(offset, segment.ts, id, payload)?;
        }
        Ok(true)
    }

    /// Decompresses a block behind what is there, into memory that is reserved.
    fn decompress(&mut self, segment: &Segment<'_>) -> bool {
        let start = self.bytes.len();
        let length = get_frame_content_size(segment.block).ok().flatten();
        if length != Some(segment.raw_bytes as u64) {
            return false;
        }
        let mut output = Cursor::new(&mut self.bytes);
        output.set_position(start as u64);
        let written = self.decompressor.decompress(&mut output, segment.block);
        written == Ok(segment.raw_bytes) && self.bytes.len() == start + segment.raw_bytes
    }
}

/// Lengths of the id and the payload of the record that `bytes` begin with.
fn lengths(bytes: &[u8]) -> (usize, usize) {
    let number = |at: usize| {
        let bytes = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes) as usize
    };
    (number(0), number(4))
}

/// What the ids of `content` are, if it is a layout byte and `records` records of text, to its last
/// byte.
fn checked(content: &[u8], records: usize) -> Option<Ids> {
    let Some((&LAYOUT, mut rest)) = content.split_first() else {
        return None;
    };
    let mut ids = Ids::Plain;
    for _ in 0..records {
        let (head, _) = rest.split_at_checked(RECORD_HEAD)?;
        let (id, payload) = lengths(head);
        let (record, after) = rest[RECORD_HEAD..].split_at_checked(id + payload)?;
        if is_escaped(&record[..id])? {
            ids = Ids::Escaped;
        }
        // Of both at once: an id that ends with a quote does not share a character with a payload.
        if !record.is_ascii() && std::str::from_utf8(record).is_err() {
            return None;
        }
        rest = after;
    }
    rest.is_empty().then_some(ids)
}

/// Whether `id` has an escape, if it is a JSON string.
fn is_escaped(id: &[u8]) -> Option<bool> {
    let [b'"', inner @ .., b'"'] = id else {
        return None;
    };
    let special = |byte: &u8| (*byte < b' ') | (*byte == b'"') | (*byte == b'\\');
    // Without a branch in it the loop takes many bytes at a time.
    if !inner.iter().fold(false, |any, byte| any | special(byte)) {
        return Some(false);
    }
    let read = serde_json::from_slice::<&RawValue>(id);
    read.is_ok().then_some(true)
}

#[cfg(test)]
#[path = "segments_tests.rs"]
mod tests;
