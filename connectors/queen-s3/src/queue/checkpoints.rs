//! Checkpoints in the bucket: written every few windows, loaded at a start, the two newest kept.

use std::sync::atomic::Ordering::Relaxed;

use md5::{Digest, Md5};
use tracing::{debug, info, warn};

use super::start::overdue;
use super::{Standing, Task};
use crate::bucket::{BucketError, ObjectBody};
use crate::lake::checkpoint::{Checkpoint, Positions};
use crate::limits::SIDECAR_BYTES;
use crate::ownership::Fence;
use crate::time::Micros;
use crate::window::{Engine, Left, Remembered};

/// Checkpoints that stay in the bucket.
const KEPT: usize = 2;

impl Task {
    /// An engine that stands where the pointer does, with the positions of the newest checkpoint
    /// that fits, if there is one.
    pub(super) async fn engine(
        &self,
        standing: &Standing,
        window: Remembered,
        left: Left,
    ) -> Engine {
        let committed = Micros(standing.pointer.t_end);
        let mut engine = Engine::new(self.policy(), committed);
        engine.note_named(&standing.named);
        engine.recall(window);
        engine.go_on(left);
        if standing.pointer.k > 0
            && let Some(checkpoint) = self.load_checkpoint(standing).await
        {
            info!(
                queue = %self.queue,
                k = checkpoint.k,
                partitions = checkpoint.positions.len(),
                "reading goes on from a checkpoint"
            );
            let age = standing.pointer.k - checkpoint.k;
            self.status.checkpoint_age.store(age, Relaxed);
            engine.restore(&checkpoint.positions);
        } else {
            self.status
                .checkpoint_age
                .store(standing.pointer.k, Relaxed);
        }
        engine
    }

    /// The newest checkpoint at or below the pointer that reads. A failure costs re-reads only.
    async fn load_checkpoint(&self, standing: &Standing) -> Option<Checkpoint> {
        let pointer = &standing.pointer;
        let mut found = self.listed_checkpoints().await.unwrap_or_else(|error| {
            warn!(queue = %self.queue, %error, "checkpoints could not be listed; doing without");
            Vec::new()
        });
        found.retain(|(k, _)| *k <= pointer.k);
        for (k, key) in found.into_iter().rev().take(KEPT) {
            match self.read_checkpoint(&key).await {
                Ok(checkpoint) if checkpoint.k == k && checkpoint.t_end <= pointer.t_end => {
                    return Some(checkpoint);
                }
                Ok(_) => warn!(queue = %self.queue, %key, "a checkpoint is of another history"),
                Err(error) => warn!(queue = %self.queue, %key, error, "a checkpoint does not read"),
            }
        }
        None
    }

    async fn read_checkpoint(&self, key: &str) -> Result<Checkpoint, String> {
        let reader = self
            .context
            .bucket
            .get(key)
            .await
            .map_err(|error| error.to_string())?;
        let reader = reader.ok_or("it is gone")?;
        let bytes = reader
            .bytes(SIDECAR_BYTES)
            .await
            .map_err(|error| error.to_string())?;
        let decoded = self
            .context
            .compute
            .run(move || Checkpoint::decode(&bytes))
            .await;
        decoded.map_err(|error| error.to_string())
    }

    /// Every checkpoint in the bucket, the oldest first.
    async fn listed_checkpoints(&self) -> Result<Vec<(u64, String)>, BucketError> {
        let prefix = self.keys.checkpoints();
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.context.bucket.list(&prefix, after.as_deref()).await?;
            found.extend(
                page.keys
                    .into_iter()
                    .filter_map(|key| Some((self.keys.checkpoint_k(&key)?, key))),
            );
            after = page.next;
            if after.is_none() {
                found.sort_unstable();
                return Ok(found);
            }
        }
    }

    /// Writes a checkpoint after window `k` and deletes the superseded ones. Best effort: the next
    /// one comes anyway.
    pub(super) async fn write_checkpoint(
        &self,
        fence: &Fence,
        standing: &Standing,
        positions: Positions,
    ) -> bool {
        let (k, t_end) = (standing.pointer.k, standing.pointer.t_end);
        let checkpoint = Checkpoint {
            k,
            t_end,
            positions,
        };
        let encoded = self
            .context
            .compute
            .run(move || {
                let bytes = checkpoint.encode()?;
                let md5 = Md5::digest(&bytes).into();
                Ok::<_, std::io::Error>(ObjectBody {
                    pieces: vec![bytes.into()],
                    md5,
                })
            })
            .await;
        let encoded = match encoded {
            Ok(encoded) => encoded,
            Err(error) => {
                warn!(queue = %self.queue, %error, "a checkpoint could not be encoded");
                return false;
            }
        };
        let key = self.keys.checkpoint(k);
        let put = fence.guard(self.context.bucket.put(&key, encoded)).await;
        if let Err(error) = put.unwrap_or_else(|| Err(overdue("put", &key))) {
            warn!(queue = %self.queue, %error, "a checkpoint could not be written; the next comes");
            return false;
        }
        if let Err(error) = self.delete_superseded(k).await {
            debug!(queue = %self.queue, %error, "superseded checkpoints could not be deleted yet");
        }
        true
    }

    async fn delete_superseded(&self, k: u64) -> Result<(), BucketError> {
        let mut found = self.listed_checkpoints().await?;
        // One above the pointer is of a lost history and cannot be told from a newer one.
        found.retain(|(at, _)| *at <= k);
        let superseded = found.len().saturating_sub(KEPT);
        for (_, key) in found.into_iter().take(superseded) {
            self.context.bucket.delete(&key).await?;
        }
        Ok(())
    }
}
