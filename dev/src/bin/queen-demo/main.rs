//! The whole way of the data, shown: events are pushed into `queen --dev`, one command with a
//! database and a sink of its own, while the sink writes them to a bucket; then the lake is read and
//! compared with what was pushed.
//!
//! Ends with 0 when the lake holds every pushed record exactly once, else with 1 and the records
//! that differ.

mod progress;
mod report;

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use queen_dev::{
    Broker, BrokerOptions, Event, Lake, Ledger, Metrics, Pushed, S3Server, check, sink_binary,
};
use tempfile::TempDir;

use crate::progress::{Progress, grouped};
use queen_dev::events::{self, CLICKS, ORDERS};

/// Where the lake and the logs stay, from the folder in which the demo is started.
const FOLDER: &str = ".demo";
/// Tells a former demo's folder from one that belongs to somebody else.
const MARKER: &str = "made-by-queen-demo";
/// The sink's name: a segment of every key.
const SINK: &str = "demo";
/// The bucket, and `QUEEN_S3_PREFIX`.
const BUCKET: &str = "lake";
const PREFIX: &str = "queen";
/// Windows this short make several objects in a short demo.
const WINDOW_MS: u64 = 2_000;
/// How long the sink may take after the last push.
const LIMIT: Duration = Duration::from_secs(300);
const REFRESH: Duration = Duration::from_millis(250);

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = tokio::select! {
        outcome = async { run(count_of_events()?).await } => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; everything is stopped")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(count: usize) -> Result<()> {
    let begin = Instant::now();
    let dir = fresh_folder(Path::new(FOLDER))?;
    println!("Starting an S3 server, and `queen --dev` with its own PostgreSQL and the sink …");
    let product = Product::start(&dir).await?;
    for queue in [ORDERS, CLICKS] {
        product.broker.client().configure(queue).await?;
    }
    println!(
        "  broker  {}   bucket  {}/{BUCKET}",
        product.broker.url(),
        product.s3.endpoint(),
    );

    println!(
        "\nPushing {} events while the sink runs …",
        grouped(count as u64)
    );
    let pushed = push_and_watch(&product, events::first(count)?).await?;
    let orders = Ledger::of(&pushed, ORDERS)?;
    let clicks = Ledger::of(&pushed, CLICKS)?;
    let lake = Lake::new(&dir.join("s3").join(BUCKET), PREFIX, SINK);

    println!("\nThe objects in the bucket:\n");
    report::tree(&lake, &[ORDERS, CLICKS])?;

    println!("\nRead by DuckDB:\n");
    let counts = [(ORDERS, orders.len()), (CLICKS, clicks.len())];
    report::with_duckdb(&lake, &counts, most_loyal_customer(&pushed)?)?;

    println!("\nEvery pushed partition and offset against the lake:\n");
    let mut exact = true;
    for (queue, ledger) in [(ORDERS, &orders), (CLICKS, &clicks)] {
        let verdict = check(ledger, &lake.records(queue)?);
        println!(
            "  {queue}: {} records: {verdict}",
            grouped(ledger.len() as u64)
        );
        exact &= verdict.is_exact();
    }
    ensure!(exact, "the lake differs from what was pushed, see above");
    product.stop().await?;

    let folder = lake.folder();
    println!("\nThe lake is in {}. Query it:\n", folder.display());
    println!(
        "  .venv/bin/python -c \"import duckdb; print(duckdb.sql('''SELECT queue, hour, count(*) FROM \
         read_json('{}/**/*.jsonl.zst', hive_partitioning = true) GROUP BY ALL'''))\"",
        folder.display()
    );
    println!(
        "\nDone in {:.0} s. The logs are in {FOLDER}/logs.",
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The product as one command starts it, and the S3 server that it writes to.
struct Product {
    // Fields end in their order: the sink has its bucket to the end.
    broker: Broker,
    /// The health listener of the sink.
    sink: SocketAddr,
    s3: S3Server,
    /// Of the database. Not in the demo's folder: the account that PostgreSQL runs as must be able
    /// to reach it wherever this is called.
    _database: TempDir,
}

impl Product {
    async fn start(dir: &Path) -> Result<Self> {
        let database = tempfile::Builder::new()
            .prefix("queen-demo-")
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir()
            .context("make a folder for the database")?;
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let s3 = S3Server::start(&dir.join("s3"), BUCKET).await?;
        let sink = free_address().context("find a free port for the sink's metrics")?;
        let variables = [
            ("QUEEN_S3_EMBEDDED", "true".to_owned()),
            ("QUEEN_S3_BIN", sink_binary()?.display().to_string()),
            ("QUEEN_S3_SINK", SINK.into()),
            ("QUEEN_S3_QUEUES", [ORDERS, CLICKS].join(",")),
            ("QUEEN_S3_ENDPOINT", s3.endpoint()),
            ("QUEEN_S3_REGION", S3Server::REGION.into()),
            ("QUEEN_S3_BUCKET", BUCKET.into()),
            ("QUEEN_S3_PREFIX", PREFIX.into()),
            ("QUEEN_S3_ACCESS_KEY", s3.access_key().into()),
            ("QUEEN_S3_SECRET_KEY", s3.secret_key().into()),
            ("QUEEN_S3_PATH_STYLE", "true".into()),
            ("QUEEN_S3_START", "earliest".into()),
            ("QUEEN_S3_MAX_WINDOW_MS", WINDOW_MS.to_string()),
            ("QUEEN_S3_DISCOVERY_INTERVAL_MS", "200".into()),
            ("QUEEN_S3_SAFE_GUARD_MS", "0".into()),
            ("QUEEN_S3_LISTEN", sink.to_string()),
        ];
        let options = BrokerOptions {
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        };
        let broker = Broker::start_dev(options, database.path(), &logs).await?;
        Ok(Self {
            broker,
            sink,
            s3,
            _database: database,
        })
    }

    /// Ends it as an operator does.
    async fn stop(mut self) -> Result<()> {
        self.broker.stop().await
    }
}

/// A loopback address that nobody listens on at the moment.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The number after `--events`, else the demo's own.
fn count_of_events() -> Result<usize> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [] => Ok(events::EVENTS),
        [option, count] if option == "--events" => {
            let count = count
                .to_str()
                .and_then(|count| count.parse().ok())
                .filter(|count| (1..=events::EVENTS).contains(count));
            count.with_context(|| format!("--events takes 1 to {}", events::EVENTS))
        }
        _ => bail!("usage: queen-demo [--events N]"),
    }
}

