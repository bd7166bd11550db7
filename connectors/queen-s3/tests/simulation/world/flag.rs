//! A flag that many wait for. They go on in the order in which they came, so that a seed tells it: those
//! of tokio's `watch` go on in an order drawn anew each time.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// True or false, false at first.
#[derive(Default)]
pub struct Flag {
    raised: AtomicBool,
    changed: Notify,
}

impl Flag {
    /// Makes it `raised`, and tells who waits.
    pub fn set(&self, raised: bool) {
        self.raised.store(raised, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Whether it is true.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Waits until it is `raised`.
    pub async fn becomes(&self, raised: bool) {
        // One thread runs a world: nothing happens between the look and the wait.
        while self.is_raised() != raised {
            self.changed.notified().await;
        }
    }
}
