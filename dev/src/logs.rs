//! What a process wrote, in memory and in a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::{oneshot, watch};

use crate::limits::{LOG_LINES, LOG_TAIL};

/// The captured lines of a process, over all its restarts.
#[derive(Debug, Clone)]
pub struct Logs {
    shared: Arc<Shared>,
    path: PathBuf,
}

#[derive(Debug)]
struct Shared {
    lines: Mutex<Lines>,
    count: watch::Sender<u64>,
}

#[derive(Debug)]
struct Lines {
    kept: VecDeque<String>,
    total: u64,
    file: File,
}

impl Logs {
    /// Captures into memory and `path`.
    pub fn new(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        let lines = Mutex::new(Lines {
            kept: VecDeque::new(),
            total: 0,
            file,
        });
        let shared = Arc::new(Shared {
            lines,
            count: watch::Sender::new(0),
        });
        Ok(Self {
            shared,
            path: path.to_path_buf(),
        })
    }

    /// The file with every line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many lines there are so far: a mark for [`wait_for`](Self::wait_for).
    pub fn mark(&self) -> u64 {
        self.lines().total
    }

    /// Everything written so far, from the file.
    pub fn text(&self) -> Result<String> {
        let bytes =
            std::fs::read(&self.path).with_context(|| format!("read {}", self.path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last lines, for an error.
    pub fn tail(&self) -> String {
        let lines = self.lines();
        let skipped = lines.kept.len().saturating_sub(LOG_TAIL);
        lines
            .kept
            .iter()
            .skip(skipped)
            .fold(String::new(), |text, line| text + "\n  | " + line)
    }

    /// Waits for a line after `mark` that `matches`, and gives it.
    ///
    /// # Errors
    ///
    /// With the last lines, when there is none within `limit`.
    pub async fn wait_for(
        &self,
        mark: u64,
        limit: Duration,
        matches: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut seen = mark;
        let mut count = self.shared.count.subscribe();
        let search = async {
            loop {
                count.borrow_and_update();
                if let Some(line) = self.next_match(&mut seen, &matches) {
                    return Some(line);
                }
                if count.changed().await.is_err() {
                    return None;
                }
            }
        };
        match tokio::time::timeout(limit, search).await {
            Ok(Some(line)) => Ok(line),
            _ => bail!(
                "no such line within {} s; the last are:{}",
                limit.as_secs(),
                self.tail()
            ),
        }
    }

    /// The first match at or after line number `seen`, which moves past all lines looked at.
    fn next_match(&self, seen: &mut u64, matches: impl Fn(&str) -> bool) -> Option<String> {
        let lines = self.lines();
        let first_kept = lines.total - lines.kept.len() as u64;
        let skip = usize::try_from(seen.saturating_sub(first_kept)).unwrap_or(usize::MAX);
        *seen = lines.total;
        lines
            .kept
            .iter()
            .skip(skip)
            .find(|line| matches(line))
            .cloned()
    }

    /// Follows `stream` until it ends. The thread it runs on ends with the stream; the sender
    /// that it holds is dropped then.
    pub(crate) fn follow(
        &self,
        stream: impl Read + Send + 'static,
        end: oneshot::Sender<()>,
    ) -> io::Result<()> {
        let logs = self.clone();
        thread::Builder::new()
            .name("log-reader".into())
            .spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut bytes = Vec::new();
                while matches!(stream.read_until(b'\n', &mut bytes), Ok(1..)) {
                    logs.push(String::from_utf8_lossy(&bytes).trim_end().to_owned());
                    bytes.clear();
                }
                drop(end);
            })?;
        Ok(())
    }

    fn push(&self, line: String) {
        let total = {
            let mut lines = self.lines();
            // A full disk must not stop the process whose output this is; memory keeps the line.
            let _ = writeln!(lines.file, "{line}");
            if lines.kept.len() == LOG_LINES {
                lines.kept.pop_front();
            }
            lines.kept.push_back(line);
            lines.total += 1;
            lines.total
        };
        self.shared.count.send_replace(total);
    }

    /// A panic elsewhere leaves whole lines only, so a poisoned lock is still good.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.shared
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
