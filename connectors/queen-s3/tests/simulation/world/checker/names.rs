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
        })
    }

    /// The record `key` is owed a name as lost: another life's record at that offset gives up its
    /// own, if that one is not `due`.
    pub fn name_instead(&mut self, key: &RecordKey, due: impl Fn(i64, &Truth) -> bool) -> bool {
        self.rename(key, |ts, truth| truth.announced && !due(ts, truth))
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
