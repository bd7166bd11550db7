//! How far back a queue keeps its segments: its own retention, and the hold of a sink.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::ApiError;
use crate::limits::SINK_HOLD_SLACK_SECONDS;
use crate::session::Session;
use crate::timestamp::Timestamp;

/// The namespace of the sink's documents.
const NAMESPACE: &str = "queen-s3";
/// Longest encoded name in the sink's keys, in bytes.
const ENCODED_NAME_BYTES: usize = 255;
/// What is kept of a longer one, in front of its hash.
const HASHED_NAME_HEAD_BYTES: usize = 180;

/// What the options of a queue say about retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Segments older than this many seconds go, whoever has read them.
    seconds: Option<i64>,
    /// Segments that every group has settled go once they are older than this many seconds.
    completed_seconds: Option<i64>,
    /// Segments older than this many seconds are not worth delivering any more, and go whoever holds them.
    max_wait_seconds: Option<i64>,
    /// The sink that has to keep up, with the ceiling of its hold in seconds.
    hold: Option<(String, i64)>,
}

/// What may go of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutoffs {
    /// Segments with a `ts` below this.
    pub all: Option<Timestamp>,
    /// Segments with a `ts` below this that every group has settled.
    pub completed: Option<Timestamp>,
}

impl Policy {
    /// The policy of a queue with these options, all of which are there; `None` when it keeps everything.
    pub fn of(options: &Map<String, Value>) -> Option<Self> {
        let number = |name: &str| options.get(name).and_then(Value::as_i64).unwrap_or(0);
        let age = |name: &str| Some(number(name)).filter(|seconds| *seconds > 0);
        let enabled = options.get("retentionEnabled") == Some(&Value::Bool(true));
        let seconds = age("retentionSeconds").filter(|_| enabled);
        let completed_seconds = age("completedRetentionSeconds").filter(|_| enabled);
        let max_wait_seconds = age("maxWaitTimeSeconds");
        let retained = seconds.or(completed_seconds).is_some();
        if !retained && max_wait_seconds.is_none() {
            return None;
        }
        let sink = options.get("retentionSinkHold").and_then(Value::as_str);
        let hold = sink
            .filter(|sink| retained && !sink.is_empty())
            .map(|sink| (sink.to_owned(), number("retentionSinkHoldMaxSeconds")));
        Some(Self {
            seconds,
            completed_seconds,
            max_wait_seconds,
            hold,
        })
    }

    /// What may go. `committed` is the end of the sink's last window.
    fn cutoffs(&self, now: Timestamp, committed: Option<Timestamp>) -> Cutoffs {
        let held = self.hold.as_ref().map(|(_, ceiling)| {
            let capped = now.plus_seconds(-ceiling);
            committed.map_or(capped, |end| {
                end.plus_seconds(-SINK_HOLD_SLACK_SECONDS).max(capped)
            })
        });
        let own = |age: Option<i64>| age.map(|seconds| now.plus_seconds(-seconds));
        let below = |age| own(age).map(|own| held.map_or(own, |held| own.min(held)));
        Cutoffs {
            // The later one; an absent one is below all.
            all: below(self.seconds).max(own(self.max_wait_seconds)),
            completed: below(self.completed_seconds),
        }
    }

    /// The cutoffs of `queue` by the database's clock.
    ///
    /// # Errors
    ///
    /// The database's, when its clock cannot be read. A commit pointer that cannot be read is none:
    /// then the ceiling alone holds.
    pub async fn read_cutoffs(
        &self,
        client: &Session,
        tenant: Uuid,
        queue: &str,
    ) -> Result<Cutoffs, ApiError> {
        const CLOCK: &str = "SELECT clock_timestamp()";
        let statement = client.prepare_cached(CLOCK).await?;
        let now: Timestamp = client.query_one(&statement, &[]).await?.get(0);
        let Some((sink, _)) = &self.hold else {
            return Ok(self.cutoffs(now, None));
        };
        let committed = match pointer(client, tenant, sink, queue).await {
            Ok(value) => value.and_then(|value| committed_end(&value, now)),
            Err(error) => {
                tracing::warn!(queue, sink, %error, "the sink's commit pointer cannot be read");
                None
            }
        };
        Ok(self.cutoffs(now, committed))
    }
}

