//! What a session knew, for who has to read a window of it again: what is gone by then has to be named.

use std::collections::HashMap;

use uuid::Uuid;

use super::names::NameAt;
use super::partition::{Flags, Partition};
use super::{Engine, PartitionId};
use crate::broker::Name;
use crate::lake::checkpoint::{Position, Positions};
use crate::lake::manifest::OffsetRange;
use crate::record::Chunk;
use crate::time::Micros;

/// The records of a window that is not committed.
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
    /// One past the last one.
    end: i64,
}

impl Held {
    fn range(&self) -> OffsetRange {
        OffsetRange {
            partition: self.partition.to_string(),
            from: self.from,
            to: self.end - 1,
        }
    }

    /// Whether these records are of another life than `life`, as far as ids tell.
    fn is_former(&self, life: Option<Uuid>) -> bool {
        self.life.zip(life).is_some_and(|(one, other)| one != other)
    }
}

/// What a session that ends leaves to the next one.
#[derive(Debug, Default)]
pub struct Left {
    /// Where reading goes on after the last window that is written.
    pub positions: Positions,
    /// Ranges that no manifest names, of what cannot be read again.
    pub gone: Vec<OffsetRange>,
}

impl Remembered {
    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.gone.is_empty()
    }

    /// With the ranges that the window names as lost.
    pub fn with_lost(mut self, lost: &[OffsetRange]) -> Self {
        self.gone.extend_from_slice(lost);
        self
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
}

impl Engine {
    /// What is left of windows that were taken out and are not written, in their order, and of what is
    /// read after them. The engine is done with then.
    pub fn left(&mut self, windows: impl IntoIterator<Item = Remembered>) -> Left {
        self.lose_former_lives();
        let mut gone = self.take_lost();
        gone.append(&mut self.later_lost);
        let mut first: HashMap<Name, Held> = HashMap::new();
        for window in windows {
            gone.extend(window.gone);
            for held in window.held {
                match first.get(&held.partition) {
                    Some(before) if before.is_former(held.life) => {
                        gone.push(before.range());
                        first.insert(held.partition.clone(), held);
                    }
                    Some(before) => {
                        let (from, end) = (before.from.min(held.from), before.end.max(held.end));
                        let held = Held { from, end, ..held };
                        first.insert(held.partition.clone(), held);
                    }
                    None => {
                        first.insert(held.partition.clone(), held);
                    }
                }
            }
        }
        let mut positions = Positions::with_capacity(self.names.len(), self.names.bytes());
        for (id, partition) in self.lived() {
            let name = self.names.of(partition.name);
            let mut offset = self.first_unwritten(id, partition);
            match first.remove(name) {
                Some(held) if held.is_former(partition.id) => gone.push(held.range()),
                Some(held) => offset = offset.min(held.from),
                None => {}
            }
            positions.push(Position {
                partition: name,
                offset,
                id: partition.id,
            });
        }
        // No life of theirs is there any more.
        gone.extend(first.values().map(Held::range));
        Left { positions, gone }
    }

    /// The instant below which what is buffered of `id` is of lives that are over, if some is.
    pub(super) fn former_lives_end(&self, id: PartitionId) -> Option<Micros> {
        let flags = self.partition(id).flags;
        match flags.ended || flags.reborn {
            true => Some(Micros::MAX),
            false => self.life_starts.get(&id).copied(),
        }
    }

    /// Takes in what is known to be in the window after the cut. To be called before positions are
    /// restored.
    pub fn recall(&mut self, window: Remembered) {
        for held in window.held {
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
        self.lack(window.gone);
    }

    /// Takes in what a session left. To be called before positions are restored from elsewhere.
    pub fn go_on(&mut self, left: &Left) {
        self.restore(&left.positions);
        self.lack(left.gone.clone());
    }

    /// Two lives may have lost the same offsets: only a manifest takes away what it names.
    fn lack(&mut self, gone: Vec<OffsetRange>) {
        let unnamed = gone.into_iter().flat_map(|range| self.named.without(range));
        self.lost.extend(unnamed);
    }
}
