//! A database whose disk is really full: its tables are on a file system of a few megabytes.

use private_postgres::{Options, PrivatePostgres};
use serde_json::{Value, json};

use crate::support::{Answer, Fixture, session_of, until};

const DISK_BYTES: u64 = 64 << 20;
const RECORD_BYTES: usize = 500_000;

/// As many letters, which compress little.
fn letters(number: usize, length: usize) -> String {
    let mut state = number as u64 + 1;
    let letter = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'#' + (state >> 33) as u8 % 57)
    };
    std::iter::repeat_with(letter).take(length).collect()
}

async fn push(fixture: &Fixture, payload: &str) -> Answer {
    let item = json!({"queue": "q", "partition": "p", "payload": payload});
    let body = json!({ "items": [item] }).to_string();
    fixture.post("/api/v1/push", body).await
}

/// The payloads of the partition, in order.
async fn log(fixture: &Fixture) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let entry = json!({"queue": "q", "partition": "p", "offset": payloads.len()});
        let body = json!({ "entries": [entry] }).to_string();
        let answer = fixture.post("/api/v1/fetch", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let records = answer.json()["entries"][0]["records"].take();
        let records = records.as_array().unwrap();
        if records.is_empty() {
            return payloads;
        }
        let payload = |record: &Value| record["payload"].as_str().unwrap().to_owned();
        payloads.extend(records.iter().map(payload));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_pushes_for_as_long_as_it_is_full_and_loses_nothing() {
    if !PrivatePostgres::may_have_small_disk().unwrap() {
        // The end-to-end tests limit the files of the server where nothing can be mounted.
        eprintln!("neither root nor user namespaces: not tried with a full file system");
        return;
    }
    let mut options = Options::throwaway();
    options.small_disk = Some(DISK_BYTES);
    let postgres = PrivatePostgres::start(options).unwrap();
    let session = session_of(&postgres).await;
    let folder = postgres.small_disk();
    for statement in [
        format!("CREATE TABLESPACE small LOCATION '{}'", folder.display()),
        format!("ALTER DATABASE {} SET default_tablespace = small", postgres.database()),
        "CREATE TABLE filler TABLESPACE small AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
            .into(),
    ] {
        session.batch_execute(&statement).await.unwrap();
    }
    let fixture = Fixture::on(postgres, &[]).await;
    let mut acknowledged = vec!["first".to_owned(), "second".to_owned()];
    for payload in &acknowledged {
        assert_eq!(push(&fixture, payload).await.status, 201);
    }
    let pop = async || fixture.get("/api/v1/pop/queue/q?batch=1&wait=false").await;
    let ack = async |popped: &Answer| {
        let message = &popped.json()["messages"][0];
        let mut ack = json!({"status": "completed"});
        for name in ["transactionId", "partitionId", "leaseId"] {
            ack[name] = message[name].clone();
        }
        let answer = fixture.post("/api/v1/ack", ack.to_string()).await;
        assert_eq!(
            (answer.status, &answer.json()[0]["success"]),
            (200, &json!(true))
        );
        message["data"].clone()
    };
    assert_eq!(ack(&pop().await).await, "first");

    let mut number = 0;
    let mut length = RECORD_BYTES;
    while length > 10_000 {
        assert!(number < 200, "the disk is not full");
        number += 1;
        let payload = letters(number, length);
        let answer = push(&fixture, &payload).await;
        if answer.status == 201 {
            acknowledged.push(payload);
            continue;
        }
        let told = (answer.status, answer.retry_after.as_deref());
        assert_eq!(told, (503, Some("1")), "{}", answer.text);
        assert_eq!(answer.json()["code"], "database_unavailable");
        length /= 2;
    }
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    let room = "INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)";
    let full = session.batch_execute(room).await.unwrap_err();
    assert_eq!(full.code().unwrap().code(), "53100");
    // What is there can be read and consumed.
    assert_eq!(fixture.get("/health").await.status, 200);
    assert!(log(&fixture).await == acknowledged);
    assert_eq!(ack(&pop().await).await, "second");

    session.batch_execute("DROP TABLE filler").await.unwrap();
    let late = letters(0, RECORD_BYTES);
    until(|| async { push(&fixture, &late).await.status == 201 }).await;
    acknowledged.push(late);
    assert!(log(&fixture).await == acknowledged);
}
