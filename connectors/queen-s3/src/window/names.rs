//! Finding a tracked partition by its name. The names stay with the partitions: what is kept here of
//! each is its index, because there may be millions.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::partition::{Partition, PartitionId};

/// The tracked partitions by name. Every call takes the partitions that the ids lead to.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashTable<PartitionId>,
    hasher: RandomState,
}

fn name(partitions: &[Option<Partition>], id: PartitionId) -> Option<&str> {
    let partition = partitions.get(id.0 as usize)?.as_ref()?;
    Some(&partition.name)
}

impl Names {
    /// Partitions tracked.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Every partition tracked, in no order.
    pub(super) fn ids(&self) -> impl Iterator<Item = PartitionId> {
        self.ids.iter().copied()
    }

    /// The partition of the name `wanted`.
    pub(super) fn find(
        &self,
        wanted: &str,
        partitions: &[Option<Partition>],
    ) -> Option<PartitionId> {
        let is_it = |id: &PartitionId| name(partitions, *id) == Some(wanted);
        self.ids.find(self.hasher.hash_one(wanted), is_it).copied()
    }

    /// Takes in that `id`, whose name no other has, is tracked from now on.
    pub(super) fn insert(&mut self, id: PartitionId, partitions: &[Option<Partition>]) {
        let hasher = &self.hasher;
        let hash = |id: &PartitionId| hasher.hash_one(name(partitions, *id).unwrap_or_default());
        self.ids.insert_unique(hash(&id), id, hash);
    }

    /// Takes in that the partition of the name `wanted` is tracked no longer. To be called while its
    /// id still leads to it.
    pub(super) fn remove(&mut self, wanted: &str, partitions: &[Option<Partition>]) {
        let is_it = |id: &PartitionId| name(partitions, *id) == Some(wanted);
        let found = self
            .ids
            .find_entry(self.hasher.hash_one(wanted), is_it)
            .ok();
        found.map(hashbrown::hash_table::OccupiedEntry::remove);
    }
}
