//! Stored segments, opened for those who consume them.

use tokio_postgres::Row;
use uuid::Uuid;

use crate::log::codec::{BlockWriter, Damage, Record, Records, decompress};
use crate::log::seal::{Place, SealKey, is_sealed, opened};

/// Opens blocks one after the other, keeping the memory.
pub struct Opener<'k> {
    key: Option<&'k SealKey>,
    opened: Vec<u8>,
    raw: Vec<u8>,
}

impl<'k> Opener<'k> {
    /// `key` opens what is sealed.
    pub fn new(key: Option<&'k SealKey>) -> Self {
        Self {
            key,
            opened: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// The records of a block, all of them.
    ///
    /// # Errors
    ///
    /// [`Damage`]: nothing of the block may be used then.
    pub fn open<'a>(
        &'a mut self,
        block: &[u8],
        place: Place<'_>,
    ) -> Result<Vec<Record<'a>>, Damage> {
        let frame = opened(block, place, self.key, &mut self.opened)?;
        decompress(frame, place.raw_bytes, &mut self.raw)?;
        let records = Records::new(&self.raw)?.collect::<Result<Vec<_>, _>>()?;
        // With a record too few or too many, every later one would have a wrong offset.
        if records.len() != place.records {
            return Err(Damage::Record);
        }
        Ok(records)
    }
}

/// A block of one record, as a segment would hold it.
#[derive(Debug, Clone)]
pub struct OneRecord {
    /// Length before compression.
    pub raw_bytes: usize,
    /// The block, sealed if the record was.
    pub block: Vec<u8>,
}

impl OneRecord {
    /// Copies a record out of the segment at `place`, which was stored as `block`.
    ///
    /// # Errors
    ///
    /// [`Damage`], or zstd's own failure for lack of memory.
    pub fn copy(
        record: Record<'_>,
        block: &[u8],
        place: Place<'_>,
        key: Option<&SealKey>,
    ) -> Result<Self, Damage> {
        let mut writer = BlockWriter::new();
        writer.push(record.id, record.payload);
        let built = writer
            .finish()
            .map_err(|error| Damage::Frame(error.to_string()))?;
        let place = Place {
            records: 1,
            raw_bytes: built.raw_bytes,
            ..place
        };
        let block = if is_sealed(block) {
            key.ok_or(Damage::NoKey)?.seal(&built.frame, place)?
        } else {
            built.frame
        };
        Ok(Self {
            raw_bytes: built.raw_bytes,
            block,
        })
    }
}

/// A row's block, kept as it came over the wire: it is not copied.
pub fn block_of(row: &Row, column: usize) -> &[u8] {
    row.get(column)
}

/// A partition as clients name it.
pub fn partition_id(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text).ok()
}
