//! Many queues, all idle: what each costs.

use std::time::Duration;

use anyhow::{Context, Result};
use queen_dev::{SinkOptions, Stack, eventually};

use crate::report::Figure;
use crate::workload::Payloads;
use crate::{Plan, run, usage};

/// The scenario's name.
pub const NAME: &str = "queues";
const QUEUES: usize = 500;
const SECONDS: usize = 60;
/// How long no request is made before every queue counts as idle.
const SETTLED_FOR: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(300);

/// Measures the scenario.
pub async fn measure(plan: &Plan) -> Result<Vec<Figure>> {
    let stack = Stack::start(plan.stack()).await?;
    let payloads = Payloads::of_the_demo()?;
    let queues = plan.scaled(QUEUES);
    for number in 0..queues {
        let queue = format!("queue-{number:04}");
        stack.client().push(payloads.batch(&queue, 0, 1, 1)).await?;
    }
    // Intervals as they are unless set: this is about what idle queues cost by default.
    let options = SinkOptions::new("*")
        .with("QUEEN_S3_MAX_WINDOW_MS", "")
        .with("QUEEN_S3_DISCOVERY_INTERVAL_MS", "")
        .with("QUEEN_S3_SAFE_GUARD_MS", "")
        .with("QUEEN_S3_LEASE_TTL_MS", "");
    let sink = stack.sink(&options)?;
    let owned = async || {
        let metrics = sink.metrics().await?;
        let listed = metrics
            .text()
            .matches("queen_s3_discovery_partitions{")
            .count();
        Ok((listed >= queues).then_some(()))
    };
    eventually(LIMIT, owned)
        .await
        .with_context(|| format!("claiming the queues:{}", sink.logs().tail()))?;

    // The start of each queue asks the bucket a few things; an idle one nothing.
    let mut last = None;
    let settled = async || {
        let requests = run::s3_requests(&sink.metrics().await?);
        let settled = last.replace(requests) == Some(requests);
        tokio::time::sleep(SETTLED_FOR).await;
        Ok(settled.then_some(()))
    };
    eventually(LIMIT, settled)
        .await
        .with_context(|| format!("the queues' first windows:{}", sink.logs().tail()))?;

    let broker = stack.broker.pid().context("the broker runs")?;
    let read = async || {
        let cpu = usage::cpu(sink.pid())? + usage::cpu(broker)?;
        anyhow::Ok((
            usage::cpu(sink.pid())?,
            cpu,
            run::s3_requests(&sink.metrics().await?),
            run::queen_requests(&stack).await?,
        ))
    };
    let before = read().await?;
    tokio::time::sleep(Duration::from_secs(plan.scaled(SECONDS) as u64)).await;
    let after = read().await?;
    let minutes = plan.scaled(SECONDS) as f64 / 60.0 * queues as f64;
    let cost = |cpu: Duration| cpu.as_secs_f64() * 1e3 / minutes;
    Ok(vec![
        Figure::new("idle queues", "", vec![queues as f64]),
        Figure::new(
            "sink CPU per queue and minute",
            "ms",
            vec![cost(after.0 - before.0)],
        ),
        Figure::new(
            "sink and broker CPU per queue and minute",
            "ms",
            vec![cost(after.1 - before.1)],
        ),
        Figure::new(
            "calls of Queen per queue and minute",
            "",
            vec![(after.3 - before.3) / minutes],
        ),
        Figure::new(
            "S3 requests per queue and minute",
            "",
            vec![(after.2 - before.2) / minutes],
        ),
    ])
}
