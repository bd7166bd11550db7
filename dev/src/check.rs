//! Compares what was pushed with what the lake holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};

use crate::client::Pushed;
use crate::lake::LakeRecord;
use crate::limits::NAMED_RECORDS;

/// What one queue's lake must hold: the payload of every partition and offset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    records: BTreeMap<(Arc<str>, i64), Arc<str>>,
}

impl Ledger {
    /// The ledger of the pushed events of `queue`.
    pub fn of<'a>(pushed: impl IntoIterator<Item = &'a Pushed>, queue: &str) -> Result<Self> {
        let mut ledger = Self::default();
        for one in pushed.into_iter().filter(|one| one.event.queue == queue) {
            ledger.insert(
                &one.event.partition,
                one.offset,
                Arc::clone(&one.event.payload),
            )?;
        }
        Ok(ledger)
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// When the log has two records at one offset.
    pub fn insert(&mut self, partition: &str, offset: i64, payload: Arc<str>) -> Result<()> {
        let former = self.records.insert((partition.into(), offset), payload);
        ensure!(
            former.is_none(),
            "the log holds two records at {partition}@{offset}"
        );
        Ok(())
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Partition, offset and payload of every record, in that order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64, &str)> {
        let records = self.records.iter();
        records.map(|((partition, offset), payload)| (&**partition, *offset, &**payload))
    }

    /// The payload at `offset` of `partition`.
    pub fn get(&self, partition: &str, offset: i64) -> Option<&str> {
        let payload = self.records.get(&(partition.into(), offset));
        payload.map(|payload| &**payload)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// How a lake differs from the log. Displayed, it names the first records of each kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// In the log and not in the lake.
    pub missing: Vec<String>,
    /// In the lake more than once.
    pub repeated: Vec<String>,
    /// In the lake and not in the log.
    pub unknown: Vec<String>,
    /// In both with different payload bytes.
    pub changed: Vec<String>,
}

impl Verdict {
    /// Whether the lake holds exactly the log.
    pub fn is_exact(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() {
            return write!(out, "every record is in the lake exactly once");
        }
        let kinds = [
            ("missing from the lake", &self.missing),
            ("more than once in the lake", &self.repeated),
            ("in the lake but never pushed", &self.unknown),
            ("in the lake with another payload", &self.changed),
        ];
        for (kind, records) in kinds.into_iter().filter(|(_, records)| !records.is_empty()) {
            let named = records
                .iter()
                .take(NAMED_RECORDS)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ");
            let rest = records.len().saturating_sub(NAMED_RECORDS);
            let more = if rest > 0 {
                format!(" and {rest} more")
            } else {
                String::new()
            };
            writeln!(out, "{} {kind}: {named}{more}", records.len())?;
        }
        Ok(())
    }
}

/// Compares the log of a queue with its records in the lake.
pub fn check(log: &Ledger, lake: &[LakeRecord]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut seen = BTreeSet::new();
    for record in lake {
        let place = (Arc::from(record.partition.as_str()), record.offset);
        let name = || format!("{}@{} ({})", record.partition, record.offset, record.key);
        match log.records.get(&place) {
            None => verdict.unknown.push(name()),
            Some(payload) if **payload != *record.payload.get() => verdict.changed.push(name()),
            Some(_) => {}
        }
        if !seen.insert(place) {
            verdict.repeated.push(name());
        }
    }
    let missing = log.records.keys().filter(|place| !seen.contains(*place));
    verdict.missing = missing
        .map(|(partition, offset)| format!("{partition}@{offset}"))
        .collect();
    verdict
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;

    use super::{Ledger, Verdict, check};
    use crate::lake::LakeRecord;

    fn record(offset: i64, payload: &str) -> LakeRecord {
        LakeRecord {
            partition: "p".into(),
            offset,
            transaction_id: "t".into(),
            ts: "2026-01-01T00:00:00.000000Z".into(),
            payload: RawValue::from_string(payload.into()).expect("the test's own JSON"),
            key: "w".into(),
        }
    }

    fn log(payloads: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for (offset, payload) in (0..).zip(payloads) {
            ledger
                .insert("p", offset, Arc::from(*payload))
                .expect("each offset is new");
        }
        ledger
    }

    #[test]
    fn a_lake_with_every_record_once_is_exact_in_any_order() {
        assert!(check(&log(&["1", "2"]), &[record(1, "2"), record(0, "1")]).is_exact());
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let lake = [
            record(1, "2"),
            record(1, "2"),
            record(2, "3.0"),
            record(7, "8"),
        ];
        let expected = Verdict {
            missing: vec!["p@0".into()],
            repeated: vec!["p@1 (w)".into()],
            unknown: vec!["p@7 (w)".into()],
            changed: vec!["p@2 (w)".into()],
        };
        assert_eq!(check(&log(&["1", "2", "3"]), &lake), expected);
    }
}
