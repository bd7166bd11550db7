//! Whose queues a request is about.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use uuid::Uuid;

use crate::broker::Broker;
use crate::error::ApiError;

/// The tenant of a request that names none, and of all with tenancy off.
pub const DEFAULT_TENANT: Uuid = Uuid::from_u128(1);

const HEADER: &str = "x-queen-tenant";

/// The tenant, by the trusted header when `QUEEN_TENANCY_HEADER` is on.
pub struct Tenant(pub Uuid);

impl FromRequestParts<Arc<Broker>> for Tenant {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, broker: &Arc<Broker>) -> Result<Self, ApiError> {
        if !broker.config.tenancy_header {
            return Ok(Self(DEFAULT_TENANT));
        }
        let Some(value) = parts.headers.get(HEADER) else {
            return Ok(Self(DEFAULT_TENANT));
        };
        value
            .to_str()
            .ok()
            .and_then(|text| Uuid::try_parse(text.trim()).ok())
            .map(Self)
            .ok_or_else(|| ApiError::coded("bad_tenant", "x-queen-tenant: not a UUID"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tenant_is_the_one_of_the_api() {
        assert_eq!(
            DEFAULT_TENANT.to_string(),
            "00000000-0000-0000-0000-000000000001"
        );
    }
}
