//! What is known to be in the log and in no window: whoever reads it again has to name what is gone by
//! then.

use std::collections::HashMap;

use uuid::Uuid;

use super::names::NameAt;
use super::partition::{Flags, Partition};
use super::{Engine, PartitionId};
use crate::broker::Name;
use crate::lake::manifest::OffsetRange;
use crate::record::Chunk;
use crate::time::Micros;

/// Records that are in no window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Those that can be read again, once for each partition.
    held: Vec<Held>,
    /// Those that cannot: the lives that they are of are over, or they were found deleted.
    gone: Vec<OffsetRange>,
}

/// Records of the life that a partition lives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    partition: Name,
    life: Option<Uuid>,
    /// Offset of the first one.
    from: i64,
    /// One past the last one that was shown.
    end: i64,
}

impl Held {
    fn range(self) -> OffsetRange {
        OffsetRange {
            partition: self.partition.to_string(),
            from: self.from,
            to: self.end - 1,
        }
    }
}

impl Remembered {
    /// Adds what is known of later records than these.
    pub fn followed_by(&mut self, later: Self) {
        self.gone.extend(later.gone);
        let places = self.held.iter().zip(0..);
        let mut places: HashMap<Name, usize> = places
            .map(|(held, at)| (held.partition.clone(), at))
            .collect();
        for held in later.held {
            match places.get(&held.partition) {
                Some(at) if self.held[*at].life == held.life => {
                    self.held[*at].end = self.held[*at].end.max(held.end);
                }
                Some(at) => {
                    let former = std::mem::replace(&mut self.held[*at], held);
                    self.gone.push(former.range());
                }
                None => {
                    places.insert(held.partition.clone(), self.held.len());
                    self.held.push(held);
                }
            }
        }
    }

    /// Adds the records of `chunks`, which a window took of one partition. Those below `former` are of
    /// lives that are over; the others of `life`.
    pub(super) fn take(
        &mut self,
        partition: &Name,
        life: Option<Uuid>,
        chunks: &[Chunk],
        former: Option<Micros>,
    ) {
        let mut present: Option<Held> = None;
        for (first, last) in chunks.iter().filter_map(|one| one.first().zip(one.last())) {
            let mut held = Held {
                partition: partition.clone(),
                life,
                from: first.offset,
                end: last.offset + 1,
            };
            if former.is_some_and(|former| first.ts < former) {
                self.gone.push(held.range());
                continue;
            }
            if let Some(present) = &present {
                held.from = held.from.min(present.from);
                held.end = held.end.max(present.end);
            }
            present = Some(held);
        }
        self.held.extend(present);
    }

    /// Adds ranges that were found deleted.
    pub(super) fn lack(&mut self, lost: &[OffsetRange]) {
        self.gone.extend_from_slice(lost);
    }
}

impl Engine {
    /// What is known to be in no window that was taken out. Where reading positions are still looked
    /// for, nothing is.
    pub fn remembered(&self) -> Remembered {
        let mut known = Remembered::default();
        known.lack(&self.lost);
        known.lack(&self.later_lost);
        for (id, partition) in (0..).map(PartitionId).zip(&self.partitions) {
            let Some(partition) = partition else { continue };
            let name = self.names.of(partition.name);
            let former = self.former_lives_end(id);
            let buffer = self.buffers.get(&id);
            let over = former
                .zip(buffer)
                .map(|(former, buffer)| buffer.ranges_below(former));
            known
                .gone
                .extend(over.into_iter().flatten().map(|(from, to)| OffsetRange {
                    partition: name.to_owned(),
                    from,
                    to,
                }));
            let sought = self.seeks.contains_key(&id)
                || self.unproven.contains_key(&id)
                || self.doubted_losses.contains_key(&id);
            if sought || partition.flags.ended || partition.flags.restored {
                continue;
            }
            let from = self.first_unwritten(id, partition);
            let end = match partition.flags.reborn {
                true => partition.listed_end,
                false => partition.listed_end.max(partition.position),
            };
            if from < end {
                known.held.push(Held {
                    partition: name.into(),
                    life: partition.id,
                    from,
                    end,
                });
            }
        }
        known
    }

    /// The instant below which what is buffered of `id` is of lives that are over, if some is.
    pub(super) fn former_lives_end(&self, id: PartitionId) -> Option<Micros> {
        let flags = self.partition(id).flags;
        match flags.ended || flags.reborn {
            true => Some(Micros::MAX),
            false => self.life_starts.get(&id).copied(),
        }
    }

    /// Takes in what was known before. To be called before positions are restored and before the first
    /// pass.
    pub fn recall(&mut self, known: Remembered) {
        for held in known.held {
            let generation = self.next_generation();
            let partition = Partition {
                name: NameAt::default(),
                id: held.life,
                position: held.from,
                watermark: held.end,
                listed_end: held.end,
                last_ts: Micros::MIN,
                generation,
                moved_at: 0,
                named_at: 0,
                written: Micros::MIN,
                flags: Flags::default(),
            };
            let id = self.track(&held.partition, partition);
            self.update(id, |_| ());
        }
        self.lost.extend(known.gone);
    }
}
