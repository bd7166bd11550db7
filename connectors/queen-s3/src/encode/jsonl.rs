//! JSON lines, compressed as one frame.
//!
//! A record's bytes are copied once, from the fetch answer into the step being built; the
//! compressor reads the step and writes straight into the part that is uploaded. Without
//! compression the step is copied into the part.

use std::fmt::Write as _;
use std::io::Write;
use std::thread;

use bytes::Bytes;
use flate2::GzBuilder;
use flate2::write::GzEncoder;
use memchr::memchr2;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::compress_bound;

use super::compressors::{self, Afterwards};
use super::parts::Parts;
use super::{EncodeError, ObjectSpec, ObjectSummary};
use crate::decode::Seen;
use crate::lake::Compression;
use crate::limits::{COMPRESS_STEP_BYTES, GZIP_LEVEL, ZSTD_JOB_BYTES};
use crate::record::{Chunk, Damaged, Known, Piece, Record, Unpacked};
use crate::time::Micros;

const BEFORE_PARTITION: &[u8] = br#"{"partition":"#;
const BEFORE_OFFSET: &[u8] = br#","offset":"#;
const BEFORE_TRANSACTION_ID: &[u8] = br#","transactionId":"#;
const BEFORE_TS: &[u8] = br#","ts":""#;
const BEFORE_PAYLOAD: &[u8] = br#"","payload":"#;
const END: &[u8] = b"}\n";

/// Length of the JSONL lines of `chunk`, which belong to `partition` (raw): what the size target
/// counts, whatever the format.
pub fn record_bytes(partition: &str, chunk: &Chunk) -> u64 {
    let mut length = LineLength::new(partition);
    let mut scratch = Unpacked::default();
    let pieces = chunk.pieces();
    pieces
        .map(|piece| length.of_piece(&piece, &mut scratch))
        .sum()
}

/// Appends the line of one record, without its line break; a raw line break in `payload` becomes a
/// space.
pub fn append_line(line: &mut Vec<u8>, seen: &Seen<'_>, transaction_id: &str, payload: &[u8]) {
    line.extend_from_slice(BEFORE_PARTITION);
    append_string(line, seen.partition);
    line.extend_from_slice(BEFORE_OFFSET);
    line.extend_from_slice(itoa::Buffer::new().format(seen.offset).as_bytes());
    line.extend_from_slice(BEFORE_TRANSACTION_ID);
    append_string(line, transaction_id);
    line.extend_from_slice(BEFORE_TS);
    line.extend_from_slice(seen.ts.to_string().as_bytes());
    line.extend_from_slice(BEFORE_PAYLOAD);
    append_payload(line, payload);
    line.extend_from_slice(END.trim_ascii_end());
}

/// Tells the length of lines of one partition without building them.
pub(super) struct LineLength {
    /// What every line of the partition takes.
    fixed: usize,
    ts: TsText,
    scratch: Vec<u8>,
}

impl LineLength {
    /// For records of `partition` (raw).
    pub(super) fn new(partition: &str) -> Self {
        let mut name = Vec::new();
        append_string(&mut name, partition);
        let fixed = BEFORE_PARTITION.len()
            + name.len()
            + BEFORE_OFFSET.len()
            + BEFORE_TRANSACTION_ID.len()
            + BEFORE_TS.len()
            + BEFORE_PAYLOAD.len()
            + END.len();
        Self {
            fixed,
            ts: TsText::default(),
            scratch: name,
        }
    }

    /// Length of the line of `record`, its end included.
    pub(super) fn of(&mut self, record: &Record<'_>) -> u64 {
        let quoted = if record.escaped {
            self.scratch.clear();
            append_transaction_id(&mut self.scratch, record);
            self.scratch.len()
        } else {
            record.transaction_id.len() + 2
        };
        let varying = itoa::Buffer::new().format(record.offset).len()
            + quoted
            + self.ts.of(record.ts).len()
            + record.payload.len();
        (self.fixed + varying) as u64
    }

    /// Length of the lines of a block.
    pub(super) fn of_known(&mut self, known: &Known) -> u64 {
        let each = (self.fixed + self.ts.of(known.ts).len()) as u64;
        each * known.records + digits(known.offset, known.records) + known.text_bytes
    }

