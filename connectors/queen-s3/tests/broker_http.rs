//! The client for Queen, over real sockets, against a server that answers what a test says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures::{StreamExt, stream};
use queen_protocol::kv::{Expiry, KvOperation};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use queen_s3::broker::http::{HttpBroker, HttpBrokerOptions};
use queen_s3::broker::{
    Broker, BrokerErrorKind, ChangedRequest, EntryError, FetchEntry, FetchRequest, KvAnswer,
};
use queen_s3::config::Secret;
use queen_s3::memory::MemoryBudget;
use queen_s3::time::Micros;

const TOKEN: &str = "tok3n-of-a-test";
const SHORT: Duration = Duration::from_millis(300);

type Answer = Arc<dyn Fn() -> Response + Send + Sync>;

struct Seen {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// A server that gives every request the same answer and keeps what it was asked.
struct Server {
    broker: HttpBroker,
    budget: Arc<MemoryBudget>,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    async fn answering(answer: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let state: (Answer, _) = (Arc::new(answer), Arc::clone(&seen));
        let app = Router::new().fallback(handle).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!(
            "http://{}/cell/",
            listener.local_addr().expect("it is bound")
        );
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serve");
        });
        let budget = MemoryBudget::new(1 << 30);
        let broker = HttpBroker::new(HttpBrokerOptions {
            answer_timeout: SHORT,
            ..HttpBrokerOptions::new(
                url.parse().expect("a URL"),
                Some(Secret::new(TOKEN)),
                Arc::clone(&budget),
            )
        })
        .expect("a client");
        Self {
            broker,
            budget,
            seen,
            task,
        }
    }

    async fn saying(body: Value) -> Self {
        Self::answering(move || Response::new(Body::from(body.to_string()))).await
    }

    fn asked(&self) -> Value {
        let seen = self.seen.lock().expect("no panic holds it");
        serde_json::from_slice(&seen.last().expect("a request").body).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    State((answer, seen)): State<(Answer, Arc<Mutex<Vec<Seen>>>)>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = Seen {
        path: uri.path().to_owned(),
        headers,
        body,
    };
    seen.lock().expect("no panic holds it").push(request);
    answer()
}

fn refusing(code: u16, headers: &[(&'static str, &'static str)], body: String) -> Response {
    let mut response = Response::builder().status(code);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::from(body)).expect("a response")
}

