//! The fence: every lease, intent and pointer write of one owner, one at a time.

use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use queen_protocol::kv::{Expiry, KvOperation};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{Mutex, Notify};
use tracing::{debug, warn};

use super::{Documents, Owner, present, to_value, version};
use crate::broker::{BrokerError, BrokerErrorKind, KvAnswer};
use crate::lake::documents::{CommitPointer, Intent, LeaseDocument};
use crate::limits::{KV_NAMESPACE, LEASE_CALL_LEAST, OVERDUE_LOOK};
use crate::observe::sampled::Sampled;
use crate::retry::Backoff;

/// The queue is no longer this process's: every work on it ends at once.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Lost {
    /// Another instance holds the lease, or wrote a document under it.
    #[error("the queue's lease was lost to {0}")]
    To(String),
    /// The lease expired before it could be refreshed; nobody holds it.
    #[error("the queue's lease expired before it could be refreshed")]
    Expired,
}

/// Proof of ownership, for as long as it lasts.
pub struct Fence {
    owner: Owner,
    lease: Value,
    /// One lease write is in flight at a time.
    state: Mutex<State>,
    /// Sending time of the last lease write that is known to have happened.
    confirmed: StdMutex<Duration>,
    refreshed: Notify,
    /// Failed calls, of which not each is worth a line.
    failures: StdMutex<Sampled>,
}

struct State {
    lease: i64,
    intent: i64,
    committed: i64,
    /// Sending time of the first lease write whose outcome is unknown.
    unresolved: Option<Duration>,
    /// Greatest window of an intent that may have been written.
    intended: Option<u64>,
    /// Window of the commit pointer.
    pointed: Option<u64>,
}

/// A document that a fenced batch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Document {
    Intent,
    Committed,
}

impl State {
    fn version_of(&mut self, document: Document) -> &mut i64 {
        match document {
            Document::Intent => &mut self.intent,
            Document::Committed => &mut self.committed,
        }
    }

    /// Whether no intent waits for its window.
    fn is_settled(&self) -> bool {
        self.intended <= self.pointed
    }

    /// Notes that `document` is written, with version `version`.
    fn written(&mut self, document: Document, version: i64, value: &Value) {
        *self.version_of(document) = version;
        if document == Document::Committed {
            self.pointed = window_of(value);
        }
    }
}

/// The window that a document names.
fn window_of(document: &Value) -> Option<u64> {
    document.get("k").and_then(Value::as_u64)
}

/// What one batch came to, by its answer.
enum Attempt {
    Written,
    RolledBack,
    /// No answer, or one that does not tell; how long the broker asked to wait.
    Untold(Option<Duration>),
}

/// What the store shows after a batch that was not plainly carried out.
enum Verdict {
    Happened,
    Retry,
    Lost(Lost),
}

impl Fence {
    pub(super) fn new(
        owner: Owner,
        lease: Value,
        version: i64,
        sent: Duration,
        documents: &Documents,
    ) -> Self {
        Self {
            owner,
            lease,
            state: Mutex::new(State {
                lease: version,
                intent: documents.intent_version,
                committed: documents.committed_version,
                unresolved: None,
                intended: documents.intent.as_ref().map(|intent| intent.k),
                pointed: documents.committed.as_ref().map(|pointer| pointer.k),
            }),
            confirmed: StdMutex::new(sent),
            refreshed: Notify::new(),
            failures: StdMutex::default(),
        }
    }

    /// Writes the intent. Tries until it is durable or the queue is lost.
    pub async fn write_intent(&self, intent: &Intent) -> Result<(), Lost> {
        self.write(Some((Document::Intent, to_value(intent)))).await
    }

    /// Moves the commit pointer. Tries until it is durable or the queue is lost.
    pub async fn write_committed(&self, pointer: &CommitPointer) -> Result<(), Lost> {
        self.write(Some((Document::Committed, to_value(pointer))))
            .await
    }

