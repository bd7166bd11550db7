//! The connection to PostgreSQL: pool and session settings.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    BuildError, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, Status,
    TimeoutType, Timeouts,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use crate::admission::Slot;
use crate::config::DatabaseConfig;
use crate::error::{ApiError, describe};
use crate::limits::{
    ANSWER_MARGIN, CONNECT_TIMEOUT, CONNECTION_WAIT, LANE_SHARES, OBSERVING_SHARE, SILENCE_LIMIT,
    SILENCE_PROBE, SILENCE_PROBES, SILENT_SESSIONS,
};
use crate::session::{Connector, Ends, Session, verify};
use crate::tls::Stream;

mod schema;

/// The database cannot be used; the broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// No connection.
    #[error(
        "cannot connect to PostgreSQL at {address}: {reason}; check PG_HOST, PG_PORT, PG_USER, PG_PASSWORD, PG_DB and PG_SSLMODE"
    )]
    Connect {
        /// Where.
        address: String,
        /// Why, in the server's or the system's words.
        reason: String,
    },
    /// It does not answer any more.
    #[error(
        "PostgreSQL at {address} has not taken a connection for {} s while the schema \"queen\" was brought \
         up to date: see to that server, or name another one in PG_HOST and PG_PORT; what was unfinished is \
         undone, so start the broker again",
        .silence.as_secs()
    )]
    Silent {
        /// Where.
        address: String,
        /// For how long.
        silence: Duration,
    },
    /// The server replays another's log.
    #[error("PostgreSQL at {0} is a standby: point PG_HOST at the primary")]
    Standby(String),
    /// The server is too old.
    #[error("PostgreSQL at {address} is version {version}; the broker needs 15 or later")]
    TooOld {
        /// Where.
        address: String,
        /// What `server_version` says.
        version: String,
    },
    /// The schema cannot be brought up to date.
    #[error("cannot bring the schema \"queen\" of {address} up to date: {reason}")]
    Migrate {
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
}

/// Sessions that are set up the same way, in two pools: those of the lanes and the background, and
/// those kept free for what goes through no lane, so that it answers while all lanes are full.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    observing: Pool,
    /// Discovery leaves a session to health, where there are two.
    discovering: Arc<Semaphore>,
    /// When one of them ended.
    ends: Arc<Ends>,
    config: DatabaseConfig,
}

/// Of so many sessions, those kept free for what goes through no lane.
pub fn observing(sessions: usize) -> usize {
    (sessions * OBSERVING_SHARE / LANE_SHARES).max(1)
}

impl Database {
    /// Connects, checks the server, brings the schema up to date, and opens the pool.
    ///
    /// Brokers that boot at once wait for one another.
    ///
    /// # Errors
    ///
    /// [`BootError`] says what to do.
    pub async fn open(config: &DatabaseConfig) -> Result<Self, BootError> {
        let address = format!("{config:?}");
        let checked = schema::open(config, &address).await?;
        let config = &DatabaseConfig {
            synchronous_commit: Some(checked.synchronous_commit),
            ..config.clone()
        };

        let observers = observing(config.connections);
        let ends = Arc::<Ends>::default();
        let pool = |size| {
            pool(config, size, &ends).map_err(|error| BootError::Connect {
                address: address.clone(),
                reason: error.to_string(),
            })
        };
        Ok(Self {
            pool: pool(config.connections - observers)?,
            observing: pool(observers)?,
            discovering: Arc::new(Semaphore::new(observers.saturating_sub(1).max(1))),
            ends,
            config: config.clone(),
        })
    }

    /// A session from the pool, for who has a slot: that is kept for as long as the database may work on
    /// what the session is asked.
    ///
    /// # Errors
    ///
    /// `503` when none is free in time or the server is away.
    pub async fn client(&self, slot: Slot) -> Result<Session, ApiError> {
        Ok(self.session(&self.pool).await?.keeping(slot))
    }

    /// A session that no lane can take.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client).
    pub async fn observer(&self) -> Result<Session, ApiError> {
        self.session(&self.observing).await
    }

    async fn session(&self, pool: &Pool) -> Result<Session, ApiError> {
        let got = tokio::select! {
            got = timeout(SESSION_WAIT, pool.get()) => got,
            () = self.ends.silent(SILENT_SESSIONS) => {
                // All that lie in the pool would have to be asked before a new one is made.
                return Err(ApiError::Unavailable("PostgreSQL does not answer".into()));
            }
        };
        match got {
            Ok(Ok(object)) => Ok(Session::new(
                object,
                self.config.statement_timeout + ANSWER_MARGIN,
                Arc::clone(&self.ends),
                self.config.tls.clone(),
            )),
            Ok(Err(error)) => {
                if matches!(error, PoolError::Timeout(TimeoutType::Create)) {
                    self.ends.note_silence();
                }
                Err(error.into())
            }
            Err(_) => Err(ApiError::SlowSession("no session in time".into())),
        }
    }

    /// As [`observer`](Self::observer), a session for discovery.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client).
    pub async fn discoverer(&self) -> Result<Session, ApiError> {
        let turn = Arc::clone(&self.discovering).acquire_owned();
        // Nobody closes it.
        let Ok(Ok(turn)) = timeout(CONNECTION_WAIT, turn).await else {
            return Err(ApiError::SlowSession(
                "no session for discovery in time".into(),
            ));
        };
        Ok(self.observer().await?.keeping(turn))
    }

