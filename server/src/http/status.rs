//! `/health`, `/status` and `/metrics`.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::timeout;

use super::{Shared, answer};
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::HEALTH_TIMEOUT;

/// `200` while the database answers and the broker is not stopping, else `503`.
pub async fn health(State(broker): Shared) -> Result<Response, ApiError> {
    if broker.stopping.is_cancelled() {
        return answer(
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({ "status": "stopping" }),
        );
    }
    let healthy = timeout(HEALTH_TIMEOUT, ping(&broker)).await;
    let (status, body) = match healthy {
        Ok(Ok(())) => (
            StatusCode::OK,
            json!({ "status": "healthy", "database": "connected" }),
        ),
        _ => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "status": "unhealthy", "database": "not available" }),
        ),
    };
    answer(status, &body)
}

async fn ping(broker: &Broker) -> Result<(), ApiError> {
    Ok(broker.database.observer().await?.ping().await?)
}

/// What the broker is doing.
pub async fn status(State(broker): Shared) -> Result<Response, ApiError> {
    let (in_use, at_most) = broker.database.usage();
    let healthy = matches!(timeout(HEALTH_TIMEOUT, ping(&broker)).await, Ok(Ok(())));
    let mut body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "instance": broker.instance,
        "uptimeMs": u64::try_from(broker.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "database": { "connected": healthy, "sessionsInUse": in_use, "sessionsMax": at_most },
        "fetchesParked": broker.waiters.count(),
        "tenancy": broker.config.tenancy_header,
        "safeFloorMs": u64::try_from(broker.config.safe_floor.as_millis()).unwrap_or(u64::MAX),
    });
    if let Some(sink) = &broker.sink {
        body["s3"] = json!(sink.status());
    }
    answer(StatusCode::OK, &body)
}

/// The text exposition.
pub async fn metrics(State(broker): Shared) -> Result<Response, ApiError> {
    let (in_use, _) = broker.database.usage();
    broker
        .metrics
        .connections
        .set(i64::try_from(in_use).unwrap_or(i64::MAX));
    broker
        .metrics
        .parked
        .set(i64::try_from(broker.waiters.count()).unwrap_or(i64::MAX));
    broker.lanes.measure();
    let text = broker
        .metrics
        .encode()
        .map_err(|error| ApiError::Internal(format!("cannot render metrics: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], text).into_response())
}
