//! A second S3 server, unrelated to the first: `moto`, from the Python that has the readers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::python;
use crate::bucket_copy::BucketCopy;
use crate::fault_proxy::{FaultProxy, Faults};
use crate::lake::Lake;
use crate::limits::START_LIMIT;
use crate::logs::Logs;
use crate::process::Process;

/// What werkzeug says once it serves.
const RUNNING: &str = "Running on http://127.0.0.1:";

/// A signature that nobody checks: `moto` wants to see credentials, whosever they are.
pub(crate) const ANYBODY: &str = "AWS4-HMAC-SHA256 \
    Credential=anybody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// An S3 server that keeps its one bucket in memory. It takes any credentials and, unlike S3, any
/// digest. Dropping it stops it.
///
/// It forgets everything with its process. What it is reached through is what goes away instead.
#[derive(Debug)]
pub struct Moto {
    gate: FaultProxy,
    copy: Arc<BucketCopy>,
    _process: Process,
}

impl Moto {
    /// Starts a server on a free loopback port and makes `bucket` in it. The copies that a look at
    /// its lakes takes are in `<root>/<bucket>`; its log goes to `<logs>/moto.log`.
    ///
    /// # Errors
    ///
    /// When the Python has no `moto`: `scripts/setup run` installs it.
    pub async fn start(root: &Path, logs: &Path, bucket: &str) -> Result<Self> {
        let logs = Logs::new(&logs.join("moto.log"))?;
        let arguments = ["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"];
        let process = Process::start("moto", &python(), &arguments, &[], &logs)
            .context("start moto; scripts/setup run installs it")?;
        let said = tokio::select! {
            line = logs.wait_for(0, START_LIMIT, |line| line.contains(RUNNING)) => line?,
            status = process.ended(START_LIMIT) => {
                bail!("moto ended at start ({}):{}", status?, logs.tail())
            }
        };
        let (_, port) = said.split_once(RUNNING).context("moto says no port")?;
        let digits = port.split(|c: char| !c.is_ascii_digit()).next();
        let port: u16 = digits.unwrap_or_default().parse()?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let url = format!("http://{server}/{bucket}");
        let http = reqwest::Client::builder().no_proxy().build()?;
        let answer = http.put(&url).send().await?;
        ensure!(
            answer.status().is_success(),
            "moto makes no bucket {bucket}: {}",
            answer.status()
        );
        Ok(Self {
            // Its dice are never cast: a fault happens always or never.
            gate: FaultProxy::tcp(server, 0).await?,
            copy: Arc::new(BucketCopy::new(&url, root.join(bucket))?),
            _process: process,
        })
    }

    /// Where it is reached.
    pub fn address(&self) -> SocketAddr {
        self.gate.address()
    }

    /// The lake of `sink` under `prefix`. Whoever reads it reads a copy that is brought up to date
    /// first, also while the server is out of reach for others.
    pub fn lake(&self, prefix: &str, sink: &str) -> Lake {
        Lake::copied(Arc::clone(&self.copy), prefix, sink)
    }

    /// Puts `content` under `key`, as somebody else may.
    pub async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        self.copy.put(key, content).await
    }

    /// Lets every piece of traffic wait half as long as `delay` on its way in and on its way out.
    pub fn delay(&self, delay: Duration) {
        self.gate.set(Faults {
            latency: delay / 2,
            ..Faults::default()
        });
    }

    /// Resets every connection as soon as it is used.
    pub fn stop(&self) {
        self.gate.set(Faults {
            resets: 1_000,
            ..Faults::default()
        });
    }

    /// Lets everybody through again, to all that it held.
    pub fn start_again(&self) {
        self.gate.set(Faults::default());
    }
}
