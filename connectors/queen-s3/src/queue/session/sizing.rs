//! How much to ask for in a fetch call, learned from what the answers before it brought: a call names
//! stored bytes, and what counts against memory is what they become.

use crate::limits::{
    FETCH_CALL_BYTES, FETCH_CALL_LEAST_BYTES, FETCH_ENTRIES, FETCH_ENTRY_LEAST_BYTES,
    FETCH_ENTRY_MAX_BYTES, PROBE_BYTES,
};

/// Rendered bytes that are expected per stored byte asked for, at least and at most: the greatest
/// record in the least entry makes some thousands.
const EXPANSION: (f64, f64) = (4.0, 4_096.0);
/// What an answer counts for that brought less than was expected: one that was cut, and one that reached
/// the log's end and says little of what a whole one is like.
const WEIGHTS: (f64, f64) = (0.1, 0.05);
/// How much more a call may aim at than the one before, while calls are still made one at a time.
const RAMP: usize = 4;

/// What is known of a queue's log by now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sizing {
    /// Rendered bytes per stored byte asked for.
    expansion: f64,
    /// Rendered bytes that a call may aim at; more with each answer that brought records.
    ramp: usize,
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
    /// Whether there are records among them.
    pub(super) records: bool,
    /// Whether a partition has more than came of it.
    pub(super) more: bool,
    pub(super) reads: Entries,
    pub(super) probes: Entries,
}

/// What the entries of a call are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reads,
    Probes,
    Both,
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
            expansion: EXPANSION.0,
            ramp: FETCH_CALL_LEAST_BYTES,
            entry_bytes: FETCH_ENTRY_LEAST_BYTES,
            probe_bytes: PROBE_BYTES,
        }
    }

    /// Whether enough is known for several calls at once that may take `room` each: before, one may
    /// bring any number of bytes.
    pub(super) fn is_known(&self, room: usize) -> bool {
        self.ramp >= room
    }

    /// Rendered bytes that a call aims at which may take `room`.
    pub(super) fn aim(&self, room: usize) -> usize {
        room.min(self.ramp)
    }

    /// Partitions for which a call that aims at `room` is enough.
    pub(super) fn entries(&self, room: usize, kind: Kind) -> usize {
        let each = match kind {
            Kind::Reads => self.entry_bytes,
            Kind::Probes => self.probe_bytes,
            Kind::Both => self.entry_bytes.max(self.probe_bytes),
        };
        let enough = (room as f64 / self.expansion / f64::from(each)) as usize;
        enough.clamp(1, FETCH_ENTRIES)
    }

    /// Stored bytes that each of so many `entries` of a call asks for that aims at `room`.
    pub(super) fn read_bytes(&self, room: usize, entries: usize) -> u32 {
        let share = (room as f64 / self.expansion / entries as f64) as u32;
        share.clamp(self.entry_bytes, FETCH_ENTRY_MAX_BYTES)
    }

    /// Stored bytes that a probe asks for.
    pub(super) fn probe_bytes(&self) -> u32 {
        self.probe_bytes
    }

    /// Takes in what a call brought that asked for `stored` bytes.
    pub(super) fn learn(&mut self, stored: f64, brought: &Brought) {
        if brought.records {
            let seen = (brought.rendered as f64 / stored).clamp(EXPANSION.0, EXPANSION.1);
            let weight = match brought.more {
                _ if seen > self.expansion => 1.0,
                true => WEIGHTS.0,
                false => WEIGHTS.1,
            };
            self.expansion += (seen - self.expansion) * weight;
            self.ramp = self.ramp.saturating_mul(RAMP).min(FETCH_CALL_BYTES);
        }
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
            records: true,
            more,
            reads: Entries {
                asked: 1,
                starved: 0,
            },
            probes: Entries::default(),
        }
    }

    const ROOM: usize = 16 * MIB;

    /// Partitions and rendered bytes of a call while each of `partitions` has `unread` bytes in segments
    /// of `segment`, compressed to an eighth: what was asked for of each, in whole segments and one of
    /// them at least.
    fn call(
        sizing: &mut Sizing,
        partitions: usize,
        segment: usize,
        unread: usize,
    ) -> (usize, usize) {
        let room = sizing.aim(ROOM);
        let entries = sizing.entries(room, Kind::Reads).min(partitions);
        let bytes = sizing.read_bytes(room, entries) as usize;
        let each = ((bytes * 8 / segment).max(1) * segment).min(unread);
        let answer = brought(entries * each, each < unread);
        sizing.learn((entries * bytes) as f64, &answer);
        (entries, answer.rendered)
    }

    #[test]
    fn no_call_brings_much_more_than_it_aims_at_and_soon_none_much_less() {
        for segment in [300, 30_000, MIB, 16 * MIB] {
            for partitions in [1, 16, 1_000] {
                let mut sizing = Sizing::new();
                let calls: Vec<usize> = (0..100)
                    .map(|_| call(&mut sizing, partitions, segment, usize::MAX).1)
                    .collect();
                // Of the first call nothing is known but how few partitions it asks for.
                let first = (2 * FETCH_CALL_LEAST_BYTES).max(16 * segment);
                assert!(calls[0] <= first, "{segment} {partitions}: {}", calls[0]);
                let (least, most) = (ROOM / 2, 2 * ROOM.max(segment));
                let late = calls[60..].iter().all(|call| *call >= least);
                let none = calls[1..].iter().all(|call| *call <= most);
                assert!(late && none, "{segment} {partitions}: {calls:?}");
            }
        }
    }

    #[test]
    fn after_large_segments_many_small_ends_of_logs_are_asked_for_at_once_again() {
        let mut sizing = Sizing::new();
        for _ in 0..10 {
            call(&mut sizing, 10_000, MIB, usize::MAX);
        }
        let few = call(&mut sizing, 10_000, 300, 300).0;
        assert!(few <= 32, "{few}");
        let ended: Vec<usize> = (0..150)
            .map(|_| call(&mut sizing, 10_000, 300, 300).0)
            .collect();
        assert!(ended[149] > 9 * FETCH_ENTRIES / 10, "{ended:?}");
    }

    #[test]
    fn the_first_calls_are_made_one_at_a_time_and_each_may_bring_more() {
        let mut sizing = Sizing::new();
        let mut entries = Vec::new();
        while !sizing.is_known(ROOM) {
            entries.push(call(&mut sizing, 10_000, 300, 300).0);
        }
        assert_eq!(entries, [16, 64, 256]);
        assert_eq!(call(&mut sizing, 10_000, 300, 300).0, FETCH_ENTRIES);
    }

    #[test]
    fn an_answer_without_records_teaches_nothing() {
        let mut sizing = Sizing::new();
        let before = sizing.clone();
        let barren = Brought {
            records: false,
            ..brought(400, true)
        };
        sizing.learn(4_096.0, &barren);
        assert_eq!(sizing, before);
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
