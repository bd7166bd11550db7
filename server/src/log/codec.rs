//! The block of a segment: its records, one after the other, in one [frame](super::frame), behind a
//! description of what is in it.
//!
//! ```text
//! description: u32 0x184D2A5A | u32 10 | u8 1 | u8 ids | u32 empty payloads | u32 CRC-32C
//! frame's content: u8 1 | per record: u32 id length, u32 payload length, id, payload
//! ```
//!
//! Integers are little-endian. The id is the transaction id as a JSON string, quotes included, and
//! the payload the bytes that were pushed: both are copied into an answer as they are.
//!
//! The description is a skippable frame, which every decoder of zstd or LZ4 passes over. Who has it knows that
//! the block is whole and how long the records' texts are together, and need not decompress it before
//! they are wanted: `ids` is 0 where no id has an escape, 1 where some may; the checksum is that of the
//! six bytes before it and the frame behind it. A zstd frame may come without a description, as those do that
//! were stored before there were any; it tells damage by its own checksum.

use crc32c::{crc32c, crc32c_append};
use memchr::memchr;

use super::frame::{self, Compression};
use crate::limits::{SEGMENT_MAX_RECORDS, SEGMENT_TARGET_BYTES};

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
const DESCRIPTION_BYTES: usize = DESCRIPTION.len() + 4 + DESCRIBED;

/// A block cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Damage {
    /// The frame does not decompress: cut, changed, or not a frame.
    #[error("the block does not decompress: {0}")]
    Frame(String),
    /// The frame is not the one described.
    #[error("the block is not what its description says")]
    Checksum,
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
    /// What is stored: the description and the frame.
    pub bytes: Vec<u8>,
}

/// Builds a block record by record.
#[derive(Debug)]
pub struct BlockWriter {
    compression: Compression,
    raw: Vec<u8>,
    /// The frame being made.
    frame: Vec<u8>,
    records: usize,
    payload_bytes: usize,
    escapes: bool,
    empty_payloads: u32,
}

