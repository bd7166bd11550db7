//! Everything fails at once, for a while: two nodes on one database, three sinks over overlapping
//! queues, two unrelated S3 servers, and faults between all of them. Afterwards every acknowledged
//! record is in every lake of its queue exactly once.
//!
//! What is done, to whom and when follows from one seed. `make chaos MINUTES=10 SEED=7` repeats it;
//! what meets which fault still depends on how fast the machine is.

mod judge;
mod plan;
mod producers;
mod stage;

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::plan::{Act, Plan};
use self::producers::Producers;
use self::stage::Stage;

/// The seed of the run that the tests make.
const SEED: u64 = 5;
/// How often processes that have ended are looked for.
const TICK: Duration = Duration::from_millis(50);

fn number(variable: &str) -> Result<Option<u64>> {
    let Some(value) = env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let number = value.to_str().and_then(|text| text.parse().ok());
    let number = number.with_context(|| format!("{variable} is no whole number: {value:?}"))?;
    Ok(Some(number))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_loses_and_doubles_no_acknowledged_record() -> Result<()> {
    let seed = number("QUEEN_CHAOS_SEED")?.unwrap_or(SEED);
    let minutes = number("QUEEN_CHAOS_MINUTES")?.unwrap_or(1);
    let plan = Plan::draw(seed, Duration::from_secs(60 * minutes));
    eprintln!(
        "chaos of {minutes} min from seed {seed}: {} acts",
        plan.acts.len()
    );

    let folder = tempfile::Builder::new().prefix("queen-chaos-").tempdir()?;
    let outcome = match Stage::build(folder.path(), seed).await {
        Ok(stage) => run(stage, &plan).await,
        Err(error) => Err(error.context("the parts do not start")),
    };
    if outcome.is_err() || env::var_os("QUEEN_DEV_KEEP").is_some() {
        eprintln!("logs and buckets are in {}", folder.keep().display());
    }
    outcome.with_context(|| {
        format!("seed {seed} broke; again: make chaos MINUTES={minutes} SEED={seed}")
    })
}

async fn run(mut stage: Stage, plan: &Plan) -> Result<()> {
    stage.claimed().await?;
    let producers = Producers::start(&stage, plan.seed)?;
    let begin = Instant::now();
    let mut acts = plan.acts.iter().peekable();
    while begin.elapsed() < plan.length {
        while let Some(Act { at: _, what }) = acts.next_if(|act| act.at <= begin.elapsed()) {
            stage.perform(*what)?;
        }
        stage.revive()?;
        tokio::time::sleep(TICK).await;
    }
    stage.calm();
    let pushes = producers.end();
    tokio::pin!(pushes);
    // Processes that ended at the last moment still have to come back.
    let ledger = loop {
        tokio::select! {
            ledger = &mut pushes => break ledger?,
            () = tokio::time::sleep(TICK) => stage.revive()?,
        }
    };
    eprintln!("{ledger}\n{}", stage.story());
    ensure!(!ledger.acknowledged.is_empty(), "no push was acknowledged");
    judge::judge(&mut stage, &ledger).await?;
    stage.every_fault_met_traffic()
}
