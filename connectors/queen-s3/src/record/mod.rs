//! Records as they arrive: a fetch answer's body is kept whole. Either each record is a small index entry
//! into it, or into the content of its segments; or the segments stay compressed until the records' texts
//! are wanted.

mod decode;
mod frame;
mod gather;
mod packed;
mod segments;
#[cfg(test)]
pub(crate) mod testing;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memchr;

use crate::memory::{Hold, MemoryBudget};
use crate::time::Micros;

use packed::Packed;

pub use decode::{DecodeError, decode_fetch};
pub use packed::{Damaged, Known, Trust, Unpacked};
pub use segments::{SEGMENTS, decode_segments};

/// Where one record lies in its batch's body. Positions are byte offsets into the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordIndex {
    /// Absolute offset in the partition.
    pub offset: i64,
    /// Commit time of the record's segment.
    pub ts: Micros,
    /// First byte of the transaction id, between its quotes, escaped as the broker escaped it.
    pub transaction_id_start: u32,
    /// Length of the escaped transaction id.
    pub transaction_id_len: u32,
    /// First byte of the payload's JSON text.
    pub payload_start: u32,
    /// Length of the payload's JSON text.
    pub payload_len: u32,
}

/// Where a record stands in its partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Absolute offset in the partition.
    pub offset: i64,
    /// Commit time of its segment.
    pub ts: Micros,
}

/// A record with its texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Absolute offset in the partition.
    pub offset: i64,
    /// Commit time of its segment.
    pub ts: Micros,
    /// The transaction id, between its quotes, escaped as the broker escaped it.
    pub transaction_id: &'a [u8],
    /// Whether that has an escape.
    pub escaped: bool,
    /// The payload's JSON text, as the broker sent it.
    pub payload: &'a [u8],
}

/// Records of one fetch answer. Shared by the chunks that point into it; its memory counts against
/// the budget until the last of them is gone.
#[derive(Debug)]
pub struct Batch {
    // Dropped first: the body's memory is kept for the next one only if there is room for it.
    hold: Hold,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Open(Open),
    Packed(Packed),
}

/// What is known of the transaction ids of a batch, so that nobody has to look into each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// None has an escape: what stands between the quotes is the id itself.
    Plain,
    /// Some may have.
    Escaped,
}

/// Records whose texts lie open in one body.
#[derive(Clone, Debug)]
pub struct Open {
    body: Bytes,
    index: Vec<RecordIndex>,
    ids: Ids,
}

impl Open {
    /// The index entries, in the order of the records.
    pub fn index(&self) -> &[RecordIndex] {
        &self.index
    }

    /// A record of the index.
    pub fn record(&self, index: &RecordIndex) -> Record<'_> {
        record(&self.body, index, self.ids)
    }
}

fn record<'a>(body: &'a [u8], index: &RecordIndex, ids: Ids) -> Record<'a> {
    let slice = |start: u32, len: u32| &body[start as usize..start as usize + len as usize];
    let transaction_id = slice(index.transaction_id_start, index.transaction_id_len);
    Record {
        offset: index.offset,
        ts: index.ts,
        transaction_id,
        escaped: ids == Ids::Escaped && memchr(b'\\', transaction_id).is_some(),
        payload: slice(index.payload_start, index.payload_len),
    }
}

impl RecordIndex {
    fn mark(&self) -> Mark {
        Mark {
            offset: self.offset,
            ts: self.ts,
        }
    }
}

impl Batch {
    /// A batch over `body`; every entry of `index` must lie within it, and its ids be as `ids` says.
    pub fn new(
        body: Bytes,
        index: Vec<RecordIndex>,
        ids: Ids,
        budget: &Arc<MemoryBudget>,
    ) -> Arc<Self> {
        let hold = budget.hold(body.len() + index.len() * size_of::<RecordIndex>());
        let content = Content::Open(Open { body, index, ids });
        Arc::new(Self { hold, content })
    }

    fn packed(packed: Packed, budget: &Arc<MemoryBudget>) -> Arc<Self> {
        let blocks = packed.blocks.len() * size_of::<packed::Block>();
        Arc::new(Self {
            hold: budget.hold(packed.body.len() + blocks),
            content: Content::Packed(packed),
        })
    }

