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
    (
        "/api/v1/messages/{partition}/{id}/dlq",
        "the death of a record by hand",
    ),
    ("/api/v1/queues/{*rest}", "the clearing of a queue"),
    ("/api/v1/status", "statistics"),
    ("/api/v1/status/{*rest}", "statistics"),
    ("/api/v1/stats/{*rest}", "statistics"),
    ("/api/v1/analytics/{*rest}", "analytics"),
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

/// Methods that are not served of routes that are, with the name they answer.
const ABSENT_DETAILS: [(&str, &str); 3] = [
    (
        "/api/v1/messages/{partition}/{id}",
        "the details of a record",
    ),
    ("/api/v1/consumer-groups/{group}", "the details of a group"),
    (
        "/api/v1/resources/queues/{*queue}",
        "the details of a queue",
    ),
];

async fn no_details(path: MatchedPath) -> ApiError {
    let absent = ABSENT_DETAILS
        .iter()
        .find(|(route, _)| *route == path.as_str());
    ApiError::NotImplemented(absent.map_or("this", |(_, name)| name).into())
}

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
            delete(consume::delete_dead_letter).fallback(no_details),
        )
        .route(
            "/api/v1/consumer-groups/{group}",
            delete(consume::delete_group).fallback(no_details),
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
            delete(handlers::delete_queue).fallback(no_details),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rows of the table under a heading of the page for operators, as their cells.
    fn table(heading: &str) -> Vec<Vec<&'static str>> {
        let page = include_str!("../../../docs/broker.md");
        let (_, section) = page.split_once(heading).expect("the heading");
        let section = section.split("\n#").next().unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
            .collect()
    }

    /// A pattern of a route as the page spells it.
    fn spelled(pattern: &str) -> String {
        pattern.replace("{*rest}", "…").replace("{*", "{")
    }

    #[test]
    fn the_page_lists_every_route_that_is_served_and_no_other() {
        let (_, router) = include_str!("mod.rs")
            .split_once("pub fn router")
            .expect("the router");
        let router = router.split("in ABSENT").next().unwrap_or_default();
        let served: BTreeSet<String> = router
            .split('"')
            .filter(|text| text.starts_with('/'))
            .map(spelled)
            .collect();
        let listed: BTreeSet<String> = table("\n## Routes\n")
            .iter()
            .flat_map(|row| row[0].split(['`', ' ', ',', '?']))
            .filter(|text| text.starts_with('/'))
            .map(str::to_owned)
            .collect();
        assert!(served.len() > 20, "{served:?}");
        assert_eq!(listed, served);
    }

    #[test]
    fn the_page_lists_what_is_absent_with_the_name_that_is_answered() {
        let absent: BTreeSet<(String, String)> = ABSENT
            .iter()
            .map(|(route, name)| (format!("`{}`", spelled(route)), (*name).to_owned()))
            .chain(
                ABSENT_DETAILS
                    .iter()
                    .map(|(route, name)| (format!("`GET {}`", spelled(route)), (*name).to_owned())),
            )
            .collect();
        let listed: BTreeSet<(String, String)> = table("\n## What is not there yet\n")
            .iter()
            .map(|row| (row[0].to_owned(), row[1].to_owned()))
            .collect();
        assert_eq!(listed, absent);
    }
}
