//! Records as they arrive: a fetch answer's body, or the content of its segments, is kept whole, and
//! each record is a small index entry into it.

mod decode;
mod gather;
mod segments;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memchr;

use crate::memory::{Hold, MemoryBudget};
use crate::time::Micros;

pub use decode::{DecodeError, decode_fetch};
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

/// Records of one body. Shared by the chunks that point into it; the body's memory counts against
/// the budget until the last of them is gone.
#[derive(Debug)]
pub struct Batch {
    // Dropped first: the body's memory is kept for the next one only if there is room for it.
    hold: Hold,
    body: Bytes,
    index: Vec<RecordIndex>,
    ids: Ids,
}

/// What is known of the transaction ids of a batch, so that nobody has to look into each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// None has an escape: what stands between the quotes is the id itself.
    Plain,
    /// Some may have.
    Escaped,
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
        Arc::new(Self {
            body,
            index,
            ids,
            hold,
        })
    }

    /// Whether the transaction id of `record` has an escape.
    pub fn has_escapes(&self, record: &RecordIndex) -> bool {
        self.ids == Ids::Escaped && memchr(b'\\', self.transaction_id(record)).is_some()
    }

    /// The index entries, in the order of the body.
    pub fn index(&self) -> &[RecordIndex] {
        &self.index
    }

    /// The escaped transaction id of `record`, without its quotes.
    pub fn transaction_id(&self, record: &RecordIndex) -> &[u8] {
        slice(
            &self.body,
            record.transaction_id_start,
            record.transaction_id_len,
        )
    }

    /// The payload's JSON text of `record`, as the broker sent it.
    pub fn payload(&self, record: &RecordIndex) -> &[u8] {
        slice(&self.body, record.payload_start, record.payload_len)
    }

    /// [`Batch::transaction_id`], sharing the body.
    pub fn transaction_id_bytes(&self, record: &RecordIndex) -> Bytes {
        self.body.slice_ref(self.transaction_id(record))
    }

    /// [`Batch::payload`], sharing the body.
    pub fn payload_bytes(&self, record: &RecordIndex) -> Bytes {
        self.body.slice_ref(self.payload(record))
    }

    /// Bytes that this batch holds of the budget.
    pub fn held_bytes(&self) -> usize {
        self.hold.bytes()
    }
}

fn slice(body: &Bytes, start: u32, len: u32) -> &[u8] {
    &body[start as usize..start as usize + len as usize]
}

/// A run of consecutive records of one partition in one batch.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The batch that holds the records.
    pub batch: Arc<Batch>,
    /// Index entries of the run, a range into [`Batch::index`]; never empty in a buffer.
    pub range: Range<u32>,
}

impl Chunk {
    /// The run's index entries, `offset` rising.
    pub fn records(&self) -> &[RecordIndex] {
        &self.batch.index()[self.range.start as usize..self.range.end as usize]
    }
}

impl Chunk {
    /// Bytes that the chunk needs by itself: its stretch of the body and its index entries.
    pub fn span_bytes(&self) -> usize {
        let span = self.span();
        span.len() + self.range.len() * size_of::<RecordIndex>()
    }

    /// A copy of the chunk in a body of its own.
    pub fn compacted(&self, budget: &Arc<MemoryBudget>) -> Self {
        let span = self.span();
        let shift = span.start as u32;
        let body = Bytes::copy_from_slice(&self.batch.body[span]);
        let index: Vec<RecordIndex> = self
            .records()
            .iter()
            .map(|record| RecordIndex {
                transaction_id_start: record.transaction_id_start - shift,
                payload_start: record.payload_start - shift,
                ..*record
            })
            .collect();
        let end = index.len() as u32;
        Self {
            batch: Batch::new(body, index, self.batch.ids, budget),
            range: 0..end,
        }
    }

    /// The stretch of the body that the records' slices lie in.
    fn span(&self) -> Range<usize> {
        let (mut start, mut end) = (usize::MAX, 0);
        for record in self.records() {
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
