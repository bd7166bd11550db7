//! What every form of a fetch answer must agree with: its request, and itself.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::packed::{Block, Packed, Trust};
use super::{Batch, Ids, RecordIndex};
use crate::broker::{EntryError, FetchAnswer, FetchRequest, FetchedEntry};
use crate::memory::MemoryBudget;
use crate::time::Micros;

/// Where a value lies in the batch's body: its first byte, and its length.
pub(super) type Place = (u32, u32);

/// Collects the records and entries of an answer as they are read. Every error is a text that says
/// what the answer contradicts.
pub(super) struct Gather<'a> {
    request: &'a FetchRequest,
    index: Vec<RecordIndex>,
    /// Blocks whose records are not in the index.
    blocks: Vec<Block>,
    /// How many those are.
    packed: u32,
    entries: Vec<FetchedEntry>,
    ids: Ids,
    /// First record of the entry being read.
    first: u32,
    /// Offset and `ts` of the last record of the entry being read; before the first, what a record
    /// must be above.
    last: (i64, Micros),
    /// Whether `ts` fell within the entry being read: what follows is left to the next answer.
    ts_fell: bool,
}

impl<'a> Gather<'a> {
    /// For an answer to `request`.
    pub(super) fn new(request: &'a FetchRequest) -> Self {
        Self {
            request,
            index: Vec::new(),
            blocks: Vec::new(),
            packed: 0,
            entries: Vec::with_capacity(request.entries.len()),
            ids: Ids::Plain,
            first: 0,
            last: (-1, Micros::MIN),
            ts_fell: false,
        }
    }

    /// Makes room for `records` more records.
    pub(super) fn reserve(&mut self, records: usize) {
        self.index.reserve(records);
    }

    /// Says of ids that were read what they are.
    pub(super) fn met(&mut self, ids: Ids) {
        if ids == Ids::Escaped {
            self.ids = ids;
        }
    }

    /// Queue and partition of the entry that comes next or is being read.
    pub(super) fn wanted(&self) -> Result<(&'a str, &'a str), String> {
        let entries = &self.request.entries;
        match entries.get(self.entries.len()) {
            Some(entry) => Ok((&self.request.queue, &entry.partition)),
            None => Err(format!("more than the {} entries asked for", entries.len())),
        }
    }

    /// Names the entry being read, for an error.
    pub(super) fn place(&self) -> String {
        let (queue, partition) = self.wanted().unwrap_or_default();
        format!(
            "entry {} (queue {}, partition {})",
            self.entries.len(),
            excerpt(queue),
            excerpt(partition)
        )
    }

    /// Makes ready for the records of the next entry.
    pub(super) fn begin_entry(&mut self) -> Result<(), String> {
        self.wanted()?;
        let wanted = &self.request.entries[self.entries.len()];
        self.first = self.found();
        self.last = (wanted.offset.max(0) - 1, Micros::MIN);
        self.ts_fell = false;
        Ok(())
    }

    /// First offset that the entry being read asks for.
    pub(super) fn from(&self) -> i64 {
        let entry = self.request.entries.get(self.entries.len());
        entry.map_or(0, |entry| entry.offset)
    }

    /// Takes a record of the entry being read.
    pub(super) fn record(
        &mut self,
        offset: i64,
        ts: Micros,
        transaction_id: Place,
        payload: Place,
    ) -> Result<(), String> {
        if self.follows(offset, ts)? {
            self.last = (offset, ts);
            self.index.push(RecordIndex {
                offset,
                ts,
                transaction_id_start: transaction_id.0,
                transaction_id_len: transaction_id.1,
                payload_start: payload.0,
                payload_len: payload.1,
            });
        }
        Ok(())
    }

    /// Takes a block of the entry being read, whose records begin at `offset` and have this `ts`: it is
    /// made with the number of its first one. No record of the answer is given by itself then.
    pub(super) fn block(
        &mut self,
        offset: i64,
        ts: Micros,
        block: impl FnOnce(u32) -> Block,
    ) -> Result<(), String> {
        if self.follows(offset, ts)? {
            let block = block(self.packed);
            self.last = (offset + i64::from(block.records) - 1, ts);
            self.packed += block.records;
            self.blocks.push(block);
        }
        Ok(())
    }

    /// Whether a record at `offset` with this `ts` is taken.
    fn follows(&mut self, offset: i64, ts: Micros) -> Result<bool, String> {
        let (last_offset, last_ts) = self.last;
        if offset <= last_offset {
            let least = last_offset.saturating_add(1);
            return Err(format!(
                "{}: offset {offset} where {least} or more must come",
                self.place()
            ));
        }
        if offset == i64::MAX {
            return Err(format!("{}: no offset follows {offset}", self.place()));
        }
        self.ts_fell |= ts < last_ts;
        Ok(!self.ts_fell)
    }

    /// Ends the entry being read, which has these bounds and is of this life of the partition. Records before one
    /// that cannot be read are an answer like any other: who asks for what follows them is told.
    pub(super) fn end_entry(
        &mut self,
        mut high_watermark: i64,
        log_start: i64,
        life: Option<Uuid>,
        mut error: Option<EntryError>,
    ) -> Result<(), String> {
        if log_start < 0 || high_watermark < log_start {
            return Err(format!(
                "{}: the log runs from {log_start} to {high_watermark}",
                self.place()
            ));
        }
        let records = self.first..self.found();
        if !records.is_empty() {
            let (last_offset, _) = self.last;
            let unreadable = error.take_if(|error| *error == EntryError::Unreadable);
            let known = if unreadable.is_some() { 2 } else { 1 };
            high_watermark = high_watermark.max(last_offset.saturating_add(known));
        }
        self.entries.push(FetchedEntry {
            records,
            high_watermark,
            log_start,
            life,
            error,
        });
        Ok(())
    }

    /// Ends the answer, whose records lie in `body`.
    pub(super) fn finish(
        mut self,
        body: Bytes,
        budget: &Arc<MemoryBudget>,
    ) -> Result<FetchAnswer, String> {
        self.complete()?;
        self.index.shrink_to_fit();
        Ok(FetchAnswer {
            batch: Batch::new(body, self.index, self.ids, budget),
            entries: self.entries,
        })
    }

    /// Ends the answer, whose blocks lie in `body`.
    pub(super) fn finish_packed(
        self,
        body: Bytes,
        trust: &Arc<Trust>,
        budget: &Arc<MemoryBudget>,
    ) -> Result<FetchAnswer, String> {
        self.complete()?;
        let mut blocks = self.blocks;
        blocks.shrink_to_fit();
        let trust = Arc::clone(trust);
        let packed = Packed {
            body,
            blocks,
            trust,
        };
        Ok(FetchAnswer {
            batch: Batch::packed(packed, budget),
            entries: self.entries,
        })
    }

    fn complete(&self) -> Result<(), String> {
        let (found, wanted) = (self.entries.len(), self.request.entries.len());
        if found < wanted {
            return Err(format!("{found} entries where {wanted} were asked for"));
        }
        Ok(())
    }

    /// Records found so far. Fits: each takes more than one byte of a content whose length fits.
    fn found(&self) -> u32 {
        self.index.len() as u32 + self.packed
    }
}

/// The start of a foreign text, for an error.
pub(super) fn excerpt(text: &str) -> String {
    const CHARS: usize = 100;
    text.chars().take(CHARS).collect()
}
