//! Bearer tokens, over HTTP.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use queen::config::Config;
use serde_json::{Value, json};

use crate::support::Fixture;

const SECRET: &str = "a secret of thirty-two bytes, or more";

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

fn signed(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    encode(&Header::new(algorithm), claims, key).unwrap()
}

fn token(claims: Value) -> String {
    signed(
        Algorithm::HS256,
        &EncodingKey::from_secret(SECRET.as_bytes()).unwrap(),
        &claims,
    )
}

async fn guarded(variables: &[(&str, &str)]) -> Fixture {
    let mut all = vec![("JWT_ENABLED", "true"), ("JWT_SECRET", SECRET)];
    all.extend_from_slice(variables);
    Fixture::with(&all, &[]).await
}

/// The status, code and challenge of a call with this header.
async fn call(
    fixture: &Fixture,
    method: &str,
    path: &str,
    authorization: Option<&str>,
) -> (u16, String) {
    let method: reqwest::Method = method.parse().unwrap();
    let mut request = reqwest::Client::new()
        .request(method, fixture.url() + path)
        .body("{}");
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    if status == 401 || status == 403 {
        assert!(response.headers().contains_key("www-authenticate"));
    }
    (status, response.text().await.unwrap())
}

#[tokio::test]
async fn a_token_reaches_what_its_role_allows_and_no_more() {
    let fixture = guarded(&[]).await;
    let queues = "/api/v1/resources/queues";
    // 400 and 501: the call got through, with a body that is no request.
    let routes = [
        ("GET", "/status", 200, 200, 200),
        ("GET", queues, 200, 200, 200),
        ("POST", "/api/v1/partitions/changed", 200, 200, 200),
        ("POST", "/api/v1/fetch", 400, 400, 400),
        ("GET", "/api/v1/nothing", 404, 404, 404),
        ("POST", "/api/v1/push", 403, 400, 400),
        ("POST", "/api/v1/kv", 403, 400, 400),
        ("GET", "/api/v1/pop/queue/q?wait=false", 403, 204, 204),
        (
            "GET",
            "/api/v1/pop/queue/q/partition/p?wait=false",
            403,
            204,
            204,
        ),
        ("GET", "/api/v1/pop?wait=false", 403, 400, 400),
        ("POST", "/api/v1/ack", 403, 400, 400),
        ("POST", "/api/v1/ack/batch", 403, 400, 400),
        ("POST", "/api/v1/lease/x/extend", 403, 200, 200),
        ("GET", "/api/v1/dlq", 200, 200, 200),
        ("DELETE", "/api/v1/messages/p/t", 403, 403, 404),
        ("DELETE", "/api/v1/consumer-groups/g", 403, 403, 200),
        (
            "POST",
            "/api/v1/consumer-groups/g/queues/q/seek",
            403,
            403,
            400,
        ),
        ("POST", "/api/v1/configure", 403, 403, 400),
        ("DELETE", "/api/v1/resources/queues/q", 403, 403, 200),
    ];
    for (method, path, read_only, read_write, admin) in routes {
        assert_eq!(call(&fixture, method, path, None).await.0, 401, "{path}");
        for (role, expected) in [
            ("read-only", read_only),
            ("read-write", read_write),
            ("admin", admin),
        ] {
            let bearer = format!("Bearer {}", token(json!({"role": role, "exp": now() + 60})));
            let (status, text) = call(&fixture, method, path, Some(&bearer)).await;
            assert_eq!(status, expected, "{role} {method} {path}: {text}");
        }
    }
    for path in ["/health", "/metrics"] {
        assert_eq!(call(&fixture, "GET", path, None).await.0, 200);
    }
}

