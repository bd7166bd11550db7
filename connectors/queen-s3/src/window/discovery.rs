//! Discovery passes: which partitions are there, how far they reach, and up to which instant the
//! answers are final.

use crate::broker::ListedPartition;
use crate::limits::CHANGED_SINCE_SLACK_US;
use crate::time::Micros;

use super::names::NameAt;
use super::partition::{Flags, Partition};
use super::seek::Seek;
use super::{Engine, PartitionId};

/// What a pass asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassRequest {
    /// Only partitions written at or after this; `None` lists every partition.
    pub since: Option<Micros>,
}

/// The pass under way.
#[derive(Debug, Default)]
pub(super) struct Pass {
    running: Option<Running>,
    /// Pages asked for so far: the engine's own clock.
    pub(super) pages: u32,
}

#[derive(Debug)]
struct Running {
    full: bool,
    began_at: u32,
    safe: Micros,
    listed: u64,
}

/// What a complete pass brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSummary {
    /// Partitions listed, repeats included.
    pub listed: u64,
}

impl Engine {
    /// Begins a pass, giving up one that was under way. A full one lists every partition; it is
    /// also made when answers contradict each other, or when the whole log is wanted.
    pub fn begin_pass(&mut self, full: bool) -> PassRequest {
        let whole_log = self.safe.is_none() && self.cut <= Micros::ZERO;
        let unsettled = self.foreign.values().any(|foreign| foreign.unsettled);
        let full = full || whole_log || unsettled || self.unlisted || self.suspects > 0;
        self.pass.running = Some(Running {
            full,
            began_at: self.pass.pages,
            safe: Micros::MAX,
            listed: 0,
        });
        let known = self.safe.unwrap_or(self.cut);
        PassRequest {
            since: (!full).then(|| known.back(CHANGED_SINCE_SLACK_US)),
        }
    }

    /// Notes that a page is asked for now: its answer speaks of no earlier instant.
    pub fn page_asked(&mut self) {
        self.pass.pages += 1;
    }

    /// Takes in a page of the pass under way.
    pub fn page(&mut self, safe_time: Micros, partitions: &[ListedPartition]) {
        let Some(running) = &mut self.pass.running else {
            return;
        };
        running.safe = running.safe.min(safe_time);
        running.listed += partitions.len() as u64;
        for listed in partitions {
            self.listed(listed);
        }
    }

    /// Ends the pass after its last page: its `safeTime` now bounds what is unread.
    pub fn end_pass(&mut self) -> Option<PassSummary> {
        let running = self.pass.running.take()?;
        if running.full {
            self.all_known = true;
            self.unlisted = false;
            self.drop_ended(running.began_at);
        }
        self.settle_foreign(&running);
        self.release_suspects(running.began_at);
        // The last one, not the greatest: a broker whose answers fall costs lag and nothing else.
        self.safe = Some(running.safe);
        self.opened = self.opened.or(self.safe);
        Some(PassSummary {
            listed: running.listed,
        })
    }

    /// The queue is not there, as an answer with `safe_time` says: that is a complete full pass
    /// which lists nothing. Should the queue be back, what it lists is compared with the cut again.
    pub fn queue_gone(&mut self, safe_time: Micros) {
        self.begin_pass(true);
        self.page_asked();
        self.page(safe_time, &[]);
        self.end_pass();
        self.all_known = false;
    }

    /// Gives the pass under way up; what its pages named stays known.
    pub fn abandon_pass(&mut self) {
        self.pass.running = None;
    }

    fn listed(&mut self, listed: &ListedPartition) {
        match self.find(&listed.name) {
            None => self.meet(listed),
            Some(id) => self.update(id, |engine| engine.relist(id, listed)),
        }
    }

    fn meet(&mut self, listed: &ListedPartition) {
        self.forget_named(&listed.name);
        let now = self.pass.pages;
        let watermark = listed.last_offset + 1;
        // A name that a complete full pass did not know is new, and so is all that it holds; and
        // without a boundary to look for, too, reading begins at the log's start.
        let whole = self.all_known || self.cut <= Micros::ZERO;
        let end = watermark.max(listed.log_start);
        let written = !whole && self.is_all_written(listed);
        let seek = Seek::new(listed.log_start, end);
        let position = match (whole, written) {
            (true, _) => Some(listed.log_start),
            (false, true) => Some(end),
            (false, false) => seek.settled(),
        };
        let generation = self.next_generation();
        let partition = Partition {
            name: NameAt::default(),
            id: listed.id,
            position: position.unwrap_or(listed.log_start),
            watermark: end,
            listed_end: watermark,
            last_ts: Micros::MIN,
            generation,
            moved_at: now,
            named_at: now,
            written: listed.last_write_at.unwrap_or(Micros::MIN),
            flags: Flags {
                // Where nothing is to be read yet, all that comes is new.
                skipping: !(whole || written || position == Some(end)),
                starts_here: position == Some(listed.log_start),
                ..Flags::default()
            },
        };
        let id = self.track(&listed.name, partition);
        if position.is_none() {
            self.seeks.insert(id, seek);
        }
        self.update(id, |_| ());
    }

