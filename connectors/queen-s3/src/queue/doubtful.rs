//! Partitions that may have had records in a window although none is found when it is redone.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use crate::broker::{ListedPartition, Name};
use crate::lake::checkpoint::{Position, Positions};

/// Compares the store's checkpoint with what full passes list. A partition is not doubtful if its
/// life is the one that the checkpoint knows and its log still begins at or before the position
/// there: then nothing above it was deleted.
#[derive(Debug)]
pub(super) struct Doubtful {
    known: HashMap<Name, Known>,
    listed: BTreeSet<Name>,
}

#[derive(Debug)]
struct Known {
    position: i64,
    id: Option<Uuid>,
    intact: bool,
}

impl Doubtful {
    /// Every partition of a checkpoint's `positions` is doubtful until it is listed.
    pub(super) fn new(positions: &Positions) -> Self {
        let known = |position: Position<'_>| {
            let known = Known {
                position: position.offset,
                id: position.id,
                intact: false,
            };
            (position.partition.into(), known)
        };
        Self {
            known: positions.iter().map(known).collect(),
            listed: BTreeSet::new(),
        }
    }

    /// A full pass begins.
    pub(super) fn begin_pass(&mut self) {
        self.known
            .values_mut()
            .for_each(|known| known.intact = false);
    }

    /// The pass lists a partition.
    pub(super) fn listed(&mut self, listed: &ListedPartition) {
        if let Some(known) = self.known.get_mut(&listed.name)
            && known.id.is_some()
            && known.id == listed.id
            && listed.log_start <= known.position
        {
            known.intact = true;
        } else {
            self.listed.insert(listed.name.clone());
        }
    }

    /// The doubtful partitions after the last pass.
    pub(super) fn partitions(&self) -> BTreeSet<Name> {
        let known = self.known.iter().filter(|(_, known)| !known.intact);
        known
            .map(|(name, _)| name.clone())
            .chain(self.listed.iter().cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, log_start: i64, id: Option<u128>) -> ListedPartition {
        ListedPartition {
            name: name.into(),
            id: id.map(Uuid::from_u128),
            last_offset: 20,
            log_start,
            last_write_at: None,
        }
    }

    fn position(name: &str, id: Option<u128>) -> Position<'_> {
        Position {
            partition: name,
            offset: 10,
            id: id.map(Uuid::from_u128),
        }
    }

    fn names(doubtful: &Doubtful) -> Vec<String> {
        let partitions = doubtful.partitions();
        partitions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_a_partition_of_which_nothing_was_deleted_is_not_doubtful() {
        let known = [
            position("intact", Some(1)),
            position("cut", Some(2)),
            position("gone", Some(3)),
            position("reborn", Some(4)),
            position("nameless", None),
        ];
        let mut doubtful = Doubtful::new(&Positions::from_iter(known));
        doubtful.begin_pass();
        for listed in [
            listed("intact", 10, Some(1)),
            listed("cut", 11, Some(2)),
            listed("reborn", 0, Some(5)),
            listed("nameless", 0, None),
            listed("new", 0, Some(6)),
        ] {
            doubtful.listed(&listed);
        }
        assert_eq!(
            names(&doubtful),
            ["cut", "gone", "nameless", "new", "reborn"]
        );
    }

    #[test]
    fn a_partition_that_a_later_pass_no_longer_lists_is_doubtful_again() {
        let mut doubtful = Doubtful::new(&Positions::from_iter([position("a", Some(1))]));
        doubtful.begin_pass();
        doubtful.listed(&listed("a", 0, Some(1)));
        assert!(names(&doubtful).is_empty());
        doubtful.begin_pass();
        assert_eq!(names(&doubtful), ["a"]);
    }
}
