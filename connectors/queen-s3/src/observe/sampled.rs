//! Failures that repeat are logged once, and then now and then with their number.

use std::time::Duration;

use tokio::time::Instant;

/// How long repeats of one failure stay silent.
const QUIET: Duration = Duration::from_secs(60);

/// Decides which of a step's repeated failures is worth a line, also where they and successes come by turns.
#[derive(Debug, Default)]
pub struct Sampled {
    /// When the last line was written.
    last: Option<Instant>,
    /// Whether nobody was told since then that it works again.
    told: bool,
    failing: bool,
    suppressed: u64,
}

impl Sampled {
    /// Counts one failure; `Some` when it should be logged, with the number of those that were
    /// not since the last line.
    pub fn failure(&mut self) -> Option<u64> {
        let now = Instant::now();
        self.failing = true;
        if self
            .last
            .is_some_and(|last| now.duration_since(last) < QUIET)
        {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        self.told = true;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Whether the last outcome was a failure.
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    /// Notes a success; `true` when it is worth a line: failures came before it, and had one.
    pub fn success(&mut self) -> bool {
        self.failing = false;
        std::mem::take(&mut self.told)
    }
}

/// The same for failures that differ: another text than the last one's is told at once.
#[derive(Debug, Default)]
pub struct Repeated {
    text: String,
    sampled: Sampled,
}

impl Repeated {
    /// Counts one failure, as [`Sampled::failure`] does.
    pub fn failure(&mut self, text: &str) -> Option<u64> {
        if self.text != text {
            text.clone_into(&mut self.text);
            self.sampled = Sampled::default();
        }
        self.sampled.failure()
    }

    /// Begins anew: the next failure is told at once.
    pub fn reset(&mut self) {
        self.sampled = Sampled::default();
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
        assert!(sampled.is_failing() && sampled.success());
        assert!(!sampled.is_failing() && !sampled.success());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_successes_by_turns_are_a_line_each_in_a_minute() {
        let mut sampled = Sampled::default();
        let (mut failures, mut successes) = (0, 0);
        for _ in 0..600 {
            failures += usize::from(sampled.failure().is_some());
            successes += usize::from(sampled.success());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((failures, successes), (10, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn another_failure_is_logged_at_once() {
        let mut repeated = Repeated::default();
        assert_eq!(repeated.failure("one"), Some(0));
        assert_eq!(repeated.failure("one"), None);
        assert_eq!(repeated.failure("another"), Some(0));
        assert_eq!(repeated.failure("another"), None);
        repeated.reset();
        assert_eq!(repeated.failure("another"), Some(0));
    }
}
