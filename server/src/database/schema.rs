//! What is checked of a server at boot, and the schema that the broker keeps there.

use std::future::Future;
use std::time::Duration;

use refinery::Report;
use refinery::error::Kind;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_util::task::AbortOnDropHandle;

use super::{BootError, answers, connect};
use crate::config::DatabaseConfig;
use crate::error::describe;
use crate::limits::{
    LOCK_CLASS_MIGRATE, MIGRATION_ATTEMPTS, MIGRATION_LOCK_WAIT, MIGRATION_PAUSE, MIGRATION_PROBE,
    MIGRATION_SILENCE,
};

mod embedded {
    refinery::embed_migrations!("sql/migrations");
}

/// The oldest server the broker runs on.
const OLDEST_SERVER: i32 = 150_000;

/// What the server is set to and the broker has to make up for.
pub struct Checked {
    /// What every session sets, so that nobody switches it off under the broker: as the server has it,
    /// and `on` where it is `off`, with which a crash would lose what was acknowledged.
    pub synchronous_commit: String,
}

/// Checks the server and brings the schema up to date, for as long as that takes while the server lives.
///
/// # Errors
///
/// [`BootError`] says what to do.
pub async fn open(config: &DatabaseConfig, address: &str) -> Result<Checked, BootError> {
    let connected = connect(config, Duration::ZERO).await;
    let (mut client, connection) = connected.map_err(|reason| BootError::Connect {
        address: address.into(),
        reason,
    })?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let work = check_and_migrate(&mut client, address);
    match while_answered(work, async || answers(config).await).await {
        Some(outcome) => outcome,
        None => Err(BootError::Silent {
            address: address.into(),
            silence: MIGRATION_SILENCE,
        }),
    }
}

/// What work comes to; nothing, once the server has answered to none that `ask` for [`MIGRATION_SILENCE`]. A
/// statement has no other limit here: how long a migration takes, or another broker's, nobody can tell.
async fn while_answered<T>(
    work: impl Future<Output = T>,
    mut ask: impl AsyncFnMut() -> bool,
) -> Option<T> {
    let silence = async {
        let mut told = false;
        let mut last = Instant::now();
        while last.elapsed() < MIGRATION_SILENCE {
            sleep(MIGRATION_PROBE).await;
            if ask().await {
                last = Instant::now();
                if !told {
                    tracing::info!(
                        "the schema is brought up to date, here or by another broker; waiting"
                    );
                    told = true;
                }
            } else {
                tracing::warn!("PostgreSQL does not answer while the schema is brought up to date");
            }
        }
    };
    tokio::select! {
        outcome = work => Some(outcome),
        () = silence => None,
    }
}

async fn check_and_migrate(client: &mut Client, address: &str) -> Result<Checked, BootError> {
    let failed = |reason: String| BootError::Migrate {
        address: address.into(),
        reason,
    };
    let row = client
        .query_one(
            "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int,
                    current_setting('server_version'),
                    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                         ELSE current_setting('synchronous_commit') END,
                    current_setting('fsync') = 'off'",
            &[],
        )
        .await
        .map_err(|error| failed(describe(&error)))?;
    if row.get(0) {
        return Err(BootError::Standby(address.into()));
    }
    if row.get::<_, i32>(1) < OLDEST_SERVER {
        return Err(BootError::TooOld {
            address: address.into(),
            version: row.get(2),
        });
    }
    if row.get(4) {
        tracing::warn!(
            "fsync is off on this PostgreSQL: a crash of its machine loses acknowledged records"
        );
    }
    let checked = Checked {
        synchronous_commit: row.get(3),
    };
    // Waiting for another broker's migrations may take longer than any lock of a request. The lock
    // goes with the session.
    client
        .batch_execute(&format!(
            "SET lock_timeout = 0;
             SELECT pg_advisory_lock({LOCK_CLASS_MIGRATE}, 0);
             SET lock_timeout = {};
             CREATE SCHEMA IF NOT EXISTS queen;",
            MIGRATION_LOCK_WAIT.as_millis()
        ))
        .await
        .map_err(|error| failed(describe(&error)))?;
    let report = migrate(client).await.map_err(|error| {
        let advice = match error.kind() {
            _ if is_lock_away(&error) => {
                "; a transaction holds what the migration needs: end it, and brokers of an older version"
            }
            Kind::DivergentVersion(..) | Kind::MissingVersion(_) => {
                "; the schema is of another version of the broker: run that one, or name a database \
                 without it in PG_DB"
            }
            _ => "",
        };
        failed(format!("{error:#}{advice}"))
    })?;
    for migration in report.applied_migrations() {
        tracing::info!(%migration, "schema migrated");
    }
    client
        .batch_execute(&format!(
            "SELECT pg_advisory_unlock({LOCK_CLASS_MIGRATE}, 0)"
        ))
        .await
        .map_err(|error| failed(describe(&error)))?;
    Ok(checked)
}

/// Applies the migrations that are missing. One that does not get a lock at once lets go of its others
/// and asks again: requests of other brokers would wait behind it for as long as it waits.
async fn migrate(client: &mut Client) -> Result<Report, refinery::Error> {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name("queen.migrations");
    let mut attempt = 1;
    loop {
        match runner.run_async(client).await {
            Err(error) if attempt < MIGRATION_ATTEMPTS && is_lock_away(&error) => {
                tracing::warn!(
                    attempt,
                    "a migration waits for a lock that another session of the database holds"
                );
                attempt += 1;
                sleep(MIGRATION_PAUSE).await;
            }
            done => return done,
        }
    }
}

fn is_lock_away(error: &refinery::Error) -> bool {
    let Kind::Connection(_, source) = error.kind() else {
        return false;
    };
    let code = source
        .downcast_ref::<tokio_postgres::Error>()
        .and_then(tokio_postgres::Error::code);
    code == Some(&SqlState::LOCK_NOT_AVAILABLE) || code == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_schema_is_made_in_one_place() {
        let mut made = std::collections::BTreeSet::new();
        for migration in embedded::migrations::runner().get_migrations() {
            let sql = migration.sql().unwrap_or_default();
            for statement in sql.split("\nCREATE ").skip(1) {
                let name = statement
                    .trim_start_matches("OR REPLACE ")
                    .strip_prefix("FUNCTION queen.")
                    .and_then(|rest| rest.split('(').next());
                if let Some(name) = name {
                    assert!(made.insert(name.to_owned()), "{name}: {migration}");
                }
            }
        }
        assert!(made.len() > 20, "{made:?}");
    }

    /// Answers for ever, as given and then with the last of them.
    fn answering(answers: &'static [bool]) -> impl AsyncFnMut() -> bool {
        let mut next = answers.iter().copied();
        let mut last = false;
        async move || {
            last = next.next().unwrap_or(last);
            last
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_migration_is_waited_for_as_long_as_the_server_answers_now_and_then() {
        let day = || sleep(Duration::from_secs(86_400));
        assert!(while_answered(day(), answering(&[true])).await.is_some());
        let mut count = 0;
        let now_and_then = async || {
            count += 1;
            count % 3 == 0
        };
        assert!(while_answered(day(), now_and_then).await.is_some());
        let begun = Instant::now();
        assert!(
            while_answered(day(), answering(&[true, false]))
                .await
                .is_none()
        );
        let (most, took) = (MIGRATION_PROBE + MIGRATION_SILENCE, begun.elapsed());
        assert!(took >= MIGRATION_SILENCE && took <= most, "{took:?}");
    }
}
