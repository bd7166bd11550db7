//! What must hold after every write to the bucket and to the key/value store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use queen_protocol::kv::{KvOpKind, KvOperation, KvResult};
use queen_s3::lake::documents::{CommitPointer, Intent, LeaseDocument};
use queen_s3::lake::manifest::{Manifest, OffsetRange};
use queen_s3::lake::{Align, Layout, Shape};
use queen_s3::time::Micros;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::log::{Log, RecordKey};
use super::objects::{Objects, hex};
use super::scenario::Scenario;
use super::spelling::{self, Named};
use super::window::{expected_line, lines};

type Verdict = Result<(), String>;

macro_rules! must {
    ($holds:expr, $($broken:tt)+) => {
        if !$holds {
            return Err(format!($($broken)+));
        }
    };
}

/// An applied batch.
pub struct Batch<'a> {
    /// What was asked.
    pub operations: &'a [KvOperation],
    /// What was answered.
    pub results: &'a [KvResult],
    /// Who asked.
    pub who: &'a str,
}

/// Watches one run.
pub struct Checker {
    lakes: BTreeMap<String, Lake>,
    lease_ttl_s: i64,
    /// Windows committed in the whole run.
    pub windows: u64,
    /// Moves of a pointer without a window.
    pub idle_moves: u64,
}

/// What is known of one queue's lake.
#[derive(Default)]
struct Lake {
    queue: String,
    start: Option<i64>,
    pointer: Option<CommitPointer>,
    lineage: Option<String>,
    intents: BTreeMap<u64, Intent>,
    /// Greatest end of an intent or a pointer: nothing below it may appear in the log any more.
    closed: i64,
    windows: BTreeMap<u64, BTreeSet<String>>,
    objects: BTreeMap<String, Vec<RecordKey>>,
    manifests: BTreeMap<u64, Manifest>,
}

impl Checker {
    /// A checker for a run of `scenario`.
    pub fn new(scenario: &Scenario) -> Self {
        let lake = |queue: &String| {
            let lake = Lake {
                queue: queue.clone(),
                closed: i64::MIN,
                ..Lake::default()
            };
            (queue.clone(), lake)
        };
        Self {
            lakes: scenario.queues.iter().map(lake).collect(),
            lease_ttl_s: scenario.lease_ttl_s,
            windows: 0,
            idle_moves: 0,
        }
    }

    /// The queue whose lake holds `key`.
    pub fn queue_of(&self, key: &str) -> Option<String> {
        self.lakes
            .keys()
            .find(|queue| spelling::named(queue, key).is_some())
            .cloned()
    }

    /// End of what is committed of `queue`.
    pub fn committed(&self, queue: &str) -> Option<i64> {
        Some(self.lakes.get(queue)?.pointer.as_ref()?.t_end)
    }

    /// Deleted records of living partitions that no window holds and no manifest names.
    pub fn unannounced(&self, log: &Log) -> u64 {
        let of = |lake: &Lake| {
            let (Some(queue), Some(start)) = (log.queues.get(&lake.queue), lake.start) else {
                return 0;
            };
            let below = queue.truth.range((start, "".into(), i64::MIN)..);
            below
                .filter(|(_, truth)| truth.deleted && truth.placed.is_none() && !truth.announced)
                .filter(|(_, truth)| !queue.ended.contains(&truth.life))
                .count() as u64
        };
        self.lakes.values().map(of).sum()
    }

    /// A segment of `queue` became visible.
    pub fn segment_visible(&self, queue: &str, ts: i64) -> Verdict {
        let Some(lake) = self.lakes.get(queue) else {
            return Ok(());
        };
        must!(
            ts >= lake.closed,
            "a segment of {queue} became visible at {ts}, below the end {} of a closed window",
            lake.closed
        );
        Ok(())
    }

    /// An object is gone.
    pub fn object_deleted(&self, key: &str) -> Verdict {
        let checkpoint = self
            .lakes
            .keys()
            .any(|queue| matches!(spelling::named(queue, key), Some(Named::Checkpoint(_))));
        must!(checkpoint, "{key} was deleted and is no checkpoint");
        Ok(())
    }

