//! The block of a segment: its records, one after the other, in one zstd frame, behind a description
//! of what is in it.
//!
//! ```text
//! description: u32 0x184D2A5A | u32 10 | u8 1 | u8 ids | u32 empty payloads | u32 CRC-32C
//! frame's content: u8 1 | per record: u32 id length, u32 payload length, id, payload
//! ```
//!
//! Integers are little-endian. The id is the transaction id as a JSON string, quotes included, and
//! the payload the bytes that were pushed: both are copied into an answer as they are. The frame
//! carries zstd's checksum of its content, so damage is found before anything is read from it.
//!
//! The description is a skippable frame, which every zstd decoder passes over. Who has it knows that
//! the block is whole and how long the records' texts are together, and need not decompress it before
//! they are wanted: `ids` is 0 where no id has an escape, 1 where some may; the checksum is that of the
//! six bytes before it and the frame behind it. A block may come without a description, as those do that
//! were stored before there were any.

use std::cell::RefCell;
use std::io::Cursor;

use crc32c::{crc32c, crc32c_append};
use memchr::memchr;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, compress_bound};

use crate::limits::{SEGMENT_MAX_RECORDS, SEGMENT_TARGET_BYTES, SEGMENT_ZSTD_LEVEL};

/// The layout described above.
const LAYOUT: u8 = 1;
/// Bytes in front of a record's id.
const RECORD_HEAD: usize = 8;

/// What a description begins with: one of the numbers that zstd keeps for skippable frames. Its first
/// byte is not the one that marks sealed blocks.
const DESCRIPTION: [u8; 4] = 0x184D_2A5A_u32.to_le_bytes();
/// The layout of descriptions.
const DESCRIPTION_LAYOUT: u8 = 1;
/// Bytes of a description behind its number and its length.
const DESCRIBED: usize = 1 + 1 + 4 + 4;
/// Bytes of a description.
pub(super) const DESCRIPTION_BYTES: usize = DESCRIPTION.len() + 4 + DESCRIBED;

/// A block cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Damage {
    /// zstd refuses the frame: cut, changed, or not a frame.
    #[error("the block does not decompress: {0}")]
    Frame(String),
    /// The content has another length than the segment says.
    #[error("the block holds {found} bytes, the segment says {expected}")]
    Length {
        /// What the segment's row says.
        expected: usize,
        /// What decompression gave.
        found: usize,
    },
    /// Not a layout this broker knows.
    #[error("the block has the unknown layout {0}")]
    Layout(u8),
    /// The block is sealed and the broker has no key.
    #[error("the block is encrypted and QUEEN_ENCRYPTION_KEY is unset")]
    NoKey,
    /// The block is sealed with another key.
    #[error("the block is encrypted with another key than QUEEN_ENCRYPTION_KEY")]
    OtherKey,
    /// The block does not open: cut, changed, or moved from elsewhere.
    #[error("the block does not open with its key: it is damaged or not in its place")]
    Seal,
    /// A record reaches past the end of the block.
    #[error("a record reaches past the end of the block")]
    Record,
}

/// The stored form of consecutive records of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Number of records.
    pub records: usize,
    /// Length before compression.
    pub raw_bytes: usize,
    /// Payload lengths added up, an empty payload counting 1.
    pub payload_bytes: usize,
    /// What is stored: the description and the zstd frame.
    pub bytes: Vec<u8>,
}

/// Builds a block record by record.
#[derive(Debug)]
pub struct BlockWriter {
    raw: Vec<u8>,
    records: usize,
    payload_bytes: usize,
    escapes: bool,
    empty_payloads: u32,
}

impl BlockWriter {
    /// An empty block.
    pub fn new() -> Self {
        Self {
            raw: vec![LAYOUT],
            records: 0,
            payload_bytes: 0,
            escapes: false,
            empty_payloads: 0,
        }
    }

    /// Whether a record with this payload belongs into the next block.
    pub fn is_full_for(&self, payload: &[u8]) -> bool {
        self.records > 0
            && (self.records == SEGMENT_MAX_RECORDS
                || self.raw.len() + payload.len() > SEGMENT_TARGET_BYTES)
    }

    /// Appends a record. `id` is a JSON string with its quotes; both are shorter than 4 GiB, which
    /// the limit on a request's body sees to.
    pub fn push(&mut self, id: &[u8], payload: &[u8]) {
        self.raw.extend_from_slice(&(id.len() as u32).to_le_bytes());
        self.raw
            .extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.raw.extend_from_slice(id);
        self.raw.extend_from_slice(payload);
        self.records += 1;
        self.payload_bytes += payload.len().max(1);
        self.escapes |= memchr(b'\\', id).is_some();
        self.empty_payloads += u32::from(payload.is_empty());
    }

