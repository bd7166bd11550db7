//! The level that each route asks for.

use std::fmt;

use axum::http::Method;

/// What a token allows; a higher level allows what the lower ones do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Reading.
    ReadOnly,
    /// Reading and writing records and keys.
    ReadWrite,
    /// Everything.
    Admin,
}

impl Level {
    /// The level of a role's name.
    pub fn of_role(role: &str) -> Option<Self> {
        match role {
            "read-only" => Some(Self::ReadOnly),
            "read-write" => Some(Self::ReadWrite),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
            Self::Admin => "admin",
        })
    }
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No token.
    Nothing,
    /// A token of at least this level.
    Token(Level),
}

/// What a request to the route with this pattern needs; `None` is a route that is nowhere.
///
/// A route that no rule names needs the highest level.
pub fn need(method: &Method, route: Option<&str>) -> Need {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let level = match route {
        Some("/health" | "/metrics") => return Need::Nothing,
        None | Some("/api/v1/fetch" | "/api/v1/partitions/changed") => Level::ReadOnly,
        // Taking a record is a write, whatever the method.
        Some(route) if route.starts_with("/api/v1/pop") => Level::ReadWrite,
        Some(_) if reads => Level::ReadOnly,
        Some(
            "/api/v1/push"
            | "/api/v1/ack"
            | "/api/v1/ack/batch"
            | "/api/v1/lease/{lease}/extend"
            | "/api/v1/transaction"
            | "/api/v1/kv"
            | "/api/v1/kv/{ns}/{*key}",
        ) => Level::ReadWrite,
        Some(_) => Level::Admin,
    };
    Need::Token(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_asks_for_its_level() {
        for (method, route, expected) in [
            (Method::GET, "/status", Level::ReadOnly),
            (Method::POST, "/api/v1/fetch", Level::ReadOnly),
            (Method::POST, "/api/v1/partitions/changed", Level::ReadOnly),
            (Method::GET, "/api/v1/resources/queues", Level::ReadOnly),
            (Method::GET, "/api/v1/kv/{ns}/{*key}", Level::ReadOnly),
            (Method::POST, "/api/v1/push", Level::ReadWrite),
            (Method::GET, "/api/v1/pop/queue/{queue}", Level::ReadWrite),
            (
                Method::POST,
                "/api/v1/lease/{lease}/extend",
                Level::ReadWrite,
            ),
            (Method::GET, "/api/v1/dlq", Level::ReadOnly),
            (
                Method::DELETE,
                "/api/v1/consumer-groups/{group}",
                Level::Admin,
            ),
            (Method::HEAD, "/api/v1/pop", Level::ReadWrite),
            (Method::POST, "/api/v1/ack/batch", Level::ReadWrite),
            (Method::POST, "/api/v1/kv", Level::ReadWrite),
            (Method::DELETE, "/api/v1/kv/{ns}/{*key}", Level::ReadWrite),
            (Method::POST, "/api/v1/configure", Level::Admin),
            (
                Method::DELETE,
                "/api/v1/resources/queues/{*queue}",
                Level::Admin,
            ),
            (Method::POST, "/something/new", Level::Admin),
        ] {
            assert_eq!(need(&method, Some(route)), Need::Token(expected), "{route}");
        }
        assert_eq!(need(&Method::GET, Some("/health")), Need::Nothing);
        assert_eq!(need(&Method::GET, Some("/metrics")), Need::Nothing);
        assert_eq!(need(&Method::GET, None), Need::Token(Level::ReadOnly));
    }
}
