//! Writing a window's objects from its records: which object a record goes into, and the figures
//! that the manifest tells of them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;

use futures::future::BoxFuture;
use futures::stream::{self, FuturesOrdered, StreamExt};
use futures::{FutureExt, TryStreamExt, pin_mut, select_biased};

use super::object::{Looking, ObjectWriter, Trouble};
use super::turn::Permit;
use super::{Halt, Task};
use crate::broker::Name;
use crate::encode::ObjectSpec;
use crate::lake::documents::Intent;
use crate::lake::manifest::{ManifestObject, OffsetRange};
use crate::lake::{Layout, Shape};
use crate::limits::{ENCODE_MAX_WORKERS, ENCODE_WORKER_BYTES, OBJECTS_IN_FLIGHT};
use crate::record::Chunk;
use crate::time::Micros;

/// Record bytes of each object of a window, known before its first record is encoded.
pub(super) enum Sizes {
    /// Of the one object.
    Merged(u64),
    /// Of each partition's object.
    PerPartition(HashMap<Name, u64>),
}

/// What a window holds, counted while it is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) objects: Vec<ManifestObject>,
    pub(super) tally: Tally,
}

/// Figures of the records of an object or a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) records: u64,
    pub(super) partitions: u64,
    pub(super) min_ts: Option<Micros>,
    pub(super) max_ts: Option<Micros>,
    /// First and last offset of the partition counted last.
    pub(super) offsets: Option<(i64, i64)>,
    /// Records of an adopted object that the log no longer has.
    pub(super) kept: Vec<OffsetRange>,
}

/// Consecutive records of one partition, as a tally counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Whether it is its partition's first.
    pub(super) begins: bool,
    pub(super) records: u64,
    pub(super) offsets: (i64, i64),
    pub(super) ts: (Micros, Micros),
}

impl Tally {
    pub(super) fn count(&mut self, run: Run) {
        self.records += run.records;
        self.partitions += u64::from(run.begins);
        self.widen(Some(run.ts.0), Some(run.ts.1));
        self.offsets = match self.offsets {
            Some((first, _)) if !run.begins => Some((first, run.offsets.1)),
            _ => Some(run.offsets),
        };
    }

    /// Adds the figures of another object of the window.
    fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.partitions += other.partitions;
        self.kept.extend(other.kept.iter().cloned());
        self.widen(other.min_ts, other.max_ts);
    }

    fn widen(&mut self, min: Option<Micros>, max: Option<Micros>) {
        self.min_ts = self.min_ts.into_iter().chain(min).min();
        self.max_ts = self.max_ts.into_iter().chain(max).max();
    }
}

/// Writes a window's objects from its records in object order.
pub(super) struct WindowWriter<'a> {
    task: &'a Task,
    permit: Permit<'a>,
    intent: &'a Intent,
    shape: Shape,
    sizes: Sizes,
    looking: Looking,
    object: Option<ObjectWriter<'a>>,
    /// The partition pushed last.
    partition: Option<Name>,
    /// Objects on their way to their end, in order.
    ending: FuturesOrdered<Ending<'a>>,
    /// What came of those that are at their end.
    ended: VecDeque<Result<(ManifestObject, Tally), Trouble>>,
    content: Content,
}

type Ending<'a> = BoxFuture<'a, Result<(ManifestObject, Tally), Trouble>>;

impl<'a> WindowWriter<'a> {
    /// A writer for the window of `intent`. Nothing goes up without `permit`.
    pub(super) fn new(
        task: &'a Task,
        permit: Permit<'a>,
        intent: &'a Intent,
        sizes: Sizes,
        looking: Looking,
    ) -> Self {
        let shape = intent.shape(task.settings().shape.align);
        Self {
            task,
            permit,
            intent,
            shape,
            sizes,
            looking,
            object: None,
            partition: None,
            ending: FuturesOrdered::new(),
            ended: VecDeque::new(),
            content: Content::default(),
        }
    }

