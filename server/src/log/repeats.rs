//! Pushes that are repeated: a transaction id counts once per partition and window.
//!
//! A producer that lost an answer pushes again with the same ids, and must not make records of it.
//! The ids it gives go with the push; the database compares them, as far as this broker cannot tell
//! ([`recent`]), while it holds the partitions, and writes nothing when one is there already. The push is
//! then made again without the repetitions: they are rare, and nothing is spent on them before they
//! happen. Ids that the broker gives are compared with nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::Row;
use uuid::Uuid;

use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{
    DEDUP_SWEEP_EVERY, DEDUP_SWEEP_ROWS, KNOWN_REPEATING_QUEUES, RECENT_HELD_PAUSE,
    RECENT_INDEX_IDS, RECENT_PAUSE,
};
use crate::log::push::{Assigned, PreparedPush};
use crate::log::recent::{Known, Recent, Written};
use crate::timestamp::Timestamp;

/// The queues that are known to take repeated ids (their pushes carry none, until the database says
/// that it has changed), and what is known of the ids of the others.
#[derive(Debug)]
pub struct Repeats {
    taking: Mutex<HashSet<(Uuid, String)>>,
    /// The ids of the others.
    pub recent: Recent,
}

impl Repeats {
    /// Nothing is known; so many bytes of ids may be.
    pub fn bounded(bytes: usize) -> Self {
        Self {
            taking: Mutex::default(),
            recent: Recent::bounded(bytes),
        }
    }

    /// Whether a queue is known to take repeated ids.
    pub fn takes(&self, tenant: Uuid, queue: &str) -> bool {
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        !taking.is_empty() && taking.contains(&(tenant, queue.to_owned()))
    }

    /// Remembers that a queue does.
    pub fn learn(&self, tenant: Uuid, queue: &str) {
        let mut taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgetting costs the ids of one push per queue.
        if taking.len() >= KNOWN_REPEATING_QUEUES {
            taking.clear();
        }
        taking.insert((tenant, queue.to_owned()));
    }

    /// Forgets what was known of these queues.
    pub fn forget(&self, tenant: Uuid, queues: &[String]) {
        let mut taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            taking.remove(&(tenant, queue.clone()));
        }
    }
}

/// Ids that go with a push, as the database takes them: those of a group one after the other, one for
/// each of its records.
#[derive(Debug)]
pub struct Marks {
    /// Where those of each group begin, counted from 1; 0 where it has none.
    pub start: Vec<i32>,
    /// Whether a group has an id twice.
    pub twice: Vec<bool>,
    /// What stands for each id; zeros where the producer gave none.
    pub ids: Vec<Uuid>,
    /// The item of each, by its place in the request.
    items: Vec<usize>,
    /// Group and item of those that repeat an earlier item.
    inner: Vec<(usize, usize, usize)>,
    seen: HashMap<(usize, Uuid), usize>,
}

impl Marks {
    /// Room for so many ids per group.
    pub fn of(counts: &[i64]) -> Self {
        let mut all = 0;
        let mut start = Vec::with_capacity(counts.len());
        for &count in counts {
            // A body holds fewer items than bytes, and those are below 1 GiB.
            start.push(if count > 0 { all as i32 + 1 } else { 0 });
            all += count.unsigned_abs() as usize;
        }
        Self {
            start,
            twice: vec![false; counts.len()],
            ids: vec![Uuid::nil(); all],
            items: vec![usize::MAX; all],
            inner: Vec::new(),
            seen: HashMap::with_capacity(all),
        }
    }

    /// Sets the id of an item, the `rel`th record of a group that has room.
    pub fn set(&mut self, item: usize, group: usize, rel: i64, id: Uuid) {
        let slot = self.slot(group, rel);
        self.ids[slot] = id;
        self.items[slot] = item;
        let first = *self.seen.entry((group, id)).or_insert(item);
        if first != item {
            self.twice[group] = true;
            self.inner.push((group, item, first));
        }
    }

