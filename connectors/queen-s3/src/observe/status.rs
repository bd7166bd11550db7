//! What the running parts report and what `/metrics` and `/healthz` are rendered from: one set of
//! plain counters, so that the hot path never touches a metrics library.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::limits::SAFE_TIME_STANDS;
use crate::time::Micros;

const NEVER: i64 = i64::MIN;

/// Everything the sink reports, across queues.
#[derive(Debug)]
pub struct Status {
    queues: Mutex<BTreeMap<String, Arc<QueueStatus>>>,
    safe_time: AtomicI64,
    /// When it was answered, ms of the boot clock.
    safe_time_at: AtomicU64,
    /// How many ask for the next one.
    asking: AtomicU64,
    degraded: AtomicBool,
    s3_requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Key/value batches that a lost precondition rolled back.
    pub preconditions_lost: AtomicU64,
    /// Records of each committed window.
    pub window_records: Histogram,
    /// Object bytes of each committed window.
    pub window_bytes: Histogram,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            queues: Mutex::default(),
            safe_time: AtomicI64::new(NEVER),
            safe_time_at: AtomicU64::new(0),
            asking: AtomicU64::new(0),
            degraded: AtomicBool::new(false),
            s3_requests: Mutex::default(),
            preconditions_lost: AtomicU64::new(0),
            window_records: Histogram::new(&WINDOW_RECORDS_BOUNDS),
            window_bytes: Histogram::new(&WINDOW_BYTES_BOUNDS),
        }
    }
}

const WINDOW_RECORDS_BOUNDS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const WINDOW_BYTES_BOUNDS: [u64; 8] = [
    1 << 10,
    1 << 14,
    1 << 18,
    1 << 20,
    1 << 23,
    1 << 25,
    1 << 27,
    1 << 29,
];

impl Status {
    /// The status of `queue`, made on first use and kept for the life of the process.
    pub fn queue(&self, queue: &str) -> Arc<QueueStatus> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue.to_owned()).or_default())
    }

    /// Every queue's status, by name.
    pub fn queues(&self) -> Vec<(String, Arc<QueueStatus>)> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues
            .iter()
            .map(|(name, status)| (name.clone(), Arc::clone(status)))
            .collect()
    }

    /// Whether `predicate` holds of any queue's status.
    pub fn any_queue(&self, predicate: impl Fn(&QueueStatus) -> bool) -> bool {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().any(|status| predicate(status))
    }

    /// Notes whether the broker's `safeTime` is degraded; answers the state when it changed. Not
    /// degraded is what is expected at first.
    pub fn change_degraded(&self, degraded: bool) -> Option<bool> {
        (self.degraded.swap(degraded, Relaxed) != degraded).then_some(degraded)
    }

    /// Notes the broker's latest `safeTime`, answered at `now` of the boot clock.
    pub fn set_safe_time(&self, at: Micros, now: Duration) {
        self.safe_time_at.store(millis(now), Relaxed);
        self.safe_time.store(at.0, Relaxed);
    }

    /// The broker's latest `safeTime` as of `now` of the boot clock, if it answered yet. `None` too
    /// where nothing has asked for a newer one for [`SAFE_TIME_STANDS`]: its age would tell nothing
    /// of the broker.
    pub fn safe_time(&self, now: Duration) -> Option<Micros> {
        let age = millis(now).saturating_sub(self.safe_time_at.load(Relaxed));
        let stands = age <= millis(SAFE_TIME_STANDS);
        known(self.safe_time.load(Relaxed))
            .filter(|_| stands || self.asking.load(Relaxed) > 0)
            .map(Micros)
    }

    /// Says that `safeTime` is asked for again and again, or Queen is waited for to do so, for as
    /// long as the answer lives.
    pub fn asking(&self) -> Asking<'_> {
        self.asking.fetch_add(1, Relaxed);
        Asking(self)
    }

    /// Counts one S3 request. `op` is `put`, `get`, `head`, `list`, `delete` or a `multipart_*`;
    /// `code` is the HTTP status, 0 when no answer came.
    pub fn s3_request(&self, op: &'static str, code: u16) {
        let mut requests = self
            .s3_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *requests.entry((op, code)).or_default() += 1;
    }

    /// S3 requests so far: operation, status code, count.
    pub fn s3_requests(&self) -> Vec<(&'static str, u16, u64)> {
        let requests = self
            .s3_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        requests
            .iter()
            .map(|(&(op, code), &count)| (op, code, count))
            .collect()
    }
}

/// Somebody who asks for `safeTime` again and again.
#[derive(Debug)]
pub struct Asking<'a>(&'a Status);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Relaxed);
    }
}

