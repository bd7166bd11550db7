//! What must hold after every write to the bucket and to the key/value store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
use super::sight::Sight;
use super::spelling::{self, Named};
use super::window::{expected_body, lines};

type Verdict = Result<(), String>;

macro_rules! must {
    ($holds:expr, $($broken:tt)+) => {
        if !$holds {
            return Err(format!($($broken)+));
        }
    };
}

mod content;

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
    /// Which reading state of which process, by process and queue, knows what.
    sights: BTreeMap<(String, String), Sight>,
    /// Counts placements and reading states.
    count: u64,
    /// Checkpoints that do not say what was written into them.
    damaged: BTreeSet<String>,
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
    windows: BTreeMap<u64, BTreeSet<Arc<str>>>,
    objects: BTreeMap<String, Vec<RecordKey>>,
    manifests: BTreeMap<u64, Manifest>,
    /// Instance of the lease row written last.
    holder: Option<String>,
    /// The process that last began to read.
    reader: String,
    /// Records that broke a promise.
    broken: Vec<RecordKey>,
    /// Key of another lake's manifest that lies here: nobody may write.
    foreign: Option<String>,
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
            sights: BTreeMap::new(),
            count: 0,
            damaged: BTreeSet::new(),
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

    /// Deleted records that no window holds and no manifest names: what no sink can have known of.
    pub fn unannounced(&self, log: &Log) -> u64 {
        let of = |lake: &Lake| {
            let (Some(queue), Some(start)) = (log.queues.get(&lake.queue), lake.start) else {
                return 0;
            };
            let below = queue.truth.range((start, "".into(), i64::MIN)..);
            below
                .filter(|(_, truth)| truth.deleted && truth.placed.is_none() && !truth.announced)
                .count() as u64
        };
        self.lakes.values().map(of).sum()
    }

    /// Process `who` begins to read `queue` from nothing.
    pub fn reading_begins(&mut self, who: &str, queue: &str, log: &mut Log) {
        self.count += 1;
        let sight = Sight::new(self.count);
        self.sights
            .insert((who.to_owned(), queue.to_owned()), sight);
        let (Some(lake), Some(queue)) = (self.lakes.get_mut(queue), log.queues.get_mut(queue))
        else {
            return;
        };
        who.clone_into(&mut lake.reader);
        // What came late and was not read cannot be told any more from what is in a window, nor
        // can what precedes it be found by bisection.
        let mut bound: BTreeMap<u128, i64> = BTreeMap::new();
        for key in &lake.broken {
            if let Some(truth) = queue.truth.get(key) {
                let offset = bound.entry(truth.life).or_insert(key.2);
                *offset = (*offset).max(key.2);
            }
        }
        if bound.is_empty() {
            return;
        }
        for (key, truth) in &mut queue.truth {
            let within = bound.get(&truth.life).is_some_and(|bound| key.2 <= *bound);
            truth.excused |= within && truth.placed.is_none();
        }
    }

    /// What process `who` knows of `queue`.
    pub fn sight(&mut self, who: &str, queue: &str) -> &mut Sight {
        self.sights
            .entry((who.to_owned(), queue.to_owned()))
            .or_default()
    }

    /// Process `who` has read the checkpoint `key`.
    pub fn checkpoint_read(&mut self, who: &str, key: &str, content: &[u8]) {
        let read = zstd::decode_all(content)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let (Some(document), Some(queue)) = (read, self.queue_of(key)) else {
            return;
        };
        let fits = self.lakes[&queue].pointer.as_ref().is_some_and(|pointer| {
            document["k"].as_u64() <= Some(pointer.k)
                && document["tEnd"].as_i64() <= Some(pointer.t_end)
        });
        if fits && !self.damaged.contains(key) {
            self.sight(who, &queue).restored(&document);
        }
    }

    /// A checkpoint does not say any more what was written into it.
    pub fn checkpoint_damaged(&mut self, key: &str) {
        self.damaged.insert(key.to_owned());
    }

    /// The key/value store holds other documents of `queue` than were written last.
    pub fn store_replaced(
        &mut self,
        queue: &str,
        pointer: Option<CommitPointer>,
        intent: Option<Intent>,
    ) {
        let Some(lake) = self.lakes.get_mut(queue) else {
            return;
        };
        let last = lake.manifests.keys().last().copied().unwrap_or(0);
        lake.intents.retain(|k, _| *k <= last);
        if let (Some(pointer), Some(intent)) = (&pointer, intent)
            && intent.k > last
            && intent.k == pointer.k + 1
        {
            lake.intents.insert(intent.k, intent);
        }
        if pointer.is_none() && last == 0 {
            // Another lake begins in the place of this one, which holds nothing.
            lake.lineage = None;
        }
        lake.pointer = pointer;
        lake.holder = None;
    }

    /// Another lake's manifest lies at `key`, or does not any more.
    pub fn foreign(&mut self, queue: &str, key: Option<String>) {
        if let Some(lake) = self.lakes.get_mut(queue) {
            lake.foreign = key;
        }
    }

    /// Number and objects of the window whose objects no intent and no manifest names, if there is
    /// one.
    pub fn unnamed(&self, queue: &str) -> Option<(u64, Vec<String>)> {
        let lake = self.lakes.get(queue)?;
        let k = lake.pointer.as_ref()?.k + 1;
        let named = lake.intents.contains_key(&k) || lake.manifests.contains_key(&k);
        let keys = lake
            .windows
            .get(&k)
            .filter(|keys| !named && !keys.is_empty())?;
        Some((k, keys.iter().map(ToString::to_string).collect()))
    }

    /// Whether some queue has an intent that is not committed yet.
    pub fn amid_a_window(&self) -> bool {
        self.lakes.values().any(|lake| {
            let pointed = lake.pointer.as_ref().map_or(0, |pointer| pointer.k);
            lake.intents.keys().last().is_some_and(|k| *k > pointed)
        })
    }

    /// Whether `queue` has manifests and no pointer.
    pub fn stranded(&self, queue: &str) -> bool {
        self.lakes
            .get(queue)
            .is_some_and(|lake| lake.pointer.is_none() && !lake.manifests.is_empty())
    }

    /// Window number of `queue`'s pointer.
    pub fn pointed(&self, queue: &str) -> Option<u64> {
        Some(self.lakes.get(queue)?.pointer.as_ref()?.k)
    }

    /// An operator moved an object away.
    pub fn object_moved(&mut self, queue: &str, k: u64, key: &str, log: &mut Log) {
        let (Some(lake), Some(queue)) = (self.lakes.get_mut(queue), log.queues.get_mut(queue))
        else {
            return;
        };
        for record in lake.objects.remove(key).unwrap_or_default() {
            if let Some(truth) = queue.truth.get_mut(&record) {
                truth.placed = None;
            }
        }
        if let Some(keys) = lake.windows.get_mut(&k) {
            keys.remove(key);
        }
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

    /// A record became visible below what the broker had promised. A reading state that has not met
    /// its partition yet cannot tell it from one that an earlier window holds.
    pub fn promise_broken(&mut self, queue: &str, key: RecordKey, log: &mut Log) {
        let truth = log.queues.get_mut(queue);
        let truth = truth.and_then(|queue| queue.truth.get_mut(&key));
        let (Some(lake), Some(truth)) = (self.lakes.get_mut(queue), truth) else {
            return;
        };
        let reader = (lake.reader.clone(), queue.to_owned());
        let met = self.sights.get(&reader);
        truth.excused = !met.is_some_and(|sight| sight.has_met(truth.life));
        lake.broken.push(key);
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
        who: &str,
        key: &str,
        content: &Bytes,
        former: Option<&Bytes>,
        log: &mut Log,
        objects: &Objects,
    ) -> Verdict {
        self.count += 1;
        for lake in self.lakes.values_mut() {
            let Some(named) = spelling::named(&lake.queue, key) else {
                continue;
            };
            must!(
                lake.foreign.is_none(),
                "{who} writes {key} beside another lake's manifest"
            );
            match named {
                Named::Data { k, start, end } => {
                    return lake.data(key, (k, start, end), content, former, log, self.count);
                }
                Named::Manifest(k) => {
                    let sight = self.sights.get(&(who.to_owned(), lake.queue.clone()));
                    let none = Sight::default();
                    let sight = sight.unwrap_or(&none);
                    let again = former.is_some();
                    return lake.manifest((key, k), content, again, log, objects, sight);
                }
                Named::Checkpoint(k) => {
                    self.damaged.remove(key);
                    return lake.checkpoint(key, k, content);
                }
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
        let mut claimed = Vec::new();
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
                lake.holder(operation)?;
                if operation.op != KvOpKind::Delete {
                    leases.push(lake.queue.clone());
                    // A refresh insists on its version, a claim looks whether it won.
                    claimed.extend(operation.required.is_none().then(|| lake.queue.clone()));
                }
                continue;
            }
            must!(
                lake.foreign.is_none(),
                "{} writes {key} beside another lake's manifest",
                batch.who
            );
            fenced(batch.operations, index)?;
            must!(operation.forever == Some(true), "{key} expires");
            match document {
                "intent" => lake.intent(read(operation)?, log)?,
                "committed" => {
                    let windows = lake.pointer.as_ref().map_or(0, |pointer| pointer.k);
                    let sight = self.sights.get(&(batch.who.to_owned(), lake.queue.clone()));
                    lake.commit(read(operation)?, log, objects, sight)?;
                    let moved = lake.pointer.as_ref().map_or(0, |pointer| pointer.k);
                    let moved = moved.saturating_sub(windows);
                    self.windows += moved;
                    self.idle_moves += u64::from(moved == 0);
                }
                _ => return Err(format!("{} writes the unknown key {key}", batch.who)),
            }
        }
        for queue in claimed {
            self.reading_begins(batch.who, &queue, log);
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
                    truth.settled(),
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
    /// A lease row that stands is only ever written by the instance that it names.
    fn holder(&mut self, operation: &KvOperation) -> Verdict {
        if operation.op == KvOpKind::Delete {
            self.holder = None;
            return Ok(());
        }
        let document: LeaseDocument = read(operation)?;
        let stood = operation.expect.is_some_and(|version| version > 0);
        if let Some(holder) = self.holder.as_ref().filter(|_| stood) {
            must!(
                *holder == document.instance,
                "the lease of {} is taken from {holder} by {}",
                self.queue,
                document.instance
            );
        }
        self.holder = Some(document.instance);
        Ok(())
    }

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

    fn commit(
        &mut self,
        pointer: CommitPointer,
        log: &mut Log,
        objects: &Objects,
        sight: Option<&Sight>,
    ) -> Verdict {
        let queue = self.queue.clone();
        self.lineage(pointer.lineage.as_deref(), "a pointer")?;
        let Some(former) = self.pointer.clone() else {
            if let Some((k, newest)) = self.manifests.last_key_value() {
                let own = (pointer.k, pointer.t_end, &*pointer.manifest);
                let expected = (*k, newest.t_end, &*spelling::manifest(&queue, *k));
                must!(
                    own == expected,
                    "{queue} goes on at {own:?} instead of its newest window {expected:?}"
                );
                self.pointer = Some(pointer);
                return Ok(());
            }
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
        self.tiled((from, to), pointer.k, pointer.k > former.k, log, sight)?;
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

    /// Every record with `from <= ts < to` is in window `k`, is named as lost, or went before the
    /// committer's reading state knew of it.
    fn tiled(
        &mut self,
        (from, to): (i64, i64),
        k: u64,
        window: bool,
        log: &mut Log,
        sight: Option<&Sight>,
    ) -> Verdict {
        let Some(found) = log.queues.get(&self.queue) else {
            return Ok(());
        };
        let none = BTreeSet::new();
        let keys = self.windows.get(&k).filter(|_| window).unwrap_or(&none);
        for (key, truth) in found
            .truth
            .range((from, "".into(), i64::MIN)..(to, "".into(), i64::MIN))
        {
            let why = match &truth.placed {
                Some(object) if keys.contains(object) => continue,
                // It goes into a later window, or is in a former one.
                _ if truth.broken || truth.excused => continue,
                Some(_) => "not in what was",
                None if truth.announced => continue,
                None if !truth.deleted => "not in what was",
                None if sight.is_some_and(|sight| sight.knows(truth.life, key.2)) => {
                    "deleted, known to have been there, and not named as lost in what was"
                }
                None => continue,
            };
            return Err(format!(
                "record {key:?} of {} is {why} committed as [{from}, {to}), window {k}: {truth:?}",
                self.queue
            ));
        }
        Ok(())
    }
}
