//! `pop`: takes records for a consumer, with a long poll.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::admission::{Lane, Slot};
use crate::broker::Broker;
use crate::consume::delivered::{Delivered, Settled};
use crate::consume::discovery::Sweep;
use crate::consume::lease;
use crate::consume::request::{From, PopRequest};
use crate::consume::segments::{Opener, block_of};
use crate::consume::take::{Taken, take};
use crate::error::ApiError;
use crate::http::json;
use crate::limits::{
    INLINE_WORK_BYTES, POP_PATIENCE, POP_RAW_BYTES, POP_RECHECK, UNREADABLE_PAUSE,
};
use crate::log::codec::Damage;
use crate::log::push::message_id;
use crate::log::seal::Place;
use crate::timestamp::Timestamp;

/// Records for a consumer.
#[derive(Debug)]
pub struct Popped {
    /// The body.
    pub body: Vec<u8>,
    /// Records in it.
    pub records: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
}

/// Takes records, waiting for some when there are none; `None` when the wait ended without.
///
/// While parked it holds neither a database session nor a slot.
///
/// # Errors
///
/// `503` when all that there is cannot be read, `503` or `500` from the database.
pub async fn pop(
    broker: &Arc<Broker>,
    tenant: Uuid,
    request: PopRequest,
) -> Result<Option<Popped>, ApiError> {
    let begun = Instant::now();
    let deadline = begun + request.wait;
    let patience = deadline.max(begun + POP_PATIENCE);
    let request = Arc::new(request);
    let mut sweep = match &request.from {
        From::Queue(..) => None,
        From::Discovery { namespace, task } => {
            Some(Sweep::new(tenant, namespace.clone(), task.clone()))
        }
    };
    let mut registrations = Vec::new();
    let (mut again, mut wake) = (false, None);
    loop {
        let slot = broker.lanes.enter(Lane::Consume).await?;
        let (queues, partition) = match (&request.from, &mut sweep) {
            (From::Queue(queue, partition), _) => (vec![queue.clone()], partition.as_deref()),
            (From::Discovery { .. }, Some(sweep)) => (sweep.page(broker, &slot).await?, None),
            (From::Discovery { .. }, None) => (Vec::new(), None),
        };
        // Registered before the look: what is pushed after it then wakes this pop.
        if !request.wait.is_zero() {
            let names = queues.iter().map(String::as_str);
            registrations.push(broker.waiters.register_consumer(tenant, names, partition));
        }
        let found = guarded_look(broker, tenant, &request, slot, queues).await?;
        if found.popped.is_some() {
            return Ok(found.popped);
        }
        again |= found.again;
        wake = earlier(wake, found.wake);
        let now = Instant::now();
        let hasty = now < patience && !broker.stopping.is_cancelled();
        if hasty && sweep.as_ref().is_some_and(|sweep| !sweep.ended()) {
            continue;
        }
        if !(hasty && again) {
            if registrations.is_empty() || now >= deadline || broker.stopping.is_cancelled() {
                return Ok(None);
            }
            let recheck = deadline.min(now + wake.unwrap_or(POP_RECHECK).min(POP_RECHECK));
            let woken = registrations
                .iter()
                .map(|registration| Box::pin(registration.woken()));
            tokio::select! {
                _ = select_all(woken) => {}
                () = broker.stopping.cancelled() => {}
                () = tokio::time::sleep_until(recheck) => {}
            }
        }
        registrations.clear();
        (again, wake) = (false, None);
        if let Some(sweep) = &mut sweep {
            sweep.restart();
        }
    }
}

/// The earlier of two instants that may not be known.
fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// What one look came to.
#[derive(Debug, Default)]
struct Found {
    popped: Option<Popped>,
    /// There are partitions that were not looked at.
    again: bool,
    /// When something becomes due, if the database knows.
    wake: Option<Duration>,
}

