//! What a request is refused with.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio_postgres::error::{DbError, SqlState};

use crate::admission::Overload;
use crate::auth::Refusal;
use crate::session::{Failure, ends_session};

/// Why a request was not served. Becomes `{"error", "code"}` with a fitting status.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request is wrong: `400`. The message says what and where.
    #[error("{message}")]
    BadRequest {
        /// Machine-readable reason.
        code: &'static str,
        /// What is wrong, and where.
        message: Cow<'static, str>,
    },
    /// There is no token, or it proves nothing: `401`. It allows too little: `403`.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Too many requests, or too much of them in memory: `429` when the line is full, else `503`.
    #[error(transparent)]
    Overloaded(#[from] Overload),
    /// The client sends its body too slowly: `408`.
    #[error("the body did not arrive in time, see QUEEN_HTTP_BODY_MS")]
    SlowBody,
    /// A queue is encrypted at rest and this broker has no key: `503`, another one may have it.
    #[error(
        "a queue of this push is encrypted at rest, and this broker has no QUEEN_ENCRYPTION_KEY"
    )]
    NoKey,
    /// What was to be read is damaged, or its key is not here: `503`, another broker may have it.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// Nothing here has that name: `404`.
    #[error("{0}")]
    NotFound(String),
    /// Known to Queen's API, absent here: `501`.
    #[error("{0} is not in this release of the broker")]
    NotImplemented(Cow<'static, str>),
    /// No such route: `404`.
    #[error("no route {0}")]
    NoRoute(String),
    /// The route exists, the method does not: `405`.
    #[error("{0}: method not allowed")]
    MethodNotAllowed(String),
    /// The broker is stopping: `503`.
    #[error("the broker is stopping; try another one, or again in a moment")]
    Stopping,
    /// The database cannot be reached, or took too long: `503`.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database ended the session under the request: `503`. Of what it was to write nothing is known.
    #[error("the database is not available: {0}")]
    Cut(String),
    /// A database session could not be had in time, of a server that may well be there: `503`.
    #[error("the database is not available: {0}")]
    SlowSession(String),
    /// A fault of the broker or its database: `500`.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ApiError {
    /// A `400` with the general code.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::coded("bad_request", message)
    }

    /// A `400` with a code of its own.
    pub fn coded(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::BadRequest {
            code,
            message: message.into(),
        }
    }

    /// Whether another attempt may get the session that this one did not get in time.
    pub fn is_slow_session(&self) -> bool {
        matches!(self, Self::SlowSession(_))
    }

    /// Whether what only reads may be done again, on another session.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Cut(_))
    }

    /// Whether the database failed, or was not there.
    pub fn is_of_database(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_) | Self::Cut(_) | Self::SlowSession(_)
        )
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } => StatusCode::BAD_REQUEST,
            Self::Refused(Refusal::TooLow(_)) => StatusCode::FORBIDDEN,
            Self::Refused(_) => StatusCode::UNAUTHORIZED,
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Self::NoRoute(_) | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::Overloaded(Overload::Full(_)) => StatusCode::TOO_MANY_REQUESTS,
            Self::Overloaded(_)
            | Self::NoKey
            | Self::Unreadable(_)
            | Self::Stopping
            | Self::Unavailable(_)
            | Self::Cut(_)
            | Self::SlowSession(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::BadRequest { code, .. } => code,
            Self::Refused(Refusal::TooLow(_)) => "forbidden",
            Self::Refused(_) => "unauthorized",
            Self::SlowBody => "body_timeout",
            Self::Overloaded(_) => "overloaded",
            Self::NoKey => "encryption_key_missing",
            Self::Unreadable(_) => "unreadable",
            Self::NotFound(_) => "not_found",
            Self::NotImplemented(_) => "not_implemented",
            Self::NoRoute(_) => "route_unknown",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::Stopping => "stopping",
            Self::Unavailable(_) | Self::Cut(_) | Self::SlowSession(_) => "database_unavailable",
            Self::Internal(_) => "internal",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        // Overload is counted by its lane: a line of the log for each would be one more burden.
        let quiet = matches!(self, Self::Overloaded(_) | Self::NotImplemented(_));
        if status.is_server_error() && !quiet {
            tracing::warn!(code = self.code(), error = %self, "request failed");
        }
        // Clients learn that the database failed, operators learn how from the log.
        let message = match &self {
            Self::Unavailable(_) | Self::Cut(_) | Self::SlowSession(_) => {
                "the database is not available; try again in a moment".into()
            }
            Self::Internal(_) => "internal error; the broker's log says more".into(),
            other => other.to_string(),
        };
        let body = serde_json::json!({ "error": message, "code": self.code() }).to_string();
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        let challenge = match self {
            Self::Refused(Refusal::Missing) => Some("Bearer"),
            Self::Refused(Refusal::Invalid(_)) => Some("Bearer error=\"invalid_token\""),
            Self::Refused(Refusal::TooLow(_)) => Some("Bearer error=\"insufficient_scope\""),
            _ => None,
        };
        if let Some(challenge) = challenge {
            response.headers_mut().insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static(challenge),
            );
        }
        if matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ) {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<tokio_postgres::Error> for ApiError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = describe(&error);
        if ends_session(&error) {
            Self::Cut(text)
        } else if error.code().is_some_and(passes) || error.as_db_error().is_some_and(no_room) {
            Self::Unavailable(text)
        } else {
            Self::Internal(text)
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Database(error) => Self::from(error),
            Failure::Silent(_) => Self::Unavailable(failure.to_string()),
        }
    }
}

impl From<deadpool_postgres::PoolError> for ApiError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => Self::from(error),
            deadpool_postgres::PoolError::Timeout(_) => Self::SlowSession(error.to_string()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<tokio::task::JoinError> for ApiError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Internal(error.to_string())
    }
}

/// The database's own words: `tokio_postgres` displays only "db error".
pub fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(inner) = source {
                text.push_str(": ");
                text.push_str(&inner.to_string());
                source = inner.source();
            }
            text
        }
    }
}

/// Whether the state is one that passes by itself: shutdown, connection, resources, timeouts.
fn passes(state: &SqlState) -> bool {
    let class = state.code().get(..2).unwrap_or_default();
    matches!(class, "08" | "53" | "57" | "58" | "40" | "25")
        || *state == SqlState::LOCK_NOT_AVAILABLE
}

/// Whether a file of the database may not grow, by a limit of its files or a quota. PostgreSQL has a
/// state for a full disk alone: only the routine that extends files tells this from a fault.
fn no_room(error: &DbError) -> bool {
    *error.code() == SqlState::INTERNAL_ERROR && error.routine().is_some_and(extends_files)
}

fn extends_files(routine: &str) -> bool {
    matches!(routine, "mdextend" | "mdzeroextend")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_told_from_faults() {
        for state in [
            SqlState::DISK_FULL,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::QUERY_CANCELED,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::IO_ERROR,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::READ_ONLY_SQL_TRANSACTION,
        ] {
            assert!(passes(&state), "{state:?}");
        }
        for state in [SqlState::UNDEFINED_TABLE, SqlState::INTERNAL_ERROR] {
            assert!(!passes(&state), "{state:?}");
        }
        assert!(extends_files("mdextend") && !extends_files("mdread"));
    }
}
