//! The options of a queue: names and what is accepted, in one table. Defaults are `queen.effective`'s.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// Longest name of a sink.
const SINK_NAME_MAX: usize = 64;
/// Longest free text.
const TEXT_MAX_BYTES: usize = 1_024;

/// What an option accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An integer within bounds; others are refused.
    Integer(i64, i64),
    /// An integer, held within bounds as Queen's clients expect.
    Clamped(i64, i64),
    /// `true` or `false`.
    Flag,
    /// Text without NUL.
    Text,
    /// The name of a sink, or empty: a segment of the sink's own commit key.
    Sink,
}

struct QueueOption {
    name: &'static str,
    kind: Kind,
}

macro_rules! options {
    ($($name:literal $kind:expr;)*) => {
        &[$(QueueOption { name: $name, kind: $kind }),*]
    };
}

const COUNT: Kind = Kind::Integer(0, i32::MAX as i64);

/// Every option of a queue.
const OPTIONS: &[QueueOption] = options! {
    "namespace" Kind::Text;
    "task" Kind::Text;
    "priority" Kind::Integer(i32::MIN as i64, i32::MAX as i64);
    "leaseTime" Kind::Integer(1, i32::MAX as i64);
    "retryLimit" COUNT;
    "retryDelay" COUNT;
    "maxSize" COUNT;
    "ttl" COUNT;
    "deadLetterQueue" Kind::Flag;
    "dlqAfterMaxRetries" Kind::Flag;
    "delayedProcessing" COUNT;
    "windowBuffer" COUNT;
    "retentionSeconds" COUNT;
    "completedRetentionSeconds" COUNT;
    "retentionEnabled" Kind::Flag;
    "encryptionEnabled" Kind::Flag;
    "maxWaitTimeSeconds" COUNT;
    "minPopWaitTime" Kind::Clamped(0, 60_000);
    "dedupWindowSeconds" Kind::Clamped(0, i32::MAX as i64);
    "retentionSinkHold" Kind::Sink;
    "retentionSinkHoldMaxSeconds" Kind::Integer(60, 31_536_000);
};

/// What a configure changes: per option a value, or null for "back to the default".
#[derive(Debug, Clone, PartialEq)]
pub struct Changes(Map<String, Value>);

impl Changes {
    /// Takes the options out of `given`. Keys that are no options are left alone.
    ///
    /// # Errors
    ///
    /// `400` naming the option.
    pub fn check(given: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut changes = Map::new();
        for option in OPTIONS {
            if let Some(value) = given.get(option.name) {
                changes.insert(option.name.into(), option.check(value)?);
            }
        }
        Ok(Self(changes))
    }

    /// Whether they turn encryption at rest on.
    pub fn encrypts(&self) -> bool {
        self.0.get("encryptionEnabled") == Some(&Value::Bool(true))
    }

    /// The changes as a JSON object.
    pub fn as_json(&self) -> Value {
        Value::Object(self.0.clone())
    }
}

impl QueueOption {
    fn check(&self, value: &Value) -> Result<Value, ApiError> {
        if value.is_null() {
            return Ok(Value::Null);
        }
        let fits = match self.kind {
            Kind::Integer(low, high) => value.as_i64().is_some_and(|n| (low..=high).contains(&n)),
            Kind::Clamped(low, high) => {
                if let Some(number) = value.as_i64() {
                    return Ok(json!(number.clamp(low, high)));
                }
                false
            }
            Kind::Flag => value.is_boolean(),
            Kind::Text => value
                .as_str()
                .is_some_and(|text| text.len() <= TEXT_MAX_BYTES && !text.contains('\0')),
            Kind::Sink => value.as_str().is_some_and(|text| {
                let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
                text.len() <= SINK_NAME_MAX && text.bytes().all(plain)
            }),
        };
        if fits {
            return Ok(value.clone());
        }
        let accepted = match self.kind {
            Kind::Integer(low, high) | Kind::Clamped(low, high) => {
                format!("an integer in {low} to {high}")
            }
            Kind::Flag => "true or false".into(),
            Kind::Text => format!("text of at most {TEXT_MAX_BYTES} bytes without NUL"),
            Kind::Sink => format!("a sink's name, [A-Za-z0-9._-]{{0,{SINK_NAME_MAX}}}"),
        };
        Err(ApiError::coded(
            "bad_option",
            format!("{}: {value} is not {accepted}", self.name),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: Value) -> Result<Value, String> {
        let Value::Object(given) = given else {
            panic!("an object")
        };
        Changes::check(&given)
            .map(|changes| changes.as_json())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_sink_hold_is_refused_rather_than_clamped() {
        for (given, name) in [
            (json!({"retentionSinkHold": "a/b"}), "retentionSinkHold:"),
            (
                json!({"retentionSinkHold": "x".repeat(65)}),
                "retentionSinkHold:",
            ),
            (json!({"retentionSinkHold": 7}), "retentionSinkHold:"),
            (
                json!({"retentionSinkHoldMaxSeconds": 59}),
                "retentionSinkHoldMaxSeconds:",
            ),
            (
                json!({"retentionSinkHoldMaxSeconds": 31_536_001}),
                "retentionSinkHoldMaxSeconds:",
            ),
            (json!({"leaseTime": "60"}), "leaseTime:"),
            (json!({"retentionEnabled": 1}), "retentionEnabled:"),
        ] {
            assert!(
                check(given.clone()).expect_err("refused").contains(name),
                "{given}"
            );
        }
        let kept = json!({"retentionSinkHold": "lake.1", "retentionSinkHoldMaxSeconds": 60});
        assert_eq!(check(kept.clone()), Ok(kept));
    }

    #[test]
    fn null_is_taken_and_unknown_keys_are_left_alone() {
        assert_eq!(
            check(json!({"ttl": null, "colour": 1})),
            Ok(json!({"ttl": null}))
        );
    }

    #[test]
    fn every_option_of_the_published_type_is_known() {
        let options = queen_protocol::QueueOptions {
            namespace: Some("n".into()),
            task: Some("t".into()),
            priority: Some(1),
            lease_time: Some(1),
            retry_limit: Some(1),
            retry_delay: Some(1),
            max_size: Some(1),
            ttl: Some(1),
            dead_letter_queue: Some(true),
            dlq_after_max_retries: Some(true),
            delayed_processing: Some(1),
            window_buffer: Some(1),
            retention_seconds: Some(1),
            completed_retention_seconds: Some(1),
            retention_enabled: Some(true),
            encryption_enabled: Some(false),
            max_wait_time_seconds: Some(1),
            min_pop_wait_time: Some(1),
            dedup_window_seconds: Some(1),
            retention_sink_hold: Some("s".into()),
            retention_sink_hold_max_seconds: Some(60),
        };
        let given = serde_json::to_value(&options).expect("JSON");
        assert_eq!(check(given.clone()), Ok(given));
    }
}
