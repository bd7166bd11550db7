//! The checkpoint: where each partition's reading stood after a window. A cache.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Positions after window `k`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// The window.
    pub k: u64,
    /// The pointer's end when it was taken, µs.
    pub t_end: i64,
    /// Sorted by name.
    pub positions: Vec<Position>,
}

/// `[name, offset, id?]`: the first offset not in any window up to `k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition's raw name.
    pub partition: String,
    /// First offset not in any window up to `k`.
    pub offset: i64,
    /// The partition's life.
    pub id: Option<Uuid>,
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.id {
            Some(id) => (&self.partition, self.offset, id.to_string()).serialize(serializer),
            None => (&self.partition, self.offset).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let _ = deserializer;
        unimplemented!()
    }
}
