//! Sorted records in, deterministic object bytes out.

pub mod compressors;
mod hybrid;
mod jsonl;
mod names;
mod pages;
mod parquet;
mod parts;
mod row_group;
#[cfg(test)]
pub(crate) mod testing;
mod texts;

use bytes::Bytes;
use thiserror::Error;

use crate::lake::{Compression, Format};
use crate::record::{Chunk, Damaged};

use jsonl::JsonlEncoder;
pub use jsonl::{append_line, record_bytes};
use parquet::ParquetEncoder;

/// Bytes of one window's object, built from its records in object order: by partition name
/// (bytes), then log order. The bytes are a function of the records alone.
pub struct ObjectEncoder(Encoder);

enum Encoder {
    Jsonl(Box<JsonlEncoder>),
    Parquet(Box<ParquetEncoder>),
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
    /// Threads that compress lines or encode row groups at a time, at least 1 and no more than there
    /// are cores. Each holds tens of megabytes; bytes do not depend on it.
    pub workers: usize,
    /// Length of every part but the last.
    pub part_bytes: usize,
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
    /// The Parquet writer failed.
    #[error("encoding failed: {0}")]
    Parquet(#[from] ::parquet::errors::ParquetError),
    /// A block that the broker described holds something else.
    #[error(transparent)]
    Damaged(#[from] Damaged),
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
        Ok(Self(match spec.format {
            Format::Jsonl => Encoder::Jsonl(Box::new(JsonlEncoder::new(spec)?)),
            Format::Parquet => Encoder::Parquet(Box::new(ParquetEncoder::new(spec)?)),
        }))
    }

    /// Appends the records of `chunk`, which belong to `partition` (its raw name).
    pub fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        match &mut self.0 {
            Encoder::Jsonl(encoder) => encoder.push(partition, chunk),
            Encoder::Parquet(encoder) => encoder.push(partition, chunk),
        }
    }

    /// Takes the next finished part of exactly [`ObjectSpec::part_bytes`], if there is one.
    pub fn take_part(&mut self) -> Option<Bytes> {
        match &mut self.0 {
            Encoder::Jsonl(encoder) => encoder.take_part(),
            Encoder::Parquet(encoder) => encoder.take_part(),
        }
    }

    /// Ends the object: what comes after the last part taken, in pieces of exactly
    /// [`ObjectSpec::part_bytes`] but for the last one, none of them empty; and the whole
    /// object's figures. A compressor may hold more than one part back until its end.
    pub fn finish(self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        match self.0 {
            Encoder::Jsonl(encoder) => encoder.finish(),
            Encoder::Parquet(encoder) => encoder.finish(),
        }
    }
}
