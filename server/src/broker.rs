//! The running broker: what all requests share, and its life from boot to stop.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use uuid::Uuid;

use crate::admission::Lanes;
use crate::config::Config;
use crate::consume::discovery::Positions;
use crate::consume::ids::SegmentIds;
use crate::database::{BootError, Database};
use crate::embedded::{EmbeddedSink, SinkState};
use crate::error::ApiError;
use crate::http::{self, Door, serve};
use crate::kv;
use crate::limits::{SPARE_DESCRIPTORS, STOP_GRACE};
use crate::log::cursor::CursorKey;
use crate::log::peers;
use crate::log::repeats::{self, Repeats};
use crate::log::seal::Vault;
use crate::log::waiters::Waiters;
use crate::metrics::Metrics;
use crate::retention;
use crate::session::Session;

/// What all requests share.
pub struct Broker {
    /// The configuration it was started with.
    pub config: Config,
    /// The database.
    pub database: Database,
    /// Parked fetches.
    pub waiters: Waiters,
    /// Writes that the other brokers are told of.
    pub outbox: peers::Outbox,
    /// Key of the cursors.
    pub cursor_key: CursorKey,
    /// Who may work, and who waits.
    pub lanes: Lanes,
    /// The key of encryption at rest, and what it is needed for.
    pub vault: Vault,
    /// Queues that take repeated transaction ids.
    pub repeats: Repeats,
    /// Where pops by namespace or task are.
    pub discoveries: Positions,
    /// Ids of records that were read for consumers.
    pub segment_ids: Arc<SegmentIds>,
    /// Counters and gauges.
    pub metrics: Metrics,
    /// The sink that the broker runs, if it runs one.
    pub sink: Option<Arc<SinkState>>,
    /// Names this process among the brokers of the database.
    pub instance: Uuid,
    /// Cancelled when the broker stops.
    pub stopping: CancellationToken,
    /// When it started.
    pub started: Instant,
}

impl Broker {
    /// A session for what nobody waits for, when requests leave one.
    ///
    /// # Errors
    ///
    /// As [`Database::client`], and once the broker stops.
    pub async fn background(&self) -> Result<Session, ApiError> {
        let slot = tokio::select! {
            slot = self.lanes.background() => slot,
            () = self.stopping.cancelled() => return Err(ApiError::Stopping),
        };
        self.database.client(slot).await
    }
}

/// The broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] BootError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; check PORT and QUEEN_LISTEN_HOST")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// A started broker, serving until it is stopped.
pub struct Running {
    broker: Arc<Broker>,
    address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
    background: TaskTracker,
    sink: Option<EmbeddedSink>,
    last_door: Option<std::net::TcpListener>,
}

impl Running {
    /// Opens the database, binds the address and serves.
    ///
    /// # Errors
    ///
    /// [`StartError`] says what to do.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let address = SocketAddr::new(config.listen_host, config.port);
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let own_sink = config
            .embedded
            .as_ref()
            .is_some_and(|sink| sink.queen_url.is_none());
        let (listener, last_door) = if own_sink {
            let listener = listener.into_std().map_err(listen)?;
            let last_door = listener.try_clone().map_err(listen)?;
            let listener = TcpListener::from_std(listener).map_err(listen)?;
            (listener, Some(last_door))
        } else {
            (listener, None)
        };
        let database = Database::open(&config.database).await?;
        let cursor_key = cursor_key(&database, &config).await?;
        let mut config = config;
        config.http.connections = affordable(&config);
        let lanes = Lanes::new(&config.lanes, config.database.connections);
        let broker = Arc::new(Broker {
            database,
            waiters: Waiters::default(),
            outbox: peers::Outbox::default(),
            cursor_key,
            vault: Vault::new(config.seal_key.clone()),
            repeats: Repeats::bounded(config.id_memory_bytes),
            discoveries: Positions::default(),
            segment_ids: Arc::default(),
            metrics: Metrics::new(&lanes),
            lanes,
            sink: config.embedded.as_ref().map(|_| Arc::default()),
            instance: Uuid::new_v4(),
            stopping: CancellationToken::new(),
            started: Instant::now(),
            config,
        });
        let background = TaskTracker::new();
        background.spawn(peers::run(Arc::clone(&broker)));
        background.spawn(kv::sweep::run(Arc::clone(&broker)));
        background.spawn(repeats::run(Arc::clone(&broker)));
        background.spawn(retention::run(Arc::clone(&broker)));
        background.close();

