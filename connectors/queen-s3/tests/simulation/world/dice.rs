//! The one source of chance of a run.

use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Draws everything that is left to chance, from one seed.
pub struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// Dice that fall the same way for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// True with `probability`, 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.random_bool(probability)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        self.0.random_range(low..=high)
    }

    /// A duration from `low` to `high` milliseconds, to the microsecond.
    pub fn millis(&mut self, low: i64, high: i64) -> Duration {
        let micros = self.between(low * 1_000, high * 1_000);
        Duration::from_micros(u64::try_from(micros).unwrap_or_default())
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())]
    }

    /// 128 random bits.
    pub fn bits(&mut self) -> u128 {
        self.0.random()
    }
}
