//! Stored segments, opened for those who consume them.

use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::ApiError;
use crate::log::codec::{BlockWriter, Damage, Record, Records, decompress};
use crate::log::frame::Compression;
use crate::log::seal::{Place, SealKey, is_sealed, opened};
use crate::session::Session;
use crate::timestamp::Timestamp;

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
    /// [`Damage`], or the compressor's own failure for lack of memory.
    pub fn copy(
        record: Record<'_>,
        block: &[u8],
        place: Place<'_>,
        key: Option<&SealKey>,
    ) -> Result<Self, Damage> {
        let mut writer = BlockWriter::new(Compression::default());
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
            key.ok_or(Damage::NoKey)?.seal(&built.bytes, place)?
        } else {
            built.bytes
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

/// A segment with its block.
#[derive(Debug)]
pub struct Stored {
    /// Its partition's number.
    pub partition_id: i64,
    /// Offset of its first record.
    pub base_offset: i64,
    /// The time of its records.
    pub ts: Timestamp,
    /// How many there are.
    pub records: usize,
    /// Length before compression.
    pub raw_bytes: usize,
    row: Row,
}

impl Stored {
    /// The block.
    pub fn block(&self) -> &[u8] {
        block_of(&self.row, 5)
    }

    /// Whether the record at `offset` is in it.
    pub fn holds(&self, offset: i64) -> bool {
        (0..self.records as i64).contains(&(offset - self.base_offset))
    }

    /// Where it belongs.
    pub fn place<'a>(&self, tenant: Uuid, queue: &'a str, partition: &'a str) -> Place<'a> {
        Place {
            tenant,
            queue,
            partition,
            records: self.records,
            raw_bytes: self.raw_bytes,
        }
    }
}

/// The segments that hold offsets `from` to `to - 1` of a partition.
///
/// # Errors
///
/// `503` or `500` from the database.
pub async fn load(
    client: &Session,
    partition: i64,
    from: i64,
    to: i64,
) -> Result<Vec<Stored>, ApiError> {
    const LOAD: &str = "
        SELECT g.partition_id, g.base_offset, g.ts, g.records, g.raw_bytes, g.block
        FROM queen.segments g
        WHERE g.partition_id = $1 AND g.base_offset < $3 AND g.base_offset >= coalesce((
            SELECT max(h.base_offset) FROM queen.segments h
            WHERE h.partition_id = $1 AND h.base_offset <= $2), $2)
        ORDER BY g.base_offset";
    let statement = client.prepare_cached(LOAD).await?;
    let rows = client.query(&statement, &[&partition, &from, &to]).await?;
    Ok(rows
        .into_iter()
        .map(|row| Stored {
            partition_id: row.get(0),
            base_offset: row.get(1),
            ts: row.get(2),
            records: row.get::<_, i32>(3).unsigned_abs() as usize,
            raw_bytes: row.get::<_, i32>(4).unsigned_abs() as usize,
            row,
        })
        .collect())
}
