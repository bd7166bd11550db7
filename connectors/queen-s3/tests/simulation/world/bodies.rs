//! Payloads, names, and the bytes of fetch answers.

use std::fmt::Write as _;

use queen_s3::broker::{FetchRequest, Name};
use queen_s3::time::Micros;

use super::dice::Dice;
use super::log::{Log, NewRecord};

/// Padding from which on payloads are mostly long, bytes.
const LONG: usize = 1_000;

/// Names of partitions: plain ones and such as keys must escape.
pub fn partition_name(number: i64) -> Name {
    match number {
        1 => Name::from("Default"),
        2 => Name::from("..."),
        3 => Name::from("kunde/42 \"ü\"\n"),
        4 => Name::from("\u{1f980}"),
        _ => Name::from(format!("p-{number}")),
    }
}

/// A record with a payload that is easy to spoil; long ones are padded with `pad` bytes.
pub fn record(dice: &mut Dice, number: u64, pad: usize) -> NewRecord {
    let kinds = if pad > LONG { 4..=6 } else { 0..=9 };
    let payload = match dice.between(*kinds.start(), *kinds.end()) {
        0 => "null".to_owned(),
        1 => format!("{{\"n\":{number},\"big\":12345678901234567890.12345678901234567890}}"),
        2 => format!("{{\r\n  \"n\": {number},\n  \"list\": [1, 2 ,3]\n}}"),
        3 => format!("\"text \\u00e9 \\\"{number}\\\" é\""),
        4 => number.to_string(),
        5 => format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(pad)),
        _ => format!("{{\"n\":{number}}}"),
    };
    let transaction_id = match dice.between(0, 5) {
        0 => "same".to_owned(),
        1 => format!("t\"\\{number}\n"),
        _ => format!("t-{number}"),
    };
    NewRecord {
        transaction_id,
        payload,
    }
}

/// What a fetch may answer at most.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// Records per entry.
    pub entry_records: usize,
    /// Records per call.
    pub call_records: usize,
    /// Whether to answer unknown fields as well.
    pub extra: bool,
}

/// The body of the answer to `request`, and whether it holds a record or an error, which is what ends a long poll.
pub fn fetch_body(log: &Log, request: &FetchRequest, limits: FetchLimits) -> (String, bool) {
    let mut body = String::from(if limits.extra {
        "{\"took\":1,\"entries\":["
    } else {
        "{\"entries\":["
    });
    let mut budget = limits.call_records;
    let mut first_of_call = true;
    let mut settled = false;
    for (index, entry) in request.entries.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let _ = write!(
            body,
            "{{\"queue\":{},\"partition\":{},\"records\":[",
            quote(&request.queue),
            quote(&entry.partition)
        );
        let Some(queue) = log.living(&request.queue) else {
            body.push_str(
                "],\"highWatermark\":0,\"logStartOffset\":0,\"error\":\"UNKNOWN_TOPIC_OR_PARTITION\"}",
            );
            settled = true;
            continue;
        };
        let partition = queue.partitions.get(&entry.partition);
        let (start, end) = partition.map_or((0, 0), |found| (found.log_start, found.next));
        let inside = (start..=end).contains(&entry.offset);
        if let Some(partition) = partition.filter(|_| inside) {
            let mut left = limits.entry_records;
            let mut stored = 0;
            let mut separator = "";
            let from = partition
                .segments
                .partition_point(|segment| segment.end() <= entry.offset);
            'segments: for segment in partition.segments.range(from..) {
                let skipped = usize::try_from(entry.offset - segment.first).unwrap_or(0);
                let records = (segment.first..).zip(&segment.records);
                for (offset, record) in records.skip(skipped) {
                    let spent = left == 0
                        || budget == 0
                        || stored + segment.stored > entry.max_bytes as usize;
                    if spent && !first_of_call {
                        break 'segments;
                    }
                    let _ = write!(
                        body,
                        "{separator}{{\"offset\":{offset},\"transactionId\":{},\"payload\":{},\"ts\":\"{}\"}}",
                        quote(&record.transaction_id),
                        record.payload,
                        Micros(segment.ts)
                    );
                    separator = ",";
                    first_of_call = false;
                    settled = true;
                    left = left.saturating_sub(1);
                    budget = budget.saturating_sub(1);
                }
                stored += segment.stored;
            }
        }
        let _ = write!(body, "],\"highWatermark\":{end},\"logStartOffset\":{start}");
        if !inside {
            body.push_str(",\"error\":\"OFFSET_OUT_OF_RANGE\"");
            settled = true;
        }
        body.push('}');
    }
    body.push_str("]}");
    (body, settled)
}
