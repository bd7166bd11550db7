//! Records that are copied to the dead letters.

use uuid::Uuid;

use crate::consume::ids;
use crate::consume::segments::{OneRecord, Opener, Stored, load};
use crate::error::ApiError;
use crate::limits::ACK_DEAD_RAW_BYTES;
use crate::log::codec::Damage;
use crate::log::seal::{SealKey, Vault, is_sealed};
use crate::session::Session;
use crate::timestamp::Timestamp;

/// A partition of which records die.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The tenant of its queue.
    pub tenant: Uuid,
    /// Its queue's number.
    pub queue_id: i64,
    /// Its queue.
    pub queue: String,
    /// Its number.
    pub partition_id: i64,
    /// Its name.
    pub partition: String,
    /// Its life.
    pub life: Uuid,
}

/// One record that dies.
#[derive(Debug, Clone)]
pub struct Death {
    /// Where it stands in its partition.
    pub offset: i64,
    /// The index of its acknowledgment.
    pub ack: usize,
    /// How often it failed in a row.
    pub failures: i32,
    /// The consumer's reason.
    pub reason: Option<String>,
}

/// Dead letters, column by column as the database takes them.
#[derive(Debug, Default)]
pub struct Dead {
    pub queue: Vec<i64>,
    pub life: Vec<Uuid>,
    pub partition: Vec<String>,
    pub group: Vec<String>,
    pub offset: Vec<i64>,
    pub hash: Vec<Uuid>,
    pub ts: Vec<Timestamp>,
    pub failures: Vec<i32>,
    pub reason: Vec<Option<String>>,
    pub raw: Vec<i32>,
    pub block: Vec<Vec<u8>>,
    /// Indexes of the acknowledgments whose records retention had deleted before they could be copied.
    pub gone: Vec<usize>,
    raw_bytes: usize,
}

impl Dead {
    /// Copies records of one partition, ascending, out of the log: each segment is loaded and opened
    /// once, off the asynchronous threads.
    ///
    /// # Errors
    ///
    /// `400` when they are more than one call may copy, `503` when one of them cannot be read, `503`
    /// or `500` from the database.
    pub async fn copy(
        &mut self,
        client: &Session,
        vault: &Vault,
        group: &str,
        origin: &Origin,
        deaths: &[Death],
    ) -> Result<(), ApiError> {
        let mut rest = deaths;
        while let Some(first) = rest.first() {
            let segments =
                load(client, origin.partition_id, first.offset, first.offset + 1).await?;
            let Some(segment) = segments.into_iter().find(|held| held.holds(first.offset)) else {
                tracing::warn!(
                    queue = origin.queue,
                    partition = origin.partition,
                    offset = first.offset,
                    "retention deleted a record before it became a dead letter"
                );
                self.gone.push(first.ack);
                rest = &rest[1..];
                continue;
            };
            let within = rest.iter().take_while(|death| segment.holds(death.offset));
            let (here, later) = rest.split_at(within.count());
            rest = later;
            let (key, place) = (vault.key().cloned(), origin.clone());
            let offsets: Vec<i64> = here.iter().map(|death| death.offset).collect();
            let ts = segment.ts;
            let room = ACK_DEAD_RAW_BYTES.saturating_sub(self.raw_bytes);
            let copies = tokio::task::spawn_blocking(move || {
                copies(&segment, &place, key.as_deref(), &offsets, room)
            })
            .await?
            .map_err(|(offset, damage)| {
                ApiError::Unreadable(format!(
                    "partition {} of queue {}, offset {offset}: {damage}",
                    origin.partition, origin.queue
                ))
            })?;
            if copies.len() < here.len() {
                return Err(ApiError::bad_request(format!(
                    "acknowledgments: more than {ACK_DEAD_RAW_BYTES} bytes of records would become dead \
                     letters; nothing was settled, send fewer a call"
                )));
            }
            for (death, (hash, copy)) in here.iter().zip(copies) {
                self.queue.push(origin.queue_id);
                self.life.push(origin.life);
                self.partition.push(origin.partition.clone());
                self.group.push(group.to_owned());
                self.offset.push(death.offset);
                self.hash.push(hash);
                self.ts.push(ts);
                self.failures.push(death.failures);
                self.reason.push(death.reason.clone());
                // A record is smaller than a body, and so below 1 GiB.
                self.raw.push(copy.raw_bytes as i32);
                self.raw_bytes += copy.raw_bytes;
                self.block.push(copy.block);
            }
        }
        Ok(())
    }
}

/// Copies of the records of `segment` at `offsets`, up to the one that uses `room` up.
fn copies(
    segment: &Stored,
    origin: &Origin,
    key: Option<&SealKey>,
    offsets: &[i64],
    room: usize,
) -> Result<Vec<(Uuid, OneRecord)>, (i64, Damage)> {
    let place = segment.place(origin.tenant, &origin.queue, &origin.partition);
    let secret = key.filter(|_| is_sealed(segment.block()));
    let mut opener = Opener::new(key);
    let records = opener
        .open(segment.block(), place)
        .map_err(|damage| (segment.base_offset, damage))?;
    let (mut copied, mut used) = (Vec::with_capacity(offsets.len()), 0);
    for &offset in offsets {
        if used >= room {
            break;
        }
        let record = records[(offset - segment.base_offset) as usize];
        let copy = OneRecord::copy(record, segment.block(), place, key)
            .map_err(|damage| (offset, damage))?;
        used += copy.raw_bytes;
        copied.push((ids::stored_hash(record.id, secret), copy));
    }
    Ok(copied)
}
