//! The broker's log: transactions in flight, segments with their commit times, `safeTime`, and
//! the truth about every record that was ever visible.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use queen_s3::broker::Name;
use uuid::Uuid;

/// Broker's own guard below its clock, µs.
const SAFE_GUARD: i64 = 5_000_000;
/// Guard when sessions are hidden, µs.
const SAFE_FLOOR: i64 = 30_000_000;
const SECOND: i64 = 1_000_000;

/// Where a record is in the truth: `ts`, partition, offset. Unique across all lives.
pub type RecordKey = (i64, Name, i64);

/// Everything about a record that was ever visible.
#[derive(Clone, Debug)]
pub struct Truth {
    /// The client's transaction id.
    pub transaction_id: Arc<str>,
    /// The payload's JSON text.
    pub payload: Arc<str>,
    /// The partition's life that it belongs to.
    pub life: u128,
    /// Its place in the order in which segments became visible.
    pub order: u64,
    /// Whether it appeared below a `safeTime` that the broker had answered, or below the `ts` of the
    /// record before it.
    pub broken: bool,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Key of the object that holds it, once one does.
    pub placed: Option<Arc<str>>,
    /// The checker's count when it was placed.
    pub placed_at: u64,
    /// Whether a manifest names it as lost.
    pub announced: bool,
    /// Whether no sink can be asked for it: one that came late, and then the reading state went.
    pub excused: bool,
}

impl Truth {
    /// Whether nothing more is to come of it.
    pub fn settled(&self) -> bool {
        self.placed.is_some() || self.announced || self.deleted || self.excused
    }
}

/// One record of a push.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// The client's transaction id.
    pub transaction_id: Arc<str>,
    /// The payload's JSON text.
    pub payload: Arc<str>,
}

/// A visible segment.
#[derive(Debug)]
pub struct Segment {
    /// Offset of its first record.
    pub first: i64,
    /// Its commit time, µs.
    pub ts: i64,
    /// Its records.
    pub records: Vec<NewRecord>,
    /// Stored bytes.
    pub stored: usize,
    /// What it is in an answer of segments, without and with a description, once one was given.
    pub bodies: [OnceCell<Vec<u8>>; 2],
}

/// One life of a partition.
#[derive(Debug)]
pub struct Partition {
    /// Its identity.
    pub id: Uuid,
    /// Next offset to be assigned.
    pub next: i64,
    /// First offset still held.
    pub log_start: i64,
    /// Greatest `ts`.
    pub last_ts: i64,
    /// What listings are ordered by, µs, whole seconds.
    pub last_write_at: i64,
    /// Visible segments, in order.
    pub segments: VecDeque<Segment>,
}

/// One queue.
#[derive(Debug, Default)]
pub struct Queue {
    /// Living partitions.
    pub partitions: BTreeMap<Name, Partition>,
    /// Every record that was ever visible.
    pub truth: BTreeMap<RecordKey, Truth>,
    /// `ts` of the records of each partition and offset, one per life.
    pub lives: BTreeMap<(Name, i64), Vec<i64>>,
    /// Lives that have ended.
    pub ended: BTreeSet<u128>,
    /// Whether it was deleted and is not made again yet.
    pub gone: bool,
}

#[derive(Debug)]
struct Transaction {
    started: i64,
    masked: bool,
    inserted: Vec<Insertion>,
}

#[derive(Debug)]
struct Insertion {
    queue: String,
    partition: Name,
    ts: i64,
    broken: bool,
    records: Vec<NewRecord>,
}

/// The whole log.
#[derive(Debug, Default)]
pub struct Log {
    /// Queues that exist.
    pub queues: BTreeMap<String, Queue>,
    floor: i64,
    promised: i64,
    transactions: BTreeMap<u64, Transaction>,
    held: BTreeSet<(String, Name)>,
    next_transaction: u64,
    order: u64,
    broken: Vec<(String, RecordKey)>,
    /// Whether a session that writes nothing is hidden from the broker.
    pub hidden_session: bool,
    write_at_lag: i64,
}

/// A line of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Partition.
    pub name: Name,
    /// Identity.
    pub id: Uuid,
    /// Greatest offset, or -1.
    pub last_offset: i64,
    /// First offset still held.
    pub log_start: i64,
    /// What listings are ordered by, µs.
    pub last_write_at: i64,
}

impl Log {
    /// An empty log whose `lastWriteAt` stays up to `write_at_lag` µs behind.
    pub fn new(write_at_lag: i64) -> Self {
        Self {
            write_at_lag,
            ..Self::default()
        }
    }

    /// Starts a transaction.
    pub fn begin(&mut self, now: i64, masked: bool) -> u64 {
        self.next_transaction += 1;
        let transaction = Transaction {
            started: now,
            masked,
            inserted: Vec::new(),
        };
        self.transactions.insert(self.next_transaction, transaction);
        self.next_transaction
    }

