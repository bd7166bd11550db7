//! Gives a lake its commit pointer back: `queen-s3 adopt`.
//!
//! For a queue whose pointer is gone from the key/value store while the bucket holds its windows.
//! The newest window is checked, and a pointer to it is written where none is, under the queue's
//! lease.

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Map;
use thiserror::Error;

use crate::bucket::BucketError;
use crate::lake::documents::CommitPointer;
use crate::lake::manifest::Manifest;
use crate::limits::VERIFY_IN_FLIGHT;
use crate::ownership::{Claim, ClaimError, Documents, Lost, Owned, Owner};
use crate::verify::{Lake, Store, follows, listed_windows};

/// Why a lake was not adopted. Nothing was written.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The queue has a pointer.
    #[error(
        "the commit pointer {key} is there (window {k}, tEnd {t_end}) and is never replaced: \
         there is nothing to adopt"
    )]
    Pointer {
        /// Its key/value key.
        key: String,
        /// Its window.
        k: u64,
        /// Its end, µs.
        t_end: i64,
    },
    /// Another process owns the queue.
    #[error(
        "the queue's lease is held by {0}: stop that sink, or wait until its lease has expired \
         (QUEEN_S3_LEASE_TTL_MS), and try again"
    )]
    Held(String),
    /// The lease went to another process meanwhile.
    #[error("{0}; stop the sink that took it, and try again")]
    Lost(#[from] Lost),
    /// There is nothing to continue.
    #[error(
        "no manifest is under {directory}: there is no lake to adopt; check --queue, \
         QUEEN_S3_PREFIX and QUEEN_S3_SINK"
    )]
    NoLake {
        /// Where manifests would be.
        directory: String,
    },
    /// The end of the lake is not whole.
    #[error("{key}: {detail}; run queen-s3 verify --queue, mend the lake, and try again")]
    Damaged {
        /// The manifest or object.
        key: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The bucket could not be asked.
    #[error("cannot read the bucket: {0}")]
    Bucket(#[from] BucketError),
    /// Queen could not be asked, or holds a document that does not read.
    #[error("cannot claim the queue: {0}")]
    Claim(#[from] ClaimError),
}

impl AdoptError {
    /// Whether Queen or the bucket could not be reached, which may pass.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Bucket(_) | Self::Claim(ClaimError::Broker(_)))
    }
}

/// Points the queue of `lake` to its newest window, and answers that pointer.
///
/// `owner` claims the queue's lease for as long as this takes; its keys are those of `lake`.
///
/// # Errors
///
/// When the queue has a pointer or another owner, or when the newest window is not whole.
pub async fn adopt(store: &Store, lake: &Lake, owner: &Owner) -> Result<CommitPointer, AdoptError> {
    let Owned {
        fence, documents, ..
    } = match owner.claim(false).await? {
        Claim::Owned(owned) => *owned,
        Claim::Held(instance) => return Err(AdoptError::Held(instance)),
    };
    let adopting = async {
        if let Some(pointer) = &documents.committed {
            return Err(AdoptError::Pointer {
                key: lake.keys.committed(),
                k: pointer.k,
                t_end: pointer.t_end,
            });
        }
        let newest = newest_window(store, lake, &documents).await?;
        let pointer = CommitPointer {
            k: newest.k,
            t_end: newest.t_end,
            manifest: lake.keys.manifest(newest.k),
            records: newest.records,
            bytes: newest.bytes,
            committed_at_ms: owner.clock.wall_ms(),
            lineage: Some(newest.lineage).filter(|lineage| !lineage.is_empty()),
            other: Map::new(),
        };
        // The store refuses it where a pointer appeared since the claim.
        fence.write_committed(&pointer).await?;
        Ok(pointer)
    };
    let adopted = tokio::select! {
        biased;
        lost = fence.keep() => Err(lost.into()),
        adopted = adopting => adopted,
    };
    if !matches!(adopted, Err(AdoptError::Lost(_))) {
        fence.release().await;
    }
    adopted
}

/// The newest window's manifest, once it follows the one before it and its objects are whole.
async fn newest_window(
    store: &Store,
    lake: &Lake,
    documents: &Documents,
) -> Result<Manifest, AdoptError> {
    let windows = listed_windows(store, &lake.keys).await?;
    let Some(k) = windows.last().copied() else {
        return Err(AdoptError::NoLake {
            directory: lake.keys.manifests(),
        });
    };
    let damaged = |key: &str, detail: String| AdoptError::Damaged {
        key: key.to_owned(),
        detail,
    };
    if let Some(intent) = &documents.intent
        && intent.k > k + 1
    {
        let (key, next) = (lake.keys.manifest(k + 1), intent.k);
        let detail = format!(
            "it is not listed, though the intent of window {next} says that it was committed"
        );
        return Err(damaged(&key, detail));
    }
    let newest = manifest(store, lake, k).await?;
    if k > 1 {
        let former = manifest(store, lake, k - 1).await?;
        follows(&former, &newest).map_err(|detail| damaged(&lake.keys.manifest(k), detail))?;
    }
    if newest.t_start >= newest.t_end {
        let detail = "its tStart is not below its tEnd".to_owned();
        return Err(damaged(&lake.keys.manifest(k), detail));
    }
    stream::iter(&newest.objects)
        .map(|object| async move {
            let found = store
                .ask(|bucket| async move { bucket.head(&object.key).await })
                .await?;
            let bytes = object.bytes;
            let detail = match found {
                Some(found) if found.size == bytes => return Ok(()),
                Some(found) => format!("it has {} bytes, its manifest says {bytes}", found.size),
                None => format!("it is not there, though manifest {k} names it"),
            };
            Err(damaged(&object.key, detail))
        })
        .buffer_unordered(VERIFY_IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    Ok(newest)
}

async fn manifest(store: &Store, lake: &Lake, k: u64) -> Result<Manifest, AdoptError> {
    let key = lake.keys.manifest(k);
    let detail = match store.sidecar(&key).await? {
        Some(bytes) => match lake.manifest(k, &bytes) {
            Ok(manifest) => return Ok(manifest),
            Err(finding) => finding.text,
        },
        None => "it is not there, though it is one of the two newest manifests".to_owned(),
    };
    Err(AdoptError::Damaged { key, detail })
}