    /// Appends records of `partition`; partitions come by name (bytes), records in log order.
    pub(super) async fn push(&mut self, partition: &Name, chunk: Chunk) -> Result<(), Trouble> {
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else {
            return Ok(());
        };
        let begins = self.partition.as_ref() != Some(partition);
        if begins && self.shape.layout == Layout::PerPartition {
            self.end_object().await?;
        }
        self.partition = Some(partition.clone());
        if self.object.is_none() {
            self.object = Some(self.begin_object(partition).await?);
        }
        let object = self.object.as_mut().expect("begun just above");
        object.tally.count(Run {
            begins,
            records: chunk.range.len() as u64,
            offsets: (first.offset, last.offset),
            ts: (first.ts, last.ts),
        });
        object.push(partition, chunk).await
    }

    /// Ends the window's last object.
    pub(super) async fn finish(&mut self) -> Result<Content, Trouble> {
        self.end_object().await?;
        self.collect(0).await?;
        Ok(std::mem::take(&mut self.content))
    }

    /// After the last record: takes in what is there of the window although none of its records
    /// was found, because all were deleted since it went up. `doubtful`: partitions of which that
    /// may be so.
    pub(super) async fn adopt_emptied(&mut self, doubtful: &BTreeSet<Name>) -> Result<(), Trouble> {
        if self.shape.layout == Layout::Merged {
            if self.partition.is_none() {
                let object = self.begin_object(&Name::from("")).await?;
                self.object = object.was_there().then_some(object);
            }
            return Ok(());
        }
        self.end_object().await?;
        self.collect(0).await?;
        let mut keys: BTreeSet<String> = doubtful.iter().map(|name| self.key(Some(name))).collect();
        // HEAD is what tells, wherever a name is known; a listing finds partitions that neither
        // the checkpoint nor the pass names.
        keys.extend(listed(self.task, self.intent, self.shape).await);
        for object in &self.content.objects {
            keys.remove(&object.key);
        }
        let (task, permit, intent, shape) = (self.task, self.permit, self.intent, self.shape);
        let found: Vec<Option<(ManifestObject, Tally)>> = stream::iter(keys)
            .map(|key| emptied(task, permit, intent, shape, key))
            .buffered(OBJECTS_IN_FLIGHT)
            .try_collect()
            .await?;
        for (entry, tally) in found.into_iter().flatten() {
            self.content.tally.add(&tally);
            self.content.objects.push(entry);
        }
        let objects = &mut self.content.objects;
        objects.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(())
    }

    fn key(&self, partition: Option<&str>) -> String {
        let bounds = self.intent.bounds();
        self.task.keys.data(bounds, self.shape, partition)
    }

    async fn begin_object(&mut self, partition: &Name) -> Result<ObjectWriter<'a>, Trouble> {
        let (record_bytes, named) = match &self.sizes {
            Sizes::Merged(bytes) => (*bytes, None),
            Sizes::PerPartition(sizes) => (
                sizes.get(partition).copied().unwrap_or_default(),
                Some(&**partition),
            ),
        };
        let spec = spec(self.task, self.shape, record_bytes, self.looking);
        ObjectWriter::new(
            self.task,
            self.permit,
            self.key(named),
            self.intent.k,
            named,
            &spec,
            self.looking,
        )
        .await
    }

    /// Sends the present object on its way to its end, and waits while too many are.
    async fn end_object(&mut self) -> Result<(), Trouble> {
        let Some(object) = self.object.take() else {
            return Ok(());
        };
        let partition = match self.shape.layout {
            Layout::Merged => None,
            Layout::PerPartition => self.partition.clone(),
        };
        self.ending.push_back(end(object, partition).boxed());
        self.collect(OBJECTS_IN_FLIGHT - 1).await
    }

    /// Waits until at most `left` objects are on their way.
    async fn collect(&mut self, left: usize) -> Result<(), Trouble> {
        while self.ending.len() > left {
            if let Some(ended) = self.ending.next().await {
                self.ended.push_back(ended);
            }
        }
        while let Some(ended) = self.ended.pop_front() {
            let (entry, tally) = ended?;
            self.content.tally.add(&tally);
            self.content.objects.push(entry);
        }
        Ok(())
    }

    /// Awaits `work` while the objects on their way go on.
    pub(super) async fn alongside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let work = work.fuse();
        pin_mut!(work);
        loop {
            select_biased! {
                result = work => return result,
                ended = self.ending.select_next_some() => self.ended.push_back(ended),
            }
        }
    }

    /// Waits for the uploads under way, whatever comes of them: none may land later, beside what is
    /// built anew.
    pub(super) async fn settle(&mut self) {
        while self.ending.next().await.is_some() {}
    }
}