impl BlockWriter {
    /// An empty block, which will be compressed so.
    pub fn new(compression: Compression) -> Self {
        Self {
            compression,
            raw: vec![LAYOUT],
            frame: Vec::new(),
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
    /// The compressor's own, which only lack of memory brings about.
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
    fn compress(&mut self) -> std::io::Result<Vec<u8>> {
        frame::compress(&self.raw, self.compression, &mut self.frame)?;
        let [a, b, c, d] = self.empty_payloads.to_le_bytes();
        let told = [DESCRIPTION_LAYOUT, u8::from(self.escapes), a, b, c, d];
        let parts: [&[u8]; 5] = [
            &DESCRIPTION,
            &(DESCRIBED as u32).to_le_bytes(),
            &told,
            &crc32c_append(crc32c(&told), &self.frame).to_le_bytes(),
            &self.frame,
        ];
        Ok(parts.concat())
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

/// The description of an open `block`, if it has one, and its frame.
fn split(block: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match block.split_at_checked(DESCRIPTION_BYTES) {
        Some((description, frame)) if description.starts_with(&DESCRIPTION) => {
            (Some(&description[DESCRIPTION.len() + 4..]), frame)
        }
        _ => (None, block),
    }
}

/// Whether an open `block` is of zstd.
pub fn is_zstd(block: &[u8]) -> bool {
    frame::is_zstd(split(block).1)
}

/// The zstd frame of an open `block`, for who takes no other: made anew in `raw` and `frame` where it has
/// another one.
///
/// # Errors
///
/// As [`decompress`].
pub fn zstd_frame_of<'a>(
    block: &'a [u8],
    raw_bytes: usize,
    raw: &mut Vec<u8>,
    frame: &'a mut Vec<u8>,
) -> Result<&'a [u8], Damage> {
    let (_, stored) = split(block);
    if frame::is_zstd(stored) {
        return Ok(stored);
    }
    decompress(block, raw_bytes, raw)?;
    let made = frame::compress(raw, Compression::Zstd, frame);
    made.map_err(|error| Damage::Frame(error.to_string()))?;
    Ok(frame)
}

/// Decompresses an open `block`, whose content is `raw_bytes` long, into `out`, replacing what was there.
///
/// # Errors
///
/// [`Damage::Checksum`], [`Damage::Frame`] or [`Damage::Length`]; `out` then holds nothing of use.
pub fn decompress(block: &[u8], raw_bytes: usize, out: &mut Vec<u8>) -> Result<(), Damage> {
    let (description, frame) = split(block);
    if !frame::is_zstd(frame) {
        let told = description.and_then(|description| description.split_last_chunk());
        let (told, checksum) = told.ok_or(Damage::Checksum)?;
        if crc32c_append(crc32c(told), frame).to_le_bytes() != *checksum {
            return Err(Damage::Checksum);
        }
    }
    frame::decompress(frame, raw_bytes, out)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    const COMPRESSIONS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    fn block(records: &[(&str, &str)], compression: Compression) -> Block {
        let mut writer = BlockWriter::new(compression);
        for (id, payload) in records {
            writer.push(id.as_bytes(), payload.as_bytes());
        }
        writer.finish().expect("memory")
    }

    proptest! {
        #[test]
        fn a_block_gives_back_every_record(
            records in prop::collection::vec((".{0,20}", ".{0,200}"), 0..50),
            compression in prop::sample::select(&COMPRESSIONS[..]),
        ) {
            let mut writer = BlockWriter::new(compression);
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
    fn every_changed_byte_and_every_cut_of_a_frame_is_found() {
        for compression in COMPRESSIONS {
            let block = block(
                &[("\"a\"", "{\"n\":1}"), ("\"b\"", "{\"n\":2}")],
                compression,
            );
            let mut raw = Vec::new();
            decompress(&block.bytes, block.raw_bytes, &mut raw).expect("whole");
            let whole = raw.clone();
            for at in 0..block.bytes.len() {
                let mut changed = block.bytes.clone();
                changed[at] ^= 0x55;
                let outcome = decompress(&changed, block.raw_bytes, &mut raw);
                assert!(
                    outcome.is_err() || raw == whole,
                    "byte {at} changed unnoticed: {compression:?}"
                );
                let cut = decompress(&block.bytes[..at], block.raw_bytes, &mut raw);
                assert!(cut.is_err(), "cut at {at} unnoticed: {compression:?}");
            }
            let length = block.raw_bytes + 1;
            assert!(decompress(&block.bytes, length, &mut raw).is_err());
        }
    }

    #[test]
    fn an_lz4_frame_is_not_read_without_a_description_of_it() {
        let block = block(&[("\"a\"", "1")], Compression::Lz4);
        let (_, frame) = split(&block.bytes);
        let outcome = decompress(frame, block.raw_bytes, &mut Vec::new());
        assert_eq!(outcome, Err(Damage::Checksum));
    }

    #[test]
    fn who_takes_zstd_alone_is_given_the_same_content() {
        let records = [("\"a\"", "{\"n\":1}"), ("\"b\"", "")];
        let (mut raw, mut frame, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for compression in COMPRESSIONS {
            let block = block(&records, compression);
            let zstd = zstd_frame_of(&block.bytes, block.raw_bytes, &mut raw, &mut frame);
            let zstd = zstd.expect("whole");
            assert!(is_zstd(zstd));
            let content = zstd::stream::decode_all(zstd).expect("a zstd frame");
            decompress(&block.bytes, block.raw_bytes, &mut read).expect("whole");
            assert_eq!(content, read);
        }
        let mut changed = block(&records, Compression::Lz4).bytes;
        changed[30] ^= 1;
        let outcome = zstd_frame_of(&changed, 33, &mut raw, &mut frame);
        assert_eq!(outcome, Err(Damage::Checksum));
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
            let block = block(records, Compression::Lz4);
            let (description, frame) = block.bytes.split_at(DESCRIPTION_BYTES);
            assert_eq!(split(&block.bytes).1, frame);
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
        let mut writer = BlockWriter::new(Compression::Lz4);
        writer.push(b"\"\\n\"", b"");
        let first = writer.finish().expect("memory");
        writer.push(b"\"n\"", b"1");
        let second = writer.finish().expect("memory");
        assert_eq!(first.bytes[8..14], [1, 1, 1, 0, 0, 0]);
        assert_eq!(second.bytes[8..14], [1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_zstd_block_without_a_description_is_read() {
        let block = block(&[("\"a\"", "1")], Compression::Zstd);
        let mut raw = Vec::new();
        decompress(split(&block.bytes).1, block.raw_bytes, &mut raw).expect("whole");
        assert!(Records::new(&raw).is_ok());
    }

    #[test]
    fn other_decoders_pass_a_description_over_and_read_the_frame() {
        let zstd = block(&[("\"a\"", "1")], Compression::Zstd);
        let raw = zstd::stream::decode_all(&zstd.bytes[..]).expect("whole");
        assert_eq!(raw.len(), zstd.raw_bytes);
        let compressible = format!("\"{}\"", "x".repeat(1_000));
        for payload in ["1", &compressible] {
            let lz4 = block(&[("\"a\"", payload)], Compression::Lz4);
            let mut decoder = lz4_flex::frame::FrameDecoder::new(split(&lz4.bytes).1);
            let mut raw = Vec::new();
            decoder.read_to_end(&mut raw).expect("whole");
            assert_eq!(raw.len(), lz4.raw_bytes);
        }
    }

    #[test]
    fn an_empty_payload_counts_one_byte() {
        let records = [("\"a\"", ""), ("\"b\"", "12")];
        assert_eq!(block(&records, Compression::Lz4).payload_bytes, 3);
    }

    #[test]
    fn a_block_is_full_at_its_target_but_takes_one_record_of_any_size() {
        let mut writer = BlockWriter::new(Compression::Lz4);
        let large = vec![b'x'; SEGMENT_TARGET_BYTES + 1];
        assert!(!writer.is_full_for(&large));
        writer.push(b"\"a\"", &large);
        assert!(writer.is_full_for(b"1"));
    }

    #[test]
    fn a_record_too_long_for_one_lz4_block_is_of_zstd() {
        let mut writer = BlockWriter::new(Compression::Lz4);
        for (content, is_in_zstd) in [(4 << 20, false), ((4 << 20) + 1, true)] {
            // Without the layout, two lengths and the id.
            writer.push(b"\"a\"", &vec![b'1'; content - 12]);
            let block = writer.finish().expect("memory");
            assert_eq!(block.raw_bytes, content);
            assert_eq!(is_zstd(&block.bytes), is_in_zstd, "{content}");
            decompress(&block.bytes, block.raw_bytes, &mut Vec::new()).expect("whole");
        }
    }
}
