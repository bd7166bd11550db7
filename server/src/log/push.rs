//! `push`: many records, of many queues and partitions, in one transaction.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use deadpool_postgres::Object;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::broker::Broker;
use crate::consume::ids::stored_hash;
use crate::error::{ApiError, describe};
use crate::http::json;
use crate::limits::{INLINE_WORK_BYTES, PUSH_ATTEMPTS, TRANSACTION_ID_MAX_BYTES};
use crate::log::codec::{Block, BlockWriter};
use crate::log::repeats::{Earlier, Marks, Repeats, repeated};
use crate::log::seal::{Place as SealPlace, SealKey, Vault};
use crate::name::{DEFAULT_PARTITION, PartitionName, Text, check_name};

/// The request: everything borrows from the body.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    items: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow, default)]
    partition: Option<PartitionName<'a>>,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow, default, rename = "transactionId")]
    transaction_id: Option<Text<'a>>,
}

/// A push, checked, grouped by partition and compressed: what the database is sent.
#[derive(Debug, Default)]
pub struct PreparedPush {
    /// Queue per group; groups are distinct.
    pub queues: Vec<String>,
    /// Partition per group.
    pub partitions: Vec<String>,
    counts: Vec<i64>,
    segments: Segments,
    /// Queues whose segments are sealed.
    sealed: HashSet<String>,
    places: Vec<Place>,
    /// Items that repeat an earlier record, with their queue: they are in no segment.
    earlier: HashMap<usize, (Earlier, String)>,
    /// Transaction ids as JSON strings, one after the other, in the order of the request.
    ids: Vec<u8>,
    /// Payload bytes of all records.
    pub payload_bytes: u64,
}

/// Columns of the segments, as the database takes them.
#[derive(Debug, Default)]
struct Segments {
    group: Vec<i32>,
    rel: Vec<i64>,
    records: Vec<i32>,
    raw: Vec<i32>,
    payload: Vec<i64>,
    block: Vec<Vec<u8>>,
}

/// Where an item went: the `rel`th record of a group; its id ends at `id_end`, and is `given` if the
/// producer gave it. Of an item that repeats an earlier record only the id counts.
#[derive(Debug, Clone, Copy)]
struct Place {
    group: usize,
    rel: i64,
    id_end: usize,
    given: bool,
}

/// What the database assigned to a group.
#[derive(Debug, Clone, Copy)]
pub struct Assigned {
    /// Life of the partition.
    pub life: Uuid,
    /// Offset of the group's first record.
    pub base_offset: i64,
}

