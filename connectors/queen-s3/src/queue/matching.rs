//! An object that is there already when its window is redone: it stays as it is if it holds every
//! record that the redo finds, in order. It may hold more, which were deleted since.

use std::fs::File;
use std::io::{self, Write};

use bytes::Bytes;
use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::{Sender, channel};

use super::writer::{Run, Tally};
use crate::bucket::{BucketError, ObjectReader};
use crate::compute::Compute;
use crate::decode::{Arriving, Columns, Found, Lines, ReadError, Rows, Seen};
use crate::encode::ObjectSummary;
use crate::lake::manifest::OffsetRange;
use crate::lake::{Compression, Format};

const WALK_IN_PLACE: &str = "the walk is in place between two steps";

/// Walks through an existing object in step with what is rebuilt.
pub(super) struct Matcher {
    compute: Compute,
    walk: Option<Box<Walk>>,
    /// An object of lines that is still being read.
    arriving: Option<(ObjectReader, Sender<Bytes>)>,
}

/// Why an object does not match.
#[derive(Debug)]
pub(super) enum Mismatch {
    /// The bucket failed while it was read.
    Bucket(BucketError),
    /// There is no room for it on the disk.
    Spool(io::Error),
    /// It lacks a record, or does not read.
    Differs(String),
}

impl From<BucketError> for Mismatch {
    fn from(error: BucketError) -> Self {
        Self::Bucket(error)
    }
}

impl From<ReadError> for Mismatch {
    fn from(error: ReadError) -> Self {
        Self::Differs(format!("it does not read: {error}"))
    }
}

impl Matcher {
    /// A matcher over an open object made as `format` and `compression` say. `partition`: the only
    /// one that it may hold records of, if it is one partition's.
    pub(super) async fn new(
        reader: ObjectReader,
        format: Format,
        compression: Compression,
        partition: Option<&str>,
        compute: Compute,
    ) -> Result<Self, Mismatch> {
        let (existing, arriving) = match format {
            Format::Jsonl => {
                let (pieces, arrived) = channel(1);
                let lines = Lines::new(compression, Arriving::new(arrived, false))?;
                (Existing::Lines(Box::new(lines)), Some((reader, pieces)))
            }
            Format::Parquet => {
                let (file, bytes, sha256) = spool(reader, compute).await?;
                let rows = compute.run(move || Rows::new(file, Columns::All)).await?;
                let rows = Box::new(rows);
                (Existing::Rows(rows, bytes, sha256), None)
            }
        };
        let walk = Walk {
            existing,
            rebuilt: Rebuilt::default(),
            figures: Figures {
                partition: partition.map(str::to_owned),
                tally: Tally::default(),
                last_partition: None,
            },
        };
        Ok(Self {
            compute,
            walk: Some(Box::new(walk)),
            arriving,
        })
    }

    /// Takes in more of the rebuilt lines, which may end within one.
    pub(super) async fn rebuilt(&mut self, lines: &[u8]) -> Result<(), Mismatch> {
        self.walk
            .as_mut()
            .expect(WALK_IN_PLACE)
            .rebuilt
            .append(lines);
        self.walk(false).await
    }

    /// Reads the object to its end, and answers its figures.
    pub(super) async fn finish(mut self) -> Result<(ObjectSummary, Tally), Mismatch> {
        self.walk(true).await?;
        let walk = self.walk.take().expect(WALK_IN_PLACE);
        let (bytes, sha256) = match &walk.existing {
            Existing::Lines(lines) => (lines.input().arrived(), lines.input().sha256()),
            Existing::Rows(_, bytes, sha256) => (*bytes, *sha256),
        };
        let summary = ObjectSummary {
            bytes,
            records: walk.figures.tally.records,
            sha256,
            // Only an upload needs it.
            md5: [0; 16],
        };
        Ok((summary, walk.figures.tally))
    }

    /// Walks on to the last rebuilt line, or to the object's end.
    async fn walk(&mut self, to_end: bool) -> Result<(), Mismatch> {
        loop {
            let mut walk = self.walk.take().expect(WALK_IN_PLACE);
            let (walk, walked) = self
                .compute
                .run(move || {
                    let walked = walk.on(to_end);
                    (walk, walked)
                })
                .await;
            self.walk = Some(walk);
            match walked {
                Ok(()) => return Ok(()),
                Err(Stop::Differs(detail)) => return Err(Mismatch::Differs(detail)),
                Err(Stop::Read(error)) if error.is_starved() => self.feed().await?,
                Err(Stop::Read(error)) => return Err(error.into()),
            }
        }
    }

    /// Lets the next piece arrive.
    async fn feed(&mut self) -> Result<(), Mismatch> {
        let Some((reader, pieces)) = &mut self.arriving else {
            return Ok(());
        };
        match reader.stream.try_next().await? {
            // Nobody but the walk takes pieces, and it has taken the last one.
            Some(piece) => drop(pieces.send(piece).await),
            None => self.arriving = None,
        }
        Ok(())
    }
}

