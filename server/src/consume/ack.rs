//! `ack`: what became of records that were taken.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::consume::ack_request::{Ack, AckRequest};
use crate::consume::dead::{Dead, Death, Origin};
use crate::consume::ids::{self, Known, SegmentIds};
use crate::consume::segments::{Opener, load};
use crate::consume::verdict::{Change, Cursor, Item, UNRESOLVABLE, Verdict, settle};
use crate::error::ApiError;
use crate::http::json;
use crate::limits::ACK_ATTEMPTS;
use crate::session::Session;

/// Why a record that was given up on is no dead letter.
const NOT_KEPT: &str = "no dead letter: retention had deleted the record";

/// The answer to one acknowledgment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    index: usize,
    transaction_id: String,
    success: bool,
    error: Option<&'static str>,
    lease_released: bool,
    dlq: bool,
    noop: bool,
}

/// What an ack came to.
#[derive(Debug)]
pub struct Acked {
    /// One answer per acknowledgment, in their order.
    pub answers: Vec<Answer>,
    /// Queues in which there is something to take again.
    pub released: Vec<String>,
    /// Records that were settled.
    pub settled: u64,
    /// Records that became dead letters.
    pub dead: u64,
}

/// A cursor of the group, with what is needed to settle records of its partition.
struct State {
    partition_id: i64,
    group_id: i64,
    queue_id: i64,
    queue: String,
    life: Uuid,
    partition: String,
    next_offset: Option<i64>,
    lease_from: i64,
    cursor: Cursor,
    limit: Option<i32>,
    pause: i32,
}

/// Settles records.
///
/// # Errors
///
/// `503` or `500` from the database, or when a segment that has to be looked into cannot be read:
/// nothing is settled then.
pub async fn ack(
    broker: &Broker,
    slot: &Slot,
    tenant: Uuid,
    request: &AckRequest,
) -> Result<Acked, ApiError> {
    let mut attempt = 1;
    loop {
        let client = broker.database.client(slot.clone()).await?;
        let outcome = attempt_ack(&client, broker, tenant, request).await;
        match outcome {
            // The cursor moved meanwhile: a lease ended, or another acknowledgment came.
            Err(Failure::Moved) if attempt < ACK_ATTEMPTS => attempt += 1,
            Err(Failure::Moved) => {
                return Err(ApiError::Unavailable(
                    "the cursors of this ack moved at every attempt".into(),
                ));
            }
            Err(Failure::Api(error)) => return Err(error),
            Ok(acked) => return Ok(acked),
        }
    }
}

enum Failure {
    Moved,
    Api(ApiError),
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Api(error.into())
    }
}

async fn attempt_ack(
    client: &Session,
    broker: &Broker,
    tenant: Uuid,
    request: &AckRequest,
) -> Result<Acked, Failure> {
    let mut by_life: HashMap<Uuid, Vec<usize>> = HashMap::new();
    for (index, ack) in request.acks.iter().enumerate() {
        if let Some(life) = ack.life {
            by_life.entry(life).or_default().push(index);
        }
    }
    let lives: Vec<Uuid> = by_life.keys().copied().collect();
    let states = read(client, tenant, &request.group, &lives).await?;
    let mut acked = Acked {
        answers: request.acks.iter().enumerate().map(unknown).collect(),
        released: Vec::new(),
        settled: 0,
        dead: 0,
    };
    let mut moves: Vec<(&State, Change, &[usize])> = Vec::new();
    for state in &states {
        let indexes: &[usize] = by_life.get(&state.life).map_or(&[], Vec::as_slice);
        let known = known(client, broker, tenant, state).await?;
        let items: Vec<Item> = indexes
            .iter()
            .map(|&index| item(&request.acks[index], state, &known, &broker.segment_ids))
            .collect();
        let (change, verdicts) = settle(&state.cursor, state.limit, &items);
        for (&index, verdict) in indexes.iter().zip(&verdicts) {
            acked.answers[index].tell(*verdict, change.release);
        }
        if change.moves(&state.cursor) {
            moves.push((state, change, indexes));
        }
    }
    let written = write(client, broker, tenant, request, &moves).await?;
    for &index in &written.gone {
        acked.answers[index].not_kept();
    }
    for (state, change, _) in &moves {
        acked.settled += (change.next - state.cursor.next).unsigned_abs();
        acked.dead += change.dead.len() as u64;
        if written.more && change.release {
            acked.released.push(state.queue.clone());
        }
    }
    acked.dead -= written.gone.len() as u64;
    acked.released.sort_unstable();
    acked.released.dedup();
    Ok(acked)
}

