use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Fixture, until};

const SOON: Duration = Duration::from_secs(20);
const PUSH: &str = r#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;
const CONFIGURE: &str = r#"{"queue":"q"}"#;

/// Sends `head` and waits for the status line of the answer, or for the end of the connection.
async fn raw(fixture: &Fixture, head: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(fixture.broker.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n") {
        match timeout(SOON, stream.read(&mut byte)).await.unwrap() {
            Ok(1) => answer.push(byte[0]),
            _ => break,
        }
    }
    (stream, String::from_utf8(answer).unwrap())
}

fn head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: q\r\ncontent-length: {length}\r\n\r\n")
}

/// A session that holds the row of partition `p`, so that pushes to it wait.
async fn hold(fixture: &Fixture) -> tokio_postgres::Client {
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    session
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions WHERE name = 'p' FOR UPDATE")
        .await
        .unwrap();
    session
}

async fn metric(fixture: &Fixture, name: &str) -> f64 {
    let text = fixture.get("/metrics").await.text;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_push_lane_answers_429_and_the_other_lanes_go_on() {
    let variables = [("QUEEN_PG_CONNECTIONS", "8"), ("QUEEN_LANE_QUEUE", "1")];
    let fixture = Fixture::with(&variables, &[]).await;
    let holder = hold(&fixture).await;
    // Two slots, one place in the line.
    let pushes = (0..3).map(|_| fixture.post("/api/v1/push", PUSH));
    let waiting = futures_util::future::join_all(pushes);
    let beyond = async {
        until(|| async { metric(&fixture, r#"queen_lane_waiting{lane="push"}"#).await == 1.0 })
            .await;
        let refused = fixture.post("/api/v1/push", PUSH).await;
        assert_eq!(
            (refused.status, refused.json()["code"].as_str()),
            (429, Some("overloaded"))
        );
        assert_eq!(refused.retry_after.as_deref(), Some("1"));
        // A client that listens only once all of a large body is sent hears of it as well.
        let large = head("/api/v1/push", 32 << 20) + &" ".repeat(32 << 20);
        let (_stream, answer) = raw(&fixture, &large).await;
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert_eq!(
            fixture.post("/api/v1/configure", CONFIGURE).await.status,
            200
        );
        fixture
            .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
            .await;
        fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
        let refusals = r#"queen_lane_refused_total{lane="push",reason="full"}"#;
        assert_eq!(metric(&fixture, refusals).await, 2.0);
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (answers, ()) = tokio::join!(waiting, beyond);
    assert!(answers.iter().all(|answer| answer.status == 201));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_for_a_slot_is_answered_503() {
    let variables = [("QUEEN_PG_CONNECTIONS", "4"), ("QUEEN_LANE_WAIT_MS", "50")];
    let fixture = Fixture::with(&variables, &[]).await;
    let holder = hold(&fixture).await;
    let first = fixture.post("/api/v1/push", PUSH);
    let second = async {
        let in_use = r#"queen_lane_slots_in_use{lane="push"}"#;
        until(|| async { metric(&fixture, in_use).await == 1.0 }).await;
        let refused = fixture.post("/api/v1/push", PUSH).await;
        assert_eq!(
            (refused.status, refused.json()["code"].as_str()),
            (503, Some("overloaded"))
        );
        assert_eq!(refused.retry_after.as_deref(), Some("1"));
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    assert_eq!(tokio::join!(first, second).0.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_fetches_hold_no_slot_and_no_session() {
    let variables = [("QUEEN_PG_CONNECTIONS", "2"), ("QUEEN_LANE_QUEUE", "32")];
    let fixture = Fixture::with(&variables, &[]).await;
    fixture.push("q", "p", &["0"]).await;
    let parked = (0..20).map(|_| {
        fixture.fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30000}"#)
    });
    let other = async {
        fixture.until_parked(20).await;
        let in_use = r#"queen_lane_slots_in_use{lane="pop"}"#;
        until(|| async { metric(&fixture, in_use).await == 0.0 }).await;
        until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
        fixture.push("q", "p", &["1"]).await;
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(parked), other);
    assert!(answers.iter().all(|answer| answer.record_count() == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_fill_the_memory_are_refused_and_counted_no_longer_once_answered() {
    let variables = [("QUEEN_MEMORY_MB", "1"), ("QUEEN_MAX_BODY_MB", "1")];
    let fixture = Fixture::with(&variables, &[]).await;
    let half = 600_000;
    let mut first = TcpStream::connect(fixture.broker.address()).await.unwrap();
    let announced = head("/api/v1/push", half + 1);
    first.write_all(announced.as_bytes()).await.unwrap();
    first.write_all(&vec![b' '; half]).await.unwrap();
    until(|| async { metric(&fixture, "queen_memory_held_bytes").await >= half as f64 }).await;
    // Through no lane: the body alone is what is refused.
    let refused = fixture
        .post("/api/v1/partitions/changed", vec![b' '; half])
        .await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (503, Some("overloaded"))
    );
    drop(first);
    until(|| async { fixture.broker.broker().lanes.memory.held() == 0 }).await;
    fixture.push("q", "p", &["1"]).await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_answered_408() {
    let fixture = Fixture::with(&[("QUEEN_HTTP_BODY_MS", "100")], &[]).await;
    let (_stream, answer) = raw(&fixture, &head("/api/v1/push", 10)).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[tokio::test]
async fn a_head_that_does_not_arrive_in_time_ends_the_connection() {
    let fixture = Fixture::with(&[("QUEEN_HTTP_IDLE_MS", "100")], &[]).await;
    let (mut stream, _) = raw(&fixture, "POST /api/v1/push HTTP/1.1\r\nhost: ").await;
    let mut rest = Vec::new();
    let ended = timeout(SOON, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok());
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_ends() {
    let fixture = Fixture::with(&[("QUEEN_HTTP_CONNECTIONS", "1")], &[]).await;
    let (first, answer) = raw(&fixture, "GET /health HTTP/1.1\r\nhost: q\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut second = TcpStream::connect(fixture.broker.address()).await.unwrap();
    second
        .write_all(b"GET /health HTTP/1.1\r\nhost: q\r\n\r\n")
        .await
        .unwrap();
    let mut byte = [0];
    let early = timeout(Duration::from_millis(200), second.read_exact(&mut byte)).await;
    assert!(early.is_err(), "served beyond the limit");
    drop(first);
    timeout(SOON, second.read_exact(&mut byte))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_take_its_answer_is_cut() {
    let fixture = Fixture::with(&[("QUEEN_HTTP_WRITE_MS", "200")], &[]).await;
    let letters = format!("\"{}\"", "x".repeat(1_000_000));
    for _ in 0..16 {
        fixture.push("q", "p", &[&letters]).await;
    }
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0,"maxBytes":8388608}]}"#;
    let mut stream = TcpStream::connect(fixture.broker.address()).await.unwrap();
    let request = head("/api/v1/fetch", body.len()) + body;
    stream.write_all(request.as_bytes()).await.unwrap();
    let held = || fixture.broker.broker().lanes.memory.held();
    until(|| async { held() > 10_000_000 }).await;
    until(|| async { held() == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_stops_working_for_a_reader_that_is_gone() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    session
        .batch_execute("BEGIN; LOCK TABLE queen.segments IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let request = head("/api/v1/fetch", body.len()) + body;
    let mut stream = TcpStream::connect(fixture.broker.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let observer = fixture.session().await;
    let reading = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.fetch%'";
        let row = observer.query_one(sql, &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    until(|| async { reading().await == 1 }).await;
    drop(stream);
    // Well before its lock timeout of 5 s would end it.
    timeout(
        Duration::from_secs(4),
        until(|| async { reading().await == 0 }),
    )
    .await
    .unwrap();
    until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
    session.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(fixture.fetch(body).await.record_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_whose_client_is_gone_keeps_its_slot_until_the_database_has_answered() {
    let fixture = Fixture::with(&[("QUEEN_PG_CONNECTIONS", "4")], &[]).await;
    let holder = hold(&fixture).await;
    let request = head("/api/v1/push", PUSH.len()) + PUSH;
    let mut stream = TcpStream::connect(fixture.broker.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let in_use = r#"queen_lane_slots_in_use{lane="push"}"#;
    until(|| async { metric(&fixture, in_use).await == 1.0 }).await;
    // Read here and not over HTTP: the client that asks may open a connection of its own to do so.
    let connections = || fixture.broker.broker().metrics.open_connections.get();
    let before = connections();
    drop(stream);
    until(|| async { connections() < before }).await;
    assert_eq!(metric(&fixture, in_use).await, 1.0);
    holder.batch_execute("ROLLBACK").await.unwrap();
    until(|| async { metric(&fixture, in_use).await == 0.0 }).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_and_health_answer_while_every_lane_is_full() {
    let variables = [
        ("QUEEN_RETENTION_INTERVAL_MS", "100"),
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "10000"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "10000"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    let expiring = r#"{"queue":"q","options":{"retentionEnabled":true,"retentionSeconds":1}}"#;
    assert_eq!(
        fixture.post("/api/v1/configure", expiring).await.status,
        200
    );
    fixture.push("q", "p", &["0"]).await;
    let holder = fixture.session().await;
    holder
        .batch_execute(
            "BEGIN; LOCK TABLE queen.segments, queen.kv, queen.trash IN ACCESS EXCLUSIVE MODE",
        )
        .await
        .unwrap();
    let pushes = (0..8).map(|_| fixture.post("/api/v1/push", PUSH));
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let fetches = (0..8).map(|_| fixture.post("/api/v1/fetch", body));
    let keys = (0..8).map(|_| fixture.get("/api/v1/kv/ns/key"));
    let waiting = futures_util::future::join3(
        futures_util::future::join_all(pushes),
        futures_util::future::join_all(fetches),
        futures_util::future::join_all(keys),
    );
    let observing = async {
        let in_use = |lane: &str| format!("queen_lane_slots_in_use{{lane=\"{lane}\"}}");
        let held = "SELECT count(*) FROM pg_stat_activity
                    WHERE wait_event_type = 'Lock' AND application_name = 'queen'";
        let observer = fixture.session().await;
        until(|| async {
            let row = observer.query_one(held, &[]).await.unwrap();
            row.get::<_, i64>(0) >= 13
                && metric(&fixture, &in_use("push")).await >= 5.0
                && metric(&fixture, &in_use("pop")).await >= 5.0
                && metric(&fixture, &in_use("control")).await >= 3.0
        })
        .await;
        for _ in 0..20 {
            let entries = r#"{"entries":[{"queue":"q"}]}"#;
            let discovery = fixture.post("/api/v1/partitions/changed", entries);
            let answer = timeout(Duration::from_secs(2), discovery).await;
            assert_eq!(answer.expect("an answer in time").status, 200);
            let health = timeout(Duration::from_secs(2), fixture.get("/health")).await;
            assert_eq!(health.expect("an answer in time").status, 200);
        }
        let status = fixture.get("/status").await.json();
        assert_eq!(status["database"]["connected"], serde_json::json!(true));
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let ((pushes, fetches, keys), ()) = tokio::join!(waiting, observing);
    let all = pushes.iter().chain(&fetches).chain(&keys);
    assert!(all.into_iter().all(|answer| answer.status < 300));
}
