//! Routes, and what every request goes through.

pub mod json;

mod admit;
mod body;
mod consume;
mod handlers;
mod paced;
mod serve;
mod status;
mod tenant;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post};

use crate::auth::{Need, need};
use crate::broker::Broker;
use crate::error::ApiError;
use crate::metrics::{RequestLabels, RouteLabels};

pub use serve::{Door, serve};

/// What handlers are given.
pub type Shared = State<Arc<Broker>>;

/// Routes of Queen's API that this release does not serve, with the name it answers.
const ABSENT: &[(&str, &str)] = &[
    ("/api/v1/transaction", "transactions"),
    ("/api/v1/resources/overview", "resources/overview"),
    ("/api/v1/resources/namespaces", "resources/namespaces"),
    ("/api/v1/resources/tasks", "resources/tasks"),
    ("/api/v1/resources/partitions", "resources/partitions"),
    ("/api/v1/messages", "messages"),
    (
        "/api/v1/messages/{partition}/{id}/retry",
        "the retry of a dead letter",
    ),
    ("/api/v1/consumer-groups", "the listing of consumer groups"),
    ("/api/v1/traces", "traces"),
    ("/api/v1/traces/{*rest}", "traces"),
    ("/api/v1/timers", "timers"),
    ("/api/v1/timers/{*rest}", "timers"),
    ("/api/v1/locks", "locks"),
    ("/api/v1/ephemeral/{*rest}", "ephemeral queues"),
    ("/api/v1/system/{*rest}", "system"),
    ("/streams/{*rest}", "streams"),
];

/// The broker's routes.
pub fn router(broker: Arc<Broker>) -> Router {
    let mut router = Router::new()
        .route("/api/v1/push", post(handlers::push))
        .route("/api/v1/pop", get(consume::discover).head(not_allowed))
        .route(
            "/api/v1/pop/queue/{queue}",
            get(consume::pop).head(not_allowed),
        )
        .route(
            "/api/v1/pop/queue/{queue}/partition/{partition}",
            get(consume::pop_partition).head(not_allowed),
        )
        .route("/api/v1/ack", post(consume::ack))
        .route("/api/v1/ack/batch", post(consume::ack_batch))
        .route("/api/v1/lease/{lease}/extend", post(consume::extend))
        .route("/api/v1/dlq", get(consume::dead_letters))
        .route(
            "/api/v1/messages/{partition}/{id}",
            delete(consume::delete_dead_letter)
                .fallback(|| async { ApiError::NotImplemented("the details of a record".into()) }),
        )
        .route(
            "/api/v1/consumer-groups/{group}",
            delete(consume::delete_group)
                .fallback(|| async { ApiError::NotImplemented("the details of a group".into()) }),
        )
        .route(
            "/api/v1/consumer-groups/{group}/queues/{queue}",
            delete(consume::delete_group_of_queue),
        )
        .route(
            "/api/v1/consumer-groups/{group}/queues/{queue}/seek",
            post(consume::seek),
        )
        .route(
            "/api/v1/consumer-groups/{group}/subscription",
            post(consume::subscription),
        )
        .route("/api/v1/fetch", post(handlers::fetch))
        .route("/api/v1/partitions/changed", post(handlers::changed))
        .route("/api/v1/kv", post(handlers::kv))
        .route(
            "/api/v1/kv/{ns}/{*key}",
            get(handlers::kv_key)
                .put(handlers::kv_key)
                .delete(handlers::kv_key),
        )
        .route("/api/v1/configure", post(handlers::configure))
        .route("/api/v1/resources/queues", get(handlers::queues))
        .route(
            "/api/v1/resources/queues/{*queue}",
            delete(handlers::delete_queue)
                .fallback(|| async { ApiError::NotImplemented("the details of a queue".into()) }),
        )
        .route("/health", get(status::health))
        .route("/status", get(status::status))
        .route("/metrics", get(status::metrics));
    for (path, name) in ABSENT {
        router = router.route(
            path,
            any(|| async { ApiError::NotImplemented((*name).into()).into_response() }),
        );
    }
    router
        .method_not_allowed_fallback(not_allowed)
        .fallback(|method: Method, request: Request| async move {
            ApiError::NoRoute(format!("{method} {}", request.uri().path()))
        })
        .layer(from_fn_with_state(Arc::clone(&broker), admit::admit))
        .layer(from_fn_with_state(Arc::clone(&broker), authorize))
        .layer(from_fn_with_state(Arc::clone(&broker), observe))
        .with_state(broker)
}

/// Answers a method that a route does not serve. Routes that are served by `get` answer `HEAD`, too: the
/// ones that take something name this for it.
async fn not_allowed(method: Method, request: Request) -> ApiError {
    ApiError::MethodNotAllowed(format!("{method} {}", request.uri().path()))
}

/// Turns away who may not call a route, before anything of the body is read.
async fn authorize(
    State(broker): Shared,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(authority) = &broker.config.authority {
        let route = request.extensions().get::<MatchedPath>();
        match need(request.method(), route.map(MatchedPath::as_str)) {
            Need::Nothing => {}
            Need::Token(level) => authority.check(request.headers(), level)?,
        }
    }
    Ok(next.run(request).await)
}

/// Counts and times a request.
async fn observe(State(broker): Shared, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    broker
        .metrics
        .requests
        .get_or_create(&RequestLabels {
            route: route.clone(),
            status,
        })
        .inc();
    broker
        .metrics
        .duration
        .get_or_create(&RouteLabels { route })
        .observe(begun.elapsed().as_secs_f64());
    response
}

/// A JSON answer from bytes that are JSON already.
fn rendered(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A JSON answer.
fn answer(status: StatusCode, body: &impl serde::Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(body)
        .map_err(|error| ApiError::Internal(format!("cannot render an answer: {error}")))?;
    Ok(rendered(status, body))
}
