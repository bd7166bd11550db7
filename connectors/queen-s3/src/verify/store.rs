//! The bucket as a check asks it: patiently, and without writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracing::warn;

use crate::bucket::{Bucket, BucketError, BucketErrorKind, ListPage};
use crate::limits::{SIDECAR_BYTES, VERIFY_TRIES};
use crate::retry::Jitter;

/// How far a check is, for people who watch it.
#[derive(Debug, Default)]
pub struct Counters {
    /// Object bytes that came, those of tries that failed included.
    pub bytes: AtomicU64,
    /// Keys that were listed.
    pub keys: AtomicU64,
}

/// The bucket of a check.
#[derive(Clone)]
pub struct Store {
    /// The object store.
    pub bucket: Arc<dyn Bucket>,
    /// Pauses between tries.
    pub jitter: Jitter,
    /// How far it is.
    pub progress: Arc<Counters>,
}

impl Store {
    /// A check of `bucket`.
    pub fn new(bucket: Arc<dyn Bucket>, jitter: Jitter) -> Self {
        Self {
            bucket,
            jitter,
            progress: Arc::default(),
        }
    }

    /// Asks until there is an answer, [`VERIFY_TRIES`] times at most, and once when it is refused.
    pub async fn ask<'a, T, F>(
        &'a self,
        mut ask: impl FnMut(&'a dyn Bucket) -> F,
    ) -> Result<T, BucketError>
    where
        F: Future<Output = Result<T, BucketError>>,
    {
        let mut backoff = self.jitter.backoff();
        let mut tries = 1;
        loop {
            let error = match ask(&*self.bucket).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if tries == VERIFY_TRIES || is_final(&error) {
                return Err(error);
            }
            warn!(%error, "the bucket failed; trying again");
            tokio::time::sleep(backoff.next(error.retry_after())).await;
            tries += 1;
        }
    }

    /// The content of a sidecar, if it is there.
    pub async fn sidecar(&self, key: &str) -> Result<Option<Vec<u8>>, BucketError> {
        self.ask(|bucket| async move {
            match bucket.get(key).await? {
                Some(reader) => reader.bytes(SIDECAR_BYTES).await.map(Some),
                None => Ok(None),
            }
        })
        .await
    }

    /// Gives every key that starts with `prefix` to `each`, in the order of the listing.
    pub async fn list(&self, prefix: &str, mut each: impl FnMut(&str)) -> Result<(), BucketError> {
        let mut after: Option<String> = None;
        loop {
            let from = after.as_deref();
            let ListPage { keys, next } = self
                .ask(|bucket| async move { bucket.list(prefix, from).await })
                .await?;
            self.progress.keys.fetch_add(keys.len() as u64, Relaxed);
            keys.iter().for_each(|key| each(key));
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// Whether the same request will be refused again.
fn is_final(error: &BucketError) -> bool {
    match &error.kind {
        BucketErrorKind::Refused { status, .. } => {
            (400..500).contains(status) && !matches!(status, 408 | 429)
        }
        BucketErrorKind::Transport(_) | BucketErrorKind::Integrity(_) => false,
    }
}
