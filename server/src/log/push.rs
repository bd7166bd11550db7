//! `push`: many records, of many queues and partitions, in one transaction.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::consume::ids::stored_hash;
use crate::error::ApiError;
use crate::http::json;
use crate::limits::TRANSACTION_ID_MAX_BYTES;
use crate::log::codec::{Block, BlockWriter};
use crate::log::frame::Compression;
use crate::log::repeats::{Earlier, Marks, Repeats};
use crate::log::seal::{Place as SealPlace, SealKey};
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
    compression: Compression,
}

/// Columns of the segments, as the database takes them.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub group: Vec<i32>,
    pub rel: Vec<i64>,
    pub records: Vec<i32>,
    pub raw: Vec<i32>,
    pub payload: Vec<i64>,
    pub block: Vec<Vec<u8>>,
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

    /// Its segments.
    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Records per group.
    pub(super) fn counts(&self) -> &Vec<i64> {
        &self.counts
    }

    /// Queues whose segments are sealed.
    pub(super) fn sealed(&self) -> &HashSet<String> {
        &self.sealed
    }

    /// How its segments are compressed.
    pub(super) fn compression(&self) -> Compression {
        self.compression
    }

    /// The bytes that are to be stored.
    pub(super) fn stored_bytes(&self) -> usize {
        self.segments.block.iter().map(Vec::len).sum()
    }

    /// The bytes that it holds, about: its segments and ids.
    pub(super) fn held_bytes(&self) -> usize {
        self.stored_bytes() + self.ids.len() + self.places.len() * size_of::<Place>()
    }

    /// The ids of all items, as JSON strings.
    pub(super) fn all_ids(&self) -> Vec<Vec<u8>> {
        let items = 0..self.places.len();
        items.map(|item| self.id(item).to_vec()).collect()
    }

    /// The id of an item, as a JSON string.
    fn id(&self, item: usize) -> &[u8] {
        let start = item
            .checked_sub(1)
            .map_or(0, |before| self.places[before].id_end);
        &self.ids[start..self.places[item].id_end]
    }

    /// The ids that the database has to compare.
    pub(super) fn marks(&self, tenant: Uuid, repeats: &Repeats, key: Option<&SealKey>) -> Marks {
        let mut counts = vec![0; self.queues.len()];
        for (_, place) in self.given() {
            counts[place.group] = self.counts[place.group];
        }
        for (count, queue) in counts.iter_mut().zip(&self.queues) {
            if *count > 0 && repeats.takes(tenant, queue) {
                *count = 0;
            }
        }
        let mut marks = Marks::of(&counts);
        for (item, place) in self.given() {
            if counts[place.group] == 0 {
                continue;
            }
            let key = key.filter(|_| self.sealed.contains(&self.queues[place.group]));
            let id = stored_hash(self.id(item), key);
            marks.set(item, place.group, place.rel, id);
        }
        marks
    }

    /// The items whose ids producers gave, and that repeat nothing that is known.
    fn given(&self) -> impl Iterator<Item = (usize, &Place)> {
        let places = self.places.iter().enumerate();
        places.filter(|(item, place)| place.given && !self.earlier.contains_key(item))
    }

    /// The queues with ids that the database is not given, each once.
    pub(super) fn unmarked(&self, marks: &Marks) -> Vec<String> {
        let given: HashSet<usize> = self.given().map(|(_, place)| place.group).collect();
        let without = given.into_iter().filter(|group| !marks.has(*group));
        let queues: HashSet<&String> = without.map(|group| &self.queues[group]).collect();
        queues.into_iter().cloned().collect()
    }

    /// Seals the segments of `queues` that are not sealed yet.
    pub(super) fn seal(
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
    pub(super) fn queues_by_seal(&self, sealed: bool) -> Vec<String> {
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

/// Parses and checks a push body, and compresses its records as `compression` says.
///
/// # Errors
///
/// `400` with the item and field that is wrong. Nothing has been written then.
pub fn prepare(body: &Bytes, compression: Compression) -> Result<PreparedPush, ApiError> {
    prepare_without(body, compression, &HashMap::new(), &[])
}

/// As [`prepare`], without the items that repeat an earlier record. `ids` are those that an earlier
/// preparation gave to all items.
pub(super) fn prepare_without(
    body: &Bytes,
    compression: Compression,
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
        compression,
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
    let mut writer = BlockWriter::new(compression);
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
            bytes,
        } = writer
            .finish()
            .map_err(|error| ApiError::Internal(format!("cannot compress a segment: {error}")))?;
        // A body, and so a block, is below 1 GiB.
        self.records.push(records as i32);
        self.raw.push(raw_bytes as i32);
        self.payload.push(payload_bytes as i64);
        self.block.push(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(body: &'static str) -> Result<PreparedPush, ApiError> {
        prepare(&Bytes::from_static(body.as_bytes()), Compression::default())
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