/// Looks in a task of its own: a client that goes away meanwhile must not keep records under a lease
/// that nobody holds.
async fn guarded_look(
    broker: &Arc<Broker>,
    tenant: Uuid,
    request: &Arc<PopRequest>,
    slot: Slot,
    queues: Vec<String>,
) -> Result<Found, ApiError> {
    // With the answer goes the slot: who is not there to take them leaves both.
    let (send, receive) = oneshot::channel();
    let (broker, request) = (Arc::clone(broker), Arc::clone(request));
    tokio::spawn(async move {
        let lease = Uuid::new_v4();
        let found = look(&broker, &slot, tenant, &request, lease, queues).await;
        // Whatever was taken before the look failed is nobody's. Where the database failed, its client does
        // not wait until it has answered that, too.
        let failed = found.is_err();
        let later = found.as_ref().is_err_and(ApiError::is_of_database);
        if failed && !later {
            give_back(&broker, &slot, tenant, lease).await;
        }
        let kept = later.then(|| slot.clone());
        let unheard = match send.send((found, slot)) {
            Err((Ok(found), slot)) if found.popped.is_some() => Some(slot),
            _ => None,
        };
        if let Some(slot) = kept.or(unheard) {
            give_back(&broker, &slot, tenant, lease).await;
        }
    });
    match receive.await {
        Ok((found, _slot)) => found,
        Err(_) => Err(ApiError::Internal("a pop ended without an answer".into())),
    }
}

async fn give_back(broker: &Broker, slot: &Slot, tenant: Uuid, lease: Uuid) {
    if let Err(error) = lease::release(broker, slot, tenant, lease).await {
        tracing::warn!(%error, "a lease that nobody was told of ends by itself");
    }
}

async fn look(
    broker: &Broker,
    slot: &Slot,
    tenant: Uuid,
    request: &PopRequest,
    lease: Uuid,
    mut queues: Vec<String>,
) -> Result<Found, ApiError> {
    let mut all = Found::default();
    if queues.is_empty() {
        return Ok(all);
    }
    // Any of several may be the first: none is served only when the others have nothing.
    let turn = lease.as_u128() as usize % queues.len();
    queues.rotate_left(turn);
    let lease_seconds = if request.auto_ack {
        let seconds = broker.config.database.delivery_lease().as_secs();
        Some(i32::try_from(seconds).unwrap_or(i32::MAX))
    } else {
        request.lease_seconds
    };
    let mut unreadable = None;
    for queue in queues {
        let taken = {
            let client = broker.database.client(slot.clone()).await?;
            take(&client, tenant, request, (lease, lease_seconds), &queue).await?
        };
        all.again |= taken.again;
        all.wake = earlier(all.wake, taken.wake);
        if taken.rows.is_empty() {
            continue;
        }
        match deliver(broker, slot, tenant, request, lease, queue, taken).await {
            Ok(Some(popped)) => {
                all.popped = Some(popped);
                return Ok(all);
            }
            Ok(None) => {
                give_back(broker, slot, tenant, lease).await;
                all.again = true;
            }
            Err(error @ ApiError::Unreadable(_)) => unreadable = Some(error),
            Err(error) => return Err(error),
        }
    }
    unreadable.map_or(Ok(all), Err)
}

/// A segment, some of whose records were taken.
struct Segment {
    row: Row,
    partition_id: i64,
    life: Uuid,
    partition: String,
    from: i64,
    to: i64,
    base_offset: i64,
    ts: Timestamp,
    records: usize,
    raw_bytes: usize,
}

impl Segment {
    fn of(row: Row) -> Self {
        Self {
            partition_id: row.get(0),
            life: row.get(1),
            partition: row.get(2),
            from: row.get(3),
            to: row.get(4),
            base_offset: row.get(5),
            ts: row.get(6),
            records: row.get::<_, i32>(7).unsigned_abs() as usize,
            raw_bytes: row.get::<_, i32>(8).unsigned_abs() as usize,
            row,
        }
    }

    fn block(&self) -> &[u8] {
        block_of(&self.row, 9)
    }
}

/// A partition that cannot be delivered as far as it was taken.
struct Cut {
    partition_id: i64,
    from: i64,
    to: i64,
    upto: i64,
}

