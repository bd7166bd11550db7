use queen::timestamp::Timestamp;

use crate::support::{Fixture, until};

#[tokio::test]
async fn what_is_not_served_says_so_by_name() {
    let fixture = Fixture::start().await;
    for (path, status, word) in [
        ("/api/v1/traces", 501, "traces"),
        ("/api/v1/traces/names", 501, "traces"),
        ("/api/v1/consumer-groups", 501, "listing of consumer groups"),
        ("/api/v1/consumer-groups/g", 501, "details of a group"),
        ("/api/v1/resources/queues/q", 501, "details of a queue"),
        ("/api/v1/resources/overview", 501, "resources/overview"),
        ("/api/v1/resources/namespaces", 501, "resources/namespaces"),
        ("/api/v1/resources/tasks", 501, "resources/tasks"),
        ("/api/v1/resources/partitions", 501, "resources/partitions"),
        ("/api/v1/messages", 501, "messages"),
        ("/api/v1/messages/p/id", 501, "details of a record"),
        ("/api/v1/timers", 501, "timers"),
        ("/api/v1/timers/t", 501, "timers"),
        ("/api/v1/locks", 501, "locks"),
        ("/api/v1/ephemeral/q", 501, "ephemeral queues"),
        ("/api/v1/system/s", 501, "system"),
        ("/streams/s", 501, "streams"),
        ("/api/v1/nothing", 404, "GET /api/v1/nothing"),
        ("/api/v1/push", 405, "GET /api/v1/push"),
    ] {
        let answer = fixture.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.error().contains(word), "{path}: {}", answer.error());
    }
    for (path, word) in [
        ("/api/v1/transaction", "transactions"),
        ("/api/v1/messages/p/id/retry", "retry of a dead letter"),
    ] {
        let answer = fixture.post(path, "{}").await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (501, Some("not_implemented"))
        );
        assert!(answer.error().contains(word), "{}", answer.error());
    }
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
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    fixture.postgres.restart().unwrap();
    until(|| async { fixture.get("/health").await.status == 200 }).await;
    fixture.push("q", "p", &["2"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn a_database_whose_disk_is_full_is_waited_for_with_503() {
    const PUSH: &str = r#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    // What PostgreSQL says when a write finds no room.
    session
        .batch_execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
             CREATE TRIGGER full_disk BEFORE INSERT ON queen.segments
                 FOR EACH ROW EXECUTE FUNCTION full_disk()",
        )
        .await
        .unwrap();
    let refused = fixture.post("/api/v1/push", PUSH).await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (503, Some("database_unavailable"))
    );
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    assert!(!refused.text.contains("extend file"), "{}", refused.text);
    session
        .batch_execute("DROP TRIGGER full_disk ON queen.segments")
        .await
        .unwrap();
    assert_eq!(fixture.post("/api/v1/push", PUSH).await.status, 201);
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn instants_are_utc_with_six_digits_whatever_the_zone_of_the_server() {
    let zone = [
        ("timezone", "Pacific/Chatham"),
        ("datestyle", "German, DMY"),
    ];
    let fixture = Fixture::with(&[], &zone).await;
    let session = fixture.session().await;
    let set = "ALTER ROLE CURRENT_USER SET timezone = 'Asia/Kathmandu'";
    session.batch_execute(set).await.unwrap();
    // A broker whose sessions all begin after the role was changed.
    let other = fixture.another(&[]).await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;
    let pushed = fixture.post_to(&other, "/api/v1/push", body).await;
    assert_eq!(pushed.status, 201);
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let fetched = fixture.post_to(&other, "/api/v1/fetch", body).await;
    let fetched: queen_protocol::FetchResponse = fetched.typed();
    let body = r#"{"entries":[{"queue":"q"}]}"#;
    let changed = fixture
        .post_to(&other, "/api/v1/partitions/changed", body)
        .await;
    let changed: queen_protocol::ChangedResponse = changed.typed();
    let row = session.query_one("SELECT clock_timestamp()", &[]).await;
    let now: Timestamp = row.unwrap().get(0);
    for text in [
        &fetched.entries[0].records[0].ts,
        &changed.safe_time,
        &changed.entries[0].partitions[0].last_write_at,
    ] {
        assert_eq!(text.len(), "2026-01-01T00:00:00.000000Z".len(), "{text}");
        assert!(text.ends_with('Z'), "{text}");
        let behind = now.micros() - Timestamp::parse(text).unwrap().micros();
        assert!((0..600_000_000).contains(&behind), "{text} at {now}");
    }
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
