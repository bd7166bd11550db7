//! Retention: old segments, empty partitions and the remains of deleted queues go in small steps.
//!
//! A step is one statement, and waits for no lock: a push that meets one waits for the update of a
//! few rows. Moving the log's start hides segments at once; deleting them afterwards touches no row
//! that a push needs. Every broker runs the same steps; two that meet skip each other's rows.

mod hold;
mod steps;

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use uuid::Uuid;

use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{
    DELETION_CURSORS, DELETION_PARTITIONS, PARTITION_CLEANUP_EVERY, RETENTION_PARTITIONS,
    RETENTION_QUEUES, RETENTION_SEGMENTS,
};
use crate::queue::delete::raise_floor;
use hold::Policy;

/// Runs passes until the broker stops.
pub async fn run(broker: Arc<Broker>) {
    let work = async { tokio::join!(expire(&broker), clear_deleted(&broker)) };
    tokio::select! {
        _ = work => {}
        () = broker.stopping.cancelled() => {}
    }
}

async fn expire(broker: &Broker) {
    let mut cleaned = Instant::now();
    loop {
        tokio::time::sleep(broker.config.retention_interval).await;
        let cleanup = cleaned.elapsed() >= PARTITION_CLEANUP_EVERY;
        match pass(broker, cleanup).await {
            Ok(()) if cleanup => cleaned = Instant::now(),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "retention did not finish its pass"),
        }
    }
}

/// Runs beside the passes: the remains of a large queue keep nothing else from expiring.
async fn clear_deleted(broker: &Broker) {
    loop {
        tokio::time::sleep(broker.config.retention_interval).await;
        if let Err(error) = clear(broker).await {
            tracing::warn!(%error, "the remains of deleted queues were not all removed");
        }
    }
}

/// One pass over all queues; with `cleanup` also over partitions without anything to expire.
///
/// # Errors
///
/// The database's. What was done is done; the next pass does the rest.
pub async fn pass(broker: &Broker, cleanup: bool) -> Result<(), ApiError> {
    let mut after = 0;
    loop {
        let queues = {
            let client = broker.background().await?;
            steps::queues(&client, after, RETENTION_QUEUES).await?
        };
        for queue in &queues {
            after = queue.id;
            let policy = match &queue.options {
                Value::Object(options) => Policy::of(options),
                _ => None,
            };
            if policy.is_some() || cleanup {
                sweep(broker, queue, policy.as_ref(), cleanup).await?;
            }
        }
        if (queues.len() as i64) < RETENTION_QUEUES {
            return Ok(());
        }
    }
}

/// Removes what deleted queues, deleted groups and removed partitions have left, step by step.
///
/// # Errors
///
/// The database's. What was done is done; the next call does the rest.
pub async fn clear(broker: &Broker) -> Result<(), ApiError> {
    let mut after = 0;
    loop {
        let client = broker.background().await?;
        let Some((id, queue)) = steps::deleted_queue(&client, after).await? else {
            break;
        };
        after = id;
        // The broker that deleted the queue may have been killed before it came to this.
        raise_floor(&client, queue.tenant, &queue.name).await?;
        drop(client);
        loop {
            // A session per step: requests come in between.
            let client = broker.background().await?;
            if steps::dismantle(&client, &queue, DELETION_PARTITIONS).await? == 0 {
                break;
            }
        }
    }
    clear_groups(broker).await?;
    empty_trash(broker).await
}

async fn clear_groups(broker: &Broker) -> Result<(), ApiError> {
    let kept = broker.config.database.deleted_group();
    let mut after = 0;
    loop {
        let client = broker.background().await?;
        let Some(group) = steps::deleted_group(&client, after).await? else {
            return Ok(());
        };
        drop(client);
        after = group;
        loop {
            let client = broker.background().await?;
            if steps::remove_cursors(&client, group, DELETION_CURSORS, kept).await? == 0 {
                break;
            }
        }
    }
}

/// A queue as retention sees it.
#[derive(Debug)]
struct Queue {
    id: i64,
    tenant: Uuid,
    name: String,
    options: Value,
}

async fn sweep(
    broker: &Broker,
    queue: &Queue,
    policy: Option<&Policy>,
    cleanup: bool,
) -> Result<(), ApiError> {
    let cutoffs = match policy {
        Some(policy) => {
            let client = broker.background().await?;
            let cutoffs = policy
                .read_cutoffs(&client, queue.tenant, &queue.name)
                .await?;
            Some(cutoffs)
        }
        None => None,
    };
    let idle_days = broker.config.partition_cleanup_days;
    let mut after = String::new();
    loop {
        // A session per page: requests come in between.
        let client = broker.background().await?;
        let page = steps::page(&client, queue.id, &after, RETENTION_PARTITIONS, idle_days).await?;
        if let Some(cutoffs) = cutoffs {
            // The later one; an absent one is below all.
            let newest = cutoffs.all.max(cutoffs.completed);
            let expired: Vec<i64> = page
                .iter()
                .filter(|partition| partition.oldest.is_some() && partition.oldest < newest)
                .map(|partition| partition.id)
                .collect();
            let records = steps::expire(&client, &expired, cutoffs).await?;
            broker.metrics.expired_records.inc_by(records);
        }
        let idle: Vec<i64> = page
            .iter()
            .filter(|partition| cleanup && partition.idle && partition.oldest.is_none())
            .map(|partition| partition.id)
            .collect();
        if !idle.is_empty() {
            let gone = steps::remove_partitions(&client, &idle, idle_days).await?;
            broker.metrics.removed_partitions.inc_by(gone);
        }
        match page.last() {
            Some(last) if page.len() as i64 == RETENTION_PARTITIONS => {
                after.clone_from(&last.name);
            }
            _ => return Ok(()),
        }
    }
}

async fn empty_trash(broker: &Broker) -> Result<(), ApiError> {
    loop {
        let client = broker.background().await?;
        if !steps::empty_trash(&client, RETENTION_PARTITIONS, RETENTION_SEGMENTS).await? {
            return Ok(());
        }
    }
}
