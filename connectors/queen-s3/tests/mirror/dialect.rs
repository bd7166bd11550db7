//! A broker that speaks the API as it may be spoken and ours does not: over HTTP, with other
//! fields, other cursors, repeats and another order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use queen_protocol::kv::KvRequest;
use queen_s3::broker::http::{HttpBroker, HttpBrokerOptions};
use queen_s3::broker::{ChangedRequest, FetchEntry, FetchRequest, KvAnswer, Name};
use queen_s3::memory::MemoryBudget;
use queen_s3::time::Micros;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::log::Log;
use crate::sink::{Options, Sink};
use crate::{SECOND, TEN};

/// Queues that the strict broker lets one discovery call ask about.
const CHANGED_ENTRIES: usize = 64;
/// Partitions that it lets one fetch call ask for.
const FETCH_ENTRIES: usize = 1_024;
/// Partitions on a page, before repeats.
const PAGE: usize = 3;

struct Foreign {
    log: Arc<Log>,
    ids: bool,
}

impl Foreign {
    fn changed(&self, request: &Value) -> Result<Value, String> {
        let entries = request["entries"].as_array().ok_or("no entries")?;
        if entries.len() > CHANGED_ENTRIES {
            return Err("too many entries".to_owned());
        }
        let answers: Result<Vec<Value>, String> =
            entries.iter().map(|entry| self.listing(entry)).collect();
        // No safeTimeDegraded, and a field that nobody knows.
        Ok(
            json!({"safeTime": Micros(self.log.safe_time()).to_string(), "node": {"name": "b-1"},
            "entries": answers?}),
        )
    }

    fn listing(&self, entry: &Value) -> Result<Value, String> {
        let queue = entry["queue"].as_str().ok_or("no queue")?;
        let since = entry["since"].as_str().map(Micros::parse).transpose();
        let request = ChangedRequest {
            queue: Name::from(queue),
            since: since.map_err(|error| error.to_string())?,
            after: None,
            limit: u32::MAX,
        };
        let Some((mut listed, _)) = self.log.page(&request) else {
            return Ok(json!({"queue": queue, "error": "UNKNOWN_TOPIC_OR_PARTITION"}));
        };
        // The last name first, and a cursor that holds its place in its own way.
        listed.sort_by(|one, other| other.name.cmp(&one.name));
        if let Some(after) = entry["after"].as_str() {
            let last = after
                .strip_prefix("{\"below\":≤")
                .and_then(|rest| rest.strip_suffix("}/é%20+"))
                .ok_or("BAD_CURSOR")?;
            listed.retain(|line| *line.name < *last);
        }
        let more = listed.len() > PAGE;
        listed.truncate(PAGE);
        let next = listed.last().filter(|_| more);
        let next = next.map(|last| format!("{{\"below\":≤{}}}/é%20+", last.name));
        let mut lines: Vec<Value> = listed
            .iter()
            .map(|line| {
                let mut shown = json!({"shard": null, "name": &*line.name, "logStart": 0,
                    "lastOffset": line.last_offset});
                if self.ids {
                    shown["id"] = json!(line.id.to_string().to_uppercase());
                }
                shown
            })
            .collect();
        // Each page names its first partition twice.
        lines.extend(lines.first().cloned());
        let mut answer = json!({"partitions": lines, "queue": queue, "took": 3});
        if let Some(next) = next {
            answer["next"] = json!(next);
        }
        Ok(answer)
    }

    fn fetch(&self, request: &Value) -> Result<Value, String> {
        let entries = request["entries"].as_array().ok_or("no entries")?;
        if entries.len() > FETCH_ENTRIES {
            return Err("too many entries".to_owned());
        }
        let read = |entry: &Value| FetchEntry {
            partition: Name::from(entry["partition"].as_str().unwrap_or("Default")),
            offset: entry["offset"].as_i64().unwrap_or_default(),
            max_bytes: entry["maxBytes"].as_u64().unwrap_or(1 << 20) as u32,
        };
        let request = FetchRequest {
            queue: Name::from(entries[0]["queue"].as_str().ok_or("no queue")?),
            entries: entries.iter().map(read).collect(),
            max_wait_ms: 0,
        };
        let mut answer: Value = serde_json::from_slice(&self.log.fetch(&request, 1))
            .map_err(|error| error.to_string())?;
        for entry in answer["entries"].as_array_mut().ok_or("no entries")? {
            entry["leader"] = json!([1, {"epoch": 2}]);
            if let Some(number) = entry["partition"]
                .as_str()
                .and_then(|p| p.parse::<u64>().ok())
            {
                entry["partition"] = json!(number);
            }
            if entry["records"] == json!([]) {
                entry["records"] = Value::Null;
            }
            for record in entry["records"].as_array_mut().into_iter().flatten() {
                record["headers"] = json!({"trace": "a\u{1f980}"});
            }
        }
        Ok(answer)
    }

