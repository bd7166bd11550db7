//! The sink as a real process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use private_postgres::Signal;
use tokio::sync::OnceCell;

use crate::binaries::sink_binary;
use crate::limits::{START_LIMIT, VERIFY_LIMIT};
use crate::logs::Logs;
use crate::process::Process;

/// How to start the sink. The defaults close a window every half second.
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// `QUEEN_S3_QUEUES`.
    pub queues: String,
    /// `QUEEN_S3_SINK`.
    pub name: String,
    /// `QUEEN_S3_INSTANCE`.
    pub instance: String,
    /// Variables that win over all others. An empty value unsets.
    pub variables: Vec<(String, String)>,
}

impl SinkOptions {
    /// A sink that reads `queues` from their start.
    pub fn new(queues: &str) -> Self {
        Self {
            queues: queues.into(),
            name: "default".into(),
            instance: "sink-0".into(),
            variables: Vec::new(),
        }
    }

    /// With `name` set to `value`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }
}

/// A sink process.
#[derive(Debug)]
pub struct Sink {
    variables: Vec<(String, String)>,
    process: Process,
    logs: Logs,
    start: u64,
    port: OnceCell<u16>,
    http: reqwest::Client,
}

impl Sink {
    /// Starts a sink with exactly these variables. Its log goes to `<folder>/<log>.log`.
    ///
    /// It may end at once, as a test of its exit codes wants; see [`port`](Self::port).
    pub fn start(variables: Vec<(String, String)>, folder: &Path, log: &str) -> Result<Self> {
        let logs = Logs::new(&folder.join(format!("{log}.log")))?;
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            .no_proxy()
            .build()
            .context("make an HTTP client")?;
        let process = Process::start("queen-s3", &sink_binary()?, &[], &variables, &logs)?;
        Ok(Self {
            variables,
            process,
            logs,
            start: 0,
            port: OnceCell::new(),
            http,
        })
    }

    /// Starts the sink again with the same variables, but for those given.
    pub fn start_again(&mut self, changes: &[(&str, &str)]) -> Result<()> {
        self.process.kill();
        for (name, value) in changes {
            self.variables.retain(|(known, _)| known != name);
            self.variables
                .push(((*name).to_owned(), (*value).to_owned()));
        }
        self.start = self.logs.mark();
        self.port = OnceCell::new();
        let program = sink_binary()?;
        self.process = Process::start("queen-s3", &program, &[], &self.variables, &self.logs)?;
        Ok(())
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// What it wrote, over all its restarts.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Kills the sink with SIGKILL and waits until it is gone.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Its exit status, once it has ended.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Waits until the sink has ended by itself.
    pub async fn ended(&self, limit: Duration) -> Result<ExitStatus> {
        self.process.ended(limit).await
    }

    /// The port of its health listener, once it says so.
    pub async fn port(&self) -> Result<u16> {
        let said = || self.process.listening_port(self.start, START_LIMIT);
        self.port.get_or_try_init(said).await.copied()
    }

    /// The status and body of `GET /healthz`.
    pub async fn health(&self) -> Result<(u16, String)> {
        self.get("/healthz").await
    }

    /// Its metrics now.
    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics {
            text: self.get("/metrics").await?.1,
        })
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("http://127.0.0.1:{}{path}", self.port().await?);
        let answer = self
            .http
            .get(url)
            .send()
            .await
            .with_context(|| format!("GET {path}"))?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }
}

/// Lets `queen-s3 verify` prove the lake of a sink with these variables. What it prints goes to
/// `<folder>/<log>.log`.
///
/// # Errors
///
/// When it finds anything, with its last lines.
pub async fn verify(variables: &[(String, String)], folder: &Path, log: &str) -> Result<()> {
    let logs = Logs::new(&folder.join(format!("{log}.log")))?;
    let program = sink_binary()?;
    let process = Process::start("queen-s3 verify", &program, &["verify"], variables, &logs)?;
    let status = process.ended(VERIFY_LIMIT).await?;
    ensure!(
        status.success(),
        "queen-s3 verify ended with {status}:{}",
        logs.tail()
    );
    Ok(())
}

/// A Prometheus text exposition.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// The metrics of the sink whose health listener is at `address`.
    ///
    /// # Errors
    ///
    /// When it does not answer, as a sink that is just starting.
    pub async fn of(address: SocketAddr) -> Result<Self> {
        let answer = reqwest::get(format!("http://{address}/metrics")).await?;
        let text = answer.error_for_status()?.text().await?;
        Ok(Self { text })
    }

    /// The exposition as it came.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The sum of the samples of `name` that carry `label="value"`, all of them without one.
    /// `None` when there is no such sample.
    pub fn get(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let wanted = label.map(|(label, value)| format!("{label}=\"{value}\""));
        let samples = self.text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            let matches = wanted
                .as_ref()
                .is_none_or(|wanted| labels.contains(wanted.as_str()));
            if matches {
                value.trim().parse::<f64>().ok()
            } else {
                None
            }
        });
        samples.reduce(|sum, value| sum + value)
    }

    /// Records in committed windows, of `queue`.
    pub fn records_written(&self, queue: &str) -> u64 {
        // A counter is a whole number far below 2^53.
        self.get("queen_s3_records_written_total", Some(("queue", queue)))
            .unwrap_or(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn samples_are_found_by_name_and_label_and_summed() {
        let text =
            "# TYPE a counter\na{queue=\"x\",code=\"200\"} 2\na{queue=\"y\"} 3\nab 9\nb 1.5\n";
        let metrics = Metrics { text: text.into() };
        assert_eq!(metrics.get("a", None), Some(5.0));
        assert_eq!(metrics.get("a", Some(("queue", "x"))), Some(2.0));
        assert_eq!(metrics.get("b", None), Some(1.5));
        assert_eq!(metrics.get("c", None), None);
    }
}
