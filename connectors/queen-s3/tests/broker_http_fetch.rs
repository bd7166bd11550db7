//! Fetch answers through the client for Queen, over real sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use queen_s3::broker::http::{HttpBroker, HttpBrokerOptions};
use queen_s3::broker::{Broker, BrokerErrorKind, FetchEntry, FetchRequest};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Chunk, Damaged, SEGMENTS, Unpacked};

const SHORT: Duration = Duration::from_millis(300);

/// A server that gives every request one answer after a pause, and keeps the last request.
struct Server {
    broker: HttpBroker,
    budget: Arc<MemoryBudget>,
    asked: Arc<Mutex<Value>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn saying(body: Value, after: Duration) -> Self {
        let asked = Arc::new(Mutex::new(Value::Null));
        let state = (Arc::new(body.to_string()), after, Arc::clone(&asked));
        let app = Router::new().fallback(handle).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serve");
        });
        let budget = MemoryBudget::new(1 << 30);
        let broker = HttpBroker::new(HttpBrokerOptions {
            answer_timeout: SHORT,
            ..HttpBrokerOptions::new(url.parse().expect("a URL"), None, Arc::clone(&budget))
        })
        .expect("a client");
        Self {
            broker,
            budget,
            asked,
            task,
        }
    }

    fn asked(&self) -> Value {
        self.asked.lock().expect("no panic holds it").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answer = (Arc<String>, Duration, Arc<Mutex<Value>>);

async fn handle(State((answer, after, asked)): State<Answer>, body: Bytes) -> String {
    *asked.lock().expect("no panic holds it") = serde_json::from_slice(&body).expect("JSON");
    tokio::time::sleep(after).await;
    answer.as_ref().clone()
}

fn fetch_request(partitions: &[&str], max_wait_ms: u32) -> FetchRequest {
    let entry = |name: &&str| FetchEntry {
        partition: (*name).into(),
        offset: 5,
        max_bytes: 1_024,
    };
    FetchRequest {
        queue: "orders".into(),
        entries: partitions.iter().map(entry).collect(),
        max_wait_ms,
    }
}

fn fetch_answer(records: usize) -> Value {
    let record = |offset: usize| {
        json!({"offset": offset + 5, "transactionId": format!("t{offset}"), "payload": {"n": offset},
               "ts": "2026-09-04T10:03:41.918204Z"})
    };
    let records: Vec<Value> = (0..records).map(record).collect();
    json!({"entries": [{"queue": "orders", "partition": "a", "highWatermark": records.len() + 5,
                        "logStartOffset": 0, "records": records}]})
}

#[tokio::test]
async fn a_fetch_brings_records_small_and_large_and_counts_them_once() {
    for count in [1, 2_000] {
        let server = Server::saying(fetch_answer(count), Duration::ZERO).await;
        let answer = server
            .broker
            .fetch(&fetch_request(&["a"], 250))
            .await
            .expect("an answer");
        assert_eq!(answer.batch.records() as usize, count);
        assert_eq!(answer.entries[0].high_watermark, count as i64 + 5);
        let last = Chunk::whole(&answer.batch).part(count as u32 - 1..count as u32);
        let expected = format!("{{\"n\":{}}}", count - 1);
        let read = last.each(&mut Unpacked::default(), |record| {
            assert_eq!(record.payload, expected.as_bytes());
            Ok::<_, Damaged>(())
        });
        read.expect("nothing is compressed");
        assert_eq!(server.budget.used(), answer.batch.held_bytes());
        drop((answer, last));
        assert_eq!(server.budget.used(), 0);
        assert_eq!(
            server.asked(),
            json!({"entries": [{"queue": "orders", "partition": "a", "offset": 5,
                                "maxBytes": 1_024}], "maxWaitMs": 250})
        );
    }
}

#[tokio::test]
async fn a_fetch_answer_that_is_not_aligned_with_its_request_is_refused() {
    let server = Server::saying(fetch_answer(1), Duration::ZERO).await;
    let error = server
        .broker
        .fetch(&fetch_request(&["b"], 0))
        .await
        .expect_err("refused");
    assert!(matches!(error.kind, BrokerErrorKind::Decode(_)), "{error}");
    assert_eq!(server.budget.used(), 0);
}

#[tokio::test]
async fn a_fetch_waits_as_long_as_it_asked_the_broker_to_and_no_call_waits_for_ever() {
    // Longer than a call may take, shorter than the last fetch asks the broker to wait.
    let server = Server::saying(fetch_answer(1), 2 * SHORT).await;
    let broker = &server.broker;
    let error = broker
        .fetch(&fetch_request(&["a"], 0))
        .await
        .expect_err("too late");
    assert!(
        matches!(error.kind, BrokerErrorKind::Transport(_)),
        "{error}"
    );
    let error = broker.changed(None).await.expect_err("too late");
    assert!(error.to_string().contains("within 300 ms"), "{error}");
    broker
        .fetch(&fetch_request(&["a"], 30_000))
        .await
        .expect("in time");
}

/// A broker that answers segments to who asks for them: one entry, no records, watermark 7.
async fn segments(headers: HeaderMap) -> impl IntoResponse {
    let accepted = headers[ACCEPT].to_str().expect("text").contains(SEGMENTS);
    let mut body = b"QSEG\x01\x01\0\0\0\x06\0orders\x02\0p1".to_vec();
    body.extend_from_slice(&7i64.to_le_bytes());
    body.extend_from_slice(&5i64.to_le_bytes());
    body.extend_from_slice(b"\0\0");
    let status = if accepted { 200 } else { 406 };
    let status = StatusCode::from_u16(status).expect("a status");
    (status, [(CONTENT_TYPE, SEGMENTS)], body)
}

#[tokio::test]
async fn segments_are_asked_for_and_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let app = Router::new().fallback(segments);
    let task = tokio::spawn(async move { axum::serve(listener, app).await });
    let budget = MemoryBudget::new(1 << 30);
    let options = HttpBrokerOptions::new(url.parse().expect("a URL"), None, budget);
    let broker = HttpBroker::new(options).expect("a client");
    let answer = broker.fetch(&fetch_request(&["p1"], 0)).await;
    let entry = &answer.expect("it reads").entries[0];
    assert_eq!((entry.log_start, entry.high_watermark), (5, 7));
    task.abort();
}