    /// Number of records so far.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Compresses what was appended and starts over, keeping the memory.
    ///
    /// # Errors
    ///
    /// zstd's own, which only lack of memory brings about.
    pub fn finish(&mut self) -> std::io::Result<Block> {
        let block = Block {
            records: self.records,
            raw_bytes: self.raw.len(),
            payload_bytes: self.payload_bytes,
            bytes: self.compress()?,
        };
        self.raw.truncate(1);
        self.records = 0;
        self.payload_bytes = 0;
        self.escapes = false;
        self.empty_payloads = 0;
        Ok(block)
    }

    /// The description, and the frame behind it.
    fn compress(&self) -> std::io::Result<Vec<u8>> {
        let bound = DESCRIPTION_BYTES + compress_bound(self.raw.len());
        let mut block = Cursor::new(Vec::with_capacity(bound));
        block.set_position(DESCRIPTION_BYTES as u64);
        compress(&self.raw, &mut block)?;
        let mut block = block.into_inner();
        let (description, frame) = block.split_at_mut(DESCRIPTION_BYTES);
        let [a, b, c, d] = self.empty_payloads.to_le_bytes();
        let told = [DESCRIPTION_LAYOUT, u8::from(self.escapes), a, b, c, d];
        let parts: [&[u8]; 4] = [
            &DESCRIPTION,
            &(DESCRIBED as u32).to_le_bytes(),
            &told,
            &crc32c_append(crc32c(&told), frame).to_le_bytes(),
        ];
        description.copy_from_slice(&parts.concat());
        Ok(block)
    }
}

impl Default for BlockWriter {
    fn default() -> Self {
        Self::new()
    }
}

/// A record inside a decompressed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The transaction id as a JSON string, quotes included.
    pub id: &'a [u8],
    /// The payload as pushed.
    pub payload: &'a [u8],
}

/// Reads the records of a decompressed block in order. Ends after the first damage.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// # Errors
    ///
    /// [`Damage::Layout`] for an unknown or missing layout byte.
    pub fn new(raw: &'a [u8]) -> Result<Self, Damage> {
        match raw.split_first() {
            Some((&LAYOUT, rest)) => Ok(Self { rest }),
            Some((&other, _)) => Err(Damage::Layout(other)),
            None => Err(Damage::Layout(0)),
        }
    }

    fn take(&mut self) -> Option<Record<'a>> {
        let (head, body) = self.rest.split_first_chunk::<RECORD_HEAD>()?;
        let [a, b, c, d, e, f, g, h] = *head;
        let id_len = u32::from_le_bytes([a, b, c, d]) as usize;
        let payload_len = u32::from_le_bytes([e, f, g, h]) as usize;
        let (id, body) = body.split_at_checked(id_len)?;
        let (payload, rest) = body.split_at_checked(payload_len)?;
        self.rest = rest;
        Some(Record { id, payload })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.take();
        if record.is_none() {
            self.rest = &[];
        }
        Some(record.ok_or(Damage::Record))
    }
}

thread_local! {
    // A zstd context is hundreds of kilobytes: one per thread, not one per block.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses `raw` into `out`, from its position on.
fn compress(raw: &[u8], out: &mut Cursor<Vec<u8>>) -> std::io::Result<()> {
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut compressor = Compressor::new(SEGMENT_ZSTD_LEVEL)?;
            compressor.set_parameter(CParameter::ChecksumFlag(true))?;
            *slot = Some(compressor);
        }
        match slot {
            Some(compressor) => compressor.compress_to_buffer(raw, out).map(drop),
            None => unreachable!("the compressor was made above"),
        }
    })
}

/// The zstd frame of an open `block`, without the description before it.
pub fn frame_of(block: &[u8]) -> &[u8] {
    match block.split_at_checked(DESCRIPTION_BYTES) {
        Some((description, frame)) if description.starts_with(&DESCRIPTION) => frame,
        _ => block,
    }
}

