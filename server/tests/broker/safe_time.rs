use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queen::timestamp::Timestamp;
use queen_protocol::ChangedResponse;

use crate::support::{Fixture, until};

/// What hides nothing and lies this far behind is the floor alone.
const GUARD: Duration = Duration::from_secs(5);
/// A degraded answer lies at least this far behind.
const SAFE_FLOOR: Duration = Duration::from_secs(30);

fn instant(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

async fn clock(session: &tokio_postgres::Client) -> Timestamp {
    session
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0)
}

/// How far `answer` lies behind the database's clock, at most.
async fn behind(session: &tokio_postgres::Client, answer: &ChangedResponse) -> Duration {
    let now = clock(session).await;
    Duration::from_micros((now.micros() - instant(&answer.safe_time).micros()).unsigned_abs())
}

async fn safe_time(fixture: &Fixture) -> ChangedResponse {
    fixture.changed(r#"{"entries":[]}"#).await
}

/// Until the floor alone would be above `start`.
async fn until_floor_passes(fixture: &Fixture, session: &tokio_postgres::Client, start: Timestamp) {
    until(|| async {
        safe_time(fixture).await;
        let floor: Timestamp = session
            .query_one("SELECT ts FROM queen.floor", &[])
            .await
            .unwrap()
            .get(0);
        floor > start
    })
    .await;
}

#[tokio::test]
async fn a_long_write_transaction_of_another_session_pins_it_until_it_ends() {
    let fixture = Fixture::start().await;
    let (writer, observer) = (fixture.session().await, fixture.session().await);
    writer
        .batch_execute("BEGIN; SELECT nextval('queen.kv_version')")
        .await
        .unwrap();
    let start: Timestamp = writer
        .query_one("SELECT transaction_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    until_floor_passes(&fixture, &observer, start).await;
    let pinned = safe_time(&fixture).await;
    assert_eq!(instant(&pinned.safe_time), start);
    assert!(!pinned.safe_time_degraded);
    writer.batch_execute("COMMIT").await.unwrap();
    assert!(instant(&safe_time(&fixture).await.safe_time) > start);
}

#[tokio::test]
async fn an_idle_session_neither_pins_nor_degrades_it() {
    let fixture = Fixture::start().await;
    let (idle, observer) = (fixture.session().await, fixture.session().await);
    idle.batch_execute("BEGIN; SELECT nextval('queen.kv_version'); COMMIT")
        .await
        .unwrap();
    let start = clock(&observer).await;
    until_floor_passes(&fixture, &observer, start).await;
    let answer = safe_time(&fixture).await;
    assert!(instant(&answer.safe_time) > start);
    assert!(!answer.safe_time_degraded);
    assert!(behind(&observer, &answer).await >= GUARD);
}

/// A session in another database of the same server.
async fn other_database(
    fixture: &Fixture,
    session: &tokio_postgres::Client,
) -> tokio_postgres::Client {
    session
        .batch_execute("CREATE DATABASE other")
        .await
        .unwrap();
    let mut config = tokio_postgres::Config::new();
    config
        .host(fixture.postgres.host())
        .port(fixture.postgres.port())
        .user(fixture.postgres.user())
        .password(fixture.postgres.password())
        .dbname("other");
    crate::support::connect(&config).await
}

#[tokio::test]
async fn another_database_of_the_server_does_not_pin_it() {
    let fixture = Fixture::start().await;
    let observer = fixture.session().await;
    let other = other_database(&fixture, &observer).await;
    other
        .batch_execute("BEGIN; CREATE TABLE t (n int)")
        .await
        .unwrap();
    let start = clock(&observer).await;
    until_floor_passes(&fixture, &observer, start).await;
    let answer = safe_time(&fixture).await;
    assert!(instant(&answer.safe_time) > start && !answer.safe_time_degraded);
}

#[tokio::test]
async fn a_role_that_must_not_see_other_sessions_degrades_it_and_the_grant_mends_it() {
    let fixture = Fixture::start().await;
    let admin = fixture.session().await;
    admin
        .batch_execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        .await
        .unwrap();
    admin
        .batch_execute("CREATE DATABASE app OWNER plain")
        .await
        .unwrap();
    let other = fixture
        .another(&[
            ("PG_USER", "plain"),
            ("PG_PASSWORD", "plain"),
            ("PG_DB", "app"),
        ])
        .await;
    // A session of another role in the same database, which `plain` must not look into.
    let mut config = tokio_postgres::Config::new();
    config
        .host(fixture.postgres.host())
        .port(fixture.postgres.port())
        .user(fixture.postgres.user())
        .password(fixture.postgres.password())
        .dbname("app");
    let hidden = crate::support::connect(&config).await;
    hidden
        .batch_execute("BEGIN; SELECT nextval('queen.kv_version')")
        .await
        .unwrap();

    let ask = || fixture.post_to(&other, "/api/v1/partitions/changed", "{}");
    let answer: ChangedResponse = ask().await.typed();
    assert!(answer.safe_time_degraded);
    assert!(behind(&admin, &answer).await >= SAFE_FLOOR);

    admin
        .batch_execute("GRANT pg_read_all_stats TO plain")
        .await
        .unwrap();
    let answer: ChangedResponse = ask().await.typed();
    assert!(!answer.safe_time_degraded);
    assert!(behind(&admin, &answer).await < SAFE_FLOOR);
}

#[tokio::test]
async fn a_prepared_transaction_degrades_it() {
    let fixture = Fixture::with(&[], &[("max_prepared_transactions", "2")]).await;
    let session = fixture.session().await;
    session
        .batch_execute("BEGIN; SELECT nextval('queen.kv_version'); PREPARE TRANSACTION 'p'")
        .await
        .unwrap();
    let answer = safe_time(&fixture).await;
    assert!(answer.safe_time_degraded);
    assert!(behind(&session, &answer).await >= SAFE_FLOOR);
    session.batch_execute("COMMIT PREPARED 'p'").await.unwrap();
    assert!(!safe_time(&fixture).await.safe_time_degraded);
}

#[tokio::test]
async fn a_prepared_transaction_of_another_database_does_not_degrade_it() {
    let fixture = Fixture::with(&[], &[("max_prepared_transactions", "2")]).await;
    let observer = fixture.session().await;
    let other = other_database(&fixture, &observer).await;
    other
        .batch_execute("BEGIN; CREATE TABLE t (n int); PREPARE TRANSACTION 'p'")
        .await
        .unwrap();
    let start = clock(&observer).await;
    until_floor_passes(&fixture, &observer, start).await;
    let answer = safe_time(&fixture).await;
    assert!(instant(&answer.safe_time) > start && !answer.safe_time_degraded);
}

#[tokio::test]
async fn a_session_that_does_not_report_its_activity_degrades_it() {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    session
        .batch_execute("SET track_activities = off")
        .await
        .unwrap();
    until(|| async { safe_time(&fixture).await.safe_time_degraded }).await;
    drop(session);
    until(|| async { !safe_time(&fixture).await.safe_time_degraded }).await;
}

/// Its start is not known, and it may have chosen its `ts` already.
#[tokio::test]
async fn a_writing_transaction_whose_start_was_not_reported_degrades_it() {
    let fixture = Fixture::start().await;
    let (session, observer) = (fixture.session().await, fixture.session().await);
    session
        .batch_execute("SET track_activities = off")
        .await
        .unwrap();
    session
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .await
        .unwrap();
    session
        .batch_execute("SET track_activities = on")
        .await
        .unwrap();
    session.batch_execute("SELECT 1").await.unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE state = 'idle in transaction' AND xact_start IS NULL AND backend_xid IS NOT NULL";
    let seen: i64 = observer.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(seen, 1, "the session is not what this test is about");
    let answer = safe_time(&fixture).await;
    assert!(answer.safe_time_degraded);
    assert!(behind(&observer, &answer).await >= SAFE_FLOOR);
    session.batch_execute("COMMIT").await.unwrap();
    assert!(!safe_time(&fixture).await.safe_time_degraded);
}

#[tokio::test]
async fn a_degraded_answer_is_pinned_by_what_can_be_seen() {
    let short = [
        ("QUEEN_FETCH_SAFE_FLOOR_MS", "1000"),
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "300"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "300"),
        ("QUEEN_PG_IDLE_TIMEOUT_MS", "300"),
    ];
    let fixture = Fixture::with(&short, &[]).await;
    let (pins, hidden) = (fixture.session().await, fixture.session().await);
    pins.batch_execute("BEGIN; SELECT 1").await.unwrap();
    let start: Timestamp = pins
        .query_one("SELECT transaction_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    until_floor_passes(&fixture, &hidden, start).await;
    hidden
        .batch_execute("SET track_activities = off")
        .await
        .unwrap();
    let answer = safe_time(&fixture).await;
    assert!(answer.safe_time_degraded);
    assert_eq!(instant(&answer.safe_time), start);
}

#[tokio::test]
async fn an_autovacuum_in_progress_neither_pins_nor_degrades_it() {
    let fixture = Fixture::with(
        &[],
        &[
            ("autovacuum_naptime", "1s"),
            ("autovacuum_vacuum_cost_limit", "1"),
            ("autovacuum_vacuum_cost_delay", "100ms"),
        ],
    )
    .await;
    let session = fixture.session().await;
    session
        .batch_execute(
            "CREATE TABLE large AS SELECT n, repeat('x', 500) AS t FROM generate_series(1, 20000) n;
             DELETE FROM large",
        )
        .await
        .unwrap();
    let sql = "SELECT xact_start FROM pg_stat_activity
               WHERE backend_type = 'autovacuum worker' AND query LIKE '%large%'";
    let worker = || async {
        let row = session.query_opt(sql, &[]).await.unwrap();
        row.and_then(|row| row.get::<_, Option<Timestamp>>(0))
    };
    until(|| async { worker().await.is_some() }).await;
    let start = worker().await.unwrap();
    until_floor_passes(&fixture, &session, start).await;
    let answer = safe_time(&fixture).await;
    assert_eq!(worker().await, Some(start), "the worker has ended");
    assert!(instant(&answer.safe_time) > start);
    assert!(!answer.safe_time_degraded);
}

/// The look at the tables must come after the look at the transactions: this one commits in
/// between, older than the guard.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_transaction_commits_between_the_two_looks_is_named() {
    let fixture = Fixture::start().await;
    fixture.push("q", "first", &["1"]).await;
    let (writer, holder, observer) = (
        fixture.session().await,
        fixture.session().await,
        fixture.session().await,
    );
    writer.batch_execute("BEGIN").await.unwrap();
    push_in(&writer, "late").await;
    let ts: Timestamp = writer
        .query_one("SELECT max(ts) FROM queen.segments", &[])
        .await
        .unwrap()
        .get(0);
    let guard = i64::try_from(GUARD.as_micros()).unwrap();
    until(|| async { clock(&observer).await.micros() > ts.micros() + guard }).await;
    // An answer raises the floor first: it waits there, before it looks at anything.
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.floor FOR UPDATE")
        .await
        .unwrap();
    let asking = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#);
    let committing = async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until(|| async {
            let row = observer.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
        writer.batch_execute("COMMIT").await.unwrap();
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (answer, ()) = tokio::join!(asking, committing);
    assert!(instant(&answer.safe_time) > ts, "the guard has passed it");
    let mut names = answer.entries[0].partitions.iter().map(|p| &p.name);
    assert!(names.any(|name| name == "late"));
}

/// A push of one record by a session that decides itself when to commit.
async fn push_in(session: &tokio_postgres::Client, partition: &str) {
    session
        .execute(
            "SELECT queen.push('00000000-0000-0000-0000-000000000001', ARRAY['q'], ARRAY[$1],
                 ARRAY[1::int8], ARRAY[1], ARRAY[0::int8], ARRAY[1], ARRAY[1], ARRAY[1::int8],
                 ARRAY['x'::bytea])",
            &[&partition],
        )
        .await
        .unwrap();
}

/// Transactions older than the guard commit while answers are taken: what an answer does not show
/// must carry a `ts` at or above its `safeTime`. An answer whose tables are read under a snapshot
/// from before the look at the activity misses the ones that commit in between.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_does_not_show_is_never_below_its_safe_time() {
    const WRITERS: usize = 40;
    let fixture = Fixture::start().await;
    fixture.push("q", "first", &["1"]).await;
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let session = fixture.session().await;
        session.batch_execute("BEGIN").await.unwrap();
        push_in(&session, &format!("late-{number}")).await;
        writers.push(session);
    }
    let observer = fixture.session().await;
    let youngest = clock(&observer).await;
    until(|| async {
        Duration::from_micros((clock(&observer).await.micros() - youngest.micros()).unsigned_abs())
            > GUARD + Duration::from_millis(200)
    })
    .await;

    let answers = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    let ask = async {
        while !done.load(Ordering::Relaxed) {
            let answer = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
            answers.lock().unwrap().push(answer);
        }
    };
    let commit = async {
        for session in &writers {
            session.batch_execute("COMMIT").await.unwrap();
            // Spread over the answers: the next one begins before the next commit.
            let seen = answers.lock().unwrap().len();
            until(|| async { answers.lock().unwrap().len() > seen }).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    tokio::join!(commit, ask);

    let rows = observer
        .query(
            "SELECT p.name, s.ts FROM queen.partitions p JOIN queen.segments s ON s.partition_id = p.id",
            &[],
        )
        .await
        .unwrap();
    let answers = answers.into_inner().unwrap();
    assert!(answers.len() > WRITERS / 2);
    for answer in &answers {
        let safe = instant(&answer.safe_time);
        for row in &rows {
            let (name, ts): (&str, Timestamp) = (row.get(0), row.get(1));
            let named = answer.entries[0]
                .partitions
                .iter()
                .any(|partition| partition.name == name);
            assert!(
                named || ts >= safe,
                "{name} of {ts} is not named, below safeTime {safe}"
            );
        }
    }
}
