//! Names of everything the sink writes: object keys and key/value keys.

use super::Shape;
use crate::time::Micros;

/// The names of one sink's lake of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeKeys {
    prefix: String,
    sink: String,
    queue: String,
}

/// What of an intent goes into its window's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// Window number, from 1.
    pub k: u64,
    /// Start, inclusive.
    pub t_start: Micros,
    /// End, exclusive.
    pub t_end: Micros,
}

impl LakeKeys {
    /// The names of the lake under `prefix` of `sink` for `queue`, both raw.
    pub fn new(prefix: &str, sink: &str, queue: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            sink: encode_name(sink),
            queue: encode_name(queue),
        }
    }

    /// Key of a data object; `partition` (raw) only in the per-partition layout.
    pub fn data(&self, bounds: WindowBounds, shape: Shape, partition: Option<&str>) -> String {
        let _ = (
            bounds,
            shape,
            partition,
            &self.prefix,
            &self.sink,
            &self.queue,
        );
        unimplemented!()
    }

    /// Key of window `k`'s manifest.
    pub fn manifest(&self, k: u64) -> String {
        let _ = k;
        unimplemented!()
    }

    /// What every manifest key of this queue starts with.
    pub fn manifests(&self) -> String {
        unimplemented!()
    }

    /// Key of the checkpoint after window `k`.
    pub fn checkpoint(&self, k: u64) -> String {
        let _ = k;
        unimplemented!()
    }

    /// What every checkpoint key of this queue starts with.
    pub fn checkpoints(&self) -> String {
        unimplemented!()
    }

    /// What every data key of window `k` starts with when its start lies in the bucket of `at`.
    pub fn window_prefix(&self, k: u64, at: Micros, shape: Shape) -> String {
        let _ = (k, at, shape);
        unimplemented!()
    }

    /// Key/value key of the intent.
    pub fn intent(&self) -> String {
        unimplemented!()
    }

    /// Key/value key of the commit pointer.
    pub fn committed(&self) -> String {
        unimplemented!()
    }

    /// Key/value key of the lease.
    pub fn lease(&self) -> String {
        unimplemented!()
    }
}

/// A raw name as keys spell it: every byte outside `[A-Za-z0-9._-]` escaped, long ones hashed.
pub fn encode_name(raw: &str) -> String {
    let _ = raw;
    unimplemented!()
}
