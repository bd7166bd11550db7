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
pub(super) struct Held {
    pub(super) partition: Name,
    life: Option<Uuid>,
    /// Offset of the first one.
    pub(super) from: i64,
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
    /// Where reading goes on in partitions that have nothing to be read, as far as is known.
    pub positions: Positions,
    /// What is known to be there and is in no window that is written.
    pub(super) unwritten: Vec<Held>,
    /// The same of partitions whose reading position was not certain.
    pub(super) uncertain: Vec<Held>,
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
        let (mut unwritten, mut uncertain) = (Vec::new(), Vec::new());
        for (id, partition) in self.lived() {
            let name = self.names.of(partition.name);
            let mut offset = self.first_unwritten(id, partition);
            // What answers showed of it beyond the last page may be of another life, but for what was read.
            let mut end = partition.listed_end.max(partition.position);
            match first.remove(name) {
                Some(held) if held.is_former(partition.id) => gone.push(held.range()),
                Some(held) => (offset, end) = (offset.min(held.from), end.max(held.end)),
                None => {}
            }
            if offset >= end {
                positions.push(Position {
                    partition: name,
                    offset,
                    id: partition.id,
                });
                continue;
            }
            let held = Held {
                partition: name.into(),
                life: partition.id,
                from: offset,
                end,
            };
            match self.is_certain(id, partition) {
                true => unwritten.push(held),
                false => uncertain.push(held),
            }
        }
        // No life of theirs is there any more.
        gone.extend(first.values().map(Held::range));
        Left {
            positions,
            unwritten,
            uncertain,
            gone,
        }
    }

    /// Whether it is known that nothing of `partition` below its position is in no window.
    fn is_certain(&self, id: PartitionId, partition: &Partition) -> bool {
        !(partition.flags.restored
            || self.seeks.contains_key(&id)
            || self.unproven.contains_key(&id)
            || self.doubted_losses.contains_key(&id))
    }

    /// What `window` had, of which that of lives that are over now cannot be read again.
    pub fn outlived(&self, window: Remembered) -> Remembered {
        let mut gone = window.gone;
        let mut present = Vec::with_capacity(window.held.len());
        for held in window.held {
            let id = self.find(&held.partition);
            let life = id.and_then(|id| self.partition(id).id);
            match held.is_former(life) {
                true => gone.push(held.range()),
                false => present.push(Held {
                    life: held.life.or(life),
                    ..held
                }),
            }
        }
        Remembered {
            held: present,
            gone,
        }
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
        for held in &window.held {
            self.expect(held, Flags::default());
        }
        self.lack(window.gone);
    }

    /// Takes in what a session left. To be called before positions are restored from elsewhere.
    pub fn go_on(&mut self, left: Left) {
        let skipping = self.cut > Micros::ZERO;
        for held in &left.unwritten {
            let flags = Flags {
                skipping,
                ..Flags::default()
            };
            self.expect(held, flags);
        }
        // Only a page can tell where they are to be read from; what is not listed is gone.
        self.unlisted |= !left.uncertain.is_empty();
        for held in &left.uncertain {
            let flags = Flags {
                restored: true,
                ..Flags::default()
            };
            self.expect(held, flags);
        }
        self.restore(&left.positions);
        self.lack(left.gone);
        // Nothing before these is missing again, and what is lost of them from now on is of no life that the
        // last manifest could speak of.
        let known = left.unwritten.iter().map(|held| &*held.partition);
        for partition in known.chain(left.positions.iter().map(|position| position.partition)) {
            self.named.forget(partition);
        }
    }

    /// Whether something is known to be there, or to have been, that is in no window.
    pub fn is_expecting(&self) -> bool {
        let unread = |(_, partition): (_, &Partition)| partition.position < partition.listed_end;
        !self.lost.is_empty() || self.lived().any(unread)
    }

    /// Expects the records of `held`, and begins to read them where a page need not tell more.
    fn expect(&mut self, held: &Held, flags: Flags) {
        if let Some(id) = self.find(&held.partition) {
            self.update(id, |engine| {
                let partition = engine.partition_mut(id);
                partition.watermark = partition.watermark.max(held.end);
                partition.listed_end = partition.listed_end.max(held.end);
                partition.id = partition.id.or(held.life);
            });
            return;
        }
        let generation = self.next_generation();
        let partition = Partition {
            name: NameAt::default(),
            id: held.life,
            position: held.from,
            watermark: if flags.restored { held.from } else { held.end },
            listed_end: held.end,
            last_ts: Micros::MIN,
            generation,
            moved_at: 0,
            named_at: 0,
            written: Micros::MIN,
            flags,
        };
        let id = self.track(&held.partition, partition);
        self.update(id, |_| ());
    }

    /// Two lives may have lost the same offsets: only a manifest takes away what it names.
    fn lack(&mut self, gone: Vec<OffsetRange>) {
        let unnamed = gone.into_iter().flat_map(|range| self.named.without(range));
        self.lost.extend(unnamed);
    }
}
