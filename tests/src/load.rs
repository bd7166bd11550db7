//! Producers that push on whatever happens, and what must hold afterwards.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_dev::{BrokerClient, Event, Ledger, Pushed, WAIT, eventually};
use tokio::task::JoinSet;

/// Pause of a producer whose push was refused.
const PAUSE: Duration = Duration::from_millis(50);

/// Producers at work. Every record is pushed once: what was refused is not tried again.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    producers: JoinSet<Vec<Pushed>>,
}

impl Load {
    /// Starts `producers` that push to `partitions` partitions of `queue`, `batch` records a call.
    pub fn start(
        client: &BrokerClient,
        queue: &str,
        producers: usize,
        partitions: usize,
        batch: usize,
    ) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            refused: Arc::default(),
            producers: JoinSet::new(),
        };
        for producer in 0..producers {
            let (client, queue) = (client.clone(), queue.to_owned());
            let stop = Arc::clone(&load.stop);
            let acknowledged = Arc::clone(&load.acknowledged);
            let refused = Arc::clone(&load.refused);
            load.producers.spawn(async move {
                let mut pushed = Vec::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let event = |item: usize| {
                        let id = format!("{producer}-{round}-{item}");
                        Event {
                            queue: queue.clone(),
                            partition: format!("p{}", (round + item) % partitions),
                            payload: format!(r#"{{"id":"{id}"}}"#).into(),
                            transaction_id: id,
                        }
                    };
                    match client.push((0..batch).map(event).collect()).await {
                        Ok(more) => {
                            acknowledged.fetch_add(more.len(), Ordering::Relaxed);
                            pushed.extend(more);
                        }
                        Err(_) => {
                            refused.fetch_add(batch, Ordering::Relaxed);
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
                pushed
            });
        }
        load
    }

    /// Records refused so far: by an answer, or by none.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until `count` more records have been acknowledged.
    ///
    /// # Errors
    ///
    /// When that does not come to pass in time.
    pub async fn goes_on(&self, count: usize) -> Result<()> {
        let so_far = self.acknowledged.load(Ordering::Relaxed);
        eventually(WAIT, async || {
            let now = self.acknowledged.load(Ordering::Relaxed);
            Ok((now >= so_far + count).then_some(()))
        })
        .await
        .context("the broker acknowledges no more pushes")
    }

    /// Ends the producers and checks the log: it holds every acknowledged record at its offset, and
    /// no record twice.
    ///
    /// # Errors
    ///
    /// What differs.
    pub async fn check(mut self, client: &BrokerClient, queue: &str) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let mut pushed = Vec::new();
        while let Some(of_one) = self.producers.join_next().await {
            pushed.extend(of_one?);
        }
        let log = client.read_log(queue).await?;
        check_log(&log, &pushed)
    }
}

/// Whether `log` holds every record of `pushed` at its offset, and no record twice.
///
/// # Errors
///
/// What differs.
pub fn check_log(log: &Ledger, pushed: &[Pushed]) -> Result<()> {
    let mut seen = HashSet::new();
    let mut next: BTreeMap<&str, i64> = BTreeMap::new();
    for (partition, offset, payload) in log.iter() {
        ensure!(
            seen.insert(payload),
            "{partition}@{offset} {payload} is in the log twice"
        );
        let expected = next.entry(partition).or_insert(0);
        ensure!(
            offset == *expected,
            "{partition}: {offset} follows where {expected} should"
        );
        *expected += 1;
    }
    for one in pushed {
        let found = log.get(&one.event.partition, one.offset);
        ensure!(
            found == Some(&*one.event.payload),
            "{}@{} was acknowledged and is {found:?} in the log",
            one.event.partition,
            one.offset
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(offset: i64, payload: &str) -> Pushed {
        let event = Event {
            queue: "q".into(),
            partition: "p".into(),
            transaction_id: String::new(),
            payload: payload.into(),
        };
        Pushed { event, offset }
    }

    fn log(payloads: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for (offset, payload) in (0..).zip(payloads) {
            ledger.insert("p", offset, (*payload).into()).unwrap();
        }
        ledger
    }

    #[test]
    fn what_is_lost_doubled_or_missing_in_between_is_told() {
        let acknowledged = [pushed(0, "a"), pushed(1, "b")];
        assert!(check_log(&log(&["a", "b", "unacknowledged"]), &acknowledged).is_ok());
        for (wrong, word) in [
            (log(&["a"]), "acknowledged"),
            (log(&["a", "other"]), "acknowledged"),
            (log(&["a", "b", "a"]), "twice"),
        ] {
            let error = check_log(&wrong, &acknowledged).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let mut gap = log(&["a", "b"]);
        gap.insert("p", 3, "c".into()).unwrap();
        assert!(check_log(&gap, &acknowledged).is_err());
    }
}