/// Downloads an object into a file without a name, gone when it is closed, and hashes it.
async fn spool(
    mut reader: ObjectReader,
    compute: Compute,
) -> Result<(File, u64, [u8; 32]), Mismatch> {
    let mut file = compute
        .run(tempfile::tempfile)
        .await
        .map_err(Mismatch::Spool)?;
    let (mut bytes, mut sha256) = (0, Sha256::new());
    while let Some(piece) = reader.stream.try_next().await? {
        bytes += piece.len() as u64;
        (file, sha256) = compute
            .run(move || {
                sha256.update(&piece);
                file.write_all(&piece).map(|()| (file, sha256))
            })
            .await
            .map_err(Mismatch::Spool)?;
    }
    Ok((file, bytes, sha256.finalize().into()))
}

/// The object that is there.
enum Existing {
    Lines(Box<Lines<Arriving>>),
    /// With its length and hash.
    Rows(Box<Rows>, u64, [u8; 32]),
}

impl Existing {
    fn next_record(&mut self) -> Result<Option<Found<'_>>, ReadError> {
        match self {
            Self::Lines(lines) => lines.next_record(),
            Self::Rows(rows, ..) => rows.next_record(),
        }
    }
}

/// Why a walk stops.
enum Stop {
    Read(ReadError),
    Differs(String),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

struct Walk {
    existing: Existing,
    rebuilt: Rebuilt,
    figures: Figures,
}

impl Walk {
    /// Goes on until every rebuilt line was found, or to the object's end.
    fn on(&mut self, to_end: bool) -> Result<(), Stop> {
        while let Some(wanted) = self.rebuilt.line() {
            let Some(found) = self.existing.next_record()? else {
                let record: String = String::from_utf8_lossy(wanted).chars().take(100).collect();
                return Err(Stop::Differs(format!("it lacks the record {record}")));
            };
            let same = is_same(&found.line, wanted);
            self.figures.count(found.seen, same)?;
            if same {
                self.rebuilt.pass();
            }
        }
        while to_end && let Some(found) = self.existing.next_record()? {
            self.figures.count(found.seen, false)?;
        }
        Ok(())
    }
}

/// What is told of the object.
struct Figures {
    partition: Option<String>,
    tally: Tally,
    last_partition: Option<String>,
}

impl Figures {
    /// Counts a record. One that was not `rebuilt` is no longer in the log.
    fn count(&mut self, seen: Seen<'_>, rebuilt: bool) -> Result<(), Stop> {
        let Seen {
            partition,
            offset,
            ts,
        } = seen;
        if self
            .partition
            .as_deref()
            .is_some_and(|only| only != partition)
        {
            let detail = format!("it holds a record of the partition {partition:?}");
            return Err(Stop::Differs(detail));
        }
        let begins = self.last_partition.as_deref() != Some(partition);
        if begins {
            self.last_partition = Some(partition.to_owned());
        }
        self.tally.count(Run {
            begins,
            records: 1,
            offsets: (offset, offset),
            ts: (ts, ts),
        });
        if rebuilt {
            return Ok(());
        }
        match self.tally.kept.last_mut() {
            Some(range)
                if range.partition == partition && range.to.checked_add(1) == Some(offset) =>
            {
                range.to = offset;
            }
            _ => self.tally.kept.push(OffsetRange {
                partition: partition.to_owned(),
                from: offset,
                to: offset,
            }),
        }
        Ok(())
    }
}

/// A record's line, its fields as they are spelled.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spelled<'a> {
    #[serde(borrow)]
    partition: &'a RawValue,
    offset: i64,
    #[serde(borrow)]
    transaction_id: &'a RawValue,
    #[serde(borrow)]
    ts: &'a RawValue,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Whether two lines are of the same record. A transaction id with half a surrogate pair, which
/// Parquet cannot hold, need not be the same.
fn is_same(found: &[u8], wanted: &[u8]) -> bool {
    if found == wanted {
        return true;
    }
    let (Ok(found), Ok(wanted)) = (
        serde_json::from_slice::<Spelled<'_>>(found),
        serde_json::from_slice::<Spelled<'_>>(wanted),
    ) else {
        return false;
    };
    let rest = |line: &Spelled<'_>| {
        let texts = [line.partition, line.ts, line.payload].map(|text| text.get().to_owned());
        (line.offset, texts)
    };
    serde_json::from_str::<String>(wanted.transaction_id.get()).is_err()
        && rest(&found) == rest(&wanted)
}

/// Rebuilt bytes, cut at line ends.
#[derive(Default)]
struct Rebuilt {
    bytes: Vec<u8>,
    at: usize,
    /// Where the line handed out last ends.
    end: usize,
}

impl Rebuilt {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    fn line(&mut self) -> Option<&[u8]> {
        let length = memchr::memchr(b'\n', &self.bytes[self.at..])?;
        self.end = self.at + length;
        Some(&self.bytes[self.at..self.end])
    }

    /// Goes on to the line after the one handed out last.
    fn pass(&mut self) {
        self.at = self.end + 1;
    }
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
