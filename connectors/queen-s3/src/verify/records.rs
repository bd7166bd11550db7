//! Records read back out of an object's bytes, whatever its format, in little memory: lines as
//! they are decompressed, Parquet from a file, because it is read from its end.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use crate::lake::Compression;
use crate::limits::{COMPRESS_STEP_BYTES, PARQUET_BATCH_ROWS, VERIFY_LINE_BYTES};
use crate::time::{BadTimestamp, Micros};

/// What a check needs to know of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// The partition's raw name.
    pub partition: &'a str,
    /// Offset in the partition.
    pub offset: i64,
    /// Commit time of its segment.
    pub ts: Micros,
}

/// Why an object's records do not read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The bytes end early, or are no output of the compressor.
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

/// Reads the records of an object of JSON lines in its order, and gives each to `each`.
///
/// # Errors
///
/// At the first byte that does not read; the records before it have been given.
pub fn read_lines(
    compression: Compression,
    input: &mut impl Read,
    each: impl FnMut(Seen<'_>),
) -> Result<(), ReadError> {
    match compression {
        Compression::Zstd => {
            let mut frame = zstd::Decoder::new(input)?.single_frame();
            lines(&mut frame, each)?;
            nothing_more(frame.finish())
        }
        Compression::Gzip => {
            let mut member = GzDecoder::new(BufReader::new(input));
            lines(&mut member, each)?;
            nothing_more(member.into_inner())
        }
        Compression::None => lines(input, each),
        Compression::Snappy => Err(ReadError::Compression(compression)),
    }
}

/// Reads the records of a Parquet object in its order, and gives each to `each`. The payloads are
/// not decoded.
///
/// # Errors
///
/// As [`read_lines`].
pub fn read_parquet(file: File, mut each: impl FnMut(Seen<'_>)) -> Result<(), ReadError> {
    let reader = SerializedFileReader::new(file)?;
    let metadata = reader.metadata().file_metadata();
    let column = |name: &'static str| {
        let columns = metadata.schema_descr().columns();
        let found = columns
            .iter()
            .position(|column| column.path().string() == name);
        found.ok_or(ReadError::Column(name))
    };
    let (partition, offset, ts) = (column("partition")?, column("offset")?, column("ts")?);
    let mut number = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group)?;
        let ColumnReader::ByteArrayColumnReader(mut partition) =
            group.get_column_reader(partition)?
        else {
            return Err(ReadError::Column("partition"));
        };
        let ColumnReader::Int64ColumnReader(mut offset) = group.get_column_reader(offset)? else {
            return Err(ReadError::Column("offset"));
        };
        let ColumnReader::Int64ColumnReader(mut ts) = group.get_column_reader(ts)? else {
            return Err(ReadError::Column("ts"));
        };
        let (mut partitions, mut offsets, mut instants) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            partitions.clear();
            offsets.clear();
            instants.clear();
            partition.read_records(PARQUET_BATCH_ROWS, None, None, &mut partitions)?;
            offset.read_records(PARQUET_BATCH_ROWS, None, None, &mut offsets)?;
            ts.read_records(PARQUET_BATCH_ROWS, None, None, &mut instants)?;
            let refuse = |detail: String| ReadError::Row { number, detail };
            if offsets.len() != partitions.len() || instants.len() != partitions.len() {
                return Err(refuse("its columns have different lengths".to_owned()));
            }
            if partitions.is_empty() {
                break;
            }
            for ((name, offset), ts) in partitions.iter().zip(&offsets).zip(&instants) {
                number += 1;
                let refuse = |detail: String| ReadError::Row { number, detail };
                each(Seen {
                    partition: name.as_utf8().map_err(|error| refuse(error.to_string()))?,
                    offset: *offset,
                    ts: Micros(*ts),
                });
            }
        }
    }
    Ok(())
}

fn nothing_more(mut rest: impl BufRead) -> Result<(), ReadError> {
    match rest.fill_buf()? {
        [] => Ok(()),
        _ => Err(ReadError::Trailing),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    partition: Cow<'a, str>,
    offset: i64,
    #[serde(rename = "transactionId")]
    _transaction_id: IgnoredAny,
    #[serde(borrow)]
    ts: Cow<'a, str>,
    #[serde(rename = "payload")]
    _payload: IgnoredAny,
}

fn lines(input: &mut impl Read, mut each: impl FnMut(Seen<'_>)) -> Result<(), ReadError> {
    let mut input = BufReader::with_capacity(COMPRESS_STEP_BYTES, input);
    let mut line = Vec::new();
    let mut ts = (String::new(), Micros::ZERO);
    for number in 1.. {
        line.clear();
        let length = input
            .by_ref()
            .take(VERIFY_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        let refuse = |detail: String| ReadError::Line { number, detail };
        if line.last() != Some(&b'\n') {
            return Err(refuse("no line break ends it".to_owned()));
        }
        let record: Line<'_> =
            serde_json::from_slice(&line).map_err(|error| refuse(error.to_string()))?;
        // Records of one segment share their text.
        if record.ts != ts.0 {
            ts = timestamp(&record.ts).map_err(|error| refuse(error.to_string()))?;
        }
        each(Seen {
            partition: &record.partition,
            offset: record.offset,
            ts: ts.1,
        });
    }
    Ok(())
}

/// An instant spelled exactly as the lake spells it.
fn timestamp(text: &str) -> Result<(String, Micros), BadTimestamp> {
    let instant = Micros::parse(text)?;
    let spelled = instant.to_string();
    if spelled != text {
        return Err(BadTimestamp(text.chars().take(40).collect()));
    }
    Ok((spelled, instant))
}
