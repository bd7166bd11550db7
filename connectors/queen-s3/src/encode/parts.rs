//! An object's bytes, cut into parts and hashed as they come.

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::Bytes;
use md5::Md5;
use sha2::{Digest, Sha256};

use super::ObjectSummary;

/// Room for an object whose length is not expected to be more.
const LEAST_ROOM: usize = 4 << 10;

/// Collects an object's bytes. Every part but the last is exactly as long as was asked for.
pub(super) struct Parts {
    /// The part being filled: `filled` bytes of it are the object's.
    part: Vec<u8>,
    filled: usize,
    part_bytes: usize,
    full: VecDeque<Bytes>,
    bytes: u64,
    sha256: Sha256,
    md5: Md5,
}

impl Parts {
    /// An empty object in parts of `part_bytes`, with room for `expected` bytes before its first
    /// part has to grow.
    pub(super) fn new(expected: u64, part_bytes: usize) -> Self {
        let room = usize::try_from(expected).map_or(part_bytes, |bytes| bytes.min(part_bytes));
        Self {
            part: vec![0; room],
            filled: 0,
            part_bytes,
            full: VecDeque::new(),
            bytes: 0,
            sha256: Sha256::new(),
            md5: Md5::new(),
        }
    }

    /// Lets `write` put bytes at the start of the free room, which is never empty, and say how
    /// many: a compressor's output needs no copy.
    pub(super) fn fill(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        if self.filled == self.part.len() {
            // Step by step: a small object that is longer than expected must not hold a whole part.
            let room = (self.filled * 2).max(LEAST_ROOM).min(self.part_bytes);
            self.part.resize(room, 0);
        }
        let written = write(&mut self.part[self.filled..])?;
        let fresh = &self.part[self.filled..self.filled + written];
        self.sha256.update(fresh);
        self.md5.update(fresh);
        self.filled += written;
        self.bytes += written as u64;
        if self.filled == self.part_bytes {
            let part = std::mem::take(&mut self.part);
            self.full.push_back(part.into());
            self.filled = 0;
        }
        Ok(())
    }

    /// Takes the next full part.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        self.full.pop_front()
    }

    /// The parts not taken yet, none of them empty, and the object's figures.
    pub(super) fn finish(self, records: u64) -> (Vec<Bytes>, ObjectSummary) {
        let Self {
            mut part,
            filled,
            full,
            bytes,
            sha256,
            md5,
            ..
        } = self;
        let mut pieces = Vec::from(full);
        if filled > 0 {
            part.truncate(filled);
            pieces.push(part.into());
        }
        let summary = ObjectSummary {
            bytes,
            records,
            sha256: sha256.finalize().into(),
            md5: md5.finalize().into(),
        };
        (pieces, summary)
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        self.fill(|room| {
            taken = room.len().min(bytes.len());
            room[..taken].copy_from_slice(&bytes[..taken]);
            Ok(taken)
        })?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MIB;

    #[test]
    fn a_small_object_that_is_longer_than_expected_holds_little_room() {
        let mut parts = Parts::new(10, 16 * MIB);
        let content = vec![7; 100_000];
        parts.write_all(&content).expect("room in memory");
        assert!(parts.part.len() < MIB, "{} bytes", parts.part.len());
        let (pieces, summary) = parts.finish(1);
        assert_eq!((pieces.concat(), summary.bytes), (content, 100_000));
    }

    #[test]
    fn parts_are_as_long_as_asked_for_whatever_was_expected() {
        for expected in [0, 10, 299, 300, 301, 1_000] {
            let mut parts = Parts::new(expected, 300);
            let content: Vec<u8> = (0..901_u32).map(|at| at as u8).collect();
            parts.write_all(&content[..500]).expect("room in memory");
            let first = parts.take().expect("a part is full");
            parts.write_all(&content[500..]).expect("room in memory");
            let (rest, _) = parts.finish(1);
            let lengths: Vec<usize> = rest.iter().map(bytes::Bytes::len).collect();
            assert_eq!(
                (first.len(), lengths),
                (300, vec![300, 300, 1]),
                "{expected}"
            );
            assert_eq!([&first[..], &rest.concat()[..]].concat(), content);
        }
    }
}