    /// How many records it has.
    pub fn records(&self) -> u32 {
        match &self.content {
            Content::Open(open) => open.index.len() as u32,
            Content::Packed(packed) => {
                let last = packed.blocks.last();
                last.map_or(0, |block| block.first + block.records)
            }
        }
    }

    /// Bytes that this batch holds of the budget.
    pub fn held_bytes(&self) -> usize {
        self.hold.bytes()
    }

    fn mark(&self, at: u32) -> Option<Mark> {
        match &self.content {
            Content::Open(open) => open.index.get(at as usize).map(RecordIndex::mark),
            Content::Packed(packed) => packed.mark(at),
        }
    }
}

/// A run of consecutive records of one partition in one batch.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The batch that holds the records.
    pub batch: Arc<Batch>,
    /// Numbers of the run's records among those of the batch; never empty in a buffer.
    pub range: Range<u32>,
}

/// Records of a chunk that share what is known of them.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Their texts lie open.
    Open(&'a Open, &'a [RecordIndex]),
    /// They are compressed in one block.
    Packed(Packing<'a>),
}

impl Piece<'_> {
    /// Calls `take` with each of the records. What is compressed is decompressed into `scratch`.
    ///
    /// # Errors
    ///
    /// Those of `take`, and when a block is not what the broker said of it.
    pub fn each<E: From<Damaged>>(
        &self,
        scratch: &mut Unpacked,
        take: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Open(open, index) => {
                let mut records = index.iter().map(|index| open.record(index));
                records.try_for_each(take)
            }
            Self::Packed(packing) => {
                scratch.clear();
                packing.unpack(scratch)?;
                let records = scratch.index.iter();
                let mut records = records.map(|index| record(&scratch.body, index, Ids::Plain));
                records.try_for_each(take)
            }
        }
    }
}

/// Records of one block.
#[derive(Debug)]
pub struct Packing<'a> {
    packed: &'a Packed,
    block: &'a packed::Block,
    part: Range<u32>,
}

impl Packing<'_> {
    /// Length of their block once it is decompressed.
    pub fn raw_bytes(&self) -> usize {
        self.block.raw_bytes as usize
    }

    /// What is known of them, if they are all of their block.
    pub fn known(&self) -> Option<Known> {
        Packed::known(self.block, &self.part)
    }

    /// Appends them to `to`.
    ///
    /// # Errors
    ///
    /// When the block is not what the broker said of it.
    pub fn unpack(&self, to: &mut Unpacked) -> Result<(), Damaged> {
        self.packed.unpack(self.block, &self.part, to)
    }
}

impl Chunk {
    /// All records of `batch`.
    pub fn whole(batch: &Arc<Batch>) -> Self {
        Self {
            batch: Arc::clone(batch),
            range: 0..batch.records(),
        }
    }

    /// The records `range` of the same batch.
    pub fn part(&self, range: Range<u32>) -> Self {
        Self {
            batch: Arc::clone(&self.batch),
            range,
        }
    }

    /// Where its first record stands.
    pub fn first(&self) -> Option<Mark> {
        let at = self.range.start;
        (!self.range.is_empty()).then(|| self.batch.mark(at))?
    }

    /// Where its last record stands.
    pub fn last(&self) -> Option<Mark> {
        let at = self.range.end.checked_sub(1)?;
        (!self.range.is_empty()).then(|| self.batch.mark(at))?
    }

    /// Where its records stand, `offset` rising.
    pub fn marks(&self) -> impl Iterator<Item = Mark> {
        self.pieces().flat_map(|piece| {
            let (open, packed) = match piece {
                Piece::Open(_, index) => (index, None),
                Piece::Packed(packing) => (&[][..], Some(packing)),
            };
            let packed = packed.into_iter().flat_map(|packing| {
                let (block, part) = (packing.block, packing.part);
                part.map(|at| Mark {
                    offset: block.offset + i64::from(at - block.first),
                    ts: block.ts,
                })
            });
            open.iter().map(RecordIndex::mark).chain(packed)
        })
    }

    /// How many of its records, which ascend by `ts`, are below `end`.
    pub fn below(&self, end: Micros) -> u32 {
        match &self.batch.content {
            Content::Open(open) => {
                let records = open.part(&self.range);
                records.partition_point(|record| record.ts < end) as u32
            }
            Content::Packed(packed) => {
                let below = packed.pieces(&self.range);
                let below = below.take_while(|(block, _)| block.ts < end);
                below.map(|(_, part)| part.len() as u32).sum()
            }
        }
    }

