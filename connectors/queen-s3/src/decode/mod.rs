//! Object bytes in, records out: what [`crate::encode`] wrote, or another version did, read back in
//! little memory. Lines are read as they are decompressed, Parquet from a file, because it is read
//! from its end.

mod arriving;
mod lines;
mod pages;
mod rows;

use std::borrow::Cow;
use std::io;

use parquet::errors::ParquetError;
use thiserror::Error;

use crate::lake::Compression;
use crate::time::Micros;

pub use arriving::Arriving;
pub use lines::Lines;
pub use rows::{Columns, Rows};

/// What is read of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The partition's raw name.
    pub partition: &'a str,
    /// Offset in the partition.
    pub offset: i64,
    /// Commit time of its segment.
    pub ts: Micros,
}

/// One record of an object.
#[derive(Debug)]
pub struct Found<'a> {
    /// Which record it is.
    pub seen: Seen<'a>,
    /// Its line as JSON lines spell it, without the line break; of a row only where
    /// [`Columns::All`] are read.
    pub line: Cow<'a, [u8]>,
}

/// Why an object's records do not read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The bytes end early, or are no output of the compressor; or, where they still arrive, the
    /// next ones are not there yet (`WouldBlock`).
    #[error("{0}")]
    Bytes(#[from] io::Error),
    /// Something follows the compressed frame; many readers would not see it.
    #[error("more bytes follow the compressed frame")]
    Trailing,
    /// A line is no record.
    #[error("line {number} is no record: {detail}")]
    Line {
        /// From 1.
        number: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// A Parquet object is damaged.
    #[error("{0}")]
    Parquet(#[from] ParquetError),
    /// A Parquet object claims what none of a lake can be.
    #[error("{0}")]
    Claim(String),
    /// A Parquet object lacks a column, or has it with another type.
    #[error("it has no column {0} of the lake's type")]
    Column(&'static str),
    /// A row of a Parquet object is no record.
    #[error("row {number} is no record: {detail}")]
    Row {
        /// From 1.
        number: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// The manifest names a combination that there is not.
    #[error("JSON lines are not compressed with {0}")]
    Compression(Compression),
}

impl ReadError {
    /// Whether nothing is wrong but that the next bytes are not there yet.
    pub fn is_starved(&self) -> bool {
        matches!(self, Self::Bytes(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
mod tests;
