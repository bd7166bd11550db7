//! Who owns a queue: the lease, and the fence that every write to the queue's documents passes.
//!
//! A queue is one instance's while its lease row in Queen's key/value store stands. Every write of
//! an intent or a commit pointer is one atomic batch with a compare-and-set of that row, so an
//! instance that lost it can write neither.

mod fence;

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::kv::{Expiry, KvOperation, KvResult};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tracing::info;

use crate::broker::{Broker, BrokerError, KvAnswer, Name};
use crate::clock::Clock;
use crate::lake::documents::{CommitPointer, Intent, LeaseDocument};
use crate::lake::keys::LakeKeys;
use crate::limits::KV_NAMESPACE;
use crate::observe::status::Status;
use crate::retry::Jitter;

pub use fence::{Fence, Lost};

#[cfg(test)]
mod tests;

/// Who this process is, to the other instances.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `QUEEN_S3_INSTANCE`, or a generated name.
    pub instance: String,
    /// Random, one per process.
    pub incarnation: String,
}

/// What ownership of a queue needs.
#[derive(Clone)]
pub struct Owner {
    /// Queen.
    pub broker: Arc<dyn Broker>,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub status: Arc<Status>,
    /// Pauses between tries.
    pub jitter: Jitter,
    /// The queue.
    pub queue: Name,
    /// Its keys.
    pub keys: LakeKeys,
    /// Who claims.
    pub identity: Identity,
    /// `QUEEN_S3_LEASE_TTL_MS` as the store keeps it: whole seconds, at least one.
    pub ttl: Duration,
}

/// A queue's documents as read, with their versions; 0 where there is none.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// The intent.
    pub intent: Option<Intent>,
    intent_version: i64,
    /// The commit pointer.
    pub committed: Option<CommitPointer>,
    committed_version: i64,
}

/// The outcome of a claim.
pub enum Claim {
    /// The queue is this process's; its documents as they stood.
    Owned(Box<Owned>),
    /// Another instance, of this name, holds it.
    Held(String),
}

/// A queue that was claimed.
pub struct Owned {
    /// Proof of ownership.
    pub fence: Fence,
    /// The queue's documents as they stood.
    pub documents: Documents,
    /// Whether a lease that still stood was taken over from this instance's former process.
    pub taken_over: bool,
}

/// Why a claim came to nothing.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Queen could not be asked.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A document is there that does not read; nobody but an operator may judge it.
    #[error("key/value key {key}: the document does not read ({source}); move it away or mend it")]
    Document {
        /// The key.
        key: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The answer has another shape than the request asked for.
    #[error("the key/value store answered a batch with results of another shape")]
    Shape,
}

impl Owner {
    /// The TTL that the store keeps for `configured`: rounded down to seconds, at least one.
    pub fn stored_ttl(configured: Duration) -> Duration {
        Duration::from_secs(configured.as_secs().max(1))
    }

    /// Claims the queue. `takeover`: a lease under this instance's own name but of another
    /// incarnation is its former process's and may be taken, once, at boot.
    ///
    /// # Errors
    ///
    /// When Queen does not answer, or answers what is no claim, or a document does not read.
    pub async fn claim(&self, takeover: bool) -> Result<Claim, ClaimError> {
        let sent = self.clock.boottime();
        let lease = self.lease_value();
        let claim = KvOperation::put_if_absent(
            KV_NAMESPACE,
            self.keys.lease(),
            lease.clone(),
            self.lease_expiry(),
        )
        .expect("the stored TTL is at least a second");
        let mut operations = vec![claim];
        operations.extend(self.reads());
        let answer = self.broker.kv(&operations).await?;
        let KvAnswer::Done(results) = answer else {
            return Err(ClaimError::Shape);
        };
        let [claimed, intent, committed, current] = results.as_slice() else {
            return Err(ClaimError::Shape);
        };
        let documents = self.documents(intent, committed)?;
        if claimed.applied == Some(true) {
            let version = claimed.version.ok_or(ClaimError::Shape)?;
            return Ok(self.owned(lease, version, sent, documents, false));
        }
        let held: LeaseDocument = present(current)
            .cloned()
            .map(serde_json::from_value)
            .transpose()
            .ok()
            .flatten()
            .unwrap_or_else(LeaseDocument::unreadable);
        let version = current.version.unwrap_or_default();
        if held.incarnation == self.identity.incarnation {
            // A claim of ours whose answer was lost; its sending time is unknown, so the lease
            // counts as fresh only from the next confirmed write on.
            return self.take_over(lease, version).await;
        }
        if takeover && held.instance == self.identity.instance {
            info!(
                queue = %self.queue,
                instance = %held.instance,
                "taking over the lease that this instance's former process left"
            );
            return self.take_over(lease, version).await;
        }
        Ok(Claim::Held(held.instance))
    }

