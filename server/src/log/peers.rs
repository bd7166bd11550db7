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
use crate::error::{ApiError, describe};
use crate::limits::{PEER_RECONNECT, PEER_SIGNAL_EVERY, PEER_SIGNAL_MAX_BYTES};

const CHANNEL: &str = "queen_written";

/// Queues written to since the last signal.
#[derive(Debug, Default)]
pub struct Outbox {
    queues: Mutex<HashSet<(Uuid, String)>>,
    filled: Notify,
}

#[derive(Serialize, Deserialize)]
struct Signal {
    /// The broker that sends: it has woken its own fetches.
    from: Uuid,
    /// Queues per tenant; empty when they did not fit, which means all.
    queues: Vec<(Uuid, String)>,
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

    fn take(&self) -> Vec<(Uuid, String)> {
        let mut noted = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        noted.drain().collect()
    }
}

/// Sends signals until the broker stops. They are gathered, and sent after the pushes they tell of
/// have committed: a notification inside a push would make all pushes commit one by one.
pub async fn send(broker: Arc<Broker>) {
    loop {
        tokio::select! {
            () = broker.outbox.filled.notified() => {}
            () = broker.stopping.cancelled() => return,
        }
        let queues = broker.outbox.take();
        if queues.is_empty() {
            continue;
        }
        let mut signal = Signal {
            from: broker.instance,
            queues,
        };
        let mut text = serde_json::to_string(&signal).unwrap_or_default();
        if text.len() > PEER_SIGNAL_MAX_BYTES {
            signal.queues.clear();
            text = serde_json::to_string(&signal).unwrap_or_default();
        }
        if let Err(error) = notify(&broker, &text).await {
            tracing::debug!(%error, "other brokers were not told of writes");
        }
        tokio::time::sleep(PEER_SIGNAL_EVERY).await;
    }
}

async fn notify(broker: &Broker, text: &str) -> Result<(), ApiError> {
    let client = broker.database.client().await?;
    let statement = client.prepare_cached("SELECT pg_notify($1, $2)").await?;
    client.execute(&statement, &[&CHANNEL, &text]).await?;
    Ok(())
}

/// Listens for signals until the broker stops, and connects again when the connection is lost.
pub async fn listen(broker: Arc<Broker>) {
    loop {
        let outcome = tokio::select! {
            outcome = listen_once(&broker) => outcome,
            () = broker.stopping.cancelled() => return,
        };
        if let Err(error) = outcome {
            tracing::warn!(
                error = describe(&error),
                "lost the connection that listens for writes"
            );
        }
        tokio::select! {
            () = tokio::time::sleep(PEER_RECONNECT) => {}
            () = broker.stopping.cancelled() => return,
        }
    }
}

async fn listen_once(broker: &Broker) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = broker.database.separate().await?;
    let receive = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Message::Notification(notification) = message? {
                wake(broker, notification.payload());
            }
        }
        Ok(())
    };
    let subscribe = async {
        client.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
        // What was written before this moment was not heard of.
        broker.waiters.wake_all();
        std::future::pending::<Result<(), tokio_postgres::Error>>().await
    };
    tokio::select! {
        outcome = receive => outcome,
        outcome = subscribe => outcome,
    }
}

fn wake(broker: &Broker, payload: &str) {
    match serde_json::from_str::<Signal>(payload) {
        Ok(signal) if signal.from == broker.instance => {}
        Ok(signal) if !signal.queues.is_empty() => {
            for (tenant, queue) in signal.queues {
                broker.waiters.wake_queue(tenant, &queue);
            }
        }
        // Too many to name, or a later broker's words.
        _ => broker.waiters.wake_all(),
    }
}