impl PreparedPush {
    /// Number of records to write.
    pub fn len(&self) -> usize {
        self.places.len() - self.earlier.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of an item, as a JSON string.
    fn id(&self, item: usize) -> &[u8] {
        let start = item
            .checked_sub(1)
            .map_or(0, |before| self.places[before].id_end);
        &self.ids[start..self.places[item].id_end]
    }

    /// The ids that the database has to compare.
    fn marks(&self, tenant: Uuid, repeats: &Repeats, key: Option<&SealKey>) -> Marks {
        let takes: Vec<bool> = self
            .queues
            .iter()
            .map(|queue| repeats.takes(tenant, queue))
            .collect();
        let mut marks = Marks::default();
        for (item, place) in self.places.iter().enumerate() {
            if !place.given || self.earlier.contains_key(&item) || takes[place.group] {
                continue;
            }
            let key = key.filter(|_| self.sealed.contains(&self.queues[place.group]));
            let id = stored_hash(self.id(item), key);
            marks.push(item, place.group, place.rel, id);
        }
        marks
    }

    /// The queues with ids that the database is not given, each once.
    fn unmarked(&self, tenant: Uuid, repeats: &Repeats) -> Vec<String> {
        let given: HashSet<usize> = self
            .places
            .iter()
            .enumerate()
            .filter(|(item, place)| place.given && !self.earlier.contains_key(item))
            .map(|(_, place)| place.group)
            .collect();
        let queues: HashSet<&String> = given.into_iter().map(|group| &self.queues[group]).collect();
        queues
            .into_iter()
            .filter(|queue| repeats.takes(tenant, queue))
            .cloned()
            .collect()
    }

    /// Seals the segments of `queues` that are not sealed yet.
    fn seal(
        &mut self,
        tenant: Uuid,
        queues: &HashSet<String>,
        key: &SealKey,
    ) -> Result<(), ApiError> {
        let segments = &mut self.segments;
        for (index, block) in segments.block.iter_mut().enumerate() {
            // The database counts groups from 1.
            let group = segments.group[index].unsigned_abs() as usize - 1;
            let queue = &self.queues[group];
            if !queues.contains(queue) || self.sealed.contains(queue) {
                continue;
            }
            let place = SealPlace {
                tenant,
                queue,
                partition: &self.partitions[group],
                records: segments.records[index].unsigned_abs() as usize,
                raw_bytes: segments.raw[index].unsigned_abs() as usize,
            };
            *block = key
                .seal(block, place)
                .map_err(|error| ApiError::Internal(format!("cannot seal a segment: {error}")))?;
        }
        self.sealed.extend(queues.iter().cloned());
        Ok(())
    }

    /// The queues whose segments are sealed, or in the clear, each once.
    fn queues_by_seal(&self, sealed: bool) -> Vec<String> {
        let queues: HashSet<&String> = self
            .queues
            .iter()
            .filter(|queue| self.sealed.contains(*queue) == sealed)
            .collect();
        queues.into_iter().cloned().collect()
    }

    /// The answer: one object per item, in the order of the request.
    pub fn render(&self, assigned: &[Assigned]) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.places.len() * 200);
        let mut digits = itoa::Buffer::new();
        let names: Vec<Vec<u8>> = self.queues.iter().map(|name| json::string(name)).collect();
        let mut id_start = 0;
        out.push(b'[');
        for (index, place) in self.places.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let (life, offset, queue, status) = self.outcome(index, place, assigned, &names);
            let mut uuid_text = Uuid::encode_buffer();
            out.extend_from_slice(b"{\"index\":");
            out.extend_from_slice(digits.format(index).as_bytes());
            out.extend_from_slice(b",\"message_id\":\"");
            let id = message_id(life, offset);
            out.extend_from_slice(id.as_hyphenated().encode_lower(&mut uuid_text).as_bytes());
            out.extend_from_slice(b"\",\"transaction_id\":");
            out.extend_from_slice(&self.ids[id_start..place.id_end]);
            id_start = place.id_end;
            out.extend_from_slice(b",\"queueName\":");
            out.extend_from_slice(&queue);
            out.extend_from_slice(b",\"status\":\"");
            out.extend_from_slice(status);
            out.extend_from_slice(b"\",\"offset\":");
            out.extend_from_slice(digits.format(offset).as_bytes());
            out.push(b'}');
        }
        out.push(b']');
        out
    }

    /// Life, offset, queue as JSON and status of an item.
    fn outcome<'a>(
        &'a self,
        item: usize,
        place: &Place,
        assigned: &[Assigned],
        names: &'a [Vec<u8>],
    ) -> (Uuid, i64, Cow<'a, [u8]>, &'static [u8]) {
        let (earlier, queue) = match self.earlier.get(&item) {
            None => {
                let Assigned { life, base_offset } = assigned[place.group];
                let name = Cow::Borrowed(names[place.group].as_slice());
                return (life, base_offset + place.rel, name, b"queued");
            }
            Some((earlier, queue)) => (*earlier, Cow::Owned(json::string(queue))),
        };
        let (life, offset) = match earlier {
            Earlier::Stored { life, offset } => (life, offset),
            // It stands further ahead, so this ends.
            Earlier::Item(first) => {
                let (life, offset, ..) = self.outcome(first, &self.places[first], assigned, names);
                (life, offset)
            }
        };
        (life, offset, queue, b"duplicate")
    }
}

