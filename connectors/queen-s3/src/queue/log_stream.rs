//! The log of one window, read straight from the broker in object order: partition by partition,
//! a few fetches in memory at a time.

use std::collections::VecDeque;

use tracing::warn;

use super::{Task, sampled};
use crate::broker::{EntryError, FetchAnswer, FetchEntry, FetchRequest, FetchedEntry, Name};
use crate::lake::manifest::OffsetRange;
use crate::limits::{FETCH_ENTRY_MAX_BYTES, MIB, STREAM_ENTRIES};
use crate::record::{Chunk, Mark};
use crate::time::Micros;
use crate::window::Unread;

/// Stored bytes asked for per partition when several are fetched together.
const TOGETHER_BYTES: u32 = (MIB / 8) as u32;

/// Records with `from <= ts < to` of the given partitions, in order.
pub(super) struct LogStream<'a> {
    task: &'a Task,
    from: Micros,
    to: Micros,
    /// Records that belong to the window although their `ts` is below `from`.
    late: &'a [OffsetRange],
    /// Partitions not yet begun.
    rest: std::slice::Iter<'a, Unread>,
    /// Partitions begun, in order, with what was fetched of them.
    begun: VecDeque<Reading<'a>>,
    /// Ranges found deleted.
    pub(super) lost: Vec<OffsetRange>,
    /// Late records that were found.
    pub(super) late_found: Vec<OffsetRange>,
    /// Where records below the window ended, in partitions that had such.
    pub(super) written: Vec<(&'a Unread, i64)>,
    /// Where those of the window ended, in partitions that were read to there.
    pub(super) read: Vec<(&'a Unread, i64)>,
}

struct Reading<'a> {
    unread: &'a Unread,
    position: i64,
    /// Whether the next request asks for the record before the position as well, which tells the
    /// partition's life.
    overlaps: bool,
    chunks: VecDeque<Chunk>,
    /// Where reading stood when the log's start turned out to lie further on.
    gap: Option<i64>,
    /// One past the last offset that is dealt with: nothing of the window lies at or above it.
    read: i64,
    /// Whether a record at or above the window's start was read: one below it may have come late to
    /// a later window then, and says nothing of what lies before it.
    begun: bool,
    /// No record of the window is left to fetch.
    done: bool,
}

impl Reading<'_> {
    /// The range missing up to `to`, if one was met.
    fn lost(&self, to: i64) -> Option<OffsetRange> {
        let from = self.gap.filter(|from| *from <= to)?;
        Some(OffsetRange {
            partition: self.unread.partition.to_string(),
            from,
            to,
        })
    }

    /// Whether `records`, an answer from the offset asked for on, are of another life than was
    /// discovered, where no pass tells lives apart. A later life lies above the `safeTime` of the
    /// pass that showed this one, so above the end `to` of the window as well.
    fn is_reborn(&self, records: &Chunk, to: Micros) -> bool {
        let shown = |record: &Mark| record.offset < self.unread.watermark;
        let before = |record: Mark| record.offset < self.position && record.ts >= to;
        let newest = || records.marks().filter(shown).map(|record| record.ts).max();
        self.unread.life.is_none()
            && (newest().is_some_and(|newest| newest > self.unread.newest)
                || records.first().is_some_and(before))
    }

    /// Whether an answer says that it is of another life than was discovered.
    fn is_of_another_life(&self, entry: &FetchedEntry) -> bool {
        let lives = self.unread.told.zip(entry.life);
        lives.is_some_and(|(discovered, told)| discovered != told)
    }

    /// What an answer of another life says.
    fn reborn(&self, entry: &FetchedEntry) -> Changed {
        Changed {
            reborn: Some(Reborn {
                former: self.unread.clone(),
                log_start: entry.log_start,
                end: entry.high_watermark,
            }),
        }
    }

    /// First offset that the next request asks for.
    fn asked(&self) -> i64 {
        self.position - i64::from(self.overlaps)
    }
}

