//! Operations as they come over the wire, checked before anything is touched.

use std::fmt;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::http::json;
use crate::limits::{
    KV_KEY_MAX_BYTES, KV_NAMESPACE_MAX, KV_OPERATIONS, KV_PAGE_DEFAULT, KV_PAGE_MAX,
    KV_VALUE_MAX_BYTES,
};

/// How long a written key lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Until it is deleted.
    Forever,
    /// This many seconds, more than 0.
    Seconds(i64),
}

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Reads one key.
    Get {
        /// The key.
        key: String,
    },
    /// Reads some keys.
    GetMany {
        /// The keys.
        keys: Vec<String>,
    },
    /// Reads a page of the keys with a prefix, in byte order.
    GetPrefix {
        /// Not empty.
        prefix: String,
        /// The last key of the page before.
        after: Option<String>,
        /// Rows at most.
        limit: i64,
        /// Leaves the values out.
        keys_only: bool,
    },
    /// Writes a key.
    Put {
        /// The key.
        key: String,
        /// JSON text.
        value: String,
        /// The version it must have, 0 for absent.
        expect: Option<i64>,
        /// When it ends.
        expiry: Expiry,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
        /// The version it must have, 0 for absent.
        expect: Option<i64>,
    },
    /// Adds to an integer. The expiry counts when this creates the key.
    Incr {
        /// The key.
        key: String,
        /// What is added.
        delta: i64,
        /// Least sum that applies.
        min: Option<i64>,
        /// Greatest sum that applies.
        max: Option<i64>,
        /// When it ends.
        expiry: Expiry,
    },
    /// Checks a version and writes nothing.
    Check {
        /// The key.
        key: String,
        /// The version it must have, 0 for absent.
        expect: i64,
    },
}

/// One operation of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Namespace.
    pub ns: String,
    /// What to do.
    pub action: Action,
    /// Whether a lost precondition rolls the batch back.
    pub required: bool,
}

impl Action {
    /// The name that a result carries.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::GetMany { .. } => "getMany",
            Self::GetPrefix { .. } => "getPrefix",
            Self::Put { .. } => "put",
            Self::Delete { .. } => "delete",
            Self::Incr { .. } => "incr",
            Self::Check { .. } => "check",
        }
    }

    /// Whether it can change a row.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Self::Put { .. } | Self::Delete { .. } | Self::Incr { .. }
        )
    }

    /// Whether it gives a key a new version when it applies.
    pub fn takes_version(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Incr { .. })
    }

    /// The keys it names. A prefix names none.
    pub fn keys(&self) -> &[String] {
        match self {
            Self::GetMany { keys } => keys,
            Self::GetPrefix { .. } => &[],
            Self::Get { key }
            | Self::Put { key, .. }
            | Self::Delete { key, .. }
            | Self::Incr { key, .. }
            | Self::Check { key, .. } => std::slice::from_ref(key),
        }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    operations: Vec<Wire<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(default)]
    op: Option<String>,
    #[serde(default)]
    ns: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    keys: Option<Vec<String>>,
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    limit: Option<i64>,
    #[serde(default)]
    keys_only: Option<bool>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    #[serde(default)]
    delta: Option<i64>,
    #[serde(default)]
    min: Option<i64>,
    #[serde(default)]
    max: Option<i64>,
    #[serde(default)]
    expect: Option<i64>,
    #[serde(default)]
    required: Option<bool>,
    #[serde(default)]
    ttl_seconds: Option<i64>,
    #[serde(default)]
    forever: Option<bool>,
}

/// `null` is a value, apart from an absent one.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses and checks the body of a batch: `{"operations": […]}` or the bare array.
///
/// # Errors
///
/// `400` that names the operation and what is wrong with it.
pub fn parse(body: &[u8]) -> Result<Vec<Operation>, ApiError> {
    let bare = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let wire: Vec<Wire<'_>> = if bare {
        json::parse(body)?
    } else {
        json::parse::<Envelope<'_>>(body)?.operations
    };
    if wire.len() > KV_OPERATIONS {
        return Err(ApiError::coded(
            "kv_too_many_operations",
            format!(
                "operations: {} of them, at most {KV_OPERATIONS} a batch",
                wire.len()
            ),
        ));
    }
    let mut keys = 0;
    let mut operations = Vec::with_capacity(wire.len());
    for (index, wire) in wire.into_iter().enumerate() {
        let operation = check(wire).map_err(|Refusal { code, message }| {
            ApiError::coded(code, format!("operations[{index}]: {message}"))
        })?;
        keys += operation.action.keys().len();
        operations.push(operation);
    }
    if keys > 2 * KV_OPERATIONS {
        return Err(ApiError::coded(
            "kv_too_many_operations",
            format!(
                "operations: {keys} keys, at most {} a batch",
                2 * KV_OPERATIONS
            ),
        ));
    }
    Ok(operations)
}