/// Renders what was taken, and gives back what cannot be read. `None` when it was to be settled with
/// that and is no longer this pop's.
async fn deliver(
    broker: &Broker,
    slot: &Slot,
    tenant: Uuid,
    request: &PopRequest,
    lease: Uuid,
    queue: String,
    taken: Taken,
) -> Result<Option<Popped>, ApiError> {
    const CUT: &str = "SELECT queen.cut($1, $2, $3, $4, $5, $6, $7)";
    let segments: Vec<Segment> = taken.rows.into_iter().map(Segment::of).collect();
    let stored: usize = segments.iter().map(|segment| segment.raw_bytes).sum();
    let mut delivered = Delivered::of(
        segments
            .iter()
            .map(|segment| (segment.partition_id, segment.to)),
    );
    let renderer = Renderer {
        tenant,
        queue: queue.clone(),
        group: request.group.clone(),
        lease: (!request.auto_ack).then_some(lease),
        autopilot: request.autopilot.then_some((request.width, request.batch)),
        key: broker.vault.key().cloned(),
        ids: Arc::clone(&broker.segment_ids),
    };
    let rendered = if stored <= INLINE_WORK_BYTES {
        renderer.render(&segments)
    } else {
        tokio::task::spawn_blocking(move || renderer.render(&segments)).await?
    };
    if request.auto_ack {
        for cut in &rendered.cuts {
            delivered.end_at(cut.partition_id, cut.upto);
        }
        match delivered.settle(broker, slot, lease, taken.group).await? {
            Settled::Lost => return Ok(None),
            Settled::More => {
                broker.waiters.wake_consumers(tenant, &queue);
                broker.outbox.note_released(tenant, &queue);
            }
            Settled::All => {}
        }
    } else if !rendered.cuts.is_empty() {
        let client = broker.database.client(slot.clone()).await?;
        let statement = client.prepare_cached(CUT).await?;
        let pause = UNREADABLE_PAUSE.as_millis() as i32;
        for cut in &rendered.cuts {
            let Cut {
                partition_id,
                from,
                to,
                upto,
            } = cut;
            client
                .query(
                    &statement,
                    &[partition_id, &taken.group, &lease, from, to, upto, &pause],
                )
                .await?;
        }
    }
    match rendered.unreadable {
        Some(place) if rendered.popped.records == 0 => Err(ApiError::Unreadable(place)),
        _ => Ok(Some(rendered.popped)),
    }
}

struct Rendered {
    popped: Popped,
    cuts: Vec<Cut>,
    /// The first segment that cannot be read.
    unreadable: Option<String>,
}

struct Renderer {
    tenant: Uuid,
    queue: String,
    group: String,
    lease: Option<Uuid>,
    autopilot: Option<(i32, i64)>,
    key: Option<Arc<crate::log::seal::SealKey>>,
    ids: Arc<crate::consume::ids::SegmentIds>,
}