/// The ranges of `partition`.
fn ranges_of<'a>(
    ranges: &'a [OffsetRange],
    partition: &str,
) -> impl Iterator<Item = &'a OffsetRange> {
    let partition = partition.to_owned();
    ranges
        .iter()
        .filter(move |range| range.partition == partition)
}

/// The runs of records of `chunk` that are `wanted`.
fn runs(chunk: &Chunk, wanted: impl Fn(&Mark) -> bool) -> Vec<Chunk> {
    let mut runs: Vec<Chunk> = Vec::new();
    for (at, record) in (chunk.range.start..).zip(chunk.marks()) {
        if !wanted(&record) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.range.end == at => run.range.end += 1,
            _ => runs.push(chunk.part(at..at + 1)),
        }
    }
    runs
}

/// The log changed under the stream: partitions have to be discovered anew.
#[derive(Debug)]
pub(super) struct Changed {
    /// The life that an answer showed a partition to live instead of the one in which it was
    /// discovered.
    pub(super) reborn: Option<Reborn>,
}

/// Another life of a partition.
#[derive(Debug)]
pub(super) struct Reborn {
    /// What was to be read of the former one.
    pub(super) former: Unread,
    /// Where this one's log starts.
    pub(super) log_start: i64,
    /// One past its last offset.
    pub(super) end: i64,
}

impl Changed {
    /// What a pass will show.
    const DISCOVERABLE: Self = Self { reborn: None };
}

