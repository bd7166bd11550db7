//! Whose queues a request is about.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
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
        named(&parts.headers).map(Self)
    }
}

/// The tenant that the header names. Two of them would let a proxy and the broker see two tenants.
fn named(headers: &HeaderMap) -> Result<Uuid, ApiError> {
    let refused = |why: &str| ApiError::coded("bad_tenant", format!("{HEADER}: {why}"));
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(DEFAULT_TENANT);
    };
    if values.next().is_some() {
        return Err(refused("comes more than once"));
    }
    let text = value.to_str().ok();
    text.and_then(|text| Uuid::try_parse(text.trim()).ok())
        .ok_or_else(|| refused("not a UUID"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_tenant_is_named_once_by_its_uuid_or_is_the_default_one() {
        const ONE: &str = "7d444840-9dc0-11d1-b245-5ffdce74fad2";
        let headers = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HEADER, HeaderValue::from_static(value));
            }
            named(&headers)
        };
        assert_eq!(headers(&[]).expect("none"), DEFAULT_TENANT);
        assert_eq!(headers(&[ONE]).expect("one").to_string(), ONE);
        for (values, why) in [
            (&["orders"][..], "x-queen-tenant: not a UUID"),
            (&[""], "x-queen-tenant: not a UUID"),
            (&[ONE, ONE], "x-queen-tenant: comes more than once"),
            (&[ONE, ""], "x-queen-tenant: comes more than once"),
        ] {
            match headers(values) {
                Err(ApiError::BadRequest { code, message }) => {
                    assert_eq!((code, message.as_ref()), ("bad_tenant", why));
                }
                other => panic!("{values:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_default_tenant_is_the_one_of_the_api() {
        assert_eq!(
            DEFAULT_TENANT.to_string(),
            "00000000-0000-0000-0000-000000000001"
        );
    }
}
