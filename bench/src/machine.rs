//! Where a run took place, so that a recorded figure can be read later.

use std::process::Command;

use serde::Serialize;

/// The machine and the code of a run.
#[derive(Debug, Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gib: f64,
    commit: String,
    date: String,
}

impl Machine {
    /// This machine now. What cannot be told is "unknown".
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.trim_end_matches(" kB").parse::<f64>().ok());
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib.map_or(0.0, |kib| (kib / 1024.0 / 1024.0).round()),
            commit: commit().unwrap_or_else(unknown),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        }
    }
}

fn unknown() -> String {
    "unknown".into()
}

/// The commit that is checked out, with a mark when files differ from it.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed {
        commit + " + changes"
    } else {
        commit
    })
}