/// The answer for a partition that is not the tenant's, or that the group has never taken from.
fn unknown((index, ack): (usize, &Ack)) -> Answer {
    Answer {
        index,
        transaction_id: ack.transaction_id.clone(),
        success: false,
        error: Some(UNRESOLVABLE),
        lease_released: false,
        dlq: false,
        noop: false,
    }
}

impl Answer {
    fn tell(&mut self, verdict: Verdict, released: bool) {
        self.success = !matches!(verdict, Verdict::Refused(_));
        self.error = match verdict {
            Verdict::Refused(reason) => Some(reason),
            _ => None,
        };
        self.noop = verdict == Verdict::Noop;
        self.dlq = verdict == Verdict::DeadLetter;
        self.lease_released = released && matches!(verdict, Verdict::Done | Verdict::DeadLetter);
    }

    /// It is settled, and there is no dead letter of it.
    fn not_kept(&mut self) {
        self.dlq = false;
        self.error = Some(NOT_KEPT);
    }
}

fn item(ack: &Ack, state: &State, known: &Known, ids: &SegmentIds) -> Item {
    let fingerprint = ids.fingerprint(&json::string(&ack.transaction_id));
    Item {
        lease: ack.lease,
        status: ack.status,
        offsets: ids::find(known, fingerprint, state.lease_from, state.cursor.lease_to),
    }
}

async fn read(
    client: &Session,
    tenant: Uuid,
    group: &str,
    lives: &[Uuid],
) -> Result<Vec<State>, ApiError> {
    const READ: &str = "
        SELECT p.id, c.group_id, q.id, q.name, p.life, p.name, c.next_offset,
               coalesce(c.lease_from, 0), coalesce(c.lease_to, 0), c.lease_id,
               coalesce(c.due > clock_timestamp(), false), c.failed_offset, c.failures,
               CASE WHEN (o.options ->> 'deadLetterQueue')::boolean AND (o.options ->> 'dlqAfterMaxRetries')::boolean
                    THEN (o.options ->> 'retryLimit')::int4 END,
               (o.options ->> 'retryDelay')::int4
        FROM unnest($3::uuid[]) AS w (life)
        JOIN queen.partitions p ON p.life = w.life
        JOIN queen.queues q ON q.id = p.queue_id AND q.tenant = $1
        CROSS JOIN LATERAL (SELECT queen.effective(q.options) AS options) o
        JOIN queen.groups s ON s.tenant = q.tenant AND s.queue = q.name AND s.name = $2
        JOIN queen.cursors c ON c.partition_id = p.id AND c.group_id = s.id AND c.moves = s.moves";
    let statement = client.prepare_cached(READ).await?;
    let rows = client.query(&statement, &[&tenant, &group, &lives]).await?;
    Ok(rows
        .iter()
        .map(|row| {
            let next_offset: Option<i64> = row.get(6);
            State {
                partition_id: row.get(0),
                group_id: row.get(1),
                queue_id: row.get(2),
                queue: row.get(3),
                life: row.get(4),
                partition: row.get(5),
                next_offset,
                lease_from: row.get(7),
                cursor: Cursor {
                    next: next_offset.unwrap_or(0),
                    lease_to: row.get(8),
                    lease: row.get(9),
                    live: row.get(10),
                    failed: row.get(11),
                    failures: row.get(12),
                },
                limit: row.get(13),
                pause: row.get(14),
            }
        })
        .collect())
}

