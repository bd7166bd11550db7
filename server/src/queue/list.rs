//! `resources/queues`: the queues of a tenant.

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::error::ApiError;
use crate::session::Session;
use crate::timestamp::Timestamp;

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    queues: Vec<Queue>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Queue {
    name: String,
    namespace: String,
    task: String,
    created_at: Timestamp,
}

/// Lists queues by name.
///
/// # Errors
///
/// `503` or `500` from the database.
pub async fn list(client: &Session, tenant: Uuid) -> Result<Answer, ApiError> {
    const LIST: &str =
        "SELECT name, queen.effective(options), created_at FROM queen.queues WHERE tenant = $1
         ORDER BY name";
    let statement = client.prepare_cached(LIST).await?;
    let rows = client.query(&statement, &[&tenant]).await?;
    let queues = rows
        .iter()
        .map(|row| {
            let options: Value = row.get(1);
            let text = |name: &str| options[name].as_str().unwrap_or_default().to_owned();
            Queue {
                name: row.get(0),
                namespace: text("namespace"),
                task: text("task"),
                created_at: row.get(2),
            }
        })
        .collect();
    Ok(Answer { queues })
}
