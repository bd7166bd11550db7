//! What is known of one partition. Kept small: there may be millions.

use std::collections::VecDeque;

use uuid::Uuid;

use super::names::NameAt;
use crate::broker::Name;
use crate::limits::CHANGED_SINCE_SLACK_US;
use crate::record::Chunk;
use crate::time::Micros;

/// Index of a tracked partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub(super) u32);

/// Reading state of one partition's present life.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) name: NameAt,
    /// The present life, where the broker tells lives apart.
    pub(super) id: Option<Uuid>,
    /// Next offset to read.
    pub(super) position: i64,
    /// Greatest watermark that any pass or fetch has shown of this life.
    pub(super) watermark: i64,
    /// Watermark that the last pass naming it showed: surely of this life.
    pub(super) listed_end: i64,
    /// `ts` of the last record read of this life, [`Micros::MIN`] before the first: no unread
    /// record goes below it.
    pub(super) last_ts: Micros,
    /// Renewed when positions are reset; an answer to an older request is void.
    pub(super) generation: u32,
    /// Page count when position or watermark last moved.
    pub(super) moved_at: u32,
    /// Page count when a pass last named it.
    pub(super) named_at: u32,
    /// `lastWriteAt` that a pass showed last, [`Micros::MIN`] before the first. Only a partition
    /// whose lives no id tells apart needs it.
    pub(super) written: Micros,
    pub(super) flags: Flags,
}

/// What is unread of a partition in one of its lives.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Its raw name.
    pub partition: Name,
    /// First offset to read.
    pub position: i64,
    /// Greatest watermark that was shown: nothing of this life is known to lie at or above it.
    pub watermark: i64,
    /// Whether it has records that came late.
    pub late: bool,
    /// The life, where passes tell the partition's lives apart.
    pub life: Option<Uuid>,
    /// The same, unless what answers name contradicts it.
    pub told: Option<Uuid>,
    /// No record of this life below the watermark is newer: it was there when the broker told when
    /// the partition was last written to.
    pub newest: Micros,
    pub(super) generation: u32,
}

impl Unread {
    /// What is unread of `partition`, called `name`, with the `safeTime` of the last complete pass.
    pub(super) fn of(name: &str, partition: &Partition, safe: Micros) -> Self {
        let newest = match partition.written {
            Micros::MIN => Micros::MAX,
            // A record below `safe` was there as well, whatever was told of it.
            written => written.on(CHANGED_SINCE_SLACK_US).max(safe),
        };
        Self {
            newest,
            late: false,
            partition: name.into(),
            position: partition.position,
            watermark: partition.watermark,
            life: partition.id,
            told: partition.id,
            generation: partition.generation,
        }
    }
}

/// Yes-or-no facts about a partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// A fetch call is out for it, or it waits for something else before the next one.
    pub(super) busy: bool,
    /// Records below the committed end are from earlier windows and skipped.
    pub(super) skipping: bool,
    /// A new life began whose first record is not read yet: what is buffered may hold records of
    /// both lives.
    pub(super) reborn: bool,
    /// Its answers contradict the passes; it waits for a complete pass that began later, or for a page
    /// that tells its life, where [`Foreign`] is known of it.
    pub(super) suspect: bool,
    /// A page named it without an id since one told its life: the next life may have been there then.
    pub(super) untold: bool,
    /// Its life is over, as a full pass says: what is buffered cannot be read again.
    pub(super) ended: bool,
    /// Known from a checkpoint only; no pass has named it yet.
    pub(super) restored: bool,
    /// The log begins at the position: no record before it is left that could tell lives apart.
    pub(super) starts_here: bool,
    /// A pass showed, where no id does, that the partition may be living another life; no answer
    /// to a request made since has settled it.
    pub(super) doubted: bool,
    /// The request that is out settles the doubt.
    pub(super) settling: bool,
    /// The last answer held the record before the position and had no room for the next.
    pub(super) cramped: bool,
}