    async fn take_over(&self, lease: Value, version: i64) -> Result<Claim, ClaimError> {
        let sent = self.clock.boottime();
        let put = KvOperation::put(
            KV_NAMESPACE,
            self.keys.lease(),
            lease.clone(),
            self.lease_expiry(),
        )
        .expect("the stored TTL is at least a second")
        .expect(version);
        let mut operations = vec![put];
        operations.extend(self.reads());
        let KvAnswer::Done(results) = self.broker.kv(&operations).await? else {
            return Err(ClaimError::Shape);
        };
        let [put, intent, committed, _] = results.as_slice() else {
            return Err(ClaimError::Shape);
        };
        let documents = self.documents(intent, committed)?;
        match (put.applied, put.version) {
            (Some(true), Some(version)) => Ok(self.owned(lease, version, sent, documents, true)),
            _ => Ok(Claim::Held(self.identity.instance.clone())),
        }
    }

    fn owned(
        &self,
        lease: Value,
        version: i64,
        sent: Duration,
        documents: Documents,
        taken_over: bool,
    ) -> Claim {
        let fence = Fence::new(self.clone(), lease, version, sent, &documents);
        Claim::Owned(Box::new(Owned {
            fence,
            documents,
            taken_over,
        }))
    }

    fn lease_value(&self) -> Value {
        let document = LeaseDocument {
            instance: self.identity.instance.clone(),
            incarnation: self.identity.incarnation.clone(),
            since_ms: self.clock.wall_ms(),
            other: serde_json::Map::new(),
        };
        to_value(&document)
    }

    fn lease_expiry(&self) -> Expiry {
        Expiry::seconds(i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX))
    }

    fn reads(&self) -> [KvOperation; 3] {
        [self.keys.intent(), self.keys.committed(), self.keys.lease()]
            .map(|key| KvOperation::get(KV_NAMESPACE, key))
    }

    fn documents(&self, intent: &KvResult, committed: &KvResult) -> Result<Documents, ClaimError> {
        Ok(Documents {
            intent: read(intent, || self.keys.intent())?,
            intent_version: version(intent),
            committed: read(committed, || self.keys.committed())?,
            committed_version: version(committed),
        })
    }
}

impl LeaseDocument {
    fn unreadable() -> Self {
        Self {
            instance: "(a lease document that does not read)".to_owned(),
            incarnation: String::new(),
            since_ms: 0,
            other: serde_json::Map::new(),
        }
    }
}

/// The value of a `get`, if the key is there.
fn present(result: &KvResult) -> Option<&Value> {
    match result.found {
        Some(false) => None,
        _ => result.value.as_ref(),
    }
}

fn version(result: &KvResult) -> i64 {
    present(result).and(result.version).unwrap_or_default()
}

fn read<T: DeserializeOwned>(
    result: &KvResult,
    key: impl FnOnce() -> String,
) -> Result<Option<T>, ClaimError> {
    present(result)
        .map(|value| {
            T::deserialize(value).map_err(|source| ClaimError::Document { key: key(), source })
        })
        .transpose()
}

fn to_value<T: serde::Serialize>(document: &T) -> Value {
    serde_json::to_value(document).expect("a document of strings and integers always renders")
}