    fn slot(&self, group: usize, rel: i64) -> usize {
        self.start[group].unsigned_abs() as usize - 1 + rel.unsigned_abs() as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether the ids of a group are compared.
    pub fn has(&self, group: usize) -> bool {
        self.start[group] > 0
    }

    /// The groups that have ids, each with these.
    fn groups(&self, counts: &[i64]) -> impl Iterator<Item = (usize, &[Uuid])> {
        let groups = self.start.iter().zip(counts).enumerate();
        groups
            .filter(|(_, (start, _))| **start > 0)
            .map(|(group, (start, count))| {
                let from = start.unsigned_abs() as usize - 1;
                (group, &self.ids[from..from + count.unsigned_abs() as usize])
            })
    }
}

/// Where in the log the database has to look for the ids of a push.
#[derive(Debug, Default)]
pub struct Looks {
    pub server: Vec<Option<Timestamp>>,
    /// Counted from 1.
    pub group: Vec<i32>,
    pub partition: Vec<Option<i64>>,
    pub from: Vec<i64>,
    pub upto: Vec<i64>,
}

/// The ids of a push, and what is known of them.
pub struct Asked {
    pub marks: Marks,
    pub looks: Looks,
    known: HashMap<usize, Known>,
}

impl Asked {
    /// Looks the ids of a push up in what is known.
    pub fn of(repeats: &Repeats, tenant: Uuid, push: &PreparedPush, marks: Marks) -> Self {
        let look = |group: usize, ids: &[Uuid]| {
            let (queue, partition) = (&push.queues[group], &push.partitions[group]);
            repeats.recent.look(tenant, queue, partition, ids)
        };
        let mut known = HashMap::new();
        let mut looks = Looks::default();
        for (group, ids) in marks.groups(push.counts()) {
            let of_group: Known = look(group, ids);
            for (from, upto) in &of_group.ranges {
                looks.server.push(of_group.server);
                looks.group.push(group as i32 + 1);
                looks.partition.push(of_group.partition);
                looks.from.push(*from);
                looks.upto.push(*upto);
            }
            known.insert(group, of_group);
        }
        Self {
            marks,
            looks,
            known,
        }
    }

    /// Remembers what was written.
    pub fn learn(&self, repeats: &Repeats, tenant: Uuid, push: &PreparedPush, written: &[Group]) {
        for (queue, group) in push.queues.iter().zip(written) {
            if !group.takes {
                repeats.learn(tenant, queue);
            }
        }
        for (group, ids) in self.marks.groups(push.counts()) {
            if let Group {
                takes: true,
                written: Some(written),
                ..
            } = &written[group]
            {
                let name = (tenant, &*push.queues[group], &*push.partitions[group]);
                repeats
                    .recent
                    .learn(name, &self.known[&group], ids, written);
            }
        }
    }

    /// Notes which groups have too many ids that are not known.
    pub fn fall_behind(
        &self,
        repeats: &Repeats,
        tenant: Uuid,
        push: &PreparedPush,
        groups: &[(usize, Written)],
    ) {
        for (group, written) in groups {
            let (queue, partition) = (&push.queues[*group], &push.partitions[*group]);
            repeats
                .recent
                .fall_behind(tenant, queue, partition, written);
        }
    }
}

/// What became of a group that was written.
#[derive(Debug)]
pub struct Group {
    /// What it was assigned.
    pub assigned: Assigned,
    /// Whether a transaction id counts once.
    takes: bool,
    written: Option<Written>,
}

/// The record that an item repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// One that is in the log.
    Stored {
        /// Life of the partition.
        life: Uuid,
        /// Its offset.
        offset: i64,
    },
    /// An earlier item of the same request.
    Item(usize),
}

/// What the database made of a push.
#[derive(Debug)]
pub enum Outcome {
    /// All of it is written: what became of each group.
    Written(Vec<Group>),
    /// Nothing is, because items repeat earlier records.
    Repeated(HashMap<usize, Earlier>),
    /// Nothing is, because of these groups too many ids are not known.
    Unknown(Vec<(usize, Written)>),
}

impl Outcome {
    /// Of a push without ids.
    pub fn of_plain(rows: &[Row]) -> Self {
        let group = |row: &Row| Group {
            assigned: Assigned {
                life: row.get(0),
                base_offset: row.get(1),
            },
            takes: true,
            written: None,
        };
        Self::Written(rows.iter().map(group).collect())
    }

    /// Of a push with ids.
    pub fn of(rows: &[Row], marks: &Marks, counts: &[i64]) -> Self {
        let mut groups = Vec::new();
        let mut earlier = HashMap::new();
        let mut unknown = Vec::new();
        for row in rows {
            let group = row.get::<_, i32>(1).unsigned_abs() as usize - 1;
            let life: Option<Uuid> = row.get(3);
            let offset: Option<i64> = row.get(4);
            let written = || Written {
                partition: row.get(6),
                at: (offset.unwrap_or(0), offset.unwrap_or(0)),
                unknown: row.get::<_, Option<i64>>(7).unwrap_or(0),
                expires: row.get(8),
                now: row.get(9),
                server: row.get(10),
            };
            match (row.get::<_, i32>(0), life, offset) {
                (0, Some(life), Some(base_offset)) => groups.push(Group {
                    assigned: Assigned { life, base_offset },
                    takes: row.get(5),
                    written: Some(written()),
                }),
                (1, Some(life), Some(offset)) => {
                    let item = marks.items[marks.slot(group, row.get(2))];
                    earlier.insert(item, Earlier::Stored { life, offset });
                }
                (2, ..) => {
                    let inner = marks.inner.iter().filter(|(of, ..)| *of == group);
                    earlier.extend(inner.map(|(_, item, first)| (*item, Earlier::Item(*first))));
                }
                _ => unknown.push((group, written())),
            }
        }
        if !earlier.is_empty() {
            return Self::Repeated(earlier);
        }
        if groups.is_empty() {
            return Self::Unknown(unknown);
        }
        for (group, count) in groups.iter_mut().zip(counts) {
            if let Some(written) = &mut group.written {
                written.at.1 += count;
            }
        }
        for (group, found) in unknown {
            if let Some(written) = &mut groups[group].written {
                written.unknown = found.unknown;
            }
        }
        Self::Written(groups)
    }
}

