//! One queue's task: claims the queue, brings an interrupted window to its end, then reads,
//! closes and commits windows until it is told to stop or loses the queue.
//!
//! [`start`] compares pointer and bucket, [`redo`] repeats an interrupted window, [`session`] is
//! the running loop, [`commit`], [`writer`] and [`object`] write one window in its [`turn`], [`matching`] and
//! [`doubtful`] find what a redo must leave as it is, [`log_stream`] reads the log in name order for
//! what does not fit in memory, [`checkpoints`] keeps positions in the bucket, [`absence`] tells when a
//! queue is gone.

mod absence;
mod checkpoints;
mod commit;
mod doubtful;
mod log_stream;
mod matching;
mod object;
mod redo;
mod session;
mod start;
mod survey;
mod turn;
mod writer;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::broker::{Broker, Name};
use crate::bucket::Bucket;
use crate::clock::Clock;
use crate::compute::Compute;
use crate::config::{CrashPoint, Start};
use crate::lake::Shape;
use crate::lake::documents::CommitPointer;
use crate::lake::keys::LakeKeys;
use crate::lake::manifest::OffsetRange;
use crate::limits::{FULL_PASS_EVERY, UNKNOWN_QUEUE_RETRY};
use crate::memory::MemoryBudget;
use crate::observe::sampled::{Repeated, Sampled};
use crate::observe::status::{QueueStatus, Status};
use crate::ownership::{Claim, ClaimError, Identity, Lost, Owned, Owner};
use crate::retry::Jitter;
use crate::time::Micros;
use crate::window::{Left, Remembered};

/// What every queue's task shares.
pub struct Context {
    /// Queen.
    pub broker: Arc<dyn Broker>,
    /// The object store.
    pub bucket: Arc<dyn Bucket>,
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// The buffer budget across queues.
    pub budget: Arc<MemoryBudget>,
    /// What `/metrics` and `/healthz` show.
    pub status: Arc<Status>,
    /// Pauses between tries.
    pub jitter: Jitter,
    /// Who this process is.
    pub identity: Identity,
    /// Where long computations run.
    pub compute: Compute,
    /// The configuration.
    pub settings: Settings,
}

/// The part of the configuration that a queue's task needs; bounds and defaults are those of the
/// variables.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `QUEEN_S3_PREFIX`.
    pub prefix: String,
    /// `QUEEN_S3_SINK`.
    pub sink: String,
    /// How new windows' objects are made.
    pub shape: Shape,
    /// Where a queue without a pointer starts.
    pub start: Start,
    /// Record bytes at which a window closes.
    pub target_bytes: u64,
    /// Age at which a window closes.
    pub max_window: Duration,
    /// Windows between position checkpoints.
    pub checkpoint_every: u64,
    /// Fetch calls in flight per queue.
    pub fetch_concurrency: usize,
    /// How often an idle queue asks which partitions moved.
    pub discovery_interval: Duration,
    /// What is taken off `safeTime` before a window may close.
    pub safe_guard: Duration,
    /// How long a lease lives without a refresh.
    pub lease_ttl: Duration,
    /// Greatest size of an object that goes up in one PUT.
    pub multipart_threshold_bytes: u64,
    /// Length of a part of a larger one; no variable sets it, [`PART_BYTES`](crate::limits::PART_BYTES)
    /// is what stores take.
    pub part_bytes: usize,
    /// Where the process aborts itself.
    pub crash_at: CrashPoint,
}

impl Context {
    /// Aborts the process, as a kill would, when it is configured to at this point.
    fn crash_point(&self, point: CrashPoint) {
        if self.settings.crash_at == point {
            error!(crash_at = %point, "aborting at the configured crash point");
            std::process::abort();
        }
    }
}

