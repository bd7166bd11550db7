//! What a window's manifest names beside its objects: offsets that were deleted before they were
//! read, and records that came late.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::lake::documents::Intent;
use crate::lake::manifest::OffsetRange;
use crate::limits::INTENT_GAPS_BYTES;

const LOST: &str = "lost";
const LATE: &str = "late";

/// Offsets that a manifest names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Deleted before they were read.
    pub lost: Vec<OffsetRange>,
    /// In the window although their `ts` is below its start.
    pub late: Vec<OffsetRange>,
}

impl Gaps {
    /// The gaps that `intent` carries, so that whoever redoes its window can name them. Ranges of
    /// offsets that no log has are passed over.
    pub fn of(intent: &Intent) -> Self {
        let read = |field: &str| {
            let value = intent.other.get(field).cloned();
            let mut ranges: Vec<OffsetRange> = value
                .and_then(|value| serde_json::from_value(value).ok())
                .unwrap_or_default();
            ranges.retain(|range| 0 <= range.from && range.from <= range.to);
            ranges
        };
        Self {
            lost: read(LOST),
            late: read(LATE),
        }
    }

    /// Writes the gaps into `intent`, as far as a key/value document has room for them; `false`
    /// when it has not.
    pub fn write(&self, intent: &mut Intent) -> bool {
        let mut room = INTENT_GAPS_BYTES;
        let mut whole = true;
        // A lost range that is left out may be found missing again, a late record is passed over.
        for (field, ranges) in [(LATE, &self.late), (LOST, &self.lost)] {
            let mut kept = Vec::new();
            for range in ranges {
                let Ok(value) = serde_json::to_value(range) else {
                    continue;
                };
                let length = value.to_string().len() + 1;
                if length > room {
                    whole = false;
                    break;
                }
                room -= length;
                kept.push(value);
            }
            if !kept.is_empty() {
                intent.other.insert(field.to_owned(), Value::Array(kept));
            }
        }
        whole
    }
}

/// Offsets in all of `ranges`.
pub fn count(ranges: &[OffsetRange]) -> u64 {
    let counts = ranges.iter().map(OffsetRange::count);
    counts.fold(0, u64::saturating_add)
}

/// `ranges` without what `taken` covers.
pub fn subtract(ranges: Vec<OffsetRange>, taken: &[OffsetRange]) -> Vec<OffsetRange> {
    let mut cover = Cover::default();
    taken.iter().for_each(|range| cover.add(range));
    let without = |range| cover.without(range);
    ranges.into_iter().flat_map(without).collect()
}

/// Offsets by partition. There may be as many ranges as partitions, or as many of one.
#[derive(Clone, Debug, Default)]
pub struct Cover {
    /// Last offsets by first ones; none overlaps another.
    ranges: HashMap<String, BTreeMap<i64, i64>>,
}

impl Cover {
    /// Adds the offsets of `range`.
    pub fn add(&mut self, range: &OffsetRange) {
        if range.to < range.from {
            return;
        }
        let (mut from, mut to) = (range.from, range.to);
        let held = match self.ranges.get_mut(&range.partition) {
            Some(held) => held,
            None => self.ranges.entry(range.partition.clone()).or_default(),
        };
        while let Some((&first, &last)) = held.range(..=to).next_back()
            && last >= from
        {
            held.remove(&first);
            (from, to) = (from.min(first), to.max(last));
        }
        held.insert(from, to);
    }

    /// Takes out all offsets of `partition`.
    pub fn forget(&mut self, partition: &str) {
        self.ranges.remove(partition);
    }

