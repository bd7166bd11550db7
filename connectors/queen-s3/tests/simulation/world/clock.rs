//! A process's own clocks.

use std::sync::Arc;
use std::time::Duration;

use queen_s3::clock::Clock;

use super::World;
use super::dice::Dice;

/// Times that a wall clock is set, at most.
const JUMPS: usize = 6;
/// Longest pause between two of them, ms.
const JUMP_PAUSE_MS: i64 = 40_000;

/// Virtual time as one machine sees it.
pub struct MachineClock {
    world: Arc<World>,
    booted: Duration,
    /// From when on the wall clock is off by how many ms, in order.
    skews: Vec<(Duration, i64)>,
}

impl MachineClock {
    /// Clocks of a machine that booted `booted` before the world began and whose wall clock is
    /// off by up to 5 s, and set anew now and then: somebody mends it, or spoils it by hours.
    pub fn draw(world: &Arc<World>, dice: &mut Dice) -> Self {
        let booted = dice.millis(0, 1_000_000);
        let mut skews = vec![(Duration::ZERO, dice.between(-5_000, 5_000))];
        let longest = world.scenario.wall_jump_ms;
        let mut at = world.elapsed();
        while longest > 0 && skews.len() < JUMPS {
            at += dice.millis(0, JUMP_PAUSE_MS);
            skews.push((at, dice.between(-longest, longest)));
        }
        Self {
            world: Arc::clone(world),
            booted,
            skews,
        }
    }
}

impl Clock for MachineClock {
    fn boottime(&self) -> Duration {
        self.booted + self.world.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        let now = self.world.elapsed();
        let set = self.skews.iter().rev().find(|(from, _)| *from <= now);
        self.world.true_now() / 1_000 + set.map_or(0, |(_, skew_ms)| *skew_ms)
    }
}
