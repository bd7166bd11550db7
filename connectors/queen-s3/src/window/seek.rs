//! Finding a partition's first record at or above an instant, by galloping back from the end and
//! bisecting, so that a restart reads a handful of records and not the log.

use crate::time::Micros;

/// Once this few offsets are left in doubt they are read through rather than probed again.
const READ_THROUGH: i64 = 256;
/// First step back from the end of the log; each further one is [`GALLOP`] times as long.
const FIRST_STEP: i64 = 256;
const GALLOP: i64 = 16;

/// A search in progress. Every record below `lo` has a `ts` below the instant sought; the record
/// at `hi`, if there is one, has a `ts` at or above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seek {
    lo: i64,
    hi: i64,
    step: i64,
    galloping: bool,
}

/// What one probe taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Ask again, at [`Seek::probe`].
    Again,
    /// Read on from this offset, skipping what lies below the instant.
    ReadFrom(i64),
}

impl Seek {
    /// A search among the offsets from `log_start` up to, not including, `watermark`.
    pub(super) fn new(log_start: i64, watermark: i64) -> Self {
        Self {
            lo: log_start,
            hi: watermark,
            step: FIRST_STEP,
            galloping: true,
        }
    }

    /// The first offset that may be the one sought.
    pub(super) fn lo(&self) -> i64 {
        self.lo
    }

    /// Where reading may begin already, if so little is in doubt that no probe is worth it.
    pub(super) fn settled(&self) -> Option<i64> {
        (self.hi - self.lo <= READ_THROUGH).then_some(self.lo)
    }

    /// The offset to look at next; strictly between what is known on both sides.
    pub(super) fn probe(&self) -> i64 {
        let middle = self.lo + (self.hi - self.lo) / 2;
        if self.galloping {
            middle.max(self.hi - self.step)
        } else {
            middle
        }
    }

    /// Takes in the record seen at the probe: the first one at or past the offset asked for.
    pub(super) fn seen(&mut self, probed: i64, offset: i64, ts: Micros, sought: Micros) -> Probe {
        if ts < sought {
            self.lo = self.lo.max(offset + 1);
            self.galloping = false;
        } else {
            self.hi = self.hi.min(probed);
            self.step = self.step.saturating_mul(GALLOP);
        }
        self.outcome()
    }

    /// Takes in that everything below `log_start` is gone.
    pub(super) fn cut(&mut self, log_start: i64) -> Probe {
        self.lo = self.lo.max(log_start);
        self.hi = self.hi.max(self.lo);
        self.outcome()
    }

    fn outcome(&self) -> Probe {
        self.settled().map_or(Probe::Again, Probe::ReadFrom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(log_start: i64, watermark: i64, boundary: i64) -> (i64, usize) {
        let sought = Micros(boundary);
        let mut seek = Seek::new(log_start, watermark);
        let mut probes = 0;
        let mut state = seek.settled().map_or(Probe::Again, Probe::ReadFrom);
        while state == Probe::Again {
            let at = seek.probe();
            assert!(at >= log_start && at < watermark, "a probe within the log");
            probes += 1;
            state = seek.seen(at, at, Micros(at), sought);
        }
        match state {
            Probe::ReadFrom(from) => (from, probes),
            Probe::Again => unreachable!("the loop ends on ReadFrom"),
        }
    }

    proptest! {
        #[test]
        fn reading_begins_at_or_shortly_before_the_first_record_sought(
            log_start in 0i64..1_000_000,
            length in 0i64..10_000_000,
            share in 0.0f64..=1.0,
        ) {
            let watermark = log_start + length;
            let boundary = log_start + (length as f64 * share) as i64;
            let (from, probes) = run(log_start, watermark, boundary);
            prop_assert!(from <= boundary);
            prop_assert!(boundary - from <= READ_THROUGH);
            prop_assert!(probes <= 32, "{probes} probes");
        }
    }

    #[test]
    fn a_few_new_records_at_the_end_of_a_long_log_cost_one_probe() {
        let (_, probes) = run(0, 100_000_000, 100_000_000 - 3);
        assert_eq!(probes, 1);
    }

    #[test]
    fn what_retention_took_is_not_looked_at_again() {
        let mut seek = Seek::new(0, 10_000);
        assert_eq!(seek.cut(9_900), Probe::ReadFrom(9_900));
    }
}
