//! Serves `/healthz` and `/metrics`.

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
use tokio::net::TcpListener;

use super::health;
use super::metrics::{self, Metrics};
use super::status::Status;
use crate::clock::Clock;
use crate::lake::Format;
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

/// Serves for the life of the process.
pub async fn serve(listener: TcpListener, observed: Observed) {
    // Serving without a shutdown signal ends only when accepting fails for good.
    if let Err(error) = axum::serve(listener, router(observed)).await {
        tracing::error!(%error, "health and metrics are no longer served");
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

    use super::*;
    use crate::clock::SystemClock;

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
