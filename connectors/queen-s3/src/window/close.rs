//! Closing windows: when, at which bound, and with which records.

use std::collections::HashMap;
use std::sync::Arc;

use crate::broker::Name;
use crate::lake::manifest::OffsetRange;
use crate::limits::{DRAIN_WORTH_BYTES, DRAIN_WORTH_OPEN_US};
use crate::memory::MemoryBudget;
use crate::record::{Batch, Chunk};
use crate::time::Micros;

use super::{Engine, PartitionId, Remembered};

/// What asks for a window besides its size, its age and its alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    /// Nothing.
    None,
    /// Memory is short.
    Memory,
    /// The process stops.
    Drain,
    /// The queue is gone: what was read and lost of it is all that there will be.
    Gone,
}

/// What closing brought.
#[derive(Debug)]
pub enum Close {
    /// A window to write.
    Window(ClosedWindow),
    /// Nothing happened below this bound: the pointer may move there.
    Idle(Micros),
}

/// A window's bounds and records, taken out of the engine.
#[derive(Debug)]
pub struct ClosedWindow {
    /// Start, inclusive.
    pub t_start: Micros,
    /// End, exclusive.
    pub t_end: Micros,
    /// Records by partition name (bytes), each partition's in log order.
    pub partitions: Vec<(Name, Vec<Chunk>)>,
    /// Sum of the record bytes.
    pub record_bytes: u64,
    /// Ranges deleted before they were read.
    pub lost: Vec<OffsetRange>,
    /// Records below `t_start`.
    pub late: Vec<OffsetRange>,
    /// Which records it has, should they have to be read again.
    pub remembered: Remembered,
}

/// The bounds that a window could have now.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    t_start: Micros,
    t_end: Micros,
}

impl Engine {
    /// Whether a window could be closed now and more is buffered than one holds.
    pub fn is_full(&self) -> bool {
        if self.sizes.total() < self.policy.target_bytes {
            return false;
        }
        let (Some(bound), Some(first)) = (self.close_bound(), self.sizes.first()) else {
            return false;
        };
        let bucket_end = self.policy.align.bucket_end(first);
        let limit = bound.min(bucket_end);
        first < limit && (limit == bucket_end || self.size_cut(first, limit).is_some())
    }

    /// Takes a window out if one should be closed now, or says that the pointer may move over a
    /// stretch without records. Windows and moves are committed in the order in which they are
    /// taken.
    pub fn close(&mut self, press: Press) -> Option<Close> {
        let bound = self.close_bound()?;
        if bound <= self.cut {
            return None;
        }
        let aged = self.age() >= self.policy.max_window_us;
        let Some(first) = self.sizes.first().filter(|first| *first < bound) else {
            let worth = !self.lost.is_empty() && self.pressed_for_losses(press);
            if !aged && !worth {
                return None;
            }
            if self.lost.is_empty() {
                self.advance(bound);
                return Some(Close::Idle(bound));
            }
            let t_start = self
                .cut
                .max(self.policy.align.directory_start(bound.back(1)));
            return Some(Close::Window(self.take(Bounds {
                t_start,
                t_end: bound,
            })));
        };
        let t_start = self.cut.max(self.policy.align.directory_start(first));
        let bucket_end = self.policy.align.bucket_end(first);
        let limit = bound.min(bucket_end);
        let full = self.size_cut(first, limit);
        let whole_bucket = limit == bucket_end;
        if full.is_none() && !whole_bucket && !aged && !self.pressed(press) {
            return None;
        }
        Some(Close::Window(self.take(Bounds {
            t_start,
            t_end: full.unwrap_or(limit),
        })))
    }

    /// Bounds of a window whose records are not to be taken from the buffer but read again as a
    /// redo does: the earliest instant in sight, when the budget holds no more than that and it
    /// cannot be closed otherwise.
    pub fn oversized(&self) -> Option<(Micros, Micros)> {
        let settled = self.safe?.back(self.policy.guard_us);
        let first = self.sizes.first().unwrap_or(Micros::MAX);
        let unread = self
            .behind
            .first()
            .map_or(Micros::MAX, |(frontier, _)| *frontier);
        let at = first.min(unread);
        if at == Micros::MIN || at == Micros::MAX {
            return None;
        }
        let at = at.max(self.cut);
        let t_end = at.on(1);
        let t_start = self.cut.max(self.policy.align.directory_start(at));
        (t_end <= settled).then_some((t_start, t_end))
    }