/// Checks the one operation of a route that has namespace and key in its path; `body` holds its
/// other fields, or nothing.
///
/// # Errors
///
/// `400` that says what is wrong, also for a body that names what the path names already.
pub fn parse_path(op: &str, ns: String, key: String, body: &[u8]) -> Result<Operation, ApiError> {
    let mut wire = if body.is_empty() {
        Wire::default()
    } else {
        json::parse(body)?
    };
    if wire.op.is_some() || wire.ns.is_some() || wire.key.is_some() {
        return Err(ApiError::coded(
            "kv_bad_request",
            "the body: op, ns and key are in the path",
        ));
    }
    wire.op = Some(op.to_owned());
    wire.ns = Some(ns);
    wire.key = Some(key);
    check(wire).map_err(|Refusal { code, message }| ApiError::coded(code, message))
}

struct Refusal {
    code: &'static str,
    message: String,
}

fn refuse<T>(code: &'static str, message: impl fmt::Display) -> Result<T, Refusal> {
    Err(Refusal {
        code,
        message: message.to_string(),
    })
}

fn check(wire: Wire<'_>) -> Result<Operation, Refusal> {
    let Some(op) = wire.op else {
        return refuse("kv_unknown_op", "op is missing");
    };
    let Some(ns) = wire.ns else {
        return refuse("kv_bad_namespace", "ns is missing");
    };
    check_namespace(&ns)?;
    if wire.expect.is_some_and(|expect| expect < 0) {
        return refuse(
            "kv_bad_expect",
            "expect is a version, or 0 for \"must not exist\"",
        );
    }
    let key = |key: &Option<String>| match key {
        Some(key) => check_key(key, "key").map(|()| key.clone()),
        None => refuse("kv_bad_request", "key is missing"),
    };
    let action = match op.as_str() {
        "get" => Action::Get {
            key: key(&wire.key)?,
        },
        "getMany" => {
            let Some(keys) = wire.keys else {
                return refuse("kv_bad_request", "keys is missing");
            };
            if keys.len() > KV_OPERATIONS {
                return refuse(
                    "kv_bad_request",
                    format_args!("keys: {} of them, at most {KV_OPERATIONS}", keys.len()),
                );
            }
            keys.iter().try_for_each(|key| check_key(key, "keys"))?;
            Action::GetMany { keys }
        }
        "getPrefix" => match wire.prefix {
            Some(prefix) if !prefix.is_empty() => {
                check_key(&prefix, "prefix")?;
                if let Some(after) = wire.after.as_deref().filter(|after| !after.is_empty()) {
                    check_key(after, "after")?;
                }
                Action::GetPrefix {
                    prefix,
                    after: wire.after,
                    limit: wire.limit.unwrap_or(KV_PAGE_DEFAULT).clamp(1, KV_PAGE_MAX),
                    keys_only: wire.keys_only.unwrap_or(false),
                }
            }
            _ => {
                return refuse(
                    "kv_prefix_required",
                    "getPrefix needs a prefix that is not empty",
                );
            }
        },
        "put" | "putIfAbsent" => {
            let expect = if op == "put" {
                wire.expect
            } else if wire.expect.unwrap_or(0) == 0 {
                Some(0)
            } else {
                return refuse("kv_bad_expect", "putIfAbsent expects 0; leave expect out");
            };
            let Some(value) = wire.value else {
                return refuse("kv_bad_request", "value is missing (null is a value)");
            };
            if value.get().len() > KV_VALUE_MAX_BYTES {
                return refuse(
                    "kv_value_too_large",
                    format_args!(
                        "value: {} bytes, at most {KV_VALUE_MAX_BYTES}",
                        value.get().len()
                    ),
                );
            }
            Action::Put {
                key: key(&wire.key)?,
                value: value.get().to_owned(),
                expect,
                expiry: expiry(wire.ttl_seconds, wire.forever)?,
            }
        }
        "delete" => Action::Delete {
            key: key(&wire.key)?,
            expect: wire.expect,
        },
        "incr" => {
            if wire.expect.is_some() {
                return refuse("kv_bad_request", "incr takes no expect");
            }
            let Some(delta) = wire.delta else {
                return refuse("kv_bad_request", "delta is missing");
            };
            Action::Incr {
                key: key(&wire.key)?,
                delta,
                min: wire.min,
                max: wire.max,
                expiry: expiry(wire.ttl_seconds, wire.forever)?,
            }
        }
        "check" => match wire.expect {
            Some(expect) => Action::Check {
                key: key(&wire.key)?,
                expect,
            },
            None => return refuse("kv_bad_expect", "check needs expect"),
        },
        other => return refuse("kv_unknown_op", format_args!("unknown op {other:?}")),
    };
    Ok(Operation {
        ns,
        action,
        required: wire.required.unwrap_or(false),
    })
}

