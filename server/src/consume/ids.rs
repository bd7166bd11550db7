//! Which record a transaction id means.
//!
//! Segments keep ids inside their blocks. A broker remembers the fingerprints of those it has read:
//! segments do not change, so what it remembers is never wrong, only absent.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::limits::REMEMBERED_ID_BYTES;
use crate::log::seal::SealKey;

/// Fingerprints of a segment's ids, in the order of its records.
type Ids = Arc<[u64]>;

/// The segments whose ids this process has seen.
#[derive(Debug)]
pub struct SegmentIds {
    hasher: RandomState,
    table: Mutex<Table>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Table {
    by_partition: HashMap<i64, BTreeMap<i64, Ids>>,
    bytes: usize,
}

/// A partition's place in a table that may be half empty, and the first node of its tree.
const PARTITION_BYTES: usize = 2 * size_of::<(i64, BTreeMap<i64, Ids>)>() + 11 * NODE_BYTES + 64;
/// A segment's place in a node of a tree that may be half empty, and what its ids take beside themselves.
const SEGMENT_BYTES: usize = 2 * NODE_BYTES + 32;
const NODE_BYTES: usize = size_of::<(i64, Ids)>();

fn bytes_of(ids: usize) -> usize {
    SEGMENT_BYTES + ids * size_of::<u64>()
}

impl Default for SegmentIds {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            table: Mutex::default(),
            limit: REMEMBERED_ID_BYTES,
        }
    }
}

/// Segments of one partition, each with its first offset.
pub type Known = Vec<(i64, Ids)>;

impl SegmentIds {
    /// The fingerprint of an id, given as a JSON string. It holds for this process only.
    pub fn fingerprint(&self, id: &[u8]) -> u64 {
        self.hasher.hash_one(id)
    }

    /// Whether a segment is remembered.
    pub fn has(&self, partition: i64, base_offset: i64) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table
            .by_partition
            .get(&partition)
            .is_some_and(|segments| segments.contains_key(&base_offset))
    }

    /// Remembers a segment.
    pub fn learn(&self, partition: i64, base_offset: i64, ids: Vec<u64>) -> Ids {
        let ids: Ids = ids.into();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.by_partition.get(&partition);
        if known.is_some_and(|segments| segments.contains_key(&base_offset)) {
            return ids;
        }
        // Forgetting costs another look at the segments in use.
        if table.bytes + PARTITION_BYTES + bytes_of(ids.len()) > self.limit {
            *table = Table::default();
        }
        let Table {
            by_partition,
            bytes,
        } = &mut *table;
        let segments = by_partition.entry(partition).or_insert_with(|| {
            *bytes += PARTITION_BYTES;
            BTreeMap::new()
        });
        segments.insert(base_offset, Arc::clone(&ids));
        *bytes += bytes_of(ids.len());
        ids
    }

    /// The segments that hold offsets `from` to `to - 1`, when all of them are remembered.
    pub fn covering(&self, partition: i64, from: i64, to: i64) -> Option<Known> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let segments = table.by_partition.get(&partition)?;
        let (&first, _) = segments.range(..=from).next_back()?;
        let mut known = Known::new();
        let mut reached = first;
        for (&base, ids) in segments.range(first..to) {
            if base != reached {
                return None;
            }
            reached += ids.len() as i64;
            known.push((base, Arc::clone(ids)));
        }
        (reached >= to).then_some(known)
    }
}

/// Offsets in `from..to` whose record has this fingerprint, ascending.
pub fn find(known: &Known, fingerprint: u64, from: i64, to: i64) -> Vec<i64> {
    known
        .iter()
        .flat_map(|(base, ids)| (*base..).zip(ids.iter()))
        .filter(|(offset, id)| **id == fingerprint && (from..to).contains(offset))
        .map(|(offset, _)| offset)
        .collect()
}

/// What stands for a transaction id, given as a JSON string, where the database has to compare it.
/// Ids of encrypted queues are not to be guessed from it: `key` goes into it.
pub fn stored_hash(id: &[u8], key: Option<&SealKey>) -> Uuid {
    let mut sha = Sha256::new();
    if let Some(key) = key {
        sha.update(key.id_secret());
    }
    sha.update(id);
    let digest = sha.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_covered_only_without_a_gap() {
        let ids = SegmentIds::default();
        ids.learn(1, 10, vec![100, 101]);
        ids.learn(1, 12, vec![102]);
        ids.learn(1, 14, vec![104, 101]);
        let covered = |from, to| ids.covering(1, from, to).map(|known| known.len());
        assert_eq!(covered(10, 13), Some(2));
        assert_eq!(covered(11, 12), Some(1));
        assert_eq!(covered(12, 15), None);
        assert_eq!(covered(9, 11), None);
        assert_eq!(covered(15, 17), None);
        assert_eq!(ids.covering(2, 10, 11).map(|known| known.len()), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_by_what_it_takes_in_memory() {
        // Segments of one record, each of its own partition: hardly anything of it is ids.
        let ids = SegmentIds {
            limit: 10 * (PARTITION_BYTES + bytes_of(1)),
            ..SegmentIds::default()
        };
        let remembered = |ids: &SegmentIds| (0..20).filter(|n| ids.has(*n, 0)).count();
        for partition in 0..10 {
            ids.learn(partition, 0, vec![7]);
        }
        assert_eq!(remembered(&ids), 10);
        // The same again costs nothing.
        ids.learn(9, 0, vec![7]);
        assert_eq!(remembered(&ids), 10);
        ids.learn(10, 0, vec![7]);
        assert_eq!(remembered(&ids), 1);
    }

    #[test]
    fn an_id_is_found_within_the_range_alone() {
        let ids = SegmentIds::default();
        ids.learn(1, 10, vec![7, 8, 7]);
        let known = ids.covering(1, 10, 13).expect("covered");
        assert_eq!(find(&known, 7, 10, 13), [10, 12]);
        assert_eq!(find(&known, 7, 11, 13), [12]);
        assert_eq!(find(&known, 9, 10, 13), Vec::<i64>::new());
    }

    #[test]
    fn the_hash_of_an_encrypted_id_depends_on_the_key() {
        let key = SealKey::parse(&"0f".repeat(32)).expect("a key");
        let plain = stored_hash(b"\"a\"", None);
        assert_ne!(plain, stored_hash(b"\"a\"", Some(&key)));
        assert_ne!(plain, stored_hash(b"\"b\"", None));
        assert_eq!(plain, stored_hash(b"\"a\"", None));
    }
}
