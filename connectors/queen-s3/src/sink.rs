//! The queue set: which queues are mirrored, a task for each, and the end of all of them.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::broker::{Broker, BrokerError, Name};
use crate::config::Queues;
use crate::limits::{RELIST_INTERVALS, RELIST_MIN};
use crate::observe::sampled::Sampled;
use crate::observe::status::Status;
use crate::retry::Jitter;
use crate::time::Micros;

/// One answer of the queue list, and the `safeTime` answered before it was asked for: a queue that
/// is not in it holds no record below that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The tenant's queues.
    pub queues: Vec<Name>,
    /// The `safeTime` before.
    pub safe_time: Micros,
}

impl Listing {
    /// Asks for `safeTime`, then for the list.
    ///
    /// # Errors
    ///
    /// When one of the two calls fails.
    pub async fn ask(broker: &dyn Broker) -> Result<Self, BrokerError> {
        let safe_time = broker.changed(None).await?.safe_time;
        Self::ask_after(broker, safe_time).await
    }

    /// Asks for the list; `safe_time` was answered before.
    ///
    /// # Errors
    ///
    /// When the call fails.
    pub async fn ask_after(broker: &dyn Broker, safe_time: Micros) -> Result<Self, BrokerError> {
        let queues = broker.queues().await?.into_iter().map(Name::from).collect();
        Ok(Self { queues, safe_time })
    }
}

/// The queues to start with.
#[derive(Clone, Debug)]
pub enum FirstQueues {
    /// A list that is fixed for the life of the process.
    Named(Vec<Name>),
    /// Every queue of the tenant, listed again and again; the first list.
    All(Listing),
}

impl FirstQueues {
    /// The configured queues; `*` is listed, and `safe_time` was answered before.
    ///
    /// # Errors
    ///
    /// When the list cannot be had.
    pub async fn of(
        queues: &Queues,
        broker: &dyn Broker,
        safe_time: Micros,
    ) -> Result<Self, BrokerError> {
        Ok(match queues {
            Queues::Named(names) => Self::Named(names.clone()),
            Queues::All => Self::All(Listing::ask_after(broker, safe_time).await?),
        })
    }
}

/// How often `*` is listed: every ten discovery intervals, at most once a second.
pub fn relist_interval(discovery_interval: Duration) -> Duration {
    (discovery_interval * RELIST_INTERVALS).max(RELIST_MIN)
}

/// Runs one task per queue.
///
/// `run` is called with the queue, the `safeTime` of the last answer that did not list it (`None`
/// for a queue that was there from the start) and the stop.
pub struct QueueSet<R> {
    /// Queen, for listing.
    pub broker: Arc<dyn Broker>,
    /// Where a queue's task that panicked is shown.
    pub status: Arc<Status>,
    /// Pauses between tries.
    pub jitter: Jitter,
    /// How often `*` is listed.
    pub relist: Duration,
    /// How long a queue rests after its task panicked.
    pub rest: Duration,
    /// One queue's work, until the stop is cancelled. Where the queue is shown as stopped at its beginning,
    /// the work before it panicked, and it is the one to say that what it met is gone.
    pub run: R,
}

impl<R, F> QueueSet<R>
where
    R: Fn(Name, Option<Micros>, CancellationToken) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    /// Mirrors the queues until `stop` is cancelled, and returns when every task has drained.
    /// Queues are never removed.
    pub async fn mirror(self, first: FirstQueues, stop: CancellationToken) {
        let mut tasks = Tasks {
            set: &self,
            stop: stop.clone(),
            known: HashSet::new(),
            running: JoinSet::new(),
        };
        match first {
            FirstQueues::Named(names) => {
                names.into_iter().for_each(|name| tasks.start(name, None));
                stop.cancelled().await;
            }
            FirstQueues::All(first) => {
                first
                    .queues
                    .iter()
                    .for_each(|name| tasks.start(Arc::clone(name), None));
                if first.queues.is_empty() {
                    info!("the tenant has no queue yet; waiting for the first one");
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = self.follow(&mut tasks, first.safe_time) => {}
                }
            }
        }
        info!(
            queues = tasks.known.len(),
            "stopping: every queue finishes its window in flight"
        );
        while tasks.running.join_next().await.is_some() {}
    }

    /// Lists `*` again and again and starts what is new. `absent_since` is the `safeTime` of the
    /// last list.
    async fn follow(&self, tasks: &mut Tasks<'_, R>, mut absent_since: Micros) {
        let mut backoff = self.jitter.backoff();
        let mut failures = Sampled::default();
        let mut pause = self.relist;
        loop {
            sleep(pause).await;
            match Listing::ask(&*self.broker).await {
                Ok(listing) => {
                    if failures.success() {
                        info!("the queue list can be read again");
                    }
                    backoff.reset();
                    pause = self.relist;
                    for name in listing.queues {
                        if !tasks.known.contains(&name) {
                            info!(queue = %name, "a new queue is mirrored from its first record");
                            tasks.start(name, Some(absent_since));
                        }
                    }
                    absent_since = listing.safe_time;
                }
                Err(error) => {
                    if let Some(suppressed) = failures.failure() {
                        warn!(%error, suppressed, "the queue list cannot be read; new queues wait");
                    }
                    pause = self.relist.max(backoff.next(error.retry_after()));
                }
            }
        }
    }
}

struct Tasks<'a, R> {
    set: &'a QueueSet<R>,
    stop: CancellationToken,
    known: HashSet<Name>,
    running: JoinSet<()>,
}

impl<R, F> Tasks<'_, R>
where
    R: Fn(Name, Option<Micros>, CancellationToken) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn start(&mut self, queue: Name, absent_since: Option<Micros>) {
        if !self.known.insert(Arc::clone(&queue)) {
            return;
        }
        // Known to the metrics before its task has done anything.
        self.set.status.queue(&queue);
        let keeper = Keeper {
            status: Arc::clone(&self.set.status),
            rest: self.set.rest,
            run: self.set.run.clone(),
            queue,
            absent_since,
        };
        self.running.spawn(keeper.keep(self.stop.clone()));
    }
}

/// Keeps one queue's task running: a panic in it is a defect of this program, is shown until the queue
/// has got beyond it, and costs the queue a rest and the other queues nothing.
struct Keeper<R> {
    status: Arc<Status>,
    rest: Duration,
    run: R,
    queue: Name,
    absent_since: Option<Micros>,
}

impl<R, F> Keeper<R>
where
    R: Fn(Name, Option<Micros>, CancellationToken) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    async fn keep(self, stop: CancellationToken) {
        let queue = &self.queue;
        loop {
            let work = (self.run)(Arc::clone(queue), self.absent_since, stop.clone());
            let ended = tokio::spawn(work).await;
            match ended {
                Ok(()) if stop.is_cancelled() => return,
                Ok(()) => error!(%queue, "the queue's task ended although nothing asked it to"),
                Err(failure) => error!(%queue, %failure, "the queue's task failed"),
            }
            if stop.is_cancelled() {
                return;
            }
            self.status.queue(queue).stopped.store(true, Relaxed);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(self.rest) => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
