//! Processes with captured output.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use queen_dev::{Logs, Process, Signal, eventually};

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str, folder: &Path) -> Result<(Process, Logs)> {
    let logs = Logs::new(&folder.join("log"))?;
    let variables = [("GIVEN".to_owned(), "yes".to_owned())];
    let process = Process::start(
        "shell",
        Path::new("/bin/sh"),
        &["-c", script],
        &variables,
        &logs,
    )?;
    Ok((process, logs))
}

#[tokio::test]
async fn both_streams_are_captured_in_the_order_of_writing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (process, logs) = shell("echo one; echo two >&2; echo three; exit 3", folder.path())?;
    assert_eq!(process.ended(LIMIT).await?.code(), Some(3));
    logs.wait_for(0, LIMIT, |line| line == "three").await?;
    assert_eq!(logs.text()?, "one\ntwo\nthree\n");
    Ok(())
}

#[tokio::test]
async fn a_process_sees_the_variables_it_is_given_and_no_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_process, logs) = shell("echo \"$GIVEN/$CARGO_MANIFEST_DIR\"", folder.path())?;
    assert_eq!(logs.wait_for(0, LIMIT, |_| true).await?, "yes/");
    Ok(())
}

#[tokio::test]
async fn a_line_before_the_mark_is_not_waited_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (_process, logs) = shell("echo again; echo again; exec cat", folder.path())?;
    eventually(LIMIT, async || Ok((logs.mark() == 2).then_some(()))).await?;
    let missing = logs
        .wait_for(2, Duration::from_millis(50), |line| line == "again")
        .await;
    assert!(missing.is_err_and(|error| error.to_string().contains("| again")));
    assert_eq!(
        logs.wait_for(1, LIMIT, |line| line == "again").await?,
        "again"
    );
    Ok(())
}

#[tokio::test]
async fn a_dropped_process_is_gone_even_when_it_ignores_signals() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let script = "trap '' TERM INT; echo ready; while :; do sleep 0.1; done";
    let (process, logs) = shell(script, folder.path())?;
    logs.wait_for(0, LIMIT, |line| line == "ready").await?;
    let running = format!("/proc/{}", process.pid());
    process.signal(Signal::TERM);
    assert!(Path::new(&running).exists());
    drop(process);
    assert!(!Path::new(&running).exists());
    Ok(())
}
