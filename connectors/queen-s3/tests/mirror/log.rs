//! A log made for a test, and the broker that serves it: small enough in memory for a million
//! partitions, and counting what it is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queen_s3::broker::{ChangedRequest, FetchRequest, KvAnswer, Name};
use queen_s3::limits::KV_NAMESPACE;
use serde_json::{Value, json};
use uuid::Uuid;

use queen_protocol::kv::{Expiry, KvOpKind, KvOperation};
use tokio::time::Instant;

use crate::answers::{Entry, Form};
use crate::store::Store;

/// A run of records that share their commit time.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Offset of its first record.
    pub first: i64,
    /// Commit time, µs.
    pub ts: i64,
    /// How many records it holds.
    pub records: u32,
}

impl Segment {
    /// Offset after its last record.
    pub fn end(&self) -> i64 {
        self.first + i64::from(self.records)
    }
}

/// One partition.
#[derive(Clone, Debug)]
pub struct Partition {
    id: u128,
    log_start: i64,
    segments: Vec<Segment>,
    last_write_at: i64,
}

impl Partition {
    fn end(&self) -> i64 {
        self.segments.last().map_or(0, Segment::end)
    }
}

/// What a record of this partition and offset holds.
pub type Payload = fn(partition: &str, offset: i64) -> String;

/// One queue.
#[derive(Default)]
pub struct Queue {
    partitions: BTreeMap<Name, Partition>,
    by_write: BTreeSet<(i64, Name)>,
}

/// What the broker was asked, and what it answered.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Fetch calls.
    pub fetches: u64,
    /// Most fetch calls under way at a time.
    pub at_once: usize,
    /// Partitions that fetch calls asked for, repeats included.
    pub entries: u64,
    /// Records answered.
    pub records: u64,
    /// Bytes of fetch answers.
    pub bytes: u64,
    /// Discovery calls.
    pub pages: u64,
    /// Partitions that discovery listed, repeats included.
    pub listed: u64,
    /// Partitions that a fetch asked for.
    pub asked: BTreeSet<Name>,
    /// Fetch calls for a queue whose pointer is not there.
    pub unpointed: u64,
    /// Tries to create a lease.
    pub claims: u64,
    /// Greatest use of a sink's buffer budget, bytes.
    pub most_held: usize,
    /// Lives in seconds that documents were written with, by key; `None` is for ever.
    pub expiries: BTreeMap<String, BTreeSet<Option<i64>>>,
}

/// How much a broker answers at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Records per entry of a fetch; whole segments, and one at least.
    pub entry_records: usize,
    /// Records per fetch call: entries after them come back empty.
    pub call_records: usize,
    /// Partitions per discovery page.
    pub page: usize,
    /// Whether an entry whose next segment is longer than it asked for comes back empty, unless
    /// it is the first of its call.
    pub strict: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entry_records: 10_000,
            call_records: 100_000,
            page: 1_000,
            strict: false,
        }
    }
}

struct State {
    queues: BTreeMap<String, Queue>,
    /// Lives of partitions begun.
    lives: u128,
    /// First offsets of segments that cannot be read, whichever partition's.
    damaged: BTreeSet<i64>,
    store: Store,
    counts: Counts,
    limits: Limits,
}

/// The broker's state. Time is tokio's.
pub struct Log {
    state: Mutex<State>,
    epoch: i64,
    start: Instant,
    payload: Payload,
    safe_lag: i64,
    degraded: AtomicBool,
    silent: AtomicBool,
    mute: AtomicBool,
    refusing: AtomicU64,
    denying: AtomicBool,
    anonymous: AtomicBool,
    timeless: AtomicBool,
    untold: AtomicBool,
    misnamed: AtomicBool,
    form: Mutex<Form>,
    event: Mutex<Option<Event>>,
}

/// What happens to the log after so many fetch calls more.
struct Event {
    fetches: u64,
    happens: Box<dyn FnOnce(&Log) + Send>,
}

