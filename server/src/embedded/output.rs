//! The sink's output in the broker's log: cleaned, cut, and within a budget.

use std::borrow::Cow;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

use crate::limits::{SINK_LINE_MAX_BYTES, SINK_LINES_PER_WINDOW, SINK_LINES_WINDOW};

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1_024;
/// The level of a line stands among its first words.
const LEVEL_WORDS: usize = 3;

/// How lines begin that carry no level and tell why the sink ends: what is wrong with its configuration, and
/// that it gets no memory.
const FAULTS: [&str; 2] = ["queen-s3: ", "memory allocation "];

/// What the sink's lines are filtered by: the sink's own target, so that one `RUST_LOG` means the same
/// to both processes. The broker's default names `queen`, which every target begins with.
pub(super) const TARGET: &str = "queen_s3";

/// Reads `output` to its end and logs its lines. Holds one line and one chunk, whatever comes.
pub async fn forward(output: impl AsyncRead + Unpin) {
    read(output, log_line, |suppressed| {
        tracing::warn!(target: TARGET, suppressed, "lines of the embedded sink were suppressed");
    })
    .await;
}

async fn read(
    mut output: impl AsyncRead + Unpin,
    mut line: impl FnMut(&str),
    mut suppressed: impl FnMut(u64),
) {
    let mut budget = Budget::new(Instant::now());
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = tokio::select! {
            length = output.read(&mut chunk) => match length {
                Ok(0) | Err(_) => break,
                Ok(length) => length,
            },
            () = sleep_until(budget.ends), if budget.suppressed > 0 => 0,
        };
        let now = Instant::now();
        if let Some(count) = budget.turn(now) {
            suppressed(count);
        }
        lines.feed(&chunk[..length], |text| {
            if budget.admit() {
                line(&clean(text));
            }
        });
    }
    lines.end(|text| {
        if budget.admit() {
            line(&clean(text));
        }
    });
    if budget.suppressed > 0 {
        suppressed(budget.suppressed);
    }
}

/// Lines per window.
#[derive(Debug)]
struct Budget {
    ends: Instant,
    admitted: u32,
    suppressed: u64,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self {
            ends: now + SINK_LINES_WINDOW,
            admitted: 0,
            suppressed: 0,
        }
    }

    /// Begins the next window when this one has ended, and tells what it suppressed.
    fn turn(&mut self, now: Instant) -> Option<u64> {
        if now < self.ends {
            return None;
        }
        let suppressed = self.suppressed;
        *self = Self::new(now);
        (suppressed > 0).then_some(suppressed)
    }

    fn admit(&mut self) -> bool {
        if self.admitted < SINK_LINES_PER_WINDOW {
            self.admitted += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }
}

/// Splits chunks into lines and keeps no more than the beginning of one.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    open: bool,
}

impl Lines {
    fn feed(&mut self, mut chunk: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(end) = memchr::memchr(b'\n', chunk) {
            if self.open {
                self.keep(&chunk[..end]);
                line(&self.begun);
                self.begun.clear();
                self.open = false;
            } else {
                line(&chunk[..end.min(SINK_LINE_MAX_BYTES)]);
            }
            chunk = &chunk[end + 1..];
        }
        if !chunk.is_empty() {
            self.keep(chunk);
            self.open = true;
        }
    }

    fn keep(&mut self, part: &[u8]) {
        let room = SINK_LINE_MAX_BYTES - self.begun.len();
        self.begun.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn end(&mut self, mut line: impl FnMut(&[u8])) {
        if self.open {
            line(&self.begun);
        }
        *self = Self::default();
    }
}

/// The text of a line: no escape sequence, no control byte, at most [`SINK_LINE_MAX_BYTES`] long.
fn clean(line: &[u8]) -> String {
    // The library drops tabs, which would join words.
    let spaced: Vec<u8> = line
        .iter()
        .map(|&byte| if byte == b'\t' { b' ' } else { byte })
        .collect();
    let plain = strip_ansi_escapes::strip(spaced);
    let text: Cow<'_, str> = String::from_utf8_lossy(&plain);
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            continue;
        }
        // What is not UTF-8 grows when it is replaced.
        if clean.len() + c.len_utf8() > SINK_LINE_MAX_BYTES {
            break;
        }
        clean.push(c);
    }
    clean
}

/// Logs a line at the level that it carries: a filter of the broker's log means the sink's too.
fn log_line(line: &str) {
    match level(line) {
        tracing::Level::ERROR => tracing::error!(target: TARGET, "{line}"),
        tracing::Level::WARN => tracing::warn!(target: TARGET, "{line}"),
        tracing::Level::DEBUG | tracing::Level::TRACE => {
            tracing::debug!(target: TARGET, "{line}");
        }
        tracing::Level::INFO => tracing::info!(target: TARGET, "{line}"),
    }
}

/// The level that stands in a line, or the one of what it tells.
fn level(line: &str) -> tracing::Level {
    let panics = line.starts_with("thread '") && line.contains(" panicked at ");
    if panics || FAULTS.iter().any(|begin| line.starts_with(begin)) {
        return tracing::Level::ERROR;
    }
    let json = line
        .split_once(r#""level":""#)
        .filter(|_| line.starts_with('{'))
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(level, _)| level);
    json.into_iter()
        .chain(line.split_whitespace().take(LEVEL_WORDS))
        .find_map(|word| match word {
            "ERROR" => Some(tracing::Level::ERROR),
            "WARN" => Some(tracing::Level::WARN),
            "DEBUG" | "TRACE" => Some(tracing::Level::DEBUG),
            "INFO" => Some(tracing::Level::INFO),
            _ => None,
        })
        .unwrap_or(tracing::Level::INFO)
}