    /// Writes a segment that nobody sees before the commit. With `back` the broker breaks its
    /// promise: the segment's `ts` lies that far back, µs, whatever was answered. False when
    /// another transaction holds the partition or the queue does not exist.
    pub fn insert(
        &mut self,
        transaction: u64,
        now: i64,
        (queue, partition): (&str, &Name),
        records: Vec<NewRecord>,
        back: Option<i64>,
    ) -> bool {
        let lock = (queue.to_owned(), Arc::clone(partition));
        let Some(found) = self.living(queue) else {
            return false;
        };
        if self.held.contains(&lock) {
            return false;
        }
        let last = found
            .partitions
            .get(partition)
            .map_or(i64::MIN, |found| found.last_ts);
        self.held.insert(lock);
        let Some(open) = self.transactions.get_mut(&transaction) else {
            return false;
        };
        let ts = match back {
            Some(back) => now - back,
            None => now.max(open.started).max(last).max(self.floor),
        };
        open.inserted.push(Insertion {
            queue: queue.to_owned(),
            partition: Arc::clone(partition),
            ts,
            broken: back.is_some(),
            records,
        });
        true
    }

    /// Ends a transaction without a trace.
    pub fn abort(&mut self, transaction: u64) {
        if let Some(ended) = self.transactions.remove(&transaction) {
            for insertion in ended.inserted {
                self.held.remove(&(insertion.queue, insertion.partition));
            }
        }
    }

    /// Makes a transaction's segments visible; answers `(queue, ts)` of each that keeps the
    /// broker's promise. `id` names the life
    /// of a partition that it creates.
    pub fn commit(&mut self, transaction: u64, mut id: impl FnMut() -> u128) -> Vec<(String, i64)> {
        let Some(ended) = self.transactions.remove(&transaction) else {
            return Vec::new();
        };
        let mut visible = Vec::new();
        for insertion in ended.inserted {
            self.held
                .remove(&(insertion.queue.clone(), Arc::clone(&insertion.partition)));
            assert!(
                insertion.broken || insertion.ts >= self.promised,
                "the simulated broker breaks its promise: {} below {}",
                insertion.ts,
                self.promised
            );
            let Some(queue) = self
                .queues
                .get_mut(&insertion.queue)
                .filter(|queue| !queue.gone)
            else {
                continue;
            };
            self.order += 1;
            let lag = self.write_at_lag;
            let partition = queue
                .partitions
                .entry(Arc::clone(&insertion.partition))
                .or_insert_with(|| Partition::new(id()));
            if insertion.ts - partition.last_write_at >= lag {
                partition.last_write_at = insertion.ts.div_euclid(SECOND) * SECOND;
            }
            let broken = insertion.ts < self.promised || insertion.ts < partition.last_ts;
            partition.last_ts = partition.last_ts.max(insertion.ts);
            let first = partition.next;
            for (offset, record) in (first..).zip(&insertion.records) {
                let name = Arc::clone(&insertion.partition);
                queue
                    .lives
                    .entry((Arc::clone(&name), offset))
                    .or_default()
                    .push(insertion.ts);
                let truth = Truth {
                    transaction_id: Arc::clone(&record.transaction_id),
                    payload: Arc::clone(&record.payload),
                    life: partition.id.as_u128(),
                    order: self.order,
                    broken,
                    deleted: false,
                    placed: None,
                    placed_at: 0,
                    announced: false,
                    excused: false,
                };
                if truth.broken {
                    let key = (insertion.ts, Arc::clone(&name), offset);
                    self.broken.push((insertion.queue.clone(), key));
                }
                queue.truth.insert((insertion.ts, name, offset), truth);
            }
            partition.next += i64::try_from(insertion.records.len()).unwrap_or(i64::MAX);
            let stored = insertion
                .records
                .iter()
                .map(|record| record.payload.len() / 2 + 20)
                .sum();
            partition.segments.push_back(Segment {
                first,
                ts: insertion.ts,
                records: insertion.records,
                stored,
                bodies: Default::default(),
            });
            if insertion.ts >= self.promised {
                visible.push((insertion.queue, insertion.ts));
            }
        }
        visible
    }

    /// Creates a partition that holds nothing yet.
    pub fn create_partition(&mut self, queue: &str, name: &Name, now: i64, id: u128) {
        if self.held.contains(&(queue.to_owned(), Arc::clone(name))) {
            return;
        }
        let floor = self.floor;
        if let Some(queue) = self.queues.get_mut(queue).filter(|queue| !queue.gone) {
            queue
                .partitions
                .entry(Arc::clone(name))
                .or_insert_with(|| Partition {
                    last_write_at: now.max(floor).div_euclid(SECOND) * SECOND,
                    ..Partition::new(id)
                });
        }
    }

