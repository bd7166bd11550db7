//! The sink process: boot in order, then run until a signal.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use queen_s3::allocator;
use queen_s3::broker::http::{HttpBroker, HttpBrokerOptions};
use queen_s3::broker::{Broker, BrokerError};
use queen_s3::bucket::s3::{MidUpload, ProbeError, S3Bucket, S3Options, S3Timeouts};
use queen_s3::clock::{Clock, SystemClock};
use queen_s3::command::{Command, USAGE};
use queen_s3::compute::Compute;
use queen_s3::config::{self, Config, CrashPoint, Identity, Queues};
use queen_s3::lake::is_sidecar;
use queen_s3::limits::PART_BYTES;
use queen_s3::memory::MemoryBudget;
use queen_s3::observe::boot_line::BootLine;
use queen_s3::observe::logging::{self, fatal};
use queen_s3::observe::one_line::OneLine;
use queen_s3::observe::server::{self, Observed};
use queen_s3::observe::status::Status;
use queen_s3::ownership::Owner;
use queen_s3::queue::{self, Context, Settings};
use queen_s3::retry::Jitter;
use queen_s3::sink::{FirstQueues, QueueSet, relist_interval};
use queen_s3::time::Micros;
use queen_s3::verify::{Lake, Progress, Store, verify};
use queen_s3::{ownership, signals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;
use uuid::Uuid;

/// Why the process ends, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// A signal arrived and every queue drained, or a command did what it was asked.
    Drained = 0,
    /// The health listener could not bind, a check found something, or a command refused.
    Failed = 1,
    /// The configuration, or the command line, is wrong.
    Configuration = 2,
    /// Queen or the bucket could not be reached at boot.
    Unreachable = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A boot that failed.
#[derive(Debug)]
struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    fn new(exit: Exit, text: impl fmt::Display) -> Self {
        Self {
            exit,
            text: text.to_string(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned());
    let ended = match Command::parse(arguments) {
        Ok(Command::Help) => {
            print!("{USAGE}\n{}", config::help());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            println!("queen-s3 {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("queen-s3: {}", OneLine(error));
            return Exit::Configuration.into();
        }
        Ok(Command::Run) => start(boot).map(|()| Exit::Drained),
        Ok(Command::Verify { queues, json }) => start(move |config| check(config, queues, json)),
        Ok(Command::Adopt { queue }) => start(move |config| adopt(config, queue)),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(failure) => {
            fatal(&failure.text);
            failure.exit.into()
        }
    }
}

/// Reads the configuration, and does `work` on a runtime of its own.
fn start<T, F>(work: impl FnOnce(Config) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let config = Config::from_environment().map_err(|problems| {
        for problem in &problems {
            eprintln!("queen-s3: {}", OneLine(problem));
        }
        let text = match problems.len() {
            1 => "the configuration has a problem, see above".to_owned(),
            count => format!("the configuration has {count} problems, see above"),
        };
        Failure::new(Exit::Configuration, text)
    })?;
    allocator::set_up(config.memory_bytes);
    logging::start(config.log_format, &config.log_filter)
        .map_err(|error| Failure::new(Exit::Configuration, format!("RUST_LOG: {error}")))?;
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start threads: {error}")))?;
    let ended = runtime.block_on(work(config));
    // Nothing that still runs is worth waiting for: every queue has drained, or none was claimed.
    runtime.shutdown_background();
    ended
}

/// Every connection is an open file, and the usual soft limit is that of an interactive shell.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

async fn boot(config: Config) -> Result<(), Failure> {
    let stop = signals::watch()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let identity = Identity::of_this_machine(config.instance.as_deref());
    let status = Arc::new(Status::default());
    let budget = MemoryBudget::new(config.memory_bytes);
    tokio::spawn(allocator::tend(Arc::clone(&budget)));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);

    let (listener, bound) = server::bind(config.listen).await.map_err(|error| {
        let listen = config.listen;
        Failure::new(
            Exit::Failed,
            format!(
                "cannot listen on {listen} (QUEEN_S3_LISTEN): {error}; check whether another \
                 process has the port, or choose another address"
            ),
        )
    })?;
    info!("listening on {bound} for /healthz and /metrics");
    tokio::spawn(server::serve(
        listener,
        Observed {
            status: Arc::clone(&status),
            budget: Arc::clone(&budget),
            clock: Arc::clone(&clock),
            format: config.shape.format,
            max_window: config.max_window,
        },
    ));

    let options = HttpBrokerOptions::new(
        config.url.clone(),
        config.token.clone(),
        Arc::clone(&budget),
    );
    let broker =
        HttpBroker::new(options).map_err(|error| Failure::new(Exit::Configuration, error))?;
    let bucket = S3Bucket::new(s3_options(&config, &status));

    let first = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        first = probe(&config, &broker, &bucket, &status) => first?,
    };
    info!(
        "{}",
        BootLine {
            config: &config,
            identity: &identity
        }
    );

    let broker: Arc<dyn Broker> = Arc::new(broker);
    let jitter = Jitter::new(rand::random());
    let context = Arc::new(Context {
        broker: Arc::clone(&broker),
        bucket: Arc::new(bucket),
        clock,
        budget,
        status: Arc::clone(&status),
        jitter: jitter.clone(),
        identity: ownership::Identity {
            instance: identity.name,
            incarnation: Uuid::new_v4().to_string(),
        },
        compute: Compute::Offloaded,
        settings: settings(&config),
    });
    let set = QueueSet {
        broker,
        status,
        jitter,
        relist: relist_interval(config.discovery_interval),
        rest: config.lease_ttl,
        run: move |name, absent_since, stop| {
            queue::run(Arc::clone(&context), name, absent_since, stop)
        },
    };
    set.mirror(first, stop).await;
    info!("every queue drained");
    Ok(())
}

/// The two probes, before any queue is claimed: Queen answers and knows the token, the bucket
/// answers and knows the keys. Listing `*` belongs to the first.
async fn probe(
    config: &Config,
    broker: &HttpBroker,
    bucket: &S3Bucket,
    status: &Status,
) -> Result<FirstQueues, Failure> {
    let safe_time = probe_broker(config, broker).await?;
    status.set_safe_time(safe_time, SystemClock.boottime());
    let first = FirstQueues::of(&config.queues, broker, safe_time).await;
    let first = first.map_err(|error| {
        let advice = match error.status() {
            Some(401 | 403) => {
                "QUEEN_S3_QUEUES=* lists the queues, which needs the scope read on top of \
                 consume: give the token the read scope, or name the queues"
            }
            _ => "QUEEN_S3_QUEUES=* could not be listed: check the broker or proxy at QUEEN_URL",
        };
        no_queen(config, &error, advice)
    })?;
    probe_bucket(config, bucket).await?;
    Ok(first)
}

async fn probe_broker(config: &Config, broker: &HttpBroker) -> Result<Micros, Failure> {
    let answer = broker.changed(None).await.map_err(|error| {
        let advice = match error.status() {
            Some(401 | 403) => {
                let token = if config.token.is_some() {
                    "set"
                } else {
                    "unset"
                };
                format!(
                    "check QUEEN_TOKEN, which is {token}: a proxy wants the scope consume, a \
                     broker with JWT_ENABLED=true a read-write token"
                )
            }
            Some(404 | 405) => "check QUEEN_URL: what answers there is no Queen broker of 1.5.0 \
                                or later, nor a proxy in front of one"
                .to_owned(),
            Some(_) => "check the log of the broker or proxy at QUEEN_URL".to_owned(),
            None => {
                "check QUEEN_URL, the network, and that the broker or proxy is running".to_owned()
            }
        };
        no_queen(config, &error, &advice)
    })?;
    Ok(answer.safe_time)
}

async fn probe_bucket(config: &Config, bucket: &S3Bucket) -> Result<(), Failure> {
    bucket.probe(&config.prefix).await.map_err(|error| {
        let advice = match &error {
            ProbeError::Refused(_) => {
                "; check QUEEN_S3_ACCESS_KEY, QUEEN_S3_SECRET_KEY, QUEEN_S3_REGION and the \
                 bucket's policy"
            }
            ProbeError::MissingBucket { .. } | ProbeError::Unreachable(_) => "",
        };
        let Config {
            bucket, endpoint, ..
        } = config;
        let text = format!("cannot use the bucket {bucket} at {endpoint}: {error}{advice}");
        Failure::new(Exit::Unreachable, text)
    })
}

/// Prints a command's outcome. Whoever reads it may stop reading early.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// `queen-s3 verify`.
async fn check(config: Config, queues: Vec<String>, json: bool) -> Result<Exit, Failure> {
    let bucket = S3Bucket::new(s3_options(&config, &Arc::default()));
    probe_bucket(&config, &bucket).await?;
    let store = Store::new(Arc::new(bucket), Jitter::new(rand::random()));
    let queues = match (queues.is_empty(), &config.queues) {
        (false, _) => Some(queues),
        (true, Queues::Named(names)) => Some(names.iter().map(ToString::to_string).collect()),
        (true, Queues::All) => None,
    };
    let mut progress = Progress::on_a_terminal();
    let Config { prefix, sink, .. } = &config;
    let report = verify(&store, prefix, sink, queues.as_deref(), &mut progress)
        .await
        .map_err(|error| {
            let text = format!("cannot read the bucket {}: {error}", config.bucket);
            Failure::new(Exit::Unreachable, text)
        })?;
    let text = match json {
        true => serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::new(Exit::Failed, error))?,
        false => report.to_string(),
    };
    say(&text);
    Ok(if report.ok {
        Exit::Drained
    } else {
        Exit::Failed
    })
}

