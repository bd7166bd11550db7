//! Tells the other brokers of the database which queues were written to, so that their parked
//! fetches look again. A lost signal costs latency only: a parked fetch looks again by itself.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::broker::Broker;
use crate::database::Message;
use crate::error::ApiError;
use crate::limits::{PEER_RECONNECT, PEER_SIGNAL_EVERY, PEER_SIGNAL_MAX_BYTES};

const CHANNEL: &str = "queen_written";

/// Queues written to since the last signal.
#[derive(Debug, Default)]
pub struct Outbox {
    queues: Mutex<HashSet<(Uuid, String)>>,
    released: Mutex<HashSet<(Uuid, String)>>,
    filled: Notify,
}

#[derive(Serialize, Deserialize)]
struct Signal {
    /// The broker that sends: it has woken its own fetches.
    from: Uuid,
    /// Queues per tenant that were written to; when they did not fit nothing is named, which means all.
    queues: Vec<(Uuid, String)>,
    /// Queues in which consumers have given records back.
    #[serde(default)]
    released: Vec<(Uuid, String)>,
}

impl Outbox {
    /// Notes that the queue was written to.
    pub fn note<'a>(&self, tenant: Uuid, queues: impl Iterator<Item = &'a String>) {
        let mut noted = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            noted.insert((tenant, queue.clone()));
        }
        drop(noted);
        self.filled.notify_one();
    }

    /// Notes that a consumer of this queue has given records back.
    pub fn note_released(&self, tenant: Uuid, queue: &str) {
        let mut noted = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        noted.insert((tenant, queue.to_owned()));
        drop(noted);
        self.filled.notify_one();
    }

    /// The next signal's text, if there is anything to tell.
    fn signal(&self, from: Uuid) -> Option<String> {
        let drained = |noted: &Mutex<HashSet<(Uuid, String)>>| -> Vec<(Uuid, String)> {
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.drain().collect()
        };
        let (queues, released) = (drained(&self.queues), drained(&self.released));
        if queues.is_empty() && released.is_empty() {
            return None;
        }
        let signal = Signal {
            from,
            queues,
            released,
        };
        let text = serde_json::to_string(&signal).ok()?;
        if text.len() <= PEER_SIGNAL_MAX_BYTES {
            return Some(text);
        }
        serde_json::to_string(&Signal {
            from,
            queues: Vec::new(),
            released: Vec::new(),
        })
        .ok()
    }
}

/// Sends and receives signals until the broker stops; a lost connection is made again.
///
/// Both go over a session of their own. Signals are gathered, and sent after the pushes they tell
/// of have committed: a notification inside a push would make all pushes commit one by one.
pub async fn run(broker: Arc<Broker>) {
    loop {
        let outcome = tokio::select! {
            outcome = converse(&broker) => outcome,
            () = broker.stopping.cancelled() => return,
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "lost the connection that tells of writes");
        }
        tokio::select! {
            () = tokio::time::sleep(PEER_RECONNECT) => {}
            () = broker.stopping.cancelled() => return,
        }
    }
}

async fn converse(broker: &Broker) -> Result<(), ApiError> {
    let (client, mut connection) = broker.database.separate().await?;
    let receive = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Message::Notification(notification) = message? {
                wake(broker, notification.payload());
            }
        }
        Ok(())
    };
    let send = async {
        // A signal that a crash of the server loses would have come from before it.
        client
            .batch_execute(&format!("SET synchronous_commit = off; LISTEN {CHANNEL}"))
            .await?;
        // What was written before this moment was not heard of.
        broker.waiters.wake_all();
        let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
        loop {
            broker.outbox.filled.notified().await;
            if let Some(signal) = broker.outbox.signal(broker.instance) {
                client.execute(&notify, &[&CHANNEL, &signal]).await?;
            }
            tokio::time::sleep(PEER_SIGNAL_EVERY).await;
        }
    };
    tokio::select! {
        outcome = receive => outcome,
        outcome = send => outcome,
    }
}

fn wake(broker: &Broker, payload: &str) {
    match serde_json::from_str::<Signal>(payload) {
        Ok(signal) if signal.from == broker.instance => {}
        Ok(signal) if !signal.queues.is_empty() || !signal.released.is_empty() => {
            for (tenant, queue) in signal.queues {
                broker.waiters.wake_queue(tenant, &queue);
            }
            for (tenant, queue) in signal.released {
                broker.waiters.wake_consumers(tenant, &queue);
            }
        }
        // Too many to name, or a later broker's words.
        _ => broker.waiters.wake_all(),
    }
}
