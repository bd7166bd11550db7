//! A request body that is sent from the pieces it lies in, and tells how far it is.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use crate::limits::UPLOAD_FRAME_BYTES;

/// Bytes of a body that the connection has taken, shared with the one that watches it move.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Bytes taken.
    pub(super) fn taken(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What to call once half of a body is sent.
pub(super) type AtHalf = Box<dyn FnOnce() + Send + Sync>;

/// Pieces sent one after the other, none copied, at most [`UPLOAD_FRAME_BYTES`] at a time.
pub(super) struct PiecesBody {
    pieces: std::vec::IntoIter<Bytes>,
    piece: Bytes,
    left: u64,
    progress: Progress,
    half: Option<Half>,
}

/// The stop at half the body: a pause that lets the connection flush what it has, then the call.
struct Half {
    left_then: u64,
    paused: bool,
    call: AtHalf,
}

impl PiecesBody {
    /// A body of `pieces`; `at_half` is called once after half of it was handed to the connection
    /// and flushed.
    pub(super) fn new(pieces: Vec<Bytes>, progress: Progress, at_half: Option<AtHalf>) -> Self {
        let left: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let half = at_half.map(|call| Half {
            left_then: left / 2,
            paused: false,
            call,
        });
        Self {
            pieces: pieces.into_iter(),
            piece: Bytes::new(),
            left,
            progress,
            half,
        }
    }

    fn next_frame(&mut self) -> Option<Bytes> {
        while self.piece.is_empty() {
            self.piece = self.pieces.next()?;
        }
        let to_half = match &self.half {
            Some(half) => usize::try_from(self.left - half.left_then).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let frame = self
            .piece
            .split_to(self.piece.len().min(UPLOAD_FRAME_BYTES).min(to_half));
        self.left -= frame.remaining() as u64;
        self.progress.0.fetch_add(frame.remaining() as u64, Relaxed);
        Some(frame)
    }
}

impl fmt::Debug for PiecesBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PiecesBody")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Body for PiecesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        match this.half.take() {
            Some(mut half) if this.left == half.left_then && !half.paused => {
                half.paused = true;
                this.half = Some(half);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(half) if this.left == half.left_then => (half.call)(),
            half => this.half = half,
        }
        Poll::Ready(this.next_frame().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.half.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Mutex;

    use super::*;

    async fn frames(mut body: PiecesBody) -> Vec<Bytes> {
        let mut frames = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            frames.push(
                frame
                    .expect("infallible")
                    .into_data()
                    .expect("a data frame"),
            );
        }
        frames
    }

    #[tokio::test]
    async fn pieces_are_sent_in_order_from_where_they_lie() {
        let long = Bytes::from(vec![7; UPLOAD_FRAME_BYTES + 1]);
        let progress = Progress::default();
        let pieces = vec![Bytes::from_static(b"ab"), Bytes::new(), long.clone()];
        let body = PiecesBody::new(pieces, progress.clone(), None);
        assert_eq!(
            body.size_hint().exact(),
            Some(UPLOAD_FRAME_BYTES as u64 + 3)
        );
        let frames = frames(body).await;
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[1].as_ptr(), long.as_ptr());
        assert_eq!(frames.concat().len() as u64, progress.taken());
    }

    #[tokio::test]
    async fn the_call_at_half_comes_once_when_half_was_taken() {
        let progress = Progress::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = {
            let (seen, progress) = (Arc::clone(&seen), progress.clone());
            move || {
                seen.lock()
                    .expect("no panic holds it")
                    .push(progress.taken())
            }
        };
        let pieces = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        let sent = frames(PiecesBody::new(pieces, progress, Some(Box::new(note)))).await;
        assert_eq!(sent.concat(), b"abcde");
        assert_eq!(*seen.lock().expect("no panic holds it"), [3]);
    }
}
