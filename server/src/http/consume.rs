//! Handlers of the routes that consumers call.

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use super::body::Body;
use super::handlers::parsed;
use super::tenant::Tenant;
use super::{Shared, answer, rendered};
use crate::admission::Slot;
use crate::consume::{ack, ack_request, dead_letters, groups, lease, pop as consume, request};
use crate::error::ApiError;
use crate::name::check_name;

async fn popped(
    broker: Shared,
    tenant: Uuid,
    addressed: Option<(String, Option<String>)>,
    query: Option<String>,
) -> Result<Response, ApiError> {
    let State(broker) = broker;
    let request = request::parse(addressed, query.as_deref().unwrap_or_default())?;
    let Some(popped) = consume::pop(&broker, tenant, request).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    broker.metrics.popped_records.inc_by(popped.records);
    broker.metrics.popped_bytes.inc_by(popped.payload_bytes);
    Ok(rendered(StatusCode::OK, popped.body))
}

/// Pops from the queues of a namespace or a task.
pub async fn discover(
    broker: Shared,
    Tenant(tenant): Tenant,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    popped(broker, tenant, None, query).await
}

/// Pops from any partition of a queue.
pub async fn pop(
    broker: Shared,
    Tenant(tenant): Tenant,
    Path(queue): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    popped(broker, tenant, Some((queue, None)), query).await
}

/// Pops from one partition.
pub async fn pop_partition(
    broker: Shared,
    Tenant(tenant): Tenant,
    Path((queue, partition)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    popped(broker, tenant, Some((queue, Some(partition))), query).await
}

async fn acked(
    broker: Shared,
    tenant: Uuid,
    slot: Slot,
    request: ack_request::AckRequest,
) -> Result<Response, ApiError> {
    let State(broker) = broker;
    // A client that goes away must not keep the released from being told to those who wait.
    let task = tokio::spawn(async move {
        let acked = ack::ack(&broker, &slot, tenant, &request).await?;
        for queue in &acked.released {
            broker.waiters.wake_consumers(tenant, queue);
            broker.outbox.note_released(tenant, queue);
        }
        broker.metrics.settled_records.inc_by(acked.settled);
        broker.metrics.dead_letters.inc_by(acked.dead);
        Ok::<_, ApiError>(acked.answers)
    });
    answer(StatusCode::OK, &task.await??)
}

/// Settles one record.
pub async fn ack(
    broker: Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    acked(broker, tenant, slot, ack_request::parse_one(&body)?).await
}

/// Settles many.
pub async fn ack_batch(
    broker: Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let request = parsed(body, |body| ack_request::parse_batch(body)).await?;
    acked(broker, tenant, slot, request).await
}

/// Lets a lease hold on.
pub async fn extend(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path(lease): Path<String>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let seconds = lease::parse(&body)?;
    answer(
        StatusCode::OK,
        &lease::extend(&broker, &slot, tenant, lease, seconds).await?,
    )
}

/// Lists dead letters.
pub async fn dead_letters(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let filter = dead_letters::parse(query.as_deref().unwrap_or_default())?;
    answer(
        StatusCode::OK,
        &dead_letters::list(&broker, slot, tenant, &filter).await?,
    )
}

/// Deletes a dead letter.
pub async fn delete_dead_letter(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path((partition, id)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    answer(
        StatusCode::OK,
        &dead_letters::delete(&broker, slot, tenant, partition, id).await?,
    )
}

/// Deletes a group everywhere.
pub async fn delete_group(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path(group): Path<String>,
) -> Result<Response, ApiError> {
    check_name(&group, "the group in the path")?;
    answer(
        StatusCode::OK,
        &groups::delete(&broker, slot, tenant, group, None).await?,
    )
}

/// Deletes a group of one queue.
pub async fn delete_group_of_queue(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path((group, queue)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    check_name(&group, "the group in the path")?;
    check_name(&queue, "the queue in the path")?;
    answer(
        StatusCode::OK,
        &groups::delete(&broker, slot, tenant, group, Some(queue)).await?,
    )
}

/// Moves a group.
pub async fn seek(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path((group, queue)): Path<(String, String)>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    check_name(&group, "the group in the path")?;
    check_name(&queue, "the queue in the path")?;
    let target = groups::parse_seek(&body)?;
    let sought = groups::seek(&broker, slot, tenant, group, queue.clone(), target).await?;
    broker.waiters.wake_consumers(tenant, &queue);
    broker.outbox.note_released(tenant, &queue);
    answer(StatusCode::OK, &sought)
}

/// Moves where a group begins in partitions that it has not looked at yet.
pub async fn subscription(
    State(broker): Shared,
    Tenant(tenant): Tenant,
    Extension(slot): Extension<Slot>,
    Path(group): Path<String>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    check_name(&group, "the group in the path")?;
    let (text, since) = groups::parse_subscription(&body)?;
    answer(
        StatusCode::OK,
        &groups::subscribe_from(&broker, slot, tenant, group, text, since).await?,
    )
}
