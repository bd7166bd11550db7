//! Measures the whole deployment, with real processes, against the work that it cannot avoid.
//!
//! Every figure is a ratio taken in one run, or a slope over sizes, beside the plain ones that
//! explain it. `make bench` builds everything for release and runs it.

mod database;
mod machine;
mod report;
mod run;
mod scenarios;
mod usage;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;
use queen_dev::{BrokerOptions, StackOptions};

use crate::machine::Machine;
use crate::report::Report;
use crate::scenarios::{backlog, broker, latency, memory, queues, steady, wide};

const USAGE: &str = "\
usage: queen-bench [--repetitions N] [--scale F] [--segments lz4|zstd] [--out FILE] [SCENARIO]...

  --repetitions N      runs of each ratio (default 5)
  --scale F            size of the data, as a part of the full one (default 1)
  --segments lz4|zstd  how the broker compresses what it stores (default: as it does unless told)
  --out FILE           writes the figures as JSON, after each scenario

scenarios: backlog, steady, wide, queues, memory, latency, broker (default: all of them)";

/// Every scenario, in the order in which they run.
const SCENARIOS: [&str; 7] = [
    backlog::NAME,
    steady::NAME,
    wide::NAME,
    queues::NAME,
    memory::NAME,
    latency::NAME,
    broker::NAME,
];

/// How much to measure.
#[derive(Debug)]
pub struct Plan {
    /// Runs of each ratio.
    pub repetitions: usize,
    scale: f64,
    /// `QUEEN_SEGMENT_COMPRESSION`, if it is set.
    segments: Option<String>,
    out: Option<PathBuf>,
    scenarios: Vec<&'static str>,
}

impl Plan {
    fn from_arguments() -> Result<Option<Self>> {
        let mut plan = Self {
            repetitions: 5,
            scale: 1.0,
            segments: None,
            out: None,
            scenarios: Vec::new(),
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("repetitions") => plan.repetitions = arguments.value()?.parse()?,
                Long("scale") => plan.scale = arguments.value()?.parse()?,
                Long("segments") => plan.segments = Some(arguments.value()?.parse()?),
                Long("out") => plan.out = Some(arguments.value()?.into()),
                Short('h') | Long("help") => return Ok(None),
                Value(name) => {
                    let known = SCENARIOS.into_iter().find(|known| name == *known);
                    let known = known.with_context(|| format!("no scenario {name:?}\n{USAGE}"))?;
                    plan.scenarios.push(known);
                }
                other => return Err(other.unexpected().into()),
            }
        }
        ensure!(plan.repetitions > 0, "--repetitions takes 1 or more");
        ensure!(
            plan.scale > 0.0 && plan.scale.is_finite(),
            "--scale takes a number above 0"
        );
        if plan.scenarios.is_empty() {
            plan.scenarios = SCENARIOS.to_vec();
        }
        Ok(Some(plan))
    }

    /// How the stack of a scenario starts.
    pub fn stack(&self) -> StackOptions {
        let segments = self.segments.iter();
        let segments = segments.map(|name| ("QUEEN_SEGMENT_COMPRESSION".to_owned(), name.clone()));
        let broker = BrokerOptions {
            variables: segments.collect(),
        };
        StackOptions {
            broker,
            ..StackOptions::default()
        }
    }

    /// `count` at this plan's scale, at least 1.
    pub fn scaled(&self, count: usize) -> usize {
        ((count as f64 * self.scale) as usize).max(1)
    }
}

/// Bytes in units of 2^20.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = tokio::select! {
        outcome = run() => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; everything is stopped")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("\nA bar is not met.");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether every bar is met.
async fn run() -> Result<bool> {
    let Some(plan) = Plan::from_arguments()? else {
        println!("{USAGE}");
        return Ok(true);
    };
    let machine = Machine::here();
    let arguments = std::env::args_os();
    let command: Vec<String> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let mut report = Report::default();
    for name in &plan.scenarios {
        let figures = match *name {
            backlog::NAME => backlog::measure(&plan).await,
            steady::NAME => steady::measure(&plan).await,
            wide::NAME => wide::measure(&plan).await,
            queues::NAME => queues::measure(&plan).await,
            memory::NAME => memory::measure(&plan).await,
            latency::NAME => latency::measure(&plan).await,
            broker::NAME => broker::measure(&plan).await,
            other => bail!("no scenario {other}"),
        };
        report.add(name, figures.with_context(|| format!("scenario {name}"))?);
        if let Some(path) = &plan.out {
            report.write(path, &machine, &command.join(" "))?;
        }
    }
    Ok(report.all_met())
}
