//! Failures that repeat are logged once, and then now and then with their number.

use std::time::Duration;

use tokio::time::Instant;

/// How long repeats of one failure stay silent.
const QUIET: Duration = Duration::from_secs(60);

/// Decides which of a step's repeated failures is worth a line.
#[derive(Debug, Default)]
pub struct Sampled {
    last: Option<Instant>,
    suppressed: u64,
}

impl Sampled {
    /// Counts one failure; `Some` when it should be logged, with the number of those that were
    /// not since the last line.
    pub fn failure(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < QUIET)
        {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Whether the last outcome was a failure.
    pub fn is_failing(&self) -> bool {
        self.last.is_some()
    }

    /// Notes a success; `true` when failures came before it.
    pub fn success(&mut self) -> bool {
        self.suppressed = 0;
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_repeated_failure_is_logged_at_first_and_then_once_a_minute_with_its_number() {
        let mut sampled = Sampled::default();
        assert_eq!(sampled.failure(), Some(0));
        assert_eq!(sampled.failure(), None);
        assert_eq!(sampled.failure(), None);
        tokio::time::advance(QUIET).await;
        assert_eq!(sampled.failure(), Some(2));
        assert!(sampled.success());
        assert!(!sampled.success());
        assert_eq!(sampled.failure(), Some(0));
    }
}
