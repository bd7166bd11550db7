//! Reading: which partitions to fetch next, and what their answers mean.

use std::sync::Arc;

use uuid::Uuid;

use crate::broker::{EntryError, FetchedEntry, ListedPartition, Name};
use crate::record::{Batch, Chunk};
use crate::time::Micros;

use super::partition::{Foreign, Run};
use super::seek::{Probe, Seek};
use super::{Engine, PartitionId, Unread};

/// One partition to fetch.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The partition.
    pub id: PartitionId,
    /// Its raw name.
    pub name: Name,
    /// First offset wanted.
    pub offset: i64,
    /// Only the first record matters: the reading position is being looked for.
    pub probe: bool,
    /// The first record is the one before the position: its `ts` tells the partition's life.
    pub(super) overlap: bool,
    /// The partition's life, as passes had told it.
    life: Option<Uuid>,
    generation: u32,
}

/// What an answer brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// Records, or a narrower search.
    Progress,
    /// Nothing: the call's budget ran out before this partition, or the request was outdated.
    Nothing,
    /// The answer contradicts what is known; the partition waits for a complete pass.
    Suspect(&'static str),
    /// The broker named an error; the request stays out until it is given back.
    Error(EntryError),
}

impl Engine {
    /// Up to `max` partitions to fetch, lowest frontier first. Each is out until its answer is
    /// taken in by [`Engine::read`] or given back by [`Engine::unread`].
    pub fn next_reads(&mut self, max: usize) -> Vec<ReadRequest> {
        let chosen: Vec<PartitionId> = self.ready.iter().take(max).map(|(_, id)| *id).collect();
        let request = |id| self.request(id, false);
        chosen.into_iter().map(request).collect()
    }

    /// Whether some partition's reading position is not certain yet.
    pub fn wants_probes(&self) -> bool {
        self.uncertain().next().is_some()
    }

    /// Partitions whose reading position is not certain, but for those that are not read because
    /// their lives began after [`Engine::mark_lives`]; repeats included.
    fn uncertain(&self) -> impl Iterator<Item = PartitionId> {
        let found = self.seeks.keys().chain(self.unproven.keys());
        let found = found.chain(self.doubted_losses.keys()).copied();
        found.filter(|id| self.is_marked(*id))
    }

    fn is_marked(&self, id: PartitionId) -> bool {
        self.partition(id).generation <= self.marked
    }

