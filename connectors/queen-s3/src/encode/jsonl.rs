//! JSON lines, compressed as one frame.

use bytes::Bytes;

use super::{EncodeError, ObjectSpec, ObjectSummary};
use crate::record::Chunk;

/// Length of the JSONL lines of `chunk`, which belong to `partition` (raw): what the size target
/// counts, whatever the format.
pub fn record_bytes(partition: &str, chunk: &Chunk) -> u64 {
    let _ = (partition, chunk);
    unimplemented!()
}

/// Builds one JSONL object.
pub struct JsonlEncoder {}

impl JsonlEncoder {
    /// An encoder for one object.
    pub fn new(spec: &ObjectSpec) -> Result<Self, EncodeError> {
        let _ = spec;
        unimplemented!()
    }

    /// Appends the records of `chunk`.
    pub fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        let _ = (partition, chunk);
        unimplemented!()
    }

    /// Takes the next full part.
    pub fn take_part(&mut self) -> Option<Bytes> {
        unimplemented!()
    }

    /// Ends the object.
    pub fn finish(self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        unimplemented!()
    }
}
