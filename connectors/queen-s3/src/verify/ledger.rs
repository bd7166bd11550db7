//! Offsets across windows: per partition the last one seen, and what that leaves unaccounted for.

use std::collections::HashMap;
use std::sync::Arc;

use super::finding::{Finding, Findings, Kind};
use super::scan::Run;
use crate::limits::VERIFY_FINDINGS;
use crate::time::Micros;

/// What is known of one partition. Kept small: there may be millions.
#[derive(Debug)]
struct Seen {
    /// First offset of the present life in the lake.
    first: i64,
    /// Last offset.
    last: i64,
    last_ts: Micros,
    /// [`Ledger::epoch`] when the last record was seen.
    epoch: u32,
}

/// Offsets that nothing accounts for yet.
#[derive(Debug)]
struct Gap {
    partition: Box<str>,
    from: i64,
    to: i64,
    k: u64,
    key: Arc<str>,
}

/// Where a run was read.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The window.
    pub k: u64,
    /// The object.
    pub key: Arc<str>,
}

/// Follows every partition's offsets through the windows, in their order.
#[derive(Debug, Default)]
pub struct Ledger {
    partitions: HashMap<Box<str>, Seen>,
    lost: HashMap<Box<str>, Vec<(i64, i64)>>,
    gaps: Vec<Gap>,
    /// Rises where a stretch of the lake could not be read: a gap across it proves nothing.
    epoch: u32,
}

/// No epoch: a partition with it may go on at any offset.
const IN_DOUBT: u32 = u32::MAX;

impl Ledger {
    /// Partitions seen.
    pub fn partitions(&self) -> u64 {
        self.partitions.len() as u64
    }

    /// A stretch of the lake cannot be read, and records of any partition may lie in it.
    pub fn doubt_all(&mut self) {
        self.epoch += 1;
    }

    /// A stretch of the lake that holds records of `partition` only cannot be read.
    pub fn doubt(&mut self, partition: &str) {
        if let Some(seen) = self.partitions.get_mut(partition) {
            seen.epoch = IN_DOUBT;
        }
    }

    /// Offsets `from` to `to`, both inclusive, are known to be lost.
    pub fn lose(&mut self, partition: &str, from: i64, to: i64) {
        let ranges = self.lost.entry(partition.into()).or_default();
        ranges.push((from, to));
        ranges.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
        for (from, to) in ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        *ranges = merged;
    }

    /// Takes the next run of a partition. Within a life offsets ascend and `ts` may fall: a log is
    /// kept in its own order where the broker broke its promise.
    pub fn take(&mut self, origin: &Origin, partition: &str, run: &Run) -> Option<Finding> {
        let epoch = self.epoch;
        let Some(seen) = self.partitions.get_mut(partition) else {
            // A lake can begin anywhere in a partition's log, and a partition long after the lake.
            let seen = Seen {
                first: run.from,
                last: run.to,
                last_ts: run.last_ts,
                epoch,
            };
            self.partitions.insert(partition.into(), seen);
            return None;
        };
        let lost = self.lost.get(partition).map_or(&[][..], Vec::as_slice);
        let sure = seen.epoch == epoch;
        let later = run.first_ts > seen.last_ts;
        let former = (seen.last, seen.last_ts);
        let next = former.0.saturating_add(1);
        if run.from <= former.0 && !later {
            return self.repeated(origin, partition, run);
        }
        // A new life has later records, from offset 0 on or what is left of it.
        let reborn = later && run.from <= former.0
            || later
                && run.from > next
                && !covers(lost, next, run.from - 1)
                && covers(lost, 0, run.from - 1);
        *seen = Seen {
            first: if reborn { run.from } else { seen.first },
            last: run.to,
            last_ts: run.last_ts.max(former.1),
            epoch,
        };
        if reborn {
            if run.from > 0 && sure && !covers(lost, 0, run.from - 1) {
                self.gap(origin, partition, 0, run.from - 1);
            }
            return None;
        }
        if run.from > next && sure && !covers(lost, next, run.from - 1) {
            self.gap(origin, partition, next, run.from - 1);
        }
        None
    }

    /// A run at offsets that were passed already, and no later: out of order, or there twice.
    fn repeated(&mut self, origin: &Origin, partition: &str, run: &Run) -> Option<Finding> {
        let filled = self.fill(partition, run);
        let seen = self.partitions.get_mut(partition)?;
        let before = run.to < seen.first;
        seen.first = seen.first.min(run.from);
        seen.last_ts = seen.last_ts.max(run.last_ts);
        let last = seen.last;
        seen.last = last.max(run.to);
        let (kind, text) = if filled || before {
            (
                Kind::Order,
                format!("offset {} comes after offset {last}", run.from),
            )
        } else {
            let through = match run.to.min(last) {
                end if end > run.from => format!(" to {end}"),
                _ => String::new(),
            };
            (
                Kind::Duplicate,
                format!(
                    "offset {}{through} is in the lake already (ts here {})",
                    run.from, run.first_ts
                ),
            )
        };
        Some(
            Finding::new(kind, text)
                .of(origin.k, &origin.key)
                .at(partition, run.from),
        )
    }

    fn gap(&mut self, origin: &Origin, partition: &str, from: i64, to: i64) {
        self.gaps.push(Gap {
            partition: partition.into(),
            from,
            to,
            k: origin.k,
            key: Arc::clone(&origin.key),
        });
    }

    /// Takes the offsets of `run` out of the open gaps. Answers whether there were any.
    fn fill(&mut self, partition: &str, run: &Run) -> bool {
        let mut rest = Vec::new();
        let mut filled = false;
        self.gaps.retain_mut(|gap| {
            if *gap.partition != *partition || run.to < gap.from || run.from > gap.to {
                return true;
            }
            filled = true;
            if run.to < gap.to {
                rest.push(Gap {
                    partition: gap.partition.clone(),
                    from: run.to + 1,
                    to: gap.to,
                    k: gap.k,
                    key: Arc::clone(&gap.key),
                });
            }
            gap.to = run.from.saturating_sub(1);
            gap.from <= gap.to
        });
        self.gaps.extend(rest);
        filled
    }

    /// Reports the oldest open gaps when too many are open to remember them all.
    pub fn overflow(&mut self, findings: &mut Findings) {
        if self.gaps.len() > VERIFY_FINDINGS {
            self.report(findings);
        }
    }

    /// Reports the gaps that no `lost` range of any window explains.
    pub fn report(&mut self, findings: &mut Findings) {
        for gap in std::mem::take(&mut self.gaps) {
            let Gap {
                partition,
                from,
                to,
                k,
                key,
            } = gap;
            let lost = self.lost.get(&partition).map_or(&[][..], Vec::as_slice);
            if covers(lost, from, to) {
                continue;
            }
            let text = format!(
                "offsets {from} to {to} come before the records here, and are neither in the lake \
                 nor in a lost range"
            );
            findings.push(
                Finding::new(Kind::Gap, text)
                    .of(k, &key)
                    .at(&partition, from),
            );
        }
    }
}

/// Whether one of the merged `ranges` holds all of `from` to `to`.
fn covers(ranges: &[(i64, i64)], from: i64, to: i64) -> bool {
    ranges
        .iter()
        .any(|(first, last)| *first <= from && to <= *last)
}
