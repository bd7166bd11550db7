//! Pushes that are repeated: a transaction id counts once per partition and window.
//!
//! A producer that lost an answer pushes again with the same ids, and must not make records of it.
//! The ids it gives go with the push; the database compares them while it holds the partitions, and
//! writes nothing when one is there already. The push is then made again without the repetitions:
//! they are rare, and nothing is spent on them before they happen. Ids that the broker gives are
//! compared with nothing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::Row;
use uuid::Uuid;

use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{DEDUP_SWEEP_EVERY, DEDUP_SWEEP_ROWS, KNOWN_REPEATING_QUEUES};

/// The queues that are known to take repeated ids: their pushes carry none, until the database says
/// that it has changed.
#[derive(Debug, Default)]
pub struct Repeats {
    taking: Mutex<HashSet<(Uuid, String)>>,
}

impl Repeats {
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

/// Ids that go with a push, column by column as the database takes them.
#[derive(Debug, Default)]
pub struct Marks {
    /// Place of the item in the request.
    pub item: Vec<i32>,
    /// Its group, counted from 1.
    pub group: Vec<i32>,
    /// Which record of the group it is.
    pub rel: Vec<i64>,
    /// What stands for its id.
    pub id: Vec<Uuid>,
    /// Place of an earlier item with the same id and partition.
    pub first: Vec<Option<i32>>,
    seen: HashMap<(usize, Uuid), i32>,
}

impl Marks {
    /// Adds the id of an item.
    pub fn push(&mut self, item: usize, group: usize, rel: i64, id: Uuid) {
        // A body holds fewer items than bytes, and those are below 1 GiB.
        let item = item as i32;
        let first = *self.seen.entry((group, id)).or_insert(item);
        self.item.push(item);
        self.group.push(group as i32 + 1);
        self.rel.push(rel);
        self.id.push(id);
        self.first.push((first != item).then_some(first));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.item.is_empty()
    }
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

/// The repetitions that the database names instead of writing, by the place of their item.
pub fn repeated(rows: &[Row]) -> HashMap<usize, Earlier> {
    rows.iter()
        .filter_map(|row| {
            let item = row.get::<_, Option<i32>>(2)?.unsigned_abs() as usize;
            let (life, place): (Option<Uuid>, i64) = (row.get(0), row.get(1));
            let earlier = match life {
                Some(life) => Earlier::Stored {
                    life,
                    offset: place,
                },
                None => Earlier::Item(place.unsigned_abs() as usize),
            };
            Some((item, earlier))
        })
        .collect()
}

/// Deletes ids past their window, in small steps, until the broker stops. They count for nothing
/// already; this gives their room back.
pub async fn run(broker: Arc<Broker>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(DEDUP_SWEEP_EVERY) => {}
            () = broker.stopping.cancelled() => return,
        }
        loop {
            match sweep(&broker).await {
                Ok(rows)
                    if rows == DEDUP_SWEEP_ROWS.unsigned_abs()
                        && !broker.stopping.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "transaction ids past their window could not be swept");
                    break;
                }
            }
        }
    }
}

async fn sweep(broker: &Broker) -> Result<u64, ApiError> {
    // An id that a push holds is being pushed anew.
    const SWEEP: &str = "
        DELETE FROM queen.transaction_ids t USING (
            SELECT partition_id, id FROM queen.transaction_ids
            WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) e
        WHERE t.partition_id = e.partition_id AND t.id = e.id AND t.expires_at <= clock_timestamp()";
    let client = broker.database.client().await?;
    let statement = client.prepare_cached(SWEEP).await?;
    Ok(client.execute(&statement, &[&DEDUP_SWEEP_ROWS]).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_repeats_within_its_partition_alone() {
        let mut marks = Marks::default();
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for (item, group, id) in [(0, 0, a), (1, 1, a), (2, 0, b), (3, 0, a), (4, 0, a)] {
            marks.push(item, group, item as i64, id);
        }
        assert_eq!(marks.first, [None, None, None, Some(0), Some(0)]);
        assert_eq!(marks.group, [1, 2, 1, 1, 1]);
    }

    #[test]
    fn what_is_known_of_a_queue_is_its_tenants() {
        let repeats = Repeats::default();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        repeats.learn(one, "q");
        assert!(repeats.takes(one, "q") && !repeats.takes(other, "q"));
        repeats.forget(one, &["q".into()]);
        assert!(!repeats.takes(one, "q"));
    }
}