fn spec(task: &Task, shape: Shape, record_bytes: u64, looking: Looking) -> ObjectSpec {
    let budget = task.context.budget.limit();
    ObjectSpec {
        // A redo reads its records as they are needed and holds no more of them than it must.
        workers: match looking {
            Looking::Nowhere => (budget / ENCODE_WORKER_BYTES).clamp(1, ENCODE_MAX_WORKERS),
            Looking::AtBytes | Looking::AtRecords => 1,
        },
        format: shape.format,
        compression: shape.compression,
        queue: task.queue.to_string(),
        record_bytes,
        part_bytes: task.settings().part_bytes,
    }
}

/// The objects of an intent's window that the bucket lists, in the per-partition layout.
async fn listed(task: &Task, intent: &Intent, shape: Shape) -> Vec<String> {
    let any = task.keys.data(intent.bounds(), shape, Some(""));
    let extension = format!(".{}", shape.extension());
    let prefix = any.strip_suffix(&extension).unwrap_or(&any);
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let list = || task.context.bucket.list(prefix, after.as_deref());
        let page = task.persist("list", list).await;
        keys.extend(
            page.keys
                .into_iter()
                .filter(|key| key.ends_with(&extension)),
        );
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

/// The object under `key`, if it is there, none of whose records was found.
async fn emptied(
    task: &Task,
    permit: Permit<'_>,
    intent: &Intent,
    shape: Shape,
    key: String,
) -> Result<Option<(ManifestObject, Tally)>, Trouble> {
    let looking = Looking::AtRecords;
    let spec = spec(task, shape, 0, looking);
    let object = ObjectWriter::new(task, permit, key, intent.k, None, &spec, looking).await?;
    if !object.was_there() {
        return Ok(None);
    }
    let (mut entry, tally) = end(object, None).await?;
    let (Some(range), Some((first, last)), 1) =
        (tally.kept.first(), tally.offsets, tally.partitions)
    else {
        return Err(differs(entry.key, intent.k, "it is not of one partition"));
    };
    if task
        .keys
        .data(intent.bounds(), shape, Some(&range.partition))
        != entry.key
    {
        let detail = format!("it is of the partition {:?}", range.partition);
        return Err(differs(entry.key, intent.k, &detail));
    }
    entry.partition = Some(range.partition.clone());
    entry.first_offset = Some(first);
    entry.last_offset = Some(last);
    Ok(Some((entry, tally)))
}

fn differs(key: String, k: u64, detail: &str) -> Trouble {
    let detail = detail.to_owned();
    Halt::ObjectDiffers { key, k, detail }.into()
}

/// Brings an object to its end, and describes it.
async fn end(
    object: ObjectWriter<'_>,
    partition: Option<Name>,
) -> Result<(ManifestObject, Tally), Trouble> {
    let key = object.key().to_owned();
    let (summary, tally) = object.finish().await?;
    let offsets = tally.offsets.filter(|_| partition.is_some());
    let entry = ManifestObject {
        key,
        bytes: summary.bytes,
        records: summary.records,
        sha256: hex::encode(summary.sha256),
        partition: partition.as_ref().map(ToString::to_string),
        first_offset: offsets.map(|(first, _)| first),
        last_offset: offsets.map(|(_, last)| last),
    };
    Ok((entry, tally))
}
