//! Reads the texts that a word or a number is not enough for. An error says why a text is
//! refused where the accepted values do not say it already.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use url::Url;

use super::Queues;
use super::reader::Why;
use crate::limits::{INSTANCE_CHARS, SINK_CHARS};

/// An http or https URL.
pub(super) fn url(text: &str) -> Result<Url, Why> {
    parse_url(text)
}

/// An http or https URL without a path, and without a trailing slash.
pub(super) fn endpoint(text: &str) -> Result<String, Why> {
    let url = parse_url(text)?;
    if url.path() != "/" {
        return Err(Some(format!(
            "its path {} would become part of every object key; the variable for that is \
             QUEEN_S3_PREFIX",
            url.path()
        )));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn parse_url(text: &str) -> Result<Url, Why> {
    let lower = text.to_ascii_lowercase();
    if !(lower.starts_with("http://") || lower.starts_with("https://")) || !visible(text) {
        return Err(None);
    }
    let url = Url::parse(text).map_err(|error| Some(error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Some("a URL must not carry a user or a password".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(Some(
            "a URL must not carry a query or a fragment".to_owned(),
        ));
    }
    Ok(url)
}

/// A sink's name. `.` and `..` are names like any other: keys spell them as escapes.
pub(super) fn sink(text: &str) -> Result<String, Why> {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.len() > SINK_CHARS || !text.bytes().all(letters) {
        return Err(None);
    }
    Ok(text.to_owned())
}

/// The list of queues. A name given twice counts once.
pub(super) fn queues(text: &str) -> Result<Queues, Why> {
    if text == "*" {
        return Ok(Queues::All);
    }
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    for name in text.split(',').map(str::trim) {
        match name {
            "" => return Err(Some("it holds an empty name".to_owned())),
            "*" => return Err(Some("* stands alone or not at all".to_owned())),
            _ if name.contains(char::is_control) => {
                return Err(Some("a name holds a control character".to_owned()));
            }
            _ if seen.insert(name) => names.push(Arc::from(name)),
            _ => {}
        }
    }
    Ok(Queues::Named(names))
}

/// A region label. A slash would split the credential scope that it is a segment of.
pub(super) fn region(text: &str) -> Result<String, Why> {
    if !visible(text) || text.contains(['/', ',']) {
        return Err(None);
    }
    Ok(text.to_owned())
}

/// A bucket's name.
pub(super) fn bucket(text: &str) -> Result<String, Why> {
    if text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) || is_relative(text)
    {
        return Err(None);
    }
    Ok(text.to_owned())
}

/// The root of every key.
pub(super) fn prefix(text: &str) -> Result<String, Why> {
    if text.starts_with('/') || text.ends_with('/') {
        return Err(Some("it begins or ends with a slash".to_owned()));
    }
    if text
        .split('/')
        .any(|segment| segment.is_empty() || is_relative(segment))
    {
        return Err(Some("it holds an empty or relative segment".to_owned()));
    }
    if text.contains(char::is_control) {
        return Err(Some("it holds a control character".to_owned()));
    }
    Ok(text.to_owned())
}

/// A KMS key's id, alias or ARN, which travels in a header.
pub(super) fn kms_key(text: &str) -> Result<String, Why> {
    if visible(text) {
        Ok(text.to_owned())
    } else {
        Err(None)
    }
}

/// A lease identity.
pub(super) fn instance(text: &str) -> Result<String, Why> {
    if text.chars().count() > INSTANCE_CHARS
        || text.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Err(None);
    }
    Ok(text.to_owned())
}

/// A tracing filter, checked and kept as text.
pub(super) fn log_filter(text: &str) -> Result<String, Why> {
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| Some(error.to_string()))?;
    Ok(text.to_owned())
}

fn visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_relative(segment: &str) -> bool {
    matches!(segment, "." | "..")
}