/// The partition with the most order events: its history is worth showing.
fn most_loyal_customer(pushed: &[Pushed]) -> Result<&str> {
    let orders = pushed.iter().filter(|one| one.event.queue == ORDERS);
    let latest = orders.max_by_key(|one| (one.offset, &one.event.partition));
    Ok(&latest.context("no order was pushed")?.event.partition)
}

/// Pushes every event and shows how the sink follows, until it has committed them all.
async fn push_and_watch(product: &Product, events: Vec<Event>) -> Result<Vec<Pushed>> {
    let begin = Instant::now();
    let count = Arc::new(AtomicUsize::new(0));
    let mut pushing = tokio::spawn({
        let (client, count) = (product.broker.client().clone(), Arc::clone(&count));
        async move {
            let on_pushed = |more| {
                count.fetch_add(more, Ordering::Relaxed);
            };
            client.push_all(events, on_pushed).await
        }
    });
    let mut progress = Progress::new();
    let mut pushed: Option<(Vec<Pushed>, Instant)> = None;
    loop {
        let logs = product.broker.logs();
        if let Some(status) = product.broker.status() {
            bail!("the broker ended ({status}):{}", logs.tail());
        }
        // A sink that has just been started does not answer yet.
        let metrics = Metrics::of(product.sink).await.unwrap_or_default();
        let committed = metrics.records_written(ORDERS) + metrics.records_written(CLICKS);
        let lag = [ORDERS, CLICKS]
            .iter()
            .filter_map(|queue| metrics.get("queen_s3_lag_seconds", Some(("queue", queue))))
            .fold(0.0, f64::max);
        let line = format!(
            "pushed {:>7}   committed {:>7}   lag {lag:>5.1} s   {:>3} s",
            grouped(count.load(Ordering::Relaxed) as u64),
            grouped(committed),
            begin.elapsed().as_secs()
        );
        match &pushed {
            Some((all, _)) if committed >= all.len() as u64 => {
                progress.finish(&line);
                return Ok(pushed.map(|(all, _)| all).unwrap_or_default());
            }
            Some((all, since)) if since.elapsed() > LIMIT => bail!(
                "the sink committed {committed} of {} records within {} s:{}",
                all.len(),
                LIMIT.as_secs(),
                logs.tail()
            ),
            _ => progress.show(&line),
        }
        if pushed.is_some() {
            tokio::time::sleep(REFRESH).await;
        } else if let Ok(all) = tokio::time::timeout(REFRESH, &mut pushing).await {
            pushed = Some((all.context("the pushing task ended")??, Instant::now()));
        }
    }
}

/// An empty folder for the lake and the logs; a former demo's is replaced.
fn fresh_folder(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        ensure!(
            folder.join(MARKER).exists(),
            "{} exists and is no former demo's; move it away",
            folder.display()
        );
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    fs::write(folder.join(MARKER), "").with_context(|| format!("write in {}", folder.display()))?;
    folder
        .canonicalize()
        .with_context(|| format!("find {}", folder.display()))
}
