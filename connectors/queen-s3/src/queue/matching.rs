//! An object of lines that is there already when its window is redone: it stays as it is if it
//! holds every record that the redo finds, in order. It may hold more, which were deleted since.

use std::io::Write;

use flate2::write::MultiGzDecoder;
use futures::TryStreamExt;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::writer::{Run, Tally};
use crate::bucket::{BucketError, ObjectReader};
use crate::encode::ObjectSummary;
use crate::lake::Compression;
use crate::lake::manifest::OffsetRange;
use crate::time::Micros;

/// Walks through an existing object in step with what is rebuilt.
pub(super) struct Matcher {
    reader: ObjectReader,
    decompressor: Decompressor,
    sha256: Sha256,
    bytes: u64,
    existing: Lines,
    rebuilt: Lines,
    tally: Tally,
    last_partition: Option<String>,
}

/// Why an object does not match.
#[derive(Debug)]
pub(super) enum Mismatch {
    /// The bucket failed while it was read.
    Bucket(BucketError),
    /// It lacks a record, or does not read.
    Differs(String),
}

impl From<BucketError> for Mismatch {
    fn from(error: BucketError) -> Self {
        Self::Bucket(error)
    }
}

/// The fields of a line that its tally needs.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    partition: std::borrow::Cow<'a, str>,
    offset: i64,
    ts: &'a str,
}

impl Matcher {
    /// A matcher over an open object, compressed as `compression` says.
    pub(super) fn new(reader: ObjectReader, compression: Compression) -> std::io::Result<Self> {
        Ok(Self {
            reader,
            decompressor: Decompressor::new(compression)?,
            sha256: Sha256::new(),
            bytes: 0,
            existing: Lines::default(),
            rebuilt: Lines::default(),
            tally: Tally::default(),
            last_partition: None,
        })
    }

    /// Takes in more of the rebuilt lines, which may end within one.
    pub(super) async fn rebuilt(&mut self, lines: &[u8]) -> Result<(), Mismatch> {
        self.rebuilt.append(lines);
        while let Some(wanted) = self.rebuilt.next() {
            loop {
                let Some(found) = self.next_existing().await? else {
                    let record: String =
                        String::from_utf8_lossy(&wanted).chars().take(100).collect();
                    return Err(Mismatch::Differs(format!("it lacks the record {record}")));
                };
                if found == wanted {
                    break;
                }
                self.keep(&found);
            }
        }
        Ok(())
    }

    /// Reads the object to its end, and answers its figures.
    pub(super) async fn finish(mut self) -> Result<(ObjectSummary, Tally), Mismatch> {
        while let Some(found) = self.next_existing().await? {
            self.keep(&found);
        }
        let summary = ObjectSummary {
            bytes: self.bytes,
            records: self.tally.records,
            sha256: self.sha256.finalize().into(),
            // Only an upload needs it.
            md5: [0; 16],
        };
        Ok((summary, self.tally))
    }

    async fn next_existing(&mut self) -> Result<Option<Vec<u8>>, Mismatch> {
        loop {
            if let Some(line) = self.existing.next() {
                self.count(&line)?;
                return Ok(Some(line));
            }
            let Some(piece) = self.reader.stream.try_next().await? else {
                self.decompressor
                    .finish(&mut self.existing)
                    .map_err(unreadable)?;
                return match self.existing.next() {
                    Some(line) => {
                        self.count(&line)?;
                        Ok(Some(line))
                    }
                    None if self.existing.is_empty() => Ok(None),
                    None => Err(Mismatch::Differs("its last line has no end".to_owned())),
                };
            };
            self.bytes += piece.len() as u64;
            self.sha256.update(&piece);
            self.decompressor
                .write(&piece, &mut self.existing)
                .map_err(unreadable)?;
        }
    }

    /// Notes a record that the log no longer has.
    fn keep(&mut self, line: &[u8]) {
        // It was read when it was counted.
        let Ok(Line {
            partition, offset, ..
        }) = serde_json::from_slice(line)
        else {
            return;
        };
        match self.tally.kept.last_mut() {
            Some(range) if range.partition == *partition && range.to + 1 == offset => {
                range.to = offset;
            }
            _ => self.tally.kept.push(OffsetRange {
                partition: partition.into_owned(),
                from: offset,
                to: offset,
            }),
        }
    }

    fn count(&mut self, line: &[u8]) -> Result<(), Mismatch> {
        let line: Line<'_> = serde_json::from_slice(line)
            .map_err(|error| Mismatch::Differs(format!("a line of it does not read: {error}")))?;
        let ts = Micros::parse(line.ts)
            .map_err(|error| Mismatch::Differs(format!("a line of it: {error}")))?;
        let begins = self.last_partition.as_deref() != Some(&*line.partition);
        let offsets = (line.offset, line.offset);
        if begins {
            self.last_partition = Some(line.partition.into_owned());
        }
        self.tally.count(Run {
            begins,
            records: 1,
            offsets,
            ts: (ts, ts),
        });
        Ok(())
    }
}

