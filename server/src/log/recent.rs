//! Which transaction ids are not in the database: what a push need not ask.
//!
//! Ids are kept as pushes bring them, in rows that are cheap to write and dear to search. So a broker
//! remembers, per partition, fingerprints of the ids up to an offset. The database is told that offset,
//! and compares the pushed ids with whatever stands from there on, another broker's pushes say; and with
//! the stretches of the log in which a fingerprint was seen. What is remembered may thus be too much
//! or too old and is never wrong, as long as it lacks no id below its offset: it is bound to one
//! partition and to one start of the database's server, since another server may lack a part of the log.

mod fingerprints;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::limits::{
    RECENT_AHEAD, RECENT_FEW_IDS, RECENT_LEAST_IDS, RECENT_PART_IDS, RECENT_PARTS,
};
use crate::timestamp::Timestamp;
use fingerprints::{Open, Sealed, fingerprint};

/// Offsets `.0` to `.1 - 1`.
pub type Range = (i64, i64);

/// The end of a range that has none.
pub const NO_END: i64 = i64::MAX;

/// What is remembered of all partitions.
#[derive(Debug)]
pub struct Recent {
    hasher: RandomState,
    views: Mutex<HashMap<u64, Arc<View>>>,
    bytes: Arc<AtomicUsize>,
    clock: AtomicU64,
    limit: usize,
    /// Told when more is remembered than may be.
    pub crowded: Notify,
    /// Told when room was made.
    roomy: Notify,
}

/// What is remembered of one partition.
#[derive(Debug)]
pub struct View {
    /// Whether someone reads from the database what is missing.
    reading: AtomicBool,
    /// Told when nobody does any more.
    read: Notify,
    /// Its row.
    partition: i64,
    /// The start of the server that this was learnt from.
    server: Timestamp,
    used: AtomicU64,
    bytes: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Every id below is in the parts, or past its window.
    upto: i64,
    /// Beginnings and ends of stretches above whose ids are in the parts, too.
    ahead: BTreeMap<i64, i64>,
    /// Whether too much stands above to compare it at every push.
    behind: bool,
    /// How long ids count, in microseconds: at the last push.
    window: i64,
    sealed: Vec<Part<Sealed>>,
    open: Option<Part<Open>>,
}

/// Ids that were pushed about the same time: they are forgotten together.
#[derive(Debug)]
struct Part<I> {
    ids: I,
    from: i64,
    upto: i64,
    first_expiry: Timestamp,
    last_expiry: Timestamp,
}

/// What is known of the ids that a push brings to a partition.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The partition that this is about, where there is one.
    pub partition: Option<i64>,
    /// The start of the server that it was learnt from.
    pub server: Option<Timestamp>,
    /// Where in its log the ids have to be looked for; the last has no end.
    pub ranges: Vec<Range>,
    view: Option<Arc<View>>,
}

/// Who reads what a view lacks: one at a time. Dropping it lets those who wait look again.
#[derive(Debug)]
pub struct Reader(Arc<View>);

impl Reader {
    /// The view.
    pub fn view(&self) -> &View {
        &self.0
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.reading.store(false, Ordering::Release);
        self.0.read.notify_waiters();
    }
}

/// What a push has written, as the database tells it.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// The partition.
    pub partition: i64,
    /// Its records.
    pub at: Range,
    /// How many ids the database found from the offset on that was known.
    pub unknown: i64,
    /// When its ids stop counting.
    pub expires: Timestamp,
    /// The database's clock.
    pub now: Timestamp,
    /// The start of the database's server.
    pub server: Timestamp,
}

impl Written {
    fn window(&self) -> i64 {
        self.expires.micros() - self.now.micros()
    }
}