    /// Its records by instant: one or several stretches of each.
    pub fn instants(&self) -> impl Iterator<Item = (Micros, Self)> {
        let mut start = self.range.start;
        std::iter::from_fn(move || {
            let rest = self.part(start..self.range.end);
            let ts = rest.first()?.ts;
            let end = match rest.pieces().next()? {
                Piece::Open(_, index) => {
                    let same = index.iter().take_while(|record| record.ts == ts);
                    start + same.count() as u32
                }
                Piece::Packed(packing) => packing.part.end,
            };
            let stretch = self.part(start..end);
            start = end;
            Some((ts, stretch))
        })
    }

    /// Its records in stretches of which the same is known.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let (open, packed) = match &self.batch.content {
            Content::Open(open) => (Some(open), None),
            Content::Packed(packed) => (None, Some(packed)),
        };
        let open = open.map(|open| Piece::Open(open, open.part(&self.range)));
        let packed = packed.into_iter().flat_map(|packed| {
            let pieces = packed.pieces(&self.range);
            pieces.map(move |(block, part)| {
                Piece::Packed(Packing {
                    packed,
                    block,
                    part,
                })
            })
        });
        open.into_iter().chain(packed)
    }

    /// Calls `take` with each record. What is compressed is decompressed into `scratch`, block by block.
    ///
    /// # Errors
    ///
    /// Those of `take`, and when a block is not what the broker said of it.
    pub fn each<E: From<Damaged>>(
        &self,
        scratch: &mut Unpacked,
        mut take: impl FnMut(Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pieces = self.pieces();
        pieces.try_for_each(|piece| piece.each(scratch, &mut take))
    }

    /// Length of its records' texts, about: of those that are compressed once they are not.
    pub fn text_bytes(&self) -> usize {
        match &self.batch.content {
            Content::Open(_) => self.span_bytes(),
            Content::Packed(packed) => {
                let blocks = packed.pieces(&self.range);
                blocks.map(|(block, _)| block.raw_bytes as usize).sum()
            }
        }
    }

    /// Bytes that the chunk needs by itself: its stretch of the body and what is known of its records.
    pub fn span_bytes(&self) -> usize {
        match &self.batch.content {
            Content::Open(open) => {
                let span = open.span(&self.range);
                span.len() + self.range.len() * size_of::<RecordIndex>()
            }
            Content::Packed(packed) => {
                let (span, blocks) = packed.span(&self.range);
                span.len() + blocks * size_of::<packed::Block>()
            }
        }
    }

    /// A copy of the chunk in a body of its own.
    pub fn compacted(&self, budget: &Arc<MemoryBudget>) -> Self {
        match &self.batch.content {
            Content::Open(open) => open.copied(&self.range, budget),
            Content::Packed(packed) => {
                let (copy, range) = packed.copied(&self.range);
                let batch = Batch::packed(copy, budget);
                Self { batch, range }
            }
        }
    }
}

impl Open {
    fn copied(&self, range: &Range<u32>, budget: &Arc<MemoryBudget>) -> Chunk {
        let span = self.span(range);
        let shift = span.start as u32;
        let body = Bytes::copy_from_slice(&self.body[span]);
        let index: Vec<RecordIndex> = self
            .part(range)
            .iter()
            .map(|record| RecordIndex {
                transaction_id_start: record.transaction_id_start - shift,
                payload_start: record.payload_start - shift,
                ..*record
            })
            .collect();
        Chunk::whole(&Batch::new(body, index, self.ids, budget))
    }

    fn part(&self, range: &Range<u32>) -> &[RecordIndex] {
        &self.index[range.start as usize..range.end as usize]
    }

    /// The stretch of the body that the records' slices lie in.
    fn span(&self, range: &Range<u32>) -> Range<usize> {
        let (mut start, mut end) = (usize::MAX, 0);
        for record in self.part(range) {
            for (from, len) in [
                (record.transaction_id_start, record.transaction_id_len),
                (record.payload_start, record.payload_len),
            ] {
                start = start.min(from as usize);
                end = end.max(from as usize + len as usize);
            }
        }
        start.min(end)..end
    }
}
