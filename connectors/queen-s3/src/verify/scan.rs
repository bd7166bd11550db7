//! One object's records, checked as they come: order, bounds, and the runs of offsets they make.

use std::ops::Range;

use super::finding::{Finding, Findings, Kind};
use crate::decode::Seen;
use crate::lake::manifest::{Manifest, ManifestObject};
use crate::limits::VERIFY_OBJECT_FINDINGS;
use crate::time::Micros;

/// Consecutive records of one partition whose offsets have no gap and whose `ts` does not fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First offset.
    pub from: i64,
    /// Last offset.
    pub to: i64,
    /// `ts` of the first.
    pub first_ts: Micros,
    /// `ts` of the last.
    pub last_ts: Micros,
}

/// An object's runs in its order. A partition's name is stored once per stretch of its runs.
#[derive(Debug, Default)]
pub struct Runs {
    names: String,
    runs: Vec<(Range<usize>, Run)>,
}

impl Runs {
    fn push(&mut self, partition: &str, run: Run) {
        let name = match self.runs.last() {
            Some((name, _)) if self.names[name.clone()] == *partition => name.clone(),
            _ => {
                let start = self.names.len();
                self.names.push_str(partition);
                start..self.names.len()
            }
        };
        self.runs.push((name, run));
    }

    /// First and last offset.
    pub fn ends(&self) -> Option<(i64, i64)> {
        let ((_, first), (_, last)) = (self.runs.first()?, self.runs.last()?);
        Some((first.from, last.to))
    }

    /// The runs, each with its partition's raw name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Run)> {
        self.runs
            .iter()
            .map(|(name, run)| (&self.names[name.clone()], run))
    }
}

/// Checks one object's records as they are read.
pub struct Scan<'a> {
    manifest: &'a Manifest,
    object: &'a ManifestObject,
    partition: String,
    run: Option<Run>,
    found: Scanned,
}

/// What an object's records are.
#[derive(Debug)]
pub struct Scanned {
    /// How many.
    pub records: u64,
    /// Of how many partitions, when they are sorted.
    pub partitions: u64,
    /// Least `ts`.
    pub min_ts: Option<Micros>,
    /// Greatest `ts`.
    pub max_ts: Option<Micros>,
    /// Their offsets.
    pub runs: Runs,
    /// What is wrong with them.
    pub findings: Findings,
}

impl<'a> Scan<'a> {
    /// Nothing read yet of `object`, which `manifest` names.
    pub fn new(manifest: &'a Manifest, object: &'a ManifestObject) -> Self {
        Self {
            manifest,
            object,
            partition: String::new(),
            run: None,
            found: Scanned {
                records: 0,
                partitions: 0,
                min_ts: None,
                max_ts: None,
                runs: Runs::default(),
                findings: Findings::at_most(VERIFY_OBJECT_FINDINGS),
            },
        }
    }

    /// Takes the next record.
    pub fn see(&mut self, seen: Seen<'_>) {
        let Seen {
            partition,
            offset,
            ts,
        } = seen;
        self.found.records += 1;
        self.found.min_ts = Some(self.found.min_ts.map_or(ts, |least| least.min(ts)));
        self.found.max_ts = Some(self.found.max_ts.map_or(ts, |greatest| greatest.max(ts)));
        if self.run.is_none() || partition != self.partition {
            self.enter(partition, offset);
        }
        self.check_bounds(seen);
        let run = match self.run {
            Some(run) if run.to.checked_add(1) == Some(offset) && ts >= run.last_ts => Run {
                to: offset,
                last_ts: ts,
                ..run
            },
            _ => {
                self.end_run();
                Run {
                    from: offset,
                    to: offset,
                    first_ts: ts,
                    last_ts: ts,
                }
            }
        };
        self.run = Some(run);
    }

    /// What the records were, as far as they were read.
    pub fn finish(mut self) -> Scanned {
        self.end_run();
        self.found
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.found.runs.push(&self.partition, run);
        }
    }

    fn enter(&mut self, partition: &str, offset: i64) {
        let first = self.run.is_none();
        self.end_run();
        if !first && partition.as_bytes() < self.partition.as_bytes() {
            let text = format!(
                "the partition comes after {:?} and belongs before it",
                self.partition
            );
            self.find(Kind::Order, text, partition, offset);
        }
        if let Some(named) = &self.object.partition
            && named != partition
        {
            let text = format!("the object is that of partition {named:?}");
            self.find(Kind::BadManifest, text, partition, offset);
        }
        self.found.partitions += 1;
        partition.clone_into(&mut self.partition);
    }

    fn check_bounds(&mut self, seen: Seen<'_>) {
        let Manifest {
            t_start,
            t_end,
            late,
            ..
        } = self.manifest;
        let ts = seen.ts;
        let inside = (*t_start..*t_end).contains(&ts.0);
        let is_late = || {
            ts.0 < *t_start
                && late
                    .iter()
                    .any(|range| range.holds(seen.partition, seen.offset))
        };
        if !inside && !is_late() {
            let text = format!(
                "its ts {ts} is outside the window [{}, {})",
                Micros(*t_start),
                Micros(*t_end)
            );
            self.find(Kind::Outside, text, seen.partition, seen.offset);
        }
    }

    fn find(&mut self, kind: Kind, text: String, partition: &str, offset: i64) {
        let finding = Finding::new(kind, text)
            .of(self.manifest.k, &self.object.key)
            .at(partition, offset);
        self.found.findings.push(finding);
    }
}
