//! Redoing a window: an intent is durable, its window is not. The window is read again at exactly
//! the intent's bounds and written under exactly its names, whatever the configuration says now.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::log_stream::{Changed, LogStream};
use super::object::{Looking, Trouble};
use super::survey::Survey;
use super::turn::{Gate, Permit};
use super::writer::{Content, Sizes, WindowWriter};
use super::{End, Halt, Standing, Task};
use crate::broker::Name;
use crate::encode::{EncodeError, record_bytes};
use crate::gaps::{Gaps, subtract};
use crate::lake::Layout;
use crate::lake::documents::Intent;
use crate::lake::manifest::{Manifest, OffsetRange};
use crate::limits::REDO_STOP_GRACE;
use crate::ownership::Fence;
use crate::time::Micros;
use crate::window::{Left, Remembered, Unread};

/// Why one try at a redo did not end with the window.
enum Unfinished {
    /// The log changed while it was read.
    Changed(Changed),
    /// An object could not be written.
    Trouble(Trouble),
}

impl From<Changed> for Unfinished {
    fn from(changed: Changed) -> Self {
        Self::Changed(changed)
    }
}

impl From<Trouble> for Unfinished {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// What a redo reads.
#[derive(Clone, Copy)]
struct Rebuilt<'a> {
    intent: &'a Intent,
    partitions: &'a [Unread],
    doubtful: &'a BTreeSet<Name>,
    from: Micros,
    late: &'a [OffsetRange],
}

/// What reading a window again taught.
struct Read<'a> {
    /// Where records of the window ended, by partition.
    ends: Vec<(&'a Unread, i64)>,
    /// Ranges found deleted.
    lost: Vec<OffsetRange>,
    /// Late records that are still there.
    late: Vec<OffsetRange>,
}

impl<'a> Rebuilt<'a> {
    fn stream(self, task: &'a Task) -> LogStream<'a> {
        let to = Micros(self.intent.t_end);
        LogStream::new(task, self.partitions, self.from, to, self.late)
    }
}

/// How long a redo goes on after a stop: what it has not committed by then the next start does again.
struct Grace<'a> {
    stop: &'a CancellationToken,
    /// The stop came first: what is redone is the window that it found being written.
    late: bool,
    ends: OnceLock<Instant>,
}

impl<'a> Grace<'a> {
    fn of(stop: &'a CancellationToken) -> Self {
        Self {
            stop,
            late: stop.is_cancelled(),
            ends: OnceLock::new(),
        }
    }

    /// What `work` comes to, for which a stop leaves [`REDO_STOP_GRACE`], whatever has been done in it.
    async fn go_on<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        let over = async {
            self.stop.cancelled().await;
            let ends = self.ends.get_or_init(|| Instant::now() + REDO_STOP_GRACE);
            tokio::time::sleep_until(*ends).await;
        };
        tokio::select! {
            biased;
            () = over => Err(End::Drained),
            done = work => Ok(done),
        }
    }

    /// What `work` comes to, which a stop ends at once where nothing is read yet that the next start would have
    /// to read again.
    async fn prepare<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        if self.late {
            return self.go_on(work).await;
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(End::Drained),
            done = work => Ok(done),
        }
    }
}

/// Every range of `parts` once, without the records that an adopted object still has; and of
/// `later`, whose lives no object of the window can have records of.
fn all_lost(
    parts: [&[OffsetRange]; 4],
    kept: &[OffsetRange],
    later: &[OffsetRange],
) -> Vec<OffsetRange> {
    let mut lost: Vec<OffsetRange> = Vec::new();
    for part in parts {
        lost.extend(subtract(part.to_vec(), &lost));
    }
    let mut lost = subtract(lost, kept);
    lost.extend(subtract(later.to_vec(), &lost));
    lost
}

