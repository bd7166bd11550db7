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
//! a block is one frame of:  u8 1 | records
//! per record:  u32 id length | u32 payload length | id, a JSON string | payload, JSON text
//! ```
//!
//! Version 1 has no life; in version 3 a block may begin with a [description](super::packed) of itself, and in
//! version 4 its [frame](super::frame) may be one of LZ4 then. The sink asks for the latest, and a broker answers
//! the latest that it knows.
//!
//! An empty payload stands for `null`; that a payload is JSON was checked when it was pushed, and the
//! frame's checksum, or its description's, that it still is what was pushed. Segments are whole, so the
//! first one may begin below the offset asked for. A block that does not decompress to what its segment
//! says is what a broker that renders its answers reports as `UNREADABLE`, and reads as that here.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use super::DecodeError;
use super::frame::{content_bytes, decompress, is_zstd};
use super::gather::{Gather, excerpt};
use super::packed::{Block, Description, NULL, RECORD_HEAD, Trust, checked, described, each_place};
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
const DESCRIBED: u8 = 3;
const WITH_LZ4: u8 = 4;
const SEGMENT: u8 = 1;
const NO_MORE_SEGMENTS: u8 = 0;
/// Reads the answer `body` to `request`. What it takes and refuses is what
/// [`decode_fetch`](super::decode_fetch) does. Where every block is described, and `trust` is there,
/// the records stay compressed.
pub fn decode_segments(
    request: &FetchRequest,
    body: Bytes,
    budget: &Arc<MemoryBudget>,
    trust: &Arc<Trust>,
) -> Result<FetchAnswer, DecodeError> {
    read(request, body, budget, trust).map_err(DecodeError::Contradiction)
}

fn read(
    request: &FetchRequest,
    body: Bytes,
    budget: &Arc<MemoryBudget>,
    trust: &Arc<Trust>,
) -> Result<FetchAnswer, String> {
    let entries = outline(&body)?;
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
    let known = trust.is_there()
        && entries.iter().zip(&request.entries).all(|(entry, asked)| {
            let mut segments = entry.segments.iter();
            segments.all(|segment| segment.is_known(asked.offset))
        });
    let gather = Gather::new(request);
    if known {
        let base = body.as_ptr() as usize;
        let gather = gathered(gather, &entries, |gather, segment| {
            let start = segment.frame.as_ptr() as usize - base;
            let block = |first| Block {
                first,
                records: segment.records as u32,
                offset: segment.base_offset,
                ts: segment.ts,
                start: start as u32,
                len: segment.frame.len() as u32,
                raw_bytes: segment.raw_bytes as u32,
                empty_payloads: segment
                    .description
                    .as_ref()
                    .map_or(0, |described| described.empty_payloads),
            };
            gather.block(segment.base_offset, segment.ts, block)?;
            Ok(true)
        })?;
        return gather.finish_packed(body.clone(), trust, budget);
    }
    let hold = budget.hold(length);
    let mut content = Content(budget.buffer(length));
    let gather = gathered(gather, &entries, |gather, segment| {
        content.append(segment, gather)
    })?;
    let answer = gather.finish(budget.share(content.0), budget);
    // The batch counts the content from here on.
    drop(hold);
    answer
}

/// Gathers `entries`, whose segments `take` takes in; one that it says is damaged ends its entry.
fn gathered<'r>(
    mut gather: Gather<'r>,
    entries: &[Entry<'_>],
    mut take: impl FnMut(&mut Gather<'r>, &Segment<'_>) -> Result<bool, String>,
) -> Result<Gather<'r>, String> {
    for entry in entries {
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
            if !take(&mut gather, segment)? {
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
    Ok(gather)
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
    description: Option<Description>,
    frame: &'a [u8],
}

impl Segment<'_> {
    /// Whether its records from `from` on need not be decompressed before they are wanted.
    fn is_known(&self, from: i64) -> bool {
        let described = self.description.as_ref();
        let first = self.base_offset >= from && self.records > 0;
        // What the description does not cover may be as damaged as what it does.
        let whole = first && content_bytes(self.frame) == Some(self.raw_bytes as u64);
        whole
            && described.is_some_and(|description| {
                description.plain_ids
                    && description.empty_payloads as usize <= self.records
                    && description.is_of(self.frame)
            })
    }

    /// Whether damage of its frame would be told, by the frame itself or before it is read.
    fn is_sound(&self) -> bool {
        let described = self.description.as_ref();
        is_zstd(self.frame) || described.is_some_and(|described| described.is_of(self.frame))
    }
}

/// Finds entries and segments, and decompresses nothing.
fn outline(body: &[u8]) -> Result<Vec<Entry<'_>>, String> {
    let mut reader = Reader(body);
    if reader.take(MAGIC.len())? != MAGIC {
        return Err("it does not begin as segments do".into());
    }
    let lives = match reader.u8()? {
        WITHOUT_LIVES => false,
        WITH_LIVES | DESCRIBED | WITH_LZ4 => true,
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
        let (description, frame) = described(self.take(length)?);
        let segment = Segment {
            base_offset,
            ts: Micros(ts),
            records,
            raw_bytes,
            description,
            frame,
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
struct Content(Vec<u8>);

impl Content {
    /// Appends the records of `segment` from the offset asked for; `false` when it is damaged, and
    /// then nothing of it is taken.
    fn append(&mut self, segment: &Segment<'_>, gather: &mut Gather<'_>) -> Result<bool, String> {
        let bytes = &mut self.0;
        let start = bytes.len();
        let sound = segment.is_sound();
        let whole = sound.then(|| decompress(segment.frame, segment.raw_bytes, bytes));
        let Some(ids) = whole
            .flatten()
            .and_then(|()| checked(&bytes[start..], segment.records))
        else {
            bytes.truncate(start);
            return Ok(false);
        };
        gather.met(ids);
        gather.reserve(segment.records);
        let mut outcome = Ok(());
        let mut offset = segment.base_offset;
        let from = gather.from();
        each_place(bytes, start, segment.records as u32, |id, payload, _| {
            if offset >= from && outcome.is_ok() {
                outcome = gather.record(offset, segment.ts, id, payload);
            }
            offset += 1;
        });
        outcome.map(|()| true)
    }
}

#[cfg(test)]
#[path = "segments_tests.rs"]
pub(super) mod tests;
