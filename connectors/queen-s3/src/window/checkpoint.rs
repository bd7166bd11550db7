//! Checkpoints: positions given out after a window, and taken in again after a start. They are a
//! cache: a wrong one costs reads and no record.

use std::collections::HashMap;

use crate::broker::ListedPartition;
use crate::lake::checkpoint::{Position, Positions};
use crate::time::Micros;

use super::names::NameAt;
use super::partition::{Flags, Partition};
use super::seek::Seek;
use super::{Engine, PartitionId};

impl Engine {
    /// For every tracked partition the first offset that is in no window yet, in no order.
    pub fn checkpoint(&self) -> Positions {
        // A range that no manifest names yet has to be found missing again.
        let mut first_lost: HashMap<PartitionId, i64> = HashMap::new();
        for lost in &self.lost {
            if let Some(id) = self.find(&lost.partition) {
                let first = first_lost.entry(id).or_insert(lost.from);
                *first = lost.from.min(*first);
            }
        }
        let mut positions = Positions::with_capacity(self.names.len(), self.names.bytes());
        for (id, partition) in self.lived() {
            let unwritten = self.first_unwritten(id, partition);
            let lost = first_lost.get(&id).copied();
            positions.push(Position {
                partition: self.names.of(partition.name),
                offset: lost.map_or(unwritten, |from| from.min(unwritten)),
                id: partition.id,
            });
        }
        positions
    }

    /// The partitions that are tracked and live.
    pub(super) fn lived(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        let partitions = (0..).map(PartitionId).zip(&self.partitions);
        let tracked = partitions.filter_map(|(id, one)| Some((id, one.as_ref()?)));
        tracked.filter(|(_, partition)| !partition.flags.ended)
    }

    pub(super) fn first_unwritten(&self, id: PartitionId, partition: &Partition) -> i64 {
        if let Some(from) = self.doubted_losses.get(&id) {
            return *from;
        }
        if let Some(seek) = self.seeks.get(&id) {
            return seek.lo();
        }
        if partition.flags.reborn {
            return partition.position;
        }
        let life_start = self.life_starts.get(&id).copied().unwrap_or(Micros::MIN);
        self.buffers
            .get(&id)
            .and_then(|buffer| buffer.first_offset_from(life_start))
            // The record before a restored position is in an earlier window.
            .unwrap_or(partition.position + i64::from(self.unproven.contains_key(&id)))
    }

    /// Takes in the positions of a checkpoint whose window is committed. To be called before the
    /// first pass. Each is trusted only when the record before it proves to be below the cut.
    pub fn restore(&mut self, positions: &Positions) {
        for position in positions.iter() {
            if position.offset < 0 || self.find(position.partition).is_some() {
                continue;
            }
            let generation = self.next_generation();
            let partition = Partition {
                name: NameAt::default(),
                id: position.id,
                position: position.offset,
                watermark: position.offset,
                listed_end: position.offset,
                last_ts: Micros::MIN,
                generation,
                moved_at: 0,
                named_at: 0,
                written: Micros::MIN,
                flags: Flags {
                    restored: true,
                    ..Flags::default()
                },
            };
            self.track(position.partition, partition);
        }
    }

    /// A restored partition is listed for the first time.
    pub(super) fn confirm_restored(&mut self, id: PartitionId, listed: &ListedPartition) {
        let now = self.pass.pages;
        let cut = self.cut;
        let end = (listed.last_offset + 1).max(listed.log_start);
        let partition = self.partition_mut(id);
        let from = partition.position;
        let same_life = !matches!((partition.id, listed.id), (Some(a), Some(b)) if a != b);
        let expected_end = partition.listed_end;
        if !self.is_all_written(listed) {
            // Another life, or one whose end is gone, has not what was expected of the former.
            let gone = if same_life { from.max(end) } else { from };
            self.note_lost(id, gone, expected_end - 1);
        }
        if !same_life {
            self.forget_named(&listed.name);
        }
        let partition = self.partition_mut(id);
        partition.id = listed.id.or(partition.id);
        partition.watermark = end;
        partition.listed_end = listed.last_offset + 1;
        partition.moved_at = now;
        partition.written = listed.last_write_at.unwrap_or(Micros::MIN);
        partition.flags.restored = false;
        partition.flags.skipping = cut > Micros::ZERO;
        if self.is_all_written(listed) {
            self.pass_over(id, end);
            return;
        }
        if !same_life || from > end {
            self.seek_within(id, listed.log_start, end);
            return;
        }
        if expected_end > from {
            // Its position was not certain.
            self.seek_within(id, listed.log_start, end);
            if from < listed.log_start {
                self.doubted_losses.insert(id, from);
                self.settle_emptied(id);
            }
            return;
        }
        if from < listed.log_start {
            self.log_starts_at(id, listed.log_start);
            return;
        }
        // The record before the position, if it is still there, tells whether to trust it.
        let proof = (from - 1).max(listed.log_start);
        self.partition_mut(id).position = proof;
        if proof < from {
            self.unproven.insert(id, listed.log_start);
        } else {
            self.partition_mut(id).flags.starts_here = true;
        }
    }

    /// The first record read of a restored partition: `false` when the position proves wrong and
    /// has to be looked for.
    pub(super) fn prove(&mut self, id: PartitionId, offset: i64, ts: Micros) -> bool {
        let cut = self.cut;
        if let Some(from) = self.doubted_losses.remove(&id)
            && ts >= cut
        {
            self.note_lost(id, from, offset - 1);
        }
        match self.unproven.remove(&id) {
            Some(log_start) if ts >= cut => {
                self.seek_within(id, log_start, offset);
                false
            }
            _ => true,
        }
    }

    fn seek_within(&mut self, id: PartitionId, from: i64, end: i64) {
        let seek = Seek::new(from, end);
        let settled = seek.settled();
        // The checkpoint's position may lie past the log's end; while the search goes on nothing
        // counts as read.
        let partition = self.partition_mut(id);
        partition.position = settled.unwrap_or(from);
        partition.flags.starts_here = true;
        if settled.is_none() {
            self.seeks.insert(id, seek);
        }
    }
}
