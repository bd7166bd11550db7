//! `partitions/changed`: which partitions a queue has, and which were written to.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::ApiError;
use crate::http::json;
use crate::limits::{CHANGED_ENTRIES, CHANGED_PAGE_MAX};
use crate::log::cursor::{CursorKey, Position};
use crate::log::safe_time::{SafeTime, safe_time};
use crate::name::check_name;
use crate::session::Session;
use crate::timestamp::Timestamp;

/// Marker of a queue that this tenant does not have.
pub const UNKNOWN: &str = "UNKNOWN_TOPIC_OR_PARTITION";
/// Marker of a cursor that was not given for this pass.
pub const BAD_CURSOR: &str = "BAD_CURSOR";

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    queue: String,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    limit: Option<i64>,
}

/// One page to read: `from` is exclusive, the least position of its mode for a first page.
#[derive(Debug)]
struct Page {
    queue: String,
    limit: i64,
    from: Result<Position, BadCursor>,
}

#[derive(Debug)]
struct BadCursor;

/// The checked request.
#[derive(Debug)]
pub struct Pages(Vec<Page>);

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    safe_time: Timestamp,
    safe_time_degraded: bool,
    entries: Vec<AnswerEntry>,
}

#[derive(Debug, Serialize)]
struct AnswerEntry {
    queue: String,
    partitions: Vec<Partition>,
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Partition {
    name: String,
    last_offset: i64,
    log_start: i64,
    last_write_at: Timestamp,
    id: Uuid,
}

/// Parses and checks a request body.
///
/// # Errors
///
/// `400` for a malformed body, too many entries, or a `since` that is no instant.
pub fn parse(body: &[u8], tenant: Uuid, key: &CursorKey) -> Result<Pages, ApiError> {
    let Request { entries } = json::parse(body)?;
    if entries.len() > CHANGED_ENTRIES {
        return Err(ApiError::coded(
            "too_many_entries",
            format!(
                "entries: {} of them, at most {CHANGED_ENTRIES} a call",
                entries.len()
            ),
        ));
    }
    let mut pages = Vec::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        check_name(&entry.queue, format_args!("entries[{index}].queue"))?;
        let since = match entry.since.as_deref() {
            None => None,
            Some(text) => Some(Timestamp::parse(text).map_err(|error| {
                ApiError::bad_request(format!("entries[{index}].since: {text:?}: {error}"))
            })?),
        };
        let after = entry.after.filter(|cursor| !cursor.is_empty());
        let from = match (since, after) {
            // No partition has an empty name, so the empty one is below all.
            (None, None) => Ok(Position::Name(String::new())),
            (Some(since), None) => Ok(Position::Write(since, String::new())),
            (since, Some(cursor)) => match (since, key.open(tenant, &entry.queue, &cursor)) {
                (None, Some(position @ Position::Name(_))) => Ok(position),
                (Some(since), Some(Position::Write(at, name))) => Ok(Position::Write(
                    at.max(since),
                    if at < since { String::new() } else { name },
                )),
                _ => Err(BadCursor),
            },
        };
        pages.push(Page {
            queue: entry.queue,
            limit: entry
                .limit
                .unwrap_or(CHANGED_PAGE_MAX)
                .clamp(1, CHANGED_PAGE_MAX),
            from,
        });
    }
    Ok(Pages(pages))
}

/// One page of every entry. Each arm walks one index from its cursor and stops at its limit, so an
/// answer costs the rows it returns.
const READ: &str = "
SELECT e.ord::int4 - 1, q.id IS NOT NULL, p.name, p.next_offset, p.log_start, p.last_write_at, p.life
FROM unnest($2::text[], $3::timestamptz[], $4::text[], $5::int8[])
     WITH ORDINALITY AS e (queue, at, after, lim, ord)
LEFT JOIN queen.queues q ON q.tenant = $1 AND q.name = e.queue
LEFT JOIN LATERAL (
    (SELECT n.name, n.next_offset, n.log_start, n.last_write_at, n.life
     FROM queen.partitions n
     WHERE e.at IS NULL AND n.queue_id = q.id AND n.name > e.after
     ORDER BY n.name LIMIT e.lim)
    UNION ALL
    (SELECT w.name, w.next_offset, w.log_start, w.last_write_at, w.life
     FROM queen.partitions w
     WHERE e.at IS NOT NULL AND w.queue_id = q.id AND (w.last_write_at, w.name) > (e.at, e.after)
     ORDER BY w.last_write_at, w.name LIMIT e.lim)
) p ON true";

/// Answers: `safeTime` first, then the pages, in that order.
///
/// # Errors
///
/// `503` or `500` from the database.
pub async fn changed(
    client: &Session,
    floor: Duration,
    key: &CursorKey,
    tenant: Uuid,
    pages: &Pages,
) -> Result<(Answer, SafeTime), ApiError> {
    let safe = safe_time(client, floor).await?;
    let mut entries: Vec<AnswerEntry> = Vec::with_capacity(pages.0.len());
    let mut limits: Vec<i64> = Vec::with_capacity(pages.0.len());
    let mut by_write: Vec<bool> = Vec::with_capacity(pages.0.len());
    let (mut queues, mut ats, mut afters) = (Vec::new(), Vec::new(), Vec::new());
    for page in &pages.0 {
        let (at, after, limit, error) = match &page.from {
            Ok(Position::Name(name)) => (None, name.as_str(), page.limit, None),
            Ok(Position::Write(at, name)) => (Some(*at), name.as_str(), page.limit, None),
            Err(BadCursor) => (None, "", 0, Some(BAD_CURSOR)),
        };
        queues.push(page.queue.as_str());
        by_write.push(at.is_some());
        ats.push(at);
        afters.push(after);
        limits.push(limit);
        entries.push(AnswerEntry {
            queue: page.queue.clone(),
            partitions: Vec::new(),
            next: None,
            error,
        });
    }
    if !entries.is_empty() {
        let statement = client.prepare_cached(READ).await?;
        let rows = client
            .query(&statement, &[&tenant, &queues, &ats, &afters, &limits])
            .await?;
        for row in rows {
            let Ok(index) = usize::try_from(row.get::<_, i32>(0)) else {
                continue;
            };
            let entry = &mut entries[index];
            if !row.get::<_, bool>(1) {
                entry.error = Some(UNKNOWN);
            } else if let Some(name) = row.get::<_, Option<String>>(2) {
                entry.partitions.push(Partition {
                    name,
                    last_offset: row.get::<_, i64>(3) - 1,
                    log_start: row.get(4),
                    last_write_at: row.get(5),
                    id: row.get(6),
                });
            }
        }
        for (index, entry) in entries.iter_mut().enumerate() {
            let Some(last) = entry.partitions.last() else {
                continue;
            };
            if entry.partitions.len() as i64 == limits[index] {
                let position = if by_write[index] {
                    Position::Write(last.last_write_at, last.name.clone())
                } else {
                    Position::Name(last.name.clone())
                };
                entry.next = Some(key.seal(tenant, &entry.queue, &position));
            }
        }
    }
    let answer = Answer {
        safe_time: safe.at,
        safe_time_degraded: safe.degraded,
        entries,
    };
    Ok((answer, safe))
}
