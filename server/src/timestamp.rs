//! Instants as the wire and the database have them: microseconds, UTC.

use std::error::Error;
use std::fmt;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// Microseconds from the Unix epoch to PostgreSQL's, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
/// 9999-12-30T00:00:00Z: the calendar library ends a day before the four-digit years do.
const LAST: i64 = 253_402_128_000_000_000;
/// 0001-01-01T00:00:00Z.
const FIRST: i64 = -62_135_596_800_000_000;
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;

/// An instant: microseconds since the Unix epoch, UTC.
///
/// Displays as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, always six digits. Instants outside the years 1 to
/// 9999 (less its last two days) are held at those bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the Unix epoch.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(FIRST, LAST))
    }

    /// Microseconds since the Unix epoch.
    pub fn micros(self) -> i64 {
        self.0
    }

    /// This instant, `seconds` later.
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self::from_micros(self.0.saturating_add(seconds.saturating_mul(SECOND)))
    }

    /// Reads an RFC 3339 or ISO 8601 instant; a date or a time without a zone is UTC.
    ///
    /// # Errors
    ///
    /// The parser's own words on what is wrong with `text`.
    pub fn parse(text: &str) -> Result<Self, jiff::Error> {
        if let Ok(instant) = text.parse::<jiff::Timestamp>() {
            return Ok(Self::from_micros(instant.as_microsecond()));
        }
        let civil: jiff::civil::DateTime = text.parse()?;
        let instant = jiff::tz::TimeZone::UTC.to_timestamp(civil)?;
        Ok(Self::from_micros(instant.as_microsecond()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Within FIRST..=LAST, which is inside jiff's own range.
        let instant = jiff::Timestamp::from_microsecond(self.0).map_err(|_| fmt::Error)?;
        let civil = jiff::tz::TimeZone::UTC.to_datetime(instant);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            civil.year(),
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute(),
            civil.second(),
            civil.subsec_nanosecond() / 1_000
        )
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'a> FromSql<'a> for Timestamp {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self::from_micros(micros.saturating_add(POSTGRES_EPOCH)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Timestamp {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&(self.0 - POSTGRES_EPOCH).to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_with_six_digits_and_read_back() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_788_516_221_918_204, "2026-09-04T10:03:41.918204Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (LAST, "9999-12-30T00:00:00.000000Z"),
            (FIRST, "0001-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
            assert_eq!(Timestamp::parse(text).expect(text).micros(), micros);
        }
    }

    #[test]
    fn dates_and_offsets_are_read_as_utc_instants() {
        let expected = Timestamp::parse("2026-09-04T10:00:00Z").expect("an instant");
        for text in [
            "2026-09-04T12:00:00+02:00",
            "2026-09-04T10:00",
            "2026-09-04 10:00:00",
        ] {
            assert_eq!(Timestamp::parse(text).expect(text), expected);
        }
        assert!(Timestamp::parse("2026-09-04").is_ok());
        assert!(Timestamp::parse("yesterday").is_err());
        assert!(Timestamp::parse("").is_err());
    }

    #[test]
    fn infinity_is_held_at_the_bounds() {
        let read = |micros: i64| Timestamp::from_sql(&Type::TIMESTAMPTZ, &micros.to_be_bytes());
        assert_eq!(read(i64::MAX).expect("infinity").micros(), LAST);
        assert_eq!(read(i64::MIN).expect("-infinity").micros(), FIRST);
    }
}
