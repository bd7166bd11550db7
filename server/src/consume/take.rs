//! The statement of a pop: takes records, and subscribes a group that is new.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::consume::request::{From, PopRequest, Since};
use crate::error::ApiError;
use crate::limits::{POP_LOOKS, POP_RAW_BYTES, POP_WAKE_MIN, PUSH_ATTEMPTS, WAITING_GROUPS};
use crate::session::Session;
use crate::timestamp::Timestamp;

/// What the database gave.
pub struct Taken {
    /// A row per segment.
    pub rows: Vec<Row>,
    /// The group.
    pub group: i64,
    /// There are partitions that were not looked at.
    pub again: bool,
    /// When something becomes due, if the database knows.
    pub wake: Option<Duration>,
}

/// Takes records of one queue for a group, which is subscribed by that. Without its seconds the lease holds
/// as long as the queue says.
///
/// # Errors
///
/// `400` when the group may not wait for a queue that is not there, `503` or `500` from the database.
pub async fn take(
    client: &Session,
    tenant: Uuid,
    request: &PopRequest,
    (lease, lease_seconds): (Uuid, Option<i32>),
    queue: &str,
) -> Result<Taken, ApiError> {
    const POP: &str = "
        SELECT partition_id, life, partition_name, taken_from, taken_to, base_offset, ts, records,
               raw_bytes, block, known, group_id, again, wake_ms
        FROM queen.pop($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let partition = match &request.from {
        From::Queue(_, partition) => partition.as_deref(),
        From::Discovery { .. } => None,
    };
    let mut attempt = 1;
    loop {
        let statement = client.prepare_cached(POP).await?;
        let outcome = client
            .query(
                &statement,
                &[
                    &tenant,
                    &queue,
                    &partition,
                    &request.group,
                    &lease,
                    &lease_seconds,
                    &request.batch,
                    &request.width,
                    &POP_RAW_BYTES,
                    &POP_LOOKS,
                ],
            )
            .await;
        let mut rows = match outcome {
            Ok(rows) => rows,
            Err(error)
                if attempt < PUSH_ATTEMPTS
                    && error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) =>
            {
                attempt += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Some(last) = rows.pop() else {
            return Err(ApiError::Internal("a pop without its last row".into()));
        };
        let known: bool = last.get(10);
        let group: Option<i64> = last.get(11);
        if let Some(group) = group {
            return Ok(Taken {
                rows,
                group,
                // It does not say where what it looked at went away under it: the pop looks again soon.
                again: last.get::<_, Option<bool>>(12).unwrap_or(false),
                wake: last
                    .get::<_, Option<i64>>(13)
                    .map(|millis| Duration::from_millis(millis.max(0).unsigned_abs()))
                    // Due already, it is in the hands of another pop.
                    .map(|wake| wake.max(POP_WAKE_MIN)),
            });
        }
        // A group that begins at the start misses nothing of a queue that is not there yet.
        if !known && request.since == Since::Start {
            return Ok(Taken {
                rows,
                group: 0,
                again: false,
                wake: None,
            });
        }
        subscribe(client, tenant, queue, &request.group, request.since).await?;
    }
}

async fn subscribe(
    client: &Session,
    tenant: Uuid,
    queue: &str,
    group: &str,
    since: Since,
) -> Result<(), ApiError> {
    const SINCE_START: &str = "SELECT queen.subscribe($1, $2, $3, '-infinity', $4)";
    const SINCE: &str = "SELECT queen.subscribe($1, $2, $3, $5, $4)";
    let at: Option<Timestamp> = match since {
        Since::Start | Since::Now => None,
        Since::At(instant) => Some(instant),
    };
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&tenant, &queue, &group, &WAITING_GROUPS];
    let statement = if since == Since::Start {
        client.prepare_cached(SINCE_START).await?
    } else {
        values.push(&at);
        client.prepare_cached(SINCE).await?
    };
    match client.query(&statement, &values).await {
        Ok(_) => Ok(()),
        Err(error)
            if error
                .code()
                .is_some_and(|code| code.code() == REFUSED_WAITING) =>
        {
            Err(ApiError::coded(
                "too_many_waiting_groups",
                format!(
                    "consumerGroup: {WAITING_GROUPS} groups of queues that are not there are as many \
                     as one tenant may have; make their queues, or delete groups"
                ),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// The state that `queen.subscribe` raises.
const REFUSED_WAITING: &str = "QS004";
