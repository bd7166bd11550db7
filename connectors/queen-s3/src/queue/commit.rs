//! Writing a window: intent, objects, manifest, pointer.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use futures::try_join;
use serde_json::Map;
use tracing::{error, info, warn};

use super::object::{Looking, Trouble};
use super::session::{Outcome, Redo};
use super::turn::{Gate, Permit, Turn};
use super::writer::{Content, Sizes, WindowWriter};
use super::{End, Standing, Task, sampled};
use crate::bucket::ObjectBody;
use crate::config::CrashPoint;
use crate::encode::record_bytes;
use crate::gaps::{Gaps, count};
use crate::lake::documents::{CommitPointer, Intent};
use crate::lake::manifest::Manifest;
use crate::lake::{Format, Layout, Shape};
use crate::memory::Reservation;
use crate::ownership::Fence;
use crate::time::Micros;
use crate::window::{ClosedWindow, Left, Remembered};

impl Task {
    /// Writes a closed window when its turn has come, and moves the pointer over it. Before that its
    /// records are encoded; an error of theirs waits for the turn, too, because the window before it
    /// is to be committed all the same. `room` is what they are expected to become. They are dropped
    /// as they are encoded: what has to be written once more is read once more.
    pub(super) async fn commit(
        &self,
        fence: &Fence,
        turn: Turn,
        room: Reservation,
        mut window: ClosedWindow,
    ) -> Result<Standing, Outcome> {
        let gaps = Gaps {
            lost: std::mem::take(&mut window.lost),
            late: std::mem::take(&mut window.late),
        };
        let (after, lineage) = (turn.after(), turn.lineage());
        let intent = self.intent(after, lineage, window.t_start, window.t_end, &gaps);
        let (gate, ahead) = (&Gate::closed(), !turn.is_now());
        let room = Mutex::new(room);
        let opening = async {
            let standing = turn.come().await;
            fence.write_intent(&intent).await?;
            self.context.crash_point(CrashPoint::AfterIntent);
            gate.open();
            Ok(standing)
        };
        let building = async {
            if !ahead {
                gate.pass().await;
            }
            let permit = Permit {
                gate,
                fence,
                room: &room,
            };
            let content = self.write_buffered(permit, &intent, window).await;
            gate.pass().await;
            match content {
                Ok(content) => Ok(Some(content)),
                Err(Trouble::Restart | Trouble::Differs) => Ok(None),
                Err(Trouble::End(end)) => Err(end),
            }
        };
        let (standing, content) = try_join!(opening, building)?;
        drop(room);
        let Some(content) = content else {
            warn!(
                queue = %self.queue,
                k = intent.k,
                "an object could not be brought to its end; its window is written again from its intent"
            );
            return Err(Outcome::Redo(Box::new(Redo {
                standing,
                intent,
                // The session adds it.
                window: Remembered::default(),
                left: Left::default(),
            })));
        };
        let written = self.conclude(fence, &standing, &intent, content, gaps);
        Ok(written.await?)
    }

    /// The intent of the window `[t_start, t_end)` that follows the one numbered `after`. It carries
    /// the gaps that its manifest will name.
    pub(super) fn intent(
        &self,
        after: u64,
        lineage: &str,
        t_start: Micros,
        t_end: Micros,
        gaps: &Gaps,
    ) -> Intent {
        let shape = self.settings().shape;
        let mut intent = Intent {
            k: after + 1,
            t_start: t_start.0,
            t_end: t_end.0,
            format: shape.format,
            compression: shape.compression,
            layout: shape.layout,
            align: Some(shape.align),
            lineage: Some(lineage.to_owned()),
            writer: writer(shape),
            other: Map::new(),
        };
        if !gaps.write(&mut intent) {
            warn!(
                queue = %self.queue,
                k = intent.k,
                "more ranges are lost or late than an intent has room for; a crash before the \
                 manifest would leave some unnamed"
            );
        }
        intent
    }

    /// Writes the objects of a window from its records in memory, which are dropped as they are
    /// encoded.
    async fn write_buffered(
        &self,
        permit: Permit<'_>,
        intent: &Intent,
        window: ClosedWindow,
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
        let mut writer = WindowWriter::new(self, permit, intent, sizes, Looking::Nowhere);
        let written = async {
            for (partition, chunks) in window.partitions {
                for chunk in chunks {
                    writer.push(&partition, chunk).await?;
                }
            }
            writer.finish().await
        }
        .await;
        writer.settle().await;
        written
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
        self.put(fence, &key, body).await;
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
            named: manifest.lost.clone(),
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
        let now = self.context.clock.boottime();
        self.status.committed(t_end, pointer.committed_at_ms, now);
        Ok(Standing {
            pointer,
            ..standing.clone()
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

    /// Says now and then that records were lost; metric and manifests tell of each.
    fn note_loss(&self, manifest: &Manifest, lost: u64) {
        let Some(suppressed) = sampled(&self.loss_log) else {
            return;
        };
        warn!(
            queue = %self.queue,
            k = manifest.k,
            lost,
            first = ?manifest.lost.first(),
            suppressed,
            "records were deleted before they were read; the window's manifest names them. \
             Retention has to exceed the window's age and the longest outage"
        );
    }

    /// Counts a committed window and says so in one line.
    fn account(&self, manifest: &Manifest, pointer: &CommitPointer) {
        let status = &self.status;
        let (t_end, now) = (Micros(pointer.t_end), self.context.clock.boottime());
        status.committed(t_end, pointer.committed_at_ms, now);
        status.windows.fetch_add(1, Relaxed);
        status.records.fetch_add(manifest.records, Relaxed);
        let bytes = match manifest.format {
            Format::Jsonl => &status.jsonl_bytes,
            Format::Parquet => &status.parquet_bytes,
        };
        bytes.fetch_add(manifest.bytes, Relaxed);
        self.context.status.window_records.observe(manifest.records);
        self.context.status.window_bytes.observe(manifest.bytes);
        let lost = count(&manifest.lost);
        let late = count(&manifest.late);
        status.lost.fetch_add(lost, Relaxed);
        status.late.fetch_add(late, Relaxed);
        if lost > 0 {
            self.note_loss(manifest, lost);
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
