//! Starting a queue: the first pointer, and whether pointer and bucket tell the same story.

use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Map;
use tracing::{info, warn};
use uuid::Uuid;

use super::{End, Halt, Standing, Task, sampled};
use crate::broker::{ChangedRequest, EntryError};
use crate::bucket::{BucketError, BucketErrorKind, ObjectBody};
use crate::config::Start;
use crate::lake::documents::{CommitPointer, Intent};
use crate::lake::manifest::Manifest;
use crate::lake::{Align, Shape};
use crate::limits::{LISTED_HOURS, SIDECAR_BYTES, UNKNOWN_QUEUE_RETRY};
use crate::observe::sampled::Sampled;
use crate::ownership::{Fence, Owned};
use crate::time::Micros;
use crate::wire::excerpt;

const HOUR_US: i64 = 3_600 * Micros::PER_SECOND;

impl Task {
    /// Brings pointer and bucket to agree. Answers where the queue stands, and the intent that has
    /// to be redone, if one is open.
    pub(super) async fn establish(
        &self,
        owned: &Owned,
        absent_since: Option<Micros>,
    ) -> Result<(Standing, Option<Intent>), End> {
        let fence = &owned.fence;
        let intent = &owned.documents.intent;
        let pointer = match owned.documents.committed.clone() {
            Some(pointer) => {
                self.show(&pointer);
                // An open window is brought to its end from what the bucket has of it. Without one,
                // nothing is to be done for a queue that is gone, and the bucket need not be asked.
                let open = intent.as_ref().is_some_and(|intent| intent.k > pointer.k);
                if !open {
                    self.look().await?;
                }
                pointer
            }
            None => self.first_pointer(fence, absent_since).await?,
        };
        let last = self.manifest(pointer.k).await?;
        let mut standing = self.with_lineage(fence, pointer, last.as_ref()).await?;
        if let Some(last) = last {
            self.check_lineage(&standing, &last)?;
            standing.named = last.lost;
        }
        if let Some(theirs) = intent.as_ref().and_then(|intent| intent.lineage.clone())
            && theirs != standing.lineage
        {
            return Err(Halt::OtherLineage {
                key: self.keys.intent(),
                theirs,
                ours: standing.lineage,
            }
            .into());
        }
        self.catch_up(fence, standing, intent.as_ref()).await
    }

    /// Moves the pointer over the windows that the bucket holds beyond it, up to that of `intent`.
    /// Answers where the queue stands then, and the intent if it has to be redone.
    pub(super) async fn catch_up(
        &self,
        fence: &Fence,
        mut standing: Standing,
        intent: Option<&Intent>,
    ) -> Result<(Standing, Option<Intent>), End> {
        let mut adopted = Adopted::of(&self.queue);
        let pending = loop {
            let next = standing.pointer.k + 1;
            let open = intent.filter(|intent| intent.k == next);
            let manifest = self.manifest(next).await?;
            if let Some(manifest) = &manifest {
                self.check_lineage(&standing, manifest)?;
            }
            match (open, manifest) {
                (Some(intent), _) => break Some(intent.clone()),
                (None, Some(manifest)) => {
                    standing.pointer = self.adopt(fence, &standing, &manifest).await?;
                    adopted.window(manifest.k);
                    standing.named = manifest.lost;
                }
                (None, None) => {
                    self.check_unnamed(&standing).await?;
                    break None;
                }
            }
        };
        Ok((standing, pending))
    }

    /// Shows where the pointer stands, unless it has never moved from its start.
    pub(super) fn show(&self, pointer: &CommitPointer) {
        if pointer.k > 0 {
            let (t_end, clock) = (Micros(pointer.t_end), &*self.context.clock);
            self.status.found(t_end, pointer.committed_at_ms, clock);
        }
    }

    /// Writes the pointer of a queue that has none, before anything is read.
    async fn first_pointer(
        &self,
        fence: &Fence,
        absent_since: Option<Micros>,
    ) -> Result<CommitPointer, End> {
        let safe_time = self.look().await?;
        let prefix = self.keys.manifests();
        let listed = self
            .persist("list", || self.context.bucket.list(&prefix, None))
            .await;
        if let Some(key) = listed.keys.into_iter().next() {
            return Err(Halt::LakeWithoutPointer { key }.into());
        }
        let t_end = match self.settings().start {
            Start::Earliest => Micros::ZERO,
            Start::Latest => absent_since.unwrap_or(safe_time),
        };
        let pointer = CommitPointer {
            k: 0,
            t_end: t_end.0,
            manifest: String::new(),
            records: 0,
            bytes: 0,
            committed_at_ms: self.context.clock.wall_ms(),
            lineage: Some(Uuid::new_v4().to_string()),
            other: Map::new(),
        };
        fence.write_committed(&pointer).await?;
        info!(
            queue = %self.queue,
            start = %self.settings().start,
            from = %t_end,
            "the queue is mirrored from here on"
        );
        Ok(pointer)
    }