/// How long the last lines of a process that has ended are waited for: a descendant that left the
/// group can hold the pipe open for ever.
pub const LAST_LINES: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_stripped_of_escapes_and_control_bytes_and_keeps_its_text() {
        assert_eq!(
            clean(b"\x1b[31mred\x1b[0m \x1b]0;title\x07a\tb\x00\x08\r\x7f \xc2\x9bz \xff\xf0\x9f\x97\x9d"),
            "red a b z \u{fffd}\u{1f5dd}"
        );
    }

    #[test]
    fn a_line_is_cut_at_its_limit_on_a_character() {
        let text = clean("ключ".repeat(2_000).as_bytes());
        assert!(text.len() <= SINK_LINE_MAX_BYTES && text.len() > SINK_LINE_MAX_BYTES - 4);
        let text = clean(&vec![0xff; SINK_LINE_MAX_BYTES]);
        assert!(text.len() <= SINK_LINE_MAX_BYTES);
    }

    #[test]
    fn lines_come_whole_over_any_chunks_and_none_grows_beyond_its_limit() {
        let mut lines = Lines::default();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for chunk in ["a", "b\n\nc", "", "d\n"] {
            lines.feed(chunk.as_bytes(), |line| seen.push(line.to_vec()));
        }
        for _ in 0..100 {
            lines.feed(&[b'x'; 1_000], |line| seen.push(line.to_vec()));
        }
        assert!(lines.begun.len() <= SINK_LINE_MAX_BYTES);
        lines.end(|line| seen.push(line.to_vec()));
        let lengths: Vec<usize> = seen.iter().map(Vec::len).collect();
        assert_eq!(seen[..3], [b"ab".to_vec(), b"".to_vec(), b"cd".to_vec()]);
        assert_eq!(lengths[3..], [SINK_LINE_MAX_BYTES]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_has_its_budget_and_tells_what_it_suppressed() {
        let (mut sink, output) = tokio::io::duplex(64);
        let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
        let lines = std::sync::atomic::AtomicU32::new(0);
        let reading = read(
            output,
            |_| {
                lines.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            },
            |count| told.send(count).expect("the test listens"),
        );
        let writing = async {
            use tokio::io::AsyncWriteExt;
            for _ in 0..SINK_LINES_PER_WINDOW + 7 {
                sink.write_all(b"line\n").await.expect("read");
            }
            // The window ends without another line.
            assert_eq!(tells.recv().await, Some(7));
            sink.write_all(b"line\nlast").await.expect("read");
            drop(sink);
        };
        tokio::join!(reading, writing);
        assert_eq!(lines.into_inner(), SINK_LINES_PER_WINDOW + 2);
    }

    #[test]
    fn a_filter_of_the_sinks_lets_its_lines_through_the_broker() {
        for (filter, shown) in [
            ("warn,queen_s3=info", "info"),
            ("warn,queen=info", "info"),
            ("warn,queen_s3=debug", "debug"),
            ("error", "error"),
        ] {
            let (mut written, writer) = std::io::pipe().expect("a pipe");
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(std::sync::Arc::new(writer))
                .with_ansi(false)
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                for level in ["DEBUG", "INFO", "WARN", "ERROR"] {
                    log_line(&format!("2026 {level} queen_s3: {}", level.to_lowercase()));
                }
            });
            let mut text = String::new();
            std::io::Read::read_to_string(&mut written, &mut text).expect("UTF-8");
            let first = text.lines().next().expect("a line");
            assert!(first.ends_with(shown), "{filter}: {text}");
        }
    }

    #[test]
    fn a_line_keeps_the_level_it_carries() {
        for (line, expected) in [
            (
                "2026-09-04T10:00:00Z  WARN queen_s3: slow",
                tracing::Level::WARN,
            ),
            (
                r#"{"timestamp":"x","level":"ERROR","fields":{}}"#,
                tracing::Level::ERROR,
            ),
            ("it says nothing of an ERROR here", tracing::Level::INFO),
            (
                "queen-s3: QUEEN_S3_REGION: is required and unset; accepted: INFO",
                tracing::Level::ERROR,
            ),
            (
                "memory allocation of 1048576 bytes failed",
                tracing::Level::ERROR,
            ),
            (
                "thread 'main' panicked at src/main.rs:7:5:",
                tracing::Level::ERROR,
            ),
            (
                "thread 'tokio-rt-worker' (41) panicked at src/main.rs:7:5:",
                tracing::Level::ERROR,
            ),
            (
                "2026-09-04T10:00:00Z  INFO queen_s3: a thread 'main' panicked at a",
                tracing::Level::INFO,
            ),
            (
                "2026-09-04T10:00:00Z  INFO queen_s3: queen-s3: memory allocation",
                tracing::Level::INFO,
            ),
        ] {
            assert_eq!(level(line), expected, "{line}");
        }
    }
}