/// A line of a listing.
pub struct Listed {
    /// Partition.
    pub name: Name,
    /// Its life.
    pub id: Uuid,
    /// Greatest offset.
    pub last_offset: i64,
    /// Least offset that is there.
    pub log_start: i64,
    /// When it was written last, µs, whole seconds.
    pub last_write_at: i64,
}

/// How far `safeTime` is behind the broker's clock, µs.
pub const SAFE_LAG: i64 = 5_000_000;

impl Log {
    /// A broker whose clock stands at `epoch` (µs) and whose records hold what `payload` says.
    pub fn new(epoch: i64, payload: Payload) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                queues: BTreeMap::new(),
                lives: 0,
                damaged: BTreeSet::new(),
                store: Store::default(),
                counts: Counts::default(),
                limits: Limits::default(),
            }),
            epoch,
            start: Instant::now(),
            payload,
            safe_lag: SAFE_LAG,
            degraded: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            refusing: AtomicU64::new(0),
            denying: AtomicBool::new(false),
            anonymous: AtomicBool::new(false),
            timeless: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            misnamed: AtomicBool::new(false),
            form: Mutex::new(Form::Json),
            event: Mutex::new(None),
        })
    }

    /// A broker whose `safeTime` is its own time: a test in real time need not wait for it.
    pub fn prompt(epoch: i64, payload: Payload) -> Arc<Self> {
        let log = Self::new(epoch, payload);
        let mut log = Arc::into_inner(log).expect("nobody else has it yet");
        log.safe_lag = 0;
        Arc::new(log)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker's clock, µs.
    pub fn now(&self) -> i64 {
        self.epoch + i64::try_from(self.start.elapsed().as_micros()).expect("a test is short")
    }

    /// `safeTime`: nothing is ever in flight.
    pub fn safe_time(&self) -> i64 {
        self.now() - self.safe_lag
    }

    /// Makes a queue.
    pub fn create(&self, queue: &str) {
        self.state()
            .queues
            .insert(queue.to_owned(), Queue::default());
    }

    /// Segments that begin at these offsets cannot be read from now on.
    pub fn damage(&self, offsets: &[i64]) {
        self.state().damaged = offsets.iter().copied().collect();
    }

    /// Answers so much at a time from now on.
    pub fn limit(&self, limits: Limits) {
        self.state().limits = limits;
    }

    /// Writes a segment at `ts`, µs.
    pub fn write(&self, queue: &str, partition: &Name, ts: i64, records: u32) {
        let last = self.append(queue, partition, ts, records);
        assert!(last <= ts, "ts rises with the offset");
    }

    /// Writes a segment at `ts`, µs, which lies below the one before.
    pub fn break_promise(&self, queue: &str, partition: &Name, ts: i64, records: u32) {
        let last = self.append(queue, partition, ts, records);
        assert!(last > ts, "that breaks no promise");
    }

    /// Writes a segment; answers the `ts` of the one before.
    fn append(&self, queue: &str, partition: &Name, ts: i64, records: u32) -> i64 {
        let mut state = self.state();
        state.lives += 1;
        let id = state.lives;
        let queue = state.queues.get_mut(queue).expect("a queue that was made");
        let found = queue
            .partitions
            .entry(Arc::clone(partition))
            .or_insert_with(|| Partition {
                id,
                log_start: 0,
                segments: Vec::with_capacity(1),
                last_write_at: i64::MIN,
            });
        let last = found.segments.last().map_or(i64::MIN, |last| last.ts);
        let first = found.end();
        found.segments.push(Segment { first, ts, records });
        let before = found.last_write_at;
        found.last_write_at = before.max(ts.div_euclid(1_000_000) * 1_000_000);
        let after = found.last_write_at;
        queue.by_write.remove(&(before, Arc::clone(partition)));
        queue.by_write.insert((after, Arc::clone(partition)));
        last
    }

    /// Deletes everything of a partition that is there, as retention does.
    pub fn delete(&self, queue: &str, partition: &Name) {
        let mut state = self.state();
        let queue = state.queues.get_mut(queue).expect("a queue that was made");
        let found = queue.partitions.get_mut(partition).expect("it was written");
        found.log_start = found.end();
    }

    /// Ends a partition's life: what is written to it from now on is another one.
    pub fn end(&self, queue: &str, partition: &Name) {
        let mut state = self.state();
        let queue = state.queues.get_mut(queue).expect("a queue that was made");
        let ended = queue.partitions.remove(partition).expect("it was written");
        queue
            .by_write
            .remove(&(ended.last_write_at, Arc::clone(partition)));
    }

    /// Tells the lives of partitions apart, or does not.
    pub fn identify(&self, identifying: bool) {
        self.anonymous.store(!identifying, Ordering::Relaxed);
    }

    /// Whether it tells lives apart.
    pub fn identifies(&self) -> bool {
        !self.anonymous.load(Ordering::Relaxed)
    }

    /// Tells in fetch answers of which lives they are, if it tells lives apart, or does not.
    pub fn tell_lives(&self, telling: bool) {
        self.untold.store(!telling, Ordering::Relaxed);
    }

    /// Names in fetch answers other lives than listings do, another one each time, or does not.
    pub fn misname_lives(&self, misnaming: bool) {
        self.misnamed.store(misnaming, Ordering::Relaxed);
    }

    /// Answers fetches in this form from now on.
    pub fn answer_in(&self, form: Form) {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner) = form;
    }

    /// The form in which it answers fetches.
    pub fn form(&self) -> Form {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells when partitions were last written to, or does not.
    pub fn tell_times(&self, telling: bool) {
        self.timeless.store(!telling, Ordering::Relaxed);
    }

    /// Whether it tells that.
    pub fn tells_times(&self) -> bool {
        !self.timeless.load(Ordering::Relaxed)
    }

    /// Lets something happen when `fetches` calls more are answered.
    pub fn after_fetches(&self, fetches: u64, happens: impl FnOnce(&Self) + Send + 'static) {
        let mut event = self.event.lock().unwrap_or_else(PoisonError::into_inner);
        *event = Some(Event {
            fetches,
            happens: Box::new(happens),
        });
    }

    /// Answers none of the next `fetches` fetch calls.
    pub fn refuse_fetches(&self, fetches: u64) {
        self.refusing.store(fetches, Ordering::Relaxed);
    }

    /// Whether a fetch call is one of those that are not answered.
    pub fn refuses_fetch(&self) -> bool {
        let left = |left: u64| left.checked_sub(1);
        let (set, fetched) = (Ordering::Relaxed, Ordering::Relaxed);
        self.refusing.fetch_update(set, fetched, left).is_ok()
    }

    /// Notes that a fetch call is about to be answered.
    pub fn fetching(&self) {
        let mut event = self.event.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match &mut *event {
            Some(waiting) if waiting.fetches > 0 => {
                waiting.fetches -= 1;
                None
            }
            _ => event.take(),
        };
        drop(event);
        if let Some(due) = due {
            (due.happens)(self);
        }
    }

    /// Sees, or no longer sees, every session of its database.
    pub fn degrade(&self, degraded: bool) {
        self.degraded.store(degraded, Ordering::Relaxed);
    }

    /// Answers no key/value batch any more, or does so again.
    pub fn hang_up(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Answers no discovery any more, or does so again.
    pub fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }

    /// Whether it answers no discovery.
    pub fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Relaxed)
    }

    /// Whether it does not see every session.
    pub fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Relaxed)
    }

    /// Every record of `queue`: partition, offset, ts.
    pub fn records(&self, queue: &str) -> BTreeSet<(String, i64, i64)> {
        let state = self.state();
        let queue = &state.queues[queue];
        let mut all = BTreeSet::new();
        for (name, partition) in &queue.partitions {
            for segment in &partition.segments {
                for offset in segment.first..segment.end() {
                    all.insert((name.to_string(), offset, segment.ts));
                }
            }
        }
        all
    }

    /// Takes the counts out, and begins new ones.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.state().counts)
    }

    /// The body of the answer to a fetch, one of so many `at_once`.
    pub fn fetch(&self, request: &FetchRequest, at_once: usize) -> Vec<u8> {
        let tells_lives = self.identifies() && !self.untold.load(Ordering::Relaxed);
        let misnames = self.misnamed.load(Ordering::Relaxed);
        let pointer = format!("s3:{}:{}:committed", crate::sink::SINK, request.queue);
        let pointed = self.document(&pointer).is_some();
        let mut state = self.state();
        let state = &mut *state;
        let mut left = state.limits.call_records;
        state.counts.fetches += 1;
        state.counts.unpointed += u64::from(!pointed);
        state.counts.at_once = state.counts.at_once.max(at_once);
        state.counts.entries += request.entries.len() as u64;
        let mut entries = Vec::with_capacity(request.entries.len());
        for (index, entry) in request.entries.iter().enumerate() {
            state.counts.asked.insert(Arc::clone(&entry.partition));
            let queue = state.queues.get(&*request.queue);
            let partition = queue.and_then(|queue| queue.partitions.get(&entry.partition));
            let end = partition.map_or(0, Partition::end);
            let log_start = partition.map_or(0, |found| found.log_start);
            let mut segments = Vec::new();
            let mut taken = 0;
            let mut stored = 0;
            for segment in partition.into_iter().flat_map(|found| &found.segments) {
                let last = segment.end();
                if last <= entry.offset.max(log_start) || entry.offset < log_start {
                    continue;
                }
                let first = segment.first.max(entry.offset);
                let length = (self.payload)(&entry.partition, first).len() as u32 / 2;
                stored += segment.records * length;
                let full = taken >= state.limits.entry_records || stored > entry.max_bytes;
                let must = taken == 0 && (index == 0 || !state.limits.strict);
                if left == 0 || (full && !must) {
                    break;
                }
                segments.push(segment.clone());
                let records = usize::try_from(last - first).expect("a segment is short");
                taken += records;
                left = left.saturating_sub(records);
            }
            state.counts.records += taken as u64;
            let damaged = segments
                .iter()
                .position(|segment| state.damaged.contains(&segment.first));
            let error = if queue.is_none() {
                Some("UNKNOWN_TOPIC_OR_PARTITION")
            } else if entry.offset > end || entry.offset < log_start {
                Some("OFFSET_OUT_OF_RANGE")
            } else {
                None
            };
            let other = u128::from(state.counts.fetches) << 64;
            let life = partition.map(|found| match misnames {
                true => Uuid::from_u128(found.id | other),
                false => Uuid::from_u128(found.id),
            });
            entries.push(Entry {
                queue: &request.queue,
                partition: &entry.partition,
                from: entry.offset,
                segments,
                damaged,
                end,
                log_start,
                life: life.filter(|_| tells_lives),
                error,
            });
        }
        let body = self.form().body(&entries, self.payload, tells_lives);
        state.counts.bytes += body.len() as u64;
        body
    }

    /// Notes what a sink holds after an answer has arrived.
    pub fn note_held(&self, bytes: usize) {
        let most = &mut self.state().counts.most_held;
        *most = bytes.max(*most);
    }

    /// Says of every queue that it is not there, or no longer does.
    pub fn deny(&self, denying: bool) {
        self.denying.store(denying, Ordering::Relaxed);
    }

    /// A discovery page and its cursor; `None` when the queue is unknown.
    pub fn page(&self, request: &ChangedRequest) -> Option<(Vec<Listed>, Option<String>)> {
        let mut state = self.state();
        let state = &mut *state;
        state.counts.pages += 1;
        if self.denying.load(Ordering::Relaxed) {
            return None;
        }
        let queue = state.queues.get(&*request.queue)?;
        let limit = state.limits.page.min(request.limit as usize);
        let after = request.after.as_deref();
        let names: Vec<Name> = match request.since {
            None => {
                let from = after.map_or(std::ops::Bound::Unbounded, |after| {
                    std::ops::Bound::Excluded(Name::from(after))
                });
                let rest = queue.partitions.range((from, std::ops::Bound::Unbounded));
                rest.take(limit).map(|(name, _)| Arc::clone(name)).collect()
            }
            Some(since) => {
                let from = match after.and_then(|after| after.split_once('|')) {
                    Some((at, name)) => std::ops::Bound::Excluded((
                        at.parse().expect("a cursor of this broker"),
                        Name::from(name),
                    )),
                    None => std::ops::Bound::Included((since.0, Name::from(""))),
                };
                let rest = queue.by_write.range((from, std::ops::Bound::Unbounded));
                rest.take(limit).map(|(_, name)| Arc::clone(name)).collect()
            }
        };
        let cursor =
            names
                .last()
                .filter(|_| names.len() == limit)
                .map(|last| match request.since {
                    None => last.to_string(),
                    Some(_) => format!("{}|{last}", queue.partitions[last].last_write_at),
                });
        let listed = names.iter().map(|name| {
            let partition = &queue.partitions[name];
            Listed {
                // As off the wire: a name of its own.
                name: Name::from(&**name),
                id: Uuid::from_u128(partition.id),
                last_offset: partition.end() - 1,
                log_start: partition.log_start,
                last_write_at: partition.last_write_at,
            }
        });
        let listed: Vec<Listed> = listed.collect();
        state.counts.listed += listed.len() as u64;
        Some((listed, cursor))
    }

    /// Carries out a key/value batch.
    pub fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, String> {
        if self.silent.load(Ordering::Relaxed) {
            return Err("nobody answers".to_owned());
        }
        let now = self.now();
        let mut state = self.state();
        let claims = |one: &&KvOperation| one.op == KvOpKind::PutIfAbsent;
        state.counts.claims += operations.iter().filter(claims).count() as u64;
        for one in operations {
            let put = matches!(one.op, KvOpKind::Put | KvOpKind::PutIfAbsent);
            if let Some(key) = one.key.clone().filter(|_| put) {
                let lives = state.counts.expiries.entry(key).or_default();
                lives.insert(one.ttl_seconds);
            }
        }
        state.store.batch(operations, now)
    }

    /// Gives the lease of `queue` to another instance, for so long.
    pub fn give_away(&self, queue: &str, held: Duration) {
        let key = format!("s3:{}:{queue}:lease", crate::sink::SINK);
        let lease = json!({"instance": "another", "incarnation": "theirs"});
        let seconds = i64::try_from(held.as_secs()).expect("a test is short");
        self.put(key, lease, Expiry::seconds(seconds));
    }

    /// Puts a document of the sink's where it was, for ever.
    pub fn put_back(&self, key: &str, document: Value) {
        self.put(key.to_owned(), document, Expiry::Forever);
    }

    /// Removes a document of the sink's, as an operator may; answers it.
    pub fn take_away(&self, key: &str) -> Value {
        let document = self.document(key).expect("it is there");
        self.state().store.remove(key);
        document
    }

    fn put(&self, key: String, document: Value, expiry: Expiry) {
        let put = KvOperation::put(KV_NAMESPACE, key, document, expiry);
        let now = self.now();
        let answer = self
            .state()
            .store
            .batch(&[put.expect("an expiry of the wire")], now);
        assert!(matches!(answer, Ok(KvAnswer::Done(_))), "{answer:?}");
    }

    /// A document of the sink's.
    pub fn document(&self, key: &str) -> Option<Value> {
        let now = self.now();
        self.state().store.value("queen-s3", key, now).cloned()
    }
}
