//! Instants on the broker's clock, in whole microseconds since the Unix epoch, UTC.

use std::fmt;

use jiff::Timestamp;
use thiserror::Error;

/// An instant on the broker's clock: microseconds since the Unix epoch, UTC.
///
/// `MIN` stands for "before every record" (an unknown frontier), `MAX` for "after every record".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub i64);

/// A timestamp of the wire that does not read as an RFC 3339 instant.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not an RFC 3339 timestamp: {0:?}")]
pub struct BadTimestamp(pub String);

impl Micros {
    /// Before every record.
    pub const MIN: Self = Self(i64::MIN);
    /// After every record.
    pub const MAX: Self = Self(i64::MAX);
    /// The Unix epoch: where a backfill's log begins.
    pub const ZERO: Self = Self(0);

    /// Microseconds in a second.
    pub const PER_SECOND: i64 = 1_000_000;
    /// Microseconds in a millisecond.
    pub const PER_MILLI: i64 = 1_000;

    /// Reads an RFC 3339 instant; digits past the microsecond are cut.
    pub fn parse(text: &str) -> Result<Self, BadTimestamp> {
        let instant: Timestamp = text.parse().map_err(|_| BadTimestamp(excerpt(text)))?;
        Ok(Self(instant.as_microsecond()))
    }

    /// This instant moved back by `micros`, stopping at [`Micros::MIN`].
    pub fn back(self, micros: i64) -> Self {
        Self(self.0.saturating_sub(micros))
    }

    /// This instant moved on by `micros`, stopping at [`Micros::MAX`].
    pub fn on(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// `YYYY-MM-DDTHH:MM:SS.ffffffZ`, always six digits; an instant outside years 1 to 9999 prints as
/// its number.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_microsecond(self.0) {
            Ok(instant) => write!(f, "{instant:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_survives_printing_and_reading() {
        for text in ["2026-09-04T10:03:41.918204Z", "1970-01-01T00:00:00.000000Z"] {
            let instant = Micros::parse(text).expect("a valid instant");
            assert_eq!(instant.to_string(), text);
        }
    }

    #[test]
    fn digits_past_the_microsecond_are_cut_and_missing_ones_are_zero() {
        assert_eq!(
            Micros::parse("1970-01-01T00:00:01.2345678Z"),
            Ok(Micros(1_234_567))
        );
        assert_eq!(Micros::parse("1970-01-01T00:00:01Z"), Ok(Micros(1_000_000)));
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        assert!(Micros::parse("yesterday").is_err());
    }
}
