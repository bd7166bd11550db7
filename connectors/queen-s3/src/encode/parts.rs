//! An object's bytes, cut into parts and hashed as they come.

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::Bytes;
use md5::Md5;
use sha2::{Digest, Sha256};

use super::ObjectSummary;
use crate::limits::PART_BYTES;

/// Room for an object whose length is not expected to be more.
const LEAST_ROOM: usize = 4 << 10;

/// Collects an object's bytes. Every part but the last is exactly [`PART_BYTES`] long.
pub(super) struct Parts {
    /// The part being filled: `filled` bytes of it are the object's.
    part: Vec<u8>,
    filled: usize,
    full: VecDeque<Bytes>,
    bytes: u64,
    sha256: Sha256,
    md5: Md5,
}

impl Parts {
    /// An empty object, with room for `expected` bytes before its first part has to grow.
    pub(super) fn new(expected: u64) -> Self {
        let room = usize::try_from(expected).map_or(PART_BYTES, |bytes| bytes.min(PART_BYTES));
        Self {
            part: vec![0; room],
            filled: 0,
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
            let room = (self.filled * 2).clamp(LEAST_ROOM, PART_BYTES);
            self.part.resize(room, 0);
        }
        let written = write(&mut self.part[self.filled..])?;
        let fresh = &self.part[self.filled..self.filled + written];
        self.sha256.update(fresh);
        self.md5.update(fresh);
        self.filled += written;
        self.bytes += written as u64;
        if self.filled == PART_BYTES {
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
        let mut parts = Parts::new(10);
        let content = vec![7; 100_000];
        parts.write_all(&content).expect("room in memory");
        assert!(parts.part.len() < MIB, "{} bytes", parts.part.len());
        let (pieces, summary) = parts.finish(1);
        assert_eq!((pieces.concat(), summary.bytes), (content, 100_000));
    }
}
