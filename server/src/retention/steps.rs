//! The statements of retention. Each is a transaction of its own and bounded.

use std::time::Duration;

use uuid::Uuid;

use super::Queue;
use super::hold::Cutoffs;
use crate::error::ApiError;
use crate::limits::RETENTION_SEGMENTS;
use crate::session::Session;
use crate::timestamp::Timestamp;

/// A partition as retention sees it.
#[derive(Debug)]
pub struct Partition {
    /// Its row.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// `ts` of its oldest segment, hidden ones included; `None` when there is none.
    pub oldest: Option<Timestamp>,
    /// Not written to for long.
    pub idle: bool,
}

/// A page of all queues by id.
pub async fn queues(client: &Session, after: i64, limit: i64) -> Result<Vec<Queue>, ApiError> {
    const QUEUES: &str = "SELECT id, tenant, name, queen.effective(options) FROM queen.queues
         WHERE id > $1 AND tenant IS NOT NULL ORDER BY id LIMIT $2";
    let statement = client.prepare_cached(QUEUES).await?;
    let rows = client.query(&statement, &[&after, &limit]).await?;
    Ok(rows
        .iter()
        .map(|row| Queue {
            id: row.get(0),
            tenant: row.get(1),
            name: row.get(2),
            options: row.get(3),
        })
        .collect())
}

/// A page of a queue's partitions by name. With `idle_days` 0 none is idle.
pub async fn page(
    client: &Session,
    queue: i64,
    after: &str,
    limit: i64,
    idle_days: i32,
) -> Result<Vec<Partition>, ApiError> {
    const PAGE: &str = "
        SELECT p.id, p.name, s.ts,
               $4::int4 > 0 AND p.last_write_at < clock_timestamp() - make_interval(days => $4)
        FROM (
            SELECT id, name, last_write_at FROM queen.partitions
            WHERE queue_id = $1 AND name > $2 ORDER BY name LIMIT $3
        ) p
        LEFT JOIN LATERAL (
            SELECT g.ts FROM queen.segments g WHERE g.partition_id = p.id ORDER BY g.base_offset LIMIT 1
        ) s ON true
        ORDER BY p.name";
    let statement = client.prepare_cached(PAGE).await?;
    let rows = client
        .query(&statement, &[&queue, &after, &limit, &idle_days])
        .await?;
    Ok(rows
        .iter()
        .map(|row| Partition {
            id: row.get(0),
            name: row.get(1),
            oldest: row.get(2),
            idle: row.get(3),
        })
        .collect())
}

/// Deletes the segments of `partitions` that may go by `cutoffs`, and gives back how many records that
/// hid.
pub async fn expire(
    client: &Session,
    partitions: &[i64],
    cutoffs: Cutoffs,
) -> Result<u64, ApiError> {
    // Looked up without a lock: `ts` rises with the offset and no segment changes. A group that goes
    // back to settled records meanwhile is as late as one that does so afterwards.
    const FIND: &str = "
        SELECT p.id, max(g.upto)
        FROM unnest($1::int8[]) AS w (id)
        JOIN queen.partitions p ON p.id = w.id
        CROSS JOIN LATERAL (
            SELECT CASE WHEN $4::timestamptz IS NOT NULL THEN queen.completed_to(p.id) END AS upto
        ) c
        CROSS JOIN LATERAL (
            SELECT s.base_offset + s.records AS upto, s.ts FROM queen.segments s
            WHERE s.partition_id = p.id AND s.base_offset >= p.log_start
            ORDER BY s.base_offset LIMIT $3
        ) g
        WHERE g.ts < $2 OR (g.ts < $4 AND g.upto <= c.upto)
        GROUP BY p.id";
    const HIDE: &str = "
        WITH locked AS (
            SELECT p.id, p.log_start FROM queen.partitions p
            WHERE p.id = ANY ($1) ORDER BY p.queue_id, p.name FOR UPDATE SKIP LOCKED
        ), moved AS (
            UPDATE queen.partitions p SET log_start = w.upto
            FROM unnest($1::int8[], $2::int8[]) AS w (id, upto), locked l
            WHERE p.id = w.id AND l.id = w.id AND w.upto > l.log_start
            RETURNING w.upto - l.log_start AS records
        )
        SELECT coalesce(sum(m.records), 0)::int8, count(*) FROM moved m";
    const DELETE: &str = "
        DELETE FROM queen.segments s USING (
            SELECT g.partition_id, g.base_offset
            FROM unnest($1::int8[]) AS w (id)
            JOIN queen.partitions p ON p.id = w.id
            CROSS JOIN LATERAL (
                SELECT h.partition_id, h.base_offset FROM queen.segments h
                WHERE h.partition_id = p.id AND h.base_offset < p.log_start
                ORDER BY h.base_offset LIMIT $2
            ) g
            LIMIT $2
        ) d
        WHERE s.partition_id = d.partition_id AND s.base_offset = d.base_offset";
    if partitions.is_empty() {
        return Ok(0);
    }
    let find = client.prepare_cached(FIND).await?;
    let hide = client.prepare_cached(HIDE).await?;
    let delete = client.prepare_cached(DELETE).await?;
    let mut records = 0;
    loop {
        let found = client
            .query(
                &find,
                &[
                    &partitions,
                    &cutoffs.all,
                    &RETENTION_SEGMENTS,
                    &cutoffs.completed,
                ],
            )
            .await?;
        let ids: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
        let upto: Vec<i64> = found.iter().map(|row| row.get(1)).collect();
        let moved = client.query_one(&hide, &[&ids, &upto]).await?;
        records += moved.get::<_, i64>(0).unsigned_abs();
        // What an earlier pass hid and did not come to delete goes here as well.
        while client
            .execute(&delete, &[&partitions, &RETENTION_SEGMENTS])
            .await?
            == RETENTION_SEGMENTS.unsigned_abs()
        {}
        // Rows that a push holds are left for the next pass.
        if moved.get::<_, i64>(1) == 0 {
            return Ok(records);
        }
    }
}

