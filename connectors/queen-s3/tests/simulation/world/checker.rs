//! What must hold after every write to the bucket and to the key/value store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use queen_protocol::kv::{KvOpKind, KvOperation, KvResult};
use queen_s3::lake::documents::{CommitPointer, Intent, LeaseDocument};
use queen_s3::lake::manifest::{Manifest, OffsetRange};
use queen_s3::lake::{Align, Format, Layout, Shape};
use queen_s3::time::Micros;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::log::{Log, RecordKey};
use super::objects::Objects;
use super::scenario::Scenario;
use super::sight::Sight;
use super::spelling::{self, Named, Roots};
use super::visits::{Situation, Visits};
use super::window::{expected_body, lines};
use documents::{fenced, lease, read};

type Verdict = Result<(), String>;

macro_rules! must {
    ($holds:expr, $($broken:tt)+) => {
        if !$holds {
            return Err(format!($($broken)+));
        }
    };
}

mod content;
mod documents;
mod names;

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
    /// What the run has met.
    pub visits: Visits,
}

/// What is known of one queue's lake.
#[derive(Default)]
struct Lake {
    queue: String,
    roots: Roots,
    /// Whether listings tell the lives of a partition apart.
    ids: bool,
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
    /// Key of another lake's manifest that lies here: nobody may write once it is the next.
    foreign: Option<String>,
}

impl Checker {
    /// A checker for a run of `scenario`.
    pub fn new(scenario: &Scenario) -> Self {
        let lake = |queue: &String| {
            let lake = Lake {
                roots: Roots::of(queue),
                queue: queue.clone(),
                ids: scenario.ids,
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
            visits: Visits::default(),
        }
    }

    /// The queue whose lake holds `key`.
    pub fn queue_of(&self, key: &str) -> Option<String> {
        let lake = self
            .lakes
            .values()
            .find(|lake| lake.roots.named(key).is_some());
        lake.map(|lake| lake.queue.clone())
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
        self.reading_goes_on(who, queue, log);
    }

    /// Process `who` begins to read `queue` with another engine: what it was shown it still knows.
    pub fn reading_goes_on(&mut self, who: &str, queue: &str, log: &mut Log) {
        if let Some(sight) = self.sights.get_mut(&(who.to_owned(), queue.to_owned())) {
            sight.hand_on();
        }
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
            self.visits.met(Situation::Restored);
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

    /// Whether some queue has objects of a window without a manifest.
    pub fn is_half_up(&self) -> bool {
        let half_up = |lake: &Lake| lake.under_way() == Some(Situation::HalfUp);
        self.lakes.values().any(half_up)
    }

    /// Whether `queue` is stopped as it must be: the broker broke its promise within the window
    /// under way, so that an object which is up lacks a record that a redo finds.
    pub fn contradicted(&self, queue: &str, log: &Log) -> bool {
        let found = self.lakes.get(queue).zip(log.queues.get(queue));
        found.is_some_and(|(lake, queue)| lake.contradicted(queue))
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
        let (Some(lake), Some(found)) = (self.lakes.get_mut(queue), log.queues.get_mut(queue))
        else {
            return;
        };
        let Some(truth) = found.truth.get(&key) else {
            return;
        };
        let reader = (lake.reader.clone(), queue.to_owned());
        let met = self.sights.get(&reader);
        if !met.is_some_and(|sight| sight.has_met(truth.life)) {
            // Nor can what precedes it be found by bisection.
            let life = truth.life;
            for (before, truth) in &mut found.truth {
                let within = truth.life == life && before.2 <= key.2;
                truth.excused |= within && truth.placed.is_none();
            }
        }
        lake.broken.push(key);
    }

    /// An object is gone.
    pub fn object_deleted(&self, key: &str) -> Verdict {
        let checkpoint = self
            .lakes
            .values()
            .any(|lake| matches!(lake.roots.named(key), Some(Named::Checkpoint(_))));
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
            let Some(named) = lake.roots.named(key) else {
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
                    lake.manifest((key, k), content, again, log, objects, sight)?;
                    if let Some(manifest) = lake.manifests.get(&k).filter(|_| !again) {
                        let (late, lost) = (&manifest.late, &manifest.lost);
                        self.visits
                            .met_times(Situation::LateRecords, late.len() as u64);
                        self.visits
                            .met_times(Situation::LostRecords, lost.len() as u64);
                    }
                    return Ok(());
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
                let document = key.strip_prefix(&lake.roots.documents)?;
                Some((lake, document))
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
                let former = lake.holder(operation)?;
                if operation.op != KvOpKind::Delete {
                    leases.push(lake.queue.clone());
                    // A refresh insists on its version, a claim looks whether it won.
                    if operation.required.is_none() {
                        claimed.push(lake.queue.clone());
                        match former {
                            Some(former) if Some(&former) == lake.holder.as_ref() => {
                                self.visits.met(Situation::ClaimedAgain);
                            }
                            Some(_) => self.visits.met(Situation::TakenOver),
                            None => {}
                        }
                        if let Some(found) = lake.under_way() {
                            self.visits.met(found);
                        }
                    }
                }
                continue;
            }
            must!(
                !lake.is_barred(),
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
                    if let Some(shape) = lake.shape(windows + 1).filter(|_| moved == 1) {
                        self.visits.met(match (shape.format, shape.layout) {
                            (Format::Jsonl, Layout::Merged) => Situation::LinesMerged,
                            (Format::Jsonl, Layout::PerPartition) => Situation::LinesApart,
                            (Format::Parquet, Layout::Merged) => Situation::RowsMerged,
                            (Format::Parquet, Layout::PerPartition) => Situation::RowsApart,
                        });
                    }
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

    /// A batch was rolled back: who sent it does not own the queue any more.
    pub fn fence_lost(&mut self, operations: &[KvOperation]) {
        let written = operations.iter().rfind(|operation| operation.op.is_write());
        let key = written.and_then(|operation| operation.key.as_deref());
        let document = key.and_then(|key| key.rsplit(':').next());
        self.visits.met(match document {
            Some("intent") => Situation::FenceAtIntent,
            Some("committed") => Situation::FenceAtCommit,
            _ => Situation::FenceAtLease,
        });
    }

    /// Every record is in its lake, or was deleted before it got there.
    pub fn complete(&self, log: &Log) -> Verdict {
        for lake in self.lakes.values() {
            let Some(queue) = log.queues.get(&lake.queue) else {
                continue;
            };
            if lake.contradicted(queue) {
                continue;
            }
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
