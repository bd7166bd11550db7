//! Records that are kept as the broker sent them, compressed, until their texts are wanted.
//!
//! The broker describes each block that it stores: what is in it is known, and that it is whole, without
//! decompressing it. Buffered records then take the memory of compressed ones, and what is decompressed
//! is read while it is in the processor's caches.
//!
//! ```text
//! description: u32 0x184D2A5A | u32 10 | u8 1 | u8 ids | u32 empty payloads | u32 CRC-32C
//! ```
//!
//! It stands before the block's [frame](super::frame) and is a skippable frame by itself; `ids` is 0 where none of the
//! transaction ids has an escape. The checksum is that of the six bytes before it and the frame.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use serde_json::value::RawValue;
use thiserror::Error;

use super::frame::decompress;
use super::{Ids, Mark, RecordIndex};
use crate::time::Micros;

/// What a description begins with.
const DESCRIPTION: &[u8] = b"\x5a\x2a\x4d\x18";
const DESCRIPTION_LAYOUT: u8 = 1;
const PLAIN_IDS: u8 = 0;

/// Layout of a block's content.
pub(super) const LAYOUT: u8 = 1;
/// What a record takes beside its id and payload.
pub(super) const RECORD_HEAD: usize = 8;
/// What an empty payload stands for, and is read as.
pub(super) const NULL: &[u8] = b"null";

/// A block is not what its description says, although its checksum is right.
#[derive(Debug, Error)]
#[error(
    "the records from offset {offset} on are not what the broker's description of their block says"
)]
pub struct Damaged {
    offset: i64,
}

/// Whether a broker's descriptions of its blocks are believed: until one turns out not to be true.
#[derive(Debug, Default)]
pub struct Trust {
    lost: AtomicBool,
}

impl Trust {
    /// Whether they are.
    pub(super) fn is_there(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }
}

/// What the description of a block says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description {
    /// Whether no transaction id has an escape.
    pub(super) plain_ids: bool,
    pub(super) empty_payloads: u32,
    /// Checksum of what it says.
    told: u32,
    checksum: u32,
}

impl Description {
    /// Whether it is whole and `frame` the one that is described.
    pub(super) fn is_of(&self, frame: &[u8]) -> bool {
        crc32c_append(self.told, frame) == self.checksum
    }
}

/// What is in the skippable frame that `block` begins with, if it does, and what comes behind it.
fn skippable(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = block.strip_prefix(DESCRIPTION)?.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// The frame of `block`, and the description before it, if there is one of a known layout.
pub(super) fn described(block: &[u8]) -> (Option<Description>, &[u8]) {
    let Some((told, frame)) = skippable(block) else {
        return (None, block);
    };
    let Ok([layout, ids, a, b, c, d, e, f, g, h]) = <[u8; 10]>::try_from(told) else {
        return (None, frame);
    };
    let description = Description {
        plain_ids: ids == PLAIN_IDS,
        empty_payloads: u32::from_le_bytes([a, b, c, d]),
        told: crc32c(&[layout, ids, a, b, c, d]),
        checksum: u32::from_le_bytes([e, f, g, h]),
    };
    ((layout == DESCRIPTION_LAYOUT).then_some(description), frame)
}

/// A block of a batch. Its transaction ids have no escapes.
#[derive(Debug)]
pub(super) struct Block {
    /// Which of the batch's records is its first one.
    pub(super) first: u32,
    pub(super) records: u32,
    /// Offset of its first record.
    pub(super) offset: i64,
    pub(super) ts: Micros,
    /// Where its frame lies in the body.
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) raw_bytes: u32,
    pub(super) empty_payloads: u32,
}

impl Block {
    /// Bytes of all ids, with their quotes, and payloads.
    fn text_bytes(&self) -> u64 {
        let heads = 1 + RECORD_HEAD as u64 * u64::from(self.records);
        let nulls = NULL.len() as u64 * u64::from(self.empty_payloads);
        u64::from(self.raw_bytes).saturating_sub(heads) + nulls
    }
}

/// Records of one batch, block by block.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) body: Bytes,
    pub(super) blocks: Vec<Block>,
    pub(super) trust: Arc<Trust>,
}

/// What is known of a whole block without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Offset of its first record.
    pub offset: i64,
    /// The `ts` of its records.
    pub ts: Micros,
    /// How many there are, with consecutive offsets.
    pub records: u64,
    /// Length of their transaction ids, which have no escapes, with their quotes, and of their payloads.
    pub text_bytes: u64,
}

impl Packed {
    /// The blocks that have a record in `range`, with that part of it.
    pub(super) fn pieces(&self, range: &Range<u32>) -> impl Iterator<Item = (&Block, Range<u32>)> {
        let (start, end) = (range.start, range.end);
        let at = self.blocks.partition_point(|block| block.first <= start);
        let blocks = &self.blocks[at.saturating_sub(1)..];
        let within = blocks.iter().take_while(move |block| block.first < end);
        within.filter_map(move |block| {
            let part = start.max(block.first)..end.min(block.first + block.records);
            (!part.is_empty()).then_some((block, part))
        })
    }