    /// A session of its own outside of the pool, with the connection to drive.
    ///
    /// # Errors
    ///
    /// As [`client`](Self::client).
    pub async fn separate(&self) -> Result<(Client, Connection<Socket, Stream<Socket>>), ApiError> {
        connect(&self.config, self.config.statement_timeout)
            .await
            .map_err(ApiError::Unavailable)
    }

    /// Pooled sessions in use and at most.
    pub fn usage(&self) -> (usize, usize) {
        let (lanes, observing) = (self.pool.status(), self.observing.status());
        let used = |status: &Status| status.size.saturating_sub(status.available);
        (
            used(&lanes) + used(&observing),
            lanes.max_size + observing.max_size,
        )
    }

    /// Closes the pools: sessions end as they come back.
    pub fn close(&self) {
        self.pool.close();
        self.observing.close();
    }
}

/// A session is free, verified or new within this time, or it is not worth waiting for.
const SESSION_WAIT: Duration = CONNECTION_WAIT.saturating_add(CONNECT_TIMEOUT);

fn pool(config: &DatabaseConfig, size: usize, ends: &Arc<Ends>) -> Result<Pool, BuildError> {
    let connector = Connector {
        tls: config.tls.clone(),
        ends: Arc::clone(ends),
    };
    let manager = Manager::from_connect(
        session(config, config.statement_timeout),
        connector,
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let timeouts = Timeouts {
        wait: Some(CONNECTION_WAIT),
        create: Some(CONNECT_TIMEOUT),
        recycle: None,
    };
    Pool::builder(manager)
        .max_size(size)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .pre_recycle(verify(Arc::clone(ends)))
        .build()
}

/// Session settings. The plans of the broker's statements must not depend on when statistics were
/// gathered last: all of them walk indexes from a list of keys, so joins are nested loops.
fn session(config: &DatabaseConfig, statement_timeout: Duration) -> tokio_postgres::Config {
    let mut options = String::new();
    for (name, value) in [
        (
            "default_transaction_isolation",
            "read\\ committed".to_owned(),
        ),
        (
            "statement_timeout",
            statement_timeout.as_millis().to_string(),
        ),
        ("lock_timeout", config.lock_timeout.as_millis().to_string()),
        (
            "idle_in_transaction_session_timeout",
            config.idle_timeout.as_millis().to_string(),
        ),
        ("plan_cache_mode", "force_generic_plan".to_owned()),
        ("enable_seqscan", "off".to_owned()),
        ("enable_hashjoin", "off".to_owned()),
        ("enable_mergejoin", "off".to_owned()),
        ("enable_material", "off".to_owned()),
        ("enable_bitmapscan", "off".to_owned()),
        ("max_parallel_workers_per_gather", "0".to_owned()),
        ("jit", "off".to_owned()),
        ("timezone", "UTC".to_owned()),
    ] {
        options.push_str(&format!("-c {name}={value} "));
    }
    if let Some(value) = &config.synchronous_commit {
        options.push_str(&format!("-c synchronous_commit={value} "));
    }
    let mut postgres = tokio_postgres::Config::new();
    postgres
        .port(config.port)
        .user(&config.user)
        .dbname(&config.database)
        .application_name("queen")
        .ssl_mode(config.tls.mode())
        .connect_timeout(CONNECT_TIMEOUT)
        .keepalives_idle(SILENCE_PROBE)
        .keepalives_interval(SILENCE_PROBE)
        .keepalives_retries(SILENCE_PROBES)
        .tcp_user_timeout(SILENCE_LIMIT)
        .options(options.trim_end());
    if config.host.starts_with('/') {
        postgres.host_path(&config.host);
    } else {
        postgres.host(&config.host);
    }
    if let Some(password) = &config.password {
        postgres.password(password);
    }
    postgres
}

/// Whether the server takes a session, or says why it does not.
async fn answers(config: &DatabaseConfig) -> bool {
    let session = session(config, config.statement_timeout);
    match timeout(CONNECT_TIMEOUT, session.connect(config.tls.clone())).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.as_db_error().is_some(),
        Err(_) => false,
    }
}

async fn connect(
    config: &DatabaseConfig,
    statement_timeout: Duration,
) -> Result<(Client, Connection<Socket, Stream<Socket>>), String> {
    let session = session(config, statement_timeout);
    // The limit of the session is that of its socket: a server that is stopped takes the connection, too.
    match timeout(CONNECT_TIMEOUT, session.connect(config.tls.clone())).await {
        Ok(connected) => connected.map_err(|error| describe(&error)),
        Err(_) => Err(format!(
            "a connection is not answered within {} s",
            CONNECT_TIMEOUT.as_secs()
        )),
    }
}

/// What a connection outside of the pool brings: notifications, for one that listens.
pub type Message = AsyncMessage;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn every_session_notices_a_server_that_vanished_without_a_word() {
        let config = Config::from_lookup(|_| None::<String>)
            .expect("defaults")
            .database;
        let session = session(&config, config.statement_timeout);
        assert_eq!(session.get_tcp_user_timeout(), Some(&SILENCE_LIMIT));
        assert_eq!(session.get_connect_timeout(), Some(&CONNECT_TIMEOUT));
        let every = session.get_keepalives_interval().expect("an interval");
        let probes = session.get_keepalives_retries().expect("a number of them");
        assert!(session.get_keepalives());
        // On Linux the limit is looked at when a probe is due.
        assert_eq!(
            session.get_keepalives_idle() + every * probes,
            SILENCE_LIMIT
        );
    }
}