impl Recent {
    /// Remembers this many bytes; twice as many while room is being made.
    pub fn bounded(limit: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            views: Mutex::default(),
            bytes: Arc::default(),
            clock: AtomicU64::new(0),
            limit,
            crowded: Notify::new(),
            roomy: Notify::new(),
        }
    }

    fn views(&self) -> MutexGuard<'_, HashMap<u64, Arc<View>>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, tenant: Uuid, queue: &str, partition: &str) -> u64 {
        self.hasher.hash_one((tenant, queue, partition))
    }

    /// What is known of `ids` that are to be pushed to a partition.
    pub fn look(&self, tenant: Uuid, queue: &str, partition: &str, ids: &[Uuid]) -> Known {
        let key = self.key(tenant, queue, partition);
        let Some(view) = self.views().get(&key).cloned() else {
            return Known {
                ranges: vec![(0, NO_END)],
                ..Known::default()
            };
        };
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        view.used.store(now, Ordering::Relaxed);
        let ranges = view.state().look(ids);
        Known {
            partition: Some(view.partition),
            server: Some(view.server),
            ranges,
            view: Some(view),
        }
    }

    /// Remembers what a push has written, where that is worth it.
    pub fn learn(
        &self,
        (tenant, queue, partition): (Uuid, &str, &str),
        known: &Known,
        ids: &[Uuid],
        written: &Written,
    ) {
        let of_this = known.view.as_ref().filter(|view| view.is_of(written));
        let view = match of_this {
            Some(view) => Arc::clone(view),
            None => {
                let worth = if written.unknown == 0 {
                    ids.len()
                } else {
                    written.unknown.unsigned_abs() as usize
                };
                if worth < RECENT_LEAST_IDS {
                    return;
                }
                self.begin(self.key(tenant, queue, partition), written)
            }
        };
        view.learn(ids, written);
        self.ask_for_room();
    }

    /// Has room made where more is remembered than may be.
    pub fn ask_for_room(&self) {
        if self.bytes.load(Ordering::Relaxed) > self.limit {
            self.crowded.notify_one();
        }
    }

    /// Whether what makes room does not keep up: nothing more may be remembered then.
    pub fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.limit.saturating_mul(2)
    }

    /// Completes once it [is not full](Self::is_full).
    pub async fn room(&self) {
        until(&self.roomy, || {
            self.ask_for_room();
            !self.is_full()
        })
        .await;
    }

    /// Lets those who wait for room look again.
    pub fn made_room(&self) {
        self.roomy.notify_waiters();
    }

    /// Forgets all of a view: the next push to its partition reads what is missing.
    pub fn forget(&self, view: &Arc<View>) {
        self.views().retain(|_, other| !Arc::ptr_eq(other, view));
    }

    /// The view of a partition, where ids have to be read into it before any are compared with it.
    pub fn behind(&self, tenant: Uuid, queue: &str, partition: &str) -> Option<Arc<View>> {
        let key = self.key(tenant, queue, partition);
        let view = Arc::clone(self.views().get(&key)?);
        view.missing().is_some().then_some(view)
    }

    /// Notes that too much of a partition is unknown to be compared at every push.
    pub fn fall_behind(&self, tenant: Uuid, queue: &str, partition: &str, written: &Written) {
        let view = self.begin(self.key(tenant, queue, partition), written);
        let mut state = view.state();
        state.behind = true;
        state.window = written.window();
    }

    /// The view of a partition, a new one where there is none of this life and server.
    fn begin(&self, key: u64, written: &Written) -> Arc<View> {
        let mut views = self.views();
        if let Some(view) = views.get(&key)
            && view.is_of(written)
        {
            return Arc::clone(view);
        }
        let view = Arc::new(View::new(written, Arc::clone(&self.bytes)));
        views.insert(key, Arc::clone(&view));
        view
    }

    /// What has to be forgotten for the rest to have room: the views of partitions with few ids at once,
    /// those used longest ago first; then, as it is given back, a part of the view with the most. Its
    /// ids below the offset have to be indexed before they are forgotten.
    pub fn make_room(&self) -> Option<(Arc<View>, i64)> {
        let over = || self.bytes.load(Ordering::Relaxed) > self.limit;
        if !over() {
            return None;
        }
        let mut views = self.views();
        let mut small: Vec<(u64, u64)> = views
            .iter()
            .filter(|(_, view)| view.state().count() < RECENT_FEW_IDS)
            .map(|(key, view)| (view.used.load(Ordering::Relaxed), *key))
            .collect();
        small.sort_unstable();
        // A quarter more than needed, so that this does not happen at every push.
        let target = self.limit - self.limit / 4;
        for (_, key) in small {
            if self.bytes.load(Ordering::Relaxed) <= target {
                break;
            }
            views.remove(&key);
        }
        if !over() {
            return None;
        }
        let largest = views.values().max_by_key(|view| view.state().count())?;
        let largest = Arc::clone(largest);
        drop(views);
        let below = largest.older_half();
        Some((largest, below))
    }
}

