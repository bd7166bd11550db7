//! Queen over HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use queen_protocol::kv::KvOperation;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use thiserror::Error;
use tokio::task;
use tokio::time::timeout;
use url::Url;

use super::wire::{self, Unreadable};
use super::{
    Broker, BrokerError, BrokerErrorKind, Changed, ChangedRequest, FetchAnswer, FetchRequest,
    KvAnswer,
};
use crate::config::Secret;
use crate::limits::{
    ANSWER_BODY_BYTES, BROKER_ANSWER_TIMEOUT, CONNECT_TIMEOUT, DECODE_INLINE_BYTES,
    DECODE_INLINE_SEGMENTS_BYTES, ERROR_BODY_BYTES, FETCH_BODY_BYTES,
};
use crate::memory::{Hold, MemoryBudget};
use crate::pace::Pace;
use crate::record::{DecodeError, SEGMENTS, Trust, decode_fetch, decode_segments};
use crate::wire::{causes, excerpt, retry_after};

/// How to reach Queen.
#[derive(Clone)]
pub struct HttpBrokerOptions {
    /// `QUEEN_URL`: the broker or proxy, `http` or `https`; a path in it comes before every route.
    pub url: Url,
    /// `QUEEN_TOKEN`: the bearer token, sent with every call and never printed.
    pub token: Option<Secret>,
    /// What the bodies of fetch answers count against.
    pub budget: Arc<MemoryBudget>,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long an answer may take, beyond the wait that a fetch asks for. A fetch answer's body
    /// may take this long per read, and has a least pace; any other call may take this long in all.
    pub answer_timeout: Duration,
}

impl HttpBrokerOptions {
    /// Options with the sink's own time limits.
    pub fn new(url: Url, token: Option<Secret>, budget: Arc<MemoryBudget>) -> Self {
        Self {
            url,
            token,
            budget,
            connect_timeout: CONNECT_TIMEOUT,
            answer_timeout: BROKER_ANSWER_TIMEOUT,
        }
    }
}

impl fmt::Debug for HttpBrokerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBrokerOptions")
            .field("url", &origin(&self.url))
            .field(
                "token",
                if self.token.is_some() {
                    &"<set>"
                } else {
                    &"<unset>"
                },
            )
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

/// Why a client for Queen could not be made.
#[derive(Debug, Error)]
pub enum HttpBrokerSetupError {
    /// The token cannot be sent.
    #[error("QUEEN_TOKEN holds a character that an HTTP header cannot carry")]
    Token,
    /// The HTTP client cannot be set up.
    #[error("the HTTP client for QUEEN_URL cannot be set up: {0}")]
    Client(String),
}

/// Queen over HTTP, with connections kept alive between calls.
pub struct HttpBroker {
    client: Client,
    base: String,
    origin: String,
    token: Option<Secret>,
    budget: Arc<MemoryBudget>,
    trust: Arc<Trust>,
    answer_timeout: Duration,
}

impl fmt::Debug for HttpBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBroker")
            .field("url", &self.origin)
            .finish_non_exhaustive()
    }
}

/// One route, and what a token needs for it.
struct Route {
    operation: &'static str,
    method: Method,
    path: &'static str,
    needs: &'static str,
    /// What is accepted besides JSON.
    accept: Option<&'static str>,
}

/// Segments from a broker that offers them, in the latest version that it knows; JSON from every other.
const SEGMENTS_OR_JSON: &str = "application/vnd.queen.segments;version=4, application/json;q=0.9";

const FETCH: Route = Route {
    operation: "POST /api/v1/fetch",
    method: Method::POST,
    path: "/api/v1/fetch",
    needs: "scope consume at a proxy, level read-only at a broker",
    accept: Some(SEGMENTS_OR_JSON),
};
const CHANGED: Route = Route {
    operation: "POST /api/v1/partitions/changed",
    method: Method::POST,
    path: "/api/v1/partitions/changed",
    needs: "scope consume at a proxy, level read-only at a broker",
    accept: None,
};
const KV: Route = Route {
    operation: "POST /api/v1/kv",
    method: Method::POST,
    path: "/api/v1/kv",
    needs: "scope consume at a proxy, level read-write at a broker",
    accept: None,
};
const QUEUES: Route = Route {
    operation: "GET /api/v1/resources/queues",
    method: Method::GET,
    path: "/api/v1/resources/queues",
    needs: "scope read at a proxy (QUEEN_S3_QUEUES=* asks for it on top of consume), level \
            read-only at a broker",
    accept: None,
};

