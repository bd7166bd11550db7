//! Serves `/healthz` and `/metrics`.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::health;
use super::metrics::{self, Metrics};
use super::sampled::Sampled;
use super::status::Status;
use crate::clock::Clock;
use crate::lake::Format;
use crate::limits::{ACCEPT_PAUSE, OBSERVERS, REQUEST_HEAD_TIMEOUT};
use crate::memory::MemoryBudget;

/// What the listener answers from.
#[derive(Clone)]
pub struct Observed {
    /// What the running parts report.
    pub status: Arc<Status>,
    /// The buffer budget.
    pub budget: Arc<MemoryBudget>,
    /// The sink's clocks.
    pub clock: Arc<dyn Clock>,
    /// The configured format.
    pub format: Format,
    /// `QUEEN_S3_MAX_WINDOW_MS`.
    pub max_window: Duration,
}

/// Opens the listener; the address has its real port where `listen` asks for any.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn bind(listen: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(listen).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Serves for the life of the process, a few connections at a time. A client that says nothing is
/// left after a while, and the oldest connection makes room for a new one where too many are open: an
/// answer takes a moment, so that one has had its time.
pub async fn serve(listener: TcpListener, observed: Observed) {
    let service = TowerToHyperService::new(router(observed));
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    let mut refusals = Sampled::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(suppressed) = refusals.failure() {
                    tracing::error!(
                        %error,
                        suppressed,
                        "no scrape or probe can be accepted; trying again"
                    );
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= OBSERVERS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service.clone());
        open.push_back(tokio::spawn(async move {
            // What goes wrong on a connection is its client's affair.
            let _ = connection.await;
        }));
    }
}

struct Answers {
    metrics: Metrics,
    observed: Observed,
    limit: Duration,
    started: Duration,
}

fn router(observed: Observed) -> Router {
    let metrics = Metrics::new(
        Arc::clone(&observed.status),
        Arc::clone(&observed.budget),
        Arc::clone(&observed.clock),
        observed.format,
    );
    let answers = Answers {
        metrics,
        limit: health::limit(observed.max_window),
        started: observed.clock.boottime(),
        observed,
    };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_page))
        .with_state(Arc::new(answers))
}

async fn healthz(State(answers): State<Arc<Answers>>) -> Response {
    let Answers {
        observed,
        limit,
        started,
        ..
    } = &*answers;
    let now = observed.clock.boottime();
    let health = health::judge(&observed.status.queues(), now, *started, *limit);
    let code = if health.ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    match serde_json::to_string(&health) {
        Ok(body) => (code, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => internal(&error),
    }
}

async fn metrics_page(State(answers): State<Arc<Answers>>) -> Response {
    match answers.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => internal(&error),
    }
}

fn internal(error: &dyn std::error::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::clock::SystemClock;

    const LIMIT: Duration = Duration::from_secs(60);

    async fn served(status: &Arc<Status>) -> SocketAddr {
        let (listener, bound) = bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .expect("a port");
        let observed = Observed {
            status: Arc::clone(status),
            budget: MemoryBudget::new(1),
            clock: Arc::new(SystemClock),
            format: Format::Jsonl,
            max_window: Duration::from_secs(300),
        };
        tokio::spawn(serve(listener, observed));
        bound
    }

    async fn fetched(address: SocketAddr, path: &str) -> (u16, String, String) {
        let client = reqwest::Client::builder()
            .no_proxy()
            .build()
            .expect("a client");
        let url = format!("http://{address}{path}");
        let answer = client.get(url).send().await.expect("an answer");
        let kind = answer.headers()["content-type"]
            .to_str()
            .expect("ASCII")
            .to_owned();
        (
            answer.status().as_u16(),
            kind,
            answer.text().await.expect("a body"),
        )
    }

    #[tokio::test]
    async fn health_is_json_with_200_or_503() {
        let status = Arc::new(Status::default());
        let address = served(&status).await;
        let healthy = (
            200,
            "application/json".to_owned(),
            r#"{"ok":true}"#.to_owned(),
        );
        assert_eq!(fetched(address, "/healthz").await, healthy);
        status.queue("orders").stopped.store(true, Relaxed);
        let (code, _, body) = fetched(address, "/healthz").await;
        assert_eq!(code, 503);
        assert!(
            body.starts_with(r#"{"ok":false,"queue":"orders","staleMs":"#),
            "{body}"
        );
        assert!(body.ends_with(r#","limitMs":900000}"#), "{body}");
    }

    #[tokio::test]
    async fn connections_that_say_nothing_keep_no_scrape_away() {
        let address = served(&Arc::new(Status::default())).await;
        let mut silent = Vec::new();
        for _ in 0..3 * OBSERVERS {
            silent.push(TcpStream::connect(address).await.expect("it is taken"));
        }
        let (code, ..) = fetched(address, "/healthz").await;
        assert_eq!(code, 200);
        // The first ones have been closed.
        for stream in &mut silent[..OBSERVERS] {
            let read = timeout(LIMIT, stream.read(&mut [0; 8])).await;
            assert!(matches!(read.expect("they end"), Ok(0) | Err(_)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_finish_its_request_is_left() {
        let address = served(&Arc::new(Status::default())).await;
        let mut slow = TcpStream::connect(address).await.expect("it is taken");
        slow.write_all(b"GET /metrics HT")
            .await
            .expect("it is read");
        let read = timeout(2 * REQUEST_HEAD_TIMEOUT, slow.read(&mut [0; 8])).await;
        assert!(matches!(read.expect("it is closed"), Ok(0) | Err(_)));
    }

    #[tokio::test]
    async fn metrics_are_text_of_version_0_0_4() {
        let address = served(&Arc::new(Status::default())).await;
        let (code, kind, body) = fetched(address, "/metrics").await;
        assert_eq!(
            (code, kind.as_str()),
            (200, "text/plain; version=0.0.4; charset=utf-8")
        );
        assert!(
            body.contains("\n# TYPE queen_s3_lag_seconds gauge\n"),
            "{body}"
        );
    }
}
