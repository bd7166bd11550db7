//! Redoing a window: an intent is durable, its window is not. The window is read again at exactly
//! the intent's bounds and written under exactly its names, whatever the configuration says now.

use std::collections::HashMap;

use tracing::{info, warn};

use super::commit::Gaps;
use super::log_stream::{Changed, LogStream};
use super::object::Trouble;
use super::writer::{Content, Sizes, WindowWriter};
use super::{End, Halt, Standing, Task};
use crate::broker::Name;
use crate::encode::record_bytes;
use crate::lake::documents::Intent;
use crate::lake::manifest::{Manifest, OffsetRange};
use crate::lake::{Layout, Shape};
use crate::ownership::Fence;
use crate::time::Micros;

/// Why one try at a redo did not end with the window.
enum Redo {
    /// The log changed while it was read.
    LogChanged,
    /// An object could not be written.
    Trouble(Trouble),
}

impl From<Changed> for Redo {
    fn from(_: Changed) -> Self {
        Self::LogChanged
    }
}

impl From<Trouble> for Redo {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl Task {
    /// Brings the window of `intent`, the one after `standing`, to its end.
    pub(super) async fn redo(
        &self,
        fence: &Fence,
        standing: &Standing,
        intent: Intent,
    ) -> Result<Standing, End> {
        let queue = &self.queue;
        if let Some(manifest) = self.written(standing, &intent).await? {
            info!(%queue, k = intent.k, "the interrupted window is in the bucket whole");
            return self.commit_manifest(fence, standing, &manifest).await;
        }
        info!(
            %queue,
            k = intent.k,
            from = %Micros(intent.t_start),
            to = %Micros(intent.t_end),
            "redoing an interrupted window from its intent"
        );
        let mut backoff = self.context.jitter.backoff();
        loop {
            let (partitions, mut lost) = self.window_partitions(standing, &intent).await?;
            let rebuilt = self.rebuild(fence, standing, &intent, &partitions).await;
            match rebuilt {
                Ok((content, deleted)) => {
                    lost.extend(deleted);
                    let gaps = Gaps {
                        lost,
                        late: Vec::new(),
                    };
                    return self.conclude(fence, standing, &intent, content, gaps).await;
                }
                Err(Redo::Trouble(Trouble::End(end))) => return Err(end),
                Err(Redo::Trouble(Trouble::Restart)) => self.restarts(&intent),
                Err(Redo::LogChanged) => {
                    warn!(%queue, k = intent.k, "the log changed while it was read; once more");
                    tokio::time::sleep(backoff.next(None)).await;
                }
            }
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

    /// Every partition that can hold a record of the window, with a position at or shortly before
    /// its first one, and the ranges that are known to be deleted.
    async fn window_partitions(
        &self,
        standing: &Standing,
        intent: &Intent,
    ) -> Result<(Vec<(Name, i64, i64)>, Vec<OffsetRange>), End> {
        let mut engine = self.engine(standing).await;
        let mut backoff = self.context.jitter.backoff();
        loop {
            self.whole_pass(&mut engine, false).await?;
            if engine
                .safe_time()
                .is_some_and(|safe| safe >= Micros(intent.t_end))
            {
                break;
            }
            // The broker's safeTime may fall between calls; the window is final above it only.
            tokio::time::sleep(backoff.next(None)).await;
        }
        while engine.wants_probes() {
            self.probe(&mut engine).await?;
        }
        Ok((engine.positions(), engine.take_lost()))
    }

    async fn rebuild(
        &self,
        fence: &Fence,
        standing: &Standing,
        intent: &Intent,
        partitions: &[(Name, i64, i64)],
    ) -> Result<(Content, Vec<OffsetRange>), Redo> {
        let shape = intent.shape(self.settings().shape.align);
        let (from, to) = (Micros(standing.pointer.t_end), Micros(intent.t_end));
        // Once to learn the lengths that the objects' headers tell, once to write them.
        let sizes = self.measure(partitions, shape, from, to).await?;
        let mut writer = WindowWriter::new(self, fence, intent, sizes, true);
        let mut stream = LogStream::new(self, partitions, from, to);
        let written = async {
            while let Some((partition, chunk)) = writer.alongside(stream.next()).await? {
                writer.push(&partition, chunk).await?;
            }
            Ok::<_, Redo>(writer.finish().await?)
        }
        .await;
        writer.settle().await;
        Ok((written?, stream.lost))
    }

    async fn measure(
        &self,
        partitions: &[(Name, i64, i64)],
        shape: Shape,
        from: Micros,
        to: Micros,
    ) -> Result<Sizes, Changed> {
        let mut stream = LogStream::new(self, partitions, from, to);
        let mut total = 0;
        let mut each: HashMap<Name, u64> = HashMap::new();
        while let Some((partition, chunk)) = stream.next().await? {
            let bytes = record_bytes(&partition, &chunk);
            match shape.layout {
                Layout::Merged => total += bytes,
                Layout::PerPartition => *each.entry(partition).or_default() += bytes,
            }
        }
        Ok(match shape.layout {
            Layout::Merged => Sizes::Merged(total),
            Layout::PerPartition => Sizes::PerPartition(each),
        })
    }
}