/// The ids of what was taken last; what retention has deleted since is left out.
async fn known(
    client: &Session,
    broker: &Broker,
    tenant: Uuid,
    state: &State,
) -> Result<Known, ApiError> {
    let (from, to) = (state.lease_from, state.cursor.lease_to);
    if from >= to {
        return Ok(Known::new());
    }
    if let Some(known) = broker.segment_ids.covering(state.partition_id, from, to) {
        return Ok(known);
    }
    let mut opener = Opener::new(broker.vault.key().map(Arc::as_ref));
    let mut known = Known::new();
    for segment in load(client, state.partition_id, from, to).await? {
        let records = opener
            .open(
                segment.block(),
                segment.place(tenant, &state.queue, &state.partition),
            )
            .map_err(|damage| unreadable(state, segment.base_offset, &damage))?;
        let fingerprints = records
            .iter()
            .map(|record| broker.segment_ids.fingerprint(record.id))
            .collect();
        let learnt =
            broker
                .segment_ids
                .learn(segment.partition_id, segment.base_offset, fingerprints);
        known.push((segment.base_offset, learnt));
    }
    Ok(known)
}

fn unreadable(state: &State, offset: i64, damage: &crate::log::codec::Damage) -> ApiError {
    ApiError::Unreadable(format!(
        "partition {} of queue {}, offset {offset}: {damage}",
        state.partition, state.queue
    ))
}

/// What the move of cursors came to.
#[derive(Default)]
struct Written {
    /// There is more to take where a lease was given back.
    more: bool,
    /// Acknowledgments whose records could no longer be kept as dead letters.
    gone: Vec<usize>,
}

async fn write(
    client: &Session,
    broker: &Broker,
    tenant: Uuid,
    request: &AckRequest,
    moves: &[(&State, Change, &[usize])],
) -> Result<Written, Failure> {
    const SETTLE: &str = "
        SELECT queen.settle($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21)";
    if moves.is_empty() {
        return Ok(Written::default());
    }
    let mut dead = Dead::default();
    for (state, change, indexes) in moves {
        let origin = Origin {
            tenant,
            queue_id: state.queue_id,
            queue: state.queue.clone(),
            partition_id: state.partition_id,
            partition: state.partition.clone(),
            life: state.life,
        };
        let deaths: Vec<Death> = change
            .dead
            .iter()
            .map(|&(offset, item, failures)| Death {
                offset,
                ack: indexes[item],
                failures,
                reason: request.acks[indexes[item]].reason.clone(),
            })
            .collect();
        dead.copy(client, &broker.vault, &request.group, &origin, &deaths)
            .await?;
    }
    fn column<'m, T>(
        moves: &'m [(&State, Change, &[usize])],
        of: impl Fn(&'m State, &'m Change) -> T,
    ) -> Vec<T> {
        moves
            .iter()
            .map(|(state, change, _)| of(state, change))
            .collect()
    }
    let statement = client.prepare_cached(SETTLE).await?;
    let outcome = client
        .query_one(
            &statement,
            &[
                &column(moves, |state, _| state.partition_id),
                &column(moves, |state, _| state.group_id),
                &column(moves, |state, _| state.next_offset),
                &column(moves, |state, _| state.cursor.lease),
                &column(moves, |state, _| state.cursor.failures),
                &column(moves, |_, change| change.next),
                &column(moves, |_, change| change.release),
                &column(
                    moves,
                    |state, change| if change.redeliver { state.pause } else { 0 },
                ),
                &column(moves, |_, change| change.failed),
                &column(moves, |_, change| change.failures),
                &dead.queue,
                &dead.life,
                &dead.partition,
                &dead.group,
                &dead.offset,
                &dead.hash,
                &dead.ts,
                &dead.failures,
                &dead.reason,
                &dead.raw,
                &dead.block,
            ],
        )
        .await;
    match outcome {
        Ok(row) => Ok(Written {
            more: row.get(0),
            gone: dead.gone,
        }),
        Err(error)
            if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
                || error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) =>
        {
            Err(Failure::Moved)
        }
        Err(error) => Err(Failure::Api(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume::verdict::Status;

    #[test]
    fn the_answer_has_the_shape_of_the_published_type() {
        let ack = Ack {
            transaction_id: "t\"1".into(),
            life: None,
            status: Status::Completed,
            lease: None,
            reason: None,
        };
        let mut answer = unknown((3, &ack));
        answer.tell(Verdict::DeadLetter, true);
        let body = serde_json::to_string(&[answer]).expect("JSON");
        let results: Vec<queen_protocol::AckResult> = serde_json::from_str(&body).expect("results");
        assert!(results[0].success && results[0].dlq && results[0].lease_released);
        assert_eq!(serde_json::to_string(&results).expect("JSON"), body);
    }
}