    fn relist(&mut self, id: PartitionId, listed: &ListedPartition) {
        let now = self.pass.pages;
        let partition = self.partition_mut(id);
        partition.named_at = now;
        if partition.flags.restored {
            self.confirm_restored(id, listed);
            return;
        }
        let other_id = matches!((partition.id, listed.id), (Some(old), Some(new)) if old != new);
        // Comparable only when nothing moved since the page was asked for.
        let comparable = partition.moved_at < now;
        let shrunk =
            listed.id.is_none() && comparable && listed.last_offset < partition.position - 1;
        let written = listed.last_write_at.unwrap_or(Micros::MIN);
        let written_to = std::mem::replace(&mut partition.written, written) != written;
        if other_id || shrunk {
            let flags = partition.flags;
            let passed_by = flags.reborn && !flags.untold && self.foreign.contains_key(&id);
            self.begin_life(id, listed);
            if let Some(safe) = self.safe.filter(|_| other_id && passed_by) {
                // One life is over before it is read, again, and what is buffered is of earlier ones. The
                // last complete pass did not see this one: to know that it lies above is enough, or
                // lives without pause would hold windows back for ever.
                self.partition_mut(id).last_ts = safe;
            }
            return;
        }
        let known = partition.id.is_some();
        if known {
            partition.flags.untold = listed.id.is_none();
        } else if !(partition.flags.doubted || partition.flags.settling) {
            partition.id = listed.id;
        }
        if known && listed.id.is_some() && self.foreign.get(&id).is_some_and(|one| one.since < now)
        {
            // It lives on: what answers name is something else.
            self.clear_suspect(id);
            self.contradicted = true;
        }
        let partition = self.partition_mut(id);
        let back = std::mem::take(&mut partition.flags.ended);
        if partition.id.is_none() && partition.position > 0 {
            partition.flags.doubted |= back || written_to;
        }
        let doubted = partition.flags.doubted || partition.flags.settling;
        if (comparable && !doubted) || listed.id.is_some() {
            partition.listed_end = partition.listed_end.max(listed.last_offset + 1);
        }
        let end = listed.last_offset + 1;
        if comparable && end < partition.watermark && end >= partition.position {
            // Offsets that were shown are gone from the end: a failover, or a life told by no id.
            let gone = partition.watermark - 1;
            partition.watermark = end;
            partition.listed_end = end;
            partition.moved_at = now;
            partition.flags.doubted |= partition.id.is_none() && partition.position > 0;
            self.note_lost(id, end, gone);
            return;
        }
        if end > partition.watermark {
            partition.watermark = end;
            partition.moved_at = now;
        }
        // A fetch that is out tells by itself what it could still read.
        if !self.partition(id).flags.busy {
            if self.partition(id).flags.skipping && self.is_all_written(listed) {
                self.pass_over(id, end.max(listed.log_start));
                return;
            }
            self.log_starts_at(id, listed.log_start);
        }
    }

    /// Whether every record of `listed` is in an earlier window: it was last written to so long
    /// before the cut that a pass asking for what moved since would not name it.
    pub(super) fn is_all_written(&self, listed: &ListedPartition) -> bool {
        let last = listed.last_write_at;
        last.is_some_and(|at| at.on(CHANGED_SINCE_SLACK_US) < self.cut)
    }

    /// Retention moved the log's start: what lies between it and the position was never read.
    pub(super) fn log_starts_at(&mut self, id: PartitionId, log_start: i64) {
        if let Some(seek) = self.seeks.get_mut(&id) {
            let lo = seek.lo();
            if let super::seek::Probe::ReadFrom(from) = seek.cut(log_start) {
                self.end_seek(id, from);
            }
            if log_start > lo {
                // What went was in doubt: the next record seen tells whether it was written.
                self.doubted_losses.entry(id).or_insert(lo);
                self.settle_emptied(id);
            }
            return;
        }
        let now = self.pass.pages;
        let position = self.partition(id).position;
        if log_start <= position {
            return;
        }
        // The record before a restored position is in an earlier window.
        let first_lost = match self.unproven.remove(&id) {
            Some(_) => position + 1,
            None => position,
        };
        let first_lost = self.doubted_losses.remove(&id).unwrap_or(first_lost);
        let partition = self.partition_mut(id);
        partition.position = log_start;
        partition.watermark = partition.watermark.max(log_start);
        partition.moved_at = now;
        partition.flags.starts_here = true;
        if partition.flags.skipping && partition.is_behind() {
            self.doubted_losses.insert(id, first_lost);
        } else {
            self.note_lost(id, first_lost, log_start - 1);
        }
    }

