//! What stands between a request and its handler: the lane, and the memory of body and answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::Shared;
use crate::admission::{Admission, Held, admission};
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{BODY_ROOM_BYTES, MIB};

/// Reads the body, and runs the handler when its lane admits it.
///
/// A request in the line is forgotten when its client goes away. One that has its slot runs to its
/// end: a write cannot be taken back, and the slot is taken for as long as the database works on it.
pub async fn admit(
    State(broker): Shared,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(route) = request.extensions().get::<MatchedPath>() else {
        return Ok(next.run(request).await);
    };
    let admission = admission(request.method(), route.as_str());
    let (parts, mut body) = request.into_parts();
    if let Admission::Slot(lane) | Admission::Handler(lane) = admission
        && let Err(overload) = broker.lanes.check(lane)
    {
        discard(&broker, &mut body).await;
        return Err(overload.into());
    }
    let announced = parts
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    let body = read(&broker, announced, body).await?;
    let mut request = Request::from_parts(parts, Body::from(body));
    let response = match admission {
        Admission::Slot(lane) => {
            let slot = broker.lanes.enter(lane).await?;
            request.extensions_mut().insert(slot.clone());
            let work = async move {
                let response = next.run(request).await;
                drop(slot);
                response
            };
            tokio::spawn(work).await?
        }
        Admission::Handler(_) | Admission::Free => next.run(request).await,
    };
    Ok(counted(&broker, response))
}

/// The whole body within its limits, counted for as long as any of it is kept.
async fn read(
    broker: &Broker,
    announced: Option<usize>,
    mut body: Body,
) -> Result<Bytes, ApiError> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    match timeout(broker.config.http.body, fill(broker, announced, &mut body)).await {
        Ok(Err(refused)) => {
            discard(broker, &mut body).await;
            Err(refused)
        }
        Ok(filled) => filled,
        Err(_) => Err(ApiError::SlowBody),
    }
}

async fn fill(
    broker: &Broker,
    announced: Option<usize>,
    body: &mut Body,
) -> Result<Bytes, ApiError> {
    let limit = broker.config.max_body_bytes;
    let too_large = || {
        ApiError::coded(
            "payload_too_large",
            format!(
                "the body: more than {} MiB, the limit QUEEN_MAX_BODY_MB",
                limit / MIB
            ),
        )
    };
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let memory = &broker.lanes.memory;
    let mut held = memory.hold(0);
    // What is announced is not there yet, and not counted.
    let room = announced.unwrap_or_default().min(BODY_ROOM_BYTES);
    let mut bytes = BytesMut::with_capacity(room);
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("the body ended early: {error}")))?;
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        if bytes.len() + chunk.len() > limit {
            return Err(too_large());
        }
        memory.extend(&mut held, chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(Bytes::from_owner(CountedBytes {
        bytes: bytes.freeze(),
        _held: held,
    }))
}

/// Reads on and keeps nothing, as much as a body may have: a connection that is closed while its
/// client still sends is reset, and the client never sees why it was refused.
async fn discard(broker: &Broker, body: &mut Body) {
    let mut left = broker.config.max_body_bytes;
    let discarding = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(length);
            if left == 0 {
                return;
            }
        }
    };
    // Who has not sent it by then does not wait for the answer either.
    let _ = timeout(broker.config.http.body, discarding).await;
}

struct CountedBytes {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts an answer until it is written or its client is gone.
fn counted(broker: &Arc<Broker>, response: Response) -> Response {
    let bytes = response.body().size_hint().lower();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let held = Some(broker.lanes.memory.hold(bytes));
    response.map(|body| Body::new(CountedBody { body, held }))
}

/// An answer. The count goes with its first chunk, which outlives the body in the buffers of the
/// connection; answers are of one.
struct CountedBody {
    body: Body,
    held: Option<Held>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            Ok(frame?.map_data(|bytes| match self.held.take() {
                Some(held) => Bytes::from_owner(CountedBytes { bytes, _held: held }),
                None => bytes,
            }))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