fn unreadable(error: std::io::Error) -> Mismatch {
    Mismatch::Differs(format!("it does not decompress: {error}"))
}

/// Bytes cut at line ends.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    at: usize,
}

impl Lines {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    fn next(&mut self) -> Option<Vec<u8>> {
        let rest = &self.bytes[self.at..];
        let end = memchr::memchr(b'\n', rest)?;
        let line = rest[..end].to_vec();
        self.at += end + 1;
        Some(line)
    }

    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

enum Decompressor {
    None,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
}

impl Decompressor {
    fn new(compression: Compression) -> std::io::Result<Self> {
        Ok(match compression {
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Compression::Zstd => {
                Self::Zstd(Box::new(zstd::stream::write::Decoder::new(Vec::new())?))
            }
            Compression::None | Compression::Snappy => Self::None,
        })
    }

    fn write(&mut self, piece: &[u8], lines: &mut Lines) -> std::io::Result<()> {
        match self {
            Self::None => lines.append(piece),
            Self::Gzip(decoder) => {
                decoder.write_all(piece)?;
                lines.append(&std::mem::take(decoder.get_mut()));
            }
            Self::Zstd(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
                lines.append(&std::mem::take(decoder.get_mut()));
            }
        }
        Ok(())
    }

    /// The object is at its end: hands out what the decoder still holds.
    fn finish(&mut self, lines: &mut Lines) -> std::io::Result<()> {
        match self {
            Self::None => {}
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                lines.append(&std::mem::take(decoder.get_mut()));
            }
            Self::Zstd(decoder) => {
                decoder.flush()?;
                lines.append(&std::mem::take(decoder.get_mut()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::StreamExt;
    use futures::stream;

    use super::*;

    fn line(partition: &str, offset: i64) -> String {
        format!(
            "{{\"partition\":\"{partition}\",\"offset\":{offset},\"transactionId\":\"t\",\
             \"ts\":\"2026-09-04T10:00:00.00000{offset}Z\",\"payload\":{{}}}}\n"
        )
    }

    fn matcher(content: Vec<u8>, compression: Compression, piece: usize) -> Matcher {
        let size = content.len() as u64;
        let pieces: Vec<_> = content.chunks(piece).map(Bytes::copy_from_slice).collect();
        let stream = stream::iter(pieces).map(Ok).boxed();
        Matcher::new(ObjectReader { size, stream }, compression).expect("a decoder")
    }

    #[tokio::test]
    async fn an_object_with_more_records_than_are_found_again_stays() {
        let all = [line("a", 1), line("a", 2), line("b", 1), line("b", 2)].concat();
        let zstd = zstd::encode_all(all.as_bytes(), 3).expect("zstd");
        for piece in [1, 7, 1_000] {
            let mut matcher = matcher(zstd.clone(), Compression::Zstd, piece);
            matcher
                .rebuilt(line("a", 2).as_bytes())
                .await
                .expect("it holds it");
            let whole = line("b", 2);
            let (begin, rest) = whole.split_at(20);
            matcher
                .rebuilt(begin.as_bytes())
                .await
                .expect("half a line");
            matcher.rebuilt(rest.as_bytes()).await.expect("it holds it");
            let (summary, tally) = matcher.finish().await.expect("it reads");
            assert_eq!(summary.bytes, zstd.len() as u64);
            assert_eq!(summary.records, 4);
            assert_eq!(tally.partitions, 2);
            assert_eq!(tally.offsets, Some((1, 2)));
            let kept = |partition: &str| OffsetRange {
                partition: partition.into(),
                from: 1,
                to: 1,
            };
            assert_eq!(tally.kept, [kept("a"), kept("b")]);
        }
    }

    #[tokio::test]
    async fn an_object_that_lacks_a_record_does_not_match() {
        let mut matcher = matcher(line("a", 1).into_bytes(), Compression::None, 10);
        let wanted = [line("a", 1), line("a", 2)].concat();
        let mismatch = matcher.rebuilt(wanted.as_bytes()).await;
        assert!(matches!(mismatch, Err(Mismatch::Differs(line)) if line.contains("\"offset\":2")));
    }

    #[tokio::test]
    async fn an_object_that_does_not_read_does_not_match() {
        let mut matcher = matcher(b"no zstd".to_vec(), Compression::Zstd, 10);
        let mismatch = matcher.rebuilt(line("a", 1).as_bytes()).await;
        assert!(matches!(mismatch, Err(Mismatch::Differs(_))));
    }
}
