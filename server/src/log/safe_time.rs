//! `safeTime`: no segment that will ever become visible carries a `ts` below it.
//!
//! Writers stamp segments at or above the floor F and their transaction's start (`queen.push`). An
//! answer raises F and commits, looks at the transactions in progress, and only then reads its
//! tables: what began before the look writes at or above its start, what begins after sees F.

use std::time::Duration;

use tokio_postgres::Row;

use crate::error::ApiError;
use crate::limits::SAFE_GUARD_SECONDS;
use crate::session::Session;
use crate::timestamp::Timestamp;

/// The answer, with whether PostgreSQL hid what it takes to be exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SafeTime {
    /// The instant.
    pub at: Timestamp,
    /// Sessions were hidden, so `at` lies behind by the configured floor.
    pub degraded: bool,
}

/// Raises F to the guard behind the clock, and gives back what is committed.
const RAISE: &str = "
WITH raised AS (
    UPDATE queen.floor SET ts = clock_timestamp() - make_interval(secs => $1)
    WHERE ts < clock_timestamp() - make_interval(secs => $1)
    RETURNING ts
)
SELECT coalesce((SELECT ts FROM raised), (SELECT ts FROM queen.floor))";

/// The oldest transaction in progress, and whether one may be hidden.
///
/// A session of another database cannot write here; one without a database is a process of the
/// server, or not yet a session. Of a role whose sessions it must not see, PostgreSQL shows neither
/// `state` nor `xact_start` nor `backend_type`; with `track_activities` off, `state` is `disabled`.
/// A client session or parallel worker that is shown, and has no state yet, has run nothing yet.
const ACTIVITY: &str = "
SELECT min(a.xact_start),
       coalesce(bool_or(
           a.state = 'disabled'
           OR (a.backend_xid IS NOT NULL AND a.xact_start IS NULL)
           OR (a.state IS NULL AND a.xact_start IS NULL
               AND coalesce(a.backend_type, '') NOT IN ('client backend', 'parallel worker'))
       ), false),
       clock_timestamp() - make_interval(secs => $1)
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid()
  AND (a.datid IS NULL OR a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
  AND coalesce(a.backend_type, '') NOT IN (
      'archiver', 'autovacuum launcher', 'autovacuum worker', 'background writer', 'checkpointer',
      'io worker', 'logger', 'logical replication launcher', 'slotsync worker', 'startup',
      'walreceiver', 'walsender', 'walsummarizer', 'walwriter')";

/// Prepared transactions belong to no session. This is read after the activity: a transaction that
/// is prepared in between is then seen here, one that was seen there is counted there.
const PREPARED: &str =
    "SELECT EXISTS (SELECT 1 FROM pg_prepared_xacts WHERE database = current_database())";

/// Computes `safeTime`. The caller reads its tables afterwards, in statements of their own.
///
/// # Errors
///
/// `503` or `500` from the database; nothing may be answered then.
pub async fn safe_time(client: &Session, floor: Duration) -> Result<SafeTime, ApiError> {
    let raise = client.prepare_cached(RAISE).await?;
    let activity = client.prepare_cached(ACTIVITY).await?;
    let prepared = client.prepare_cached(PREPARED).await?;
    let floor_seconds = floor.as_secs_f64();
    let raised = client.query_one(&raise, &[&SAFE_GUARD_SECONDS]).await?;
    let seen = client.query_one(&activity, &[&floor_seconds]).await?;
    let prepared = client.query_one(&prepared, &[]).await?;
    Ok(combine(raised.get(0), &seen, prepared.get(0)))
}

fn combine(raised: Timestamp, seen: &Row, prepared: bool) -> SafeTime {
    let oldest: Option<Timestamp> = seen.get(0);
    let degraded = prepared || seen.get(1);
    let mut at = oldest.map_or(raised, |oldest| raised.min(oldest));
    if degraded {
        at = at.min(seen.get(2));
    }
    SafeTime { at, degraded }
}