    /// `range` without what is covered.
    pub fn without(&self, range: OffsetRange) -> Vec<OffsetRange> {
        let Some(held) = self.ranges.get(&range.partition) else {
            return vec![range];
        };
        if range.to < range.from {
            return vec![range];
        }
        let before = held.range(..range.from).next_back();
        let first = before.map_or(range.from, |(first, _)| *first);
        let end = range.to;
        let mut left = Vec::new();
        let mut rest = Some(range);
        for (&first, &last) in held.range(first..=end) {
            let Some(range) = rest.take() else {
                break;
            };
            if last < range.from {
                rest = Some(range);
                continue;
            }
            if range.from < first {
                let to = first - 1;
                left.push(OffsetRange {
                    to,
                    ..range.clone()
                });
            }
            if last < range.to {
                let from = last + 1;
                rest = Some(OffsetRange { from, ..range });
            }
        }
        left.extend(rest);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(partition: &str, from: i64, to: i64) -> OffsetRange {
        OffsetRange {
            partition: partition.into(),
            from,
            to,
        }
    }

    #[test]
    fn what_is_taken_leaves_what_is_around_it() {
        let all = vec![range("a", 0, 9), range("b", 0, 9)];
        let left = subtract(
            all,
            &[range("a", 3, 4), range("a", 8, 20), range("c", 0, 9)],
        );
        assert_eq!(left, [range("a", 0, 2), range("a", 5, 7), range("b", 0, 9)]);
        assert_eq!(count(&left), 3 + 3 + 10);
        assert_eq!(subtract(left, &[range("b", 0, 9), range("a", -1, 7)]), []);
    }

    #[test]
    fn ranges_that_no_log_can_have_take_nothing_and_overflow_nothing() {
        let (all, ends) = (range("a", i64::MIN, i64::MAX), range("a", 0, i64::MAX));
        assert_eq!(count(&[all.clone(), all.clone()]), u64::MAX);
        assert_eq!(count(&[range("a", 9, 3)]), 0);
        let left = subtract(
            vec![ends.clone()],
            &[range("a", i64::MIN, 4), range("a", 9, 3)],
        );
        assert_eq!(left, [range("a", 5, i64::MAX)]);
        assert_eq!(subtract(vec![ends], &[all]), []);
    }

    #[test]
    fn many_ranges_are_taken_from_many_in_one_go() {
        // Pair by pair it would take a quarter of an hour.
        const MANY: i64 = 200_000;
        for name in ["one", "each"] {
            let partition = |n: i64| match name {
                "one" => name.to_owned(),
                _ => n.to_string(),
            };
            let cuts: Vec<_> = (0..MANY)
                .map(|n| range(&partition(n), 10 * n + 2, 10 * n + 3))
                .collect();
            let all = (0..MANY).map(|n| range(&partition(n), 10 * n, 10 * n + 9));
            let left = subtract(all.collect(), &cuts);
            assert_eq!(
                (left.len() as i64, count(&left) as i64),
                (2 * MANY, 8 * MANY)
            );
        }
    }

    #[test]
    fn what_is_covered_is_each_offset_once() {
        let mut cover = Cover::default();
        for (from, to) in [(5, 6), (0, 1), (9, 9), (1, 5), (20, 19)] {
            cover.add(&range("a", from, to));
        }
        let ranges: Vec<_> = cover.ranges["a"].clone().into_iter().collect();
        assert_eq!(ranges, [(0, 6), (9, 9)]);
        let left = [range("a", -2, -1), range("a", 7, 8), range("a", 10, 30)];
        assert_eq!(cover.without(range("a", -2, 30)), left);
        cover.forget("a");
        assert_eq!(cover.without(range("a", 0, 9)), [range("a", 0, 9)]);
    }

    #[test]
    fn an_intent_has_room_for_what_is_late_before_what_is_lost() {
        let mut intent: Intent = serde_json::from_value(serde_json::json!({
            "k": 1, "tStart": 0, "tEnd": 9, "format": "jsonl", "compression": "zstd",
            "layout": "merged"}))
        .expect("it reads");
        let gaps = Gaps {
            lost: vec![range("a", 0, 4); 2_000],
            late: vec![range("b", 3, 5)],
        };
        assert!(!gaps.write(&mut intent));
        let carried = Gaps::of(&intent);
        assert_eq!(carried.late, gaps.late);
        assert!((500..1_500).contains(&carried.lost.len()));
    }

    #[test]
    fn of_an_intent_only_ranges_that_a_log_can_have_are_taken() {
        let intent: Intent = serde_json::from_value(serde_json::json!({
            "k": 1, "tStart": 0, "tEnd": 9, "format": "jsonl", "compression": "zstd",
            "layout": "merged", "late": "none", "lost": [
                {"partition": "a", "from": 0, "to": 4}, {"partition": "a", "from": -1, "to": 4},
                {"partition": "a", "from": 4, "to": 3}],
        }))
        .expect("it reads");
        assert_eq!(Gaps::of(&intent).lost, [range("a", 0, 4)]);
        assert_eq!(Gaps::of(&intent).late, []);
    }
}
