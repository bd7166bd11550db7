//! `moto` from PyPI: an S3 server that shares no code with the other one.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// What werkzeug says once it serves.
const RUNNING: &str = "Running on http://127.0.0.1:";

/// A server that keeps its buckets in memory. It takes any credentials and any digest. Dropping it
/// ends it.
pub struct Moto {
    process: Child,
    pub endpoint: String,
}

/// `PYTHON`, else the one that `scripts/setup run` makes.
fn python() -> PathBuf {
    match std::env::var_os("PYTHON").filter(|value| !value.is_empty()) {
        Some(python) => python.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    }
}

impl Moto {
    pub fn start() -> Self {
        let python = python();
        let process = Command::new(&python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = process
            .unwrap_or_else(|error| panic!("{} (scripts/setup run): {error}", python.display()));
        let stderr = process.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = Vec::new();
        let port = lines.by_ref().find_map(|line| {
            let port = line.split_once(RUNNING).map(|(_, port)| port.to_owned());
            said.push(line);
            port
        });
        let port = port.unwrap_or_else(|| panic!("moto ended (scripts/setup run): {said:#?}"));
        // Nobody else reads what it says, and a full pipe would stop it.
        thread::spawn(move || lines.count());
        let digits: String = port.chars().take_while(char::is_ascii_digit).collect();
        Self {
            process,
            endpoint: format!("http://127.0.0.1:{digits}"),
        }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It ended by itself, or ends now.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
