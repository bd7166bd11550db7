//! Which segments that cannot be read are worth a line: a key that is lost concerns all of them, and their
//! readers ask again and again.

use std::mem::{Discriminant, discriminant};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::limits::UNREADABLE_QUIET;
use crate::log::codec::Damage;

/// What was said of late, by cause.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<Vec<Complaint>>);

#[derive(Debug)]
struct Complaint {
    cause: Discriminant<Damage>,
    said: Instant,
    suppressed: u64,
}

impl Complaints {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Counts `damage`, found at `now`; `Some` when it is worth a line, with the number of those of the same
    /// cause that were not since the last one.
    pub fn worth_a_line(&self, damage: &Damage, now: Instant) -> Option<u64> {
        let cause = discriminant(damage);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.iter_mut().find(|known| known.cause == cause) else {
            all.push(Complaint {
                cause,
                said: now,
                suppressed: 0,
            });
            return Some(0);
        };
        if now.saturating_duration_since(known.said) < UNREADABLE_QUIET {
            known.suppressed += 1;
            return None;
        }
        known.said = now;
        Some(std::mem::take(&mut known.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_worth_a_line_at_first_and_then_once_a_minute_with_its_number() {
        let complaints = Complaints::new();
        let start = Instant::now();
        assert_eq!(complaints.worth_a_line(&Damage::NoKey, start), Some(0));
        assert_eq!(complaints.worth_a_line(&Damage::NoKey, start), None);
        assert_eq!(complaints.worth_a_line(&Damage::Checksum, start), Some(0));
        let later = start + UNREADABLE_QUIET;
        assert_eq!(complaints.worth_a_line(&Damage::NoKey, later), Some(1));
        assert_eq!(complaints.worth_a_line(&Damage::NoKey, later), None);
        assert_eq!(complaints.worth_a_line(&Damage::Checksum, later), Some(0));
    }
}
