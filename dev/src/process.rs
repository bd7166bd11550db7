//! A real process with captured output.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use private_postgres::{KeptChild, Signal};
use tokio::sync::{Mutex, oneshot};

use crate::limits::{KILL_LIMIT, POLL};
use crate::logs::Logs;

/// A running process. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: KeptChild,
    logs: Logs,
    output_ended: Mutex<oneshot::Receiver<()>>,
}

impl Process {
    /// Starts `program` with `variables` and nothing else of the caller's environment but what a
    /// program needs to find its way (`PATH`, `HOME`, `TMPDIR`), so that a developer's own
    /// `QUEEN_*` and `PG_*` never reach a test.
    pub fn start(
        name: &'static str,
        program: &Path,
        arguments: &[&str],
        variables: &[(String, String)],
        logs: &Logs,
    ) -> Result<Self> {
        Self::start_in(Path::new("."), name, program, arguments, variables, logs)
    }

    /// As [`start`](Self::start), with `folder` as the process's working folder.
    pub fn start_in(
        folder: &Path,
        name: &'static str,
        program: &Path,
        arguments: &[&str],
        variables: &[(String, String)],
        logs: &Logs,
    ) -> Result<Self> {
        let mut command = ends_with_this_program(program);
        command.current_dir(folder);
        command.args(arguments).env_clear();
        for inherited in ["PATH", "HOME", "TMPDIR"] {
            if let Some(value) = env::var_os(inherited) {
                command.env(inherited, value);
            }
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let (child, output_ended) = spawn_captured(command, logs)
            .with_context(|| format!("start {name} ({})", program.display()))?;
        Ok(Self {
            name,
            child,
            logs: logs.clone(),
            output_ended: Mutex::new(output_ended),
        })
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Sends `signal` unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// The exit status, once the process has ended.
    pub fn status(&self) -> Option<ExitStatus> {
        self.child.wait(Duration::ZERO)
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&self) {
        self.child.signal(Signal::KILL);
        self.child.wait(KILL_LIMIT);
    }

    /// Waits until the process has ended by itself and its last line is in the logs.
    ///
    /// # Errors
    ///
    /// With its last lines, when it still runs after `limit`.
    pub async fn ended(&self, limit: Duration) -> Result<ExitStatus> {
        let status = eventually(limit, async || Ok(self.status()))
            .await
            .with_context(|| {
                let (name, pid, tail) = (self.name, self.pid(), self.logs.tail());
                format!("{name} (process {pid}) still runs:{tail}")
            })?;
        let mut output_ended = self.output_ended.lock().await;
        if !output_ended.is_terminated() {
            // Dropped unsent is how the reader tells the end. A child that the process left behind
            // may hold the pipe open; its lines are not waited for.
            let _ = tokio::time::timeout(KILL_LIMIT, &mut *output_ended).await;
        }
        Ok(status)
    }

    /// Waits for the line that says where the process listens, and gives the port.
    ///
    /// # Errors
    ///
    /// With its last lines, when it ends first or says nothing in time.
    pub(crate) async fn listening_port(&self, mark: u64, limit: Duration) -> Result<u16> {
        let said = self
            .logs
            .wait_for(mark, limit, |line| port_of(line).is_some());
        tokio::select! {
            line = said => {
                port_of(&line?).with_context(|| format!("{} said no port", self.name))
            }
            status = self.ended(limit) => {
                bail!("{} ended at start ({}):{}", self.name, status?, self.logs.tail())
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks until there is an answer.
///
/// # Errors
///
/// What `ask` failed with, or that there was no answer within `limit`.
pub async fn eventually<T>(
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if begin.elapsed() > limit {
            bail!("it did not come to pass within {} s", limit.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The port of a line with "listening on 127.0.0.1:41234" or "listening=http://127.0.0.1:41234".
fn port_of(line: &str) -> Option<u16> {
    let (_, address) = line.split_once("listening")?;
    let address = address
        .strip_prefix('=')
        .or_else(|| address.strip_prefix(" on "))?;
    let address = address.trim_start_matches("http://");
    let (_, port) = address.split_once(':')?;
    let digits = port
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(port.len());
    port[..digits].parse().ok()
}

/// A command whose process the kernel kills once this program is gone. Where `setpriv` is not
/// there (it is Linux's), a program that is itself killed leaves its processes behind.
fn ends_with_this_program(program: &Path) -> Command {
    let setpriv = env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        .map(|folder| folder.join("setpriv"))
        .find(|file| file.is_file());
    match setpriv {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command
                .args(["--pdeathsig", "KILL", "--"])
                .arg::<OsString>(program.into());
            command
        }
        None => Command::new(program),
    }
}

/// Starts `command` with both output streams in one pipe that `logs` follow: one stream keeps the
/// lines in the order in which they were written.
fn spawn_captured(mut command: Command, logs: &Logs) -> Result<(KeptChild, oneshot::Receiver<()>)> {
    let (reader, writer) = io::pipe().context("make a pipe")?;
    let copy = writer.try_clone().context("copy a pipe's end")?;
    command
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(writer))
        .stderr(OwnedFd::from(copy));
    let child = KeptChild::spawn(command)?;
    let (end, output_ended) = oneshot::channel();
    logs.follow(File::from(OwnedFd::from(reader)), end)
        .context("start a log reader")?;
    Ok((child, output_ended))
}

#[cfg(test)]
mod tests {
    use super::port_of;

    #[test]
    fn finds_the_port_in_the_line_that_says_where_a_process_listens() {
        assert_eq!(
            port_of("INFO queen: listening on 127.0.0.1:6632"),
            Some(6632)
        );
        assert_eq!(
            port_of("listening on http://127.0.0.1:41234/ now"),
            Some(41234)
        );
        assert_eq!(
            port_of("queen 1.5.0 listening=http://127.0.0.1:7 tenancy=off"),
            Some(7)
        );
        assert_eq!(port_of("boot listen=127.0.0.1:0"), None);
        assert_eq!(port_of("connected to 127.0.0.1:5432"), None);
    }
}
