//! Pauses between tries: exponential, jittered, and never shorter than the server asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::limits::{RETRY_AFTER_MAX, RETRY_MAX, RETRY_MIN};

/// Hands out jitter seeds, so that a run with one first seed is the same run again.
#[derive(Clone, Debug)]
pub struct Jitter(Arc<AtomicU64>);

impl Jitter {
    /// Jitter that follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// A fresh series of pauses.
    pub fn backoff(&self) -> Backoff {
        // An odd constant far from zero spreads consecutive seeds over the whole range.
        let seed = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let builder = ExponentialBuilder::default()
            .with_min_delay(RETRY_MIN)
            .with_max_delay(RETRY_MAX)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(seed);
        Backoff {
            builder,
            pauses: builder.build(),
        }
    }
}

/// The pauses of one step's tries.
#[derive(Debug)]
pub struct Backoff {
    builder: ExponentialBuilder,
    pauses: ExponentialBackoff,
}

impl Backoff {
    /// The next pause: longer than the one before, at least `asked`, at most
    /// [`RETRY_MAX`] plus jitter unless the server asked for more, up to [`RETRY_AFTER_MAX`].
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let pause = self.pauses.next().unwrap_or(RETRY_MAX);
        pause.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX))
    }

    /// Begins again with the shortest pause, after a success.
    pub fn reset(&mut self) {
        self.pauses = self.builder.build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_a_second_to_about_a_minute() {
        let mut backoff = Jitter::new(7).backoff();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next(None)).collect();
        assert!(pauses[0] >= RETRY_MIN && pauses[0] <= RETRY_MIN * 2);
        assert!(pauses[11] >= RETRY_MAX && pauses[11] <= RETRY_MAX * 2);
        backoff.reset();
        assert!(backoff.next(None) <= RETRY_MIN * 2);
    }

    #[test]
    fn a_server_that_asks_for_patience_gets_it() {
        let mut backoff = Jitter::new(7).backoff();
        assert_eq!(
            backoff.next(Some(Duration::from_secs(30))),
            Duration::from_secs(30)
        );
        assert_eq!(backoff.next(Some(RETRY_AFTER_MAX * 2)), RETRY_AFTER_MAX);
    }
}
