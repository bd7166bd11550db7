//! Writing a window: intent, objects, manifest, pointer.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Map;
use tracing::{error, info, warn};

use super::object::{ObjectWriter, Trouble, hex};
use super::{End, Standing, Task};
use crate::broker::Name;
use crate::bucket::ObjectBody;
use crate::config::CrashPoint;
use crate::encode::{ObjectSpec, record_bytes};
use crate::lake::documents::{CommitPointer, Intent};
use crate::lake::manifest::{Manifest, ManifestObject, OffsetRange};
use crate::lake::{Format, Layout, Shape};
use crate::ownership::Fence;
use crate::record::Chunk;
use crate::time::Micros;
use crate::window::ClosedWindow;

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
    content: Content,
}

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
    pub(super) async fn finish(mut self) -> Result<Content, Trouble> {
        if self.look_first && self.partition.is_none() && self.shape.layout == Layout::Merged {
            // Every record may have been deleted since an object with them went up.
            let object = self.begin_object(&Name::from("")).await?;
            self.object = object.was_there().then_some(object);
        }
        self.end_object().await?;
        Ok(self.content)
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

    async fn end_object(&mut self) -> Result<(), Trouble> {
        let Some(object) = self.object.take() else {
            return Ok(());
        };
        let key = object.key().to_owned();
        let (summary, tally) = object.finish().await?;
        let mut entry = ManifestObject {
            key,
            bytes: summary.bytes,
            records: summary.records,
            sha256: hex(&summary.sha256),
            partition: None,
            first_offset: None,
            last_offset: None,
        };
        if self.shape.layout == Layout::PerPartition {
            entry.partition = self.partition.as_ref().map(ToString::to_string);
            entry.first_offset = tally.offsets.map(|(first, _)| first);
            entry.last_offset = tally.offsets.map(|(_, last)| last);
        }
        self.content.tally.add(&tally);
        self.content.objects.push(entry);
        Ok(())
    }
}

/// What a window's manifest says beside its content.
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    pub(super) lost: Vec<OffsetRange>,
    pub(super) late: Vec<OffsetRange>,
}

impl Task {
    /// Writes a closed window and moves the pointer over it.
    pub(super) async fn commit(
        &self,
        fence: &Fence,
        standing: &Standing,
        window: &ClosedWindow,
    ) -> Result<Standing, End> {
        let intent = self.intent(standing, window.t_start, window.t_end);
        fence.write_intent(&intent).await?;
        self.context.crash_point(CrashPoint::AfterIntent);
        let content = loop {
            match self.write_buffered(fence, &intent, window).await {
                Ok(content) => break content,
                Err(Trouble::Restart) => self.restarts(&intent),
                Err(Trouble::End(end)) => return Err(end),
            }
        };
        let gaps = Gaps {
            lost: window.lost.clone(),
            late: window.late.clone(),
        };
        self.conclude(fence, standing, &intent, content, gaps).await
    }

    /// The intent of the window `[t_start, t_end)` after `standing`.
    pub(super) fn intent(&self, standing: &Standing, t_start: Micros, t_end: Micros) -> Intent {
        let shape = self.settings().shape;
        Intent {
            k: standing.pointer.k + 1,
            t_start: t_start.0,
            t_end: t_end.0,
            format: shape.format,
            compression: shape.compression,
            layout: shape.layout,
            align: Some(shape.align),
            lineage: Some(standing.lineage.clone()),
            writer: writer(shape),
            other: Map::new(),
        }
    }

    /// Notes that a window's objects have to be built again.
    pub(super) fn restarts(&self, intent: &Intent) {
        warn!(
            queue = %self.queue,
            k = intent.k,
            "an object could not be brought to its end; the window's objects are built again"
        );
    }

    async fn write_buffered(
        &self,
        fence: &Fence,
        intent: &Intent,
        window: &ClosedWindow,
    ) -> Result<Content, Trouble> {
        let sizes = match intent.layout {
            Layout::Merged => Sizes::Merged(window.record_bytes),
            Layout::PerPartition => Sizes::PerPartition(
                window
                    .partitions
                    .iter()
                    .map(|(name, chunks)| {
                        (
                            name.clone(),
                            chunks.iter().map(|chunk| record_bytes(name, chunk)).sum(),
                        )
                    })
                    .collect(),
            ),
        };
        let mut writer = WindowWriter::new(self, fence, intent, sizes, false);
        for (partition, chunks) in &window.partitions {
            for chunk in chunks {
                writer.push(partition, chunk.clone()).await?;
            }
        }
        writer.finish().await
    }

    /// The objects are up: writes the manifest and moves the pointer.
    pub(super) async fn conclude(
        &self,
        fence: &Fence,
        standing: &Standing,
        intent: &Intent,
        content: Content,
        gaps: Gaps,
    ) -> Result<Standing, End> {
        self.context.crash_point(CrashPoint::AfterUpload);
        let manifest = self.manifest_of(standing, intent, content, gaps);
        let key = self.keys.manifest(manifest.k);
        let body = body_of(&manifest);
        self.persist("put", || async {
            fence.permitted().await;
            self.context.bucket.put(&key, body.clone()).await
        })
        .await;
        self.context.crash_point(CrashPoint::BeforeCommit);
        self.commit_manifest(fence, standing, &manifest).await
    }