impl Renderer {
    fn render(&self, segments: &[Segment]) -> Rendered {
        let group = json::string(&self.group);
        let lease = self.lease.map_or_else(String::new, |id| id.to_string());
        let raw: usize = segments.iter().map(|segment| segment.raw_bytes).sum();
        let mut messages = Vec::with_capacity(raw.min(POP_RAW_BYTES as usize));
        let mut rendered = Rendered {
            popped: Popped {
                body: Vec::new(),
                records: 0,
                payload_bytes: 0,
            },
            cuts: Vec::new(),
            unreadable: None,
        };
        let mut opener = Opener::new(self.key.as_deref());
        let mut first: Option<&Segment> = None;
        let mut claims = 0;
        // The segments of a partition follow one another.
        for taken in segments.chunk_by(|a, b| a.partition_id == b.partition_id) {
            let before = rendered.popped.records;
            for segment in taken {
                let outcome = self.segment(
                    segment,
                    &mut opener,
                    (&lease, &group),
                    &mut messages,
                    &mut rendered.popped,
                );
                let Err(damage) = outcome else { continue };
                tracing::error!(
                    queue = self.queue,
                    partition = segment.partition,
                    base_offset = segment.base_offset,
                    error = %damage,
                    "a segment cannot be read; its consumers wait in front of it"
                );
                rendered.cuts.push(Cut {
                    partition_id: segment.partition_id,
                    from: taken[0].from,
                    to: taken[taken.len() - 1].to,
                    upto: segment.from,
                });
                rendered.unreadable.get_or_insert_with(|| {
                    format!(
                        "partition {} of queue {}, offset {}: {damage}",
                        segment.partition, self.queue, segment.from
                    )
                });
                break;
            }
            if rendered.popped.records > before {
                claims += 1;
                first.get_or_insert(&taken[0]);
            }
        }
        let out = &mut rendered.popped.body;
        out.reserve_exact(messages.len() + self.queue.len() + 400);
        out.extend_from_slice(b"{\"success\":true,\"queue\":");
        json::write_string(out, &self.queue);
        out.extend_from_slice(b",\"partition\":");
        json::write_string(out, first.map_or("", |segment| &segment.partition));
        let life = first.map_or_else(String::new, |segment| segment.life.to_string());
        out.extend_from_slice(
            format!(",\"partitionId\":\"{life}\",\"leaseId\":\"{lease}\"").as_bytes(),
        );
        out.extend_from_slice(b",\"consumerGroup\":");
        out.extend_from_slice(&group);
        out.extend_from_slice(b",\"messages\":[");
        out.extend_from_slice(&messages);
        out.extend_from_slice(format!("],\"partitionsClaimed\":{claims}").as_bytes());
        if let Some((partitions, batch)) = self.autopilot {
            out.extend_from_slice(
                format!(",\"autopilot\":{{\"partitions\":{partitions},\"batch\":{batch}}}")
                    .as_bytes(),
            );
        }
        out.push(b'}');
        rendered
    }

    /// Appends the taken records of a segment.
    fn segment(
        &self,
        segment: &Segment,
        opener: &mut Opener<'_>,
        (lease, group): (&str, &[u8]),
        out: &mut Vec<u8>,
        popped: &mut Popped,
    ) -> Result<(), Damage> {
        let place = Place {
            tenant: self.tenant,
            queue: &self.queue,
            partition: &segment.partition,
            records: segment.records,
            raw_bytes: segment.raw_bytes,
        };
        let records = opener.open(segment.block(), place)?;
        if !self.ids.has(segment.partition_id, segment.base_offset) {
            let ids = records.iter().map(|record| self.ids.fingerprint(record.id));
            self.ids
                .learn(segment.partition_id, segment.base_offset, ids.collect());
        }
        let mut head = format!(
            ",\"producerSub\":null,\"createdAt\":\"{}\",\"partitionId\":\"{}\",\"partition\":",
            segment.ts, segment.life
        )
        .into_bytes();
        json::write_string(&mut head, &segment.partition);
        head.extend_from_slice(format!(",\"leaseId\":\"{lease}\",\"consumerGroup\":").as_bytes());
        head.extend_from_slice(group);
        head.push(b'}');
        let mut text = Uuid::encode_buffer();
        for (offset, record) in (segment.base_offset..).zip(records) {
            if !(segment.from..segment.to).contains(&offset) {
                continue;
            }
            if popped.records > 0 {
                out.push(b',');
            }
            let id = message_id(segment.life, offset);
            out.extend_from_slice(b"{\"id\":\"");
            out.extend_from_slice(id.as_hyphenated().encode_lower(&mut text).as_bytes());
            out.extend_from_slice(b"\",\"transactionId\":");
            out.extend_from_slice(record.id);
            out.extend_from_slice(b",\"traceId\":null,\"data\":");
            out.extend_from_slice(if record.payload.is_empty() {
                b"null"
            } else {
                record.payload
            });
            out.extend_from_slice(&head);
            popped.records += 1;
            popped.payload_bytes += record.payload.len().max(1) as u64;
        }
        Ok(())
    }
}
