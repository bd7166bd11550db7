//! SIGTERM and Ctrl-C.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// What a shell adds to a signal's number for the exit code of a process that it ended.
const EXIT_BASE: i32 = 128;

/// Watches both signals from now on. The first one of either cancels the token; a second one
/// ends the process at once with 128 plus its number.
///
/// # Errors
///
/// When the handlers cannot be installed.
pub fn watch() -> io::Result<CancellationToken> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let kind = signals.next().await;
        info!(
            signal = kind.as_raw_value(),
            "a signal asks for a stop; a second one ends at once"
        );
        stop.cancel();
        let kind = signals.next().await;
        warn!(
            signal = kind.as_raw_value(),
            "a second signal ends the process at once"
        );
        std::process::exit(EXIT_BASE + kind.as_raw_value());
    });
    Ok(stopping)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> SignalKind {
        // Each stream ends only with the runtime, so its `None` is as good as its signal.
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}