/// `queen-s3 adopt`.
async fn adopt(config: Config, queue: String) -> Result<Exit, Failure> {
    let status = Arc::new(Status::default());
    let options = HttpBrokerOptions::new(
        config.url.clone(),
        config.token.clone(),
        MemoryBudget::new(config.memory_bytes),
    );
    let broker =
        HttpBroker::new(options).map_err(|error| Failure::new(Exit::Configuration, error))?;
    let bucket = S3Bucket::new(s3_options(&config, &status));
    probe_broker(&config, &broker).await?;
    probe_bucket(&config, &bucket).await?;
    let lake = Lake::new(&config.prefix, &config.sink, &queue);
    let jitter = Jitter::new(rand::random());
    let owner = Owner {
        broker: Arc::new(broker),
        clock: Arc::new(SystemClock),
        status,
        jitter: jitter.clone(),
        queue: queue.as_str().into(),
        keys: lake.keys.clone(),
        identity: ownership::Identity {
            instance: Identity::of_this_machine(config.instance.as_deref()).name,
            incarnation: Uuid::new_v4().to_string(),
        },
        ttl: Owner::stored_ttl(config.lease_ttl),
    };
    let store = Store::new(Arc::new(bucket), jitter);
    let pointer = queen_s3::adopt::adopt(&store, &lake, &owner)
        .await
        .map_err(|error| {
            let exit = match error.is_unreachable() {
                true => Exit::Unreachable,
                false => Exit::Failed,
            };
            Failure::new(exit, format!("{queue} was not adopted: {error}"))
        })?;
    let adopted = format!(
        "adopted: the commit pointer {} of queue {queue} is at window {}, tEnd {} ({}), lineage {}",
        lake.keys.committed(),
        pointer.k,
        pointer.t_end,
        Micros(pointer.t_end),
        pointer.lineage.as_deref().unwrap_or("none")
    );
    say(&OneLine(adopted).to_string());
    Ok(Exit::Drained)
}