impl HttpBroker {
    /// A client. Opens no connection yet.
    ///
    /// # Errors
    ///
    /// When the token is no header value, or the system offers no certificates for TLS.
    pub fn new(options: HttpBrokerOptions) -> Result<Self, HttpBrokerSetupError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = &options.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|_| HttpBrokerSetupError::Token)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .default_headers(headers)
            .user_agent(concat!("queen-s3/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.connect_timeout)
            // A redirect followed would carry the token, or turn a write into a read.
            .redirect(Policy::none())
            // The operator's variables are the whole configuration: no HTTP_PROXY besides them.
            .no_proxy()
            .build()
            .map_err(|error| HttpBrokerSetupError::Client(causes(&error, &[])))?;
        Ok(Self {
            client,
            base: options.url.as_str().trim_end_matches('/').to_owned(),
            origin: origin(&options.url),
            token: options.token,
            budget: options.budget,
            trust: Arc::default(),
            answer_timeout: options.answer_timeout,
        })
    }

    /// Sends a call and answers once the head of a `200` is here.
    async fn send(
        &self,
        route: &Route,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Response, BrokerErrorKind> {
        let mut call = self
            .client
            .request(route.method.clone(), format!("{}{}", self.base, route.path));
        if let Some(accept) = route.accept {
            call = call.header(ACCEPT, accept);
        }
        if let Some(body) = body {
            call = call.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = timeout(limit, call.send())
            .await
            .map_err(|_| silence("no answer came", limit))?
            .map_err(|error| self.transport(error))?;
        if response.status() == reqwest::StatusCode::OK {
            return Ok(response);
        }
        Err(self.refusal(route, response).await)
    }

    /// An answer other than `200`, with what to do about it.
    async fn refusal(&self, route: &Route, mut response: Response) -> BrokerErrorKind {
        let code = response.status().as_u16();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| retry_after(value, Timestamp::now()));
        let mut body = Vec::new();
        let collected = async {
            while let Ok(Some(chunk)) = response.chunk().await {
                body.extend_from_slice(&chunk[..chunk.len().min(ERROR_BODY_BYTES - body.len())]);
                if body.len() == ERROR_BODY_BYTES {
                    break;
                }
            }
        };
        // The status is the news; a body that does not come only leaves the text shorter.
        let _ = timeout(self.answer_timeout, collected).await;
        let said = excerpt(&String::from_utf8_lossy(&body), &self.secrets());
        let token = if self.token.is_some() {
            "QUEEN_TOKEN"
        } else {
            "QUEEN_TOKEN, unset now,"
        };
        let excerpt = match code {
            401 => format!(
                "{said} ({token} must be a valid token with {})",
                route.needs
            ),
            403 => format!("{said} ({token} needs {})", route.needs),
            300..=399 => format!("{said} (QUEEN_URL must name the place itself, not a redirect)"),
            _ => said,
        };
        BrokerErrorKind::Status {
            code,
            excerpt,
            retry_after,
        }
    }

    /// Collects a body of at most `limit` bytes into memory that is reserved once where the
    /// answer says its length.
    async fn collect(
        &self,
        mut response: Response,
        limit: usize,
        budget: Option<&Arc<MemoryBudget>>,
    ) -> Result<(Bytes, Option<Hold>), BrokerErrorKind> {
        let oversized =
            || BrokerErrorKind::Malformed(format!("its body is longer than {limit} bytes"));
        let length = match response.content_length().map(usize::try_from) {
            None => 0,
            Some(Ok(length)) if length <= limit => length,
            Some(_) => return Err(oversized()),
        };
        let mut body = match budget {
            Some(budget) => budget.buffer(length),
            None => Vec::with_capacity(length),
        };
        let mut hold = budget.map(|budget| budget.hold(body.capacity()));
        let mut pace = Pace::new(self.answer_timeout);
        loop {
            let chunk = pace
                .next(response.chunk())
                .await
                .map_err(|slow| {
                    BrokerErrorKind::Transport(format!("the answer is given up: {slow}"))
                })?
                .map_err(|error| self.transport(error))?;
            let Some(chunk) = chunk else { break };
            pace.came(chunk.len());
            if chunk.len() > limit - body.len() {
                return Err(oversized());
            }
            body.extend_from_slice(&chunk);
            if hold
                .as_ref()
                .is_some_and(|hold| hold.bytes() < body.capacity())
            {
                hold = budget.map(|budget| budget.hold(body.capacity()));
            }
        }
        let body = match budget {
            Some(budget) => budget.share(body),
            None => Bytes::from(body),
        };
        Ok((body, hold))
    }

    /// A call other than a fetch: all of it within the answer's time limit.
    async fn call(&self, route: &Route, body: Option<Vec<u8>>) -> Result<Bytes, BrokerErrorKind> {
        let limit = self.answer_timeout;
        let call = async {
            let response = self.send(route, body, limit).await?;
            let (body, _) = self.collect(response, ANSWER_BODY_BYTES, None).await?;
            Ok(body)
        };
        timeout(limit, call)
            .await
            .map_err(|_| silence("no whole answer came", limit))?
    }

    async fn fetch_answer(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerErrorKind> {
        let body = wire::fetch_body(request).map_err(unsendable)?;
        let limit = self.answer_timeout + Duration::from_millis(request.max_wait_ms.into());
        let response = self.send(&FETCH, Some(body), limit).await?;
        let form = Form::of(response.headers());
        let (body, hold) = self
            .collect(response, FETCH_BODY_BYTES, Some(&self.budget))
            .await?;

        let answer = if body.len() <= form.inline_bytes() {
            form.decode(request, body, &self.budget, &self.trust)
        } else {
            let (request, budget) = (request.clone(), Arc::clone(&self.budget));
            let trust = Arc::clone(&self.trust);
            task::spawn_blocking(move || form.decode(&request, body, &budget, &trust))
                .await
                .map_err(|_| BrokerErrorKind::Malformed("decoding it was given up".into()))?
        };
        // The batch counts the body from here on.
        drop(hold);
        Ok(answer?)
    }

    fn secrets(&self) -> [&str; 1] {
        [self.token.as_ref().map_or("", Secret::expose)]
    }

    fn transport(&self, error: reqwest::Error) -> BrokerErrorKind {
        BrokerErrorKind::Transport(causes(&error.without_url(), &self.secrets()))
    }

    fn error(&self, route: &Route, kind: BrokerErrorKind) -> BrokerError {
        BrokerError {
            operation: route.operation,
            url: self.origin.clone(),
            kind,
        }
    }

    fn unreadable(&self, error: Unreadable) -> BrokerErrorKind {
        BrokerErrorKind::Malformed(excerpt(&error.to_string(), &self.secrets()))
    }
}

#[async_trait]
impl Broker for HttpBroker {
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        self.fetch_answer(request)
            .await
            .map_err(|kind| self.error(&FETCH, kind))
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        let answer = async {
            let body = wire::changed_body(request).map_err(unsendable)?;
            let answer = self.call(&CHANGED, Some(body)).await?;
            wire::read_changed(request, &answer).map_err(|error| self.unreadable(error))
        };
        answer.await.map_err(|kind| self.error(&CHANGED, kind))
    }

    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        let answer = async {
            let body = wire::kv_body(operations).map_err(unsendable)?;
            let answer = self.call(&KV, Some(body)).await?;
            wire::read_kv(operations, &answer).map_err(|error| self.unreadable(error))
        };
        answer.await.map_err(|kind| self.error(&KV, kind))
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        let answer = async {
            let answer = self.call(&QUEUES, None).await?;
            wire::read_queues(&answer).map_err(|error| self.unreadable(error))
        };
        answer.await.map_err(|kind| self.error(&QUEUES, kind))
    }
}

