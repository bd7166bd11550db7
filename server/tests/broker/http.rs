use crate::support::{Fixture, until};

#[tokio::test]
async fn what_is_not_served_says_so_by_name() {
    let fixture = Fixture::start().await;
    for (path, status, word) in [
        ("/api/v1/traces/names", 501, "traces"),
        ("/api/v1/consumer-groups", 501, "consumer groups"),
        ("/api/v1/resources/queues/q", 501, "queue"),
        ("/api/v1/nothing", 404, "GET /api/v1/nothing"),
        ("/api/v1/push", 405, "GET /api/v1/push"),
    ] {
        let answer = fixture.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.error().contains(word), "{path}: {}", answer.error());
    }
    let answer = fixture.post("/api/v1/transaction", "{}").await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (501, Some("not_implemented"))
    );
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_announced_or_not() {
    let fixture = Fixture::with(&[("QUEEN_MAX_BODY_MB", "1")], &[]).await;
    let large = format!(
        r#"{{"items":[{{"queue":"q","payload":"{}"}}]}}"#,
        "x".repeat(1_048_576)
    );
    let answer = fixture.post("/api/v1/push", large.clone()).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("payload_too_large"))
    );
    let chunks: Vec<Result<Vec<u8>, std::io::Error>> = large
        .as_bytes()
        .chunks(100_000)
        .map(|chunk| Ok(chunk.to_vec()))
        .collect();
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    let answer = fixture.post("/api/v1/push", stream).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (400, Some("payload_too_large"))
    );
}

#[tokio::test]
async fn health_follows_the_database_and_the_broker_survives_its_restart() {
    let mut fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    assert_eq!(fixture.get("/health").await.status, 200);
    fixture.postgres.stop();
    assert_eq!(fixture.get("/health").await.status, 503);
    let refused = fixture
        .post("/api/v1/push", r#"{"items":[{"queue":"q","payload":1}]}"#)
        .await;
    assert_eq!(refused.status, 503);
    fixture.postgres.restart().unwrap();
    until(|| async { fixture.get("/health").await.status == 200 }).await;
    fixture.push("q", "p", &["2"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn metrics_count_requests_and_records() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "22"]).await;
    fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":1}]}"#)
        .await;
    fixture.changed("{}").await;
    let text = fixture.get("/metrics").await.text;
    for line in [
        "queen_pushed_records_total 2",
        "queen_pushed_bytes_total 3",
        "queen_fetched_records_total 1",
        "queen_fetched_bytes_total 2",
        "queen_safe_time_degraded 0",
        r#"queen_requests_total{route="/api/v1/push",status="201"} 1"#,
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "{line} is not in\n{text}"
        );
    }
}
