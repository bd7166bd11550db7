//! The answer of a fetch as the log has it: blocks that are still compressed, for clients that ask
//! for [`SEGMENTS`].
//!
//! Integers are little-endian, instants are microseconds since the Unix epoch.
//!
//! ```text
//! "QSEG" | u8 version | u32 entries
//! per entry:   u16 queue length, queue | u16 partition length, partition
//!              i64 high watermark | i64 log start | life | segments | u8 0 | u8 error length, error
//! life:        16 bytes, the UUID of the partition's life, all 0 where it was never made
//! per segment: u8 1 | i64 base offset | i64 ts | u32 records | u32 raw bytes
//!              u32 block length, block
//! ```
//!
//! Version 1 has no life; later ones are for clients that ask for `…segments;version=2` and so on.
//!
//! A block is one zstd frame that names the length of its content and carries its checksum, in version 3 behind a
//! description if it was stored with one. In version 4 blocks are sent as they are stored, which may be an LZ4 frame
//! behind its description; [`codec`](super::codec) and [`frame`](super::frame) say how they are laid out. Segments are
//! whole: the first one of an entry may begin below the offset asked for, and the last one may end past the records of a
//! call.

use uuid::Uuid;

use super::codec::{Damage, Records, decompress, is_zstd, zstd_frame_of};
use super::render::{EntryAnswer, Rendered, StoredSegment, unreadable};
use super::seal::{SealKey, opened};

/// Media type of such an answer, by which a client asks for it.
pub const SEGMENTS: &str = "application/vnd.queen.segments";

const MAGIC: &[u8] = b"QSEG";
const SEGMENT: u8 = 1;
const NO_MORE_SEGMENTS: u8 = 0;
/// What an entry takes beside its names, its error and its segments, and more.
const ENTRY_BYTES: usize = 64;
/// What a segment takes beside its block.
const SEGMENT_BYTES: usize = 29;

/// Version of the layout, later ones above those before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Entries do not say of which life of a partition they are.
    Plain = 1,
    /// They do.
    WithLives = 2,
    /// And blocks come with their descriptions, where they are of zstd.
    Described = 3,
    /// And blocks come as they are stored.
    Stored = 4,
}

/// Packs `entries` of `tenant` as `version` has them. `key` opens what is sealed; what does not open ends its entry.
pub fn pack<B: AsRef<[u8]>>(
    entries: &[EntryAnswer<B>],
    version: Version,
    tenant: Uuid,
    key: Option<&SealKey>,
) -> Rendered {
    let expected: usize = entries
        .iter()
        .map(|entry| {
            let segments = entry.segments.iter();
            let blocks = segments.map(|segment| SEGMENT_BYTES + segment.block.as_ref().len());
            ENTRY_BYTES + entry.queue.len() + entry.partition.len() + blocks.sum::<usize>()
        })
        .sum();
    let mut packer = Packer {
        answer: Rendered {
            body: Vec::with_capacity(MAGIC.len() + 5 + expected),
            payload_bytes: 0,
            records: 0,
            failed: false,
        },
        opened: Vec::new(),
        raw: Vec::new(),
        frame: Vec::new(),
        version,
        tenant,
        key,
    };
    packer.bytes(MAGIC);
    packer.bytes(&[version as u8]);
    packer.length(entries.len());
    for entry in entries {
        packer.entry(entry);
    }
    packer.answer
}

struct Packer<'a> {
    answer: Rendered,
    opened: Vec<u8>,
    raw: Vec<u8>,
    frame: Vec<u8>,
    version: Version,
    tenant: Uuid,
    key: Option<&'a SealKey>,
}

