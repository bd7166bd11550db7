//! Commits that wait for a synchronous standby that is not there, while PostgreSQL answers all else.

use queen::session::Session;
use tokio_postgres::Client;

use crate::support::{Answer, Fixture, until};

/// A statement is given up after 6 s; three sessions are the lanes' and the background's, one the observers'.
const VARIABLES: &[(&str, &str)] = &[
    ("QUEEN_PG_CONNECTIONS", "4"),
    ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "1000"),
    ("QUEEN_LANE_WAIT_MS", "100"),
];

/// A push and a batch, each of its own partition or key: what waits for a standby keeps its locks.
async fn write(fixture: &Fixture, name: &str) -> [Answer; 2] {
    let push = format!(r#"{{"items":[{{"queue":"q","partition":"{name}","payload":1}}]}}"#);
    let put = format!(r#"[{{"op":"put","ns":"n","key":"{name}","value":1,"forever":true}}]"#);
    let (pushed, put) = tokio::join!(
        fixture.post("/api/v1/push", push),
        fixture.post("/api/v1/kv", put)
    );
    [pushed, put]
}

async fn record_count(fixture: &Fixture, partition: &str) -> usize {
    let body = format!(r#"{{"entries":[{{"queue":"q","partition":"{partition}","offset":0}}]}}"#);
    fixture.fetch(&body).await.record_count()
}

/// How many sessions of the name wait for a standby.
async fn waiting(observer: &Client, name: &str) -> i64 {
    const SQL: &str = "SELECT count(*) FROM pg_stat_activity
                       WHERE wait_event = 'SyncRep' AND application_name = $1";
    observer.query_one(SQL, &[&name]).await.unwrap().get(0)
}

/// Names a standby that is not there, and is done when commits wait for it.
async fn lose_standby(fixture: &Fixture, observer: &Client) {
    for statement in [
        "ALTER SYSTEM SET synchronous_standby_names = 'nowhere'",
        "SELECT pg_reload_conf()",
    ] {
        observer.batch_execute(statement).await.unwrap();
    }
    let probe = fixture.session().await;
    let probing = tokio::spawn(async move {
        let probe_once = "SET application_name = 'probe';
                          SELECT pg_current_xact_id(), pg_logical_emit_message(true, 'probe', '')";
        while probe.batch_execute(probe_once).await.is_ok() {}
    });
    until(|| async { waiting(observer, "probe").await == 1 }).await;
    probing.abort();
}

/// Commits wait for nobody any more.
async fn forgo_standby(observer: &Client) {
    for statement in [
        "ALTER SYSTEM RESET synchronous_standby_names",
        "SELECT pg_reload_conf()",
    ] {
        observer.batch_execute(statement).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_wait_for_a_standby_take_no_more_sessions_than_there_are() {
    let fixture = Fixture::with(VARIABLES, &[]).await;
    fixture.push("q", "p", &["0"]).await;
    let observer = fixture.session().await;
    lose_standby(&fixture, &observer).await;
    for name in ["first", "second", "third"] {
        for answer in write(&fixture, name).await {
            assert_eq!(
                (answer.status, answer.retry_after.as_deref()),
                (503, Some("1")),
                "{}",
                answer.text
            );
        }
    }
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queen'";
    let sessions: i64 = observer.query_one(sessions, &[]).await.unwrap().get(0);
    // One more listens for other brokers.
    assert!(sessions <= 5, "{sessions}");
    assert!(waiting(&observer, "queen").await >= 2);
    assert_eq!(fixture.get("/health").await.status, 200);
    // The slots of the pushes and batches are taken for as long, and leave sessions to those who read.
    assert_eq!(record_count(&fixture, "p").await, 1);
    forgo_standby(&observer).await;
    until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
    fixture.push("q", "p", &["2"]).await;
    assert_eq!(record_count(&fixture, "p").await, 2);
    assert_eq!(record_count(&fixture, "first").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_session_is_not_refused_because_commits_of_others_wait_for_a_standby() {
    let fixture = Fixture::with(VARIABLES, &[]).await;
    fixture.push("q", "p", &["0"]).await;
    let database = &fixture.broker.broker().database;
    let observer = fixture.session().await;
    lose_standby(&fixture, &observer).await;
    let held: Session = database.client().await.unwrap();
    let reading = async {
        until(|| async { waiting(&observer, "queen").await == 2 }).await;
        loop {
            match database.client().await {
                Err(error) if error.is_slow_session() => {}
                outcome => return outcome,
            }
        }
    };
    let mut reading = Box::pin(reading);
    let [pushed, put] = tokio::select! {
        written = write(&fixture, "first") => written,
        read = &mut reading => panic!("refused: {:?}", read.err()),
    };
    assert_eq!((pushed.status, put.status), (503, 503));
    drop(held);
    let read = reading.await;
    assert!(read.is_ok(), "{:?}", read.err());
}
