//! How slowly a body may come.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::limits::BODY_LEAST_BYTES_PER_SECOND;

/// Watches a body on its way here. Each piece may take a time limit, and all of them together as
/// long again as their bytes take at [`BODY_LEAST_BYTES_PER_SECOND`]: a body that drips ends, and a
/// large one on a slow line does not. What the reader does between two pieces does not count.
#[derive(Debug)]
pub(crate) struct Pace {
    limit: Duration,
    waited: Duration,
    bytes: u64,
}

/// Why a body is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooSlow {
    /// No piece came for so long.
    Silent(Duration),
    /// It drips.
    Dripping,
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(limit) => write!(f, "no more of it came within {} ms", limit.as_millis()),
            Self::Dripping => write!(
                f,
                "less than {BODY_LEAST_BYTES_PER_SECOND} bytes of it came a second"
            ),
        }
    }
}

impl Pace {
    /// Nothing is here yet, and `limit` is for each piece.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Awaits the next piece.
    pub(crate) async fn next<T>(&mut self, piece: impl Future<Output = T>) -> Result<T, TooSlow> {
        let earned = Duration::from_secs(self.bytes) / BODY_LEAST_BYTES_PER_SECOND;
        let left = (self.limit + earned).saturating_sub(self.waited);
        let begun = Instant::now();
        let piece = timeout(self.limit.min(left), piece).await;
        self.waited += begun.elapsed();
        piece.map_err(|_| match left < self.limit {
            true => TooSlow::Dripping,
            false => TooSlow::Silent(self.limit),
        })
    }

    /// So many bytes are here.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// How many of these pieces come, each after `pause`, before the body is given up.
    async fn pieces(bytes: usize, pause: Duration, most: usize) -> Result<usize, (usize, TooSlow)> {
        let mut pace = Pace::new(LIMIT);
        for came in 0..most {
            pace.next(sleep(pause)).await.map_err(|slow| (came, slow))?;
            pace.came(bytes);
        }
        Ok(most)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_after_the_time_for_one_piece() {
        let dripping = pieces(1, Duration::from_secs(7), 1_000).await;
        assert_eq!(dripping, Err((8, TooSlow::Dripping)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_on_a_slow_line_comes_whole() {
        let least = BODY_LEAST_BYTES_PER_SECOND as usize;
        let slow = pieces(20 * least, Duration::from_secs(20), 10_000).await;
        assert_eq!(slow, Ok(10_000));
        let slower = pieces(20 * least, Duration::from_secs(21), 10_000).await;
        assert_eq!(slower, Err((40, TooSlow::Dripping)));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_given_up_however_much_came_before() {
        let mut pace = Pace::new(LIMIT);
        pace.came(1 << 40);
        let silent = pace.next(std::future::pending::<()>()).await;
        assert_eq!(silent, Err(TooSlow::Silent(LIMIT)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_its_time_is_not_the_senders_fault() {
        let mut pace = Pace::new(LIMIT);
        for _ in 0..100 {
            pace.next(async {}).await.expect("it is here");
            pace.came(1);
            sleep(LIMIT).await;
        }
    }
}