impl Packer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.answer.body.extend_from_slice(bytes);
    }

    /// A length or a count; what is counted comes from one call, whose limits are far below 4 GiB.
    fn length(&mut self, length: usize) {
        self.bytes(&(length as u32).to_le_bytes());
    }

    fn entry<B: AsRef<[u8]>>(&mut self, entry: &EntryAnswer<B>) {
        for name in [&entry.queue, &entry.partition] {
            // Longer names are refused with the request.
            self.bytes(&(name.len() as u16).to_le_bytes());
            self.bytes(name.as_bytes());
        }
        self.bytes(&entry.watermark.to_le_bytes());
        self.bytes(&entry.log_start.to_le_bytes());
        if self.version >= Version::WithLives {
            self.bytes(entry.life.unwrap_or_default().as_bytes());
        }
        let mut error = entry.error;
        for segment in &entry.segments {
            if let Err(marker) = self.segment(entry, segment) {
                error = Some(marker);
                break;
            }
        }
        self.bytes(&[NO_MORE_SEGMENTS]);
        let error_text = error.unwrap_or_default();
        self.bytes(&[error_text.len() as u8]);
        self.bytes(error_text.as_bytes());
        self.answer.failed |= error.is_some();
    }

    fn segment<B: AsRef<[u8]>>(
        &mut self,
        entry: &EntryAnswer<B>,
        segment: &StoredSegment<B>,
    ) -> Result<(), &'static str> {
        let mut scratch = std::mem::take(&mut self.opened);
        let place = entry.place(self.tenant, segment);
        let block = opened(segment.block.as_ref(), place, self.key, &mut scratch)
            .map_err(|damage| unreadable(entry, segment, &damage))?;
        let payload_bytes = if segment.base_offset < entry.offset {
            self.payload_bytes(block, segment, entry.offset)
                .map_err(|damage| unreadable(entry, segment, &damage))?
        } else {
            segment.payload_bytes
        };
        let mut frame = std::mem::take(&mut self.frame);
        let block = match self.version {
            Version::Stored => block,
            Version::Described if is_zstd(block) => block,
            _ => zstd_frame_of(block, segment.raw_bytes, &mut self.raw, &mut frame)
                .map_err(|damage| unreadable(entry, segment, &damage))?,
        };
        self.bytes(&[SEGMENT]);
        self.bytes(&segment.base_offset.to_le_bytes());
        self.bytes(&segment.ts.micros().to_le_bytes());
        self.length(segment.records);
        self.length(segment.raw_bytes);
        self.length(block.len());
        self.bytes(block);
        (self.opened, self.frame) = (scratch, frame);

        let end = segment.base_offset + segment.records as i64;
        self.answer.records += (end - segment.base_offset.max(entry.offset)).unsigned_abs();
        self.answer.payload_bytes += payload_bytes;
        Ok(())
    }

    /// Payload bytes of a segment that begins below the offset `from`, from there on: what tells
    /// whether an answer is enough for one who waits.
    fn payload_bytes<B>(
        &mut self,
        block: &[u8],
        segment: &StoredSegment<B>,
        from: i64,
    ) -> Result<u64, Damage> {
        decompress(block, segment.raw_bytes, &mut self.raw)?;
        let mut bytes = 0;
        for (offset, record) in (segment.base_offset..).zip(Records::new(&self.raw)?) {
            if offset >= from {
                bytes += record?.payload.len().max(1) as u64;
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::log::frame::Compression;
    use crate::log::render::tests::{entry, segment, segment_in};

    use super::*;

    #[test]
    fn an_answer_has_the_layout_that_is_written_down() {
        let mut refused = entry(0, vec![]);
        refused.error = Some("OFFSET_OUT_OF_RANGE");
        let stored = segment(41, &["1", "{\"a\":2}"]);
        let as_stored = stored.block.clone();
        let (mut raw, mut frame) = (Vec::new(), Vec::new());
        let block = zstd_frame_of(&as_stored, stored.raw_bytes, &mut raw, &mut frame);
        let block = block.expect("whole").to_vec();
        let entries = [entry(42, vec![stored]), refused];
        let answer = pack(&entries, Version::Plain, Uuid::nil(), None);

        let mut expected = b"QSEG\x01\x02\0\0\0".to_vec();
        let names_and_bounds = [
            &b"\x03\0o\"q\x02\0eu"[..],
            &44i64.to_le_bytes(),
            &12i64.to_le_bytes(),
        ]
        .concat();
        expected.extend_from_slice(&names_and_bounds);
        expected.push(1);
        expected.extend_from_slice(&41i64.to_le_bytes());
        expected.extend_from_slice(&1_788_516_221_918_204i64.to_le_bytes());
        expected.extend_from_slice(&2u32.to_le_bytes());
        // The layout byte, and per record two lengths, the id "t0" with its quotes, the payload.
        expected.extend_from_slice(&(1 + 2 * (8 + 4) + 8u32).to_le_bytes());
        expected.extend_from_slice(&(block.len() as u32).to_le_bytes());
        expected.extend_from_slice(&block);
        expected.extend_from_slice(b"\0\0");
        expected.extend_from_slice(&names_and_bounds);
        expected.extend_from_slice(b"\0\x13OFFSET_OUT_OF_RANGE");
        assert_eq!(answer.body, expected);
        assert!(answer.failed);
        // One record at or above the offset.
        assert_eq!((answer.records, answer.payload_bytes), (1, 7));

        let mut entries = entries;
        entries[0].life = Some(Uuid::from_u128(0xa1));
        let answer = pack(&entries, Version::WithLives, Uuid::nil(), None);
        let lives = [Uuid::from_u128(0xa1), Uuid::nil()];
        let (first, second) = (9 + names_and_bounds.len(), expected.len() - 21);
        expected[4] = 2;
        expected.splice(second..second, lives[1].into_bytes());
        expected.splice(first..first, lives[0].into_bytes());
        assert_eq!(answer.body, expected);

        let answer = pack(&entries, Version::Described, Uuid::nil(), None);
        expected[4] = 3;
        assert_eq!(answer.body, expected);

        let answer = pack(&entries, Version::Stored, Uuid::nil(), None);
        let at = first + 16 + SEGMENT_BYTES;
        expected[4] = 4;
        expected[at - 4..at].copy_from_slice(&(as_stored.len() as u32).to_le_bytes());
        expected.splice(at..at + block.len(), as_stored);
        assert_eq!(answer.body, expected);
    }

    #[test]
    fn a_block_of_zstd_is_sent_as_it_is_stored_to_who_knows_descriptions() {
        let stored = segment_in(Compression::Zstd, 41, &["1"]);
        let as_stored = stored.block.clone();
        let answer = |version| {
            let entries = [entry(41, vec![stored.clone()])];
            pack(&entries, version, Uuid::nil(), None).body
        };
        let ends = |answer: &[u8], block: &[u8]| answer.ends_with(&[block, b"\0\0"].concat());
        for version in [Version::Stored, Version::Described] {
            assert!(ends(&answer(version), &as_stored), "{version:?}");
        }
        let frame = &as_stored[18..];
        let plain = answer(Version::WithLives);
        assert!(ends(&plain, frame) && !ends(&plain, &as_stored));
    }

    #[test]
    fn what_does_not_open_ends_its_entry() {
        let mut sealed = segment(42, &["2"]);
        sealed.block = b"Q\x01 and the rest, under a key that is not here".to_vec();
        let readable = segment(41, &["1"]);
        let length = readable.block.len();
        let entries = [entry(41, vec![readable, sealed, segment(43, &["3"])])];
        let answer = pack(&entries, Version::Stored, Uuid::nil(), None);
        assert!(answer.body.ends_with(b"\0\x0aUNREADABLE"));
        assert_eq!(answer.body.len(), 9 + 9 + 16 + 16 + 29 + length + 12);
        assert_eq!((answer.records, answer.failed), (1, true));
    }
}
