//! Sorted records in, deterministic object bytes out.

mod jsonl;
mod parts;
#[cfg(test)]
mod testing;

use bytes::Bytes;
use thiserror::Error;

use crate::lake::{Compression, Format};
use crate::record::Chunk;

pub use jsonl::record_bytes;

/// Bytes of one window's object, built from its records in object order: by partition name
/// (bytes), then log order. The bytes are a function of the records alone.
pub struct ObjectEncoder {
    inner: jsonl::JsonlEncoder,
}

/// What an encoder needs to know before its first record.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// The object's format.
    pub format: Format,
    /// Its compression or codec.
    pub compression: Compression,
    /// The queue's raw name.
    pub queue: String,
    /// Sum of the record bytes (JSONL line lengths) of everything that will be pushed. Goes into
    /// the zstd frame's header, so it must be exact.
    pub record_bytes: u64,
}

/// A finished object's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSummary {
    /// Length in bytes.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// SHA-256 of the content.
    pub sha256: [u8; 32],
    /// MD5 of the content.
    pub md5: [u8; 16],
}

/// Why an object could not be built.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// The compressor failed.
    #[error("encoding failed: {0}")]
    Codec(#[from] std::io::Error),
    /// The record bytes were not those announced.
    #[error("encoding failed: {announced} record bytes were announced and {pushed} came")]
    RecordBytes {
        /// What [`ObjectSpec::record_bytes`] said.
        announced: u64,
        /// What came, up to the record at which it was seen.
        pushed: u64,
    },
}

impl ObjectEncoder {
    /// An encoder for one object.
    pub fn new(spec: &ObjectSpec) -> Result<Self, EncodeError> {
        Ok(Self {
            inner: jsonl::JsonlEncoder::new(spec)?,
        })
    }

    /// Appends the records of `chunk`, which belong to `partition` (its raw name).
    pub fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        self.inner.push(partition, chunk)
    }

    /// Takes the next finished part of exactly [`crate::limits::PART_BYTES`], if there is one.
    pub fn take_part(&mut self) -> Option<Bytes> {
        self.inner.take_part()
    }

    /// Ends the object: what comes after the last part taken, in pieces of exactly
    /// [`crate::limits::PART_BYTES`] but for the last one, none of them empty; and the whole
    /// object's figures. A compressor may hold more than one part back until its end.
    pub fn finish(self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        self.inner.finish()
    }
}