    /// Length of the lines of a piece. One that is damaged has none: who encodes it will say so.
    fn of_piece(&mut self, piece: &Piece<'_>, scratch: &mut Unpacked) -> u64 {
        if let Piece::Packed(packing) = piece
            && let Some(known) = packing.known()
        {
            return self.of_known(&known);
        }
        let mut length = 0;
        let read = piece.each(scratch, |record| {
            length += self.of(&record);
            Ok::<_, Damaged>(())
        });
        read.map_or(0, |()| length)
    }
}

/// Builds one JSONL object.
pub struct JsonlEncoder {
    /// Lines not yet compressed.
    step: Vec<u8>,
    /// The block that is being read.
    scratch: Unpacked,
    /// What stands before the offset in every line of `partition`.
    head: Vec<u8>,
    partition: String,
    ts: TsText,
    records: u64,
    announced: u64,
    pushed: u64,
    output: Output,
}

impl JsonlEncoder {
    /// An encoder for one object.
    pub fn new(spec: &ObjectSpec) -> Result<Self, EncodeError> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let jobs = spec.record_bytes.div_ceil(ZSTD_JOB_BYTES as u64);
        let workers = jobs.min(cores).min(spec.workers as u64).max(1);
        Self::with_workers(spec, workers as u32)
    }

    fn with_workers(spec: &ObjectSpec, workers: u32) -> Result<Self, EncodeError> {
        let mut encoder = Self {
            step: Vec::new(),
            scratch: Unpacked::default(),
            head: Vec::new(),
            partition: String::new(),
            ts: TsText::default(),
            records: 0,
            announced: spec.record_bytes,
            pushed: 0,
            output: Output::new(spec, workers)?,
        };
        encoder.enter("");
        Ok(encoder)
    }

    /// Appends the records of `chunk`.
    pub fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        if partition != self.partition {
            self.enter(partition);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let pushed = chunk.each(&mut scratch, |record| {
            self.append(&record);
            if self.step.len() >= COMPRESS_STEP_BYTES {
                self.compress_steps()?;
            }
            Ok(())
        });
        self.scratch = scratch;
        pushed
    }

    /// Takes the next full part.
    pub fn take_part(&mut self) -> Option<Bytes> {
        self.output.parts().take()
    }

    /// Ends the object.
    pub fn finish(mut self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        self.compress_steps()?;
        let rest = std::mem::take(&mut self.step);
        self.compress(&rest)?;
        if self.pushed != self.announced {
            return Err(self.wrong_length());
        }
        Ok(self.output.finish()?.finish(self.records))
    }

    fn enter(&mut self, partition: &str) {
        partition.clone_into(&mut self.partition);
        self.head.clear();
        self.head.extend_from_slice(BEFORE_PARTITION);
        append_string(&mut self.head, partition);
        self.head.extend_from_slice(BEFORE_OFFSET);
    }

    fn append(&mut self, record: &Record<'_>) {
        let line = &mut self.step;
        line.extend_from_slice(&self.head);
        line.extend_from_slice(itoa::Buffer::new().format(record.offset).as_bytes());
        line.extend_from_slice(BEFORE_TRANSACTION_ID);
        append_transaction_id(line, record);
        line.extend_from_slice(BEFORE_TS);
        line.extend_from_slice(self.ts.of(record.ts).as_bytes());
        line.extend_from_slice(BEFORE_PAYLOAD);
        append_payload(line, record.payload);
        line.extend_from_slice(END);
        self.records += 1;
    }

    /// Compresses what is there in steps of one fixed length, so that no compressor can tell how
    /// the records came.
    fn compress_steps(&mut self) -> Result<(), EncodeError> {
        let step = std::mem::take(&mut self.step);
        let whole = step.len() - step.len() % COMPRESS_STEP_BYTES;
        let compressed = step[..whole]
            .chunks_exact(COMPRESS_STEP_BYTES)
            .try_for_each(|part| self.compress(part));
        self.step = step;
        self.step.drain(..whole);
        compressed
    }

    fn compress(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.pushed += bytes.len() as u64;
        if self.pushed > self.announced {
            return Err(self.wrong_length());
        }
        Ok(self.output.write(bytes)?)
    }

    fn wrong_length(&self) -> EncodeError {
        EncodeError::RecordBytes {
            announced: self.announced,
            pushed: self.pushed,
        }
    }
}