    /// Records that are buffered for the window `[t_start, t_end)` and lie below its start.
    pub fn late(&self, t_start: Micros, t_end: Micros) -> Vec<OffsetRange> {
        let mut late = Vec::new();
        for (id, buffer) in &self.buffers {
            let former = self.former_lives_end(*id).unwrap_or(Micros::MIN);
            let name: Name = self.name(*id).into();
            let present = buffer.chunks_below(t_end);
            let present = present.filter(|chunk| chunk.first().is_some_and(|one| one.ts >= former));
            late.extend(present.filter_map(|chunk| late_range(&name, &chunk, t_start)));
        }
        late
    }

    /// Whether a page is to tell if what is buffered can be read again.
    pub fn waits_for_lives(&self) -> bool {
        let buffered = |id: &&PartitionId| self.buffers.contains_key(id);
        let mut foreign = self.foreign.keys().filter(buffered);
        foreign.any(|id| !self.partition(*id).flags.reborn)
    }

    /// Notes what is buffered of lives that are over as lost: who reads the log again finds nothing of
    /// them.
    pub fn lose_former_lives(&mut self) {
        let buffers = &self.buffers;
        let former: Vec<(PartitionId, i64, i64)> = buffers
            .iter()
            .flat_map(|(id, buffer)| {
                let below = self.former_lives_end(*id);
                let ranges = below
                    .into_iter()
                    .flat_map(|below| buffer.ranges_below(below));
                ranges.map(|(first, last)| (*id, first, last))
            })
            .collect();
        // An intent has not room for many.
        let joined = former.chunk_by(|a, b| a.0 == b.0 && a.2 + 1 == b.1);
        let joined: Vec<_> = joined
            .filter_map(|runs| Some((runs.first()?.0, runs.first()?.1, runs.last()?.2)))
            .collect();
        for (id, first, last) in joined {
            self.note_lost(id, first, last);
        }
    }

    /// At or below every frontier, and final.
    fn close_bound(&self) -> Option<Micros> {
        let settled = self.safe?.back(self.policy.guard_us);
        let frontier = self
            .behind
            .first()
            .map_or(Micros::MAX, |(frontier, _)| *frontier);
        Some(settled.min(frontier))
    }

    /// How long until the present window is as old as one may become, µs on the broker's clock, seen at
    /// the last complete pass; 0 once it is. `None` where nothing waits to be in it.
    pub fn closes_in(&self) -> Option<i64> {
        let waits =
            self.sizes.first().is_some() || !self.behind.is_empty() || !self.lost.is_empty();
        waits.then(|| self.policy.max_window_us.saturating_sub(self.age()).max(0))
    }

    /// How long the present window has been open, µs on the broker's clock.
    fn age(&self) -> i64 {
        match (self.safe, self.opened) {
            (Some(safe), Some(opened)) => safe.0.saturating_sub(opened.0),
            _ => 0,
        }
    }

    fn pressed(&self, press: Press) -> bool {
        match press {
            Press::None => false,
            Press::Memory | Press::Gone => true,
            Press::Drain => {
                self.sizes.total() >= DRAIN_WORTH_BYTES
                    || self.age() >= DRAIN_WORTH_OPEN_US
                    || self.alone_knows()
            }
        }
    }

    /// Whether something is known that the next start cannot find any more: ranges that are lost, or what is
    /// buffered of lives that are over.
    fn alone_knows(&self) -> bool {
        let mut buffered = self.buffers.keys();
        !self.lost.is_empty() || buffered.any(|id| self.former_lives_end(*id).is_some())
    }

    /// Whether a window without records is worth it for the ranges that it names.
    fn pressed_for_losses(&self, press: Press) -> bool {
        match press {
            Press::None | Press::Memory => false,
            // The next start cannot find them.
            Press::Drain => true,
            // Those that are read already come first.
            Press::Gone => self.buffers.is_empty(),
        }
    }

    /// Where a window that would pass the size target ends instead: as late as the target allows,
    /// and never before one whole instant is in it.
    fn size_cut(&self, first: Micros, limit: Micros) -> Option<Micros> {
        if self.sizes.total() < self.policy.target_bytes {
            return None;
        }
        let mut bytes = 0;
        for (at, here) in self.sizes.iter().take_while(|(at, _)| *at < limit) {
            if at > first && bytes + here > self.policy.target_bytes {
                return Some(at);
            }
            bytes += here;
        }
        (bytes >= self.policy.target_bytes).then_some(limit)
    }

