//! The order of windows: one may be encoded while the window before it is being committed, but
//! nothing of it leaves the process before its own intent is durable.

use std::sync::Mutex;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Standing;
use crate::memory::Reservation;
use crate::ownership::Fence;

/// What a window is the next one after.
pub(super) enum Turn {
    /// The window before it is committed.
    Now(Standing),
    /// It is not.
    Later(Waiting),
}

/// A window that is encoded before its turn.
pub(super) struct Waiting {
    /// Number of the window before it.
    pub(super) k: u64,
    /// The lake's lineage, which no commit changes.
    pub(super) lineage: String,
    /// Tells that the window before it is committed.
    pub(super) committed: oneshot::Receiver<Standing>,
}

impl Turn {
    /// Number of the window before it.
    pub(super) fn after(&self) -> u64 {
        match self {
            Self::Now(standing) => standing.pointer.k,
            Self::Later(waiting) => waiting.k,
        }
    }

    /// The lake's lineage.
    pub(super) fn lineage(&self) -> &str {
        match self {
            Self::Now(standing) => &standing.lineage,
            Self::Later(waiting) => &waiting.lineage,
        }
    }

    /// Whether it has come already.
    pub(super) fn is_now(&self) -> bool {
        matches!(self, Self::Now(_))
    }

    /// Waits until it has come.
    pub(super) async fn come(self) -> Standing {
        match self {
            Self::Now(standing) => standing,
            Self::Later(waiting) => match waiting.committed.await {
                Ok(standing) => standing,
                // The window before it failed, and the session ends with this one undone.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// What an upload waits for and ends by.
#[derive(Clone, Copy)]
pub(super) struct Permit<'a> {
    /// The intent is durable.
    pub(super) gate: &'a Gate,
    /// The lease is held.
    pub(super) fence: &'a Fence,
    /// Room in the memory budget for what is encoded.
    pub(super) room: &'a Mutex<Reservation>,
}

/// Closed until the intent of a window is durable: what is encoded until then stays in memory. Those
/// who wait go on in the order in which they came.
pub(super) struct Gate(CancellationToken);

impl Gate {
    /// A closed one.
    pub(super) fn closed() -> Self {
        Self(CancellationToken::new())
    }

    /// An open one.
    pub(super) fn opened() -> Self {
        let gate = Self::closed();
        gate.open();
        gate
    }

    /// Opens it for good.
    pub(super) fn open(&self) {
        self.0.cancel();
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it is.
    pub(super) async fn pass(&self) {
        self.0.cancelled().await;
    }
}
