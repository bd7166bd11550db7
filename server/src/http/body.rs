//! The body of a request, whole and bounded.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;

use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::MIB;

/// A body within the configured limit.
pub struct Body(pub Bytes);

impl FromRequest<Arc<Broker>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, broker: &Arc<Broker>) -> Result<Self, ApiError> {
        let limit = broker.config.max_body_bytes;
        let too_large = || {
            ApiError::coded(
                "payload_too_large",
                format!(
                    "the body: more than {} MiB, the limit QUEEN_MAX_BODY_MB",
                    limit / MIB
                ),
            )
        };
        let announced = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok())
            .and_then(|length| length.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        to_bytes(request.into_body(), limit)
            .await
            .map(Self)
            .map_err(|error| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                match source.as_deref() {
                    Some("length limit exceeded") => too_large(),
                    _ => ApiError::bad_request(format!("the body ended early: {error}")),
                }
            })
    }
}