impl View {
    fn new(written: &Written, bytes: Arc<AtomicUsize>) -> Self {
        bytes.fetch_add(State::OVERHEAD, Ordering::Relaxed);
        Self {
            reading: AtomicBool::new(false),
            read: Notify::new(),
            partition: written.partition,
            server: written.server,
            used: AtomicU64::new(0),
            bytes,
            state: Mutex::default(),
        }
    }

    fn is_of(&self, written: &Written) -> bool {
        self.partition == written.partition && self.server == written.server
    }

    /// The row of the partition.
    pub fn partition(&self) -> i64 {
        self.partition
    }

    /// The right to read what is missing, unless another has it.
    pub fn reader(self: &Arc<Self>) -> Option<Reader> {
        let taken = self.reading.swap(true, Ordering::Acquire);
        (!taken).then(|| Reader(Arc::clone(self)))
    }

    /// Completes once nobody reads what is missing.
    pub async fn until_read(&self) {
        until(&self.read, || !self.reading.load(Ordering::Acquire)).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the state and counts what that adds to, or takes from, the bytes.
    fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let before = state.bytes();
        let outcome = work(&mut state);
        let after = state.bytes();
        self.bytes.fetch_add(after, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        outcome
    }

    fn learn(&self, ids: &[Uuid], written: &Written) {
        self.change(|state| {
            state.forget_past(written.now);
            state.window = written.window();
            state.add(ids, written.at, written.expires);
            if written.unknown == 0 {
                state.reach(written.at.1);
                state.behind &= !state.ahead.is_empty();
            } else {
                state.reach_over(written.at);
                state.behind =
                    written.unknown >= RECENT_LEAST_IDS as i64 && state.upto < written.at.1;
            }
        });
    }

    /// The offset from which on ids are missing, when they have to be read.
    pub fn missing(&self) -> Option<i64> {
        let state = self.state();
        state.behind.then_some(state.upto)
    }

    /// Remembers a row of ids that was read; rows come in the order of their offsets.
    pub fn load(&self, ids: &[Uuid], at: Range, expires: Timestamp) {
        self.change(|state| {
            state.add(ids, at, expires);
            state.reach(at.1);
        });
    }

    /// Nothing is missing any more.
    pub fn loaded(&self) {
        self.state().behind = false;
    }

    /// The offset that about half of the ids are below.
    fn older_half(&self) -> i64 {
        self.change(|state| {
            state.seal();
            let all = state.count();
            let (mut counted, mut below) = (0, 0);
            for part in &state.sealed {
                if counted * 2 >= all {
                    break;
                }
                counted += part.ids.len();
                below = below.max(part.upto);
            }
            below
        })
    }

    /// Forgets what is below an offset: the index has it.
    pub fn forget_below(&self, below: i64) {
        self.change(|state| {
            state.sealed.retain(|part| part.upto > below);
            if state.open.as_ref().is_some_and(|part| part.upto <= below) {
                state.open = None;
            }
        });
    }
}

/// Completes once `holds` does, which is looked at whenever `told` is.
async fn until(told: &Notify, mut holds: impl FnMut() -> bool) {
    loop {
        // Before the look: what is told of in between counts.
        let next = told.notified();
        if holds() {
            return;
        }
        next.await;
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.bytes.fetch_sub(state.bytes(), Ordering::Relaxed);
    }
}

impl State {
    /// Bytes of a view without ids, its place among the others included.
    const OVERHEAD: usize = 384;

