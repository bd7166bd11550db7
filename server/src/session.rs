//! Sessions with PostgreSQL, as requests borrow them. What a session is asked is answered in time, or the
//! session is given up; one that ended, or may have, is given to nobody.

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{Connect, Hook, HookError, Metrics, Object};
use futures_util::TryStreamExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Row, Statement, ToStatement};

use crate::error::{ApiError, describe};
use crate::limits::{CONNECT_TIMEOUT, SESSION_DOUBT, SESSION_PING, SESSION_TRUST};
use crate::tls::Tls;

/// Why a statement has no result.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server refused it, or the session ended.
    #[error("{}", describe(.0))]
    Database(#[from] Error),
    /// The server said nothing in this time, in which it would have refused it at least.
    #[error("PostgreSQL has not answered a statement within {} s", .0.as_secs())]
    Silent(Duration),
}

impl Failure {
    /// The state that the server gave.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            Self::Silent(_) => None,
        }
    }

    /// Whether the session is of no use any more.
    fn ends_session(&self) -> bool {
        match self {
            Self::Database(error) => ends_session(error),
            Self::Silent(_) => true,
        }
    }
}

/// Whether the session is over: a server that ends one says so in its last answer, or only closes it.
pub fn ends_session(error: &Error) -> bool {
    let last = error.as_db_error().is_some_and(|answer| {
        matches!(
            answer.parsed_severity(),
            Some(Severity::Fatal | Severity::Panic)
        )
    });
    last || error.is_closed() || comes_from_io(error)
}

/// Without a state from the server, a connection that failed is told from a fault of the broker by
/// the system's error behind it.
fn comes_from_io(error: &tokio_postgres::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |inner| inner.source())
        .any(|inner| inner.is::<std::io::Error>())
}

/// Does what only reads, and once more where the session ended under it.
///
/// # Errors
///
/// Those of `work`.
pub async fn read_again<T, W: Future<Output = Result<T, ApiError>>>(
    work: impl Fn() -> W,
) -> Result<T, ApiError> {
    match work().await {
        Err(error) if error.is_cut() => work().await,
        outcome => outcome,
    }
}

/// What became of the sessions of a broker: where one ended, others may have.
#[derive(Debug, Default)]
pub struct Ends {
    last: Mutex<Option<Instant>>,
    /// How often a server that was asked said nothing.
    silences: watch::Sender<u64>,
}

impl Ends {
    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Notes that the server was asked and said nothing.
    pub fn note_silence(&self) {
        self.note();
        self.silences.send_modify(|count| *count += 1);
    }

    /// Completes when sessions were asked from now on and `count` of them had no answer.
    pub async fn silent(&self, count: u64) {
        let mut silences = self.silences.subscribe();
        let enough = *silences.borrow() + count;
        // The sender is this value's own.
        let _ = silences.wait_for(|count| *count >= enough).await;
    }

    /// Whether a session that lay in the pool has to be asked before it is given out.
    fn doubt(&self, metrics: &Metrics) -> bool {
        if metrics.last_used() >= SESSION_TRUST {
            return true;
        }
        let given = metrics.recycled.unwrap_or(metrics.created);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last >= given || last.elapsed() < SESSION_DOUBT)
    }
}

/// Asks a session that lay in the pool, where there is doubt, whether its server still answers.
pub fn verify(ends: Arc<Ends>) -> Hook {
    Hook::async_fn(move |client, metrics| {
        let ends = Arc::clone(&ends);
        Box::pin(async move {
            if client.is_closed() {
                return Err(HookError::message("the session has ended"));
            }
            if !ends.doubt(metrics) {
                return Ok(());
            }
            match timeout(SESSION_PING, client.simple_query("")).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => {
                    ends.note();
                    Err(HookError::Backend(error))
                }
                Err(_) => {
                    ends.note_silence();
                    Err(HookError::message("the server does not answer"))
                }
            }
        })
    })
}

