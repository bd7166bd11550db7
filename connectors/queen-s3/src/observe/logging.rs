//! Log lines, all of them on standard error.

use std::io::IsTerminal as _;
use std::panic;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

use super::one_line::OneLine;
use crate::config::LogFormat;

/// Starts logging for the whole process, panics included. `filter` is a tracing filter.
///
/// # Errors
///
/// When `filter` is none.
pub fn start(format: LogFormat, filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Human => subscriber
            .fmt_fields(one_line_fields())
            .with_ansi(std::io::stderr().is_terminal())
            .init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        fatal(&format!("panic at {place}: {message}"));
    }));
    Ok(())
}

/// Fields as people read them, with messages and values that stay on their line.
fn one_line_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer, field, value| {
        match (field.name(), writer.has_ansi_escapes()) {
            ("message", _) => {}
            (name, true) => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
            (name, false) => write!(writer, "{name}=")?,
        }
        write!(writer, "{}", OneLine(format_args!("{value:?}")))
    })
    .delimited(" ")
}

/// Says why the process, or a part of it, ends: in the log, or as a plain line on standard error
/// where the log filter hides errors or logging has not begun.
pub fn fatal(text: &str) {
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{text}");
    } else {
        eprintln!("queen-s3: {}", OneLine(text));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_name_in_a_message_a_field_or_a_span_stays_on_its_line() {
        let (mut written, writer) = pipe().expect("a pipe");
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(one_line_fields())
            .with_writer(Arc::new(writer))
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let (queue, error) = ("a\n2026 ERROR b", std::fmt::Error);
            let span = tracing::info_span!("queue", name = %queue);
            let _entered = span.enter();
            tracing::warn!(%queue, partition = ?queue, key = queue, %error, n = 7, "of {queue}");
        });
        let mut text = String::new();
        written.read_to_string(&mut text).expect("UTF-8");
        assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
        let end = concat!(
            r"queue{name=a\n2026 ERROR b}: queen_s3::observe::logging::tests: of a\n2026 ERROR b ",
            r#"queue=a\n2026 ERROR b partition="a\n2026 ERROR b" key="a\n2026 ERROR b" "#,
            "error=an error occurred when formatting an argument n=7",
        );
        assert!(text.trim_end().ends_with(end), "{text}{end}");
    }
}