    fn bytes(&self) -> usize {
        let sealed: usize = self.sealed.iter().map(|part| part.ids.bytes()).sum();
        let open = self.open.as_ref().map_or(0, |part| part.ids.bytes());
        Self::OVERHEAD
            + sealed
            + open
            + self.sealed.capacity() * size_of::<Part<Sealed>>()
            + self.ahead.len() * 2 * size_of::<Range>()
    }

    fn count(&self) -> usize {
        let sealed: usize = self.sealed.iter().map(|part| part.ids.len()).sum();
        sealed + self.open.as_ref().map_or(0, |part| part.ids.len())
    }

    fn look(&self, ids: &[Uuid]) -> Vec<Range> {
        let prints: Vec<u64> = ids.iter().filter_map(fingerprint).collect();
        let mut ranges = Vec::new();
        for part in &self.sealed {
            if prints.iter().any(|print| part.ids.contains(*print)) {
                ranges.push((part.from, part.upto.min(self.upto)));
            }
        }
        if let Some(part) = &self.open
            && prints.iter().any(|print| part.ids.contains(*print))
        {
            ranges.push((part.from, part.upto.min(self.upto)));
        }
        // What is ahead of the known is looked at in any case.
        ranges.retain(|(from, upto)| from < upto);
        ranges.push((self.upto, NO_END));
        ranges
    }

    fn forget_past(&mut self, now: Timestamp) {
        self.sealed.retain(|part| part.last_expiry > now);
        if self
            .open
            .as_ref()
            .is_some_and(|part| part.last_expiry <= now)
        {
            self.open = None;
        }
    }

    fn add(&mut self, ids: &[Uuid], at: Range, expires: Timestamp) {
        let span = self.window / RECENT_PARTS;
        let full = self.open.as_ref().is_some_and(|part| {
            expires.micros() - part.first_expiry.micros() >= span
                || part.ids.len() >= RECENT_PART_IDS
        });
        if full {
            self.seal();
        }
        let part = self.open.get_or_insert_with(|| Part {
            ids: Open::default(),
            from: at.0,
            upto: at.1,
            first_expiry: expires,
            last_expiry: expires,
        });
        part.from = part.from.min(at.0);
        part.upto = part.upto.max(at.1);
        part.first_expiry = part.first_expiry.min(expires);
        part.last_expiry = part.last_expiry.max(expires);
        for print in ids.iter().filter_map(fingerprint) {
            part.ids.insert(print);
        }
    }

    fn seal(&mut self) {
        if let Some(part) = self.open.take() {
            self.sealed.push(Part {
                ids: Sealed::of(part.ids),
                from: part.from,
                upto: part.upto,
                first_expiry: part.first_expiry,
                last_expiry: part.last_expiry,
            });
        }
    }

    /// All ids below `upto` are there.
    fn reach(&mut self, upto: i64) {
        self.upto = self.upto.max(upto);
        while let Some((&from, &end)) = self.ahead.first_key_value() {
            if from > self.upto {
                break;
            }
            self.upto = self.upto.max(end);
            self.ahead.pop_first();
        }
    }

    /// The ids of a stretch are there; of those before it some may be missing.
    fn reach_over(&mut self, (from, upto): Range) {
        if from <= self.upto {
            self.reach(upto);
        } else if self.ahead.len() < RECENT_AHEAD {
            self.ahead.insert(from, upto);
        }
    }
}
