//! The body of a request, whole: admission has read it within its limits.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;

use crate::broker::Broker;
use crate::error::ApiError;

/// A body.
pub struct Body(pub Bytes);

impl FromRequest<Arc<Broker>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, broker: &Arc<Broker>) -> Result<Self, ApiError> {
        to_bytes(request.into_body(), broker.config.max_body_bytes)
            .await
            .map(Self)
            .map_err(|error| ApiError::Internal(format!("a body that was read is gone: {error}")))
    }
}
