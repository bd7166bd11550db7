//! Dead letters: records that were given up on.

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::consume::ids::stored_hash;
use crate::consume::segments::{Opener, block_of, partition_id};
use crate::error::ApiError;
use crate::http::json;
use crate::limits::{
    DEAD_LETTERS_COUNTED, DEAD_LETTERS_PAGE_DEFAULT, DEAD_LETTERS_PAGE_MAX,
    DEAD_LETTERS_PAGE_RAW_BYTES,
};
use crate::log::push::message_id;
use crate::log::seal::{Place, SealKey};
use crate::timestamp::Timestamp;

/// Which dead letters to list.
#[derive(Debug, PartialEq, Eq)]
pub struct Filter {
    queue: Option<String>,
    group: Option<String>,
    limit: i64,
    offset: i64,
}

/// Reads a query; what it does not know it leaves alone.
///
/// # Errors
///
/// `400` naming the parameter.
pub fn parse(query: &str) -> Result<Filter, ApiError> {
    let mut filter = Filter {
        queue: None,
        group: None,
        limit: DEAD_LETTERS_PAGE_DEFAULT,
        offset: 0,
    };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let number = || {
            value
                .parse::<i64>()
                .map_err(|_| ApiError::bad_request(format!("{name}: {value} is not an integer")))
        };
        match &*name {
            "queue" => filter.queue = Some(value.into_owned()),
            "consumerGroup" => filter.group = Some(value.into_owned()),
            "limit" => filter.limit = number()?.clamp(1, DEAD_LETTERS_PAGE_MAX),
            "offset" => filter.offset = number()?.max(0),
            _ => {}
        }
    }
    Ok(filter)
}

/// A page of dead letters.
#[derive(Debug, Serialize)]
pub struct Page {
    messages: Vec<DeadLetter>,
    pagination: Pagination,
    total: i64,
}

#[derive(Debug, Serialize)]
struct Pagination {
    limit: i64,
    offset: i64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeadLetter {
    id: Uuid,
    transaction_id: Box<RawValue>,
    partition_id: Uuid,
    queue: String,
    partition: String,
    consumer_group: String,
    error_message: Option<String>,
    retry_count: i32,
    data: Box<RawValue>,
    producer_sub: Option<String>,
    created_at: Timestamp,
    failed_at: Timestamp,
}

/// Lists dead letters, the latest first: fewer than `limit` when their bytes fill a page before.
///
/// # Errors
///
/// `503` when one of them cannot be read, `503` or `500` from the database.
pub async fn list(
    broker: &Broker,
    slot: Slot,
    tenant: Uuid,
    filter: &Filter,
) -> Result<Page, ApiError> {
    const TOTAL: &str = "
        SELECT count(*) FROM (
            SELECT 1 FROM queen.dead_letters d JOIN queen.queues q ON q.id = d.queue_id
            WHERE q.tenant = $1 AND ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR d.group_name = $3)
            LIMIT $4
        ) counted";
    // Blocks are read of those that fit alone.
    const LIST: &str = "
        WITH page AS MATERIALIZED (
            SELECT d.id, q.name, d.raw_bytes FROM queen.dead_letters d JOIN queen.queues q ON q.id = d.queue_id
            WHERE q.tenant = $1 AND ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR d.group_name = $3)
            ORDER BY d.id DESC LIMIT $4 OFFSET $5
        ), sized AS MATERIALIZED (
            SELECT p.id, p.name, row_number() OVER w AS at, sum(p.raw_bytes::bigint) OVER w AS upto
            FROM page p WINDOW w AS (ORDER BY p.id DESC)
        )
        SELECT s.name, d.life, d.partition, d.group_name, d.record_offset, d.ts, d.failures, d.reason,
               d.failed_at, d.raw_bytes, d.block
        FROM sized s JOIN queen.dead_letters d ON d.id = s.id
        WHERE s.at = 1 OR s.upto <= $6::int8
        ORDER BY d.id DESC";
    let Filter {
        queue,
        group,
        limit,
        offset,
    } = filter;
    let client = broker.database.client(slot).await?;
    let statement = client.prepare_cached(TOTAL).await?;
    let total = client
        .query_one(&statement, &[&tenant, queue, group, &DEAD_LETTERS_COUNTED])
        .await?
        .get(0);
    let statement = client.prepare_cached(LIST).await?;
    let rows = client
        .query(
            &statement,
            &[
                &tenant,
                queue,
                group,
                limit,
                offset,
                &DEAD_LETTERS_PAGE_RAW_BYTES,
            ],
        )
        .await?;
    drop(client);
    let key = broker.vault.key().cloned();
    let messages =
        tokio::task::spawn_blocking(move || messages(tenant, &rows, key.as_deref())).await??;
    Ok(Page {
        messages,
        pagination: Pagination {
            limit: *limit,
            offset: *offset,
        },
        total,
    })
}