/// An answer named another life of a partition than pages had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreign {
    /// Page count at the answer: pages asked for before say nothing of it.
    pub(super) since: u32,
    /// A pass that was to name what moved since said nothing of it either.
    pub(super) unsettled: bool,
}

impl Partition {
    /// Whether records are known to be there that have not been read.
    pub(super) fn is_behind(&self) -> bool {
        self.position < self.watermark
    }

    /// Whether something has to be fetched before a window may close above the frontier.
    pub(super) fn is_open(&self) -> bool {
        self.is_behind() || self.flags.doubted || self.flags.settling
    }

    /// The request that was to settle a doubt brought no answer that does.
    pub(super) fn doubt_again(&mut self) {
        self.flags.doubted |= std::mem::take(&mut self.flags.settling);
    }

    /// Whether a read asks for the record before the position as well, whose `ts` tells the life.
    pub(super) fn overlaps(&self) -> bool {
        let flags = self.flags;
        self.id.is_none() && self.position > 0 && !flags.starts_here && !flags.cramped
    }
}

/// A run of buffered records. Within it `ts` does not fall; where it fell between two runs, because
/// the broker broke its promise, the later one is bound to the earlier by its floor.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) chunk: Chunk,
    /// Greatest `ts` of the partition before the run: no window may hold the run without what came
    /// before it.
    pub(super) floor: Micros,
}

/// Buffered records of one partition, in log order.
#[derive(Debug, Default)]
pub(super) struct PartitionBuffer {
    pub(super) runs: VecDeque<Run>,
}

impl PartitionBuffer {
    /// Offset of the first buffered record at or above `from`.
    pub(super) fn first_offset_from(&self, from: Micros) -> Option<i64> {
        self.runs
            .iter()
            .flat_map(|run| run.chunk.marks())
            .find(|record| record.ts >= from)
            .map(|record| record.offset)
    }

    /// The buffered records that belong below `end`, run by run.
    pub(super) fn chunks_below(&self, end: Micros) -> impl Iterator<Item = Chunk> {
        let part = move |run: &Run| run.chunk.part(run.chunk.range.start..run.split(end));
        self.runs.iter().map(part)
    }

    /// Their first and last offsets.
    pub(super) fn ranges_below(&self, end: Micros) -> impl Iterator<Item = (i64, i64)> {
        let ends = |chunk: Chunk| Some((chunk.first()?.offset, chunk.last()?.offset));
        self.chunks_below(end).filter_map(ends)
    }

    /// Takes the records that belong below `end` out, in order.
    pub(super) fn take_below(&mut self, end: Micros) -> Vec<Chunk> {
        let mut taken = Vec::new();
        while let Some(run) = self.runs.front_mut() {
            let middle = run.split(end);
            let range = run.chunk.range.clone();
            if middle > range.start {
                taken.push(run.chunk.part(range.start..middle));
            }
            if middle < range.end {
                run.chunk.range.start = middle;
                break;
            }
            self.runs.pop_front();
        }
        taken
    }

    /// Takes the records that belong at or above `from` out, in order.
    pub(super) fn take_from(&mut self, from: Micros) -> Vec<Run> {
        let mut taken = VecDeque::new();
        while let Some(run) = self.runs.back_mut() {
            let middle = run.split(from);
            let range = run.chunk.range.clone();
            if middle == range.end {
                break;
            }
            if middle > range.start {
                taken.push_front(Run {
                    chunk: run.chunk.part(middle..range.end),
                    floor: run.floor,
                });
                run.chunk.range.end = middle;
                break;
            }
            if let Some(run) = self.runs.pop_back() {
                taken.push_front(run);
            }
        }
        taken.into()
    }
}

impl Run {
    /// Index of the first record that belongs at or above `at`.
    fn split(&self, at: Micros) -> u32 {
        let range = &self.chunk.range;
        if self.floor >= at {
            return range.start;
        }
        range.start + self.chunk.below(at)
    }
}