    /// Adds up to `max` of `ids` that may be asked for now.
    fn choose<'a>(
        &self,
        ids: impl Iterator<Item = &'a PartitionId>,
        max: usize,
        chosen: &mut Vec<PartitionId>,
    ) {
        let free = ids.copied().filter(|id| {
            let flags = self.partition(*id).flags;
            self.is_marked(*id) && !flags.busy && !flags.suspect
        });
        chosen.extend(free.take(max));
    }

    /// Up to `max` partitions whose reading position is not certain yet, as
    /// [`Engine::next_reads`]. Their answers are used to make it so and for nothing else.
    pub fn next_probes(&mut self, max: usize) -> Vec<ReadRequest> {
        // The first of each, because there may be millions: the first of all are among them.
        let mut chosen = Vec::new();
        self.choose(self.seeks.keys(), max, &mut chosen);
        self.choose(self.unproven.keys(), max, &mut chosen);
        self.choose(self.doubted_losses.keys(), max, &mut chosen);
        chosen.sort_unstable();
        chosen.dedup();
        chosen.truncate(max);
        let request = |id| self.request(id, true);
        chosen.into_iter().map(request).collect()
    }

    fn request(&mut self, id: PartitionId, probe: bool) -> ReadRequest {
        let seek = self.seeks.get(&id).map(Seek::probe);
        let probe = probe || seek.is_some();
        // The first record of an unproven position is itself the one before it.
        let reads_on = !probe && !self.unproven.contains_key(&id);
        let overlap = reads_on && self.partition(id).overlaps();
        self.update(id, |engine| {
            let flags = &mut engine.partition_mut(id).flags;
            flags.busy = true;
            if overlap || (reads_on && flags.starts_here) {
                flags.settling = std::mem::take(&mut flags.doubted);
            }
        });
        let partition = self.partition(id);
        ReadRequest {
            id,
            name: self.names.of(partition.name).into(),
            offset: seek.unwrap_or(partition.position - i64::from(overlap)),
            probe,
            overlap,
            life: partition.id,
            generation: partition.generation,
        }
    }

    /// Gives a request back unanswered: nothing changes, and it may be asked again.
    pub fn unread(&mut self, request: &ReadRequest) {
        if self.is_current(request) {
            let id = request.id;
            self.update(id, |engine| engine.release(id));
        }
    }

    fn release(&mut self, id: PartitionId) {
        let partition = self.partition_mut(id);
        partition.flags.busy = false;
        partition.doubt_again();
    }

    /// Takes in the answer to `request`: `entry`, whose records lie in `batch`.
    pub fn read(
        &mut self,
        request: &ReadRequest,
        batch: &Arc<Batch>,
        entry: &FetchedEntry,
    ) -> ReadResult {
        if !self.is_current(request) {
            return ReadResult::Nothing;
        }
        let id = request.id;
        self.update(id, |engine| {
            let result = engine.answer(request, batch, entry);
            if !matches!(result, ReadResult::Error(_)) {
                engine.release(id);
            }
            result
        })
    }

    fn is_current(&self, request: &ReadRequest) -> bool {
        matches!(self.partitions.get(request.id.0 as usize), Some(Some(partition))
            if partition.generation == request.generation)
    }

    fn answer(
        &mut self,
        request: &ReadRequest,
        batch: &Arc<Batch>,
        entry: &FetchedEntry,
    ) -> ReadResult {
        let id = request.id;
        self.partition_mut(id).flags.cramped = false;
        if !self.is_of_this_life(id, entry) {
            return match request.life {
                Some(_) => self.doubt_life(id),
                // A page told the life since, and the answer may be older than that.
                None => ReadResult::Nothing,
            };
        }
        if let Some(error) = &entry.error {
            if *error != EntryError::OffsetOutOfRange {
                return ReadResult::Error(error.clone());
            }
            if entry.log_start > request.offset {
                self.log_starts_at(id, entry.log_start);
                self.begins_at(id, entry);
                return ReadResult::Progress;
            }
            return self.suspect(id, "its log ends below the offset that was read up to");
        }
        let reads_here = self.reads_from_start(request);
        if reads_here && entry.log_start < request.offset {
            // What was gone is there: the next request asks for it.
            self.partition_mut(id).flags.starts_here = false;
            return ReadResult::Progress;
        }
        let mut chunk = Chunk {
            batch: Arc::clone(batch),
            range: entry.records.clone(),
        };
        let Some(mut first) = chunk.first() else {
            let at_end = entry.high_watermark == request.offset;
            if reads_here && at_end && self.settle(id, entry.high_watermark) {
                return ReadResult::Progress;
            }
            if entry.high_watermark <= request.offset {
                return self.suspect(id, "its watermark is below the one shown before");
            }
            return ReadResult::Nothing;
        };
        let count = i64::from(chunk.range.end - chunk.range.start);
        let last = chunk.last().map_or(first.offset, |last| last.offset);
        if last - first.offset + 1 != count {
            return self.suspect(id, "offsets are missing within its log");
        }
        if first.offset > request.offset {
            if entry.log_start <= request.offset {
                return self.suspect(id, "offsets are missing within its log");
            }
            self.log_starts_at(id, first.offset);
            self.begins_at(id, entry);
        } else if request.overlap {
            if self.is_later_life(id, first.ts) {
                self.begin_life(id, &self.life_of(id, entry.log_start, entry.high_watermark));
                return ReadResult::Progress;
            }
            let settled = self.settle(id, entry.high_watermark);
            chunk.range.start += 1;
            first = match chunk.first() {
                Some(next) => next,
                None if self.ends_early(id, entry) => {
                    return self.suspect(id, "its watermark is below the one shown before");
                }
                None if settled => return ReadResult::Progress,
                None => {
                    self.partition_mut(id).flags.cramped = true;
                    return ReadResult::Nothing;
                }
            };
        } else if reads_here {
            self.settle(id, entry.high_watermark);
        }
        if request.probe {
            return self.probed(request, first.offset, first.ts);
        }
        if !self.prove(id, first.offset, first.ts) {
            return ReadResult::Progress;
        }
        self.take_in(id, chunk, entry.high_watermark);
        ReadResult::Progress
    }

    /// Whether an answer is of the life that is being read, as far as ids tell. One that is has shown
    /// for certain how far that life reaches.
    fn is_of_this_life(&mut self, id: PartitionId, entry: &FetchedEntry) -> bool {
        let heeded = !self.contradicted;
        let partition = self.partition_mut(id);
        let (Some(read), Some(told)) = (partition.id, entry.life.filter(|_| heeded)) else {
            return true;
        };
        if read == told {
            partition.listed_end = partition.listed_end.max(entry.high_watermark);
        }
        read == told
    }

    /// An answer is of another life than the one that is being read, which is over then if it is true.
    /// A page that is asked for later decides: what some broker or gateway puts there must not make
    /// records lost. Until then the partition is not read, and holds back the windows that have to name
    /// what is lost of it.
    fn doubt_life(&mut self, id: PartitionId) -> ReadResult {
        let since = self.pass.pages;
        let partition = self.partition_mut(id);
        if !std::mem::replace(&mut partition.flags.suspect, true) {
            let foreign = Foreign {
                since,
                unsettled: false,
            };
            self.foreign.insert(id, foreign);
        }
        ReadResult::Suspect("its answers name another life than the listing")
    }

    /// Whether the record before the position, which has this `ts`, is of another life than what was
    /// read: each life lies above the former. What was passed over is below the cut, and a new life
    /// above it as long as the doubt holds windows back.
    fn is_later_life(&self, id: PartitionId, ts: Micros) -> bool {
        let read = self.partition(id).last_ts;
        if read == Micros::MIN {
            ts >= self.cut
        } else {
            ts > read
        }
    }

    /// Whether `request` reads at the start of a log whose life no id tells.
    fn reads_from_start(&self, request: &ReadRequest) -> bool {
        let partition = self.partition(request.id);
        partition.id.is_none() && partition.flags.starts_here && !request.probe
    }

    /// Whether an answer shows an end at the position, below the watermark shown before.
    fn ends_early(&self, id: PartitionId, entry: &FetchedEntry) -> bool {
        let partition = self.partition(id);
        partition.is_behind() && entry.high_watermark <= partition.position
    }

    /// The life that an answer about a partition without an id speaks of, as a pass would list it.
    fn life_of(&self, id: PartitionId, log_start: i64, end: i64) -> ListedPartition {
        ListedPartition {
            name: self.name(id).into(),
            id: None,
            last_offset: end - 1,
            log_start,
            last_write_at: None,
        }
    }

    /// Takes in that an answer, which holds the log from `log_start` up to `end`, shows a partition in
    /// another life than the one in which `unread` was found. Where passes tell lives, the next one
    /// decides.
    pub fn lives_anew(&mut self, unread: &Unread, log_start: i64, end: i64) {
        let found = self.find(&unread.partition);
        if let Some(id) = found.filter(|id| self.partition(*id).generation == unread.generation) {
            let life = self.life_of(id, log_start, end);
            self.update(id, |engine| match unread.life {
                Some(_) => {
                    engine.doubt_life(id);
                }
                None => engine.begin_life(id, &life),
            });
        }
    }

    /// Takes in that the log of a partition without an id now ends before what `unread` found: where no
    /// record lies before the position, which would tell, it is taken for another life.
    pub fn ended_early(&mut self, unread: &Unread) {
        if unread.position > 0 {
            return;
        }
        let found = self.find(&unread.partition).map(|id| self.partition(id));
        if let Some(end) = found.map(|partition| partition.watermark) {
            self.lives_anew(unread, 0, end);
        }
    }

    /// The life that an answer speaks of is the one that is being read, up to `end`. Answers whether
    /// that was in doubt.
    fn settle(&mut self, id: PartitionId, end: i64) -> bool {
        let partition = self.partition_mut(id);
        if partition.id.is_none() {
            partition.listed_end = partition.listed_end.max(end);
        }
        std::mem::take(&mut partition.flags.settling)
    }

    /// An answer says that nothing is left before the position: whichever life the log is of, it is
    /// read from there.
    fn begins_at(&mut self, id: PartitionId, entry: &FetchedEntry) {
        let partition = self.partition_mut(id);
        if entry.log_start == partition.position && !self.seeks.contains_key(&id) {
            self.partition_mut(id).flags.starts_here = true;
            self.settle(id, entry.high_watermark);
        }
    }

    fn probed(&mut self, request: &ReadRequest, offset: i64, ts: Micros) -> ReadResult {
        let cut = self.cut;
        match self.seeks.get_mut(&request.id) {
            Some(seek) => {
                if ts < cut {
                    // Everything before it is in earlier windows, what went as well.
                    self.doubted_losses.remove(&request.id);
                }
                if let Probe::ReadFrom(from) = seek.seen(request.offset, offset, ts, cut) {
                    self.end_seek(request.id, from);
                }
            }
            None => {
                if self.prove(request.id, offset, ts) && ts < cut {
                    // It is in an earlier window: reading begins after it.
                    let now = self.pass.pages;
                    let partition = self.partition_mut(request.id);
                    partition.position = partition.position.max(offset + 1);
                    partition.moved_at = now;
                }
            }
        }
        ReadResult::Progress
    }

    /// The search is over: reading begins at `from`, and skips what lies below the cut.
    pub(super) fn end_seek(&mut self, id: PartitionId, from: i64) {
        self.seeks.remove(&id);
        let now = self.pass.pages;
        let partition = self.partition_mut(id);
        partition.position = from;
        partition.watermark = partition.watermark.max(from);
        partition.moved_at = now;
        partition.flags.starts_here = false;
    }

    fn take_in(&mut self, id: PartitionId, mut chunk: Chunk, high_watermark: i64) {
        let cut = self.cut;
        let now = self.pass.pages;
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else {
            return;
        };
        if std::mem::take(&mut self.partition_mut(id).flags.reborn) {
            self.separate_lives(id, first.ts);
        }
        let partition = self.partition_mut(id);
        let floor = partition.last_ts;
        partition.position = last.offset + 1;
        partition.watermark = partition
            .watermark
            .max(high_watermark)
            .max(partition.position);
        partition.last_ts = partition.last_ts.max(last.ts);
        partition.moved_at = now;
        partition.flags.starts_here = false;
        if partition.flags.skipping {
            chunk.range.start += chunk.below(cut);
            partition.flags.skipping = chunk.range.is_empty() && partition.is_behind();
        }
        let name = partition.name;
        if !chunk.range.is_empty() {
            let name = self.names.of(name);
            let run = Run { chunk, floor };
            self.sizes.add(name, &run, cut);
            self.buffers.entry(id).or_default().runs.push_back(run);
        }
    }

    /// Records buffered at or above the new life's first `ts` were read of the new life under the
    /// former one's name: they are read again at their true offsets, and what the former life had
    /// at theirs is lost.
    fn separate_lives(&mut self, id: PartitionId, first_ts: Micros) {
        let former_end = self.former_ends.remove(&id).unwrap_or_default();
        let Some(buffer) = self.buffers.get_mut(&id) else {
            return;
        };
        let misread = buffer.take_from(first_ts);
        let emptied = buffer.runs.is_empty();
        let name = self.names.of(self.partition(id).name);
        for run in &misread {
            self.sizes.remove(name, run, self.cut);
        }
        let first = misread.first().and_then(|run| run.chunk.first());
        let last = misread.last().and_then(|run| run.chunk.last());
        if let (Some(first), Some(last)) = (first, last) {
            self.note_lost(id, first.offset, last.offset.min(former_end - 1));
        }
        if emptied {
            self.buffers.remove(&id);
            self.life_starts.remove(&id);
        } else {
            self.life_starts.insert(id, first_ts);
        }
    }

    fn suspect(&mut self, id: PartitionId, why: &'static str) -> ReadResult {
        let now = self.pass.pages;
        let partition = self.partition_mut(id);
        partition.moved_at = now;
        if !std::mem::replace(&mut partition.flags.suspect, true) {
            self.suspects += 1;
        }
        ReadResult::Suspect(why)
    }
}
