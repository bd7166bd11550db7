//! The sink's commands as processes, at two S3 servers: `verify` on a lake that is damaged, `adopt`
//! where the pointer is gone.

use anyhow::{Context, Result, ensure};
use queen_dev::{LakeObject, Ledger, Pushed, Signal, SinkOptions, Stack, WAIT, sink_binary};
use queen_e2e::{events, settled};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::at_each_store;

const QUEUE: &str = "orders";
const POINTER: &str = "s3:default:orders:committed";
/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:9";

/// What a command ended with.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn must(&self, code: i32, stdout: &str, stderr: &str) -> Result<()> {
        let as_wanted =
            self.code == Some(code) && self.stdout.contains(stdout) && self.stderr.contains(stderr);
        let Self {
            code: ended,
            stdout,
            stderr,
        } = self;
        ensure!(as_wanted, "{code} wanted, {ended:?}:\n{stdout}\n{stderr}");
        Ok(())
    }
}

/// Runs the sink's binary with these arguments to its end.
async fn run(stack: &Stack, options: &SinkOptions, arguments: &[&str]) -> Result<Ended> {
    let mut command = Command::new(sink_binary()?);
    command.args(arguments).env_clear().kill_on_drop(true);
    command.envs(stack.variables(options));
    let output = timeout(WAIT, command.output());
    let output = output.await.context("it does not end")??;
    Ok(Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}

/// Lets a sink mirror what is pushed, stops it, and holds its lake to its log.
async fn mirror(stack: &Stack, round: usize, pushed: &mut Vec<Pushed>) -> Result<()> {
    let sink = stack.sink(&SinkOptions::new(QUEUE))?;
    let batch = events(QUEUE, round, 200, 5);
    pushed.extend(stack.client().push_all(batch, |_| {}).await?);
    let (lake, log) = (stack.lake("default"), Ledger::of(&*pushed, QUEUE)?);
    settled(&lake, QUEUE, &log)
        .await
        .with_context(|| format!("it is not mirrored:{}", sink.logs().tail()))?;
    sink.signal(Signal::TERM);
    ensure!(sink.ended(WAIT).await?.success(), "{}", sink.logs().tail());
    settled(&lake, QUEUE, &log).await
}

async fn verifies(stack: Stack) -> Result<()> {
    let (stack, options) = (&stack, SinkOptions::new(QUEUE));
    let verify = async |arguments: &[&str]| run(stack, &options, arguments).await;
    mirror(stack, 0, &mut Vec::new()).await?;
    verify(&["verify"]).await?.must(0, "clean: ", "")?;
    let clean = verify(&["verify", "--json"]).await?;
    clean.must(0, "", "")?;
    let report: Value = serde_json::from_str(&clean.stdout).context("standard output")?;
    ensure!(report["ok"] == true && report["findings"] == 0, "{report}");
    ensure!(report["queues"][0]["records"] == 200, "{report}");

    let objects = stack.lake("default").objects(QUEUE)?;
    let LakeObject { key, bytes } = objects.first().context("an object")?;
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    stack.s3.put(key, damaged).await?;
    let found = verify(&["verify"]).await?;
    found.must(1, "1 finding in the lake of sink default", "")?;
    ensure!(found.stdout.contains(key), "{}", found.stdout);
    // The whole of standard output is the report, whatever else is said.
    for arguments in [
        &["verify", "--json"][..],
        &["verify", "--queue", QUEUE, "--json"],
    ] {
        let found = verify(arguments).await?;
        found.must(1, "", "")?;
        let report: Value = serde_json::from_str(&found.stdout).context("standard output")?;
        ensure!(report["ok"] == false && report["findings"] == 1, "{report}");
        let finding = &report["queues"][0]["findings"][0];
        ensure!(
            finding["kind"] == "sha256" && finding["key"] == **key,
            "{finding}"
        );
    }
    stack.s3.put(key, bytes.clone()).await?;
    verify(&["verify"]).await?.must(0, "clean: ", "")?;

    let nowhere = options.with("QUEEN_S3_ENDPOINT", NOWHERE);
    let lost = run(stack, &nowhere, &["verify", "--json"]).await?;
    lost.must(3, "", "QUEEN_S3_ENDPOINT")?;
    ensure!(lost.stdout.is_empty(), "{}", lost.stdout);
    Ok(())
}

async fn adopts(stack: Stack) -> Result<()> {
    let (stack, options) = (&stack, SinkOptions::new(QUEUE));
    let adopt = async || run(stack, &options, &["adopt", "--queue", QUEUE]).await;
    let mut pushed = Vec::new();
    mirror(stack, 0, &mut pushed).await?;
    adopt().await?.must(1, "", "there is nothing to adopt")?;

    stack.client().kv_delete("queen-s3", POINTER).await?;
    let sink = stack.sink(&options)?;
    let named = |line: &str| line.contains("ERROR") && line.contains("queen-s3 adopt");
    sink.logs().wait_for(0, WAIT, named).await?;
    ensure!(sink.health().await?.0 == 503, "a stopped queue is red");
    sink.signal(Signal::TERM);
    ensure!(sink.ended(WAIT).await?.success(), "{}", sink.logs().tail());

    let nowhere = options.clone().with("QUEEN_S3_ENDPOINT", NOWHERE);
    let lost = run(stack, &nowhere, &["adopt", "--queue", QUEUE]).await?;
    lost.must(3, "", "QUEEN_S3_ENDPOINT")?;
    let nowhere = options.clone().with("QUEEN_URL", NOWHERE);
    let lost = run(stack, &nowhere, &["adopt", "--queue", QUEUE]).await?;
    lost.must(3, "", "cannot reach Queen")?;
    let other = run(stack, &options, &["adopt", "--queue", "clicks"]).await?;
    other.must(1, "", "there is no lake to adopt")?;
    let unsaid = run(stack, &options, &["adopt"]).await?;
    unsaid.must(2, "", "--queue")?;
    ensure!(
        stack.client().kv_get("queen-s3", POINTER).await?.is_none(),
        "who refuses writes nothing"
    );

    let k = stack.lake("default").manifests(QUEUE)?.len();
    let adopted = adopt().await?;
    let line = format!("adopted: the commit pointer {POINTER} of queue {QUEUE} is at window {k},");
    adopted.must(0, &line, "")?;
    ensure!(adopted.stdout.lines().count() == 1, "{}", adopted.stdout);
    let pointer = stack.client().kv_get("queen-s3", POINTER).await?;
    let pointer = pointer.context("a pointer")?;
    ensure!(pointer["k"] == k, "{pointer}");
    adopt().await?.must(1, "", "there is nothing to adopt")?;
    mirror(stack, 1, &mut pushed).await
}

#[tokio::test]
async fn verify_finds_damage_and_reports_it_to_people_and_programs() -> Result<()> {
    at_each_store(&[QUEUE], verifies).await
}

#[tokio::test]
async fn adopt_gives_a_lake_its_pointer_back_and_the_sink_goes_on_from_there() -> Result<()> {
    at_each_store(&[QUEUE], adopts).await
}