/// The id of a record: a function of the partition's life and the offset, so none is stored.
pub fn message_id(life: Uuid, offset: i64) -> Uuid {
    let mut bytes = *life.as_bytes();
    bytes[8..].copy_from_slice(&offset.to_be_bytes());
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Parses and checks a push body, and compresses its records.
///
/// # Errors
///
/// `400` with the item and field that is wrong. Nothing has been written then.
pub fn prepare(body: &Bytes) -> Result<PreparedPush, ApiError> {
    prepare_without(body, &HashMap::new(), &[])
}

/// As [`prepare`], without the items that repeat an earlier record. `ids` are those that an earlier
/// preparation gave to all items.
fn prepare_without(
    body: &Bytes,
    earlier: &HashMap<usize, Earlier>,
    ids: &[Vec<u8>],
) -> Result<PreparedPush, ApiError> {
    let Request { items } = json::parse(body)?;
    let mut by_name: HashMap<(&str, &str), usize> = HashMap::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut group_of: Vec<usize> = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let partition = item
            .partition
            .as_ref()
            .map_or(DEFAULT_PARTITION, |name| &name.0);
        let queue: &str = &item.queue.0;
        if earlier.contains_key(&index) {
            group_of.push(usize::MAX);
            continue;
        }
        let group = *by_name.entry((queue, partition)).or_insert_with(|| {
            names.push((queue, partition));
            names.len() - 1
        });
        if group + 1 == names.len() {
            check_name(queue, format_args!("items[{index}].queue"))?;
            check_name(partition, format_args!("items[{index}].partition"))?;
        }
        group_of.push(group);
    }

    let mut prepared = PreparedPush {
        queues: names.iter().map(|(queue, _)| (*queue).to_owned()).collect(),
        partitions: names
            .iter()
            .map(|(_, partition)| (*partition).to_owned())
            .collect(),
        counts: vec![0; names.len()],
        ..PreparedPush::default()
    };
    prepared.places.reserve(items.len());
    for (index, item) in items.iter().enumerate() {
        let (id, given) = match &item.transaction_id {
            Some(id) if !id.0.is_empty() => (Cow::Borrowed(&*id.0), true),
            _ => (Cow::Owned(Uuid::now_v7().to_string()), false),
        };
        if id.len() > TRANSACTION_ID_MAX_BYTES {
            return Err(ApiError::bad_request(format!(
                "items[{index}].transactionId: {} bytes long, more than {TRANSACTION_ID_MAX_BYTES}",
                id.len()
            )));
        }
        match ids.get(index) {
            Some(id) => prepared.ids.extend_from_slice(id),
            None => json::write_string(&mut prepared.ids, &id),
        }
        if let Some(earlier) = earlier.get(&index) {
            let queue = item.queue.0.clone().into_owned();
            prepared.earlier.insert(index, (*earlier, queue));
            prepared.places.push(Place {
                group: 0,
                rel: 0,
                id_end: prepared.ids.len(),
                given,
            });
            continue;
        }
        let group = group_of[index];
        let rel = prepared.counts[group];
        prepared.counts[group] += 1;
        prepared.places.push(Place {
            group,
            rel,
            id_end: prepared.ids.len(),
            given,
        });
    }

    // One group at a time, its items in the order of the request.
    let mut order: Vec<usize> = (0..items.len())
        .filter(|index| !earlier.contains_key(index))
        .collect();
    order.sort_by_key(|&index| group_of[index]);
    let mut writer = BlockWriter::new();
    let mut previous: Option<usize> = None;
    for index in order {
        let place = prepared.places[index];
        let payload = items[index].payload.get().as_bytes();
        if previous.is_some_and(|group| group != place.group) || writer.is_full_for(payload) {
            prepared.segments.close(&mut writer)?;
        }
        if writer.records() == 0 {
            prepared.segments.open(place);
        }
        previous = Some(place.group);
        writer.push(prepared.id(index), payload);
        prepared.payload_bytes += payload.len() as u64;
    }
    if writer.records() > 0 {
        prepared.segments.close(&mut writer)?;
    }
    Ok(prepared)
}

impl Segments {
    fn open(&mut self, first: Place) {
        // The database counts groups from 1. There are fewer groups than bytes in a body.
        self.group.push(first.group as i32 + 1);
        self.rel.push(first.rel);
    }

    fn close(&mut self, writer: &mut BlockWriter) -> Result<(), ApiError> {
        let Block {
            records,
            raw_bytes,
            payload_bytes,
            frame,
        } = writer
            .finish()
            .map_err(|error| ApiError::Internal(format!("cannot compress a segment: {error}")))?;
        // A body, and so a block, is below 1 GiB.
        self.records.push(records as i32);
        self.raw.push(raw_bytes as i32);
        self.payload.push(payload_bytes as i64);
        self.block.push(frame);
        Ok(())
    }
}

