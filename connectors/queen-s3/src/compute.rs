//! Where long computations run: off the async threads, or in place for a simulation.

/// How computations that would hold an async thread up are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// On the runtime's blocking threads.
    Offloaded,
    /// In place, so that everything happens on one thread in one order.
    InPlace,
}

impl Compute {
    /// Runs `work` to its end.
    ///
    /// # Panics
    /// When `work` panics, and when the runtime is shutting down.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Self::InPlace => work(),
            Self::Offloaded => match tokio::task::spawn_blocking(work).await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime drops tasks only when the process ends.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}
