//! Deletion of a queue.

use serde::Serialize;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::admission::Slot;
use crate::database::Database;
use crate::error::ApiError;
use crate::limits::PUSH_ATTEMPTS;
use crate::session::Session;

/// The answer: the same for a queue that is nowhere and one of another tenant.
#[derive(Debug, Serialize)]
pub struct Answer {
    deleted: bool,
    queue: String,
    existed: bool,
}

/// Deletes a queue with its partitions and options for everyone, whatever it holds. Room comes back
/// in the background.
///
/// # Errors
///
/// `503` or `500` from the database: the queue is whole or gone then, and asking again settles it.
pub async fn delete(
    database: &Database,
    slot: &Slot,
    tenant: Uuid,
    queue: String,
) -> Result<Answer, ApiError> {
    const DELETE: &str = "SELECT queen.delete_queue($1, $2)";
    let mut attempt = 1;
    loop {
        let client = database.client(slot.clone()).await?;
        let statement = client.prepare_cached(DELETE).await?;
        match client.query_one(&statement, &[&tenant, &queue]).await {
            Ok(row) => {
                let existed = row.get(0);
                raise_floor(&client, tenant, &queue).await?;
                return Ok(Answer {
                    deleted: existed,
                    queue,
                    existed,
                });
            }
            Err(error)
                if attempt < PUSH_ATTEMPTS
                    && error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) =>
            {
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Raises the floor of `ts` above the deleted queues of this name: before the deletion is answered,
/// and before a row of their partitions goes.
///
/// # Errors
///
/// The database's.
pub async fn raise_floor(client: &Session, tenant: Uuid, queue: &str) -> Result<(), ApiError> {
    const RAISE: &str = "SELECT queen.raise_floor($1, $2)";
    let statement = client.prepare_cached(RAISE).await?;
    client.query_one(&statement, &[&tenant, &queue]).await?;
    Ok(())
}