fn check_namespace(ns: &str) -> Result<(), Refusal> {
    let first = ns
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest = ns
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
    if first && rest && ns.len() <= KV_NAMESPACE_MAX {
        return Ok(());
    }
    refuse(
        "kv_bad_namespace",
        "ns does not match ^[a-z0-9][a-z0-9._-]{0,63}$",
    )
}

fn check_key(key: &str, field: &str) -> Result<(), Refusal> {
    if key.is_empty() || key.len() > KV_KEY_MAX_BYTES || key.contains('\0') {
        return refuse(
            "kv_bad_key",
            format_args!("{field}: a key has 1 to {KV_KEY_MAX_BYTES} bytes and no NUL"),
        );
    }
    Ok(())
}

fn expiry(ttl_seconds: Option<i64>, forever: Option<bool>) -> Result<Expiry, Refusal> {
    match (ttl_seconds, forever.unwrap_or(false)) {
        (None, true) => Ok(Expiry::Forever),
        (Some(seconds), false) if seconds > 0 => Ok(Expiry::Seconds(seconds)),
        (Some(seconds), false) => refuse(
            "kv_bad_ttl",
            format_args!("ttlSeconds: {seconds} is not above 0"),
        ),
        (Some(_), true) | (None, false) => refuse(
            "kv_expiry_not_specified",
            "state the expiry exactly once: ttlSeconds, or forever: true",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(operation: &str) -> Result<Operation, String> {
        parse(format!("[{operation}]").as_bytes())
            .map(|mut operations| operations.remove(0))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn put_if_absent_is_put_with_expect_0() {
        let operation =
            one(r#"{"op":"putIfAbsent","ns":"n","key":"k","value":null,"forever":true}"#)
                .expect("an operation");
        let Action::Put {
            value,
            expect,
            expiry,
            ..
        } = operation.action
        else {
            panic!("not a put: {operation:?}");
        };
        assert_eq!(
            (value.as_str(), expect, expiry),
            ("null", Some(0), Expiry::Forever)
        );
    }

    #[test]
    fn envelope_and_bare_array_are_the_same() {
        let bare = parse(br#" [{"op":"get","ns":"n","key":"k"}]"#).expect("bare");
        let envelope =
            parse(br#"{"operations":[{"op":"get","ns":"n","key":"k"}]}"#).expect("envelope");
        assert_eq!(bare, envelope);
    }

    #[test]
    fn every_write_states_its_expiry_exactly_once() {
        for fields in [
            "",
            r#","ttlSeconds":5,"forever":true"#,
            r#","forever":false"#,
        ] {
            for op in ["put", "putIfAbsent"] {
                let text = format!(r#"{{"op":"{op}","ns":"n","key":"k","value":1{fields}}}"#);
                assert!(one(&text).expect_err(&text).contains("exactly once"));
            }
            let text = format!(r#"{{"op":"incr","ns":"n","key":"k","delta":1{fields}}}"#);
            assert!(one(&text).expect_err(&text).contains("exactly once"));
        }
        for ttl in ["0", "-1"] {
            let text = format!(r#"{{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":{ttl}}}"#);
            assert!(one(&text).expect_err(&text).contains("ttlSeconds"));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = "x".repeat(KV_KEY_MAX_BYTES + 1);
        for (text, part) in [
            (
                r#"{"op":"get","ns":"N","key":"k"}"#.to_owned(),
                "ns does not match",
            ),
            (
                r#"{"op":"get","ns":"","key":"k"}"#.to_owned(),
                "ns does not match",
            ),
            (r#"{"op":"get","ns":"n"}"#.to_owned(), "key is missing"),
            (
                r#"{"op":"get","ns":"n","key":"a\u0000"}"#.to_owned(),
                "no NUL",
            ),
            (
                format!(r#"{{"op":"get","ns":"n","key":"{long}"}}"#),
                "1024 bytes",
            ),
            (r#"{"op":"list","ns":"n"}"#.to_owned(), "unknown op"),
            (
                r#"{"op":"getPrefix","ns":"n","prefix":""}"#.to_owned(),
                "not empty",
            ),
            (
                r#"{"op":"put","ns":"n","key":"k","forever":true}"#.to_owned(),
                "value is missing",
            ),
            (
                r#"{"op":"check","ns":"n","key":"k"}"#.to_owned(),
                "needs expect",
            ),
            (
                r#"{"op":"delete","ns":"n","key":"k","expect":-1}"#.to_owned(),
                "expect",
            ),
            (
                r#"{"op":"incr","ns":"n","key":"k","delta":1,"expect":0,"forever":true}"#
                    .to_owned(),
                "no expect",
            ),
            (
                r#"{"op":"incr","ns":"n","key":"k","delta":"1","forever":true}"#.to_owned(),
                "delta",
            ),
        ] {
            let error = one(&text).expect_err(&text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let value = format!(
            r#"{{"op":"put","ns":"n","key":"k","value":"{}","forever":true}}"#,
            "x".repeat(KV_VALUE_MAX_BYTES)
        );
        assert!(one(&value).expect_err("too large").contains("value"));
    }
}
