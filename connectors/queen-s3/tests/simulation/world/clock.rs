//! A process's own clocks.

use std::sync::Arc;
use std::time::Duration;

use queen_s3::clock::Clock;

use super::World;

/// Virtual time as one machine sees it.
pub struct MachineClock {
    world: Arc<World>,
    booted: Duration,
    skew_ms: i64,
}

impl MachineClock {
    /// Clocks of a machine that booted `booted` before the world began and whose wall clock is
    /// off by `skew_ms`.
    pub fn new(world: Arc<World>, booted: Duration, skew_ms: i64) -> Self {
        Self {
            world,
            booted,
            skew_ms,
        }
    }
}

impl Clock for MachineClock {
    fn boottime(&self) -> Duration {
        self.booted + self.world.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        self.world.true_now() / 1_000 + self.skew_ms
    }
}
