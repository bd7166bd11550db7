//! How many record bytes are buffered, and at which instants: what a window would hold.

use std::collections::BTreeMap;

use super::partition::Run;
use crate::encode::record_bytes;
use crate::time::Micros;

/// Record bytes (JSONL line lengths) by the instant that puts them into a window.
#[derive(Debug, Default)]
pub(super) struct BufferedSizes {
    at: BTreeMap<Micros, u64>,
    total: u64,
}

impl BufferedSizes {
    /// All bytes that are buffered.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The earliest instant that has records.
    pub(super) fn first(&self) -> Option<Micros> {
        self.at.first_key_value().map(|(at, _)| *at)
    }

    /// The instants that have records, and their bytes, from the earliest one on.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Micros, u64)> {
        self.at.iter().map(|(at, bytes)| (*at, *bytes))
    }

    /// Counts a run of the partition `name` in. No record of it is below `cut`, and none counts below
    /// the run's floor.
    pub(super) fn add(&mut self, name: &str, run: &Run, cut: Micros) {
        for (at, bytes) in instants(name, run, cut) {
            *self.at.entry(at).or_default() += bytes;
            self.total += bytes;
        }
    }

    /// Counts a run out that was counted in.
    pub(super) fn remove(&mut self, name: &str, run: &Run, cut: Micros) {
        for (at, bytes) in instants(name, run, cut) {
            self.total = self.total.saturating_sub(bytes);
            if let Some(counted) = self.at.get_mut(&at) {
                *counted = counted.saturating_sub(bytes);
                if *counted == 0 {
                    self.at.remove(&at);
                }
            }
        }
    }

    /// Counts everything below `end` out: its bytes.
    pub(super) fn take_below(&mut self, end: Micros) -> u64 {
        let above = self.at.split_off(&end);
        let taken = std::mem::replace(&mut self.at, above).values().sum();
        self.total -= taken;
        taken
    }
}

/// The bytes of `run` by the instant at which they count.
fn instants(name: &str, run: &Run, cut: Micros) -> impl Iterator<Item = (Micros, u64)> {
    let floor = run.floor.max(cut);
    let instants = run.chunk.instants();
    instants.map(move |(ts, chunk)| (ts.max(floor), record_bytes(name, &chunk)))
}