    /// An object became visible under `key`, in the place of `former`.
    pub fn object_visible(
        &mut self,
        key: &str,
        content: &Bytes,
        former: Option<&Bytes>,
        log: &mut Log,
        objects: &Objects,
    ) -> Verdict {
        for lake in self.lakes.values_mut() {
            match spelling::named(&lake.queue, key) {
                Some(Named::Data { k, start, end }) => {
                    return lake.data(key, (k, start, end), content, former, log);
                }
                Some(Named::Manifest(k)) => {
                    return lake.manifest(key, k, content, former.is_some(), log, objects);
                }
                Some(Named::Checkpoint(k)) => return lake.checkpoint(key, k, content),
                None => {}
            }
        }
        Err(format!("{key} is no key of a lake"))
    }

    /// A batch was applied. Answers the queues whose lease it wrote.
    pub fn store_written(
        &mut self,
        batch: &Batch<'_>,
        log: &mut Log,
        objects: &Objects,
    ) -> Result<Vec<String>, String> {
        let mut leases = Vec::new();
        for (index, (operation, result)) in batch.operations.iter().zip(batch.results).enumerate() {
            if !operation.op.is_write() || result.applied != Some(true) {
                continue;
            }
            must!(
                operation.ns == "queen-s3",
                "a write into namespace {}",
                operation.ns
            );
            let key = operation.key.as_deref().unwrap_or_default();
            let named = self.lakes.values_mut().find_map(|lake| {
                let root = format!("s3:{}:{}:", spelling::SINK, spelling::encoded(&lake.queue));
                Some((lake, key.strip_prefix(&root)?))
            });
            let Some((lake, document)) = named else {
                return Err(format!("a write of the unknown key {key}"));
            };
            must!(
                operation.op != KvOpKind::Delete || document == "lease",
                "the document {key} was deleted"
            );
            if document == "lease" {
                lease(operation, self.lease_ttl_s)?;
                if operation.op != KvOpKind::Delete {
                    leases.push(lake.queue.clone());
                }
                continue;
            }
            fenced(batch.operations, index)?;
            must!(operation.forever == Some(true), "{key} expires");
            match document {
                "intent" => lake.intent(read(operation)?, log)?,
                "committed" => {
                    let windows = lake.pointer.as_ref().map_or(0, |pointer| pointer.k);
                    lake.commit(read(operation)?, log, objects)?;
                    let moved = lake.pointer.as_ref().map_or(0, |pointer| pointer.k) - windows;
                    self.windows += moved;
                    self.idle_moves += u64::from(moved == 0);
                }
                _ => return Err(format!("{} writes the unknown key {key}", batch.who)),
            }
        }
        Ok(leases)
    }

    /// Every record is in its lake, or was deleted before it got there.
    pub fn complete(&self, log: &Log) -> Verdict {
        for lake in self.lakes.values() {
            let Some(queue) = log.queues.get(&lake.queue) else {
                continue;
            };
            let start = lake.start.unwrap_or(i64::MAX);
            for (key, truth) in queue.truth.range((start, "".into(), i64::MIN)..) {
                must!(
                    truth.placed.is_some() || truth.deleted,
                    "record {key:?} of {} never reached the lake",
                    lake.queue
                );
            }
        }
        Ok(())
    }
}

/// The document of a write is guarded by the lease, in the same batch and before it.
fn fenced(operations: &[KvOperation], index: usize) -> Verdict {
    let guarded = |operation: &KvOperation| {
        operation.required == Some(true)
            && (operation.expect.is_some() || operation.op == KvOpKind::PutIfAbsent)
    };
    let lease = &operations[0];
    let key = lease.key.as_deref().unwrap_or_default();
    let holds = index > 0
        && key.ends_with(":lease")
        && lease.op == KvOpKind::Put
        && lease.expect.is_some_and(|version| version > 0)
        && guarded(lease)
        && guarded(&operations[index]);
    must!(
        holds,
        "a document was written without the fence: {operations:?}"
    );
    Ok(())
}