/// One queue as its task knows it.
struct Task {
    context: Arc<Context>,
    queue: Name,
    keys: LakeKeys,
    status: Arc<QueueStatus>,
    /// Multipart uploads begun and not completed: key and upload id.
    uploads: Mutex<Vec<(String, String)>>,
    /// When every partition is listed next.
    next_full_pass: Mutex<Instant>,
    /// Failures of the bucket, of fetch calls while a window is redone, and of uploads that cannot be completed.
    bucket_log: Mutex<Sampled>,
    fetch_log: Mutex<Sampled>,
    complete_log: Mutex<Sampled>,
    /// Windows with lost records, of which not each is worth a line.
    loss_log: Mutex<Sampled>,
    /// What stopped the queue, each time that it did.
    stop_log: Mutex<Repeated>,
    /// Whether the task before this one panicked. It may have done so at a window, and then this one
    /// will, too: what it met is gone once a window is committed.
    panicked: AtomicBool,
}

/// Counts a failure; `Some` when it is worth a line, as [`Sampled::failure`] says.
fn sampled(log: &Mutex<Sampled>) -> Option<u64> {
    log.lock().unwrap_or_else(PoisonError::into_inner).failure()
}

impl Task {
    fn settings(&self) -> &Settings {
        &self.context.settings
    }
}

/// Where a queue stands between two windows.
#[derive(Clone, Debug)]
struct Standing {
    pointer: CommitPointer,
    lineage: String,
    /// Ranges that the last window's manifest names as lost.
    named: Vec<OffsetRange>,
}

/// Why work on a queue came to an end.
#[derive(Debug)]
enum End {
    /// The process stops; everything worth it was finished.
    Drained,
    /// The queue is another instance's.
    Lost(Lost),
    /// The queue is not there; the `safeTime` of the answer that said so.
    Absent(Micros),
    /// Nothing can be done until an operator looks.
    Halted(Halt),
}

impl From<Lost> for End {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}

