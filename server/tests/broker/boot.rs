use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use private_postgres::{Options, PrivatePostgres};
use queen::admission::Slot;
use queen::broker::Running;
use queen::error::ApiError;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::support::{Fixture, config, connect, until};

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_boot_at_once_on_an_empty_database_all_serve() {
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let starts = (0..4).map(|_| Running::start(config(&postgres, &[])));
    for started in futures_util::future::join_all(starts).await {
        let running = started.unwrap();
        let health = reqwest::get(format!("http://{}/health", running.address()))
            .await
            .unwrap();
        assert_eq!(health.status(), 200);
    }
}

#[tokio::test]
async fn a_standby_is_refused() {
    let mut postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    postgres.stop();
    std::fs::write(postgres.dir().join("data/standby.signal"), "").unwrap();
    postgres.restart().unwrap();
    let error = Running::start(config(&postgres, &[]))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("standby"), "{error}");
}

#[tokio::test]
async fn an_unreachable_database_and_a_taken_port_say_what_to_check() {
    let fixture = Fixture::start().await;
    let port = fixture.broker.address().port().to_string();
    let taken = config(&fixture.postgres, &[("PORT", &port)]);
    let error = Running::start(taken).await.err().unwrap().to_string();
    assert!(error.contains("PORT"), "{error}");
    let wrong = config(
        &fixture.postgres,
        &[("PG_HOST", "127.0.0.1"), ("PG_PASSWORD", "wrong-secret")],
    );
    let error = Running::start(wrong).await.err().unwrap().to_string();
    assert!(
        error.contains("PG_PASSWORD") && !error.contains("wrong-secret"),
        "{error}"
    );
}

#[tokio::test]
async fn a_stop_answers_the_parked_fetches() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let other = fixture.another(&[]).await;
    let url = format!("http://{}/api/v1/fetch", other.address());
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30000}"#;
    let parked =
        tokio::spawn(async move { reqwest::Client::new().post(url).body(body).send().await });
    let broker = std::sync::Arc::clone(other.broker());
    until(|| async { broker.waiters.count() == 1 }).await;
    timeout(Duration::from_secs(10), other.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(parked.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_the_slots_that_background_work_waits_for() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    let broker = std::sync::Arc::clone(other.broker());
    // Commits that wait for a standby keep them for as long.
    let _taken = [
        broker.lanes.background().await,
        broker.lanes.background().await,
    ];
    let waiting = async || broker.background().await.err();
    let waiting = timeout(Duration::from_secs(30), waiting());
    let (stopped, ended) = tokio::join!(other.stop(), waiting);
    stopped.unwrap();
    let error = ended.unwrap().unwrap();
    assert!(matches!(error, ApiError::Stopping), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finishes_the_pushes_that_are_in_flight() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let other = fixture.another(&[]).await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions FOR UPDATE")
        .await
        .unwrap();
    let url = format!("http://{}/api/v1/push", other.address());
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;
    let pushing =
        tokio::spawn(async move { reqwest::Client::new().post(url).body(body).send().await });
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE wait_event_type = 'Lock' AND query LIKE '%queen.push%'";
    until(|| async { observer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1 }).await;
    let broker = std::sync::Arc::clone(other.broker());
    let stopping = tokio::spawn(other.stop());
    until(|| async { broker.stopping.is_cancelled() }).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(pushing.await.unwrap().unwrap().status(), 201);
    stopping.await.unwrap().unwrap();
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

/// What `safeTime` assumes of the broker's own writes when it cannot see them.
#[tokio::test]
async fn every_session_carries_the_write_timeouts_whatever_the_server_is_set_to() {
    let off = [
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
        ("idle_in_transaction_session_timeout", "0"),
    ];
    let variables = [
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "7000"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "3000"),
        ("QUEEN_PG_IDLE_TIMEOUT_MS", "2000"),
    ];
    let fixture = Fixture::with(&variables, &off).await;
    let database = &fixture.broker.broker().database;
    let (separate, connection) = database.separate().await.unwrap();
    tokio::spawn(connection);
    let sql =
        "SELECT current_setting('statement_timeout') || ' ' || current_setting('lock_timeout')
                   || ' ' || current_setting('idle_in_transaction_session_timeout')";
    let (lane, observer) = (
        database.client(Slot::default()).await,
        database.observer().await,
    );
    for row in [
        separate.query_one(sql, &[]).await.unwrap(),
        lane.unwrap().query_one(sql, &[]).await.unwrap(),
        observer.unwrap().query_one(sql, &[]).await.unwrap(),
    ] {
        assert_eq!(row.get::<_, String>(0), "7s 3s 2s");
    }
}

#[test]
fn dev_brings_a_database_of_its_own_and_stops_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    // The account that runs PostgreSQL must be able to reach its folder.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let log = folder.path().join("log");
    let start = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_queen"))
            .arg("--dev")
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("PORT", "0")
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (child, line)
    };
    // The second start finds the first one's database.
    for _ in 0..2 {
        let (mut child, line) = start();
        assert!(
            line.starts_with("queen ") && line.contains(" listening=http://127.0.0.1:"),
            "{line}\n{}",
            std::fs::read_to_string(&log).unwrap()
        );
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success(),
            "{status}\n{}",
            std::fs::read_to_string(&log).unwrap()
        );
    }
    assert!(folder.path().join(".queen").is_dir());
}

