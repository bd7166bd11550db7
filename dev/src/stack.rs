//! The parts together.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use private_postgres::{Options, PrivatePostgres};
use tempfile::TempDir;

use crate::broker::{Broker, BrokerOptions};
use crate::client::BrokerClient;
use crate::lake::Lake;
use crate::s3::S3Server;
use crate::sink::{Sink, SinkOptions};
use crate::store::{Store, StoreKind};

/// How to start a stack.
#[derive(Debug, Clone, Default)]
pub struct StackOptions {
    /// The folder for the bucket and the logs, kept afterwards. `None` is a temporary one, kept
    /// only when `QUEEN_DEV_KEEP` is set.
    pub dir: Option<PathBuf>,
    /// The broker's own.
    pub broker: BrokerOptions,
    /// Which S3 server it has.
    pub store: StoreKind,
}

/// A database, an S3 server and a broker. Sinks are started on it one by one.
///
/// The fields end in their order: the broker before its database.
#[derive(Debug)]
pub struct Stack {
    /// The broker.
    pub broker: Broker,
    /// The S3 server.
    pub s3: Store,
    /// The database.
    pub postgres: PrivatePostgres,
    dir: PathBuf,
    _temporary: Option<TempDir>,
}

impl Stack {
    /// The bucket that every stack has.
    pub const BUCKET: &str = "lake";

    /// `QUEEN_S3_PREFIX` of every sink.
    pub const PREFIX: &str = "queen";

    /// Starts the parts, those that can at the same time, and waits until all are ready.
    pub async fn start(options: StackOptions) -> Result<Self> {
        let (dir, temporary) = match options.dir {
            Some(dir) => (dir, None),
            None => {
                let keep = std::env::var_os("QUEEN_DEV_KEEP").is_some();
                let temporary = tempfile::Builder::new()
                    .prefix("queen-stack-")
                    .disable_cleanup(keep)
                    .tempdir()?;
                if keep {
                    eprintln!("the stack keeps its folder: {}", temporary.path().display());
                }
                (temporary.path().to_path_buf(), Some(temporary))
            }
        };
        let (buckets, logs) = (dir.join("s3"), dir.join("logs"));
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let database = async {
            let start = || PrivatePostgres::start(Options::throwaway());
            anyhow::Ok(tokio::task::spawn_blocking(start).await??)
        };
        let store = Store::start(options.store, &buckets, &logs, Self::BUCKET);
        let (postgres, s3) = tokio::try_join!(database, store)?;
        let broker = Broker::start(options.broker, &postgres, &logs).await?;
        Ok(Self {
            broker,
            s3,
            postgres,
            dir,
            _temporary: temporary,
        })
    }

    /// A client of the broker.
    pub fn client(&self) -> &BrokerClient {
        self.broker.client()
    }

    /// The folder with the bucket and the logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lake of the sink `name`.
    pub fn lake(&self, name: &str) -> Lake {
        self.s3.lake(Self::PREFIX, name)
    }

    /// Starts a sink between this broker and this bucket. Its log is named after its instance.
    pub fn sink(&self, options: &SinkOptions) -> Result<Sink> {
        Sink::start(
            self.variables(options),
            &self.dir.join("logs"),
            &options.instance,
        )
    }

    /// The variables that [`sink`](Self::sink) starts with.
    pub fn variables(&self, options: &SinkOptions) -> Vec<(String, String)> {
        let defaults = [
            ("QUEEN_URL", self.broker.url()),
            ("QUEEN_S3_SINK", options.name.clone()),
            ("QUEEN_S3_QUEUES", options.queues.clone()),
            ("QUEEN_S3_ENDPOINT", self.s3.endpoint()),
            ("QUEEN_S3_REGION", S3Server::REGION.into()),
            ("QUEEN_S3_BUCKET", Self::BUCKET.into()),
            ("QUEEN_S3_PREFIX", Self::PREFIX.into()),
            ("QUEEN_S3_ACCESS_KEY", self.s3.access_key().into()),
            ("QUEEN_S3_SECRET_KEY", self.s3.secret_key().into()),
            ("QUEEN_S3_PATH_STYLE", "true".into()),
            ("QUEEN_S3_START", "earliest".into()),
            ("QUEEN_S3_MAX_WINDOW_MS", "500".into()),
            ("QUEEN_S3_DISCOVERY_INTERVAL_MS", "200".into()),
            ("QUEEN_S3_SAFE_GUARD_MS", "0".into()),
            ("QUEEN_S3_LEASE_TTL_MS", "3000".into()),
            ("QUEEN_S3_LISTEN", "127.0.0.1:0".into()),
            ("QUEEN_S3_INSTANCE", options.instance.clone()),
        ];
        let mut variables: Vec<(String, String)> = defaults
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect();
        for (name, value) in &options.variables {
            variables.retain(|(known, _)| known != name);
            if !value.is_empty() {
                variables.push((name.clone(), value.clone()));
            }
        }
        variables
    }
}