fn lease(operation: &KvOperation, ttl_s: i64) -> Verdict {
    if operation.op == KvOpKind::Delete {
        must!(
            operation.expect.is_some_and(|version| version > 0),
            "a lease is deleted unseen"
        );
        return Ok(());
    }
    let document: LeaseDocument = read(operation)?;
    must!(!document.instance.is_empty(), "a lease without an instance");
    must!(
        !document.incarnation.is_empty(),
        "a lease without an incarnation"
    );
    must!(
        operation.ttl_seconds == Some(ttl_s),
        "a lease lives {:?} s instead of {ttl_s}",
        operation.ttl_seconds
    );
    let guarded = operation.expect.is_some() || operation.op == KvOpKind::PutIfAbsent;
    must!(guarded, "a lease is written blindly");
    Ok(())
}

fn read<T: DeserializeOwned>(operation: &KvOperation) -> Result<T, String> {
    serde_json::from_value(operation.value.clone().unwrap_or_default())
        .map_err(|source| format!("the document {:?} does not read: {source}", operation.key))
}

impl Lake {
    fn shape(&self, k: u64) -> Option<Shape> {
        self.intents.get(&k).map(|intent| intent.shape(Align::Hour))
    }

    fn lineage(&mut self, lineage: Option<&str>, of: &str) -> Verdict {
        let Some(lineage) = lineage.filter(|lineage| !lineage.is_empty()) else {
            return Err(format!("{of} of {} has no lineage", self.queue));
        };
        let known = self.lineage.get_or_insert_with(|| lineage.to_owned());
        must!(
            known == lineage,
            "{of} of {} changes the lineage",
            self.queue
        );
        Ok(())
    }

    fn intent(&mut self, intent: Intent, log: &Log) -> Verdict {
        let queue = self.queue.clone();
        self.lineage(intent.lineage.as_deref(), "an intent")?;
        let Some(pointer) = &self.pointer else {
            return Err(format!("an intent of {queue} before its first pointer"));
        };
        let (k, start, end) = (intent.k, intent.t_start, intent.t_end);
        must!(
            k == pointer.k + 1,
            "intent {k} of {queue} after window {}",
            pointer.k
        );
        must!(
            start >= pointer.t_end,
            "intent {k} of {queue} starts below the pointer's end"
        );
        must!(start < end, "intent {k} of {queue} is empty");
        must!(
            end <= log.promised(),
            "intent {k} of {queue} ends at {end}, past every safeTime (last {})",
            log.promised()
        );
        let Some(align) = intent.align else {
            return Err(format!("intent {k} of {queue} has no align"));
        };
        must!(
            Micros(end) <= align.bucket_end(Micros(start)),
            "intent {k} of {queue} straddles a bucket of align {align}"
        );
        if let Some(former) = self.intents.get(&k) {
            must!(
                former.bounds() == intent.bounds()
                    && former.shape(Align::Hour) == intent.shape(Align::Hour),
                "intent {k} of {queue} changes from {former:?} to {intent:?}"
            );
        }
        self.closed = self.closed.max(end);
        self.intents.insert(k, intent);
        Ok(())
    }

    fn commit(&mut self, pointer: CommitPointer, log: &mut Log, objects: &Objects) -> Verdict {
        let queue = self.queue.clone();
        self.lineage(pointer.lineage.as_deref(), "a pointer")?;
        let Some(former) = self.pointer.clone() else {
            must!(
                pointer.k == 0,
                "the first pointer of {queue} is at window {}",
                pointer.k
            );
            must!(
                pointer.manifest.is_empty(),
                "the first pointer of {queue} has a manifest"
            );
            must!(
                pointer.t_end <= log.promised(),
                "{queue} starts at {} past every safeTime",
                pointer.t_end
            );
            self.start = Some(pointer.t_end);
            self.closed = self.closed.max(pointer.t_end);
            self.pointer = Some(pointer);
            return Ok(());
        };
        must!(
            pointer.t_end > former.t_end || pointer.k > former.k,
            "the pointer of {queue} does not move forward: {former:?} to {pointer:?}"
        );
        must!(
            pointer.t_end <= log.promised(),
            "the pointer of {queue} passes every safeTime"
        );
        if pointer.k == former.k {
            must!(
                !self.intents.contains_key(&(pointer.k + 1)),
                "the pointer of {queue} moves idly with intent {} pending",
                pointer.k + 1
            );
        } else {
            self.commit_window(&former, &pointer, objects)?;
        }
        let (from, to) = (former.t_end, pointer.t_end);
        self.tiled(from, to, pointer.k, pointer.k > former.k, log)?;
        self.closed = self.closed.max(to);
        self.pointer = Some(pointer);
        Ok(())
    }