    fn take(&mut self, bounds: Bounds) -> ClosedWindow {
        let mut partitions = Vec::new();
        let mut late = Vec::new();
        let mut emptied = Vec::new();
        let mut remembered = Remembered::default();
        let ids: Vec<PartitionId> = self.buffers.keys().copied().collect();
        for id in ids {
            let former = self.former_lives_end(id);
            let Some(buffer) = self.buffers.get_mut(&id) else {
                continue;
            };
            let chunks = buffer.take_below(bounds.t_end);
            if buffer.runs.is_empty() {
                emptied.push(id);
            }
            if chunks.is_empty() {
                continue;
            }
            let partition = self.partitions[id.0 as usize]
                .as_ref()
                .expect("a partition is tracked while records of it are buffered");
            let name: Name = self.names.of(partition.name).into();
            remembered.take(&name, partition.id, &chunks, former);
            for chunk in &chunks {
                late.extend(late_range(&name, chunk, bounds.t_start));
            }
            partitions.push((name, chunks));
        }
        for id in emptied {
            self.buffers.remove(&id);
            self.life_starts.remove(&id);
        }
        partitions.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let record_bytes = self.sizes.take_below(bounds.t_end);
        self.advance(bounds.t_end);
        ClosedWindow {
            t_start: bounds.t_start,
            t_end: bounds.t_end,
            partitions,
            record_bytes,
            lost: std::mem::take(&mut self.lost),
            late,
            remembered,
        }
    }

    fn advance(&mut self, cut: Micros) {
        self.cut = cut;
        self.opened = self.safe;
    }

    /// Drops buffered records, those furthest ahead first, until about `bytes` record bytes are
    /// dropped or only the earliest instant is left; they are read again later. Answers the record
    /// bytes dropped.
    pub fn shed(&mut self, bytes: u64, budget: &Arc<MemoryBudget>) -> u64 {
        let Some(from) = self.shed_from(bytes) else {
            return 0;
        };
        let before = self.sizes.total();
        let buffered: Vec<PartitionId> = self.buffers.keys().copied().collect();
        for id in buffered {
            self.update(id, |engine| engine.drop_from(id, from));
        }
        self.compact(budget);
        before - self.sizes.total()
    }

    fn shed_from(&self, bytes: u64) -> Option<Micros> {
        let first = self.sizes.first()?;
        let mut dropped = 0;
        let mut from = None;
        for (at, here) in self.sizes.iter().rev() {
            if at == first || dropped >= bytes {
                break;
            }
            dropped += here;
            from = Some(at);
        }
        from
    }

    fn drop_from(&mut self, id: PartitionId, from: Micros) {
        let flags = self.partition(id).flags;
        if flags.ended || flags.reborn || self.foreign.contains_key(&id) {
            return;
        }
        let from = self
            .life_starts
            .get(&id)
            .map_or(from, |start| from.max(*start));
        let Some(buffer) = self.buffers.get_mut(&id) else {
            return;
        };
        let dropped = buffer.take_from(from);
        if buffer.runs.is_empty() {
            self.buffers.remove(&id);
            self.life_starts.remove(&id);
        }
        let Some((first, floor)) = dropped
            .first()
            .and_then(|run| Some((run.chunk.first()?, run.floor)))
        else {
            return;
        };
        let name = self.names.of(self.partition(id).name);
        for run in &dropped {
            self.sizes.remove(name, run, self.cut);
        }
        let generation = self.next_generation();
        let now = self.pass.pages;
        let partition = self.partition_mut(id);
        partition.position = first.offset;
        partition.last_ts = first.ts.max(floor);
        partition.generation = generation;
        partition.moved_at = now;
        partition.flags.busy = false;
        partition.flags.starts_here = false;
        partition.doubt_again();
    }

    /// Copies what is left of bodies that are mostly dropped, so that they can go.
    fn compact(&mut self, budget: &Arc<MemoryBudget>) {
        let mut live: HashMap<*const Batch, usize> = HashMap::new();
        for run in self.buffers.values().flat_map(|buffer| &buffer.runs) {
            let chunk = &run.chunk;
            *live.entry(Arc::as_ptr(&chunk.batch)).or_default() += chunk.span_bytes();
        }
        for run in self
            .buffers
            .values_mut()
            .flat_map(|buffer| &mut buffer.runs)
        {
            let batch = &run.chunk.batch;
            let live = live.get(&Arc::as_ptr(batch)).copied().unwrap_or_default();
            if live * 2 < batch.held_bytes() {
                run.chunk = run.chunk.compacted(budget);
            }
        }
    }
}

/// The records of `chunk` below `t_start`, if there are any.
fn late_range(name: &Name, chunk: &Chunk, t_start: Micros) -> Option<OffsetRange> {
    let start = chunk.range.start;
    let late = chunk.part(start..start + chunk.below(t_start));
    let (first, last) = (late.first()?, late.last()?);
    Some(OffsetRange {
        partition: name.to_string(),
        from: first.offset,
        to: last.offset,
    })
}
