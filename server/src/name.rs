//! Names of queues and partitions, and text fields that borrow from the request body.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::error::ApiError;
use crate::limits::NAME_MAX_BYTES;

/// The partition of a request that names none.
pub const DEFAULT_PARTITION: &str = "Default";

/// Checks a queue or partition name: 1 to [`NAME_MAX_BYTES`] bytes, no NUL.
///
/// # Errors
///
/// `400` with `place` and the rule that is broken.
pub fn check_name(name: &str, place: impl fmt::Display) -> Result<(), ApiError> {
    let problem = if name.is_empty() {
        "is empty".into()
    } else if name.len() > NAME_MAX_BYTES {
        format!("is {} bytes long, more than {NAME_MAX_BYTES}", name.len())
    } else if name.contains('\0') {
        "holds a NUL".into()
    } else {
        return Ok(());
    };
    Err(ApiError::coded(
        "bad_name",
        format!("{place}: the name {problem}"),
    ))
}

/// A JSON string, borrowed from the input where it holds no escape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

/// A partition name: a JSON string, or an integer read as its decimal name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionName<'a>(pub Cow<'a, str>);

struct TextVisitor {
    numbers: bool,
}

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.numbers {
            "a string or an integer"
        } else {
            "a string"
        })
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        if self.numbers {
            return Ok(Cow::Owned(number.to_string()));
        }
        Err(E::invalid_type(
            serde::de::Unexpected::Unsigned(number),
            &self,
        ))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        if self.numbers {
            return Ok(Cow::Owned(number.to_string()));
        }
        Err(E::invalid_type(
            serde::de::Unexpected::Signed(number),
            &self,
        ))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(TextVisitor { numbers: false })
            .map(Self)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for PartitionName<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(TextVisitor { numbers: true })
            .map(Self)
    }
}
