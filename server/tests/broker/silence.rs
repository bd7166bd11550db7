//! A PostgreSQL that does not answer.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use private_postgres::{Options, PrivatePostgres};
use queen::broker::Running;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::{Fixture, config, session_of, until};
use crate::wire::{Line, Wire};

const PUSH: &str = r#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_falls_silent_holds_the_slots_alone_and_is_gone_once_its_line_is_cut() {
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let wire = Wire::to(&postgres).await;
    let port = wire.port().to_string();
    let variables = [
        ("PG_HOST", "127.0.0.1"),
        ("PG_PORT", port.as_str()),
        ("QUEEN_PG_CONNECTIONS", "4"),
        ("QUEEN_LANE_WAIT_MS", "100"),
    ];
    let fixture = Arc::new(Fixture::on(postgres, &variables).await);
    fixture.push("q", "p", &["0"]).await;
    wire.set(Line::Silent);
    let caught = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move { fixture.post("/api/v1/push", PUSH).await }
    });
    let in_use = "queen_lane_slots_in_use{lane=\"push\"} 1";
    until(|| async { fixture.get("/metrics").await.text.contains(in_use) }).await;
    let refused = fixture.post("/api/v1/push", PUSH).await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (503, Some("overloaded"))
    );
    assert_eq!(fixture.get("/health").await.status, 503);
    assert!(!caught.is_finished());
    // What the system does when it has not heard of the machine for too long.
    wire.set(Line::Cut);
    let caught = caught.await.unwrap();
    assert_eq!(
        (caught.status, caught.json()["code"].as_str()),
        (503, Some("database_unavailable"))
    );
    assert_eq!(caught.retry_after.as_deref(), Some("1"));
    wire.set(Line::Open);
    until(|| async { fixture.get("/health").await.status == 200 }).await;
    fixture.push("q", "p", &["1"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn a_server_that_takes_a_connection_and_says_nothing_ends_the_boot() {
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let variables = [("PG_HOST", "127.0.0.1"), ("PG_PORT", port.as_str())];
    let begun = Instant::now();
    let start = Running::start(config(&postgres, &variables));
    let error = start.await.err().unwrap().to_string();
    assert!(
        error.contains("PG_HOST") && error.contains("not answered"),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_in_the_middle_of_a_migration_ends_the_boot_with_1_and_a_word() {
    /// After 20 s without an answer, and the machine may be busy.
    const ENDED: Duration = Duration::from_secs(60);
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let session = session_of(&postgres).await;
    let slow = "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS
                    'BEGIN PERFORM pg_sleep(3600); END';
                CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE FUNCTION')
                    EXECUTE FUNCTION slow()";
    session.batch_execute(slow).await.unwrap();
    let broker = Command::new(env!("CARGO_BIN_EXE_queen"))
        .env_clear()
        .env("PORT", "0")
        .env("PG_HOST", postgres.host())
        .env("PG_PORT", postgres.port().to_string())
        .env("PG_USER", postgres.user())
        .env("PG_PASSWORD", postgres.password())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let migrating = "SELECT count(*) FROM pg_stat_activity
                     WHERE application_name = 'queen' AND wait_event = 'PgSleep'";
    until(|| async {
        let row = session.query_one(migrating, &[]).await.unwrap();
        row.get::<_, i64>(0) == 1
    })
    .await;
    let _frozen = postgres.freeze().unwrap();
    let process = Pid::from_child(&broker);
    let mut ended = tokio::task::spawn_blocking(move || broker.wait_with_output().unwrap());
    let output = timeout(ENDED, &mut ended).await;
    if output.is_err() {
        kill_process(process, Signal::KILL).unwrap();
    }
    let output = output.expect("the boot ends").unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let address = format!("127.0.0.1:{}", postgres.port());
    for told in ["has not taken a connection for 20 s", "PG_HOST", &address] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(!text.contains(postgres.password()), "{text}");
}

/// Longest time that a request may take while the database is stopped: a wait for a slot, and one for a session
/// or an answer.
const ANSWERED: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_database_that_is_stopped_are_answered_503_in_time_and_leave_no_session() {
    let variables = [
        ("QUEEN_PG_CONNECTIONS", "8"),
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "2000"),
        ("QUEEN_RETENTION_INTERVAL_MS", "100"),
    ];
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let fixture = Fixture::on(postgres, &variables).await;
    let limited = r#"{"queue":"q","options":{"retentionEnabled":true,"retentionSeconds":3600}}"#;
    assert_eq!(fixture.post("/api/v1/configure", limited).await.status, 200);
    fixture.push("q", "p", &["0"]).await;
    let look = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let put = r#"[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]"#;
    // Two of each: those caught in a statement, and those that come later.
    for _ in 0..2 {
        let frozen = fixture.postgres.freeze().unwrap();
        let health = async {
            for _ in 0..3 {
                let health = fixture.get("/health").await;
                assert_eq!(health.status, 503, "{}", health.text);
            }
        };
        let requests = futures_util::future::join_all([
            fixture.post("/api/v1/push", PUSH),
            fixture.post("/api/v1/push", PUSH),
            fixture.post("/api/v1/push", PUSH),
            fixture.post("/api/v1/fetch", look),
            fixture.post("/api/v1/kv", put),
            fixture.post("/api/v1/partitions/changed", r#"{"entries":[]}"#),
            fixture.post("/api/v1/configure", limited),
        ]);
        let more = futures_util::future::join_all([
            fixture.get("/api/v1/pop/queue/q?wait=false"),
            fixture.get("/api/v1/resources/queues"),
            fixture.get("/api/v1/dlq?queue=q"),
        ]);
        let all = async {
            let (mut answers, more, ()) = tokio::join!(requests, more, health);
            answers.extend(more);
            answers
        };
        let answers = timeout(ANSWERED, all).await;
        let status = timeout(ANSWERED, fixture.get("/status")).await.unwrap();
        assert_eq!(status.json()["database"]["connected"], false);
        let later = timeout(ANSWERED, fixture.post("/api/v1/push", PUSH)).await;
        let later = later.expect("an answer in time");
        for answer in answers.expect("answers in time").iter().chain([&later]) {
            assert_eq!(
                (answer.status, answer.retry_after.as_deref()),
                (503, Some("1")),
                "{}",
                answer.text
            );
        }
        drop(frozen);
        until(|| async { fixture.get("/health").await.status == 200 }).await;
        fixture.push("q", "p", &["1"]).await;
    }
    let observer = fixture.session().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queen'";
    // One more listens for other brokers.
    until(|| async {
        let row = observer.query_one(sessions, &[]).await.unwrap();
        row.get::<_, i64>(0) <= 9
    })
    .await;
    until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
    assert!(fixture.fetch(look).await.record_count() >= 3);
}