/// The compressor and what it has put out.
enum Output {
    Plain(Parts),
    Gzip(GzEncoder<Parts>),
    Zstd(Encoder<'static>, Parts, Afterwards),
}

impl Output {
    fn new(spec: &ObjectSpec, workers: u32) -> std::io::Result<Self> {
        let bound = usize::try_from(spec.record_bytes).map_or(u64::MAX, |bytes| {
            // The bound of Zstandard leaves room for what the others add to an object, too.
            compress_bound(bytes) as u64
        });
        let parts = Parts::new(bound, spec.part_bytes);
        Ok(match spec.compression {
            Compression::Zstd => {
                let encoder = compressors::take(spec.record_bytes, workers)?;
                Self::Zstd(encoder, parts, Afterwards::of(spec))
            }
            Compression::Gzip => {
                // 255: "unknown", so that the bytes do not name the operating system.
                let header = GzBuilder::new().mtime(0).operating_system(255);
                Self::Gzip(header.write(parts, flate2::Compression::new(GZIP_LEVEL)))
            }
            Compression::None | Compression::Snappy => Self::Plain(parts),
        })
    }

    fn parts(&mut self) -> &mut Parts {
        match self {
            Self::Plain(parts) | Self::Zstd(_, parts, _) => parts,
            Self::Gzip(encoder) => encoder.get_mut(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(parts) => parts.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder, parts, _) => {
                let mut input = InBuffer::around(bytes);
                while input.pos() < bytes.len() {
                    parts.fill(|room| {
                        let mut output = OutBuffer::around(room);
                        encoder.run(&mut input, &mut output)?;
                        Ok(output.pos())
                    })?;
                }
                Ok(())
            }
        }
    }

    fn finish(self) -> std::io::Result<Parts> {
        match self {
            Self::Plain(parts) => Ok(parts),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(mut encoder, mut parts, afterwards) => {
                let mut remaining = usize::MAX;
                while remaining > 0 {
                    parts.fill(|room| {
                        let mut output = OutBuffer::around(room);
                        remaining = encoder.finish(&mut output, true)?;
                        Ok(output.pos())
                    })?;
                }
                if afterwards == Afterwards::Kept {
                    compressors::give_back(encoder);
                }
                Ok(parts)
            }
        }
    }
}

/// The text of the `ts` asked for last: the records of a segment share theirs.
struct TsText {
    ts: Micros,
    text: String,
}

impl Default for TsText {
    fn default() -> Self {
        Self {
            ts: Micros::ZERO,
            text: Micros::ZERO.to_string(),
        }
    }
}

impl TsText {
    fn of(&mut self, ts: Micros) -> &str {
        if ts != self.ts {
            self.ts = ts;
            self.text.clear();
            // A string cannot fail to be written.
            let _ = write!(self.text, "{ts}");
        }
        &self.text
    }
}

fn append_string(line: &mut Vec<u8>, text: &str) {
    // Neither a string nor a Vec can fail to be written.
    let _ = serde_json::to_writer(line, text);
}

/// Digits of `count` numbers from `first` on, which is not negative.
fn digits(first: i64, count: u64) -> u64 {
    let (mut at, end) = (first.unsigned_abs(), first.unsigned_abs() + count);
    let mut total = 0;
    while at < end {
        let length = at.checked_ilog10().unwrap_or(0) + 1;
        let longer = 10_u64.checked_pow(length).unwrap_or(u64::MAX);
        let next = end.min(longer);
        total += u64::from(length) * (next - at);
        at = next;
    }
    total
}

/// Appends a transaction id, quoted and escaped as `serde_json` escapes it. One that names no
/// Unicode text, because it holds half a surrogate pair, stays as the broker escaped it.
fn append_transaction_id(line: &mut Vec<u8>, record: &Record<'_>) {
    let escaped = record.transaction_id;
    let quoted = |line: &mut Vec<u8>| {
        line.push(b'"');
        line.extend_from_slice(escaped);
        line.push(b'"');
    };
    // Without an escape there is nothing that would need one either.
    if !record.escaped {
        return quoted(line);
    }
    let start = line.len();
    quoted(line);
    if let Ok(text) = serde_json::from_slice::<String>(&line[start..]) {
        line.truncate(start);
        append_string(line, &text);
    }
}

/// Appends a payload. A raw line break, which JSON allows only between tokens, becomes a space.
fn append_payload(line: &mut Vec<u8>, payload: &[u8]) {
    let start = line.len();
    line.extend_from_slice(payload);
    if memchr2(b'\r', b'\n', payload).is_some() {
        for byte in &mut line[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
    }
}

#[cfg(test)]
#[path = "jsonl_tests.rs"]
mod tests;