        let server = tokio::spawn(serve(
            listener,
            Door::Open,
            http::router(Arc::clone(&broker)),
            broker.config.http.clone(),
            broker.metrics.open_connections.clone(),
            broker.stopping.clone(),
        ));
        warn_of_doubtful(&broker.config);
        let sink = match (&broker.config.embedded, &broker.sink) {
            (Some(config), Some(state)) => Some(EmbeddedSink::start(
                config.clone(),
                address,
                Arc::clone(state),
            )),
            _ => None,
        };
        Ok(Self {
            broker,
            address,
            server,
            background,
            sink,
            last_door,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its requests share.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Serves until `signal` completes, then stops.
    ///
    /// # Errors
    ///
    /// When serving ends by itself, of a fault.
    pub async fn run_until(mut self, signal: impl Future<Output = ()>) -> std::io::Result<()> {
        tokio::select! {
            () = signal => self.stop().await,
            ended = &mut self.server => Ok(ended?),
        }
    }

    /// Takes no new requests, wakes the parked fetches, finishes what is in flight, stops the
    /// embedded sink, and ends.
    ///
    /// # Errors
    ///
    /// When serving has ended of a fault.
    pub async fn stop(mut self) -> std::io::Result<()> {
        self.broker.stopping.cancel();
        let outcome = match tokio::time::timeout(STOP_GRACE, &mut self.server).await {
            Ok(ended) => Ok(ended?),
            Err(_) => {
                tracing::warn!("requests were still in flight when the grace of a stop ended");
                self.server.abort();
                Ok(())
            }
        };
        if let Some(sink) = self.sink.take() {
            let last_door = self.last_door.take();
            let last_door = last_door.and_then(|door| self.serve_the_sink(door));
            sink.stop().await;
            drop(last_door);
        }
        self.background.wait().await;
        self.broker.database.close();
        outcome
    }

    /// Serves this machine alone until the handle is dropped: a stopping sink that reaches Queen through
    /// this broker has a window to commit after everyone else has been turned away.
    fn serve_the_sink(&self, door: std::net::TcpListener) -> Option<AbortOnDropHandle<()>> {
        let door = TcpListener::from_std(door)
            .inspect_err(|error| {
                tracing::warn!(%error, "the embedded sink stops without Queen: its next start writes its window again");
            })
            .ok()?;
        let router = http::router(Arc::clone(&self.broker));
        let http = self.broker.config.http.clone();
        let open = self.broker.metrics.open_connections.clone();
        let never = CancellationToken::new();
        let serving = serve(door, Door::Loopback, router, http, open, never);
        Some(AbortOnDropHandle::new(tokio::spawn(serving)))
    }
}

/// As many client connections as were asked for and files may be open.
fn affordable(config: &Config) -> usize {
    let asked = config.http.connections;
    let Some(files) = getrlimit(Resource::Nofile).current else {
        return asked;
    };
    let others = config.database.connections + SPARE_DESCRIPTORS;
    let most = usize::try_from(files)
        .unwrap_or(usize::MAX)
        .saturating_sub(others)
        .max(1);
    if most < asked {
        tracing::warn!(
            files,
            connections = most,
            "the limit of open files allows fewer connections than QUEEN_HTTP_CONNECTIONS"
        );
    }
    asked.min(most)
}

/// What boots and will hardly be what was meant.
fn warn_of_doubtful(config: &Config) {
    let Some(authority) = &config.authority else {
        return;
    };
    if authority.secret_is_short() {
        tracing::warn!("JWT_SECRET is shorter than 32 bytes: tokens can be forged by guessing it");
    }
    if config.embedded.as_ref().is_some_and(|sink| !sink.has_token) {
        tracing::warn!(
            "JWT_ENABLED is true and QUEEN_TOKEN is unset: every call of the embedded sink is \
             answered 401, and nothing is ever written"
        );
    }
}

async fn cursor_key(database: &Database, config: &Config) -> Result<CursorKey, BootError> {
    let address = format!("{:?}", config.database);
    let failed = |reason: String| BootError::Connect {
        address: address.clone(),
        reason,
    };
    let client = database
        .observer()
        .await
        .map_err(|error| failed(error.to_string()))?;
    let read = async {
        let statement = client
            .prepare_cached("SELECT cursor_key FROM queen.cluster")
            .await?;
        client.query_one(&statement, &[]).await
    };
    let row = read.await.map_err(|error| failed(error.to_string()))?;
    Ok(CursorKey::new(row.get(0)))
}
