//! Starts the shipped queue tasks in a simulated process.

use super::process::Start;
use tokio::sync::watch;

/// Runs a sink until it is told to stop.
pub async fn run(start: Start, mut stop: watch::Receiver<bool>) {
    let _ = start;
    let _ = stop.wait_for(|s| *s).await;
}
