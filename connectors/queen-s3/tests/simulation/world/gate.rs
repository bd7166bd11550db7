//! Holds a process still: paused, resumed, or dead.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// What lets a simulated process run.
#[derive(Default)]
pub struct Gate(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    paused: bool,
    dead: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    /// Stops the process where it stands; time goes on without it.
    pub fn pause(&self) {
        self.inner(|inner| inner.paused = true);
    }

    /// Lets a paused process run on.
    pub fn resume(&self) {
        for waker in self.inner(|inner| {
            inner.paused = false;
            std::mem::take(&mut inner.waiting)
        }) {
            waker.wake();
        }
    }

    /// Ends the process: nothing of it runs again.
    pub fn kill(&self) {
        for waker in self.inner(|inner| {
            inner.dead = true;
            std::mem::take(&mut inner.waiting)
        }) {
            waker.wake();
        }
    }

    /// Whether the process is dead.
    pub fn dead(&self) -> bool {
        self.inner(|inner| inner.dead)
    }

    /// Waits until the process may run; for ever when it is dead.
    pub async fn running(&self) {
        poll_fn(|cx| self.poll_running(cx)).await;
    }

    /// Waits until the process may run or is dead, and answers whether it lives.
    pub async fn settled(&self) -> bool {
        poll_fn(|cx| {
            if self.dead() {
                Poll::Ready(false)
            } else {
                self.poll_running(cx).map(|()| true)
            }
        })
        .await
    }

    /// Runs `process`, polling it only while it may run.
    pub async fn hold<F: Future>(&self, process: F) -> F::Output {
        let mut process = Box::pin(process);
        poll_fn(|cx| match self.poll_running(cx) {
            Poll::Ready(()) => Pin::new(&mut process).poll(cx),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn poll_running(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner(|inner| {
            if inner.paused || inner.dead {
                inner.waiting.push(cx.waker().clone());
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
    }

    fn inner<T>(&self, with: impl FnOnce(&mut Inner) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
