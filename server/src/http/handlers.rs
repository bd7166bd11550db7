//! One handler per route: body in, the module of that name, answer out.

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use uuid::Uuid;

use super::body::Body;
use super::tenant::Tenant;
use super::{Shared, answer, rendered};
use crate::admission::{Lane, Slot};
use crate::broker::Broker;
use crate::error::ApiError;
use crate::kv::{batch, operation};
use crate::limits::INLINE_WORK_BYTES;
use crate::log::safe_time::SafeTime;
use crate::log::{changed, fetch, push, store};
use crate::name::check_name;
use crate::queue::{configure, delete, list};
use crate::session::read_again;

/// Parses a body, away from the asynchronous threads when it is large.
pub(super) async fn parsed<T: Send + 'static>(
    body: Bytes,
    parse: impl FnOnce(&Bytes) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() <= INLINE_WORK_BYTES {
        return parse(&body);
    }
    tokio::task::spawn_blocking(move || parse(&body)).await?
}

pub async fn push(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let slot = broker.lanes.enter(Lane::Push).await?;
    // A client that goes away must not keep the written from being told to those who wait.
    let task = tokio::spawn(async move {
        let mut turn = broker.lanes.turn(Lane::Push, slot);
        let compression = broker.config.compression;
        let prepare = move |body: &Bytes| push::prepare(body, compression);
        let push = parsed(body.clone(), prepare).await?;
        if push.is_empty() {
            return Ok(b"[]".to_vec());
        }
        let (push, assigned) = store::store(&broker, &mut turn, tenant, &body, push).await?;
        for (queue, partition) in push.queues.iter().zip(&push.partitions) {
            broker.waiters.wake_partition(tenant, queue, partition);
        }
        broker.outbox.note(tenant, push.queues.iter());
        broker.metrics.pushed_records.inc_by(push.len() as u64);
        broker.metrics.pushed_bytes.inc_by(push.payload_bytes);
        Ok::<_, ApiError>(push.render(&assigned))
    });
    Ok(rendered(StatusCode::CREATED, task.await??))
}

pub async fn fetch(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, ApiError> {
    // Kept to the end: what a parked fetch holds is of the size of its body, and counts with it.
    let mut request = parsed(body.clone(), |body| fetch::parse(body)).await?;
    let accept = headers.get_all(header::ACCEPT).into_iter();
    request.form = fetch::Form::accepted(accept.filter_map(|value| value.to_str().ok()));
    let media_type = request.form.media_type();
    let answer = fetch::fetch(&broker, tenant, request).await?;
    drop(body);
    broker.metrics.fetched_records.inc_by(answer.records);
    broker.metrics.fetched_bytes.inc_by(answer.payload_bytes);
    Ok(([(header::CONTENT_TYPE, media_type)], answer.body).into_response())
}

pub async fn changed(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let key = broker.cursor_key.clone();
    let pages = parsed(body, move |body| changed::parse(body, tenant, &key)).await?;
    let (page, safe) = read_again(|| discover(&broker, tenant, &pages)).await?;
    let metrics = &broker.metrics;
    metrics.safe_time.set(safe.at.micros() as f64 / 1e6);
    if metrics.safe_time_degraded.set(i64::from(safe.degraded)) != i64::from(safe.degraded) {
        if safe.degraded {
            tracing::warn!(
                "safeTime is degraded: sessions are hidden from this role; \
                 GRANT pg_read_all_stats to it"
            );
        } else {
            tracing::info!("safeTime is exact again");
        }
    }
    answer(StatusCode::OK, &page)
}

async fn discover(
    broker: &Broker,
    tenant: Uuid,
    pages: &changed::Pages,
) -> Result<(changed::Answer, SafeTime), ApiError> {
    let client = broker.database.discoverer().await?;
    let floor = broker.config.safe_floor;
    changed::changed(&client, floor, &broker.cursor_key, tenant, pages).await
}

pub async fn kv(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let operations = parsed(body, |body| operation::parse(body)).await?;
    let outcome = apply(&broker, tenant, slot, &operations).await?;
    answer(StatusCode::OK, &outcome)
}

/// `GET`, `PUT` and `DELETE` of one key: a batch of one operation.
pub async fn kv_key(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    method: Method,
    Path((ns, key)): Path<(String, String)>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let op = match method {
        Method::PUT => "put",
        Method::DELETE => "delete",
        _ => "get",
    };
    let operation = operation::parse_path(op, ns, key, &body)?;
    match apply(&broker, tenant, slot, &[operation]).await?.single() {
        Ok(result) => answer(StatusCode::OK, &result),
        Err(rolled_back) => answer(StatusCode::OK, &rolled_back),
    }
}

async fn apply(
    broker: &Broker,
    tenant: Uuid,
    slot: Slot,
    operations: &[operation::Operation],
) -> Result<batch::Outcome, ApiError> {
    let mut client = broker.database.client(slot).await?;
    let outcome = batch::apply(&mut client, tenant, operations).await?;
    if matches!(outcome, batch::Outcome::RolledBack { .. }) {
        broker.metrics.kv_rolled_back.inc();
    }
    Ok(outcome)
}

pub async fn configure(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let request = parsed(body, |body| configure::parse(body)).await?;
    if request.encrypts() && broker.vault.key().is_none() {
        return Err(ApiError::coded(
            "encryption_key_missing",
            "encryptionEnabled: this broker has no QUEEN_ENCRYPTION_KEY",
        ));
    }
    let client = broker.database.client(slot).await?;
    let configured = configure::configure(&client, tenant, &request).await?;
    drop(client);
    // A fetch of a queue that was unknown has ended at once, so none waits for its creation.
    answer(StatusCode::OK, &configured)
}

pub async fn queues(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
) -> Result<Response, ApiError> {
    let queues = read_again(|| async {
        let client = broker.database.client(slot.clone()).await?;
        list::list(&client, tenant).await
    });
    answer(StatusCode::OK, &queues.await?)
}

pub async fn delete_queue(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path(queue): Path<String>,
) -> Result<Response, ApiError> {
    check_name(&queue, "the queue in the path")?;
    // A client that goes away must not keep those who wait from being told.
    let task = tokio::spawn(async move {
        let deleted = delete::delete(&broker.database, &slot, tenant, queue.clone()).await?;
        broker.waiters.wake_queue(tenant, &queue);
        broker.outbox.note(tenant, std::iter::once(&queue));
        Ok::<_, ApiError>(deleted)
    });
    answer(StatusCode::OK, &task.await??)
}
