//! Writes a prepared push.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::admission::Turn;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{
    INLINE_WORK_BYTES, PUSH_ATTEMPTS, RECENT_LEAST_IDS, RECENT_MOST_UNKNOWN, RECENT_UNKNOWN_PER_ID,
    SESSION_PATIENCE,
};
use crate::log::missing::read_missing;
use crate::log::push::{Assigned, PreparedPush, prepare_without};
use crate::log::repeats::{Asked, Earlier, Marks, Outcome};
use crate::log::seal::Vault;
use crate::session::{Failure, Session};

/// Writes a prepared push in one transaction, and gives it back with what each group was assigned.
///
/// # Errors
///
/// `503` or `500`: nothing is written, unless the connection was lost after the commit was sent.
pub async fn store(
    broker: &Broker,
    turn: &mut Turn<'_>,
    tenant: Uuid,
    body: &Bytes,
    mut push: PreparedPush,
) -> Result<(PreparedPush, Vec<Assigned>), ApiError> {
    let Broker { vault, repeats, .. } = broker;
    let mut earlier = HashMap::new();
    let known = vault.known(tenant, &push.queues);
    if !known.is_empty() {
        push = sealed(push, vault, tenant, known).await?;
    }
    let (mut attempt, mut cut) = (1, false);
    let begun = Instant::now();
    loop {
        let key = vault.key().map(Arc::as_ref);
        let marks = push.marks(tenant, repeats, key);
        let (client, statement) = match ready(broker, turn, tenant, &push, &marks).await {
            Err(error) if error.is_slow_session() && begun.elapsed() < SESSION_PATIENCE => continue,
            Err(error) if error.is_cut() && !cut => {
                cut = true;
                continue;
            }
            ready => ready?,
        };
        let unmarked = push.unmarked(&marks);
        let secret = push.queues_by_seal(true);
        // Who reads what others push meanwhile may never be done.
        let most_unknown = if attempt < PUSH_ATTEMPTS {
            // What is not worth remembering is compared, however many partitions it is in.
            let few = push.queues.len() * RECENT_LEAST_IDS;
            RECENT_MOST_UNKNOWN
                .max(marks.ids.len() as i64 * RECENT_UNKNOWN_PER_ID)
                .max(few as i64)
        } else {
            i64::MAX
        };
        let asked = Asked::of(repeats, tenant, &push, marks);
        let outcome = write(
            (&client, &statement),
            tenant,
            &push,
            &unmarked,
            &secret,
            &asked,
            most_unknown,
        )
        .await;
        match outcome {
            Ok(Outcome::Written(written)) => {
                // They are committed: nothing may fail from here on.
                asked.learn(repeats, tenant, &push, &written);
                let assigned = written.iter().map(|group| group.assigned).collect();
                return Ok((push, assigned));
            }
            Ok(Outcome::Unknown(groups)) => {
                asked.fall_behind(repeats, tenant, &push, &groups);
                attempt += 1;
            }
            Ok(Outcome::Repeated(found)) => {
                // Nothing was written. What is repeated stays out of the next attempt, so this ends.
                drop(client);
                earlier.extend(found);
                let sealed_before = push.sealed().clone();
                push = again_without(body, &earlier, &push).await?;
                if push.is_empty() {
                    return Ok((push, Vec::new()));
                }
                if !sealed_before.is_empty() {
                    push = sealed(push, vault, tenant, sealed_before).await?;
                }
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_UNMARKED) => {
                attempt += 1;
                repeats.forget(tenant, &unmarked);
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_IN_CLEAR) => {
                attempt += 1;
                let encrypted = encrypted(&client, tenant, &push.queues).await?;
                drop(client);
                push = sealed(push, vault, tenant, encrypted).await?;
            }
            Err(error) if attempt < PUSH_ATTEMPTS && has_state(&error, REFUSED_SEALED) => {
                attempt += 1;
                let encrypted = encrypted(&client, tenant, &push.queues).await?;
                drop(client);
                vault.forget(tenant, &secret);
                push = again_without(body, &earlier, &push).await?;
                if !encrypted.is_empty() {
                    push = sealed(push, vault, tenant, encrypted).await?;
                }
            }
            Err(error) if attempt < PUSH_ATTEMPTS && begins_again(&error) => {
                tracing::debug!(attempt, %error, "push begins again");
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

const PUSH: &str = "
    SELECT life, base_offset FROM queen.push($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)
    WHERE queen.takes_clear($1, $11) AND queen.takes_repeats($1, $12)
        AND queen.takes_sealed($1, $13)";
const PUSH_ONCE: &str = "
    SELECT kind, g, rel, life, record_offset, takes, partition_id, unknown, expires_at, now, server
    FROM queen.push_once($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$14,$15,$16,$17,$18,$19,$20,$21,$22)
    WHERE queen.takes_clear($1, $11) AND queen.takes_repeats($1, $12)
        AND queen.takes_sealed($1, $13)";

/// A session that knows the statement, once this broker knows the ids to compare with. Nothing of the push has
/// gone to the server until then: where a session was cut, it may be asked for again.
async fn ready(
    broker: &Broker,
    turn: &mut Turn<'_>,
    tenant: Uuid,
    push: &PreparedPush,
    marks: &Marks,
) -> Result<(Session, Statement), ApiError> {
    read_missing(broker, turn, tenant, push, marks).await?;
    let client = broker.database.client(turn.slot()?).await?;
    let sql = if marks.is_empty() { PUSH } else { PUSH_ONCE };
    let statement = client.prepare_cached(sql).await?;
    Ok((client, statement))
}

/// One attempt: one statement.
async fn write(
    (client, statement): (&Session, &Statement),
    tenant: Uuid,
    push: &PreparedPush,
    unmarked: &[String],
    secret: &[String],
    asked: &Asked,
    most_unknown: i64,
) -> Result<Outcome, Failure> {
    let segments = push.segments();
    let clear = push.queues_by_seal(false);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![
        &tenant,
        &push.queues,
        &push.partitions,
        push.counts(),
        &segments.group,
        &segments.rel,
        &segments.records,
        &segments.raw,
        &segments.payload,
        &segments.block,
        &clear,
        &unmarked,
        &secret,
    ];
    if asked.marks.is_empty() {
        let rows = client.query(statement, &values).await?;
        return Ok(Outcome::of_plain(&rows));
    }
    let marks = &asked.marks;
    let looks = &asked.looks;
    values.extend::<[&(dyn ToSql + Sync); 9]>([
        &marks.start,
        &marks.twice,
        &marks.ids,
        &looks.server,
        &looks.group,
        &looks.partition,
        &looks.from,
        &looks.upto,
        &most_unknown,
    ]);
    let rows = client.query(statement, &values).await?;
    Ok(Outcome::of(&rows, marks, push.counts()))
}

/// Seals what belongs to `queues`, away from the asynchronous threads when it is large, and
/// remembers them.
async fn sealed(
    mut push: PreparedPush,
    vault: &Vault,
    tenant: Uuid,
    queues: HashSet<String>,
) -> Result<PreparedPush, ApiError> {
    let key = Arc::clone(vault.key().ok_or(ApiError::NoKey)?);
    for queue in &queues {
        vault.learn(tenant, queue.clone());
    }
    if push.stored_bytes() <= INLINE_WORK_BYTES {
        push.seal(tenant, &queues, &key)?;
        return Ok(push);
    }
    tokio::task::spawn_blocking(move || push.seal(tenant, &queues, &key).map(|()| push)).await?
}

/// Prepares a push anew without its repetitions, away from the asynchronous threads when it is large.
async fn again_without(
    body: &Bytes,
    earlier: &HashMap<usize, Earlier>,
    push: &PreparedPush,
) -> Result<PreparedPush, ApiError> {
    // Ids that the broker gave stay what they are.
    let ids: Vec<Vec<u8>> = push.all_ids();
    let compression = push.compression();
    if body.len() <= INLINE_WORK_BYTES {
        return prepare_without(body, compression, earlier, &ids);
    }
    let (body, earlier) = (body.clone(), earlier.clone());
    let prepare = move || prepare_without(&body, compression, &earlier, &ids);
    tokio::task::spawn_blocking(prepare).await?
}

/// Those of `queues` that are encrypted at rest.
async fn encrypted(
    client: &Session,
    tenant: Uuid,
    queues: &[String],
) -> Result<HashSet<String>, ApiError> {
    const ENCRYPTED: &str = "
        SELECT q.name FROM unnest($2::text[]) AS w (queue)
        JOIN queen.queues q ON q.tenant = $1 AND q.name = w.queue
        WHERE (queen.effective(q.options) ->> 'encryptionEnabled')::boolean";
    let statement = client.prepare_cached(ENCRYPTED).await?;
    let rows = client.query(&statement, &[&tenant, &queues]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The state that `queen.takes_clear` raises.
const REFUSED_IN_CLEAR: &str = "QS001";

/// The state that `queen.takes_repeats` raises.
const REFUSED_UNMARKED: &str = "QS002";

/// The state that `queen.takes_sealed` raises.
const REFUSED_SEALED: &str = "QS003";

fn has_state(error: &Failure, state: &str) -> bool {
    error.code().is_some_and(|code| code.code() == state)
}

/// The transaction was rolled back for a reason that another attempt does not meet.
fn begins_again(error: &Failure) -> bool {
    error.code().is_some_and(|state| {
        *state == SqlState::T_R_DEADLOCK_DETECTED
            || *state == SqlState::T_R_SERIALIZATION_FAILURE
            || *state == SqlState::FOREIGN_KEY_VIOLATION
            // Pushes before it took longer than one wait may: the line is not its fault.
            || *state == SqlState::LOCK_NOT_AVAILABLE
    })
}
