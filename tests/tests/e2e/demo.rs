//! The demo as a user runs it.

use std::path::Path;

use anyhow::{Context, Result};
use queen_dev::{Logs, Process, WAIT, broker_binary, python, sink_binary};

#[tokio::test]
async fn the_demo_shows_its_lake_without_a_terminal_and_ends_well() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let broker = broker_binary()?;
    let demo = broker
        .parent()
        .context("a program lies in a folder")?
        .join("queen-demo");
    let logs = Logs::new(&folder.path().join("demo.log"))?;
    let script = format!(
        "cd '{}' && exec '{}' --events 4000",
        folder.path().display(),
        demo.display()
    );
    let variables = [
        ("QUEEN_BIN", broker),
        ("QUEEN_S3_BIN", sink_binary()?),
        ("PYTHON", python()),
    ]
    .map(|(name, value)| (name.to_owned(), value.display().to_string()));
    let shell = Path::new("/bin/sh");
    let process = Process::start("queen-demo", shell, &["-c", &script], &variables, &logs)?;
    let status = process.ended(WAIT).await?;
    let text = logs.text()?;
    assert!(status.success(), "{text}");
    for part in [
        "committed   4,000",
        "└── queue=clicks/dt=",
        "every record is in the lake exactly once",
        "in order:\n  @0 ",
        "read_json('",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    Ok(())
}