    /// Nothing is left of `id` that could tell of a doubtful loss whether it is one.
    pub(super) fn settle_emptied(&mut self, id: PartitionId) {
        let partition = self.partition(id);
        if self.seeks.contains_key(&id) || partition.is_behind() {
            return;
        }
        let end = partition.position;
        if let Some(from) = self.doubted_losses.remove(&id) {
            self.note_lost(id, from, end - 1);
        }
    }

    /// Everything of `id` below `end` is in earlier windows: it is neither read nor lost.
    pub(super) fn pass_over(&mut self, id: PartitionId, end: i64) {
        self.seeks.remove(&id);
        self.unproven.remove(&id);
        self.doubted_losses.remove(&id);
        let now = self.pass.pages;
        let partition = self.partition_mut(id);
        partition.position = end;
        partition.watermark = end;
        partition.moved_at = now;
        partition.flags.skipping = false;
        partition.flags.starts_here = false;
        partition.flags.doubted = false;
    }

    /// Another life of a partition begins: offsets from 0 again.
    pub(super) fn begin_life(&mut self, id: PartitionId, listed: &ListedPartition) {
        let now = self.pass.pages;
        let former_end = self.partition(id).listed_end;
        self.former_ends.insert(id, former_end);
        self.end_life(id);
        self.forget_named(&listed.name);
        let partition = self.partition_mut(id);
        partition.id = listed.id;
        partition.position = 0;
        partition.watermark = listed.last_offset + 1;
        partition.listed_end = listed.last_offset + 1;
        partition.last_ts = Micros::MIN;
        partition.moved_at = now;
        // Its records all lie above the former life's, so none is from an earlier window.
        partition.flags = Flags {
            reborn: true,
            ..Flags::default()
        };
        self.log_starts_at(id, listed.log_start);
    }

    /// A life of a partition is over: what was not read of it is lost, and answers to requests
    /// that are out are void.
    fn end_life(&mut self, id: PartitionId) {
        let position = self.partition(id).position;
        let sought = self.seeks.remove(&id).map(|seek| seek.lo());
        let doubted = self.doubted_losses.remove(&id);
        let listed_end = self.partition(id).listed_end;
        // The record before a restored position is in an earlier window.
        let proven = position + i64::from(self.unproven.remove(&id).is_some());
        self.note_lost(id, doubted.or(sought).unwrap_or(proven), listed_end - 1);
        let generation = self.next_generation();
        let partition = self.partition_mut(id);
        partition.generation = generation;
        partition.position = partition.watermark;
        partition.flags.busy = false;
        partition.flags.doubted = false;
        partition.flags.settling = false;
        self.clear_suspect(id);
    }

    fn clear_suspect(&mut self, id: PartitionId) {
        let suspect = std::mem::take(&mut self.partition_mut(id).flags.suspect);
        if suspect && self.foreign.remove(&id).is_none() {
            self.suspects -= 1;
        }
    }

    fn drop_ended(&mut self, began_at: u32) {
        let unnamed = |partition: &Partition| partition.named_at <= began_at;
        let mut ended: Vec<PartitionId> = self
            .names
            .ids()
            .filter(|id| unnamed(self.partition(*id)))
            .collect();
        // The order of a hash map must not show in a manifest.
        ended.sort_unstable();
        for id in ended {
            let partition = self.partition_mut(id);
            if partition.id.is_none() {
                // Whichever life had them, they are gone.
                partition.listed_end = partition.listed_end.max(partition.watermark);
            }
            self.update(id, |engine| engine.end_life(id));
            if self.buffers.contains_key(&id) {
                self.partition_mut(id).flags.ended = true;
                continue;
            }
            self.former_ends.remove(&id);
            self.names.remove(id, &mut self.partitions);
            self.free.push(id);
        }
    }

    /// A pass is complete, and no page of it told the lives of what is still here. Another life was
    /// written to, so that one which asks for what moved names it, unless it is over as well; a full
    /// one named it without an id. Then what tells lives where no id does decides.
    fn settle_foreign(&mut self, pass: &Running) {
        let all = self.foreign.iter();
        let due: Vec<PartitionId> = all
            .filter(|(_, foreign)| foreign.since <= pass.began_at)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            if !pass.full {
                self.foreign
                    .entry(id)
                    .and_modify(|foreign| foreign.unsettled = true);
                continue;
            }
            self.clear_suspect(id);
            self.update(id, |engine| {
                let partition = engine.partition_mut(id);
                partition.id = None;
                partition.flags.doubted = partition.position > 0;
            });
        }
    }

    fn release_suspects(&mut self, began_at: u32) {
        if self.suspects == 0 {
            return;
        }
        let released: Vec<PartitionId> = self
            .names
            .ids()
            .filter(|id| {
                let partition = self.partition(*id);
                let plain = partition.flags.suspect && !self.foreign.contains_key(id);
                plain && partition.moved_at <= began_at
            })
            .collect();
        // Order shows in nothing here: each is released by itself.
        for id in released {
            self.suspects -= 1;
            self.update(id, |engine| engine.partition_mut(id).flags.suspect = false);
        }
    }
}