/// Removes those of `partitions` that are still empty and idle, and gives back how many.
pub async fn remove_partitions(
    client: &Session,
    partitions: &[i64],
    idle_days: i32,
) -> Result<u64, ApiError> {
    // Committed before a row goes: a later life then starts above the former.
    const RAISE: &str = "
        UPDATE queen.floor f SET ts = m.ts
        FROM (
            SELECT max(p.last_ts) + interval '1 microsecond' AS ts
            FROM queen.partitions p WHERE p.id = ANY ($1)
        ) m
        WHERE f.ts < m.ts";
    const REMOVE: &str = "
        WITH locked AS (
            SELECT p.id FROM queen.partitions p WHERE p.id = ANY ($1) FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM queen.partitions p USING locked l, queen.floor f
            WHERE p.id = l.id AND p.log_start = p.next_offset AND p.last_ts < f.ts
              AND p.last_write_at < clock_timestamp() - make_interval(days => $2)
            RETURNING p.id
        )
        INSERT INTO queen.trash (partition_id) SELECT g.id FROM gone g";
    let raise = client.prepare_cached(RAISE).await?;
    let remove = client.prepare_cached(REMOVE).await?;
    client.execute(&raise, &[&partitions]).await?;
    Ok(client.execute(&remove, &[&partitions, &idle_days]).await?)
}

/// A queue that was deleted and still has partitions, or its row.
#[derive(Debug)]
pub struct DeletedQueue {
    /// Its row.
    id: i64,
    /// The tenant that it had.
    pub tenant: Uuid,
    /// The name that it had.
    pub name: String,
}

/// One deleted queue after the one with the id `after`.
pub async fn deleted_queue(
    client: &Session,
    after: i64,
) -> Result<Option<(i64, DeletedQueue)>, ApiError> {
    const NEXT: &str = "
        SELECT queue_id, tenant, name FROM queen.deleted_queues
        WHERE queue_id > $1 ORDER BY queue_id LIMIT 1";
    let statement = client.prepare_cached(NEXT).await?;
    let row = client.query_opt(&statement, &[&after]).await?;
    Ok(row.map(|row| {
        let id = row.get(0);
        let (tenant, name) = (row.get(1), row.get(2));
        (id, DeletedQueue { id, tenant, name })
    }))
}

/// Removes some partitions or dead letters of a deleted queue, or the queue itself when none is left.
/// How many of them that were.
pub async fn dismantle(client: &Session, queue: &DeletedQueue, rows: i64) -> Result<u64, ApiError> {
    // A push that has found the queue before its deletion may hold a row: the next pass takes it.
    const REMOVE: &str = "
        WITH locked AS (
            SELECT p.id FROM queen.partitions p
            WHERE p.queue_id = $1 ORDER BY p.name LIMIT $2 FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM queen.partitions p USING locked l WHERE p.id = l.id RETURNING p.id
        )
        INSERT INTO queen.trash (partition_id) SELECT g.id FROM gone g";
    const LETTERS: &str = "
        DELETE FROM queen.dead_letters d USING (
            SELECT l.id FROM queen.dead_letters l WHERE l.queue_id = $1
            ORDER BY l.group_name, l.id LIMIT $2
        ) g
        WHERE d.id = g.id";
    const FORGET: &str = "
        WITH gone AS (
            DELETE FROM queen.deleted_queues d
            WHERE d.queue_id = $1
              AND NOT EXISTS (SELECT 1 FROM queen.partitions p WHERE p.queue_id = d.queue_id)
            RETURNING d.queue_id
        )
        DELETE FROM queen.queues q USING gone g WHERE q.id = g.queue_id";
    let remove = client.prepare_cached(REMOVE).await?;
    let mut removed = client.execute(&remove, &[&queue.id, &rows]).await?;
    if removed == 0 {
        let letters = client.prepare_cached(LETTERS).await?;
        removed = client.execute(&letters, &[&queue.id, &rows]).await?;
    }
    if removed == 0 {
        let forget = client.prepare_cached(FORGET).await?;
        client.execute(&forget, &[&queue.id]).await?;
    }
    Ok(removed)
}

