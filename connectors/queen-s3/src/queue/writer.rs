//! Writing a window's objects from its records: which object a record goes into, and the figures
//! that the manifest tells of them.

use std::collections::{HashMap, VecDeque};
use std::future::Future;

use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, StreamExt};
use futures::{FutureExt, pin_mut, select_biased};

use super::Task;
use super::object::{ObjectWriter, Trouble};
use crate::broker::Name;
use crate::encode::ObjectSpec;
use crate::lake::documents::Intent;
use crate::lake::manifest::{ManifestObject, OffsetRange, hex};
use crate::lake::{Layout, Shape};
use crate::limits::OBJECTS_IN_FLIGHT;
use crate::ownership::Fence;
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
    fence: &'a Fence,
    intent: &'a Intent,
    shape: Shape,
    sizes: Sizes,
    look_first: bool,
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
    pub(super) fn new(
        task: &'a Task,
        fence: &'a Fence,
        intent: &'a Intent,
        sizes: Sizes,
        look_first: bool,
    ) -> Self {
        let shape = intent.shape(task.settings().shape.align);
        Self {
            task,
            fence,
            intent,
            shape,
            sizes,
            look_first,
            object: None,
            partition: None,
            ending: FuturesOrdered::new(),
            ended: VecDeque::new(),
            content: Content::default(),
        }
    }

    /// Appends records of `partition`; partitions come by name (bytes), records in log order.
    pub(super) async fn push(&mut self, partition: &Name, chunk: Chunk) -> Result<(), Trouble> {
        let (Some(first), Some(last)) = (
            chunk.records().first().copied(),
            chunk.records().last().copied(),
        ) else {
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
        if self.look_first && self.partition.is_none() && self.shape.layout == Layout::Merged {
            // Every record may have been deleted since an object with them went up.
            let object = self.begin_object(&Name::from("")).await?;
            self.object = object.was_there().then_some(object);
        }
        self.end_object().await?;
        self.collect(0).await?;
        Ok(std::mem::take(&mut self.content))
    }

    async fn begin_object(&mut self, partition: &Name) -> Result<ObjectWriter<'a>, Trouble> {
        let (record_bytes, named) = match &self.sizes {
            Sizes::Merged(bytes) => (*bytes, None),
            Sizes::PerPartition(sizes) => (
                sizes.get(partition).copied().unwrap_or_default(),
                Some(&**partition),
            ),
        };
        let spec = ObjectSpec {
            format: self.shape.format,
            compression: self.shape.compression,
            queue: self.task.queue.to_string(),
            record_bytes,
        };
        let key = self.task.keys.data(self.intent.bounds(), self.shape, named);
        ObjectWriter::new(
            self.task,
            self.fence,
            key,
            self.intent.k,
            &spec,
            self.look_first,
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
        sha256: hex(&summary.sha256),
        partition: partition.as_ref().map(ToString::to_string),
        first_offset: offsets.map(|(first, _)| first),
        last_offset: offsets.map(|(_, last)| last),
    };
    Ok((entry, tally))
}