#[test]
fn a_wrong_configuration_exits_2_and_names_every_variable() {
    let output = Command::new(env!("CARGO_BIN_EXE_queen"))
        .env_clear()
        .env("PORT", "seventy")
        .env("QUEEN_TENANCY_HEADER", "maybe")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("PORT") && text.contains("QUEEN_TENANCY_HEADER"),
        "{text}"
    );
}

/// As a secret is that somebody took raw from a generator of random bytes.
#[test]
fn a_value_that_is_no_text_exits_2_and_names_the_variable() {
    for name in [
        "JWT_SECRET",
        "QUEEN_ENCRYPTION_KEY",
        "PG_PASSWORD",
        "JWT_AUDIENCE",
        "PORT",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_queen"))
            .env_clear()
            .env("JWT_ENABLED", "true")
            .env("JWT_SECRET", "0123456789abcdef0123456789abcdef")
            .env(name, OsStr::from_bytes(b"hunter2\xff\xfe"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(&format!("{name}: ")), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn an_argument_that_is_no_text_exits_2_and_shows_the_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_queen"))
        .env_clear()
        .arg(OsStr::from_bytes(b"\xff"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("usage: queen"), "{text}");
}

#[test]
fn write_timeouts_that_do_not_fit_below_the_safe_floor_exit_2_and_say_what_to_change() {
    let output = Command::new(env!("CARGO_BIN_EXE_queen"))
        .env_clear()
        .env("QUEEN_FETCH_SAFE_FLOOR_MS", "30000")
        .env("QUEEN_PG_STATEMENT_TIMEOUT_MS", "20000")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    for name in [
        "QUEEN_FETCH_SAFE_FLOOR_MS",
        "QUEEN_PG_STATEMENT_TIMEOUT_MS",
        "QUEEN_PG_LOCK_TIMEOUT_MS",
        "QUEEN_PG_IDLE_TIMEOUT_MS",
    ] {
        assert!(text.contains(name), "{text}");
    }
}

#[tokio::test]
async fn commits_are_waited_for_whatever_the_server_is_set_to() {
    for (set, expected) in [("off", "on"), ("remote_write", "remote_write")] {
        let fixture = Fixture::with(&[], &[("synchronous_commit", set)]).await;
        let client = fixture.broker.broker().database.observer().await.unwrap();
        let row = client.query_one("SHOW synchronous_commit", &[]).await;
        assert_eq!(row.unwrap().get::<_, String>(0), expected);
    }
}

#[tokio::test]
async fn commits_are_waited_for_when_the_server_is_set_not_to_after_the_broker_began() {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    session
        .batch_execute("ALTER SYSTEM SET synchronous_commit = off")
        .await
        .unwrap();
    session
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    let shown = |client: Client| async move {
        let row = client.query_one("SHOW synchronous_commit", &[]).await;
        row.unwrap().get::<_, String>(0)
    };
    until(|| async { shown(fixture.session().await).await == "off" }).await;
    let database = &fixture.broker.broker().database;
    let (client, connection) = database.separate().await.unwrap();
    tokio::spawn(connection);
    assert_eq!(shown(client).await, "on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_does_not_get_a_lock_lets_others_pass_and_asks_again() {
    let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
    let mut admin = tokio_postgres::Config::new();
    admin
        .host_path(postgres.socket_dir())
        .port(postgres.port())
        .user(postgres.user())
        .password(postgres.password())
        .dbname(postgres.database());
    let holder = connect(&admin).await;
    holder
        .batch_execute(
            "CREATE SCHEMA queen;
             CREATE TABLE queen.migrations (version int4 PRIMARY KEY, name varchar(255),
                 applied_on varchar(255), checksum varchar(255))",
        )
        .await
        .unwrap();
    holder
        .batch_execute("BEGIN; LOCK TABLE queen.migrations IN SHARE MODE")
        .await
        .unwrap();
    let observer = connect(&admin).await;
    let releasing = async {
        let sql = "SELECT xact_start FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.migrations%'";
        let waiting = || async {
            let row = observer.query_opt(sql, &[]).await.unwrap();
            row.map(|row| row.get::<_, std::time::SystemTime>(0))
        };
        until(|| async { waiting().await.is_some() }).await;
        let first = waiting().await;
        until(|| async { matches!(waiting().await, now if now.is_some() && now != first) }).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let starting = async { Running::start(config(&postgres, &[])).await.unwrap() };
    tokio::join!(starting, releasing);
}

/// What the broker's sources name in the schema, functions apart from all else.
fn named(folder: &Path, functions: &mut BTreeSet<String>, relations: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, functions, relations);
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for (before, _) in source.match_indices("queen.") {
            // In statements alone: after a blank, an opening or a quote.
            if !source[..before].ends_with([' ', '(', '\'']) {
                continue;
            }
            let rest = &source[before + "queen.".len()..];
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
            if name.is_empty() {
                continue;
            }
            if rest.starts_with('(') {
                functions.insert(name.to_owned());
            } else {
                relations.insert(name.to_owned());
            }
        }
    }
}

#[tokio::test]
async fn a_fresh_database_has_all_that_the_brokers_statements_name() {
    let fixture = Fixture::start().await;
    let (mut functions, mut relations) = (BTreeSet::new(), BTreeSet::new());
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    named(Path::new(sources), &mut functions, &mut relations);
    assert!(
        functions.len() > 10 && relations.len() > 10,
        "{functions:?} {relations:?}"
    );
    let session = fixture.session().await;
    let has_function = "SELECT count(*) FROM pg_proc
                        WHERE pronamespace = 'queen'::regnamespace AND proname = $1";
    for name in functions {
        let row = session.query_one(has_function, &[&name]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1, "queen.{name}(…)");
    }
    // Comments name functions, too.
    let has = "SELECT count(*) FROM (
                   SELECT relname AS name FROM pg_class WHERE relnamespace = 'queen'::regnamespace
                   UNION SELECT proname FROM pg_proc WHERE pronamespace = 'queen'::regnamespace
               ) n WHERE n.name = $1";
    for name in relations {
        let row = session.query_one(has, &[&name]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 1, "queen.{name}");
    }
}

#[tokio::test]
async fn a_schema_of_another_version_is_refused_with_what_to_do() {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    for change in [
        "UPDATE queen.migrations SET checksum = '1' WHERE version = 1",
        "DELETE FROM queen.migrations WHERE version = 1;
         INSERT INTO queen.migrations SELECT 99, 'later', applied_on, checksum
         FROM queen.migrations WHERE version = 2",
    ] {
        session.batch_execute(change).await.unwrap();
        let start = Running::start(config(&fixture.postgres, &[]));
        let error = start.await.err().unwrap().to_string();
        assert!(
            error.contains("another version") && error.contains("PG_DB"),
            "{error}"
        );
    }
}
