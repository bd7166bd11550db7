//! Records read back out of an object's bytes, whatever its format, in little memory.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use crate::lake::{Compression, Format};
use crate::limits::{COMPRESS_STEP_BYTES, VERIFY_LINE_BYTES};
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
    /// The manifest names a combination that there is not.
    #[error("{0} objects are not compressed with {1}")]
    Shape(Format, Compression),
}

/// Reads the records of an object of this format in its order, and gives each to `each`.
///
/// # Errors
///
/// At the first byte that does not read; the records before it have been given.
pub fn read(
    format: Format,
    compression: Compression,
    input: &mut impl Read,
    each: impl FnMut(Seen<'_>),
) -> Result<(), ReadError> {
    match (format, compression) {
        (Format::Jsonl, Compression::Zstd) => {
            let mut frame = zstd::Decoder::new(input)?.single_frame();
            lines(&mut frame, each)?;
            nothing_more(frame.finish())
        }
        (Format::Jsonl, Compression::Gzip) => {
            let mut member = GzDecoder::new(BufReader::new(input));
            lines(&mut member, each)?;
            nothing_more(member.into_inner())
        }
        (Format::Jsonl, Compression::None) => lines(input, each),
        (format, compression) => Err(ReadError::Shape(format, compression)),
    }
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