/// What one queue's task reports.
#[derive(Debug)]
pub struct QueueStatus {
    t_end: AtomicI64,
    /// When the pointer last moved, as its document says: ms since the epoch.
    committed_wall_ms: AtomicI64,
    /// The same in ms of the boot clock; below 0 when that was before the boot.
    committed_boot_ms: AtomicI64,
    /// Whether the queue was there when last looked for, true before the first look; an absent
    /// queue counts for no health.
    pub present: AtomicBool,
    /// Whether this process holds the queue's lease.
    pub owned: AtomicBool,
    /// Whether the task stopped with an error that needs an operator, and has not got beyond it.
    pub stopped: AtomicBool,
    /// Windows committed.
    pub windows: AtomicU64,
    /// Records written to objects of committed windows.
    pub records: AtomicU64,
    /// Bytes of JSONL objects of committed windows.
    pub jsonl_bytes: AtomicU64,
    /// Bytes of Parquet objects of committed windows.
    pub parquet_bytes: AtomicU64,
    /// Records that retention deleted before they were read.
    pub lost: AtomicU64,
    /// Records below a committed window's end: the broker broke its promise.
    pub late: AtomicU64,
    /// Fetch calls answered.
    pub fetches_ok: AtomicU64,
    /// Fetch calls failed.
    pub fetches_failed: AtomicU64,
    /// Partitions that the last discovery pass returned.
    pub discovered: AtomicU64,
    /// Windows committed since the last checkpoint.
    pub checkpoint_age: AtomicU64,
    /// Memory that records hold which are in no window yet, bytes, about: compressed ones count as such.
    pub buffered: AtomicU64,
    /// The same of the windows that are being written.
    pub writing: AtomicU64,
}

impl Default for QueueStatus {
    fn default() -> Self {
        Self {
            t_end: AtomicI64::new(NEVER),
            committed_wall_ms: AtomicI64::new(NEVER),
            committed_boot_ms: AtomicI64::new(NEVER),
            present: AtomicBool::new(true),
            owned: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            windows: AtomicU64::new(0),
            records: AtomicU64::new(0),
            jsonl_bytes: AtomicU64::new(0),
            parquet_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            late: AtomicU64::new(0),
            fetches_ok: AtomicU64::new(0),
            fetches_failed: AtomicU64::new(0),
            discovered: AtomicU64::new(0),
            checkpoint_age: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            writing: AtomicU64::new(0),
        }
    }
}

impl QueueStatus {
    /// Notes that this process moved the pointer to `t_end`, at `now` of the boot clock; its document
    /// calls that `wall_ms`.
    pub fn committed(&self, t_end: Micros, wall_ms: i64, now: Duration) {
        self.stands(t_end, wall_ms, boot_ms(now));
    }

    /// Notes that the pointer was found at `t_end`, where a process moved it at `wall_ms`. A pointer
    /// that has never moved from its start is not reported: the queue counts as never committed.
    ///
    /// How long ago that was is asked of the wall clock once: its steps afterwards change nothing,
    /// and of what is known already nothing either.
    pub fn found(&self, t_end: Micros, wall_ms: i64, clock: &dyn Clock) {
        if self.committed_wall_ms.load(Relaxed) == wall_ms {
            return self.t_end.store(t_end.0, Relaxed);
        }
        let age = clock.wall_ms().saturating_sub(wall_ms).max(0);
        self.stands(t_end, wall_ms, boot_ms(clock.boottime()) - age);
    }

    fn stands(&self, t_end: Micros, wall_ms: i64, at: i64) {
        self.t_end.store(t_end.0, Relaxed);
        self.committed_wall_ms.store(wall_ms, Relaxed);
        self.committed_boot_ms.store(at, Relaxed);
    }

    /// End of the last committed window, if there ever was one.
    pub fn t_end(&self) -> Option<Micros> {
        known(self.t_end.load(Relaxed)).map(Micros)
    }

    /// When the pointer last moved, ms of the boot clock; below 0 when that was before the boot.
    pub fn committed_ms(&self) -> Option<i64> {
        known(self.committed_boot_ms.load(Relaxed))
    }
}

/// A reading of the boot clock in ms.
pub(super) fn boot_ms(reading: Duration) -> i64 {
    i64::try_from(reading.as_millis()).unwrap_or(i64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn known(value: i64) -> Option<i64> {
    (value != NEVER).then_some(value)
}

/// A cumulative histogram with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: AtomicU64::new(0),
        }
    }

    /// Counts `value` in.
    pub fn observe(&self, value: u64) {
        let slot = self.bounds.partition_point(|bound| *bound < value);
        self.counts[slot].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Upper bounds, the counts at or below each (not cumulative; the last one is above every
    /// bound), and the sum.
    pub fn snapshot(&self) -> (&'static [u64], Vec<u64>, u64) {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Relaxed))
            .collect();
        (self.bounds, counts, self.sum.load(Relaxed))
    }
}