    /// Looks whether the queue is there, until there is an answer; its `safeTime`.
    pub(super) async fn look(&self) -> Result<Micros, End> {
        let request = ChangedRequest {
            queue: self.queue.clone(),
            since: None,
            after: None,
            limit: 1,
        };
        let _asking = self.context.status.asking();
        let mut backoff = self.context.jitter.backoff();
        let mut sampled = Sampled::default();
        loop {
            match self.changed(&request).await {
                Ok(answer) if answer.error == Some(EntryError::UnknownQueue) => {
                    return Err(End::Absent(answer.safe_time));
                }
                Ok(answer) => {
                    self.is_there();
                    return Ok(answer.safe_time);
                }
                Err(error) => {
                    if let Some(suppressed) = sampled.failure() {
                        let queue = &self.queue;
                        warn!(%queue, %error, suppressed, "discovery failed; trying again");
                    }
                    tokio::time::sleep(backoff.next(error.retry_after())).await;
                }
            }
        }
    }

    /// Looks once a minute whether a queue that was not there is back, where nothing else may tell: one
    /// that stands still then must not be taken for one that is gone. Never ends.
    pub(super) async fn look_again(&self) -> Infallible {
        while !self.status.present.load(Relaxed) {
            tokio::time::sleep(UNKNOWN_QUEUE_RETRY).await;
            // That it is still gone changes nothing.
            let _ = self.look().await;
        }
        std::future::pending().await
    }

    /// The standing of a queue whose pointer is `pointer`. Other implementations write none of a
    /// lineage: then it is that of the last manifest, or a new one.
    async fn with_lineage(
        &self,
        fence: &Fence,
        mut pointer: CommitPointer,
        last: Option<&Manifest>,
    ) -> Result<Standing, End> {
        let known = last
            .map(|manifest| manifest.lineage.clone())
            .filter(|lineage| !lineage.is_empty());
        let lineage = match (pointer.lineage.clone(), known) {
            (Some(lineage), _) => lineage,
            (None, Some(lineage)) => lineage,
            (None, None) => Uuid::new_v4().to_string(),
        };
        if pointer.lineage.is_none() {
            pointer.lineage = Some(lineage.clone());
            fence.write_committed(&pointer).await?;
        }
        Ok(Standing {
            pointer,
            lineage,
            named: Vec::new(),
        })
    }

    /// Whether `manifest` is of this lake.
    fn check_lineage(&self, standing: &Standing, manifest: &Manifest) -> Result<(), End> {
        if manifest.lineage.is_empty() || manifest.lineage == standing.lineage {
            return Ok(());
        }
        Err(Halt::OtherLineage {
            key: self.keys.manifest(manifest.k),
            theirs: manifest.lineage.clone(),
            ours: standing.lineage.clone(),
        }
        .into())
    }

    /// The manifest of window `k`, if it is there.
    pub(super) async fn manifest(&self, k: u64) -> Result<Option<Manifest>, End> {
        if k == 0 {
            return Ok(None);
        }
        let key = self.keys.manifest(k);
        let Some(bytes) = self.persist("get", || self.read_sidecar(&key)).await else {
            return Ok(None);
        };
        match serde_json::from_slice(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => Err(Halt::BadManifest {
                key,
                detail: excerpt(&error.to_string(), &[]),
            }
            .into()),
        }
    }

    async fn read_sidecar(&self, key: &str) -> Result<Option<Vec<u8>>, BucketError> {
        match self.context.bucket.get(key).await? {
            Some(reader) => reader.bytes(SIDECAR_BYTES).await.map(Some),
            None => Ok(None),
        }
    }

    /// The key/value store is older than the lake: moves the pointer over a window that is whole.
    async fn adopt(
        &self,
        fence: &Fence,
        standing: &Standing,
        manifest: &Manifest,
    ) -> Result<CommitPointer, End> {
        let key = self.keys.manifest(manifest.k);
        let end = standing.pointer.t_end;
        let follows = manifest.k == standing.pointer.k + 1
            && manifest.prev_t_end >= end
            && manifest.t_start >= manifest.prev_t_end
            && manifest.t_end > manifest.t_start;
        if !follows || manifest.lineage != standing.lineage {
            let detail = format!(
                "it does not follow the pointer, which ends at {}",
                Micros(end)
            );
            return Err(Halt::BadManifest { key, detail }.into());
        }
        for object in &manifest.objects {
            let found = self
                .persist("head", || self.context.bucket.head(&object.key))
                .await;
            if found.map(|info| info.size) != Some(object.bytes) {
                let detail = format!("it names {}, which is not there whole", object.key);
                return Err(Halt::BadManifest { key, detail }.into());
            }
        }
        let pointer = self.pointer_after(standing, manifest);
        fence.write_committed(&pointer).await?;
        self.show(&pointer);
        Ok(pointer)
    }