    /// Deletes a partition with everything in it, unless a transaction holds it. No later `ts` is
    /// less than `gap` µs above its greatest.
    pub fn delete_partition(&mut self, queue: &str, name: &Name, gap: i64) -> bool {
        if self.held.contains(&(queue.to_owned(), Arc::clone(name))) {
            return false;
        }
        let Some(queue) = self.queues.get_mut(queue) else {
            return false;
        };
        let Some(gone) = queue.partitions.remove(name) else {
            return false;
        };
        self.floor = self.floor.max(gone.last_ts.saturating_add(gap));
        for segment in &gone.segments {
            segment.mark_deleted(name, &mut queue.truth);
        }
        queue.ended.insert(gone.id.as_u128());
        true
    }

    /// Whether a partition lives its first life, or a lake has something of this one.
    pub fn is_dealt_with(&self, queue: &str, name: &Name) -> bool {
        let found = self.living(queue);
        let Some((queue, partition)) =
            found.and_then(|queue| Some((queue, queue.partitions.get(name)?)))
        else {
            return false;
        };
        let life = partition.id.as_u128();
        let mut lives = queue.truth.iter().filter(|(key, _)| key.1 == *name);
        let first = lives.clone().all(|(_, truth)| truth.life == life);
        first
            || lives
                .any(|(_, truth)| truth.life == life && (truth.placed.is_some() || truth.announced))
    }

    /// How many records a partition ever had in its present life.
    pub fn length(&self, queue: &str, name: &Name) -> i64 {
        let partition = self
            .living(queue)
            .and_then(|queue| queue.partitions.get(name));
        partition.map_or(0, |partition| partition.next)
    }

    /// Makes a queue, for the first time or again.
    pub fn create_queue(&mut self, queue: &str) {
        self.queues.entry(queue.to_owned()).or_default().gone = false;
    }

    /// Deletes a queue with everything in it, unless a transaction holds one of its partitions.
    pub fn delete_queue(&mut self, queue: &str, gap: i64) -> bool {
        if self.held.iter().any(|(held, _)| held == queue) || self.living(queue).is_none() {
            return false;
        }
        let names: Vec<Name> = self
            .living(queue)
            .map(|found| found.partitions.keys().cloned().collect())
            .unwrap_or_default();
        for name in names {
            self.delete_partition(queue, &name, gap);
        }
        if let Some(found) = self.queues.get_mut(queue) {
            found.gone = true;
        }
        true
    }

    /// The queue as it is now, if it is there.
    pub fn living(&self, queue: &str) -> Option<&Queue> {
        self.queues.get(queue).filter(|queue| !queue.gone)
    }

    /// Deletes segments with `ts` below `below`; answers how many.
    pub fn retain(&mut self, below: i64) -> usize {
        let mut deleted = 0;
        for queue in self.queues.values_mut() {
            for (name, partition) in &mut queue.partitions {
                while partition
                    .segments
                    .front()
                    .is_some_and(|segment| segment.ts < below)
                {
                    let Some(segment) = partition.segments.pop_front() else {
                        break;
                    };
                    segment.mark_deleted(name, &mut queue.truth);
                    partition.log_start = segment.end();
                    deleted += 1;
                }
            }
        }
        deleted
    }

    /// Raises the floor and answers `safeTime` and whether it is degraded. What is listed must be
    /// read after this.
    pub fn safe_time(&mut self, now: i64) -> (i64, bool) {
        self.floor = self.floor.max(now - SAFE_GUARD);
        let seen = self.transactions.values().filter(|open| !open.masked);
        let oldest = seen.map(|open| open.started).min().unwrap_or(i64::MAX);
        let degraded = self.hidden_session || self.transactions.values().any(|open| open.masked);
        let mut safe = self.floor.min(oldest);
        if degraded {
            safe = safe.min(now - SAFE_FLOOR);
        }
        self.promised = self.promised.max(safe);
        (safe, degraded)
    }

    /// Greatest `ts` of a visible record.
    pub fn end(&self) -> i64 {
        let last = |queue: &Queue| queue.truth.last_key_value().map(|(key, _)| key.0);
        self.queues
            .values()
            .filter_map(last)
            .max()
            .unwrap_or(i64::MIN)
    }

    /// How far the greatest bound that a later `ts` must keep is ahead of `now`, µs.
    pub fn ahead(&self, now: i64) -> u64 {
        self.floor.saturating_sub(now).max(0).unsigned_abs()
    }

    /// Takes out the records, with their queues, that broke the promise since the last call.
    pub fn take_broken(&mut self) -> Vec<(String, RecordKey)> {
        std::mem::take(&mut self.broken)
    }

    /// Whether a transaction is in flight.
    pub fn open(&self) -> bool {
        !self.transactions.is_empty()
    }

