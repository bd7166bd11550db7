//! The broker as a real process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};
use private_postgres::{PrivatePostgres, Signal};

use crate::binaries::broker_binary;
use crate::client::BrokerClient;
use crate::limits::START_LIMIT;
use crate::logs::Logs;
use crate::process::{Process, eventually};

/// How to start the broker.
#[derive(Debug, Clone, Default)]
pub struct BrokerOptions {
    /// Variables on top of those for the address and the database.
    pub variables: Vec<(String, String)>,
}

/// A broker on a loopback port that stays the same over restarts.
#[derive(Debug)]
pub struct Broker {
    variables: Vec<(String, String)>,
    /// Where it brings a database of its own, if it does.
    own_database: Option<PathBuf>,
    port: u16,
    process: Option<Process>,
    logs: Logs,
    client: BrokerClient,
}

impl Broker {
    /// Starts the broker on `database` and waits until it is healthy. Its log goes to `folder`.
    pub async fn start(
        options: BrokerOptions,
        database: &PrivatePostgres,
        folder: &Path,
    ) -> Result<Self> {
        let mut variables = vec![
            ("PG_HOST".to_owned(), database.host().to_owned()),
            ("PG_PORT".into(), database.port().to_string()),
            ("PG_USER".into(), database.user().into()),
            ("PG_PASSWORD".into(), database.password().into()),
            ("PG_DB".into(), database.database().into()),
        ];
        variables.extend(options.variables);
        Self::start_with(variables, None, folder).await
    }

    /// Starts `queen --dev`, which brings a database of its own in `database/.queen`. Its log goes
    /// to `folder`.
    pub async fn start_dev(options: BrokerOptions, database: &Path, folder: &Path) -> Result<Self> {
        Self::start_with(options.variables, Some(database.into()), folder).await
    }

    async fn start_with(
        variables: Vec<(String, String)>,
        own_database: Option<PathBuf>,
        folder: &Path,
    ) -> Result<Self> {
        let logs = Logs::new(&folder.join("queen.log"))?;
        let client = BrokerClient::new("http://127.0.0.1:0")?;
        let mut broker = Self {
            variables,
            own_database,
            port: 0,
            process: None,
            logs,
            client,
        };
        broker.start_again().await?;
        Ok(broker)
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A client of this broker.
    pub fn client(&self) -> &BrokerClient {
        &self.client
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What it wrote, over all its restarts.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Its exit status, once it has ended.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.as_ref().and_then(Process::status)
    }

    /// Sends `signal` if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Kills the broker with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the broker with SIGTERM and waits until it has drained.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(process) = self.process.take() else {
            return Ok(());
        };
        process.signal(Signal::TERM);
        let status = process.ended(START_LIMIT).await?;
        if !status.success() {
            bail!("the broker ended with {status}:{}", self.logs.tail());
        }
        Ok(())
    }

    /// Starts the broker again, on the port that it had, and waits until it is healthy.
    pub async fn start_again(&mut self) -> Result<()> {
        let mark = self.logs.mark();
        let process = self.spawn()?;
        let port = process.listening_port(mark, START_LIMIT).await?;
        if port != self.port {
            self.port = port;
            self.client = BrokerClient::new(&self.url())?;
        }
        let client = &self.client;
        eventually(START_LIMIT, async || match process.status() {
            Some(status) => bail!("the broker ended ({status}):{}", self.logs.tail()),
            None => Ok(client.is_healthy().await.then_some(())),
        })
        .await
        .context("the broker did not become healthy")?;
        self.process = Some(process);
        Ok(())
    }

    /// Starts the broker again, on the port that it had, and waits for nothing: it may well end at
    /// once, where its database is away.
    pub fn launch_again(&mut self) -> Result<()> {
        self.process = Some(self.spawn()?);
        Ok(())
    }

    /// A new process in the place of the one that there is, which ends first.
    fn spawn(&mut self) -> Result<Process> {
        self.process = None;
        let mut variables = self.variables.clone();
        variables.push(("PORT".into(), self.port.to_string()));
        let program = broker_binary()?;
        match &self.own_database {
            Some(place) => {
                Process::start_in(place, "queen", &program, &["--dev"], &variables, &self.logs)
            }
            None => Process::start("queen", &program, &[], &variables, &self.logs),
        }
    }
}