/// A deleted group after the one with the id `after`, if it has cursors or may still be given some.
pub async fn deleted_group(client: &Session, after: i64) -> Result<Option<i64>, ApiError> {
    const NEXT: &str = "
        SELECT group_id FROM queen.deleted_groups WHERE group_id > $1 ORDER BY group_id LIMIT 1";
    let statement = client.prepare_cached(NEXT).await?;
    let row = client.query_opt(&statement, &[&after]).await?;
    Ok(row.map(|row| row.get(0)))
}

/// Removes some cursors of a deleted group, and forgets one that has none and was deleted longer ago than it
/// may be given some. How many they were.
pub async fn remove_cursors(
    client: &Session,
    group: i64,
    rows: i64,
    kept: Duration,
) -> Result<u64, ApiError> {
    // What a pop or an ack holds is left for the next pass.
    const REMOVE: &str = "
        WITH picked AS MATERIALIZED (
            SELECT c.partition_id FROM queen.cursors c
            WHERE c.group_id = $1 ORDER BY c.due LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM queen.cursors c USING picked s
        WHERE c.partition_id = s.partition_id AND c.group_id = $1";
    const FORGET: &str = "
        DELETE FROM queen.deleted_groups d
        WHERE d.group_id = $1 AND d.deleted_at < clock_timestamp() - make_interval(secs => $2)
          AND NOT EXISTS (SELECT 1 FROM queen.cursors c WHERE c.group_id = d.group_id)";
    let remove = client.prepare_cached(REMOVE).await?;
    let removed = client.execute(&remove, &[&group, &rows]).await?;
    if removed == 0 {
        let forget = client.prepare_cached(FORGET).await?;
        client
            .execute(&forget, &[&group, &kept.as_secs_f64()])
            .await?;
    }
    Ok(removed)
}

/// Deletes some segments of removed partitions. Whether there may be more.
pub async fn empty_trash(
    client: &Session,
    partitions: i64,
    segments: i64,
) -> Result<bool, ApiError> {
    const PICK: &str = "SELECT partition_id FROM queen.trash ORDER BY partition_id LIMIT $1";
    const DELETE: &str = "
        DELETE FROM queen.segments s USING (
            SELECT g.partition_id, g.base_offset
            FROM unnest($1::int8[]) AS w (id)
            CROSS JOIN LATERAL (
                SELECT h.partition_id, h.base_offset FROM queen.segments h
                WHERE h.partition_id = w.id ORDER BY h.base_offset LIMIT $2
            ) g
            LIMIT $2
        ) d
        WHERE s.partition_id = d.partition_id AND s.base_offset = d.base_offset";
    const IDS: &str = "
        DELETE FROM queen.recent_ids r USING (
            SELECT g.partition_id, g.base_offset
            FROM unnest($1::int8[]) AS w (id)
            CROSS JOIN LATERAL (
                SELECT h.partition_id, h.base_offset FROM queen.recent_ids h
                WHERE h.partition_id = w.id ORDER BY h.base_offset LIMIT $2
            ) g
            LIMIT $2
        ) d
        WHERE r.partition_id = d.partition_id AND r.base_offset = d.base_offset";
    const CURSORS: &str = "DELETE FROM queen.cursors WHERE partition_id = ANY ($1)";
    const FORGET: &str = "
        DELETE FROM queen.trash t
        WHERE t.partition_id = ANY ($1)
          AND NOT EXISTS (SELECT 1 FROM queen.segments s WHERE s.partition_id = t.partition_id)
          AND NOT EXISTS (SELECT 1 FROM queen.recent_ids r WHERE r.partition_id = t.partition_id)";
    let pick = client.prepare_cached(PICK).await?;
    let rows = client.query(&pick, &[&partitions]).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let delete = client.prepare_cached(DELETE).await?;
    let deleted = client.execute(&delete, &[&ids, &segments]).await?;
    let recent = client.prepare_cached(IDS).await?;
    let forgot = client.execute(&recent, &[&ids, &segments]).await?;
    let cursors = client.prepare_cached(CURSORS).await?;
    client.execute(&cursors, &[&ids]).await?;
    let forget = client.prepare_cached(FORGET).await?;
    let forgotten = client.execute(&forget, &[&ids]).await?;
    Ok(deleted > 0 || forgot > 0 || forgotten > 0)
}