    fn commit_window(
        &self,
        former: &CommitPointer,
        pointer: &CommitPointer,
        objects: &Objects,
    ) -> Verdict {
        let (queue, k) = (&self.queue, pointer.k);
        must!(
            k == former.k + 1,
            "the pointer of {queue} jumps from {} to {k}",
            former.k
        );
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!(
                "window {k} of {queue} is committed without an intent"
            ));
        };
        must!(
            intent.t_end == pointer.t_end,
            "window {k} of {queue} is not its intent's"
        );
        let key = spelling::manifest(queue, k);
        must!(
            pointer.manifest == key,
            "window {k} of {queue} names manifest {}",
            pointer.manifest
        );
        must!(
            objects.visible.contains_key(&key),
            "window {k} of {queue} has no manifest"
        );
        let Some(manifest) = self.manifests.get(&k) else {
            return Err(format!("window {k} of {queue} has no manifest"));
        };
        must!(
            (manifest.records, manifest.bytes) == (pointer.records, pointer.bytes),
            "the pointer of window {k} of {queue} has other figures than its manifest"
        );
        Ok(())
    }

    /// Every record with `from <= ts < to` is in window `k`, was announced as lost, or went with
    /// its partition.
    fn tiled(&mut self, from: i64, to: i64, k: u64, window: bool, log: &mut Log) -> Verdict {
        let Some(found) = log.queues.get(&self.queue) else {
            return Ok(());
        };
        let none = BTreeSet::new();
        let keys = self.windows.get(&k).filter(|_| window).unwrap_or(&none);
        for (key, truth) in found
            .truth
            .range((from, "".into(), i64::MIN)..(to, "".into(), i64::MIN))
        {
            let here = truth
                .placed
                .as_ref()
                .is_some_and(|object| keys.contains(object));
            if here || (truth.placed.is_none() && truth.announced) {
                continue;
            }
            if truth.placed.is_none() && truth.deleted {
                continue;
            }
            return Err(format!(
                "record {key:?} of {} is not in what was committed as [{from}, {to}), window {k}: {truth:?}",
                self.queue
            ));
        }
        Ok(())
    }

    fn data(
        &mut self,
        key: &str,
        (k, start, end): (u64, i64, i64),
        content: &Bytes,
        former: Option<&Bytes>,
        log: &mut Log,
    ) -> Verdict {
        if let Some(former) = former {
            must!(
                former == content,
                "the visible object {key} changes its content"
            );
            return Ok(());
        }
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!("{key} became visible before its intent"));
        };
        must!(
            (intent.t_start, intent.t_end) == (start, end),
            "{key} has other bounds than its intent"
        );
        let shape = intent.shape(Align::Hour);
        let records = lines(content, shape).map_err(|source| format!("{key}: {source}"))?;
        let partition = match (shape.layout, records.first()) {
            (Layout::PerPartition, Some(first)) => Some(first.key.1.to_string()),
            _ => None,
        };
        must!(!records.is_empty(), "{key} holds no record");
        let spelled = spelling::data(&self.queue, k, start, end, shape, partition.as_deref());
        must!(key == spelled, "{key} should be spelled {spelled}");
        let Some(queue) = log.queues.get_mut(&self.queue) else {
            return Err(format!("{key} of a queue that does not exist"));
        };
        let mut held = BTreeSet::new();
        for pair in records.windows(2) {
            let order = |line: &super::window::Line| {
                let (ts, partition, offset) = line.key.clone();
                (partition.as_bytes().to_vec(), ts, offset)
            };
            must!(
                order(&pair[0]) < order(&pair[1]),
                "{key} is not in order at {:?}",
                pair[1].key
            );
        }
        for line in &records {
            let Some(truth) = queue.truth.get_mut(&line.key) else {
                return Err(format!(
                    "{key} holds {:?}, which the log never showed",
                    line.key
                ));
            };
            must!(
                (start..end).contains(&line.key.0),
                "{key} holds {:?}, which is outside of its window",
                line.key
            );
            let expected = expected_line(&line.key, truth);
            must!(
                line.text == expected,
                "{key} holds {} instead of {expected}",
                line.text
            );
            must!(
                !truth.announced,
                "{key} holds {:?}, which was called lost",
                line.key
            );
            if let Some(other) = &truth.placed {
                return Err(format!("{:?} is in {other} and in {key}", line.key));
            }
            truth.placed = Some(key.to_owned());
            held.insert(line.key.clone());
        }
        if shape.layout == Layout::Merged {
            let range = (start, "".into(), i64::MIN)..(end, "".into(), i64::MIN);
            let missing = queue
                .truth
                .range(range)
                .find(|(record, truth)| !truth.deleted && !held.contains(*record));
            if let Some((record, truth)) = missing {
                return Err(format!("{key} misses {record:?}: {truth:?}"));
            }
        }
        self.windows.entry(k).or_default().insert(key.to_owned());
        self.objects.insert(
            key.to_owned(),
            records.into_iter().map(|line| line.key).collect(),
        );
        Ok(())
    }

    fn manifest(
        &mut self,
        key: &str,
        k: u64,
        content: &Bytes,
        again: bool,
        log: &mut Log,
        objects: &Objects,
    ) -> Verdict {
        let manifest: Manifest =
            serde_json::from_slice(content).map_err(|source| format!("{key}: {source}"))?;
        if again && let Some(former) = self.manifests.get(&k) {
            let same = Manifest {
                committed_at: former.committed_at.clone(),
                ..manifest.clone()
            };
            must!(
                same == *former,
                "manifest {key} changes from {former:?} to {manifest:?}"
            );
            return Ok(());
        }
        self.lineage(Some(&manifest.lineage), "a manifest")?;
        let Some(intent) = self.intents.get(&k) else {
            return Err(format!("manifest {key} before its intent"));
        };
        let pointer = self
            .pointer
            .as_ref()
            .ok_or("a manifest without a pointer")?;
        must!(
            k == pointer.k + 1,
            "manifest {key} after window {}",
            pointer.k
        );
        let named = (&*manifest.sink, &*manifest.queue, manifest.k);
        must!(
            named == (spelling::SINK, &*self.queue, k),
            "manifest {key} names {named:?}"
        );
        let bounds = (manifest.t_start, manifest.t_end, manifest.prev_t_end);
        must!(
            bounds == (intent.t_start, intent.t_end, pointer.t_end),
            "manifest {key} has bounds {bounds:?}"
        );
        let shape = Shape {
            format: manifest.format,
            compression: manifest.compression,
            layout: manifest.layout,
            align: manifest.align,
        };
        must!(
            Some(shape) == self.shape(k),
            "manifest {key} has another shape than its intent"
        );
        must!(
            manifest.committed_at.parse::<jiff::Timestamp>().is_ok(),
            "manifest {key} has committedAt {}",
            manifest.committed_at
        );
        self.manifest_objects(key, &manifest, objects)?;
        for range in &manifest.lost {
            announce(range, key, &self.queue, log)?;
        }
        must!(
            manifest.late.is_empty(),
            "manifest {key} calls records late: {:?}",
            manifest.late
        );
        self.manifests.insert(k, manifest);
        Ok(())
    }

    fn manifest_objects(&self, key: &str, manifest: &Manifest, objects: &Objects) -> Verdict {
        let none = BTreeSet::new();
        let visible = self.windows.get(&manifest.k).unwrap_or(&none);
        let listed: BTreeSet<String> = manifest
            .objects
            .iter()
            .map(|object| object.key.clone())
            .collect();
        must!(
            listed == *visible && listed.len() == manifest.objects.len(),
            "manifest {key} lists {listed:?} of {visible:?}"
        );
        let (mut records, mut bytes, mut partitions) = (0, 0, BTreeSet::new());
        let (mut least, mut greatest) = (None::<i64>, None::<i64>);
        for object in &manifest.objects {
            let (Some(content), Some(held)) = (
                objects.visible.get(&object.key),
                self.objects.get(&object.key),
            ) else {
                return Err(format!("manifest {key} before its object {}", object.key));
            };
            let figures = (object.bytes, object.records, &*object.sha256);
            let digest = hex(&Sha256::digest(&content.bytes));
            must!(
                figures == (content.bytes.len() as u64, held.len() as u64, &*digest),
                "manifest {key} has figures {figures:?} of {}",
                object.key
            );
            records += object.records;
            bytes += object.bytes;
            for (ts, partition, _) in held {
                partitions.insert(partition);
                least = Some(least.map_or(*ts, |known| known.min(*ts)));
                greatest = Some(greatest.map_or(*ts, |known| known.max(*ts)));
            }
        }
        let totals = (manifest.records, manifest.bytes, manifest.partitions);
        must!(
            totals == (records, bytes, partitions.len() as u64),
            "manifest {key} has totals {totals:?} instead of {records}, {bytes}, {}",
            partitions.len()
        );
        must!(
            (manifest.min_ts, manifest.max_ts) == (least, greatest),
            "manifest {key} has times {:?} to {:?} instead of {least:?} to {greatest:?}",
            manifest.min_ts,
            manifest.max_ts
        );
        Ok(())
    }

    fn checkpoint(&self, key: &str, k: u64, content: &Bytes) -> Verdict {
        let text = zstd::decode_all(&content[..]).map_err(|source| format!("{key}: {source}"))?;
        let document: Value =
            serde_json::from_slice(&text).map_err(|source| format!("{key}: {source}"))?;
        must!(
            document["k"].as_u64() == Some(k),
            "{key} is of window {}",
            document["k"]
        );
        let names: Option<Vec<&str>> = document["positions"].as_array().map(|positions| {
            positions
                .iter()
                .filter_map(|position| position[0].as_str())
                .collect()
        });
        let sorted = names.is_some_and(|names| names.is_sorted());
        must!(sorted, "{key} is not sorted by name");
        Ok(())
    }
}

/// Marks what a manifest calls lost; every offset of it must have been deleted. One that is in an
/// earlier window, or was named before, may be named again: after a restart a sink cannot tell
/// which of the deleted offsets it had dealt with.
fn announce(range: &OffsetRange, key: &str, queue: &str, log: &mut Log) -> Verdict {
    let Some(found) = log.queues.get_mut(queue) else {
        return Ok(());
    };
    for offset in range.from..=range.to {
        let name: queen_s3::broker::Name = range.partition.as_str().into();
        let lives = found
            .lives
            .get(&(name.clone(), offset))
            .cloned()
            .unwrap_or_default();
        let mut deleted = lives
            .iter()
            .filter_map(|ts| Some((*ts, found.truth.get(&(*ts, name.clone(), offset))?)))
            .filter(|(_, truth)| truth.deleted);
        let unread = deleted
            .clone()
            .find(|(_, truth)| truth.placed.is_none() && !truth.announced);
        let Some((ts, _)) = unread.or_else(|| deleted.next()) else {
            return Err(format!(
                "manifest {key} calls {offset} of {range:?} lost, and it is not"
            ));
        };
        if let Some(truth) = found.truth.get_mut(&(ts, name, offset)) {
            truth.announced = true;
        }
    }
    Ok(())
}
