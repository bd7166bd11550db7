//! Log lines, all of them on standard error.

use std::fmt::{self, Write};
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

use crate::config::{Config, LogFormat};

/// Starts logging for the whole process.
///
/// # Errors
///
/// When `RUST_LOG` is no filter.
pub fn start(config: &Config) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(&config.log_filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match config.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Human => builder
            .fmt_fields(one_line_fields())
            .with_ansi(std::io::stderr().is_terminal())
            .init(),
    }
    Ok(())
}

/// Fields as people read them, with messages and values that stay on their line: producers give
/// queues and partitions any name, and must not write lines of their own into a log.
fn one_line_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer, field, value| {
        match (field.name(), writer.has_ansi_escapes()) {
            ("message", _) => {}
            // Where a line of the `log` crate came from.
            (name, _) if name.starts_with("log.") => return Ok(()),
            (name, true) => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
            (name, false) => write!(writer, "{name}=")?,
        }
        write!(writer, "{}", OneLine(format_args!("{value:?}")))
    })
    .delimited(" ")
}

/// Shows a value on one line: what would begin another one, move a terminal's cursor or turn the
/// direction of writing is escaped.
struct OneLine<T>(T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_unsafe(*c)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", c.escape_default())?;
            plain = at + c.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

/// Control characters, the other ends of lines and paragraphs, and marks of direction.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_name_in_a_message_or_a_field_stays_on_its_line() {
        let (mut written, writer) = pipe().expect("a pipe");
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(one_line_fields())
            .with_writer(Arc::new(writer))
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let queue = "a\n2026 ERROR b\u{9b}2J\u{2028}";
            tracing::warn!(%queue, partition = ?queue, n = 7, "of {queue}");
        });
        let mut text = String::new();
        written.read_to_string(&mut text).expect("UTF-8");
        assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
        let end = concat!(
            r"of a\n2026 ERROR b\u{9b}2J\u{2028} queue=a\n2026 ERROR b\u{9b}2J\u{2028} ",
            r#"partition="a\n2026 ERROR b\u{9b}2J\u{2028}" n=7"#,
        );
        assert!(text.trim_end().ends_with(end), "{text}{end}");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let plain = r#"ключ 𝗞 "quoted" \ /"#;
        assert_eq!(OneLine(plain).to_string(), plain);
    }
}