#[tokio::test]
async fn a_token_that_proves_nothing_is_401_and_one_without_a_known_role_403() {
    let fixture = guarded(&[("JWT_CLOCK_SKEW_SECONDS", "5")]).await;
    let good = token(json!({"role": "admin"}));
    let other = EncodingKey::from_secret(b"another secret, just as long as ours").unwrap();
    let forged = signed(Algorithm::HS256, &other, &json!({"role": "admin"}));
    let longer = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    let stronger = signed(Algorithm::HS384, &longer, &json!({"role": "admin"}));
    let (_, rest) = good.split_once('.').unwrap();
    let none = format!("eyJhbGciOiJub25lIn0.{}.", rest.split_once('.').unwrap().0);
    let bearer = |token: &str| format!("Bearer {token}");
    for (header, expected, word) in [
        (bearer(&good), 200, ""),
        (format!("bearer {good}"), 200, ""),
        (bearer(&token(json!({"role": ["read-only", "x"]}))), 200, ""),
        (
            bearer(&token(json!({"role": "admin", "exp": now() - 3}))),
            200,
            "",
        ),
        (
            bearer(&token(json!({"role": "admin", "exp": now() - 60}))),
            401,
            "expired",
        ),
        (
            bearer(&token(json!({"role": "admin", "exp": "never"}))),
            401,
            "malformed",
        ),
        (
            bearer(&token(json!({"role": "admin", "nbf": now() + 3}))),
            200,
            "",
        ),
        (
            bearer(&token(json!({"role": "admin", "nbf": now() + 60}))),
            401,
            "not valid yet",
        ),
        (bearer(&forged), 401, "signature"),
        (bearer(&stronger), 401, "algorithm"),
        (bearer(&none), 401, ""),
        (bearer("garbage"), 401, "malformed"),
        (format!("Basic {good}"), 401, "needed"),
        (bearer(""), 401, ""),
        (bearer(&token(json!({"role": "root"}))), 403, "read-only"),
        (bearer(&token(json!({"role": 7}))), 403, "read-only"),
        (bearer(&token(json!({}))), 403, "read-only"),
    ] {
        let (status, text) = call(&fixture, "GET", "/status", Some(&header)).await;
        assert_eq!(status, expected, "{word}: {text}");
        assert!(text.contains(word), "{word}: {text}");
        assert!(!text.contains(SECRET) && !text.contains(&forged));
    }
}

#[tokio::test]
async fn audience_and_issuer_are_demanded_where_they_are_configured() {
    let fixture = guarded(&[
        ("JWT_AUDIENCE", "queen"),
        ("JWT_ISSUER", "https://issuer.example"),
        ("JWT_ROLE_CLAIM", "queen_role"),
    ])
    .await;
    let issuer = "https://issuer.example";
    for (claims, expected) in [
        (
            json!({"queen_role": "admin", "aud": "queen", "iss": issuer}),
            200,
        ),
        (
            json!({"queen_role": "admin", "aud": ["x", "queen"], "iss": issuer}),
            200,
        ),
        (
            json!({"queen_role": "admin", "aud": "other", "iss": issuer}),
            401,
        ),
        (
            json!({"queen_role": "admin", "aud": "queen", "iss": "other"}),
            401,
        ),
        (json!({"queen_role": "admin", "aud": "queen"}), 401),
        (json!({"queen_role": "admin", "iss": issuer}), 401),
        (json!({"role": "admin", "aud": "queen", "iss": issuer}), 403),
    ] {
        let bearer = format!("Bearer {}", token(claims.clone()));
        let (status, text) = call(&fixture, "GET", "/status", Some(&bearer)).await;
        assert_eq!(status, expected, "{claims}: {text}");
    }
}

#[tokio::test]
async fn public_keys_check_tokens_that_only_their_owners_can_sign() {
    let claims = json!({"role": "admin"});
    for (algorithm, name, files) in [
        (Algorithm::RS256, "RS256", "rsa"),
        (Algorithm::ES256, "ES256", "ec"),
    ] {
        let read = |kind: &str| {
            let path = format!(
                "{}/tests/keys/{files}-{kind}.pem",
                env!("CARGO_MANIFEST_DIR")
            );
            std::fs::read(path).unwrap()
        };
        let public = String::from_utf8(read("public")).unwrap();
        let fixture = guarded(&[("JWT_ALGORITHM", name), ("JWT_PUBLIC_KEY", &public)]).await;
        let key = match algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(&read("private")),
            _ => EncodingKey::from_ec_pem(&read("private")),
        };
        let good = format!("Bearer {}", signed(algorithm, &key.unwrap(), &claims));
        assert_eq!(call(&fixture, "GET", "/status", Some(&good)).await.0, 200);
        // The public key is no secret: a token signed with it as one proves nothing.
        let confused = EncodingKey::from_secret(public.as_bytes()).unwrap();
        let confused = format!("Bearer {}", signed(Algorithm::HS256, &confused, &claims));
        assert_eq!(
            call(&fixture, "GET", "/status", Some(&confused)).await.0,
            401
        );
    }
}

#[test]
fn tokens_without_a_key_to_check_them_are_refused_at_boot() {
    for (variables, name) in [
        (vec![], "JWT_SECRET"),
        (vec![("JWT_ALGORITHM", "RS256")], "JWT_PUBLIC_KEY"),
        (
            vec![("JWT_ALGORITHM", "ES256"), ("JWT_PUBLIC_KEY", "hunter2")],
            "JWT_PUBLIC_KEY",
        ),
        (vec![("JWT_ALGORITHM", "none")], "JWT_ALGORITHM"),
    ] {
        let error = Config::from_lookup(|wanted| {
            if wanted == "JWT_ENABLED" {
                return Some("true".into());
            }
            let found = variables.iter().find(|(key, _)| *key == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap_err()
        .to_string();
        assert!(
            error.contains(name) && !error.contains("hunter2"),
            "{error}"
        );
    }
}
