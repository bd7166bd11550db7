//! What the scenarios push: the demo's payloads over any number of partitions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_dev::{BrokerClient, Event, Pushed, events};
use tokio::task::JoinSet;

/// Records of one push call, all of one partition, so that they share a segment.
pub const BATCH: usize = 100;
/// Push calls in flight while a backlog is made.
const PUSHERS: usize = 8;

/// Payloads to push, over and over: too many for a compressor to find one again.
#[derive(Debug, Clone)]
pub struct Payloads(Arc<Vec<Arc<str>>>);

impl Payloads {
    /// The demo's events.
    pub fn of_the_demo() -> Result<Self> {
        let events = events::first(events::EVENTS)?;
        let payloads = events.into_iter().map(|event| event.payload).collect();
        Ok(Self(Arc::new(payloads)))
    }

    /// Payloads of about `bytes` each, made of the demo's.
    pub fn of_size(bytes: usize) -> Result<Self> {
        let demo = Self::of_the_demo()?;
        if bytes < 200 {
            let small = |number: usize| format!(r#"{{"visit":{number},"page":"/tea"}}"#).into();
            return Ok(Self(Arc::new((0..events::EVENTS).map(small).collect())));
        }
        let mut parts = demo.0.iter();
        let mut payloads: Vec<Arc<str>> = Vec::new();
        loop {
            let mut payload = String::from("[");
            while payload.len() < bytes {
                let Some(part) = parts.next() else {
                    ensure!(
                        !payloads.is_empty(),
                        "{bytes} bytes are more than all events"
                    );
                    return Ok(Self(Arc::new(payloads)));
                };
                if payload.len() > 1 {
                    payload.push(',');
                }
                payload.push_str(part);
            }
            payload.push(']');
            payloads.push(payload.into());
        }
    }

    /// The batch number `batch` of `records` records for `queue`, spread over `partitions`.
    pub fn batch(
        &self,
        queue: &str,
        batch: usize,
        records: usize,
        partitions: usize,
    ) -> Vec<Event> {
        let partition = format!("customer-{:07}", batch % partitions);
        (0..records)
            .map(|place| {
                let number = batch * records + place;
                Event {
                    queue: queue.to_owned(),
                    partition: partition.clone(),
                    transaction_id: format!("event-{number:010}"),
                    payload: Arc::clone(&self.0[number % self.0.len()]),
                }
            })
            .collect()
    }
}

/// A backlog that was made.
#[derive(Debug, Clone, Copy)]
pub struct Backlog {
    /// Records in it.
    pub records: u64,
    /// Their payloads' bytes.
    pub payload_bytes: u64,
    /// How long pushing took.
    pub took: Duration,
}

/// Pushes `batches` batches of `records` records each into `queue`, as fast as the broker takes
/// them.
pub async fn push_backlog(
    client: &BrokerClient,
    queue: &str,
    payloads: &Payloads,
    batches: usize,
    records: usize,
    partitions: usize,
) -> Result<Backlog> {
    client.configure(queue).await?;
    let begin = Instant::now();
    let mut pushers = JoinSet::new();
    for pusher in 0..PUSHERS {
        let (client, queue, payloads) = (client.clone(), queue.to_owned(), payloads.clone());
        pushers.spawn(async move {
            let (mut count, mut bytes) = (0, 0);
            for batch in (pusher..batches).step_by(PUSHERS) {
                let pushed = client
                    .push(payloads.batch(&queue, batch, records, partitions))
                    .await?;
                count += pushed.len() as u64;
                bytes += pushed.iter().map(payload_bytes).sum::<u64>();
            }
            anyhow::Ok((count, bytes))
        });
    }
    let mut backlog = Backlog {
        records: 0,
        payload_bytes: 0,
        took: Duration::ZERO,
    };
    while let Some(pushed) = pushers.join_next().await {
        let (count, bytes) = pushed??;
        backlog.records += count;
        backlog.payload_bytes += bytes;
    }
    backlog.took = begin.elapsed();
    Ok(backlog)
}

fn payload_bytes(pushed: &Pushed) -> u64 {
    pushed.event.payload.len() as u64
}