async fn pointer(
    client: &Session,
    tenant: Uuid,
    sink: &str,
    queue: &str,
) -> Result<Option<String>, ApiError> {
    const POINTER: &str = "
        SELECT value FROM queen.kv
        WHERE tenant = $1 AND ns = $2 AND key = $3
          AND (expires_at IS NULL OR expires_at > clock_timestamp())";
    let statement = client.prepare_cached(POINTER).await?;
    let key = committed_key(sink, queue);
    let row = client
        .query_opt(&statement, &[&tenant, &NAMESPACE, &key])
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// The end of the last committed window. The value is the tenant's to write, so what is no such
/// instant, or lies ahead of the clock, counts as none.
fn committed_end(value: &str, now: Timestamp) -> Option<Timestamp> {
    let document: Value = serde_json::from_str(value).ok()?;
    let micros = document.as_object()?.get("tEnd")?.as_i64()?;
    let end = Timestamp::from_micros(micros);
    (end.micros() == micros && micros >= 0 && end <= now).then_some(end)
}

/// The key of the commit pointer of `sink` for `queue`, both raw.
fn committed_key(sink: &str, queue: &str) -> String {
    format!("s3:{}:{}:committed", encode_name(sink), encode_name(queue))
}

/// A raw name as the sink's keys spell it: every byte outside `[A-Za-z0-9._-]` escaped, a long one
/// cut and hashed.
fn encode_name(raw: &str) -> String {
    if matches!(raw, "." | "..") {
        return raw.replace('.', "%2E");
    }
    let mut encoded = String::with_capacity(raw.len());
    for byte in raw.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() > ENCODED_NAME_BYTES {
        let head = &encoded[..HASHED_NAME_HEAD_BYTES];
        let cut = match head.rfind('%') {
            Some(escape) if escape + "%XX".len() > head.len() => escape,
            _ => head.len(),
        };
        encoded.truncate(cut);
        encoded.push('~');
        for byte in &Sha256::digest(raw)[..16] {
            encoded.push_str(&format!("{byte:02x}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(options: Value) -> Option<Policy> {
        Policy::of(options.as_object().expect("an object"))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn retention_runs_when_it_is_enabled_and_has_an_age() {
        assert_eq!(policy(json!({"retentionSeconds": 60})), None);
        assert_eq!(policy(json!({"retentionEnabled": true})), None);
        assert!(policy(json!({"retentionEnabled": true, "retentionSeconds": 60})).is_some());
    }

    #[test]
    fn a_hold_keeps_what_the_sink_has_not_committed_up_to_its_ceiling() {
        let held = policy(json!({
            "retentionEnabled": true, "retentionSeconds": 100,
            "retentionSinkHold": "lake", "retentionSinkHoldMaxSeconds": 1_000,
        }))
        .expect("a policy");
        let now = at(10_000);
        for (committed, cutoff) in [
            // The sink keeps up: the queue's own age decides.
            (Some(at(9_990)), 9_900),
            // A minute of slack below what is committed.
            (Some(at(9_500)), 9_440),
            // A sink that stopped holds no longer than the ceiling.
            (Some(at(5_000)), 9_000),
            (Some(at(0)), 9_000),
            (None, 9_000),
        ] {
            let cutoffs = held.cutoffs(now, committed);
            assert_eq!(cutoffs.all, Some(at(cutoff)), "{committed:?}");
        }
        let free = policy(json!({"retentionEnabled": true, "retentionSeconds": 100}));
        let cutoffs = free.expect("a policy").cutoffs(now, None);
        assert_eq!(cutoffs.all, Some(at(9_900)));
    }

    #[test]
    fn a_hold_holds_what_is_completed_as_it_holds_all_else() {
        let completed = policy(json!({
            "retentionEnabled": true, "completedRetentionSeconds": 50,
            "retentionSinkHold": "lake", "retentionSinkHoldMaxSeconds": 1_000,
        }))
        .expect("a policy");
        let now = at(10_000);
        for (committed, cutoff) in [
            (Some(at(9_999)), 9_939),
            (Some(at(9_500)), 9_440),
            (None, 9_000),
        ] {
            let cutoffs = completed.cutoffs(now, committed);
            assert_eq!((cutoffs.all, cutoffs.completed), (None, Some(at(cutoff))));
        }
    }

    #[test]
    fn what_waited_too_long_goes_whatever_is_held_and_without_retention() {
        let now = at(10_000);
        let alone = policy(json!({"maxWaitTimeSeconds": 300, "retentionSeconds": 100,
            "retentionSinkHold": "lake"}))
        .expect("a policy");
        let cutoffs = alone.cutoffs(now, None);
        assert_eq!((cutoffs.all, cutoffs.completed), (Some(at(9_700)), None));
        let held = policy(json!({"maxWaitTimeSeconds": 800, "retentionEnabled": true,
            "retentionSeconds": 100, "completedRetentionSeconds": 50,
            "retentionSinkHold": "lake", "retentionSinkHoldMaxSeconds": 1_000}))
        .expect("a policy");
        for (committed, all, completed) in [
            // The sink has less than what waited too long, or more.
            (None, 9_200, 9_000),
            (Some(at(9_500)), 9_440, 9_440),
            (Some(at(9_999)), 9_900, 9_939),
        ] {
            let cutoffs = held.cutoffs(now, committed);
            let expected = (Some(at(all)), Some(at(completed)));
            assert_eq!((cutoffs.all, cutoffs.completed), expected, "{committed:?}");
        }
        assert_eq!(policy(json!({"maxWaitTimeSeconds": 0})), None);
    }

    #[test]
    fn only_a_past_instant_in_microseconds_is_a_commit() {
        let now = at(2_000);
        assert_eq!(
            committed_end(r#"{"k":1,"tEnd":1500000000,"more":[1]}"#, now),
            Some(at(1_500))
        );
        let deep = format!("{}{}", "[".repeat(60_000), "]".repeat(60_000));
        for hostile in [
            "",
            "null",
            "7",
            "[]",
            "{}",
            r#"{"tEnd":null}"#,
            r#"{"tEnd":"1500000000"}"#,
            r#"{"tEnd":1.5e9}"#,
            r#"{"tEnd":-1}"#,
            r#"{"tEnd":2000000001}"#,
            r#"{"tEnd":9223372036854775807}"#,
            r#"{"tEnd":1e999}"#,
            r#"{"tEnd":{"tEnd":1}}"#,
            &deep,
        ] {
            assert_eq!(committed_end(hostile, now), None, "{hostile:.60}");
        }
    }

    #[test]
    fn keys_are_spelled_as_the_sink_spells_them() {
        assert_eq!(
            committed_key("lake.1", "a/b ü~"),
            "s3:lake.1:a%2Fb%20%C3%BC%7E:committed"
        );
        assert_eq!(committed_key("..", "."), "s3:%2E%2E:%2E:committed");
        let long = encode_name(&"ü".repeat(200));
        // 180 bytes are 60 whole escapes.
        assert_eq!(long.len(), 180 + 1 + 32);
        let odd = encode_name(&format!("a{}", "ü".repeat(200)));
        assert!(
            odd.starts_with("a%C3%BC") && odd.as_bytes()[178] == b'~',
            "{odd}"
        );
    }
}
