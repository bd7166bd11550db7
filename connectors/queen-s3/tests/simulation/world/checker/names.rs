//! Which life's record a manifest means by an offset that it names as lost: several lives of a
//! partition may have had it, and what is said later settles which.

use std::sync::Arc;

use super::RecordKey;
use crate::world::log::{Queue, Truth};

impl Queue {
    /// The record `key`, which a manifest seemed to name as lost, is in the lake: the manifest spoke
    /// of another life's record at that offset, if there is one that it can have meant.
    pub fn name_another(&mut self, key: &RecordKey) -> bool {
        self.rename(key, |_, truth| {
            truth.deleted && truth.placed.is_none() && !truth.announced
        }) || self.named_again(key)
    }

    /// Whether what seemed to name `key` can have named a record of another life once more that is in
    /// the lake and deleted: such a name says nothing.
    fn named_again(&mut self, key: &RecordKey) -> bool {
        let (own, name, offset) = key;
        let lives = self.lives.get(&(Arc::clone(name), *offset));
        let others = lives.into_iter().flatten().filter(|ts| *ts != own);
        let mut others = others.filter_map(|ts| self.truth.get(&(*ts, Arc::clone(name), *offset)));
        let found = others.any(|truth| truth.deleted && truth.placed.is_some());
        if let Some(truth) = self.truth.get_mut(key).filter(|_| found) {
            truth.announced = false;
        }
        found
    }

    /// The record `key` is owed a name as lost: another life's record at that offset gives up its
    /// own, if that one is not `due`.
    pub fn name_instead(&mut self, key: &RecordKey, due: impl Fn(i64, &Truth) -> bool) -> bool {
        self.rename(key, |ts, truth| truth.announced && !due(ts, truth))
    }

    /// Whether a manifest names the record of another life at the offset of `key`. A range tells no lives
    /// apart, and one reading state that takes over from another names the offsets of both once.
    pub fn names_another(&self, key: &RecordKey) -> bool {
        let (own, name, offset) = key;
        let lives = self.lives.get(&(Arc::clone(name), *offset));
        let others = lives.into_iter().flatten().filter(|ts| *ts != own);
        let mut others = others.filter_map(|ts| self.truth.get(&(*ts, Arc::clone(name), *offset)));
        others.any(|truth| truth.announced)
    }

    /// Lets `key` and the first record of another life at its offset that `fits` change places.
    fn rename(&mut self, key: &RecordKey, fits: impl Fn(i64, &Truth) -> bool) -> bool {
        let (own, name, offset) = key;
        let lives = self.lives.get(&(Arc::clone(name), *offset));
        let others = lives.into_iter().flatten().filter(|ts| *ts != own);
        let mut others = others.map(|ts| (*ts, Arc::clone(name), *offset));
        let fitting = |other: &RecordKey| {
            let truth = self.truth.get(other);
            truth.is_some_and(|truth| fits(other.0, truth))
        };
        let Some(other) = others.find(fitting) else {
            return false;
        };
        for key in [key, &other] {
            if let Some(truth) = self.truth.get_mut(key) {
                truth.announced = !truth.announced;
            }
        }
        true
    }
}
