//! Sessions of PostgreSQL that end when an answer stays out.
//!
//! The server bounds each statement, as long as it runs. One that is stopped, or whose machine is cut off
//! behind a host that still acknowledges, answers nothing and closes nothing. So the broker has a bound of
//! its own, above the server's: past it the connection is cut, and whatever waits on it fails as it does
//! when a connection is lost. What a statement did is then unknown, as it is there.

use std::pin::pin;
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{CancelToken, Error, IsolationLevel, Row, RowStream, Statement};
use tokio_util::sync::CancellationToken;

use crate::error::describe;
use crate::tls::Tls;

/// A session on loan from its pool.
pub type Object = managed::Object<Sessions>;

/// A pool of sessions.
pub type Pool = managed::Pool<Sessions>;

/// Parameters of a statement.
type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Makes the sessions of a pool.
pub struct Sessions {
    config: tokio_postgres::Config,
    tls: Tls,
    answer_limit: Duration,
}

impl Sessions {
    /// Of sessions with these settings, whose statements are answered within `answer_limit` or not at all.
    pub fn new(config: tokio_postgres::Config, tls: Tls, answer_limit: Duration) -> Self {
        Self {
            config,
            tls,
            answer_limit,
        }
    }
}

impl managed::Manager for Sessions {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        let cut = CancellationToken::new();
        let driven = cut.clone();
        let driver = tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(error = describe(&error), "a database session ended");
                    }
                }
                () = driven.cancelled() => {}
            }
        });
        Ok(Session {
            client: ClientWrapper::new(client, driver),
            bound: Bound {
                cut,
                limit: self.answer_limit,
            },
        })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Error> {
        if session.client.is_closed() || session.bound.cut.is_cancelled() {
            return Err(RecycleError::message("the connection is closed"));
        }
        Ok(())
    }
}

/// How long an answer may stay out, and what cuts the connection then.
#[derive(Clone)]
struct Bound {
    cut: CancellationToken,
    limit: Duration,
}

impl Bound {
    async fn keep<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut answer = pin!(answer);
        if let Ok(answered) = timeout(self.limit, &mut answer).await {
            return answered;
        }
        tracing::warn!(
            after_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX),
            "PostgreSQL took a statement and does not answer: its session is cut"
        );
        self.cut.cancel();
        // Without its connection it fails.
        answer.await
    }
}

/// A session. Every statement is answered in time, or fails as with a lost connection.
pub struct Session {
    client: ClientWrapper,
    bound: Bound,
}

impl Session {
    /// A prepared statement, from the session's cache.
    pub async fn prepare_cached(&self, query: &str) -> Result<Statement, Error> {
        self.bound.keep(self.client.prepare_cached(query)).await
    }

    /// All rows of a statement.
    pub async fn query(
        &self,
        statement: &Statement,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.bound.keep(self.client.query(statement, values)).await
    }

    /// The one row of a statement.
    pub async fn query_one(&self, statement: &Statement, values: Values<'_>) -> Result<Row, Error> {
        let answer = self.client.query_one(statement, values);
        self.bound.keep(answer).await
    }

    /// The row of a statement that gives at most one.
    pub async fn query_opt(
        &self,
        statement: &Statement,
        values: Values<'_>,
    ) -> Result<Option<Row>, Error> {
        let answer = self.client.query_opt(statement, values);
        self.bound.keep(answer).await
    }

    /// The rows of a statement as they come: each has to be awaited with [`next`](Self::next).
    pub async fn query_raw(
        &self,
        statement: &Statement,
        values: Values<'_>,
    ) -> Result<RowStream, Error> {
        let answer = self.client.query_raw(statement, values.iter().copied());
        self.bound.keep(answer).await
    }

    /// What comes next of rows of this session.
    pub async fn next<T>(&self, row: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.bound.keep(row).await
    }

    /// Runs a statement, and tells how many rows it was about.
    pub async fn execute(&self, statement: &Statement, values: Values<'_>) -> Result<u64, Error> {
        self.bound
            .keep(self.client.execute(statement, values))
            .await
    }

    /// Runs statements without parameters.
    pub async fn batch_execute(&self, statements: &str) -> Result<(), Error> {
        self.bound.keep(self.client.batch_execute(statements)).await
    }

    /// Begins a transaction.
    pub async fn begin(
        &mut self,
        isolation: IsolationLevel,
        read_only: bool,
    ) -> Result<Transaction<'_>, Error> {
        let bound = self.bound.clone();
        let begun = self
            .client
            .build_transaction()
            .isolation_level(isolation)
            .read_only(read_only)
            .start();
        let inner = bound.keep(begun).await?;
        Ok(Transaction { inner, bound })
    }

    /// What cancels the statement that runs.
    pub fn cancel_token(&self) -> CancelToken {
        self.client.cancel_token()
    }
}

/// A transaction. Dropped without a commit, it is rolled back.
pub struct Transaction<'a> {
    inner: deadpool_postgres::Transaction<'a>,
    bound: Bound,
}

impl Transaction<'_> {
    /// As [`Session::prepare_cached`].
    pub async fn prepare_cached(&self, query: &str) -> Result<Statement, Error> {
        self.bound.keep(self.inner.prepare_cached(query)).await
    }

    /// As [`Session::query`].
    pub async fn query(
        &self,
        statement: &Statement,
        values: Values<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.bound.keep(self.inner.query(statement, values)).await
    }

    /// As [`Session::query_one`].
    pub async fn query_one(&self, statement: &Statement, values: Values<'_>) -> Result<Row, Error> {
        let answer = self.inner.query_one(statement, values);
        self.bound.keep(answer).await
    }

    /// As [`Session::execute`].
    pub async fn execute(&self, statement: &Statement, values: Values<'_>) -> Result<u64, Error> {
        self.bound.keep(self.inner.execute(statement, values)).await
    }

    /// Undoes it.
    pub async fn rollback(self) -> Result<(), Error> {
        self.bound.keep(self.inner.rollback()).await
    }

    /// Makes it durable.
    pub async fn commit(self) -> Result<(), Error> {
        self.bound.keep(self.inner.commit()).await
    }
}