    /// Greatest `safeTime` ever answered.
    pub fn promised(&self) -> i64 {
        self.promised
    }

    /// A page of every partition, by name, after `after`.
    pub fn list_all(&self, queue: &str, after: Option<&str>, limit: usize) -> Vec<Listed> {
        let Some(queue) = self.living(queue) else {
            return Vec::new();
        };
        let past = |name: &Name| after.is_none_or(|after| &**name > after);
        let names = queue.partitions.iter().filter(|(name, _)| past(name));
        names
            .take(limit)
            .map(|(name, partition)| partition.listed(name))
            .collect()
    }

    /// A page of the partitions written at or after `since`, by `(lastWriteAt, name)`, with the
    /// position of its last line.
    pub fn list_since(
        &self,
        queue: &str,
        since: i64,
        after: Option<(i64, &str)>,
        limit: usize,
    ) -> (Vec<Listed>, Option<(i64, Name)>) {
        let Some(queue) = self.living(queue) else {
            return (Vec::new(), None);
        };
        let mut lines: Vec<_> = queue
            .partitions
            .iter()
            .filter(|(_, partition)| partition.last_write_at >= since)
            .map(|(name, partition)| ((partition.last_write_at, Arc::clone(name)), partition))
            .filter(|((at, name), _)| after.is_none_or(|after| (*at, &**name) > after))
            .collect();
        lines.sort_by(|one, other| one.0.cmp(&other.0));
        lines.truncate(limit);
        let last = lines.last().map(|line| line.0.clone());
        (
            lines
                .iter()
                .map(|((_, name), partition)| partition.listed(name))
                .collect(),
            last,
        )
    }
}

impl Partition {
    fn new(id: u128) -> Self {
        Self {
            id: Uuid::from_u128(id),
            next: 0,
            log_start: 0,
            last_ts: i64::MIN,
            last_write_at: 0,
            segments: VecDeque::new(),
        }
    }

    fn listed(&self, name: &Name) -> Listed {
        Listed {
            name: Arc::clone(name),
            id: self.id,
            last_offset: self.next - 1,
            log_start: self.log_start,
            last_write_at: self.last_write_at,
        }
    }
}

impl Segment {
    /// Offset after its last record.
    pub fn end(&self) -> i64 {
        self.first + i64::try_from(self.records.len()).unwrap_or(i64::MAX)
    }

    fn mark_deleted(&self, name: &Name, truth: &mut BTreeMap<RecordKey, Truth>) {
        for (offset, _) in (self.first..).zip(&self.records) {
            if let Some(record) = truth.get_mut(&(self.ts, Arc::clone(name), offset)) {
                record.deleted = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_772_323_200_000_000;

    fn log() -> (Log, Name) {
        let mut log = Log::new(SECOND);
        log.queues.insert("q".to_owned(), Queue::default());
        (log, Name::from("p"))
    }

    fn records(count: usize) -> Vec<NewRecord> {
        vec![
            NewRecord {
                transaction_id: "t".into(),
                payload: "1".into()
            };
            count
        ]
    }

    #[test]
    fn safe_time_stays_below_a_transaction_in_flight_until_it_ends() {
        let (mut log, partition) = log();
        let open = log.begin(NOW - 60 * SECOND, false);
        assert!(log.insert(open, NOW - 50 * SECOND, ("q", &partition), records(2), None));
        assert_eq!(log.safe_time(NOW), (NOW - 60 * SECOND, false));
        assert!(log.list_all("q", None, 10).is_empty());
        let visible = log.commit(open, || 7);
        assert_eq!(visible, [("q".to_owned(), NOW - 50 * SECOND)]);
        assert_eq!(log.safe_time(NOW), (NOW - SAFE_GUARD, false));
        assert_eq!(log.list_all("q", None, 10)[0].last_offset, 1);
    }

    #[test]
    fn a_later_life_starts_above_the_former_even_when_the_clock_steps_back() {
        let (mut log, partition) = log();
        let first = log.begin(NOW, false);
        assert!(log.insert(first, NOW, ("q", &partition), records(1), None));
        log.commit(first, || 1);
        assert!(log.delete_partition("q", &partition, 1));
        let second = log.begin(NOW - 60 * SECOND, false);
        assert!(log.insert(
            second,
            NOW - 60 * SECOND,
            ("q", &partition),
            records(1),
            None
        ));
        let visible = log.commit(second, || 2);
        assert!(visible[0].1 > NOW);
        assert_eq!(log.list_all("q", None, 10)[0].last_offset, 0);
    }

    #[test]
    fn a_hidden_session_degrades_safe_time() {
        let (mut log, _) = log();
        log.begin(NOW, true);
        assert_eq!(log.safe_time(NOW), (NOW - SAFE_FLOOR, true));
    }
}
