//! Commits that wait for a synchronous standby that is not there, while PostgreSQL answers all else.

use futures_util::future::join_all;
use queen::admission::Slot;
use queen::session::Session;
use serde_json::{Value, json};
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
    let held: Session = database.client(Slot::default()).await.unwrap();
    let reading = async {
        until(|| async { waiting(&observer, "queen").await == 2 }).await;
        loop {
            match database.client(Slot::default()).await {
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

/// How many slots of a lane are taken.
async fn slots(fixture: &Fixture, lane: &str) -> usize {
    let text = fixture.get("/metrics").await.text;
    let name = format!("queen_lane_slots_in_use{{lane=\"{lane}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

async fn refused(fixture: &Fixture, requests: &[(&str, String, String)]) {
    let requests = requests
        .iter()
        .map(|(method, path, body)| fixture.request(method, path, body));
    for answer in join_all(requests).await {
        assert_eq!(
            (answer.status, answer.retry_after.as_deref()),
            (503, Some("1")),
            "{}",
            answer.text
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_every_kind_that_wait_for_a_standby_keep_their_slots_and_leave_some_to_who_reads()
 {
    const PARTITIONS: usize = 40;
    // The lanes have 10, 10 and 6 of the sessions, consumers 8 of the pop lane's.
    let variables = [&[("QUEEN_PG_CONNECTIONS", "32")], &VARIABLES[1..]].concat();
    let fixture = Fixture::with(&variables, &[]).await;
    for partition in 0..PARTITIONS {
        fixture.push("acked", &partition.to_string(), &["0"]).await;
    }
    for queue in ["extended", "popped", "settled", "deleted", "left", "moved"] {
        fixture.push(queue, "p", &["0"]).await;
    }
    let pop = async |path: &str| -> Value {
        let path = format!("/api/v1/pop/queue/{path}wait=false");
        fixture.get(&path).await.json()
    };
    let taken = pop(&format!("acked?partitions={PARTITIONS}&")).await;
    let held = pop("extended?").await;
    for queue in ["left", "moved"] {
        pop(&format!("{queue}?consumerGroup=g&subscriptionMode=all&")).await;
    }
    let request =
        |method: &'static str, path: &str, body: Value| (method, path.into(), body.to_string());
    let ack = |message: &Value| {
        let named = json!({
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "status": "completed",
        });
        request("POST", "/api/v1/ack", named)
    };
    let configure = |queue: &str| request("POST", "/api/v1/configure", json!({"queue": queue}));
    let acks = taken["messages"].as_array().unwrap();
    assert_eq!(acks.len(), PARTITIONS);
    let extend = format!("/api/v1/lease/{}/extend", held["leaseId"].as_str().unwrap());

    let observer = fixture.session().await;
    lose_standby(&fixture, &observer).await;
    let one_of_each = [
        ack(&acks[0]),
        request("POST", &extend, json!({})),
        request("GET", "/api/v1/pop/queue/popped?wait=false", Value::Null),
        request(
            "GET",
            "/api/v1/pop/queue/settled?wait=false&autoAck=true",
            Value::Null,
        ),
        configure("made"),
        request("DELETE", "/api/v1/resources/queues/deleted", Value::Null),
        request(
            "DELETE",
            "/api/v1/consumer-groups/g/queues/left",
            Value::Null,
        ),
        request(
            "POST",
            "/api/v1/consumer-groups/g/queues/moved/seek",
            json!({"toEnd": true}),
        ),
    ];
    refused(&fixture, &one_of_each).await;
    assert_eq!(slots(&fixture, "consume").await, 4);
    assert!(slots(&fixture, "control").await >= 4);
    for round in 0..2 {
        let mut more: Vec<_> = acks[1..].iter().map(ack).collect();
        more.extend((0..PARTITIONS).map(|number| configure(&format!("{round}-{number}"))));
        let read = async {
            until(|| async { slots(&fixture, "consume").await == 8 }).await;
            assert_eq!(record_count(&fixture, "p").await, 0);
            let body = r#"{"entries":[{"queue":"acked","partition":"7","offset":0}]}"#;
            assert_eq!(fixture.fetch(body).await.record_count(), 1);
            assert_eq!(fixture.get("/api/v1/resources/queues").await.status, 200);
        };
        tokio::join!(refused(&fixture, &more), read);
    }
    assert_eq!(slots(&fixture, "control").await, 6);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queen'";
    let sessions: i64 = observer.query_one(sessions, &[]).await.unwrap().get(0);
    // One more listens for other brokers.
    assert!(sessions <= 33, "{sessions}");
    assert_eq!(fixture.broker.broker().lanes.memory.held(), 0);
    forgo_standby(&observer).await;
    until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
    assert_eq!(slots(&fixture, "consume").await, 0);
    let (_, path, body) = ack(&acks[PARTITIONS - 1]);
    assert_eq!(fixture.post(&path, body).await.status, 200);
}