fn changed_request() -> ChangedRequest {
    ChangedRequest {
        queue: "orders".into(),
        since: Some(Micros(-2_000_000)),
        after: Some("c1".into()),
        limit: 10,
    }
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

fn operations() -> Vec<KvOperation> {
    let put = |key| KvOperation::put("queen-s3", key, json!({"k": 1}), Expiry::Forever);
    vec![
        put("s3:a:q:lease").expect("valid").expect(3).required(),
        put("s3:a:q:intent").expect("valid").expect(0).required(),
    ]
}

#[tokio::test]
async fn a_call_carries_the_token_and_asks_for_json_under_the_path_of_the_url() {
    let server =
        Server::saying(json!({"queues": [{"name": "orders", "id": 1}, {"name": "ü"}]})).await;
    let queues = server.broker.queues().await.expect("an answer");
    assert_eq!(queues, ["orders", "ü"]);
    let seen = server.seen.lock().expect("no panic holds it");
    assert_eq!(seen[0].path, "/cell/api/v1/resources/queues");
    assert_eq!(seen[0].headers["accept"], "application/json");
    assert_eq!(seen[0].headers["authorization"], format!("Bearer {TOKEN}"));
}

#[tokio::test]
async fn discovery_reads_what_any_broker_sends() {
    let server = Server::saying(json!({
        "safeTime": "1970-01-01T00:00:09.000001Z", "hint": 1,
        "entries": [{"queue": "orders", "next": "c2", "lag": 3, "partitions": [
            {"name": "a\"b", "lastOffset": -1, "logStart": 0, "lastWriteAt": "x", "id": "no uuid"},
            {"name": "b", "lastOffset": 7, "logStart": 2, "segments": 1,
             "lastWriteAt": "1970-01-01T00:00:07.000000Z",
             "id": "67e55044-10b1-426f-9247-bb680e5fe0c8"},
            {"name": "c", "lastOffset": 1, "logStart": 0, "id": 12},
            {"name": "d", "lastOffset": 1, "logStart": 0, "id": null},
        ]}],
    }))
    .await;
    let changed = server
        .broker
        .changed(Some(&changed_request()))
        .await
        .expect("an answer");
    assert_eq!(changed.safe_time, Micros(9_000_001));
    assert!(!changed.degraded);
    assert_eq!(changed.next.as_deref(), Some("c2"));
    assert_eq!(changed.error, None);
    let names: Vec<_> = changed
        .partitions
        .iter()
        .map(|p| (&*p.name, p.id.is_some()))
        .collect();
    assert_eq!(
        names,
        [("a\"b", false), ("b", true), ("c", false), ("d", false)]
    );
    assert_eq!(
        (
            changed.partitions[1].last_offset,
            changed.partitions[1].log_start
        ),
        (7, 2)
    );
    let written: Vec<_> = changed.partitions.iter().map(|p| p.last_write_at).collect();
    assert_eq!(written, [None, Some(Micros(7_000_000)), None, None]);
    assert_eq!(
        server.asked(),
        json!({"entries": [{"queue": "orders", "since": "1970-01-01T00:00:00.000000Z",
                            "after": "c1", "limit": 10}]})
    );
}

#[tokio::test]
async fn an_empty_discovery_asks_for_the_safe_time_alone() {
    let server =
        Server::saying(json!({"safeTime": "1970-01-01T00:00:01Z", "safeTimeDegraded": true})).await;
    let changed = server.broker.changed(None).await.expect("an answer");
    assert_eq!(
        (changed.safe_time, changed.degraded),
        (Micros(1_000_000), true)
    );
    assert_eq!(server.asked(), json!({"entries": []}));
}

#[tokio::test]
async fn an_unknown_queue_is_an_entry_error_and_not_a_failure() {
    let server = Server::saying(json!({"safeTime": "1970-01-01T00:00:01Z", "entries":
        [{"queue": "orders", "error": "UNKNOWN_TOPIC_OR_PARTITION"}]}))
    .await;
    let changed = server
        .broker
        .changed(Some(&changed_request()))
        .await
        .expect("an answer");
    assert_eq!(changed.error, Some(EntryError::UnknownQueue));
    assert!(changed.partitions.is_empty());
}

#[tokio::test]
async fn a_discovery_answer_that_contradicts_its_request_is_refused() {
    let page = |entry: Value| json!({"safeTime": "1970-01-01T00:00:01Z", "entries": [entry]});
    for answer in [
        page(json!({"queue": "clicks", "partitions": []})),
        page(json!({"queue": "orders", "next": "c1"})),
        page(json!({"partitions": [{"name": "a", "lastOffset": -2, "logStart": 0}]})),
        page(json!({"partitions": [{"name": "a", "lastOffset": i64::MAX, "logStart": 0}]})),
        json!({"safeTime": "1970-01-01T00:00:01Z", "entries": []}),
        json!({"safeTime": "soon", "entries": []}),
    ] {
        let server = Server::saying(answer.clone()).await;
        let error = server
            .broker
            .changed(Some(&changed_request()))
            .await
            .expect_err("refused");
        assert!(
            matches!(error.kind, BrokerErrorKind::Malformed(_)),
            "{answer}: {error}"
        );
        assert!(error.outcome_unknown());
    }
}

#[tokio::test]
async fn a_batch_that_applied_answers_one_result_per_operation() {
    let server = Server::saying(json!({"results": [
        {"index": 0, "op": "put", "applied": true, "key": "s3:a:q:lease", "version": 4, "new": 1},
        {"index": 1, "op": "put", "applied": true, "key": "s3:a:q:intent", "version": 5}]}))
    .await;
    let KvAnswer::Done(results) = server.broker.kv(&operations()).await.expect("an answer") else {
        panic!("rolled back");
    };
    let versions: Vec<_> = results.iter().map(|result| result.version).collect();
    assert_eq!(versions, [Some(4), Some(5)]);
    assert_eq!(
        server.asked()["operations"][0],
        json!({"op": "put", "ns": "queen-s3", "key": "s3:a:q:lease", "value": {"k": 1},
               "expect": 3, "required": true, "forever": true})
    );
}

#[tokio::test]
async fn a_lost_precondition_is_an_answer_with_the_failed_index() {
    for (field, failed) in [
        ("failedIndex", Some(1)),
        ("index", Some(1)),
        ("other", None),
    ] {
        let server = Server::saying(json!({"ok": false, "reason": "kv_precondition", field: 1,
            "results": [{"index": 1, "op": "put", "applied": false, "reason": "version"}]}))
        .await;
        let answer = server.broker.kv(&operations()).await.expect("an answer");
        assert!(
            matches!(answer, KvAnswer::RolledBack(index) if index == failed),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_batch_answer_that_does_not_fit_the_batch_is_refused() {
    for answer in [
        json!({}),
        json!({"results": []}),
        json!({"results": [{"op": "put"}, {"op": "put", "key": "s3:a:q:committed"}]}),
        json!({"ok": false, "reason": "out of cheese", "results": []}),
    ] {
        let server = Server::saying(answer.clone()).await;
        let error = server.broker.kv(&operations()).await.expect_err("refused");
        assert!(
            matches!(error.kind, BrokerErrorKind::Malformed(_)),
            "{answer}: {error}"
        );
    }
}

#[tokio::test]
async fn a_refusal_says_what_was_said_and_how_long_to_wait() {
    let server = Server::answering(|| {
        refusing(429, &[("retry-after", "7")], "slow\r\ndown\u{1b}[0m".into())
    })
    .await;
    let error = server.broker.kv(&operations()).await.expect_err("refused");
    assert_eq!(
        (error.status(), error.retry_after()),
        (Some(429), Some(Duration::from_secs(7)))
    );
    assert!(!error.outcome_unknown());
    let text = error.to_string();
    assert!(
        text.starts_with("POST /api/v1/kv at http://127.0.0.1:"),
        "{text}"
    );
    assert!(text.ends_with("HTTP 429: slow  down [0m"), "{text}");
}

#[tokio::test]
async fn a_refused_token_says_what_it_needs_and_is_in_no_text() {
    let echo = || {
        refusing(
            403,
            &[],
            format!("no such token: Bearer {TOKEN}{}", "x".repeat(9_999)),
        )
    };
    let server = Server::answering(echo).await;
    let broker = &server.broker;
    let fetch = fetch_request(&["a"], 0);
    let errors = [
        (
            broker.fetch(&fetch).await.expect_err("refused"),
            "scope consume",
        ),
        (
            broker.changed(None).await.expect_err("refused"),
            "scope consume",
        ),
        (
            broker.kv(&operations()).await.expect_err("refused"),
            "level read-write",
        ),
        (broker.queues().await.expect_err("refused"), "scope read "),
    ];
    for (error, need) in errors {
        let text = format!("{error} {error:?}");
        assert!(text.contains(need), "{text}");
        assert!(text.contains("QUEEN_TOKEN"), "{text}");
        assert!(!text.contains(TOKEN), "{text}");
        assert!(text.len() < 1_500, "{text}");
    }
    assert!(!format!("{broker:?}").contains(TOKEN));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let server =
        Server::answering(|| refusing(307, &[("location", "/elsewhere")], String::new())).await;
    let error = server.broker.changed(None).await.expect_err("refused");
    assert_eq!(error.status(), Some(307));
    assert_eq!(server.seen.lock().expect("no panic holds it").len(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_or_stands_still_is_no_answer() {
    let cut = || {
        let chunks = stream::iter([Ok("{\"queues\":["), Err(std::io::Error::other("cut"))]);
        Response::new(Body::from_stream(chunks))
    };
    let still = || {
        let first = stream::once(async { Ok::<_, std::io::Error>("{\"queues\":[") });
        Response::new(Body::from_stream(first.chain(stream::pending())))
    };
    for answer in [
        Box::new(cut) as Box<dyn Fn() -> Response + Send + Sync>,
        Box::new(still),
    ] {
        let server = Server::answering(answer).await;
        let error = server.broker.queues().await.expect_err("no answer");
        assert!(
            matches!(error.kind, BrokerErrorKind::Transport(_)),
            "{error}"
        );
        assert!(error.outcome_unknown());
        let error = server
            .broker
            .fetch(&fetch_request(&["a"], 0))
            .await
            .expect_err("no answer");
        assert!(
            matches!(error.kind, BrokerErrorKind::Transport(_)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_drips_is_given_up_refusals_too() {
    let dripping = |status: u16| {
        move || {
            let chunks = stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Some((Ok::<_, std::io::Error>(" "), ()))
            });
            let mut response = Response::new(Body::from_stream(chunks));
            *response.status_mut() = axum::http::StatusCode::from_u16(status).expect("a status");
            response
        }
    };
    for (status, said) in [(200, "bytes of it came a second"), (503, "HTTP 503")] {
        let server = Server::answering(dripping(status)).await;
        let request = fetch_request(&["a"], 0);
        let fetch = tokio::time::timeout(Duration::from_secs(30), server.broker.fetch(&request));
        let error = fetch.await.expect("it ends").expect_err("no answer");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(server.budget.used(), 0);
    }
}

#[tokio::test]
async fn an_answer_longer_than_the_limit_is_an_error_before_it_is_memory() {
    let huge = || {
        let mut response = Response::new(Body::from_stream(stream::pending::<
            Result<&str, std::io::Error>,
        >()));
        response
            .headers_mut()
            .insert("content-length", "99999999999".parse().expect("a value"));
        response
    };
    let server = Server::answering(huge).await;
    for error in [
        server.broker.queues().await.expect_err("refused"),
        server
            .broker
            .fetch(&fetch_request(&["a"], 0))
            .await
            .expect_err("refused"),
    ] {
        assert!(matches!(&error.kind, BrokerErrorKind::Malformed(text) if text.contains("longer")));
    }
}

#[tokio::test]
async fn an_answer_without_a_length_is_bounded_while_it_arrives() {
    let endless = || {
        let chunk = Bytes::from(vec![b' '; 1 << 20]);
        let chunks = stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
        Response::new(Body::from_stream(chunks))
    };
    let server = Server::answering(endless).await;
    let error = server
        .broker
        .fetch(&fetch_request(&["a"], 60_000))
        .await
        .expect_err("refused");
    assert!(matches!(&error.kind, BrokerErrorKind::Malformed(text) if text.contains("longer")));
    assert_eq!(server.budget.used(), 0);
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_said_with_its_place_and_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    drop(listener);
    let url = format!("http://user:pass@{address}/")
        .parse()
        .expect("a URL");
    let options = HttpBrokerOptions::new(url, None, MemoryBudget::new(1));
    assert!(!format!("{options:?}").contains("pass"));
    let broker = HttpBroker::new(options).expect("a client");
    let text = broker
        .changed(None)
        .await
        .expect_err("nobody there")
        .to_string();
    assert!(
        text.contains(&format!("at http://{address}:")) && text.contains("refused"),
        "{text}"
    );
    assert!(!text.contains("pass"), "{text}");
}

#[tokio::test]
async fn a_token_that_no_header_carries_is_refused_without_being_told() {
    let url = "http://localhost:1".parse().expect("a URL");
    let token = Some(Secret::new("two\nlines"));
    let error = HttpBroker::new(HttpBrokerOptions::new(url, token, MemoryBudget::new(1)));
    let text = error.expect_err("refused").to_string();
    assert!(
        text.contains("QUEEN_TOKEN") && !text.contains("lines"),
        "{text}"
    );
}
