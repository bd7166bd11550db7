//! Sessions of the broker that end under it.

use private_postgres::{Options, PrivatePostgres};

use crate::support::{Fixture, until};
use crate::wire::{Line, Wire};

const ROUNDS: usize = 20;
/// Every session of a broker, or the one that waits for a lock.
const ALL: &str = "true";
const WAITING: &str = "wait_event_type = 'Lock'";

/// Ends sessions in the middle of a push, again and again; requests that follow at once are all served.
async fn requests_follow_a_cut(which: &str) {
    let fixture = Fixture::start().await;
    fixture.push("q", "held", &["0"]).await;
    fixture.push("q", "free", &["0"]).await;
    let holder = fixture.session().await;
    let observer = fixture.session().await;
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queen' AND {WAITING}"
    );
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = 'queen' AND {which}"
    );
    let push = |partition: &str| {
        let body =
            format!(r#"{{"items":[{{"queue":"q","partition":"{partition}","payload":1}}]}}"#);
        fixture.post("/api/v1/push", body)
    };
    for round in 0..ROUNDS {
        holder
            .batch_execute("BEGIN; SELECT 1 FROM queen.partitions WHERE name = 'held' FOR UPDATE")
            .await
            .unwrap();
        let cut = async {
            until(|| async {
                let row = observer.query_one(&waits, &[]).await.unwrap();
                row.get::<_, i64>(0) == 1
            })
            .await;
            observer.query_one(&end, &[]).await.unwrap();
        };
        let (caught, ()) = tokio::join!(push("held"), cut);
        assert_eq!(caught.status, 503, "{}", caught.text);
        let pushed = push("free").await;
        assert_eq!(pushed.status, 201, "round {round}: {}", pushed.text);
        let body = r#"{"entries":[{"queue":"q","partition":"free","offset":0}]}"#;
        let fetched = fixture.fetch(body).await;
        assert_eq!(fetched.record_count(), round + 2);
        fixture.changed("{}").await;
        assert_eq!(fixture.get("/health").await.status, 200);
        holder.batch_execute("ROLLBACK").await.unwrap();
    }
    let body = r#"{"entries":[{"queue":"q","partition":"held","offset":0}]}"#;
    assert_eq!(fixture.fetch(body).await.record_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_after_one_whose_session_was_cut_is_served() {
    requests_follow_a_cut(WAITING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_after_one_is_served_that_was_cut_with_every_other_session() {
    requests_follow_a_cut(ALL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_reads_is_read_again_where_its_session_was_cut() {
    const ENTRY: &str = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let holder = fixture.session().await;
    for (method, path, body, statement) in [
        ("POST", "/api/v1/fetch", ENTRY, "%queen.fetch%"),
        ("POST", "/api/v1/partitions/changed", ENTRY, "%queen.floor%"),
        ("GET", "/api/v1/resources/queues", "", "%created_at%"),
    ] {
        holder
            .batch_execute(
                "BEGIN; LOCK TABLE queen.segments, queen.floor, queen.queues IN ACCESS EXCLUSIVE MODE",
            )
            .await
            .unwrap();
        let cut = async {
            fixture.cut(statement).await;
            holder.batch_execute("ROLLBACK").await.unwrap();
        };
        let (answer, ()) = tokio::join!(fixture.request(method, path, body), cut);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_whose_session_is_cut_before_it_is_sent_is_written_once_on_another() {
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let wire = Wire::to(&postgres).await;
    let port = wire.port().to_string();
    let variables = [("PG_HOST", "127.0.0.1"), ("PG_PORT", port.as_str())];
    let fixture = Fixture::on(postgres, &variables).await;
    let session = fixture.session().await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE application_name = 'queen'";
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    for (round, id) in ["", r#""transactionId":"a","#].into_iter().enumerate() {
        // A statement is read by the server before it is sent what to do.
        wire.set(Line::Until("queen.push"));
        let cut = async {
            wire.held().await;
            let ended: i64 = session.query_one(end, &[]).await.unwrap().get(0);
            assert!(ended >= 1);
            wire.set(Line::Open);
        };
        let push = format!(r#"{{"items":[{{"queue":"q","partition":"p",{id}"payload":1}}]}}"#);
        let (pushed, ()) = tokio::join!(fixture.post("/api/v1/push", push), cut);
        assert_eq!(pushed.status, 201, "{}", pushed.text);
        assert_eq!(fixture.fetch(body).await.record_count(), round + 1);
    }
}
