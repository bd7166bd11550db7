//! The log of one window, read straight from the broker in object order: partition by partition,
//! a few fetches in memory at a time.

use std::collections::VecDeque;

use tracing::warn;

use super::Task;
use crate::broker::{EntryError, FetchAnswer, FetchEntry, FetchRequest, FetchedEntry, Name};
use crate::lake::manifest::OffsetRange;
use crate::limits::{FETCH_ENTRY_MAX_BYTES, MIB, STREAM_ENTRIES};
use crate::observe::sampled::Sampled;
use crate::record::Chunk;
use crate::time::Micros;

/// Stored bytes asked for per partition when several are fetched together.
const TOGETHER_BYTES: u32 = (MIB / 8) as u32;

/// Records with `from <= ts < to` of the given partitions, in order.
pub(super) struct LogStream<'a> {
    task: &'a Task,
    from: Micros,
    to: Micros,
    /// Partitions not yet begun: name, position, watermark.
    rest: std::slice::Iter<'a, (Name, i64, i64)>,
    /// Partitions begun, in order, with what was fetched of them.
    begun: VecDeque<Reading>,
    /// Ranges found deleted.
    pub(super) lost: Vec<OffsetRange>,
}

struct Reading {
    partition: Name,
    position: i64,
    watermark: i64,
    chunks: VecDeque<Chunk>,
    /// No record of the window is left to fetch.
    done: bool,
}

/// The log changed under the stream: partitions have to be discovered anew.
#[derive(Debug)]
pub(super) struct Changed;

impl<'a> LogStream<'a> {
    /// A stream over `partitions`, sorted by name, each with a position at or before its first
    /// record of the window.
    pub(super) fn new(
        task: &'a Task,
        partitions: &'a [(Name, i64, i64)],
        from: Micros,
        to: Micros,
    ) -> Self {
        Self {
            task,
            from,
            to,
            rest: partitions.iter(),
            begun: VecDeque::new(),
            lost: Vec::new(),
        }
    }

    /// The next run of records of the next partition.
    pub(super) async fn next(&mut self) -> Result<Option<(Name, Chunk)>, Changed> {
        loop {
            let Some(first) = self.begun.front_mut() else {
                if !self.begin().await? {
                    return Ok(None);
                }
                continue;
            };
            if let Some(chunk) = first.chunks.pop_front() {
                return Ok(Some((first.partition.clone(), chunk)));
            }
            if first.done {
                self.begun.pop_front();
                continue;
            }
            self.go_on().await?;
        }
    }

    /// Fetches the first records of the next few partitions together.
    async fn begin(&mut self) -> Result<bool, Changed> {
        let wanted = self
            .rest
            .by_ref()
            .filter(|(_, position, watermark)| position < watermark);
        self.begun = wanted
            .take(STREAM_ENTRIES)
            .map(|(partition, position, watermark)| Reading {
                partition: partition.clone(),
                position: *position,
                watermark: *watermark,
                chunks: VecDeque::new(),
                done: false,
            })
            .collect();
        if self.begun.is_empty() {
            return Ok(false);
        }
        let answer = self.fetch(self.begun.len(), TOGETHER_BYTES).await;
        for (at, entry) in answer.entries.iter().enumerate() {
            self.take_in(at, &answer, entry, false)?;
        }
        Ok(true)
    }

    /// Fetches more of the partition that is next in order, alone.
    async fn go_on(&mut self) -> Result<(), Changed> {
        let answer = self.fetch(1, FETCH_ENTRY_MAX_BYTES).await;
        match answer.entries.first() {
            Some(entry) => self.take_in(0, &answer, entry, true),
            None => Err(Changed),
        }
    }

    fn take_in(
        &mut self,
        at: usize,
        answer: &FetchAnswer,
        entry: &FetchedEntry,
        alone: bool,
    ) -> Result<(), Changed> {
        let reading = &mut self.begun[at];
        match &entry.error {
            None => {}
            Some(EntryError::OffsetOutOfRange) if entry.log_start > reading.position => {
                self.lost.push(OffsetRange {
                    partition: reading.partition.to_string(),
                    from: reading.position,
                    to: entry.log_start - 1,
                });
                reading.position = entry.log_start;
                reading.done = reading.position >= reading.watermark;
                return Ok(());
            }
            Some(_) => return Err(Changed),
        }
        let mut chunk = Chunk {
            batch: answer.batch.clone(),
            range: entry.records.clone(),
        };
        let (Some(first), Some(last)) = (
            chunk.records().first().copied(),
            chunk.records().last().copied(),
        ) else {
            // The first record of a call always comes: alone and empty, the partition ended.
            return if alone { Err(Changed) } else { Ok(()) };
        };
        if first.offset > reading.position {
            return Err(Changed);
        }
        reading.position = last.offset + 1;
        reading.done = reading.position >= reading.watermark || last.ts >= self.to;
        let records = chunk.records();
        let skipped = records.partition_point(|record| record.ts < self.from) as u32;
        let below = records.partition_point(|record| record.ts < self.to) as u32;
        let start = chunk.range.start;
        chunk.range = start + skipped..start + below.max(skipped);
        if !chunk.range.is_empty() {
            reading.chunks.push_back(chunk);
        }
        Ok(())
    }

    /// Fetches the first `count` partitions begun, trying until there is an answer.
    async fn fetch(&self, count: usize, max_bytes: u32) -> FetchAnswer {
        let request = FetchRequest {
            queue: self.task.queue.clone(),
            entries: self
                .begun
                .iter()
                .take(count)
                .map(|reading| FetchEntry {
                    partition: reading.partition.clone(),
                    offset: reading.position,
                    max_bytes,
                })
                .collect(),
            max_wait_ms: 0,
        };
        let mut backoff = self.task.context.jitter.backoff();
        let mut sampled = Sampled::default();
        loop {
            match self.task.fetch(&request).await {
                Ok(answer) => return answer,
                Err(error) => {
                    if let Some(suppressed) = sampled.failure() {
                        let queue = &self.task.queue;
                        warn!(%queue, %error, suppressed, "fetching failed; trying again");
                    }
                    tokio::time::sleep(backoff.next(error.retry_after())).await;
                }
            }
        }
    }
}
