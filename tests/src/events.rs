//! Events to push.

use std::sync::Arc;

use queen_dev::Event;

/// `count` events over `partitions` partitions of `queue`. `round` tells calls apart: no two
/// events of different rounds share a transaction id. The payloads hold what a reader or a codec
/// that parses and renders again would change.
pub fn events(queue: &str, round: usize, count: usize, partitions: usize) -> Vec<Event> {
    (0..count)
        .map(|number| {
            let payload = match number % 4 {
                0 => format!(r#"{{"n": {number},  "big":12345678901234567890123, "half":0.50}}"#),
                1 => format!(r#"{{"n":{number},"text":"tab\t\u00e9 é \\ \/ 💶","text":null}}"#),
                2 => format!(r#"[ {number}, 1e3, -0.0, true, [], {{}} ]"#),
                _ => format!(r#""just a string {number}""#),
            };
            Event {
                queue: queue.into(),
                partition: format!("p/{:03} é", number % partitions),
                transaction_id: format!("round-{round}-{number}"),
                payload: Arc::from(payload),
            }
        })
        .collect()
}

/// `count` events of one partition.
pub fn one_partition(queue: &str, round: usize, count: usize) -> Vec<Event> {
    events(queue, round, count, 1)
}
