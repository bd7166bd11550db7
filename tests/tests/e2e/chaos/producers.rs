//! Producers that keep books of what the nodes acknowledged.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use queen_dev::{BrokerClient, Event, Pushed};
use tokio::task::JoinSet;

use super::stage::{LARGE, QUEUES, Stage};

const PRODUCERS: u64 = 4;
const PARTITIONS: usize = 5;
/// Records of a push at most.
const BATCH: usize = 12;
/// The first producer's push of every so many rounds is a large one, the first of all among them.
const LARGE_EVERY: u64 = 32;
/// Records of a large push, and what pads each: more than goes up in one request, and in one segment, so
/// that no two windows share it.
const LARGE_RECORDS: usize = 12;
const LARGE_PAD: usize = 460_000;
/// Between two pushes of one producer.
const PAUSE_MS: std::ops::Range<u64> = 40..160;
/// How long a producer waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of so many failed tries one is the last.
const GIVES_UP: u8 = 4;

/// What the producers know.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Acknowledged, with their offsets.
    pub acknowledged: Vec<Pushed>,
    /// Given up on: in the log once, or not at all.
    pub unsettled: Vec<Event>,
    /// Tries that failed.
    failed: usize,
    /// Pushes that were acknowledged at a later try than the first.
    repeated: usize,
}

impl fmt::Display for Ledger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} records acknowledged, {} given up on; {} tries failed, {} pushes were repeated",
            self.acknowledged.len(),
            self.unsettled.len(),
            self.failed,
            self.repeated
        )
    }
}

/// Producers at work.
pub struct Producers {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Ledger>,
}

impl Producers {
    pub fn start(stage: &Stage, seed: u64) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        for number in 0..PRODUCERS {
            let nodes = stage.node_urls();
            let nodes = nodes
                .map(|url| BrokerClient::impatient(&url, PATIENCE))
                .collect::<Result<Vec<_>>>()?;
            let dice = Rng::with_seed(seed.wrapping_mul(PRODUCERS).wrapping_add(number));
            tasks.spawn(produce(number, nodes, dice, Arc::clone(&stop)));
        }
        Ok(Self { stop, tasks })
    }

    /// Ends every producer once its last push is settled or given up on.
    pub async fn end(mut self) -> Result<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Ledger::default();
        while let Some(of_one) = self.tasks.join_next().await {
            let of_one = of_one?;
            all.acknowledged.extend(of_one.acknowledged);
            all.unsettled.extend(of_one.unsettled);
            all.failed += of_one.failed;
            all.repeated += of_one.repeated;
        }
        Ok(all)
    }
}

async fn produce(
    number: u64,
    nodes: Vec<BrokerClient>,
    mut dice: Rng,
    stop: Arc<AtomicBool>,
) -> Ledger {
    let mut ledger = Ledger::default();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let events = batch(number, round, &mut dice);
        let large = is_large(number, round);
        // The run is to have a large one, and the end of the run must not wait for it.
        let gives_up =
            |dice: &mut Rng| stop.load(Ordering::Relaxed) || (!large && dice.u8(0..GIVES_UP) == 0);
        let mut tries = 0;
        loop {
            tries += 1;
            // The ids make a try at another node, or after a lost answer, count once.
            let node = &nodes[dice.usize(0..nodes.len())];
            match node.push(events.clone()).await {
                Ok(pushed) => {
                    ledger.acknowledged.extend(pushed);
                    ledger.repeated += usize::from(tries > 1);
                    break;
                }
                Err(_) if gives_up(&mut dice) => {
                    ledger.failed += 1;
                    ledger.unsettled.extend(events);
                    break;
                }
                Err(_) => ledger.failed += 1,
            }
            tokio::time::sleep(Duration::from_millis(dice.u64(PAUSE_MS))).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.u64(PAUSE_MS))).await;
    }
    ledger
}

fn is_large(producer: u64, round: u64) -> bool {
    producer == 0 && round.is_multiple_of(LARGE_EVERY)
}

fn batch(producer: u64, round: u64, dice: &mut Rng) -> Vec<Event> {
    let large = is_large(producer, round);
    let one_partition = dice.usize(0..PARTITIONS);
    let records = if large {
        LARGE_RECORDS
    } else {
        dice.usize(1..=BATCH)
    };
    (0..records)
        .map(|item| {
            let id = format!("{producer}-{round}-{item}");
            let (queue, partition, pad) = if large {
                (LARGE, one_partition, LARGE_PAD)
            } else {
                let queue = QUEUES[dice.usize(0..QUEUES.len())];
                (queue, dice.usize(0..PARTITIONS), dice.usize(0..400))
            };
            let payload = format!(
                r#"{{"id":"{id}", "amount":{}.50,"note":"é 🦀 \u0007","pad":"{}"}}"#,
                dice.u32(..),
                "x".repeat(pad)
            );
            Event {
                queue: queue.into(),
                partition: format!("p/{partition}"),
                transaction_id: id,
                payload: payload.into(),
            }
        })
        .collect()
}