/// Writes a prepared push in one transaction, and gives it back with what each group was assigned.
///
/// # Errors
///
/// `503` or `500`: nothing is written, unless the connection was lost after the commit was sent.
pub async fn store(
    broker: &Broker,
    tenant: Uuid,
    body: &Bytes,
    mut push: PreparedPush,
) -> Result<(PreparedPush, Vec<Assigned>), ApiError> {
    const PUSH: &str = "
        SELECT life, base_offset, NULL::integer, true FROM queen.push($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)
        WHERE queen.takes_clear($1, $11) AND queen.takes_repeats($1, $12)
            AND queen.takes_sealed($1, $13)";
    const PUSH_ONCE: &str = "
        SELECT life, base_offset, item, takes
        FROM queen.push_once($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$14,$15,$16,$17,$18)
        WHERE queen.takes_clear($1, $11) AND queen.takes_repeats($1, $12)
            AND queen.takes_sealed($1, $13)";
    let Broker {
        database,
        vault,
        repeats,
        ..
    } = broker;
    let mut earlier = HashMap::new();
    let known = vault.known(tenant, &push.queues);
    if !known.is_empty() {
        push = sealed(push, vault, tenant, known).await?;
    }
    let mut attempt = 1;
    loop {
        let segments = &push.segments;
        let client = match database.client().await {
            Err(error) if attempt < PUSH_ATTEMPTS && error.is_slow_session() => {
                attempt += 1;
                continue;
            }
            client => client?,
        };
        let marks = push.marks(tenant, repeats, vault.key().map(Arc::as_ref));
        let unmarked = push.unmarked(tenant, repeats);
        let clear = push.queues_by_seal(false);
        let secret = push.queues_by_seal(true);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &tenant,
            &push.queues,
            &push.partitions,
            &push.counts,
            &segments.group,
            &segments.rel,
            &segments.records,
            &segments.raw,
            &segments.payload,
            &segments.block,
            &clear,
            &unmarked,
            &secret,
        ];
        let statement = if marks.is_empty() {
            client.prepare_cached(PUSH).await?
        } else {
            values.extend::<[&(dyn ToSql + Sync); 5]>([
                &marks.item,
                &marks.group,
                &marks.rel,
                &marks.id,
                &marks.first,
            ]);
            client.prepare_cached(PUSH_ONCE).await?
        };
        match client.query(&statement, &values).await {
            Ok(rows) => {
                let found = repeated(&rows);
                if found.is_empty() {
                    let assigned = rows
                        .iter()
                        .map(|row| Assigned {
                            life: row.get(0),
                            base_offset: row.get(1),
                        })
                        .collect();
                    for (queue, row) in push.queues.iter().zip(&rows) {
                        // They are committed: nothing may fail from here on.
                        if row.get::<_, Option<bool>>(3) == Some(false) {
                            repeats.learn(tenant, queue);
                        }
                    }
                    return Ok((push, assigned));
                }
                // Nothing was written. What is repeated stays out of the next attempt, so this ends.
                drop(client);
                earlier.extend(found);
                let sealed_before = push.sealed.clone();
                push = again_without(body, &earlier, &push).await?;
                if push.is_empty() {
                    return Ok((push, Vec::new()));
                }
                if !sealed_before.is_empty() {
                    push = sealed(push, vault, tenant, sealed_before).await?;
                }
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_UNMARKED) => {
                attempt += 1;
                repeats.forget(tenant, &unmarked);
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_IN_CLEAR) => {
                attempt += 1;
                let encrypted = encrypted(&client, tenant, &push.queues).await?;
                drop(client);
                push = sealed(push, vault, tenant, encrypted).await?;
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_SEALED) => {
                attempt += 1;
                let encrypted = encrypted(&client, tenant, &push.queues).await?;
                drop(client);
                vault.forget(tenant, &secret);
                push = again_without(body, &earlier, &push).await?;
                if !encrypted.is_empty() {
                    push = sealed(push, vault, tenant, encrypted).await?;
                }
            }
            Err(error) if attempt < PUSH_ATTEMPTS && begins_again(&error) => {
                tracing::debug!(attempt, error = describe(&error), "push begins again");
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Seals what belongs to `queues`, away from the asynchronous threads when it is large, and
/// remembers them.
async fn sealed(
    mut push: PreparedPush,
    vault: &Vault,
    tenant: Uuid,
    queues: HashSet<String>,
) -> Result<PreparedPush, ApiError> {
    let key = Arc::clone(vault.key().ok_or(ApiError::NoKey)?);
    for queue in &queues {
        vault.learn(tenant, queue.clone());
    }
    let bytes: usize = push.segments.block.iter().map(Vec::len).sum();
    if bytes <= INLINE_WORK_BYTES {
        push.seal(tenant, &queues, &key)?;
        return Ok(push);
    }
    tokio::task::spawn_blocking(move || push.seal(tenant, &queues, &key).map(|()| push)).await?
}

/// Prepares a push anew without its repetitions, away from the asynchronous threads when it is large.
async fn again_without(
    body: &Bytes,
    earlier: &HashMap<usize, Earlier>,
    push: &PreparedPush,
) -> Result<PreparedPush, ApiError> {
    // Ids that the broker gave stay what they are.
    let ids: Vec<Vec<u8>> = (0..push.places.len())
        .map(|item| push.id(item).to_vec())
        .collect();
    if body.len() <= INLINE_WORK_BYTES {
        return prepare_without(body, earlier, &ids);
    }
    let (body, earlier) = (body.clone(), earlier.clone());
    tokio::task::spawn_blocking(move || prepare_without(&body, &earlier, &ids)).await?
}

/// Those of `queues` that are encrypted at rest.
async fn encrypted(
    client: &Object,
    tenant: Uuid,
    queues: &[String],
) -> Result<HashSet<String>, ApiError> {
    const ENCRYPTED: &str = "
        SELECT q.name FROM unnest($2::text[]) AS w (queue)
        JOIN queen.queues q ON q.tenant = $1 AND q.name = w.queue
        WHERE q.options -> 'encryptionEnabled' = 'true'::jsonb";
    let statement = client.prepare_cached(ENCRYPTED).await?;
    let rows = client.query(&statement, &[&tenant, &queues]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The state that `queen.takes_clear` raises.
const REFUSED_IN_CLEAR: &str = "QS001";

/// The state that `queen.takes_repeats` raises.
const REFUSED_UNMARKED: &str = "QS002";

/// The state that `queen.takes_sealed` raises.
const REFUSED_SEALED: &str = "QS003";

fn has_state(error: &tokio_postgres::Error, state: &str) -> bool {
    error.code().is_some_and(|code| code.code() == state)
}

/// The transaction was rolled back for a reason that another attempt does not meet.
fn begins_again(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| {
        *state == SqlState::T_R_DEADLOCK_DETECTED
            || *state == SqlState::T_R_SERIALIZATION_FAILURE
            || *state == SqlState::FOREIGN_KEY_VIOLATION
            // Pushes before it took longer than one wait may: the line is not its fault.
            || *state == SqlState::LOCK_NOT_AVAILABLE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(body: &'static str) -> Result<PreparedPush, ApiError> {
        prepare(&Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn items_are_grouped_by_partition_and_keep_their_order() {
        let push = prepared(
            r#"{"items":[
                {"queue":"a","partition":"1","payload":1,"transactionId":"t0"},
                {"queue":"a","partition":2,"payload":2,"transactionId":"t1"},
                {"queue":"a","partition":"1","payload":3,"transactionId":"t2"},
                {"queue":"a","payload":4}]}"#,
        )
        .expect("a push");
        assert_eq!(push.partitions, ["1", "2", "Default"]);
        assert_eq!(push.counts, [2, 1, 1]);
        assert_eq!(push.segments.records, [2, 1, 1]);
        let places: Vec<_> = push
            .places
            .iter()
            .map(|place| (place.group, place.rel))
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (2, 0)]);
    }

    #[test]
    fn a_wrong_item_is_named() {
        for (body, place) in [
            (
                r#"{"items":[{"queue":"a","payload":1},{"queue":7,"payload":1}]}"#,
                "items[1].queue",
            ),
            (r#"{"items":[{"queue":"","payload":1}]}"#, "items[0].queue"),
            (
                r#"{"items":[{"queue":"a\u0000","payload":1}]}"#,
                "items[0].queue",
            ),
            (
                r#"{"items":[{"queue":"a","partition":true,"payload":1}]}"#,
                "items[0].partition",
            ),
            (r#"{"items":[{"queue":"a"}]}"#, "items[0]"),
            (r#"{"items":{}}"#, "items"),
            (
                r#"{"items":[{"queue":"a","payload":}]}"#,
                "items[0].payload",
            ),
        ] {
            let error = prepared(body).expect_err(body).to_string();
            assert!(error.contains(place), "{body}: {error}");
        }
    }

    #[test]
    fn the_answer_has_the_shape_of_the_published_types() {
        let push = prepared(
            r#"{"items":[{"queue":"o\"q","payload":1,"transactionId":"t\n1"},{"queue":"p","payload":2}]}"#,
        )
        .expect("a push");
        let life = Uuid::new_v4();
        let assigned = [
            Assigned {
                life,
                base_offset: 41,
            },
            Assigned {
                life: Uuid::new_v4(),
                base_offset: 0,
            },
        ];
        let body = push.render(&assigned);
        let results: Vec<queen_protocol::PushResult> =
            serde_json::from_slice(&body).expect("push results");
        assert_eq!(results[0].queue_name, "o\"q");
        assert_eq!(results[0].transaction_id, "t\n1");
        assert_eq!(results[0].offset, Some(41));
        assert_eq!(results[0].message_id, message_id(life, 41).to_string());
        assert_eq!(results[1].index, 1);
        assert_eq!(
            serde_json::to_string(&results).expect("JSON").into_bytes(),
            body
        );
    }

    #[test]
    fn message_ids_differ_by_offset_and_by_life() {
        let (one, other) = (Uuid::new_v4(), Uuid::new_v4());
        assert_ne!(message_id(one, 0), message_id(one, 1));
        assert_ne!(message_id(one, 0), message_id(other, 0));
        assert_eq!(message_id(one, 5), message_id(one, 5));
    }
}