impl<'a> LogStream<'a> {
    /// A stream over `partitions`, sorted by name, each with a position at or before its first
    /// record of the window.
    pub(super) fn new(
        task: &'a Task,
        partitions: &'a [Unread],
        from: Micros,
        to: Micros,
        late: &'a [OffsetRange],
    ) -> Self {
        Self {
            task,
            from,
            to,
            late,
            rest: partitions.iter(),
            begun: VecDeque::new(),
            lost: Vec::new(),
            late_found: Vec::new(),
            written: Vec::new(),
            read: Vec::new(),
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
                return Ok(Some((first.unread.partition.clone(), chunk)));
            }
            if first.done {
                self.read.push((first.unread, first.read));
                self.begun.pop_front();
                continue;
            }
            self.go_on().await?;
        }
    }

    /// Fetches the first records of the next few partitions together.
    async fn begin(&mut self) -> Result<bool, Changed> {
        let begun = self.rest.by_ref().map(|unread| Reading {
            unread,
            position: unread.position,
            overlaps: unread.life.is_none() && unread.position > 0,
            chunks: VecDeque::new(),
            gap: None,
            read: unread.position,
            begun: false,
            done: false,
        });
        self.begun = begun.take(STREAM_ENTRIES).collect();
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
            None => Err(Changed::DISCOVERABLE),
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
        if reading.is_of_another_life(entry) {
            return Err(reading.reborn(entry));
        }
        match &entry.error {
            None => {}
            Some(EntryError::OffsetOutOfRange) if entry.log_start > reading.asked() => {
                reading.overlaps = false;
                if entry.log_start > reading.position {
                    reading.gap.get_or_insert(reading.position);
                    reading.position = entry.log_start;
                }
                if reading.position >= reading.unread.watermark {
                    reading.done = true;
                    reading.read = reading.unread.watermark;
                    self.lost.extend(reading.lost(reading.unread.watermark - 1));
                }
                return Ok(());
            }
            Some(error) => {
                let queue = &self.task.queue;
                let (partition, offset) = (&reading.unread.partition, reading.position);
                warn!(%queue, %partition, offset, %error, "a partition cannot be read here");
                return Err(Changed::DISCOVERABLE);
            }
        }
        let mut chunk = Chunk {
            batch: answer.batch.clone(),
            range: entry.records.clone(),
        };
        if reading.is_reborn(&chunk, self.to) {
            return Err(reading.reborn(entry));
        }
        if reading.overlaps
            && let Some(before) = chunk.first()
            && before.offset < reading.position
        {
            chunk.range.start += 1;
            if chunk.range.is_empty() {
                // It had the answer to itself: the next one has room for what follows.
                reading.overlaps = !alone;
                return Ok(());
            }
        }
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else {
            // The first record of a call always comes: alone and empty, the partition ended.
            return if alone {
                Err(Changed::DISCOVERABLE)
            } else {
                Ok(())
            };
        };
        let whole =
            i64::from(chunk.range.end - chunk.range.start) == last.offset - first.offset + 1;
        if first.offset > reading.position || !whole {
            return Err(Changed::DISCOVERABLE);
        }
        if first.ts >= self.from {
            // What is missing before it may be of this window. It may also be of a later one: then
            // it is named here already.
            self.lost.extend(reading.lost(first.offset - 1));
        }
        reading.gap = None;
        reading.position = last.offset + 1;
        reading.read = first.offset + i64::from(chunk.below(self.to));
        reading.overlaps = reading.unread.life.is_none();
        reading.done = reading.position >= reading.unread.watermark || last.ts >= self.to;
        let late = if reading.unread.late { self.late } else { &[] };
        let below = chunk.below(self.from);
        if below > 0 && !reading.unread.late && !reading.begun {
            let end = first.offset + i64::from(below);
            self.written.push((reading.unread, end));
        }
        reading.begun |= last.ts >= self.from;
        let partition = &reading.unread.partition;
        // An offset is not enough: another life of the partition has it too, and lies above.
        let is_late = |record: &Mark| {
            record.ts < self.from
                && ranges_of(late, partition).any(|range| range.contains(record.offset))
        };
        let found = chunk.marks().filter(is_late);
        self.late_found.extend(found.map(|record| OffsetRange {
            partition: partition.to_string(),
            from: record.offset,
            to: record.offset,
        }));
        let wanted =
            |record: &Mark| (record.ts >= self.from && record.ts < self.to) || is_late(record);
        reading.chunks.extend(runs(&chunk, wanted));
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
                    partition: reading.unread.partition.clone(),
                    offset: reading.asked(),
                    max_bytes,
                })
                .collect(),
            max_wait_ms: 0,
        };
        let mut backoff = self.task.context.jitter.backoff();
        loop {
            match self.task.fetch(&request).await {
                Ok(answer) => return answer,
                Err(error) => {
                    if let Some(suppressed) = sampled(&self.task.fetch_log) {
                        let queue = &self.task.queue;
                        warn!(%queue, %error, suppressed, "fetching failed; trying again");
                    }
                    tokio::time::sleep(backoff.next(error.retry_after())).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::memory::MemoryBudget;
    use crate::record::{Batch, Ids, RecordIndex};

    fn chunk(offsets: std::ops::Range<i64>) -> Chunk {
        let index: Vec<RecordIndex> = offsets
            .map(|offset| RecordIndex {
                offset,
                ts: Micros(offset),
                transaction_id_start: 0,
                transaction_id_len: 0,
                payload_start: 0,
                payload_len: 0,
            })
            .collect();
        Chunk::whole(&Batch::new(
            Bytes::new(),
            index,
            Ids::Escaped,
            &MemoryBudget::new(0),
        ))
    }

    #[test]
    fn wanted_records_come_in_runs_around_those_that_are_not() {
        let runs = runs(&chunk(10..20), |record| {
            record.offset < 12 || record.offset > 16
        });
        let ranges: Vec<_> = runs.into_iter().map(|run| run.range).collect();
        assert_eq!(ranges, [0..2, 7..10]);
    }

    #[test]
    fn late_ranges_are_those_of_the_partition() {
        let range = |partition: &str, from| OffsetRange {
            partition: partition.into(),
            from,
            to: from,
        };
        let all = [range("a", 1), range("b", 2), range("a", 3)];
        let of_a: Vec<i64> = ranges_of(&all, "a").map(|range| range.from).collect();
        assert_eq!(of_a, [1, 3]);
    }
}