/// Until the broker stops: deletes ids past their window, which count for nothing already, and makes room
/// in what is remembered of the others.
pub async fn run(broker: Arc<Broker>) {
    let work = async { tokio::join!(sweeps(&broker), make_room(&broker)) };
    tokio::select! {
        _ = work => {}
        () = broker.stopping.cancelled() => {}
    }
}

async fn sweeps(broker: &Broker) {
    loop {
        tokio::time::sleep(DEDUP_SWEEP_EVERY).await;
        if let Err(error) = sweep(broker).await {
            tracing::warn!(%error, "transaction ids past their window could not be swept");
        }
    }
}

/// Deletes ids past their window, in steps that no push waits for.
///
/// # Errors
///
/// The database's. What was done is done.
pub async fn sweep(broker: &Broker) -> Result<(), ApiError> {
    const RECENT: &str = "
        DELETE FROM queen.recent_ids t USING (
            SELECT partition_id, base_offset FROM queen.recent_ids
            WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) e
        WHERE t.partition_id = e.partition_id AND t.base_offset = e.base_offset";
    const INDEXED: &str = "
        DELETE FROM queen.transaction_ids t USING (
            SELECT partition_id, id FROM queen.transaction_ids
            WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) e
        WHERE t.partition_id = e.partition_id AND t.id = e.id AND t.expires_at <= clock_timestamp()";
    for step in [RECENT, INDEXED] {
        loop {
            // A session per step: requests come in between.
            let client = broker.background().await?;
            let statement = client.prepare_cached(step).await?;
            let rows = client.execute(&statement, &[&DEDUP_SWEEP_ROWS]).await?;
            if rows < DEDUP_SWEEP_ROWS.unsigned_abs() {
                break;
            }
        }
    }
    Ok(())
}

async fn make_room(broker: &Broker) {
    let recent = &broker.repeats.recent;
    loop {
        recent.crowded.notified().await;
        while let Some((view, below)) = recent.make_room() {
            match index(broker, view.partition(), below).await {
                Ok(()) => view.forget_below(below),
                Err(error) => {
                    tracing::warn!(%error, "transaction ids could not be indexed; what is remembered of them grows");
                    tokio::time::sleep(RECENT_PAUSE).await;
                    // Reading them again is dear; refusing pushes for as long as it fails is worse.
                    if recent.is_full() {
                        recent.forget(&view);
                    }
                }
            }
            recent.made_room();
        }
        if recent.is_full() {
            // What is left is held by pushes under way, and goes with them.
            tokio::time::sleep(RECENT_HELD_PAUSE).await;
        }
        recent.made_room();
    }
}

/// Has a partition's ids below an offset indexed, in steps that no push waits for.
async fn index(broker: &Broker, partition: i64, below: i64) -> Result<(), ApiError> {
    const INDEX: &str = "SELECT queen.index_ids($1, $2, $3)";
    loop {
        let client = broker.background().await?;
        let statement = client.prepare_cached(INDEX).await?;
        let row = client
            .query_one(&statement, &[&partition, &below, &RECENT_INDEX_IDS])
            .await?;
        if row.get::<_, i64>(0) == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MIB;

    #[test]
    fn an_id_repeats_within_its_partition_alone() {
        let mut marks = Marks::of(&[4, 0, 2]);
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for (item, group, rel, id) in [
            (0, 0, 0, a),
            (1, 2, 0, a),
            (3, 0, 1, b),
            (4, 0, 2, a),
            (6, 0, 3, a),
        ] {
            marks.set(item, group, rel, id);
        }
        assert_eq!(marks.inner, [(0, 4, 0), (0, 6, 0)]);
        assert_eq!(marks.twice, [true, false, false]);
        assert_eq!(marks.start, [1, 0, 5]);
        assert_eq!(marks.ids, [a, b, a, a, a, Uuid::nil()]);
        assert_eq!(marks.items[..5], [0, 3, 4, 6, 1]);
    }

    #[test]
    fn what_is_known_of_a_queue_is_its_tenants() {
        let repeats = Repeats::bounded(MIB);
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        repeats.learn(one, "q");
        assert!(repeats.takes(one, "q") && !repeats.takes(other, "q"));
        repeats.forget(one, &["q".into()]);
        assert!(!repeats.takes(one, "q"));
    }
}