    fn kv(&self, body: &[u8]) -> Result<Value, String> {
        let request: KvRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        match self.log.kv(&request.operations)? {
            KvAnswer::RolledBack(_) => Ok(json!({"ok": false, "reason": "kv_precondition",
                "results": [], "hint": "try again"})),
            KvAnswer::Done(results) => {
                let results = results.iter().map(|result| {
                    let mut shown = json!(result);
                    if let Some(fields) = shown.as_object_mut() {
                        fields.retain(|_, value| !value.is_null());
                        fields.insert("region".to_owned(), json!("eu"));
                    }
                    shown
                });
                Ok(json!({"results": results.collect::<Vec<_>>()}))
            }
        }
    }
}

async fn answer(State(foreign): State<Arc<Foreign>>, uri: Uri, body: Bytes) -> Response {
    let request = serde_json::from_slice(&body).unwrap_or_default();
    let answered = match uri.path() {
        "/api/v1/partitions/changed" => foreign.changed(&request),
        "/api/v1/fetch" => foreign.fetch(&request),
        "/api/v1/kv" => foreign.kv(&body),
        other => Err(format!("no such route: {other}")),
    };
    let (status, text) = match answered {
        Ok(answer) => (StatusCode::OK, answer.to_string()),
        Err(error) => (StatusCode::BAD_REQUEST, error),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

async fn serve(foreign: Foreign) -> String {
    let app = Router::new().fallback(answer).with_state(Arc::new(foreign));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset}}}")
}

async fn mirrors(ids: bool) {
    let log = Log::prompt(TEN, payload);
    log.create("orders");
    let names = ["17", "0", "a", "b/é", "c\"d", "e", "f", "Default"].map(Name::from);
    let write = |round: i64| {
        for (number, name) in (0_i64..).zip(&names) {
            if round == 0 || (number + round) % 3 == 0 {
                log.write("orders", name, log.now(), 2 + number as u32);
            }
        }
    };
    log.write("orders", &names[2], TEN - 5 * SECOND, 700);
    write(0);
    let url = serve(Foreign {
        log: Arc::clone(&log),
        ids,
    })
    .await;
    let mut options = Options::new();
    options.settings.max_window = Duration::from_millis(300);
    options.settings.discovery_interval = Duration::from_millis(30);
    options.settings.checkpoint_every = 1;
    let budget = MemoryBudget::new(options.memory);
    let url = url.parse().expect("a URL");
    let broker = HttpBroker::new(HttpBrokerOptions::new(url, None, Arc::clone(&budget)));
    let broker = Arc::new(broker.expect("a client"));
    let bucket = Arc::<MemoryBucket>::default();
    for start in 1..=2 {
        options.seed = start;
        let (broker, budget) = (Arc::clone(&broker) as _, Arc::clone(&budget));
        let sink = Sink::over(broker, budget, &log, &bucket, &["orders"], &options);
        for round in 1..=4 {
            write(round);
            let until = tokio::time::Instant::now() + Duration::from_secs(60);
            while records(&bucket) != log.records("orders") {
                assert!(tokio::time::Instant::now() < until, "the lake stays behind");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        sink.stop().await;
    }
    for window in bucket.manifests("orders") {
        assert_eq!(
            (&window["lost"], &window["late"]),
            (&json!([]), &Value::Null)
        );
    }
}

#[tokio::test]
async fn a_broker_with_ids_other_cursors_repeats_and_foreign_fields_is_mirrored() {
    mirrors(true).await;
}

#[tokio::test]
async fn a_broker_without_ids_and_every_optional_field_is_mirrored() {
    mirrors(false).await;
}
