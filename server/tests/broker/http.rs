use queen::timestamp::Timestamp;

use crate::support::{Fixture, until};

#[tokio::test]
async fn what_is_not_served_says_so_by_name() {
    let fixture = Fixture::start().await;
    let page = include_str!("../../../docs/broker.md");
    let (_, section) = page.split_once("## What is not there yet").unwrap();
    let mut absent = 0;
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let route = cells[0].trim_matches('`');
        let path = route.strip_prefix("GET ").unwrap_or(route);
        let path = path.replace(['{', '}'], "").replace('…', "some/thing");
        let methods: &[&str] = if route.starts_with("GET ") {
            &["GET"]
        } else {
            &["GET", "POST"]
        };
        for method in methods {
            let answer = fixture.request(method, &path, "{}").await;
            assert_eq!(
                (answer.status, answer.json()["code"].as_str()),
                (501, Some("not_implemented")),
                "{method} {path}"
            );
            assert!(
                answer.error().contains(cells[1]),
                "{path}: {}",
                answer.error()
            );
        }
        absent += 1;
    }
    assert!(absent > 20, "{absent} rows of the table");
    for (path, status, code) in [
        ("/api/v1/nothing", 404, "route_unknown"),
        ("/api/v1/push", 405, "method_not_allowed"),
    ] {
        let answer = fixture.get(path).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (status, Some(code))
        );
        assert!(answer.error().contains(path), "{}", answer.error());
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
    fixture
        .assert_metrics(&[
            "queen_pushed_records_total 2",
            "queen_pushed_bytes_total 3",
            "queen_fetched_records_total 1",
            "queen_fetched_bytes_total 2",
            "queen_safe_time_degraded 0",
            r#"queen_requests_total{route="/api/v1/push",status="201"} 1"#,
            r#"queen_request_duration_seconds_count{route="/api/v1/push"} 1"#,
            "queen_database_connections_in_use 0",
        ])
        .await;
    let text = fixture.get("/metrics").await.text;
    let mut lines = text.lines();
    let told = lines.find_map(|line| line.strip_prefix("queen_safe_time_seconds "));
    let told: f64 = told.unwrap().parse().unwrap();
    let session = fixture.session().await;
    let row = session.query_one("SELECT clock_timestamp()", &[]).await;
    let now: Timestamp = row.unwrap().get(0);
    let behind = now.micros() as f64 / 1e6 - told;
    assert!((0.0..600.0).contains(&behind), "{told} at {now}");
}
