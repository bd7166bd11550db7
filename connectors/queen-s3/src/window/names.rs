//! Names of the tracked partitions: one text that holds them all, and the partition of each. Kept
//! small, because there may be millions: neither is a name kept twice nor allocated by itself.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::partition::{Partition, PartitionId};

/// Bytes of names of partitions that are tracked no longer, up to which the text is left as it is.
const DEAD_BYTES: usize = 64 << 10;

/// What looking at a partition costs, in bytes of names copied.
const SLOT_BYTES: usize = 8;

/// Where a partition's name lies in [`Names`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameAt {
    at: u64,
    length: u32,
}

/// The tracked partitions by name. The partitions keep where their names lie, and the calls that need
/// it take the partitions that the ids lead to.
#[derive(Debug, Default)]
pub(super) struct Names {
    text: String,
    /// Bytes of `text` that are of no tracked partition.
    dead: usize,
    ids: HashTable<PartitionId>,
    hasher: RandomState,
}

fn slice(text: &str, name: NameAt) -> &str {
    let at = name.at as usize;
    &text[at..at + name.length as usize]
}

fn name_at(partitions: &[Option<Partition>], id: PartitionId) -> NameAt {
    let partition = partitions.get(id.0 as usize).and_then(Option::as_ref);
    partition.map(|one| one.name).unwrap_or_default()
}

impl Names {
    /// Partitions tracked.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Bytes of their names.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() - self.dead
    }

    /// Every partition tracked, in no order.
    pub(super) fn ids(&self) -> impl Iterator<Item = PartitionId> {
        self.ids.iter().copied()
    }

    /// The name that lies at `name`.
    pub(super) fn of(&self, name: NameAt) -> &str {
        slice(&self.text, name)
    }

    /// The partition of the name `wanted`.
    pub(super) fn find(
        &self,
        wanted: &str,
        partitions: &[Option<Partition>],
    ) -> Option<PartitionId> {
        let is_it = |id: &PartitionId| self.of(name_at(partitions, *id)) == wanted;
        self.ids.find(self.hasher.hash_one(wanted), is_it).copied()
    }

    /// Takes the name of a partition in that is to be tracked.
    pub(super) fn add(&mut self, name: &str) -> NameAt {
        let at = self.text.len() as u64;
        self.text.push_str(name);
        let length = name.len() as u32;
        NameAt { at, length }
    }

    /// Takes in that `id`, whose name no other has, is tracked from now on.
    pub(super) fn insert(&mut self, id: PartitionId, partitions: &[Option<Partition>]) {
        let (hasher, text) = (&self.hasher, &self.text);
        let hash = |id: &PartitionId| hasher.hash_one(slice(text, name_at(partitions, *id)));
        self.ids.insert_unique(hash(&id), id, hash);
    }

    /// Gives the partition `id` up, and its name.
    pub(super) fn remove(&mut self, id: PartitionId, partitions: &mut [Option<Partition>]) {
        let name = name_at(partitions, id);
        let hash = self.hasher.hash_one(self.of(name));
        let entry = self.ids.find_entry(hash, |found| *found == id);
        entry.map(hashbrown::hash_table::OccupiedEntry::remove).ok();
        partitions[id.0 as usize] = None;
        self.dead += name.length as usize;
        let alive = self.bytes() + partitions.len() * SLOT_BYTES;
        if self.dead > DEAD_BYTES.max(alive) {
            self.compact(partitions);
        }
    }

    /// Copies what is alive. Done when less than half of the text is, and not before there is as much to
    /// gain as partitions to look at, it costs no more than the names did that were added since.
    fn compact(&mut self, partitions: &mut [Option<Partition>]) {
        let mut alive = String::with_capacity(self.bytes());
        for partition in partitions.iter_mut().flatten() {
            let at = alive.len() as u64;
            alive.push_str(slice(&self.text, partition.name));
            partition.name.at = at;
        }
        self.text = alive;
        self.dead = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;
    use crate::window::partition::Flags;

    fn partition(name: NameAt) -> Option<Partition> {
        Some(Partition {
            name,
            id: None,
            position: 0,
            watermark: 0,
            listed_end: 0,
            last_ts: Micros::MIN,
            generation: 0,
            moved_at: 0,
            named_at: 0,
            written: Micros::MIN,
            flags: Flags::default(),
        })
    }

    fn text(number: usize) -> String {
        format!("customer {number} {}", "é".repeat(number % 40))
    }

    #[test]
    fn names_stay_with_their_partitions_while_others_come_and_go() {
        let (mut names, mut partitions) = (Names::default(), Vec::new());
        let mut alive = Vec::new();
        for number in 0..20_000_usize {
            let id = PartitionId(partitions.len() as u32);
            partitions.push(partition(names.add(&text(number))));
            names.insert(id, &partitions);
            alive.push((number, id));
            if number % 3 > 0 {
                let (gone, id) = alive.swap_remove(number * 7 % alive.len());
                names.remove(id, &mut partitions);
                assert_eq!(names.find(&text(gone), &partitions), None);
            }
        }
        assert_eq!(names.len(), alive.len());
        for (number, id) in &alive {
            let text = text(*number);
            assert_eq!(names.find(&text, &partitions), Some(*id), "{text}");
            assert_eq!(names.of(name_at(&partitions, *id)), text);
        }
        let bytes: usize = alive.iter().map(|(number, _)| text(*number).len()).sum();
        assert_eq!(names.bytes(), bytes);
        assert!(
            names.text.len() <= 2 * bytes + DEAD_BYTES.max(partitions.len() * SLOT_BYTES),
            "{} bytes for {bytes} of names",
            names.text.len()
        );
    }
}
