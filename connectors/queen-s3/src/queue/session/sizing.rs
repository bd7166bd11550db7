//! How much to ask for in a fetch call, learned from what the answers before it brought: a call names
//! stored bytes, and what counts against memory is what they become.

use crate::limits::{
    FETCH_CALL_BYTES, FETCH_CALL_LEAST_BYTES, FETCH_ENTRIES, FETCH_ENTRY_LEAST_BYTES,
    FETCH_ENTRY_MAX_BYTES, PROBE_BYTES,
};

/// Rendered bytes that are expected per stored byte asked for, at least and at most: the greatest
/// record in the least entry makes some thousands.
const EXPANSION: (f64, f64) = (4.0, 4_096.0);
/// What the last answer counts for where less came than was expected.
const WEIGHT: f64 = 0.1;

/// What is known of a queue's log by now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sizing {
    /// Rendered bytes per stored byte asked for; `None` before the first records.
    expansion: Option<f64>,
    /// Stored bytes that an entry asks for, at least.
    entry_bytes: u32,
    /// Stored bytes that a probe asks for.
    probe_bytes: u32,
}

/// What an answer brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brought {
    /// Rendered bytes.
    pub(super) rendered: usize,
    /// Whether a partition has more than came of it.
    pub(super) more: bool,
    pub(super) reads: Entries,
    pub(super) probes: Entries,
}

/// Entries of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entries {
    pub(super) asked: usize,
    /// Came back empty below their watermarks.
    pub(super) starved: usize,
}

impl Sizing {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self {
            expansion: None,
            entry_bytes: FETCH_ENTRY_LEAST_BYTES,
            probe_bytes: PROBE_BYTES,
        }
    }

    /// Whether records have come. Before that calls are made one at a time: they may bring any number
    /// of bytes.
    pub(super) fn is_known(&self) -> bool {
        self.expansion.is_some()
    }

    fn expansion(&self) -> f64 {
        self.expansion.unwrap_or(EXPANSION.0)
    }

    /// Rendered bytes that a call aims at which may take `room`.
    pub(super) fn aim(&self, room: usize) -> usize {
        if self.is_known() {
            room
        } else {
            room.min(FETCH_CALL_LEAST_BYTES)
        }
    }

    /// Partitions for which a call that aims at `room` is enough.
    pub(super) fn entries(&self, room: usize, probes: bool) -> usize {
        let each = if probes {
            self.entry_bytes.max(self.probe_bytes)
        } else {
            self.entry_bytes
        };
        let enough = (room as f64 / self.expansion() / f64::from(each)) as usize;
        enough.clamp(1, FETCH_ENTRIES)
    }

    /// Stored bytes that each of so many `entries` of a call asks for that aims at `room`.
    pub(super) fn read_bytes(&self, room: usize, entries: usize) -> u32 {
        let share = (room as f64 / self.expansion() / entries as f64) as u32;
        share.clamp(self.entry_bytes, FETCH_ENTRY_MAX_BYTES)
    }

    /// Stored bytes that a probe asks for.
    pub(super) fn probe_bytes(&self) -> u32 {
        self.probe_bytes
    }

    /// Takes in what a call brought that asked for `stored` bytes.
    pub(super) fn learn(&mut self, stored: f64, brought: &Brought) {
        let seen = (brought.rendered as f64 / stored).clamp(EXPANSION.0, EXPANSION.1);
        self.expansion = match self.expansion {
            None if brought.rendered == 0 => None,
            None => Some(seen),
            Some(before) if seen > before => Some(seen),
            // Where the log ended, it says nothing of what a whole answer is like.
            Some(before) if !brought.more => Some(before),
            Some(before) => Some(before + (seen - before) * WEIGHT),
        };
        let Brought {
            rendered,
            reads,
            probes,
            ..
        } = *brought;
        let least = FETCH_ENTRY_LEAST_BYTES;
        self.entry_bytes = entry_bytes(self.entry_bytes, reads, rendered, least);
        self.probe_bytes = entry_bytes(self.probe_bytes, probes, rendered, PROBE_BYTES);
    }
}

/// Stored bytes that an entry asks for after a call in which some of `entries` came back empty: a
/// broker may answer nothing where the next segment is longer. In an answer of many bytes (`rendered`)
/// they only came after the call's own were spent.
fn entry_bytes(before: u32, entries: Entries, rendered: usize, least: u32) -> u32 {
    if entries.starved * 2 > entries.asked && rendered < FETCH_CALL_BYTES {
        before.saturating_mul(4).min(FETCH_ENTRY_MAX_BYTES)
    } else if entries.asked > 0 {
        (before - before / 8).max(least)
    } else {
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MIB;

    fn brought(rendered: usize, more: bool) -> Brought {
        Brought {
            rendered,
            more,
            reads: Entries {
                asked: 1,
                starved: 0,
            },
            probes: Entries::default(),
        }
    }

    /// Rendered bytes of a call for `partitions` whose segments are `segment` bytes long, compressed to
    /// an eighth: what was asked for of each, in whole segments, and one of them at least.
    fn call(sizing: &mut Sizing, room: usize, partitions: usize, segment: usize) -> usize {
        let room = sizing.aim(room);
        let entries = sizing.entries(room, false).min(partitions);
        let bytes = sizing.read_bytes(room, entries) as usize;
        let rendered = entries * (bytes * 8 / segment).max(1) * segment;
        sizing.learn((entries * bytes) as f64, &brought(rendered, true));
        rendered
    }

    #[test]
    fn no_call_brings_much_more_than_it_aims_at_and_soon_none_much_less() {
        for segment in [300, 30_000, MIB, 16 * MIB] {
            for partitions in [1, 16, 1_000] {
                let mut sizing = Sizing::new();
                let room = 16 * MIB;
                let calls: Vec<usize> = (0..100)
                    .map(|_| call(&mut sizing, room, partitions, segment))
                    .collect();
                let most = FETCH_CALL_LEAST_BYTES.max(16 * segment);
                assert!(calls[0] <= 2 * most, "{segment} {partitions}: {}", calls[0]);
                let (least, most) = (room / 2, 2 * room.max(segment));
                let late = calls[60..].iter().all(|call| *call >= least);
                let none = calls[1..].iter().all(|call| *call <= most);
                assert!(late && none, "{segment} {partitions}: {calls:?}");
            }
        }
    }

    #[test]
    fn the_end_of_a_log_does_not_make_the_next_call_large() {
        let mut sizing = Sizing::new();
        sizing.learn(4_096.0, &brought(80_000, true));
        let before = sizing.clone();
        for _ in 0..100 {
            sizing.learn(4_096.0, &brought(10, false));
        }
        assert_eq!(sizing, before);
    }

    #[test]
    fn an_answer_without_records_teaches_nothing() {
        let mut sizing = Sizing::new();
        sizing.learn(4_096.0, &brought(0, true));
        assert!(!sizing.is_known());
    }

    #[test]
    fn entries_that_come_back_empty_ask_for_more_until_they_do_not() {
        let mut sizing = Sizing::new();
        let starved = Brought {
            reads: Entries {
                asked: 2,
                starved: 2,
            },
            ..Brought::default()
        };
        for _ in 0..20 {
            sizing.learn(8_192.0, &starved);
        }
        assert_eq!(sizing.read_bytes(MIB, 2), FETCH_ENTRY_MAX_BYTES);
        assert_eq!(sizing.probe_bytes(), PROBE_BYTES);
        for _ in 0..100 {
            sizing.learn(8_192.0, &brought(10_000, false));
        }
        assert_eq!(sizing.entry_bytes, FETCH_ENTRY_LEAST_BYTES);
    }
}