fn messages(
    tenant: Uuid,
    rows: &[Row],
    key: Option<&SealKey>,
) -> Result<Vec<DeadLetter>, ApiError> {
    let mut opener = Opener::new(key);
    let mut messages = Vec::with_capacity(rows.len());
    for row in rows {
        let (queue, partition): (String, String) = (row.get(0), row.get(2));
        let (life, record_offset): (Uuid, i64) = (row.get(1), row.get(4));
        let unreadable = |reason: String| {
            ApiError::Unreadable(format!(
                "the dead letter of partition {partition} of queue {queue}, offset {record_offset}: {reason}"
            ))
        };
        let place = Place {
            tenant,
            queue: &queue,
            partition: &partition,
            records: 1,
            raw_bytes: row.get::<_, i32>(9).unsigned_abs() as usize,
        };
        let records = opener
            .open(block_of(row, 10), place)
            .map_err(|damage| unreadable(damage.to_string()))?;
        let raw = |bytes: &[u8]| {
            serde_json::from_slice::<Box<RawValue>>(bytes)
                .map_err(|error| unreadable(error.to_string()))
        };
        let payload = records[0].payload;
        messages.push(DeadLetter {
            id: message_id(life, record_offset),
            transaction_id: raw(records[0].id)?,
            partition_id: life,
            data: raw(if payload.is_empty() { b"null" } else { payload })?,
            consumer_group: row.get(3),
            error_message: row.get(7),
            retry_count: row.get(6),
            producer_sub: None,
            created_at: row.get(5),
            failed_at: row.get(8),
            queue: queue.clone(),
            partition: partition.clone(),
        });
    }
    Ok(messages)
}

/// The answer to a deletion.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    success: bool,
    partition_id: String,
    transaction_id: String,
}

/// Deletes the dead letters of one record. Records in the log are not deleted one by one.
///
/// # Errors
///
/// `404` when there is none, `503` or `500` from the database.
pub async fn delete(
    broker: &Broker,
    slot: Slot,
    tenant: Uuid,
    partition: String,
    transaction_id: String,
) -> Result<Deleted, ApiError> {
    const DELETE: &str = "
        DELETE FROM queen.dead_letters d USING queen.queues q
        WHERE d.life = $2 AND d.id_hash = ANY ($3) AND q.id = d.queue_id AND q.tenant = $1";
    let mut gone = 0;
    if let Some(life) = partition_id(&partition) {
        let id = json::string(&transaction_id);
        let mut hashes = vec![stored_hash(&id, None)];
        hashes.extend(broker.vault.key().map(|key| stored_hash(&id, Some(key))));
        let client = broker.database.client(slot).await?;
        let statement = client.prepare_cached(DELETE).await?;
        gone = client
            .execute(&statement, &[&tenant, &life, &hashes])
            .await?;
    }
    if gone == 0 {
        return Err(ApiError::NotFound("no dead letter of this record".into()));
    }
    Ok(Deleted {
        success: true,
        partition_id: partition,
        transaction_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_defaults_and_bounds() {
        let filter = parse("queue=a%20b&limit=99999&offset=-4&partition=x").expect("a filter");
        assert_eq!(
            filter,
            Filter {
                queue: Some("a b".into()),
                group: None,
                limit: DEAD_LETTERS_PAGE_MAX,
                offset: 0,
            }
        );
        assert!(parse("limit=x").is_err());
    }
}