/// What stops a queue until an operator has looked.
#[derive(Debug, Error)]
enum Halt {
    #[error(
        "{key} belongs to another lake (lineage {theirs}, ours is {ours}): two sinks write to \
         the same prefix; give one of them another QUEEN_S3_SINK or QUEEN_S3_PREFIX"
    )]
    OtherLineage {
        key: String,
        theirs: String,
        ours: String,
    },
    #[error(
        "{key} is there, but no intent names window {k}: the key/value store is older than the \
         lake (restored or failed over); move the object away, or restore the newer documents"
    )]
    UnnamedObject { key: String, k: u64 },
    #[error(
        "the lake holds manifests ({key}) but the key/value store has no commit pointer: run \
         `queen-s3 adopt` to continue this lake, or choose another QUEEN_S3_SINK"
    )]
    LakeWithoutPointer { key: String },
    #[error(
        "{key} is there with other content than window {k} has: {detail}; keep a copy of it and \
         move it away, and the window is written anew"
    )]
    ObjectDiffers { key: String, k: u64, detail: String },
    #[error(
        "{key} cannot be used as a manifest: {detail}; put it and its objects back as they were \
         written"
    )]
    BadManifest { key: String, detail: String },
    #[error("{0}")]
    Documents(#[from] ClaimError),
    #[error("a window could not be encoded: {0}")]
    Encode(#[from] crate::encode::EncodeError),
}

/// Mirrors `queue` until `stop` is cancelled. Never fails: what goes wrong is logged, shown by
/// status and tried again.
///
/// `absent_since`: the `safeTime` of an answer in which this process saw that the queue was not
/// there, so that a queue made later is mirrored from its first record.
pub async fn run(
    context: Arc<Context>,
    queue: Name,
    absent_since: Option<Micros>,
    stop: CancellationToken,
) {
    let settings = &context.settings;
    let keys = LakeKeys::new(&settings.prefix, &settings.sink, &queue);
    let status = context.status.queue(&queue);
    let task = Task {
        panicked: AtomicBool::new(status.stopped.load(Relaxed)),
        status,
        context: Arc::clone(&context),
        queue,
        keys,
        uploads: Mutex::default(),
        next_full_pass: Mutex::new(Instant::now() + FULL_PASS_EVERY),
        bucket_log: Mutex::default(),
        fetch_log: Mutex::default(),
        complete_log: Mutex::default(),
        loss_log: Mutex::default(),
        stop_log: Mutex::default(),
    };
    task.run(absent_since, &stop).await;
}

impl Task {
    async fn run(&self, mut absent_since: Option<Micros>, stop: &CancellationToken) {
        let owner = self.owner();
        let mut takeover = true;
        let mut was_held = false;
        // A queue that is stopped or not there is claimed again and again.
        let mut was_ours = self.panicked.load(Relaxed);
        while !stop.is_cancelled() {
            let claimed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                claimed = self.claim(&owner, takeover) => claimed,
            };
            let (pause, end) = match claimed {
                Ok(Claim::Owned(owned)) => {
                    takeover = false;
                    was_held = false;
                    self.status.owned.store(true, Relaxed);
                    if !was_ours {
                        info!(queue = %self.queue, "queue claimed");
                    }
                    let end = self.owned(&owned, absent_since, stop).await;
                    self.abort_uploads().await;
                    was_ours = !matches!(end, End::Lost(_));
                    if was_ours {
                        owned.fence.release().await;
                    }
                    (owner.ttl, end)
                }
                Ok(Claim::Held(instance)) => {
                    takeover = false;
                    was_ours = false;
                    self.status.owned.store(false, Relaxed);
                    // Whether it is stopped is the other instance's to show.
                    self.status.stopped.store(false, Relaxed);
                    if !std::mem::replace(&mut was_held, true) {
                        info!(queue = %self.queue, %instance, "queue is held by another instance");
                    }
                    if !self.status.present.load(Relaxed) {
                        tokio::select! {
                            biased;
                            () = stop.cancelled() => return,
                            // Nothing of this process sees whether it is back.
                            _ = self.look() => {}
                        }
                    }
                    self.pause(owner.ttl, stop).await;
                    continue;
                }
                Err(error) => (owner.ttl, End::Halted(Halt::Documents(error))),
            };
            let pause = self.ended(end, pause, &mut absent_since);
            self.pause(pause, stop).await;
        }
    }

    /// Gives up the multipart uploads that the work left open. Best effort: a lifecycle rule of the
    /// bucket collects what stays.
    async fn abort_uploads(&self) {
        let next = || self.open_uploads().first().cloned();
        while let Some((key, upload_id)) = next() {
            if let Err(error) = self.context.bucket.abort_multipart(&key, &upload_id).await {
                debug!(queue = %self.queue, %error, "a multipart upload could not be given up");
            }
            // Who drops this before the answer leaves it to be asked again.
            self.closed(&upload_id);
        }
    }

    /// Notes that there is nothing left to give up of an upload.
    fn closed(&self, upload_id: &str) {
        self.open_uploads().retain(|(_, open)| open != upload_id);
    }

    fn open_uploads(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how the work ended, and answers how long to wait before it begins again.
    fn ended(&self, end: End, ttl: Duration, absent_since: &mut Option<Micros>) -> Duration {
        let queue = &self.queue;
        self.status.buffered.store(0, Relaxed);
        self.status.writing.store(0, Relaxed);
        match end {
            End::Drained => Duration::ZERO,
            End::Lost(Lost::Expired) => {
                warn!(%queue, "the lease expired before it could be refreshed; claiming it again");
                Duration::ZERO
            }
            End::Lost(lost) => {
                self.status.owned.store(false, Relaxed);
                warn!(%queue, %lost, "work on the queue ends; looking again after the lease's TTL");
                ttl
            }
            End::Absent(safe_time) => {
                if self.status.present.swap(false, Relaxed) {
                    warn!(
                        %queue,
                        "the queue does not exist (deleted, not yet made, or misspelled in \
                         QUEEN_S3_QUEUES); it is looked for once a minute"
                    );
                }
                self.status.stopped.store(false, Relaxed);
                *absent_since = Some(safe_time);
                UNKNOWN_QUEUE_RETRY
            }
            End::Halted(halt) => {
                let error = halt.to_string();
                let mut log = self.stop_log.lock().unwrap_or_else(PoisonError::into_inner);
                if !self.status.stopped.swap(true, Relaxed) {
                    log.reset();
                }
                if let Some(suppressed) = log.failure(&error) {
                    error!(%queue, error, suppressed, "the queue is stopped and looked at again later");
                }
                ttl
            }
        }
    }

    /// Whether the queue was stopped or not there when it was last worked on: what is done again
    /// and again until that ends is not worth a line each time.
    fn is_repeating(&self) -> bool {
        self.status.stopped.load(Relaxed) || !self.status.present.load(Relaxed)
    }

    /// Notes that the broker says that the queue is there.
    fn is_there(&self) {
        if !self.status.present.swap(true, Relaxed) {
            info!(queue = %self.queue, "the queue is there now");
        }
    }

    /// Notes that nothing stops the queue any more.
    fn goes_on(&self) {
        self.panicked.store(false, Relaxed);
        if self.status.stopped.swap(false, Relaxed) {
            info!(queue = %self.queue, "what stopped the queue is gone; it goes on");
        }
    }

    async fn pause(&self, pause: Duration, stop: &CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Claims, trying again while Queen cannot be asked.
    async fn claim(&self, owner: &Owner, takeover: bool) -> Result<Claim, ClaimError> {
        let mut backoff = self.context.jitter.backoff();
        let mut sampled = Sampled::default();
        let mut waiting = None;
        loop {
            let error = match owner.claim(takeover).await {
                Err(ClaimError::Broker(error)) => error,
                other => return other,
            };
            // An answer alone may say that there is nothing to ask for.
            waiting.get_or_insert_with(|| self.context.status.asking());
            if let Some(suppressed) = sampled.failure() {
                let queue = &self.queue;
                warn!(%queue, %error, suppressed, "the queue could not be claimed; trying again");
            }
            tokio::time::sleep(backoff.next(error.retry_after())).await;
        }
    }

    fn owner(&self) -> Owner {
        let context = &self.context;
        Owner {
            broker: Arc::clone(&context.broker),
            clock: Arc::clone(&context.clock),
            status: Arc::clone(&context.status),
            jitter: context.jitter.clone(),
            queue: self.queue.clone(),
            keys: self.keys.clone(),
            identity: context.identity.clone(),
            ttl: Owner::stored_ttl(context.settings.lease_ttl),
        }
    }

    /// Works on the queue for as long as it is this process's.
    async fn owned(
        &self,
        owned: &Owned,
        absent_since: Option<Micros>,
        stop: &CancellationToken,
    ) -> End {
        let fence = &owned.fence;
        let work = async {
            let established = tokio::select! {
                biased;
                () = stop.cancelled() => return End::Drained,
                established = self.establish(owned, absent_since) => established,
            };
            let (mut standing, mut pending) = match established {
                Ok(established) => established,
                Err(end) => return end,
            };
            let mut found = pending.is_some();
            if found {
                // The intent is found, not written here: another process may be writing its
                // objects in the belief that it owns the queue, for one TTL after its lease at most.
                let leases = if owned.taken_over { 2 } else { 1 };
                let ttl = Owner::stored_ttl(self.settings().lease_ttl);
                self.pause(ttl * leases, stop).await;
                if stop.is_cancelled() {
                    return End::Drained;
                }
            }
            let (mut window, mut left) = (Remembered::default(), Left::default());
            loop {
                if let Some(intent) = pending.take() {
                    let had = (std::mem::take(&mut window), left);
                    match self.redo(fence, &standing, intent, had, stop).await {
                        Ok(moved) => (standing, left) = moved,
                        Err(end) => return end,
                    }
                    self.panicked.store(false, Relaxed);
                    // An intent from an older key/value store is followed by windows as well.
                    if std::mem::take(&mut found) {
                        let k = standing.pointer.k;
                        match self.catch_up(fence, standing, None).await {
                            Ok((moved, _)) => standing = moved,
                            Err(end) => return end,
                        }
                        if standing.pointer.k != k {
                            // What is unwritten after the window may be in these.
                            left = Left::default();
                        }
                    }
                }
                if !self.panicked.load(Relaxed) {
                    self.goes_on();
                }
                match self.session(fence, standing, left, stop).await {
                    session::Outcome::End(end) => return end,
                    session::Outcome::Redo(redo) => {
                        standing = redo.standing;
                        pending = Some(redo.intent);
                        (window, left) = (redo.window, redo.left);
                    }
                }
            }
        };
        tokio::select! {
            biased;
            lost = fence.keep() => End::Lost(lost),
            end = work => end,
            never = self.look_again() => match never {},
        }
    }
}
