//! What a window's manifest names beside its objects: offsets that were deleted before they were
//! read, and records that came late.

use std::collections::HashMap;

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
        for (field, ranges) in [(LOST, &self.lost), (LATE, &self.late)] {
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
    // By partition: there may be as many ranges as partitions.
    let mut cuts: HashMap<&str, Vec<&OffsetRange>> = HashMap::new();
    for cut in taken {
        cuts.entry(&cut.partition).or_default().push(cut);
    }
    ranges
        .into_iter()
        .flat_map(|range| {
            let cuts = cuts
                .get(range.partition.as_str())
                .cloned()
                .unwrap_or_default();
            cuts.into_iter().fold(vec![range], |left, cut| {
                let without = |range| without(range, cut);
                left.into_iter().flat_map(without).collect()
            })
        })
        .collect()
}

fn without(range: OffsetRange, cut: &OffsetRange) -> Vec<OffsetRange> {
    if cut.to < cut.from || cut.to < range.from || range.to < cut.from {
        return vec![range];
    }
    let below = (range.from < cut.from).then(|| OffsetRange {
        to: cut.from - 1,
        ..range.clone()
    });
    let above = (cut.to < range.to).then(|| OffsetRange {
        from: cut.to + 1,
        ..range
    });
    [below, above].into_iter().flatten().collect()
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
