//! Reads the transaction ids that a push has to be compared with and this broker does not know, before the
//! push holds anything in the database.
//!
//! One push at a time reads those of a partition; the others wait aside, without a session or a slot, and no
//! longer than for a slot. Who reads stops at that time as well: what was read stays, and the next push goes
//! on from there, so that a partition of any size is caught up with.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::admission::Turn;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::RECENT_ROWS;
use crate::log::push::PreparedPush;
use crate::log::recent::{Reader, Recent, View};
use crate::log::repeats::Marks;
use crate::session::Session;

/// Returns when this broker has room for the ids of a push, and knows enough of its partitions.
///
/// # Errors
///
/// The database's; `503` when it took too long. Nothing was written.
pub async fn read_missing(
    broker: &Broker,
    turn: &mut Turn<'_>,
    tenant: Uuid,
    push: &PreparedPush,
    marks: &Marks,
) -> Result<(), ApiError> {
    if marks.is_empty() {
        return Ok(());
    }
    let recent = &broker.repeats.recent;
    loop {
        if recent.is_full() {
            turn.step_aside(push.held_bytes(), recent.room()).await?;
            continue;
        }
        let mut behind = behind(recent, tenant, push, marks);
        let readers: Vec<Reader> = behind.iter().filter_map(View::reader).collect();
        if !readers.is_empty() {
            let client = broker.database.client(turn.slot()?).await?;
            read(&client, turn, recent, &readers).await?;
        } else if let Some(view) = behind.pop() {
            let read = async move { view.until_read().await };
            turn.step_aside(push.held_bytes(), read).await?;
        } else {
            return Ok(());
        }
    }
}

/// The views that lack ids, of the partitions that the push brings ids to.
fn behind(recent: &Recent, tenant: Uuid, push: &PreparedPush, marks: &Marks) -> Vec<Arc<View>> {
    let names = push.queues.iter().zip(&push.partitions).enumerate();
    names
        .filter(|(group, _)| marks.has(*group))
        .filter_map(|(_, (queue, partition))| recent.behind(tenant, queue, partition))
        .collect()
}

/// Reads what the views lack, or as much of it as there is time and room for.
async fn read(
    client: &Session,
    turn: &mut Turn<'_>,
    recent: &Recent,
    readers: &[Reader],
) -> Result<(), ApiError> {
    const READ: &str = "
        SELECT k.n, t.base_offset, t.records, t.expires_at, t.ids
        FROM unnest($1::int8[], $2::int8[]) WITH ORDINALITY AS k (partition_id, low, n)
        CROSS JOIN LATERAL (
            SELECT r.base_offset, r.records, r.expires_at, r.ids FROM queen.recent_ids r
            WHERE r.partition_id = k.partition_id AND r.base_offset >= k.low
              AND r.expires_at > clock_timestamp()
            ORDER BY r.base_offset LIMIT $3
        ) t
        ORDER BY k.n, t.base_offset LIMIT $3";
    let statement = client.prepare_cached(READ).await?;
    turn.deadline();
    loop {
        let missing: Vec<(&View, i64)> = readers
            .iter()
            .filter_map(|reader| Some((reader.view(), reader.view().missing()?)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let partitions: Vec<i64> = missing.iter().map(|(view, _)| view.partition()).collect();
        let from: Vec<i64> = missing.iter().map(|(_, from)| *from).collect();
        let parameters: [&(dyn ToSql + Sync); 3] = [&partitions, &from, &RECENT_ROWS];
        let mut count = 0;
        let mut last = 0;
        let load = |row: &Row| {
            count += 1;
            let (base, records): (i64, i32) = (row.get(1), row.get(2));
            let ids: Vec<Uuid> = row.get(4);
            last = row.get::<_, i64>(0).unsigned_abs() as usize - 1;
            let view = missing[last].0;
            view.load(&ids, (base, base + i64::from(records)), row.get(3));
            recent.ask_for_room();
        };
        client.each_row(&statement, &parameters, load).await?;
        if count < RECENT_ROWS {
            last = missing.len();
        }
        // Rows come view by view: those before the last one's are complete.
        for (view, _) in &missing[..last] {
            view.loaded();
        }
        if last == missing.len() {
            return Ok(());
        }
        turn.check()?;
        if recent.is_full() {
            return Ok(());
        }
    }
}