    /// Moves the pointer over the window of `manifest`, which is in the bucket whole.
    pub(super) async fn commit_manifest(
        &self,
        fence: &Fence,
        standing: &Standing,
        manifest: &Manifest,
    ) -> Result<Standing, End> {
        let pointer = self.pointer_after(standing, manifest);
        fence.write_committed(&pointer).await?;
        self.context.crash_point(CrashPoint::AfterCommit);
        self.account(manifest, &pointer);
        Ok(Standing {
            pointer,
            lineage: standing.lineage.clone(),
        })
    }

    /// Moves the pointer to `t_end` over a stretch without records.
    pub(super) async fn commit_idle(
        &self,
        fence: &Fence,
        standing: &Standing,
        t_end: Micros,
    ) -> Result<Standing, End> {
        let pointer = CommitPointer {
            t_end: t_end.0,
            committed_at_ms: self.context.clock.wall_ms(),
            ..standing.pointer.clone()
        };
        fence.write_committed(&pointer).await?;
        self.status.pointer(t_end, pointer.committed_at_ms);
        Ok(Standing {
            pointer,
            lineage: standing.lineage.clone(),
        })
    }

    fn manifest_of(
        &self,
        standing: &Standing,
        intent: &Intent,
        content: Content,
        gaps: Gaps,
    ) -> Manifest {
        let shape = intent.shape(self.settings().shape.align);
        let committed_at = Micros(
            self.context
                .clock
                .wall_ms()
                .saturating_mul(Micros::PER_MILLI),
        )
        .to_string();
        Manifest {
            sink: self.settings().sink.clone(),
            queue: self.queue.to_string(),
            lineage: standing.lineage.clone(),
            writer: writer(shape),
            k: intent.k,
            t_start: intent.t_start,
            t_end: intent.t_end,
            prev_t_end: standing.pointer.t_end,
            format: shape.format,
            compression: shape.compression,
            layout: shape.layout,
            align: shape.align,
            records: content.tally.records,
            bytes: content.objects.iter().map(|object| object.bytes).sum(),
            partitions: content.tally.partitions,
            min_ts: content.tally.min_ts.map(|ts| ts.0),
            max_ts: content.tally.max_ts.map(|ts| ts.0),
            objects: content.objects,
            lost: gaps.lost,
            late: gaps.late,
            committed_at,
        }
    }

    /// Counts a committed window and says so in one line.
    fn account(&self, manifest: &Manifest, pointer: &CommitPointer) {
        let status = &self.status;
        status.pointer(Micros(pointer.t_end), pointer.committed_at_ms);
        status.windows.fetch_add(1, Relaxed);
        status.records.fetch_add(manifest.records, Relaxed);
        let bytes = match manifest.format {
            Format::Jsonl => &status.jsonl_bytes,
            Format::Parquet => &status.parquet_bytes,
        };
        bytes.fetch_add(manifest.bytes, Relaxed);
        self.context.status.window_records.observe(manifest.records);
        self.context.status.window_bytes.observe(manifest.bytes);
        let lost = offsets(&manifest.lost);
        let late = offsets(&manifest.late);
        status.lost.fetch_add(lost, Relaxed);
        status.late.fetch_add(late, Relaxed);
        if lost > 0 {
            warn!(
                queue = %self.queue,
                k = manifest.k,
                lost,
                first = ?manifest.lost.first(),
                "records were deleted before they were read; the window's manifest names them. \
                 Retention has to exceed the window's age and the longest outage"
            );
        }
        if late > 0 {
            error!(
                queue = %self.queue,
                k = manifest.k,
                late,
                first = ?manifest.late.first(),
                "records appeared below a safeTime that the broker had answered (a clock or a \
                 failover); they are in this window, and its manifest names them"
            );
        }
        info!(
            queue = %self.queue,
            k = manifest.k,
            from = %Micros(manifest.t_start),
            to = %Micros(manifest.t_end),
            records = manifest.records,
            bytes = manifest.bytes,
            partitions = manifest.partitions,
            lost,
            "window committed"
        );
    }
}

/// Offsets in all of `ranges`.
fn offsets(ranges: &[OffsetRange]) -> u64 {
    ranges
        .iter()
        .map(|range| range.to.abs_diff(range.from) + 1)
        .sum()
}

/// Program and encoder, as intents and manifests name them.
fn writer(shape: Shape) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("queen-s3/{version} {}+{}", shape.format, shape.compression)
}

fn body_of(manifest: &Manifest) -> ObjectBody {
    use md5::{Digest, Md5};

    let bytes = serde_json::to_vec(manifest).expect("a manifest always renders");
    let md5 = Md5::digest(&bytes).into();
    ObjectBody {
        pieces: vec![bytes.into()],
        md5,
    }
}
