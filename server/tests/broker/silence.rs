//! A PostgreSQL that takes statements and answers nothing.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Fixture, until};

/// Server processes of the broker's sessions, stopped until this is dropped.
struct Stopped(Vec<Pid>);

impl Stopped {
    async fn of(fixture: &Fixture) -> Self {
        const SESSIONS: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = 'queen' AND pid <> pg_backend_pid()";
        let rows = fixture.session().await.query(SESSIONS, &[]).await.unwrap();
        let pids: Vec<Pid> = rows
            .iter()
            .map(|row| Pid::from_raw(row.get(0)).unwrap())
            .collect();
        assert!(!pids.is_empty());
        let stopped = Self(pids);
        for pid in &stopped.0 {
            kill_process(*pid, Signal::STOP).unwrap();
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            // One that has ended needs nothing.
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_a_statement_and_does_not_answer_is_given_up() {
    const PUSH: &str = r#"{"items":[{"queue":"q","payload":1,"transactionId":"once"}]}"#;
    const READ: &str = r#"{"entries":[{"queue":"q","offset":0}]}"#;
    const KV: &str = r#"[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]"#;
    let fixture = Fixture::with(&[("QUEEN_PG_STATEMENT_TIMEOUT_MS", "1000")], &[]).await;
    fixture.push("q", "other", &["0"]).await;
    assert_eq!(fixture.post("/api/v1/kv", KV).await.status, 200);

    let stopped = Stopped::of(&fixture).await;
    let answer = fixture.post("/api/v1/push", PUSH).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(answer.retry_after.as_deref(), Some("1"));
    // Sessions that are silent are not given to anybody again: others take their place, although those
    // processes are stopped still.
    until(|| async { fixture.post("/api/v1/push", PUSH).await.status == 201 }).await;
    until(|| async { fixture.post("/api/v1/kv", KV).await.status == 200 }).await;
    until(|| async { fixture.get("/health").await.status == 200 }).await;

    // What they do once they run again changes nothing.
    let pids: Vec<i32> = stopped
        .0
        .iter()
        .map(|pid| pid.as_raw_nonzero().get())
        .collect();
    drop(stopped);
    let session = fixture.session().await;
    until(|| async {
        const LEFT: &str =
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND state <> 'idle'";
        session
            .query_one(LEFT, &[&pids])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    let fetched = fixture.fetch(READ).await;
    assert_eq!(fetched.entries[0].records.len(), 1);
}