    /// Refreshes the lease for ever; ends when it is lost.
    pub async fn keep(&self) -> Lost {
        let every = self.owner.ttl / 3;
        loop {
            // A document write refreshes it as well: counted from the last one, two more tries
            // have time before it expires.
            let age = self.owner.clock.boottime().saturating_sub(self.confirmed());
            let left = every.saturating_sub(age);
            if !left.is_zero() {
                tokio::time::sleep(left).await;
                continue;
            }
            if let Err(lost) = self.write(None).await {
                return lost;
            }
        }
    }

    /// Carries out a write that makes something visible in the bucket. It begins only while no
    /// other instance can hold the lease, and is dropped unfinished, `None`, before another
    /// instance that took the lease over may begin its own.
    pub async fn guard<T>(&self, write: impl Future<Output = T>) -> Option<T> {
        loop {
            let refreshed = self.refreshed.notified();
            if !self.left(self.owner.ttl).is_zero() {
                break;
            }
            refreshed.await;
        }
        tokio::select! {
            biased;
            () = self.overdue() => None,
            written = write => Some(written),
        }
    }

    /// Ends when whoever claimed the queue after this owner's lease may write.
    async fn overdue(&self) {
        loop {
            // Its lease ends one TTL after its last write, and a redo waits for one more.
            let left = self.left(self.owner.ttl * 2);
            if left.is_zero() {
                return;
            }
            // The timer may stand still while the machine is suspended; the clock does not.
            tokio::time::sleep(left.min(OVERDUE_LOOK)).await;
        }
    }

    /// What is left of `span` since the last confirmed lease write, less a margin.
    fn left(&self, span: Duration) -> Duration {
        let margin = Duration::from_secs(1).min(self.owner.ttl / 2);
        (self.confirmed() + span - margin).saturating_sub(self.owner.clock.boottime())
    }

    /// Gives the lease back, so that another instance need not wait for it to expire. Best effort:
    /// it expires anyway.
    pub async fn release(&self) {
        let state = self.state.lock().await;
        let delete = KvOperation::delete(KV_NAMESPACE, self.owner.keys.lease()).expect(state.lease);
        if let Err(error) = self.owner.broker.kv(&[delete]).await {
            let queue = &self.owner.queue;
            debug!(%queue, %error, "the lease could not be given back and will expire");
        }
    }

