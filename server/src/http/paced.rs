//! A connection whose client has to keep up with what is written to it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::limits::WRITE_STEP_BYTES;

/// Fails a write once the client has taken less than [`WRITE_STEP_BYTES`] within the time for them.
pub struct Paced<S> {
    stream: S,
    step_time: Duration,
    /// Runs from the moment at which the client did not take everything.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Taken since then.
    taken: usize,
}

impl<S> Paced<S> {
    /// Each step of the writes to `stream` may take `step_time`.
    pub fn new(stream: S, step_time: Duration) -> Self {
        Self {
            stream,
            step_time,
            deadline: None,
            taken: 0,
        }
    }

    fn caught_up(&mut self) {
        self.deadline = None;
        self.taken = 0;
    }

    fn pace(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(outcome) = written {
            self.taken += *outcome.as_ref().unwrap_or(&0);
            if self.taken >= WRITE_STEP_BYTES {
                self.caught_up();
            }
            return Poll::Ready(outcome);
        }
        let step_time = self.step_time;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(step_time)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.pace(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        this.pace(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Only a connection that has nothing left to write is flushed.
        this.caught_up();
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const STEP_TIME: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_too_little_is_cut() {
        let (server, mut client) = duplex(1_000);
        let mut server = Paced::new(server, STEP_TIME);
        let begun = Instant::now();
        let sips = tokio::spawn(async move {
            let mut sip = [0; 1_000];
            while client.read_exact(&mut sip).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let error = server.write_all(&vec![0; WRITE_STEP_BYTES]).await;
        assert_eq!(error.err().map(|e| e.kind()), Some(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed(), STEP_TIME);
        drop(server);
        sips.await.expect("a client");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_the_pace_gets_everything_however_long_it_takes() {
        let (server, mut client) = duplex(WRITE_STEP_BYTES);
        let mut server = Paced::new(server, STEP_TIME);
        let gulps = tokio::spawn(async move {
            let mut gulp = vec![0; WRITE_STEP_BYTES];
            for _ in 0..10 {
                sleep(STEP_TIME - Duration::from_secs(1)).await;
                client.read_exact(&mut gulp).await.expect("more");
            }
        });
        server
            .write_all(&vec![0; 10 * WRITE_STEP_BYTES])
            .await
            .expect("written");
        gulps.await.expect("a client");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_of_one_answer_does_not_count_against_the_next() {
        let (server, mut client) = duplex(1_000);
        let mut server = Paced::new(server, STEP_TIME);
        let reads = tokio::spawn(async move {
            let mut answer = [0; 1_500];
            for _ in 0..2 {
                sleep(STEP_TIME - Duration::from_secs(1)).await;
                client.read_exact(&mut answer).await.expect("an answer");
            }
        });
        for _ in 0..2 {
            server.write_all(&[0; 1_500]).await.expect("written");
            server.flush().await.expect("flushed");
        }
        reads.await.expect("a client");
    }
}
