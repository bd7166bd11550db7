//! What the lake holds, shown as a reader sees it.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, bail};
use queen_dev::{Lake, python};

use crate::progress::grouped;

/// The reader's program, run by Python with DuckDB.
const READER: &str = include_str!("report.py");

/// Objects shown per folder; the rest is counted.
const SHOWN_OBJECTS: usize = 8;

/// Prints the tree of objects of `queues`.
pub fn tree(lake: &Lake, queues: &[&str]) -> Result<()> {
    let (folder, here) = (lake.folder(), env::current_dir()?);
    println!("{}", folder.strip_prefix(here).unwrap_or(&folder).display());
    for (number, queue) in queues.iter().enumerate() {
        let objects = lake.objects(queue)?;
        let (branch, stem) = if number + 1 == queues.len() {
            ("└──", "    ")
        } else {
            ("├──", "│   ")
        };
        let mut folder = "";
        for (place, object) in objects.iter().enumerate() {
            let (parent, name) = object
                .key
                .rsplit_once('/')
                .context("a key without a folder")?;
            if parent != folder {
                let (_, below) = parent
                    .split_once("queue=")
                    .context("a key without a queue")?;
                println!(
                    "{} queue={below}",
                    if folder.is_empty() { branch } else { "│  " }
                );
                folder = parent;
            }
            let last = place + 1 == objects.len();
            if place + 1 < SHOWN_OBJECTS || last {
                let corner = if last { "└──" } else { "├──" };
                let size = grouped(object.bytes.len() as u64);
                println!("{stem}{corner} {name}  {size:>9} bytes");
            } else if place + 1 == SHOWN_OBJECTS {
                println!("{stem}├── … {} more", objects.len() - SHOWN_OBJECTS);
            }
        }
    }
    Ok(())
}

/// Counts the records of `queues` with DuckDB and prints the history of `partition` of the first.
///
/// # Errors
///
/// When DuckDB does not count what was pushed, or cannot run.
pub fn with_duckdb(lake: &Lake, queues: &[(&str, usize)], partition: &str) -> Result<()> {
    let mut command = Command::new(python());
    command.arg("-c").arg(READER).arg(partition);
    for (queue, count) in queues {
        command
            .arg(queue)
            .arg(lake.glob(queue))
            .arg(count.to_string());
    }
    let status = command
        .status()
        .with_context(|| format!("run {}", python().display()))?;
    if !status.success() {
        bail!("DuckDB did not find in the lake what was pushed");
    }
    Ok(())
}