/// Makes sessions whose end is noted.
pub struct Connector {
    /// How they are protected.
    pub tls: Tls,
    /// Where it is noted.
    pub ends: Arc<Ends>,
}

type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + 'a>>;

impl Connect for Connector {
    fn connect(&self, config: &Config) -> Connecting<'_> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let ends = Arc::clone(&self.ends);
            let driver = tokio::spawn(async move {
                // One that the broker ended itself says nothing about others.
                if let Err(error) = connection.await {
                    ends.note();
                    tracing::warn!(error = describe(&error), "a database session ended");
                }
            });
            Ok((client, driver))
        })
    }
}

/// A session from the pool. It goes back there when it is dropped, unless it ended, or what it was asked is
/// dropped without an answer: that is cancelled, and the session given to nobody else. One that was silent
/// for too long keeps its place in the pool until the server has answered or the connection is gone: the server
/// may work on it for as long.
pub struct Session {
    object: Option<Object>,
    watch: Watch,
    tls: Tls,
    kept: Option<Box<dyn Any + Send + Sync>>,
}

/// What is known of a session while it is lent.
struct Watch {
    /// Longest wait for an answer.
    limit: Duration,
    ends: Arc<Ends>,
    /// Statements that somebody waits for, or has dropped.
    asked: AtomicUsize,
    over: AtomicBool,
    /// An answer that nobody waits for any more may still come.
    silent: AtomicBool,
}

impl Watch {
    async fn answered<T>(
        &self,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let outcome = match timeout(self.limit, asking).await {
            Ok(outcome) => outcome.map_err(Failure::Database),
            // Nor is it cancelled: a commit that waits for a standby would be there without it then.
            Err(_) => Err(Failure::Silent(self.limit)),
        };
        self.asked.fetch_sub(1, Ordering::Relaxed);
        if let Err(failure) = &outcome
            && failure.ends_session()
        {
            self.over.store(true, Ordering::Relaxed);
            if matches!(failure, Failure::Silent(_)) {
                self.silent.store(true, Ordering::Relaxed);
            }
            self.ends.note();
        }
        outcome
    }
}

