//! Log lines, all of them on standard error.

use std::io::IsTerminal as _;
use std::panic;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

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
        LogFormat::Human => subscriber.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        fatal(&format!("panic at {place}: {message}"));
    }));
    Ok(())
}

/// Says why the process, or a part of it, ends: in the log, or as a plain line on standard error
/// where the log filter hides errors or logging has not begun.
pub fn fatal(text: &str) {
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{text}");
    } else {
        eprintln!("queen-s3: {text}");
    }
}