/// How a fetch was answered.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Segments,
}

impl Form {
    fn of(headers: &HeaderMap) -> Self {
        let value = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let media_type = value.and_then(|value| value.split(';').next());
        match media_type {
            Some(name) if name.trim().eq_ignore_ascii_case(SEGMENTS) => Self::Segments,
            _ => Self::Json,
        }
    }

    /// Answers longer than this are decoded off the async threads.
    fn inline_bytes(self) -> usize {
        match self {
            Self::Json => DECODE_INLINE_BYTES,
            Self::Segments => DECODE_INLINE_SEGMENTS_BYTES,
        }
    }

    fn decode(
        self,
        request: &FetchRequest,
        body: Bytes,
        budget: &Arc<MemoryBudget>,
        trust: &Arc<Trust>,
    ) -> Result<FetchAnswer, DecodeError> {
        match self {
            Self::Json => decode_fetch(request, body, budget),
            Self::Segments => decode_segments(request, body, budget, trust),
        }
    }
}

/// Scheme, host and port, without the user and password that a URL may hold.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn silence(what: &str, limit: Duration) -> BrokerErrorKind {
    BrokerErrorKind::Transport(format!("{what} within {} ms", limit.as_millis()))
}

fn unsendable(error: serde_json::Error) -> BrokerErrorKind {
    BrokerErrorKind::Transport(format!("the request cannot be rendered: {error}"))
}
