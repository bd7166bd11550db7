//! Groups: deletion, and moving one to another place in the log.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::http::json;
use crate::limits::CURSORS_COUNTED;
use crate::timestamp::Timestamp;

/// The answer to a deletion.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    success: bool,
    consumer_group: String,
    deleted_partitions: i64,
    metadata_deleted: bool,
}

/// Deletes a group, of one queue or of all: it begins anew when it pops again. Its cursors go in the
/// background.
///
/// # Errors
///
/// `503` or `500` from the database: the group is whole then.
pub async fn delete(
    broker: &Broker,
    slot: Slot,
    tenant: Uuid,
    group: String,
    queue: Option<String>,
) -> Result<Deleted, ApiError> {
    const DELETE: &str = "
        WITH named AS MATERIALIZED (
            SELECT s.id FROM queen.groups s
            WHERE s.tenant = $1 AND s.name = $2 AND ($3::text IS NULL OR s.queue = $3)
            ORDER BY s.queue FOR UPDATE
        ), gone AS (
            DELETE FROM queen.groups s USING named n WHERE s.id = n.id RETURNING s.id
        ), noted AS (
            INSERT INTO queen.deleted_groups (group_id) SELECT g.id FROM gone g
        )
        SELECT (SELECT count(*) FROM gone), (
            SELECT count(*) FROM (
                SELECT 1 FROM gone g JOIN queen.cursors c ON c.group_id = g.id LIMIT $4
            ) l
        )";
    let client = broker.database.client(slot).await?;
    let statement = client.prepare_cached(DELETE).await?;
    let row = client
        .query_one(&statement, &[&tenant, &group, &queue, &CURSORS_COUNTED])
        .await?;
    Ok(Deleted {
        success: true,
        consumer_group: group,
        deleted_partitions: row.get(1),
        metadata_deleted: row.get::<_, i64>(0) > 0,
    })
}

/// Where a group is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The first record with this `ts` or a later one.
    At(Timestamp),
    /// What is pushed from now on.
    End,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seek {
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    to_end: Option<bool>,
}

/// Reads where to move a group.
///
/// # Errors
///
/// `400` when the body names no place, or one that is no instant.
pub fn parse_seek(body: &[u8]) -> Result<Target, ApiError> {
    let seek: Seek = json::parse(body)?;
    match (seek.to_end, seek.timestamp) {
        (Some(true), None) => Ok(Target::End),
        (None | Some(false), Some(text)) => Timestamp::parse(&text)
            .map(Target::At)
            .map_err(|error| ApiError::bad_request(format!("timestamp: {text}: {error}"))),
        _ => Err(ApiError::bad_request(
            "timestamp, toEnd: one of them says where to move the group",
        )),
    }
}

/// The answer to a move.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sought {
    success: bool,
    consumer_group: String,
    queue_name: String,
    partitions_updated: i64,
}

/// Moves a group in every partition of a queue, at once. Leases end with it: what was taken before can
/// no longer be acknowledged.
///
/// # Errors
///
/// `404` when the queue has no such group, `503` or `500` from the database.
pub async fn seek(
    broker: &Broker,
    slot: Slot,
    tenant: Uuid,
    group: String,
    queue: String,
    target: Target,
) -> Result<Sought, ApiError> {
    const SEEK: &str = "SELECT queen.seek($1, $2, $3, $4, $5)";
    // Whatever the clock does, no push that begins after this was committed is before "now". It is a
    // statement of its own, for whoever locks the floor waits for nothing else: readers wait for it.
    const NOW: &str = "
        WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at),
        raised AS (UPDATE queen.floor f SET ts = n.at FROM now n WHERE f.ts < n.at)
        SELECT n.at FROM now n";
    let client = broker.database.client(slot).await?;
    let at: Timestamp = match target {
        Target::At(instant) => instant,
        Target::End => {
            let statement = client.prepare_cached(NOW).await?;
            client.query_one(&statement, &[]).await?.get(0)
        }
    };
    let statement = client.prepare_cached(SEEK).await?;
    let row = client
        .query_one(
            &statement,
            &[&tenant, &queue, &group, &at, &CURSORS_COUNTED],
        )
        .await?;
    let partitions_updated: Option<i64> = row.get(0);
    let Some(partitions_updated) = partitions_updated else {
        return Err(ApiError::NotFound("this queue has no such group".into()));
    };
    Ok(Sought {
        success: true,
        consumer_group: group,
        queue_name: queue,
        partitions_updated,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    subscription_timestamp: String,
}

/// Reads the instant that a group is to begin at, as it was written and as it is meant.
///
/// # Errors
///
/// `400` when the body has none.
pub fn parse_subscription(body: &[u8]) -> Result<(String, Timestamp), ApiError> {
    let Subscription {
        subscription_timestamp: text,
    } = json::parse(body)?;
    let since = Timestamp::parse(&text).map_err(|error| {
        ApiError::bad_request(format!("subscriptionTimestamp: {text}: {error}"))
    })?;
    Ok((text, since))
}

/// The answer to a change of where a group begins.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscribed {
    success: bool,
    consumer_group: String,
    new_timestamp: String,
    rows_updated: u64,
}

/// Changes where a group begins in partitions that it has not looked at yet, in all of its queues. For
/// one that has begun, an instant to come means now: it is not stopped by it.
///
/// # Errors
///
/// `503` or `500` from the database.
pub async fn subscribe_from(
    broker: &Broker,
    slot: Slot,
    tenant: Uuid,
    group: String,
    text: String,
    since: Timestamp,
) -> Result<Subscribed, ApiError> {
    const CHANGE: &str = "
        UPDATE queen.groups
        SET since = CASE WHEN since > clock_timestamp() THEN $3 ELSE least($3, clock_timestamp()) END
        WHERE tenant = $1 AND name = $2";
    let client = broker.database.client(slot).await?;
    let statement = client.prepare_cached(CHANGE).await?;
    let rows_updated = client
        .execute(&statement, &[&tenant, &group, &since])
        .await?;
    Ok(Subscribed {
        success: true,
        consumer_group: group,
        new_timestamp: text,
        rows_updated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_names_one_place() {
        assert_eq!(parse_seek(br#"{"toEnd":true}"#).ok(), Some(Target::End));
        assert_eq!(
            parse_seek(br#"{"timestamp":"1970-01-01T00:00:00Z"}"#).ok(),
            Some(Target::At(Timestamp::from_micros(0)))
        );
        for wrong in [
            "{}",
            r#"{"position":"earliest"}"#,
            r#"{"timestamp":"soon"}"#,
            r#"{"timestamp":"1970-01-01T00:00:00Z","toEnd":true}"#,
        ] {
            assert!(parse_seek(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
