use serde_json::{Value, json};

use crate::support::Fixture;

async fn configure(fixture: &Fixture, body: Value) -> Value {
    let answer = fixture.post("/api/v1/configure", body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

#[tokio::test]
async fn a_partial_update_keeps_the_rest_and_replace_does_not() {
    let fixture = Fixture::start().await;
    configure(
        &fixture,
        json!({"queue": "q", "options": {"leaseTime": 60, "ttl": 7}}),
    )
    .await;
    let merged = configure(
        &fixture,
        json!({"queue": "q", "options": {"ttl": null, "retryLimit": 9}}),
    )
    .await;
    assert_eq!(merged["configured"], true);
    assert_eq!(
        (&merged["leaseTime"], &merged["ttl"], &merged["retryLimit"]),
        (&json!(60), &json!(3600), &json!(9))
    );
    let replaced = configure(
        &fixture,
        json!({"queue": "q", "mode": "replace", "options": {"ttl": 5}}),
    )
    .await;
    assert_eq!(
        (
            &replaced["leaseTime"],
            &replaced["ttl"],
            &replaced["retryLimit"]
        ),
        (&json!(300), &json!(5), &json!(3))
    );
}

#[tokio::test]
async fn options_may_stand_beside_the_queue() {
    let fixture = Fixture::start().await;
    let answer = configure(
        &fixture,
        json!({"queue": "q", "namespace": "billing", "leaseTime": 10}),
    )
    .await;
    assert_eq!(
        (&answer["namespace"], &answer["leaseTime"]),
        (&json!("billing"), &json!(10))
    );
    let list = fixture.get("/api/v1/resources/queues").await.json();
    assert_eq!(
        (&list["queues"][0]["name"], &list["queues"][0]["namespace"]),
        (&json!("q"), &json!("billing"))
    );
}

#[tokio::test]
async fn a_refused_configure_keeps_the_old_options() {
    let fixture = Fixture::start().await;
    configure(
        &fixture,
        json!({"queue": "q", "options": {"retentionSinkHold": "lake"}}),
    )
    .await;
    for (options, name) in [
        (
            json!({"leaseTime": 5, "retentionSinkHold": "no/slash"}),
            "retentionSinkHold",
        ),
        (
            json!({"leaseTime": 5, "retentionSinkHoldMaxSeconds": 59}),
            "retentionSinkHoldMaxSeconds",
        ),
        (json!({"leaseTime": "5"}), "leaseTime"),
    ] {
        let body = json!({"queue": "q", "options": options}).to_string();
        let answer = fixture.post("/api/v1/configure", body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.error().starts_with(name), "{}", answer.error());
    }
    let kept = configure(&fixture, json!({"queue": "q"})).await;
    assert_eq!(
        (&kept["retentionSinkHold"], &kept["leaseTime"]),
        (&json!("lake"), &json!(300))
    );
}

#[tokio::test]
async fn a_wrong_request_is_refused() {
    let fixture = Fixture::start().await;
    for (body, status) in [
        (r#"{"options":{}}"#, 400),
        (r#"{"queue":7}"#, 400),
        (r#"{"queue":"a\u0000b"}"#, 400),
        (r#"{"queue":"q","mode":"patch"}"#, 400),
        (r#"{"queue":"q","options":[]}"#, 400),
        (r#"{"queue":"q","options":{"encryptionEnabled":true}}"#, 400),
    ] {
        assert_eq!(
            fixture.post("/api/v1/configure", body).await.status,
            status,
            "{body}"
        );
    }
    assert_eq!(
        fixture.get("/api/v1/resources/queues").await.json(),
        json!({"queues": []})
    );
}
