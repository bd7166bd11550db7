//! What both HTTP clients share: texts of a foreign server made safe to print, and `Retry-After`.

use std::error::Error;
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

use crate::limits::{EXCERPT_CHARS, RETRY_AFTER_MAX};

/// What stands where a secret was.
const HIDDEN: &str = "<hidden>";

/// The start of `text` on one line: control characters become spaces, `secrets` are hidden, and at
/// most [`EXCERPT_CHARS`] characters stay.
pub(crate) fn excerpt(text: &str, secrets: &[&str]) -> String {
    let mut text = text.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        if text.contains(*secret) {
            text = text.replace(*secret, HIDDEN);
        }
    }
    let mut clean: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(EXCERPT_CHARS + 1)
        .collect();
    if let Some((cut, _)) = clean.char_indices().nth(EXCERPT_CHARS) {
        clean.truncate(cut);
        clean.push('…');
    }
    clean
}

/// An error and its sources on one line, each said once.
pub(crate) fn causes(error: &(dyn Error + 'static), secrets: &[&str]) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    excerpt(&text, secrets)
}

/// Reads `Retry-After`, in seconds or as an HTTP date seen at `now`; at most [`RETRY_AFTER_MAX`].
/// `None` when it is neither.
pub(crate) fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = DateTimeParser::new().parse_timestamp(value).ok()?;
            Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_short_line_without_secrets() {
        let text = format!("bad\r\n\x1b[31mtoken s3cr3t{}", "x".repeat(1_000));
        let clean = excerpt(&text, &["s3cr3t", ""]);
        assert!(clean.starts_with("bad   [31mtoken <hidden>xxx"), "{clean}");
        assert_eq!(clean.chars().count(), EXCERPT_CHARS + 1);
        assert!(!clean.chars().any(char::is_control));
    }

    #[test]
    fn a_secret_across_the_cut_is_hidden_before_the_text_is_cut() {
        let text = format!("{}s3cr3t", "x".repeat(EXCERPT_CHARS - 3));
        assert!(!excerpt(&text, &["s3cr3t"]).contains("s3c"));
    }

    #[test]
    fn retry_after_reads_seconds_and_dates_and_is_bounded() {
        let now: Timestamp = "2026-09-04T10:00:00Z".parse().expect("a valid instant");
        assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        let date = "Fri, 04 Sep 2026 10:01:30 GMT";
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(90)));
        let past = "Fri, 04 Sep 2026 09:00:00 GMT";
        assert_eq!(retry_after(past, now), Some(Duration::ZERO));
        assert_eq!(retry_after("999999999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon", now), None);
    }
}