impl Task {
    /// Brings the window of `intent`, the one after `standing`, to its end. What it had before is named if
    /// it is not there any more. Answers what is left to the session that follows as well.
    pub(super) async fn redo(
        &self,
        fence: &Fence,
        standing: &Standing,
        intent: Intent,
        window: (Remembered, Left),
        stop: &CancellationToken,
    ) -> Result<(Standing, Left), End> {
        let queue = &self.queue;
        let grace = Grace::of(stop);
        if let Some(manifest) = grace.prepare(self.written(standing, &intent)).await?? {
            info!(%queue, k = intent.k, "the interrupted window is in the bucket whole");
            let moved = self.commit_manifest(fence, standing, &manifest);
            let moved = grace.go_on(moved).await??;
            return Ok((moved, window.1));
        }
        let repeating = self.is_repeating();
        if !repeating {
            info!(
                %queue,
                k = intent.k,
                from = %Micros(intent.t_start),
                to = %Micros(intent.t_end),
                "redoing an interrupted window from its intent"
            );
        }
        // It owns the queue, and may read for longer than a `safeTime` is shown.
        let _asking = self.context.status.asking();
        let carried = Gaps::of(&intent);
        let begun = Survey::begin(self, standing, &intent, window, stop);
        let mut survey = grace.prepare(begun).await?;
        let mut backoff = self.context.jitter.backoff();
        let mut looking = Looking::AtBytes;
        loop {
            // What a former try left open is not gone on with.
            grace.prepare(self.abort_uploads()).await?;
            let discovery = survey.discover(Micros(intent.t_end), &carried.late);
            let found = grace.prepare(discovery).await??;
            let window = Rebuilt {
                intent: &intent,
                partitions: &found.partitions,
                doubtful: &found.doubtful,
                from: Micros(standing.pointer.t_end),
                late: &carried.late,
            };
            let mut below = Vec::new();
            let rebuilding = self.rebuild(fence, window, looking, &mut below);
            let rebuilt = grace.go_on(rebuilding).await?;
            survey.is_written(&below);
            let lived_on = match rebuilt {
                Ok(_) => {
                    let asking = survey.lived_on(&found.partitions);
                    grace.go_on(asking).await??
                }
                Err(_) => false,
            };
            let changed = match rebuilt {
                Ok((content, read)) if lived_on => {
                    let kept = &content.tally.kept;
                    // Late records that were deleted since are not in the window.
                    let gone = subtract(carried.late.clone(), &read.late);
                    let gaps = Gaps {
                        lost: all_lost(
                            [&carried.lost, &found.lost, &read.lost, &gone],
                            kept,
                            &found.later_lost,
                        ),
                        late: subtract(carried.late.clone(), &subtract(gone, kept)),
                    };
                    let left = survey.left(&read.ends);
                    let moved = self.conclude(fence, standing, &intent, content, gaps);
                    return Ok((grace.go_on(moved).await??, left));
                }
                Ok(_) => None,
                Err(Unfinished::Changed(changed)) => changed.reborn,
                // Its length was another one than when it was measured.
                Err(Unfinished::Trouble(Trouble::End(End::Halted(Halt::Encode(
                    EncodeError::RecordBytes { .. },
                ))))) => None,
                Err(Unfinished::Trouble(Trouble::End(end))) => return Err(end),
                Err(Unfinished::Trouble(Trouble::Differs)) => {
                    if !repeating {
                        info!(%queue, k = intent.k, "an object is there with other bytes; reading it");
                    }
                    looking = Looking::AtRecords;
                    continue;
                }
                Err(Unfinished::Trouble(Trouble::Restart)) => {
                    warn!(
                        %queue,
                        k = intent.k,
                        "an object could not be brought to its end; the window's objects are \
                         built again"
                    );
                    grace
                        .prepare(tokio::time::sleep(backoff.next(None)))
                        .await?;
                    continue;
                }
            };
            warn!(%queue, k = intent.k, "the log changed while it was read; once more");
            survey.changed(changed);
            grace
                .prepare(tokio::time::sleep(backoff.next(None)))
                .await?;
        }
    }

    /// The manifest of the intent's window, if it and all of its objects are in the bucket.
    async fn written(&self, standing: &Standing, intent: &Intent) -> Result<Option<Manifest>, End> {
        let Some(manifest) = self.manifest(intent.k).await? else {
            return Ok(None);
        };
        let same = manifest.t_start == intent.t_start && manifest.t_end == intent.t_end;
        if !same || manifest.prev_t_end != standing.pointer.t_end {
            let key = self.keys.manifest(intent.k);
            let detail = "its bounds are not those of the intent".to_owned();
            return Err(Halt::ObjectDiffers {
                key,
                k: intent.k,
                detail,
            }
            .into());
        }
        for object in &manifest.objects {
            let found = self
                .persist("head", || self.context.bucket.head(&object.key))
                .await;
            if found.map(|info| info.size) != Some(object.bytes) {
                return Ok(None);
            }
        }
        Ok(Some(manifest))
    }

    /// One try. `below` is told where records of earlier windows end, whatever comes of it.
    async fn rebuild<'a>(
        &'a self,
        fence: &Fence,
        window: Rebuilt<'a>,
        looking: Looking,
        below: &mut Vec<(&'a Unread, i64)>,
    ) -> Result<(Content, Read<'a>), Unfinished> {
        // Once to learn the lengths that the objects' headers tell, once to write them.
        let mut stream = window.stream(self);
        let sizes = measure(&mut stream, window.intent.layout).await;
        below.append(&mut stream.written);
        let sizes = sizes?;
        let gate = &Gate::opened();
        let room = &Mutex::new(self.context.budget.claim(0));
        let permit = Permit { gate, fence, room };
        let mut writer = WindowWriter::new(self, permit, window.intent, sizes, looking);
        let mut stream = window.stream(self);
        let written = async {
            while let Some((partition, chunk)) = writer.alongside(stream.next()).await? {
                writer.push(&partition, chunk).await?;
            }
            let mut doubtful = window.doubtful.clone();
            doubtful.extend(
                stream
                    .lost
                    .iter()
                    .map(|range| range.partition.as_str().into()),
            );
            writer.adopt_emptied(&doubtful).await?;
            Ok::<_, Unfinished>(writer.finish().await?)
        }
        .await;
        writer.settle().await;
        below.append(&mut stream.written);
        let read = Read {
            ends: stream.read,
            lost: stream.lost,
            late: stream.late_found,
        };
        Ok((written?, read))
    }
}

/// What `stream` brings, in record bytes of each object.
async fn measure(stream: &mut LogStream<'_>, layout: Layout) -> Result<Sizes, Changed> {
    let mut total = 0;
    let mut each: HashMap<Name, u64> = HashMap::new();
    while let Some((partition, chunk)) = stream.next().await? {
        let bytes = record_bytes(&partition, &chunk);
        match layout {
            Layout::Merged => total += bytes,
            Layout::PerPartition => *each.entry(partition).or_default() += bytes,
        }
    }
    Ok(match layout {
        Layout::Merged => Sizes::Merged(total),
        Layout::PerPartition => Sizes::PerPartition(each),
    })
}