type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Session {
    /// Lends what the pool gave. An answer takes no longer than `limit`.
    pub fn new(object: Object, limit: Duration, ends: Arc<Ends>, tls: Tls) -> Self {
        Self {
            object: Some(object),
            watch: Watch {
                limit,
                ends,
                asked: AtomicUsize::new(0),
                over: AtomicBool::new(false),
                silent: AtomicBool::new(false),
            },
            tls,
            kept: None,
        }
    }

    /// Keeps `kept` for as long as the database may work on what this session is asked.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept = Some(Box::new(kept));
        self
    }

    fn object(&self) -> &Object {
        match &self.object {
            Some(object) => object,
            None => unreachable!("only the end of a session takes it"),
        }
    }

    /// A statement, prepared once per session.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Failure> {
        let asking = self.object().prepare_cached(sql);
        self.watch.answered(asking).await
    }

    /// All rows of a statement.
    ///
    /// # Errors
    ///
    /// [`Failure`]: of what it writes nothing is known, unless the server gave a state.
    pub async fn query<S: ToStatement + Sync + ?Sized>(
        &self,
        statement: &S,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let asking = self.object().query(statement, values);
        self.watch.answered(asking).await
    }

    /// The one row of a statement.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    pub async fn query_one<S: ToStatement + Sync + ?Sized>(
        &self,
        statement: &S,
        values: Values<'_>,
    ) -> Result<Row, Failure> {
        let asking = self.object().query_one(statement, values);
        self.watch.answered(asking).await
    }

    /// The row of a statement that may have none.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    pub async fn query_opt<S: ToStatement + Sync + ?Sized>(
        &self,
        statement: &S,
        values: Values<'_>,
    ) -> Result<Option<Row>, Failure> {
        let asking = self.object().query_opt(statement, values);
        self.watch.answered(asking).await
    }

    /// Gives the rows of a statement to `work` as they come.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query); `work` was given the rows before it.
    pub async fn each_row<S: ToStatement + Sync + ?Sized>(
        &self,
        statement: &S,
        values: Values<'_>,
        mut work: impl FnMut(&Row),
    ) -> Result<(), Failure> {
        let asking = async {
            let rows = self
                .object()
                .query_raw(statement, values.iter().copied())
                .await?;
            let mut rows = pin!(rows);
            while let Some(row) = rows.try_next().await? {
                work(&row);
            }
            Ok(())
        };
        self.watch.answered(asking).await
    }

    /// How many rows a statement wrote.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    pub async fn execute<S: ToStatement + Sync + ?Sized>(
        &self,
        statement: &S,
        values: Values<'_>,
    ) -> Result<u64, Failure> {
        let asking = self.object().execute(statement, values);
        self.watch.answered(asking).await
    }

    /// Asks for nothing but an answer.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub async fn ping(&self) -> Result<(), Failure> {
        self.batch_execute("SELECT 1").await
    }

    async fn batch_execute(&self, statements: &str) -> Result<(), Failure> {
        let asking = self.object().batch_execute(statements);
        self.watch.answered(asking).await
    }

    /// A transaction of these modes, in the words of `START TRANSACTION`. Nobody else asks the session until it ends.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub async fn transaction(&mut self, modes: &str) -> Result<Transaction<'_>, Failure> {
        self.batch_execute(&format!("START TRANSACTION {modes}"))
            .await?;
        Ok(Transaction {
            session: self,
            open: true,
        })
    }

    /// Gives the session back, or ends it where nobody may get it. What is kept goes when the database no
    /// longer works on it.
    fn release(&mut self) {
        let Some(object) = self.object.take() else {
            return;
        };
        let kept = self.kept.take();
        let asked = self.watch.asked.load(Ordering::Relaxed) > 0;
        if !asked && !self.watch.over.load(Ordering::Relaxed) {
            return;
        }
        // Without a runtime the process is about to end, and its sessions with it.
        let runtime = tokio::runtime::Handle::try_current();
        if self.watch.silent.load(Ordering::Relaxed)
            && let Ok(runtime) = &runtime
        {
            runtime.spawn(async move {
                // Its answer comes after the one that is missing, or the connection ends.
                let _ = object.simple_query("").await;
                drop(Object::take(object));
                drop(kept);
            });
            return;
        }
        let session = Object::take(object);
        if !asked {
            return;
        }
        let Ok(runtime) = runtime else {
            return;
        };
        let tls = self.tls.clone();
        runtime.spawn(async move {
            let cancel = session.cancel_token();
            match timeout(CONNECT_TIMEOUT, cancel.cancel_query(tls)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(error = describe(&error), "a statement was not cancelled");
                }
                Err(_) => tracing::debug!("a statement was not cancelled in time"),
            }
            drop(session);
            drop(kept);
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.release();
    }
}

/// A transaction: asked like the session that it is on. Dropped unfinished it ends with the session.
pub struct Transaction<'s> {
    session: &'s Session,
    open: bool,
}

impl Deref for Transaction<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session
    }
}

impl Transaction<'_> {
    /// Ends it, with all that it wrote.
    ///
    /// # Errors
    ///
    /// [`Failure`]: whether it was written is known only where the server gave a state.
    pub async fn commit(self) -> Result<(), Failure> {
        self.end("COMMIT").await
    }

    /// Ends it, with nothing written.
    ///
    /// # Errors
    ///
    /// [`Failure`]: nothing is written all the same.
    pub async fn rollback(self) -> Result<(), Failure> {
        if self.session.watch.over.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.end("ROLLBACK").await
    }

    async fn end(mut self, statement: &str) -> Result<(), Failure> {
        let outcome = self.session.batch_execute(statement).await;
        self.open = outcome.is_err();
        outcome
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            self.session.watch.over.store(true, Ordering::Relaxed);
        }
    }
}