fn no_queen(config: &Config, error: &BrokerError, advice: &str) -> Failure {
    let text = format!(
        "cannot reach Queen at {}: {error}; {advice}",
        config.queen()
    );
    Failure::new(Exit::Unreachable, text)
}

fn s3_options(config: &Config, status: &Arc<Status>) -> S3Options {
    S3Options {
        endpoint: config.endpoint.clone(),
        region: config.region.clone(),
        bucket: config.bucket.clone(),
        access_key: config.access_key.clone(),
        secret_key: config.secret_key.clone(),
        path_style: config.path_style,
        sse: config.sse.clone(),
        status: Arc::clone(status),
        mid_upload: (config.crash_at == CrashPoint::MidUpload)
            .then(|| crash_in_a_data_object(config.prefix.clone())),
        timeouts: S3Timeouts::default(),
    }
}

fn crash_in_a_data_object(prefix: String) -> MidUpload {
    Arc::new(move |key| {
        if !is_sidecar(&prefix, key) {
            tracing::error!(key, "aborting at QUEEN_S3_CRASH_AT=mid_upload");
            std::process::abort();
        }
    })
}

fn settings(config: &Config) -> Settings {
    Settings {
        prefix: config.prefix.clone(),
        sink: config.sink.clone(),
        shape: config.shape,
        start: config.start,
        target_bytes: config.target_bytes,
        max_window: config.max_window,
        checkpoint_every: config.checkpoint_every,
        fetch_concurrency: config.fetch_concurrency,
        discovery_interval: config.discovery_interval,
        safe_guard: config.safe_guard,
        lease_ttl: config.lease_ttl,
        multipart_threshold_bytes: config.multipart_threshold_bytes,
        part_bytes: PART_BYTES,
        crash_at: config.crash_at,
    }
}
