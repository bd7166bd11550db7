//! A broker whose database fails under load: it loses no acknowledged push, shows no record twice,
//! and recovers without being started again.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use queen_dev::{BrokerOptions, Event, PrivatePostgres, Stack, StackOptions, WAIT, eventually};
use queen_e2e::{Load, check_log};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

use crate::stack_with;

const QUEUE: &str = "orders";

/// A superuser's session on the broker's database.
async fn session(postgres: &PrivatePostgres) -> Result<tokio_postgres::Client> {
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(postgres.socket_dir())
        .port(postgres.port())
        .user(postgres.user())
        .dbname(postgres.database());
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn stack_of(variables: &[(&str, &str)]) -> Result<Stack> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    let options = StackOptions {
        broker: BrokerOptions {
            variables: variables.collect(),
        },
        ..StackOptions::default()
    };
    let stack = Stack::start(options).await?;
    stack.client().configure(QUEUE).await?;
    Ok(stack)
}

async fn metric(stack: &Stack, name: &str) -> Result<f64> {
    let text = stack.client().metrics().await?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line
        .with_context(|| format!("no {name} in:\n{text}"))?
        .trim()
        .parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_stopped_and_killed_under_load_loses_nothing_acknowledged() -> Result<()>
{
    let mut stack = stack_with(&[QUEUE]).await?;
    let load = Load::start(stack.client(), QUEUE, 4, 20, 10);
    for kill in [false, true, false] {
        load.goes_on(300).await?;
        tokio::task::block_in_place(|| {
            if kill {
                stack.postgres.kill();
            }
            stack.postgres.restart()
        })?;
    }
    load.goes_on(300).await?;
    ensure!(load.refused() > 0, "no push noticed the database ending");
    load.check(stack.client(), QUEUE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_cut_in_the_middle_of_a_push_lose_nothing_acknowledged() -> Result<()> {
    let stack = stack_with(&[QUEUE]).await?;
    let session = session(&stack.postgres).await?;
    let load = Load::start(stack.client(), QUEUE, 4, 5, 20);
    let mut cut = 0;
    while cut < 50 {
        load.goes_on(40).await?;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE application_name = 'queen' AND state = 'active' AND query LIKE '%queen.push%'";
        cut += session.query_one(sql, &[]).await?.get::<_, i64>(0);
    }
    load.goes_on(300).await?;
    ensure!(load.refused() > 0, "no push noticed its session ending");
    load.check(stack.client(), QUEUE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_frozen_under_load_and_goes_on_loses_nothing_acknowledged() -> Result<()>
{
    let stack = stack_of(&[("QUEEN_PG_STATEMENT_TIMEOUT_MS", "1000")]).await?;
    let load = Load::start(stack.client(), QUEUE, 4, 5, 10);
    for _ in 0..2 {
        load.goes_on(100).await?;
        let frozen = stack.postgres.freeze()?;
        let before = load.refused();
        eventually(WAIT, async || {
            Ok((load.refused() >= before + 40).then_some(()))
        })
        .await
        .context("pushes hang")?;
        drop(frozen);
    }
    load.goes_on(300).await?;
    load.check(stack.client(), QUEUE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_time_out_are_refused_and_pushes_go_on_afterwards() -> Result<()> {
    let stack = stack_of(&[
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "500"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "3000"),
    ])
    .await?;
    let session = session(&stack.postgres).await?;
    let load = Load::start(stack.client(), QUEUE, 4, 5, 10);
    load.goes_on(100).await?;
    session
        .batch_execute("BEGIN; LOCK TABLE queen.segments IN SHARE MODE")
        .await?;
    let before = load.refused();
    eventually(WAIT, async || {
        Ok((load.refused() >= before + 40).then_some(()))
    })
    .await
    .context("no push timed out")?;
    session.batch_execute("ROLLBACK").await?;
    load.goes_on(300).await?;
    load.check(stack.client(), QUEUE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_room_refuses_pushes_and_takes_them_again_once_it_has_some() -> Result<()>
{
    let stack = stack_with(&[QUEUE]).await?;
    let session = session(&stack.postgres).await?;
    let cut =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'queen'";
    let mut pushed = stack.client().push(vec![letters(0, 1_000)]).await?;
    // Above the files of the write-ahead log, which are 16 MiB each.
    stack.postgres.limit_files(Some(20 << 20))?;
    session.execute(cut, &[]).await?;
    let mut number = 1;
    let refusal = loop {
        ensure!(number < 200, "the limit of files does not hold");
        match stack.client().push(vec![letters(number, 1_000_000)]).await {
            Ok(more) => pushed.extend(more),
            // The first calls may get sessions that were just cut.
            Err(_) if number < 20 => {}
            Err(refusal) => break format!("{refusal:#}"),
        }
        number += 1;
    };
    let told = refusal.contains("was answered 503") && refusal.contains("database_unavailable");
    ensure!(told, "{refusal}");
    check_log(&stack.client().read_log(QUEUE).await?, &pushed)?;
    stack.postgres.limit_files(None)?;
    session.execute(cut, &[]).await?;
    pushed.extend(
        eventually(WAIT, async || {
            Ok(stack
                .client()
                .push(vec![letters(1_000, 1_000_000)])
                .await
                .ok())
        })
        .await
        .context("the broker did not recover")?,
    );
    check_log(&stack.client().read_log(QUEUE).await?, &pushed)
}

/// A record of `length` random letters.
fn letters(number: usize, length: usize) -> Event {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let text: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(length)
        .collect();
    Event {
        queue: QUEUE.into(),
        partition: "p".into(),
        transaction_id: format!("letters-{number}"),
        payload: Arc::from(format!("\"{text}\"")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_partitions_are_pushed_at_once_by_several() -> Result<()> {
    const PARTITIONS: usize = 10_000;
    let stack = stack_with(&[QUEUE]).await?;
    let calls = (0..3).map(|call| {
        let client = stack.client().clone();
        let event = move |item: usize| Event {
            queue: QUEUE.into(),
            // Each call in an order of its own.
            partition: format!("p{}", (item * 7 + call * 3_333) % PARTITIONS),
            transaction_id: format!("{call}-{item}"),
            payload: Arc::from(format!("\"{call}-{item}\"")),
        };
        tokio::spawn(async move { client.push((0..PARTITIONS).map(event).collect()).await })
    });
    let mut pushed = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        pushed.extend(call.await??);
    }
    ensure!(stack.client().partitions(QUEUE).await?.len() == PARTITIONS);
    check_log(&stack.client().read_log(QUEUE).await?, &pushed)
}

#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_come_back_whole() -> Result<()> {
    let stack = stack_with(&[QUEUE]).await?;
    let calls = [1_000_000, 16_000_000, 1_000_000, 16_000_000, 16_000_000];
    let calls = calls.into_iter().enumerate().map(|(number, length)| {
        let client = stack.client().clone();
        tokio::spawn(async move { client.push(vec![letters(number, length)]).await })
    });
    let mut pushed = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        pushed.extend(call.await??);
    }
    ensure!(pushed.len() == 5);
    check_log(&stack.client().read_log(QUEUE).await?, &pushed)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_stall_or_vanish_keep_nobody_else_from_pushing() -> Result<()> {
    let stack = stack_of(&[("QUEEN_HTTP_BODY_MS", "2000")]).await?;
    let load = Load::start(stack.client(), QUEUE, 2, 5, 10);
    let address = stack.broker.url().replace("http://", "");
    let mut stalled = Vec::new();
    for _ in 0..200 {
        let head = "POST /api/v1/push HTTP/1.1\r\nhost: q\r\ncontent-length: 100000\r\n\r\n{";
        let mut client = TcpStream::connect(&address).await?;
        client.write_all(head.as_bytes()).await?;
        stalled.push(client);
    }
    load.goes_on(100).await?;
    stalled.truncate(100);
    load.goes_on(100).await?;
    // The producers' connections and this one's are left.
    eventually(WAIT, async || {
        let open = metric(&stack, "queen_http_connections").await?;
        Ok((open <= 10.0).then_some(()))
    })
    .await
    .context("stalled connections stay open")?;
    load.check(stack.client(), QUEUE).await?;
    eventually(WAIT, async || {
        let held = metric(&stack, "queen_memory_held_bytes").await?;
        Ok((held == 0.0).then_some(()))
    })
    .await
    .context("what vanished clients sent is kept")
}
