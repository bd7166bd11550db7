//! Parked fetches and pops of this process, and who wakes them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

type QueueKey = (Uuid, String);

/// The registry. Registering comes before looking at the log: what is written after the look then
/// wakes the waiter.
#[derive(Debug, Default)]
pub struct Waiters {
    by_queue: Mutex<HashMap<QueueKey, Vec<Arc<Waiter>>>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct Waiter {
    /// Partitions per queue that the request asked for; none at all means any.
    partitions: HashMap<String, HashSet<String>>,
    /// Takes what others have given back, too.
    consumes: bool,
    notify: Notify,
}

/// A registered waiter; dropping it takes it out of the registry.
#[derive(Debug)]
pub struct Registration<'a> {
    waiters: &'a Waiters,
    tenant: Uuid,
    waiter: Arc<Waiter>,
}

impl Waiters {
    fn table(&self) -> MutexGuard<'_, HashMap<QueueKey, Vec<Arc<Waiter>>>> {
        // Every change below is complete before anything can panic.
        self.by_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers interest in `entries`, pairs of queue and partition.
    pub fn register<'a, 'n>(
        &'a self,
        tenant: Uuid,
        entries: impl Iterator<Item = (&'n str, &'n str)>,
    ) -> Registration<'a> {
        let mut partitions: HashMap<String, HashSet<String>> = HashMap::new();
        for (queue, partition) in entries {
            match partitions.get_mut(queue) {
                Some(set) => set.insert(partition.to_owned()),
                None => partitions
                    .entry(queue.to_owned())
                    .or_default()
                    .insert(partition.to_owned()),
            };
        }
        self.enter(tenant, partitions, false)
    }

    /// Registers a consumer's interest in one partition or any of `queues`.
    pub fn register_consumer<'a, 'n>(
        &'a self,
        tenant: Uuid,
        queues: impl Iterator<Item = &'n str>,
        partition: Option<&str>,
    ) -> Registration<'a> {
        let wanted: HashSet<String> = partition.map(str::to_owned).into_iter().collect();
        let partitions = queues
            .map(|queue| (queue.to_owned(), wanted.clone()))
            .collect();
        self.enter(tenant, partitions, true)
    }

    fn enter(
        &self,
        tenant: Uuid,
        partitions: HashMap<String, HashSet<String>>,
        consumes: bool,
    ) -> Registration<'_> {
        let waiter = Arc::new(Waiter {
            partitions,
            consumes,
            notify: Notify::new(),
        });
        let mut table = self.table();
        for queue in waiter.partitions.keys() {
            table
                .entry((tenant, queue.clone()))
                .or_default()
                .push(Arc::clone(&waiter));
        }
        drop(table);
        self.count.fetch_add(1, Ordering::Relaxed);
        Registration {
            waiters: self,
            tenant,
            waiter,
        }
    }

    /// Wakes who waits for this partition.
    pub fn wake_partition(&self, tenant: Uuid, queue: &str, partition: &str) {
        self.wake(tenant, queue, |_, partitions| {
            partitions.is_empty() || partitions.contains(partition)
        });
    }

    /// Wakes the consumers of this queue: there may be something to take again.
    pub fn wake_consumers(&self, tenant: Uuid, queue: &str) {
        self.wake(tenant, queue, |waiter, _| waiter.consumes);
    }

    /// Wakes who waits for any partition of this queue.
    pub fn wake_queue(&self, tenant: Uuid, queue: &str) {
        self.wake(tenant, queue, |_, _| true);
    }

    fn wake(&self, tenant: Uuid, queue: &str, wanted: impl Fn(&Waiter, &HashSet<String>) -> bool) {
        let table = self.table();
        if table.is_empty() {
            return;
        }
        for waiter in table.get(&(tenant, queue.to_owned())).into_iter().flatten() {
            if waiter
                .partitions
                .get(queue)
                .is_some_and(|partitions| wanted(waiter, partitions))
            {
                waiter.notify.notify_one();
            }
        }
    }

    /// Wakes everyone: what was written in the meantime is not known.
    pub fn wake_all(&self) {
        for waiter in self.table().values().flatten() {
            waiter.notify.notify_one();
        }
    }

    /// How many are registered.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Registration<'_> {
    /// Returns at once when something was written since the last return, else with the next write.
    pub async fn woken(&self) {
        self.waiter.notify.notified().await;
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut table = self.waiters.table();
        for queue in self.waiter.partitions.keys() {
            let key = (self.tenant, queue.clone());
            if let Some(waiting) = table.get_mut(&key) {
                waiting.retain(|other| !Arc::ptr_eq(other, &self.waiter));
                if waiting.is_empty() {
                    table.remove(&key);
                }
            }
        }
        drop(table);
        self.waiters.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_who_asked_for_the_partition_is_woken() {
        let waiters = Waiters::default();
        let tenant = Uuid::new_v4();
        let first = waiters.register(tenant, [("q", "a"), ("q", "b")].into_iter());
        let second = waiters.register(tenant, [("q", "c")].into_iter());
        waiters.wake_partition(tenant, "q", "a");
        waiters.wake_partition(Uuid::new_v4(), "q", "c");
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_none());
        waiters.wake_queue(tenant, "q");
        assert!(second.woken().now_or_never().is_some());
        waiters.wake_all();
        assert!(second.woken().now_or_never().is_some());
    }

    #[test]
    fn a_dropped_registration_leaves_nothing_behind() {
        let waiters = Waiters::default();
        let tenant = Uuid::new_v4();
        let one = waiters.register(tenant, [("q", "a"), ("r", "a")].into_iter());
        let two = waiters.register(tenant, [("q", "a")].into_iter());
        assert_eq!(waiters.count(), 2);
        drop(one);
        drop(two);
        assert_eq!(waiters.count(), 0);
        assert!(waiters.table().is_empty());
    }
}
