//! Leases: who has taken records keeps them for a time, and may ask for more of it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::http::json;
use crate::limits::{LEASE_EXTENSION_DEFAULT_SECONDS, POP_LEASE_MAX_SECONDS};
use crate::timestamp::Timestamp;

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    seconds: Option<i64>,
}

/// The answer. Three names carry the new end, because clients look for different ones.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    lease_id: String,
    success: bool,
    renewed: usize,
    new_expires_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    #[serde(rename = "lease_expires_at")]
    lease_expires_at: Option<Timestamp>,
}

/// Reads how many seconds a lease is to hold from now on. An empty body says nothing.
///
/// # Errors
///
/// `400` for a malformed body or a time that is not positive.
pub fn parse(body: &[u8]) -> Result<i32, ApiError> {
    if body.is_empty() {
        return Ok(LEASE_EXTENSION_DEFAULT_SECONDS);
    }
    let request: Request = json::parse(body)?;
    match request.seconds {
        None => Ok(LEASE_EXTENSION_DEFAULT_SECONDS),
        Some(seconds) if (1..=POP_LEASE_MAX_SECONDS).contains(&seconds) => Ok(seconds as i32),
        Some(seconds) => Err(ApiError::bad_request(format!(
            "seconds: {seconds} is not an integer in 1 to {POP_LEASE_MAX_SECONDS}"
        ))),
    }
}

/// Lets a lease that still holds end in `seconds` from now, in every partition it covers. One that
/// has ended, or is another tenant's, is answered like one that never was.
///
/// # Errors
///
/// `503` or `500` from the database.
pub async fn extend(
    broker: &Broker,
    slot: &Slot,
    tenant: Uuid,
    lease: String,
    seconds: i32,
) -> Result<Answer, ApiError> {
    const EXTEND: &str = "
        WITH held AS MATERIALIZED (
            SELECT c.partition_id, c.group_id FROM queen.cursors c
            JOIN queen.groups s ON s.id = c.group_id AND s.moves = c.moves AND s.tenant = $2
            WHERE c.lease_id = $1 AND c.due > clock_timestamp()
            ORDER BY c.partition_id, c.group_id FOR UPDATE OF c
        ), instant AS MATERIALIZED (
            SELECT clock_timestamp() + make_interval(secs => $3) AS ends
        )
        UPDATE queen.cursors c SET due = i.ends
        FROM held h, instant i
        WHERE c.partition_id = h.partition_id AND c.group_id = h.group_id
        RETURNING c.due";
    let mut ends = Vec::new();
    if let Ok(id) = Uuid::try_parse(&lease) {
        let client = broker.database.client(slot.clone()).await?;
        let statement = client.prepare_cached(EXTEND).await?;
        let rows = client
            .query(&statement, &[&id, &tenant, &f64::from(seconds)])
            .await?;
        ends = rows.iter().map(|row| row.get::<_, Timestamp>(0)).collect();
    }
    let end = ends.first().copied();
    Ok(Answer {
        lease_id: lease,
        success: end.is_some(),
        renewed: ends.len(),
        new_expires_at: end,
        expires_at: end,
        lease_expires_at: end,
    })
}

/// Gives a lease back that nobody was told of, and tells those who wait.
///
/// # Errors
///
/// `503` or `500` from the database: it ends by itself then.
pub async fn release(
    broker: &Broker,
    slot: &Slot,
    tenant: Uuid,
    lease: Uuid,
) -> Result<(), ApiError> {
    const RELEASE: &str = "
        WITH held AS MATERIALIZED (
            SELECT c.partition_id, c.group_id FROM queen.cursors c WHERE c.lease_id = $1
            ORDER BY c.partition_id, c.group_id FOR UPDATE
        ), released AS (
            UPDATE queen.cursors c SET lease_id = NULL, due = clock_timestamp()
            FROM held h WHERE c.partition_id = h.partition_id AND c.group_id = h.group_id
            RETURNING c.partition_id
        )
        SELECT DISTINCT q.name FROM released r
        JOIN queen.partitions p ON p.id = r.partition_id
        JOIN queen.queues q ON q.id = p.queue_id AND q.tenant = $2";
    let client = broker.database.client(slot.clone()).await?;
    let statement = client.prepare_cached(RELEASE).await?;
    for row in client.query(&statement, &[&lease, &tenant]).await? {
        let queue: String = row.get(0);
        broker.waiters.wake_consumers(tenant, &queue);
        broker.outbox.note_released(tenant, &queue);
    }
    Ok(())
}
