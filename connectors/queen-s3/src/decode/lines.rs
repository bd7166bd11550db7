//! JSON lines, read as they are decompressed.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Found, ReadError, Seen};
use crate::lake::Compression;
use crate::limits::{COMPRESS_STEP_BYTES, RECORD_LINE_BYTES};
use crate::time::{BadTimestamp, Micros};

/// The records of an object of JSON lines, in its order.
pub struct Lines<R: Read> {
    input: BufReader<Frame<R>>,
    /// The line read last, or the part of the next one that has come.
    line: Vec<u8>,
    /// Whether `line` was handed out.
    taken: bool,
    number: u64,
    partition: String,
    /// Records of one segment share their text.
    ts: (String, Micros),
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

impl<R: Read> Lines<R> {
    /// Reads `input`, compressed as `compression` says: one frame.
    ///
    /// # Errors
    ///
    /// For a compression that lines do not have.
    pub fn new(compression: Compression, input: R) -> Result<Self, ReadError> {
        let frame = Frame::new(compression, input)?;
        Ok(Self {
            input: BufReader::with_capacity(COMPRESS_STEP_BYTES, frame),
            line: Vec::new(),
            taken: false,
            number: 0,
            partition: String::new(),
            ts: (String::new(), Micros::ZERO),
        })
    }

    /// The next record, `None` after the last.
    ///
    /// # Errors
    ///
    /// At the first byte that does not read. After one that [`ReadError::is_starved`] it may be
    /// asked again.
    pub fn next_record(&mut self) -> Result<Option<Found<'_>>, ReadError> {
        if std::mem::take(&mut self.taken) {
            self.line.clear();
        }
        let room = RECORD_LINE_BYTES.saturating_sub(self.line.len() as u64);
        let mut input = self.input.by_ref().take(room);
        input.read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() {
            self.input.get_mut().nothing_more()?;
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        let refuse = |detail: String| ReadError::Line { number, detail };
        let Some((b'\n', line)) = self.line.split_last() else {
            return Err(refuse("no line break ends it".to_owned()));
        };
        let record: Line<'_> =
            serde_json::from_slice(line).map_err(|error| refuse(error.to_string()))?;
        if record.ts != self.ts.0 {
            self.ts = timestamp(&record.ts).map_err(|error| refuse(error.to_string()))?;
        }
        self.partition.clear();
        self.partition.push_str(&record.partition);
        self.taken = true;
        Ok(Some(Found {
            seen: Seen {
                partition: &self.partition,
                offset: record.offset,
                ts: self.ts.1,
            },
            line: line.into(),
        }))
    }

    /// What is read from.
    pub fn input(&self) -> &R {
        self.input.get_ref().input()
    }
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

/// What is in a compressed frame.
enum Frame<R: Read> {
    None(R),
    Gzip(Box<GzDecoder<BufReader<R>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
}

impl<R: Read> Frame<R> {
    fn new(compression: Compression, input: R) -> Result<Self, ReadError> {
        Ok(match compression {
            Compression::Zstd => Self::Zstd(Box::new(zstd::Decoder::new(input)?.single_frame())),
            Compression::Gzip => Self::Gzip(Box::new(GzDecoder::new(BufReader::new(input)))),
            Compression::None => Self::None(input),
            Compression::Snappy => return Err(ReadError::Compression(compression)),
        })
    }

    fn input(&self) -> &R {
        match self {
            Self::None(input) => input,
            Self::Gzip(member) => member.get_ref().get_ref(),
            Self::Zstd(frame) => frame.get_ref().get_ref(),
        }
    }

    /// Whether the object ends with the frame.
    fn nothing_more(&mut self) -> Result<(), ReadError> {
        let rest = match self {
            Self::None(_) => return Ok(()),
            Self::Gzip(member) => member.get_mut(),
            Self::Zstd(frame) => frame.get_mut(),
        };
        match rest.fill_buf()? {
            [] => Ok(()),
            _ => Err(ReadError::Trailing),
        }
    }
}

impl<R: Read> Read for Frame<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::None(input) => input.read(room),
            Self::Gzip(member) => member.read(room),
            Self::Zstd(frame) => frame.read(room),
        }
    }
}
