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
    /// The gaps that `intent` carries, so that whoever redoes its window can name them.
    pub fn of(intent: &Intent) -> Self {
        let read = |field: &str| {
            let value = intent.other.get(field).cloned();
            value
                .and_then(|value| serde_json::from_value(value).ok())
                .unwrap_or_default()
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
    ranges
        .iter()
        .map(|range| range.to.abs_diff(range.from) + 1)
        .sum()
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
    if cut.to < range.from || range.to < cut.from {
        return vec![range];
    }
    let below = OffsetRange {
        to: cut.from - 1,
        ..range.clone()
    };
    let above = OffsetRange {
        from: cut.to + 1,
        ..range
    };
    [below, above]
        .into_iter()
        .filter(|range| range.from <= range.to)
        .collect()
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
}