    /// The pointer that commits `manifest`'s window.
    pub(super) fn pointer_after(&self, standing: &Standing, manifest: &Manifest) -> CommitPointer {
        CommitPointer {
            k: manifest.k,
            t_end: manifest.t_end,
            manifest: self.keys.manifest(manifest.k),
            records: manifest.records,
            bytes: manifest.bytes,
            committed_at_ms: self.context.clock.wall_ms(),
            lineage: Some(standing.lineage.clone()),
            other: standing.pointer.other.clone(),
        }
    }

    /// Objects of the next window that no intent names would be taken for its own by a reader.
    async fn check_unnamed(&self, standing: &Standing) -> Result<(), End> {
        let k = standing.pointer.k + 1;
        let from = Micros(standing.pointer.t_end);
        let wall = Micros(
            self.context
                .clock
                .wall_ms()
                .saturating_mul(Micros::PER_MILLI),
        );
        // The clocks of sink and broker may differ by less than an hour.
        let to = Align::Hour.bucket_end(wall.max(from)).on(HOUR_US);
        let hours = to.0.saturating_sub(from.0) / HOUR_US;
        let prefixes = if hours <= LISTED_HOURS {
            self.directories(k, from, to)
        } else {
            vec![self.keys.data_prefix()]
        };
        for prefix in prefixes {
            let mut after = None;
            loop {
                let list = || self.context.bucket.list(&prefix, after.as_deref());
                let page = self.persist("list", list).await;
                if let Some(key) = page.keys.iter().find(|key| self.keys.is_window(key, k)) {
                    let key = key.clone();
                    return Err(Halt::UnnamedObject { key, k }.into());
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What data keys of window `k` can start with when it starts in `[from, to)`, whatever the
    /// alignment was when it was written.
    fn directories(&self, k: u64, from: Micros, to: Micros) -> Vec<String> {
        let mut prefixes = Vec::new();
        for align in [Align::Hour, Align::Day] {
            let shape = Shape {
                align,
                ..self.settings().shape
            };
            let mut at = from;
            while at < to {
                prefixes.push(self.keys.window_prefix(k, at, shape));
                at = align.bucket_end(at);
            }
        }
        prefixes
    }

    /// Uploads an object in one request, tried until it is there.
    pub(super) async fn put(&self, fence: &Fence, key: &str, body: ObjectBody) {
        self.persist("put", || async {
            let put = fence
                .guard(self.context.bucket.put(key, body.clone()))
                .await;
            put.unwrap_or_else(|| Err(overdue("put", key)))
        })
        .await;
    }

    /// Asks the bucket until it answers.
    pub(super) async fn persist<T, F>(&self, what: &'static str, mut ask: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, BucketError>>,
    {
        let mut backoff = self.context.jitter.backoff();
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(error) => {
                    if let Some(suppressed) = sampled(&self.bucket_log) {
                        let queue = &self.queue;
                        warn!(%queue, what, %error, suppressed, "the bucket failed; trying again");
                    }
                    tokio::time::sleep(backoff.next(error.retry_after())).await;
                }
            }
        }
    }
}

/// The windows that a pointer is moved over, told when there are no more: in one line, also when
/// that ends half way.
struct Adopted<'a> {
    queue: &'a str,
    windows: Option<(u64, u64)>,
}

impl<'a> Adopted<'a> {
    fn of(queue: &'a str) -> Self {
        Self {
            queue,
            windows: None,
        }
    }

    fn window(&mut self, k: u64) {
        let (first, _) = self.windows.unwrap_or((k, k));
        self.windows = Some((first, k));
    }
}

impl Drop for Adopted<'_> {
    fn drop(&mut self) {
        let Some((first, last)) = self.windows else {
            return;
        };
        warn!(
            queue = %self.queue,
            windows = last - first + 1,
            first,
            last,
            "the key/value store is older than the lake (restored or failed over): the pointer \
             moves over windows that the bucket already holds"
        );
    }
}

/// A write that was dropped because the lease could not be refreshed in time.
pub(super) fn overdue(operation: &'static str, key: &str) -> BucketError {
    BucketError {
        operation,
        key: key.to_owned(),
        kind: BucketErrorKind::Transport(
            "dropped, because the queue's lease could not be refreshed in time".to_owned(),
        ),
    }
}
