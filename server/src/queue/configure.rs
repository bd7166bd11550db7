//! `configure`: makes a queue or changes its options.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::error::ApiError;
use crate::http::json;
use crate::name::check_name;
use crate::queue::options::Changes;
use crate::session::Session;

/// A checked configure request.
#[derive(Debug)]
pub struct ConfigureRequest {
    queue: String,
    changes: Changes,
    replace: bool,
}

impl ConfigureRequest {
    /// Whether it turns encryption at rest on.
    pub fn encrypts(&self) -> bool {
        self.changes.encrypts()
    }
}

/// Parses and checks a request body. Options stand under `options`, or beside `queue`.
///
/// # Errors
///
/// `400` naming the field.
pub fn parse(body: &[u8]) -> Result<ConfigureRequest, ApiError> {
    let request: Map<String, Value> = json::parse(body)?;
    let Some(Value::String(queue)) = request.get("queue") else {
        return Err(ApiError::bad_request("queue: missing or not a string"));
    };
    check_name(queue, "queue")?;
    let replace = match request.get("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "mode: {other} is not merge or replace"
            )));
        }
    };
    // Options nested under "options" win over those beside "queue"; an empty namespace or task
    // beside it means that the client has none to set.
    let mut given = request.clone();
    for name in ["namespace", "task"] {
        if given
            .get(name)
            .is_some_and(|value| value.is_null() || value == "")
        {
            given.remove(name);
        }
    }
    match request.get("options") {
        None | Some(Value::Null) => {}
        Some(Value::Object(options)) => given.extend(options.clone()),
        Some(_) => return Err(ApiError::bad_request("options: not an object")),
    }
    Ok(ConfigureRequest {
        queue: queue.clone(),
        changes: Changes::check(&given)?,
        replace,
    })
}

/// Applies the request and gives back every option of the queue.
///
/// # Errors
///
/// `503` or `500` from the database: nothing has changed then.
pub async fn configure(
    client: &Session,
    tenant: Uuid,
    request: &ConfigureRequest,
) -> Result<Value, ApiError> {
    // Nulls go back to the default, which is the absence of the key.
    const CONFIGURE: &str = "
        INSERT INTO queen.queues AS q (tenant, name, options)
        VALUES ($1, $2, jsonb_strip_nulls($3))
        ON CONFLICT (tenant, name) DO UPDATE
        SET options = CASE WHEN $4 THEN excluded.options ELSE jsonb_strip_nulls(q.options || $3) END
        RETURNING queen.effective(options)";
    let statement = client.prepare_cached(CONFIGURE).await?;
    let row = client
        .query_one(
            &statement,
            &[
                &tenant,
                &request.queue,
                &request.changes.as_json(),
                &request.replace,
            ],
        )
        .await?;
    let Value::Object(all) = row.get(0) else {
        return Err(ApiError::Internal(format!(
            "the options of queue {} are no object",
            request.queue
        )));
    };
    let mut answer = Map::new();
    answer.insert("configured".into(), json!(true));
    answer.insert("queue".into(), json!(request.queue));
    answer.extend(all.clone());
    answer.insert("options".into(), Value::Object(all));
    Ok(Value::Object(answer))
}
