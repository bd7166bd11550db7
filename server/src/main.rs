//! The broker process.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use private_postgres::{Options, PrivatePostgres};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use queen::broker::Running;
use queen::config::{Config, VARIABLES};
use queen::logging;

/// Where `--dev` keeps its own PostgreSQL.
const DEV_DIR: &str = ".queen";
/// The exit code of a wrong configuration or command line.
const EXIT_CONFIGURATION: u8 = 2;

const USAGE: &str = "\
usage: queen [--dev]

The broker of the Queen message queue. Configuration is by environment variable.

  --dev       use a private PostgreSQL in ./.queen when no PG_* variable is set
  --help      this text and every variable
  --version   the version
";

fn main() -> ExitCode {
    let mut dev = false;
    for argument in std::env::args_os().skip(1) {
        match argument.to_string_lossy().as_ref() {
            "--dev" => dev = true,
            "--help" | "-h" => {
                print!("{USAGE}\n{}", help());
                return ExitCode::SUCCESS;
            }
            "--version" | "-V" => {
                println!("queen {}", env!("CARGO_PKG_VERSION"));
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("queen: unknown argument {other:?}\n\n{USAGE}");
                return ExitCode::from(EXIT_CONFIGURATION);
            }
        }
    }
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(EXIT_CONFIGURATION);
        }
    };
    if let Err(error) = logging::start(&config) {
        eprintln!("RUST_LOG: {error}");
        return ExitCode::from(EXIT_CONFIGURATION);
    }
    raise_file_limit();
    match run(config, dev) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queen: {error:#}");
            ExitCode::FAILURE
        }
    }
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

fn help() -> String {
    VARIABLES
        .iter()
        .map(|row| {
            let default = if row.default.is_empty() {
                "unset"
            } else {
                row.default
            };
            format!(
                "{}\n    {} Accepts {}; default {default}.\n",
                row.name, row.doc, row.accepts
            )
        })
        .collect()
}

fn run(mut config: Config, dev: bool) -> anyhow::Result<()> {
    // Declared before the runtime, so that it outlives every session.
    let own = if dev && !config.database_named {
        Some(private_database(&mut config)?)
    } else {
        None
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(serve(config));
    drop(runtime);
    drop(own);
    outcome
}

fn private_database(config: &mut Config) -> anyhow::Result<PrivatePostgres> {
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    let own = PrivatePostgres::start(Options::durable(here.join(Path::new(DEV_DIR))))
        .with_context(|| format!("cannot start the private PostgreSQL in ./{DEV_DIR}"))?;
    config.database.host = own.host().into();
    config.database.port = own.port();
    config.database.user = own.user().into();
    config.database.password = Some(own.password().into());
    config.database.database = own.database().into();
    Ok(own)
}

async fn serve(config: Config) -> anyhow::Result<()> {
    // Installed before the boot line: who reads it may send a signal at once.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let tenancy = config.tenancy_header;
    let database = format!("{:?}", config.database);
    let running = tokio::select! {
        started = Running::start(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let line = format!(
        "queen {} listening=http://{} database={database} tenancy={}",
        env!("CARGO_PKG_VERSION"),
        running.address(),
        if tenancy { "header" } else { "off" },
    );
    // A closed standard output is no reason not to serve.
    let _ = writeln!(std::io::stdout(), "{line}").and_then(|()| std::io::stdout().flush());
    running
        .run_until(async {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
                _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            }
        })
        .await
        .context("the HTTP server ended")
}
