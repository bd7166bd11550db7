//! JSON in and out: errors that say where, and strings rendered into byte buffers.

use serde::Deserialize;

use crate::error::ApiError;

/// Parses a request body.
///
/// # Errors
///
/// `400` that names the field and the position.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    match serde_json::from_slice(body) {
        Ok(value) => Ok(value),
        Err(error) => Err(located::<T>(body, error)),
    }
}

/// Parses once more, keeping track of the path: only a refused body pays for that.
fn located<'a, T: Deserialize<'a>>(body: &'a [u8], error: serde_json::Error) -> ApiError {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(error) => error.path().to_string(),
        Ok(_) => ".".into(),
    };
    if path == "." || path == "?" {
        return ApiError::coded("bad_json", format!("the body: {error}"));
    }
    ApiError::coded("bad_json", format!("{path}: {error}"))
}

/// Appends `text` as a JSON string.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    // Writing a string into memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// `text` as a JSON string.
pub fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}