/// Decompresses an open `block`, whose content is `raw_bytes` long, into `out`, replacing what was there.
///
/// # Errors
///
/// [`Damage::Frame`] or [`Damage::Length`]; `out` then holds nothing of use.
pub fn decompress(block: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), Damage> {
    let frame = frame_of(block);
    out.clear();
    out.reserve(raw_bytes);
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Some(Decompressor::new().map_err(|error| Damage::Frame(error.to_string()))?);
        }
        match slot {
            Some(decompressor) => decompressor
                .decompress_to_buffer(frame, out)
                .map_err(|error| Damage::Frame(error.to_string())),
            None => unreachable!("the decompressor was made above"),
        }
    })?;
    if out.len() != raw_bytes {
        return Err(Damage::Length {
            expected: raw_bytes,
            found: out.len(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(records: &[(&str, &str)]) -> Block {
        let mut writer = BlockWriter::new();
        for (id, payload) in records {
            writer.push(id.as_bytes(), payload.as_bytes());
        }
        writer.finish().expect("memory")
    }

    proptest! {
        #[test]
        fn a_block_gives_back_every_record(
            records in prop::collection::vec((".{0,20}", ".{0,200}"), 0..50)
        ) {
            let mut writer = BlockWriter::new();
            for (id, payload) in &records {
                writer.push(id.as_bytes(), payload.as_bytes());
            }
            let block = writer.finish().expect("memory");
            prop_assert_eq!(block.records, records.len());
            let mut raw = Vec::new();
            decompress(&block.bytes, block.raw_bytes, &mut raw).expect("whole");
            let read: Vec<_> = Records::new(&raw)
                .expect("a layout")
                .map(|record| record.expect("a record"))
                .map(|record| (record.id.to_vec(), record.payload.to_vec()))
                .collect();
            let pushed: Vec<_> = records
                .iter()
                .map(|(id, payload)| (id.clone().into_bytes(), payload.clone().into_bytes()))
                .collect();
            prop_assert_eq!(read, pushed);
        }

        #[test]
        fn any_bytes_at_all_are_read_without_a_panic(raw in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(records) = Records::new(&raw) {
                for _ in records {}
            }
            let mut out = Vec::new();
            let _ = decompress(&raw, 300, &mut out);
        }
    }

    #[test]
    fn every_changed_byte_of_a_frame_is_found() {
        let block = block(&[("\"a\"", "{\"n\":1}"), ("\"b\"", "{\"n\":2}")]);
        let mut raw = Vec::new();
        decompress(&block.bytes, block.raw_bytes, &mut raw).expect("whole");
        let whole = raw.clone();
        for at in 0..block.bytes.len() {
            let mut changed = block.bytes.clone();
            changed[at] ^= 0x55;
            let outcome = decompress(&changed, block.raw_bytes, &mut raw);
            assert!(
                outcome.is_err() || raw == whole,
                "byte {at} changed unnoticed"
            );
        }
        assert!(
            decompress(
                &block.bytes[..block.bytes.len() - 1],
                block.raw_bytes,
                &mut raw
            )
            .is_err()
        );
    }

    #[test]
    fn an_unknown_layout_and_a_cut_record_are_damage() {
        assert_eq!(Records::new(&[9]).expect_err("a layout"), Damage::Layout(9));
        assert_eq!(Records::new(&[]).expect_err("nothing"), Damage::Layout(0));
        let mut records =
            Records::new(&[LAYOUT, 1, 0, 0, 0, 200, 0, 0, 0, b'x']).expect("a layout");
        assert_eq!(records.next(), Some(Err(Damage::Record)));
        assert_eq!(records.next(), None);
    }

    #[test]
    fn a_description_says_what_is_in_the_block() {
        let described = |records: &[(&str, &str)]| {
            let block = block(records);
            let (description, frame) = block.bytes.split_at(DESCRIPTION_BYTES);
            assert_eq!(frame_of(&block.bytes), frame);
            let told = [&description[8..14], frame].concat();
            assert_eq!(description[14..], crc32c(&told).to_le_bytes());
            description[..14].to_vec()
        };
        let head = *b"\x5a\x2a\x4d\x18\x0a\0\0\0\x01";
        let expected = |rest: [u8; 5]| [&head[..], &rest].concat();
        let plain = [("\"a\"", "1"), ("\"b\"", ""), ("\"c\"", "")];
        assert_eq!(described(&plain), expected([0, 2, 0, 0, 0]));
        let escaped = [("\"a\"", "\"\\n\""), ("\"\\u00e9\"", "2")];
        assert_eq!(described(&escaped), expected([1, 0, 0, 0, 0]));
        assert_eq!(described(&escaped[..1]), expected([0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_writer_describes_each_block_by_itself() {
        let mut writer = BlockWriter::new();
        writer.push(b"\"\\n\"", b"");
        let first = writer.finish().expect("memory");
        writer.push(b"\"n\"", b"1");
        let second = writer.finish().expect("memory");
        assert_eq!(first.bytes[8..14], [1, 1, 1, 0, 0, 0]);
        assert_eq!(second.bytes[8..14], [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_block_without_a_description_is_read() {
        let block = block(&[("\"a\"", "1")]);
        let mut raw = Vec::new();
        decompress(frame_of(&block.bytes), block.raw_bytes, &mut raw).expect("whole");
        assert!(Records::new(&raw).is_ok());
    }

    #[test]
    fn other_decoders_pass_a_description_over() {
        let block = block(&[("\"a\"", "1")]);
        let raw = zstd::stream::decode_all(&block.bytes[..]).expect("whole");
        assert_eq!(raw.len(), block.raw_bytes);
    }

    #[test]
    fn an_empty_payload_counts_one_byte() {
        assert_eq!(block(&[("\"a\"", ""), ("\"b\"", "12")]).payload_bytes, 3);
    }

    #[test]
    fn a_block_is_full_at_its_target_but_takes_one_record_of_any_size() {
        let mut writer = BlockWriter::new();
        let large = vec![b'x'; SEGMENT_TARGET_BYTES + 1];
        assert!(!writer.is_full_for(&large));
        writer.push(b"\"a\"", &large);
        assert!(writer.is_full_for(b"1"));
    }
}