    fn confirmed(&self) -> Duration {
        *self
            .confirmed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn confirm(&self, sent: Duration) {
        let mut confirmed = self
            .confirmed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *confirmed = (*confirmed).max(sent);
        drop(confirmed);
        self.refreshed.notify_waiters();
    }

    /// Writes the lease row and the document, if any, until both are durable or the queue is lost.
    async fn write(&self, document: Option<(Document, Value)>) -> Result<(), Lost> {
        let mut state = self.state.lock().await;
        let document = document.as_ref();
        let mut backoff = self.owner.jitter.backoff();
        loop {
            let rolled_back = match self.attempt(&mut state, document).await {
                Attempt::Written => return Ok(()),
                Attempt::RolledBack => true,
                Attempt::Untold(asked) => {
                    tokio::time::sleep(self.pause(&mut backoff, asked)).await;
                    false
                }
            };
            match self.verdict(&mut state, document, &mut backoff).await {
                Verdict::Happened => return Ok(()),
                // A write whose answer was lost landed in between; its version is known now.
                Verdict::Retry if rolled_back => {
                    tokio::time::sleep(self.pause(&mut backoff, None)).await;
                }
                Verdict::Retry => {}
                Verdict::Lost(lost) => {
                    if lost != Lost::Expired {
                        self.owner.status.preconditions_lost.fetch_add(1, Relaxed);
                    }
                    return Err(lost);
                }
            }
        }
    }

    /// One fenced batch: the lease row at the version written last, then the document, if any, at
    /// the version read.
    async fn attempt(&self, state: &mut State, document: Option<&(Document, Value)>) -> Attempt {
        let intended = match document {
            Some((Document::Intent, value)) => window_of(value),
            _ => None,
        };
        let sent = self.owner.clock.boottime();
        let operations = self.operations(state, document);
        match self.call(&operations).await {
            Ok(KvAnswer::Done(results)) => {
                state.intended = state.intended.max(intended);
                let versions: Vec<i64> = results
                    .iter()
                    .filter(|result| result.applied != Some(false))
                    .filter_map(|result| result.version)
                    .collect();
                if versions.len() != operations.len() {
                    // No broker should answer so; one that does is not asked without end.
                    state.unresolved.get_or_insert(sent);
                    return Attempt::Untold(None);
                }
                state.lease = versions[0];
                if let Some((document, value)) = document {
                    state.written(*document, versions[1], value);
                }
                state.unresolved = None;
                self.confirm(sent);
                Attempt::Written
            }
            Ok(KvAnswer::RolledBack(_)) => Attempt::RolledBack,
            Err(error) => {
                if error.outcome_unknown() {
                    state.unresolved.get_or_insert(sent);
                    state.intended = state.intended.max(intended);
                }
                self.report(&error);
                Attempt::Untold(error.retry_after())
            }
        }
    }

    fn operations(
        &self,
        state: &mut State,
        document: Option<&(Document, Value)>,
    ) -> Vec<KvOperation> {
        let lease = KvOperation::put(
            KV_NAMESPACE,
            self.owner.keys.lease(),
            self.lease.clone(),
            self.owner.lease_expiry(),
        )
        .expect("the stored TTL is at least a second")
        .expect(state.lease)
        .required();
        let mut operations = vec![lease];
        if let Some((document, value)) = document {
            let put = KvOperation::put(
                KV_NAMESPACE,
                self.key(*document),
                value.clone(),
                Expiry::Forever,
            )
            .expect("forever is a valid expiry")
            .expect(*state.version_of(*document))
            .required();
            operations.push(put);
        }
        operations
    }

    fn key(&self, document: Document) -> String {
        match document {
            Document::Intent => self.owner.keys.intent(),
            Document::Committed => self.owner.keys.committed(),
        }
    }

    /// What the documents show, once the lease is there or the queue is lost.
    async fn verdict(
        &self,
        state: &mut State,
        wanted: Option<&(Document, Value)>,
        backoff: &mut Backoff,
    ) -> Verdict {
        loop {
            if let Some(verdict) = self.judge(state, wanted).await {
                return verdict;
            }
            tokio::time::sleep(self.pause(backoff, None)).await;
        }
    }

    /// Reads the three documents until they can be read, and judges by them; `None` when the lease
    /// was not there and they have to be read once more.
    async fn judge(
        &self,
        state: &mut State,
        wanted: Option<&(Document, Value)>,
    ) -> Option<Verdict> {
        let mut backoff = self.owner.jitter.backoff();
        let results = loop {
            match self.call(&self.owner.reads()).await {
                Ok(KvAnswer::Done(results)) if results.len() == 3 => break results,
                Ok(_) => tokio::time::sleep(self.pause(&mut backoff, None)).await,
                Err(error) => {
                    self.report(&error);
                    tokio::time::sleep(self.pause(&mut backoff, error.retry_after())).await;
                }
            }
        };
        let [intent, committed, lease] = [&results[0], &results[1], &results[2]];
        let Some(held) = present(lease) else {
            return self.renew(state).await.err().map(Verdict::Lost);
        };
        let held: Option<LeaseDocument> = serde_json::from_value(held.clone()).ok();
        match held {
            Some(held) if held.incarnation == self.owner.identity.incarnation => {}
            Some(held) => return Some(Verdict::Lost(Lost::To(held.instance))),
            None => {
                return Some(Verdict::Lost(Lost::To(
                    "an unreadable lease document".to_owned(),
                )));
            }
        }
        let lease_version = version(lease);
        if lease_version != state.lease {
            state.lease = lease_version;
            // Any of the unresolved writes may be the one that landed; the first is the safe one.
            if let Some(sent) = state.unresolved {
                self.confirm(sent);
            }
        }
        // The lease may have been absent meanwhile: then another owner may have come and gone.
        for (document, found) in [(Document::Intent, intent), (Document::Committed, committed)] {
            if version(found) == *state.version_of(document) {
                continue;
            }
            match wanted {
                Some((wanted, value)) if *wanted == document && present(found) == Some(value) => {
                    state.written(document, version(found), value);
                    state.unresolved = None;
                    return Some(Verdict::Happened);
                }
                _ => {
                    let writer = format!("a writer of {}", self.key(document));
                    return Some(Verdict::Lost(Lost::To(writer)));
                }
            }
        }
        Some(Verdict::Retry)
    }

    /// The lease row is not there: it expired, or was deleted by hand. Creates it again where
    /// nobody can have done anything meanwhile that the documents do not show.
    async fn renew(&self, state: &mut State) -> Result<(), Lost> {
        if !state.is_settled() {
            // Whoever held the lease meanwhile may still be putting the intent's objects.
            return Err(Lost::Expired);
        }
        let sent = self.owner.clock.boottime();
        let lease = KvOperation::put(
            KV_NAMESPACE,
            self.owner.keys.lease(),
            self.lease.clone(),
            self.owner.lease_expiry(),
        )
        .expect("the stored TTL is at least a second")
        .expect(0)
        .required();
        match self.call(&[lease]).await {
            Ok(KvAnswer::Done(results)) => {
                if let [lease] = results.as_slice()
                    && let (Some(true), Some(version)) = (lease.applied, lease.version)
                {
                    warn!(
                        queue = %self.owner.queue,
                        "the lease was gone (expired, or deleted by hand) and is held again"
                    );
                    state.lease = version;
                    state.unresolved = None;
                    self.confirm(sent);
                } else {
                    state.unresolved.get_or_insert(sent);
                }
            }
            Ok(KvAnswer::RolledBack(_)) => {}
            Err(error) => {
                if error.outcome_unknown() {
                    state.unresolved.get_or_insert(sent);
                }
                self.report(&error);
            }
        }
        Ok(())
    }

    /// One key/value call. It may not take so long that the lease ends meanwhile, because another
    /// try may go through.
    async fn call(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        let patience = (self.owner.ttl / 3).max(LEASE_CALL_LEAST);
        match tokio::time::timeout(patience, self.owner.broker.kv(operations)).await {
            Ok(answer) => answer,
            Err(_) => Err(BrokerError {
                operation: "POST /api/v1/kv",
                url: "Queen".to_owned(),
                kind: BrokerErrorKind::Transport(format!("no answer within {patience:?}")),
            }),
        }
    }

    /// The pause before another try.
    fn pause(&self, backoff: &mut Backoff, asked: Option<Duration>) -> Duration {
        paused(backoff.next(None), asked, self.owner.ttl)
    }

    fn report(&self, error: &BrokerError) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // A store that answers reads and refuses writes goes on failing: no answer ends the quiet.
        if let Some(suppressed) = failures.failure() {
            warn!(
                queue = %self.owner.queue,
                lease = self.owner.keys.lease(),
                %error,
                suppressed,
                "the lease or a commit document could not be written; trying again"
            );
        }
    }
}

/// A pause that is short against the lease's `ttl`: a little longer where the broker asked for more, and never
/// so long that the lease ends meanwhile.
fn paused(pause: Duration, asked: Option<Duration>, ttl: Duration) -> Duration {
    let asked = asked.unwrap_or_default();
    pause.min(ttl / 6).max(asked.min(ttl / 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pause_outlasts_the_lease_whatever_the_broker_asks_for() {
        let seconds = Duration::from_secs;
        let ttl = seconds(30);
        for (pause, asked, expected) in [
            (seconds(1), None, seconds(1)),
            (seconds(60), None, seconds(5)),
            (seconds(1), Some(seconds(7)), seconds(7)),
            (seconds(1), Some(seconds(600)), seconds(10)),
        ] {
            assert_eq!(paused(pause, asked, ttl), expected, "{asked:?}");
        }
    }
}
