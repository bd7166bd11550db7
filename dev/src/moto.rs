//! A second S3 server, unrelated to the first: `moto`, from the Python that has the readers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::python;
use crate::limits::{EXPORT_LIMIT, START_LIMIT};
use crate::logs::Logs;
use crate::process::Process;

/// What werkzeug says once it serves.
const RUNNING: &str = "Running on http://127.0.0.1:";

/// A signature that nobody checks.
const ANYBODY: &str = "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request, \
                       SignedHeaders=host, Signature=0";

/// Copies a bucket into a folder with boto3.
const EXPORT: &str = include_str!("moto_export.py");

/// An S3 server that keeps its buckets in memory. It takes any credentials and, unlike S3, any
/// digest. Dropping it stops it.
#[derive(Debug)]
pub struct Moto {
    address: SocketAddr,
    _process: Process,
    logs: Logs,
}

impl Moto {
    /// Starts a server on a free loopback port and makes `bucket` in it. Its log goes to
    /// `<folder>/moto.log`.
    ///
    /// # Errors
    ///
    /// When the Python has no `moto`: `scripts/setup run` installs it.
    pub async fn start(folder: &Path, bucket: &str) -> Result<Self> {
        let logs = Logs::new(&folder.join("moto.log"))?;
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
        let moto = Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            _process: process,
            logs,
        };
        let http = reqwest::Client::builder().no_proxy().build()?;
        let answer = http
            .put(format!("{}/{bucket}", moto.endpoint()))
            .send()
            .await?;
        ensure!(
            answer.status().is_success(),
            "moto makes no bucket {bucket}: {}",
            answer.status()
        );
        Ok(moto)
    }

    /// `http://127.0.0.1:<port>`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it wrote.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Puts `content` where an object is, as somebody else may.
    pub async fn replace(&self, bucket: &str, key: &str, content: Vec<u8>) -> Result<()> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("{}/{bucket}/{key}", self.endpoint());
        // It wants to see credentials, whosever they are.
        let put = http.put(url).header("Authorization", ANYBODY);
        let answer = put.body(content).send().await?;
        ensure!(
            answer.status().is_success(),
            "moto takes no {key}: {}",
            answer.status()
        );
        Ok(())
    }

    /// Copies every object of `bucket` to `<folder>/<bucket>/<key>`, with a client that shares
    /// nothing with the sink's.
    pub async fn export(&self, bucket: &str, folder: &Path) -> Result<()> {
        let logs = Logs::new(&folder.join(format!("{bucket}-export.log")))?;
        let (endpoint, folder) = (self.endpoint(), folder.display().to_string());
        let arguments = ["-c", EXPORT, &endpoint, bucket, &folder];
        let process = Process::start("export", &python(), &arguments, &[], &logs)?;
        let status = process.ended(EXPORT_LIMIT).await?;
        ensure!(
            status.success(),
            "the bucket {bucket} was not copied:{}",
            logs.tail()
        );
        Ok(())
    }
}