    /// The record number `at`.
    pub(super) fn mark(&self, at: u32) -> Option<Mark> {
        let (block, _) = self.pieces(&(at..at.checked_add(1)?)).next()?;
        Some(Mark {
            offset: block.offset + i64::from(at - block.first),
            ts: block.ts,
        })
    }

    /// What is known of the records `part` of `block`, if they are all of it.
    pub(super) fn known(block: &Block, part: &Range<u32>) -> Option<Known> {
        (part.len() == block.records as usize).then(|| Known {
            offset: block.offset,
            ts: block.ts,
            records: block.records.into(),
            text_bytes: block.text_bytes(),
        })
    }

    /// The stretch of the body in which the frames of these records lie, and how many of them there are.
    pub(super) fn span(&self, range: &Range<u32>) -> (Range<usize>, usize) {
        let (mut start, mut end, mut count) = (usize::MAX, 0, 0);
        for (block, _) in self.pieces(range) {
            start = start.min(block.start as usize);
            end = end.max((block.start + block.len) as usize);
            count += 1;
        }
        (start.min(end)..end, count)
    }

    /// A copy with the blocks of `range` alone, and that range in it.
    pub(super) fn copied(&self, range: &Range<u32>) -> (Self, Range<u32>) {
        let (span, _) = self.span(range);
        let shift = span.start as u32;
        let mut first = 0;
        let blocks = self.pieces(range).map(|(block, _)| {
            let block = Block {
                first,
                start: block.start - shift,
                ..*block
            };
            first += block.records;
            block
        });
        let copy = Self {
            blocks: blocks.collect(),
            body: Bytes::copy_from_slice(&self.body[span]),
            trust: Arc::clone(&self.trust),
        };
        let before = self.pieces(range).next();
        let start = before.map_or(0, |(block, part)| part.start - block.first);
        (copy, start..start + range.len() as u32)
    }

    /// Appends the records `part` of `block` to `to`.
    pub(super) fn unpack(
        &self,
        block: &Block,
        part: &Range<u32>,
        to: &mut Unpacked,
    ) -> Result<(), Damaged> {
        let frame = &self.body[block.start as usize..(block.start + block.len) as usize];
        if self.append(block, frame, part, to).is_some() {
            return Ok(());
        }
        self.trust.lost.store(true, Ordering::Relaxed);
        Err(Damaged {
            offset: block.offset,
        })
    }

    fn append(
        &self,
        block: &Block,
        frame: &[u8],
        part: &Range<u32>,
        to: &mut Unpacked,
    ) -> Option<()> {
        let start = to.body.len();
        decompress(frame, block.raw_bytes as usize, &mut to.body)?;
        if checked(&to.body[start..], block.records as usize)? != Ids::Plain {
            return None;
        }
        let skipped = part.start - block.first;
        let mut offset = block.offset;
        let end = offset + i64::from(skipped) + part.len() as i64;
        let from = offset + i64::from(skipped);
        let mut empty = 0;
        let (ts, index) = (block.ts, &mut to.index);
        each_place(
            &mut to.body,
            start,
            block.records,
            |id, payload, is_empty| {
                empty += u32::from(is_empty);
                if (from..end).contains(&offset) {
                    index.push(RecordIndex {
                        offset,
                        ts,
                        transaction_id_start: id.0,
                        transaction_id_len: id.1,
                        payload_start: payload.0,
                        payload_len: payload.1,
                    });
                }
                offset += 1;
            },
        );
        (empty == block.empty_payloads).then_some(())
    }
}

/// Records that were decompressed. Their transaction ids have no escapes.
#[derive(Debug, Default)]
pub struct Unpacked {
    pub(super) body: Vec<u8>,
    pub(super) index: Vec<RecordIndex>,
}

impl Unpacked {
    pub(super) fn clear(&mut self) {
        self.body.clear();
        self.index.clear();
    }
}

/// Calls `take` with the places of the id, without its quotes, and the payload of each of `records` records
/// of the content that begins at `start` in `body` and was [`checked`], and whether that payload is empty:
/// it lies, as `null`, behind the content then.
pub(super) fn each_place(
    body: &mut Vec<u8>,
    start: usize,
    records: u32,
    mut take: impl FnMut((u32, u32), (u32, u32), bool),
) {
    let mut null = None;
    let mut at = start + 1;
    for _ in 0..records {
        let (id_length, payload_length) = lengths(&body[at..]);
        let id = at + RECORD_HEAD;
        let payload = id + id_length;
        at = payload + payload_length;
        let place = if payload_length > 0 {
            (payload as u32, payload_length as u32)
        } else {
            let null = *null.get_or_insert_with(|| {
                body.extend_from_slice(NULL);
                body.len() - NULL.len()
            });
            (null as u32, NULL.len() as u32)
        };
        // Every position fits: so does the content's length.
        take(
            (id as u32 + 1, id_length as u32 - 2),
            place,
            payload_length == 0,
        );
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
pub(super) fn checked(content: &[u8], records: usize) -> Option<Ids> {
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
#[path = "packed_tests.rs"]
mod tests;
