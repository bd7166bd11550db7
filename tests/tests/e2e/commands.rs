//! The sink's commands as processes, at two S3 servers: `verify` on a lake that is damaged, `adopt`
//! where the pointer is gone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use queen_dev::{
    Lake, LakeObject, Ledger, Moto, Pushed, Signal, SinkOptions, Stack, WAIT, sink_binary,
};
use queen_e2e::{events, settled};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::stack_with;

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

/// The lake that a test reads: the S3 server's folder, or a copy out of one that has none.
struct Place<'a> {
    stack: &'a Stack,
    moto: Option<&'a Moto>,
}

impl Place<'_> {
    fn options(&self) -> SinkOptions {
        let options = SinkOptions::new(QUEUE);
        match self.moto {
            Some(moto) => options.with("QUEEN_S3_ENDPOINT", moto.endpoint()),
            None => options,
        }
    }

    fn lake(&self) -> Lake {
        match self.moto {
            Some(_) => Lake::new(&self.copy(), Stack::PREFIX, "default"),
            None => self.stack.lake("default"),
        }
    }

    fn copy(&self) -> std::path::PathBuf {
        self.stack.dir().join(Stack::BUCKET)
    }

    /// Brings the lake up to date.
    async fn look(&self) -> Result<()> {
        match self.moto {
            Some(moto) => moto.export(Stack::BUCKET, self.stack.dir()).await,
            None => Ok(()),
        }
    }

    /// Puts other bytes where an object is.
    async fn replace(&self, key: &str, content: Vec<u8>) -> Result<()> {
        match self.moto {
            Some(moto) => moto.replace(Stack::BUCKET, key, content).await,
            None => Ok(fs::write(
                self.lake().bucket().join(Path::new(key)),
                content,
            )?),
        }
    }

    /// Lets a sink mirror what is pushed, stops it, and answers its log.
    async fn mirror(&self, round: usize, pushed: &mut Vec<Pushed>) -> Result<()> {
        let sink = self.stack.sink(&self.options())?;
        let client = self.stack.client();
        pushed.extend(
            client
                .push_all(events(QUEUE, round, 200, 5), |_| {})
                .await?,
        );
        let log = Ledger::of(&*pushed, QUEUE)?;
        queen_dev::eventually(WAIT, async || {
            self.look().await?;
            let manifests = self.lake().manifests(QUEUE).unwrap_or_default();
            let records: u64 = manifests.iter().filter_map(|m| m["records"].as_u64()).sum();
            Ok((records >= pushed.len() as u64).then_some(()))
        })
        .await
        .with_context(|| format!("it is not mirrored:{}", sink.logs().tail()))?;
        sink.signal(Signal::TERM);
        ensure!(sink.ended(WAIT).await?.success(), "{}", sink.logs().tail());
        self.look().await?;
        settled(&self.lake(), QUEUE, &log).await
    }
}

async fn verifies(place: &Place<'_>) -> Result<()> {
    let (stack, options) = (place.stack, place.options());
    let verify = async |arguments: &[&str]| run(stack, &options, arguments).await;
    place.mirror(0, &mut Vec::new()).await?;
    verify(&["verify"]).await?.must(0, "clean: ", "")?;
    let clean = verify(&["verify", "--json"]).await?;
    clean.must(0, "", "")?;
    let report: Value = serde_json::from_str(&clean.stdout).context("standard output")?;
    ensure!(report["ok"] == true && report["findings"] == 0, "{report}");
    ensure!(report["queues"][0]["records"] == 200, "{report}");

    let objects = place.lake().objects(QUEUE)?;
    let LakeObject { key, bytes } = objects.first().context("an object")?;
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    place.replace(key, damaged).await?;
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
    place.replace(key, bytes.clone()).await?;
    verify(&["verify"]).await?.must(0, "clean: ", "")?;

    let nowhere = options.with("QUEEN_S3_ENDPOINT", NOWHERE);
    let lost = run(stack, &nowhere, &["verify", "--json"]).await?;
    lost.must(3, "", "QUEEN_S3_ENDPOINT")?;
    ensure!(lost.stdout.is_empty(), "{}", lost.stdout);
    Ok(())
}

async fn adopts(place: &Place<'_>) -> Result<()> {
    let (stack, options) = (place.stack, place.options());
    let adopt = async || run(stack, &options, &["adopt", "--queue", QUEUE]).await;
    let mut pushed = Vec::new();
    place.mirror(0, &mut pushed).await?;
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

    let k = place.lake().manifests(QUEUE)?.len();
    let adopted = adopt().await?;
    let line = format!("adopted: the commit pointer {POINTER} of queue {QUEUE} is at window {k},");
    adopted.must(0, &line, "")?;
    ensure!(adopted.stdout.lines().count() == 1, "{}", adopted.stdout);
    let pointer = stack.client().kv_get("queen-s3", POINTER).await?;
    let pointer = pointer.context("a pointer")?;
    ensure!(pointer["k"] == k, "{pointer}");
    adopt().await?.must(1, "", "there is nothing to adopt")?;
    place.mirror(1, &mut pushed).await
}

async fn at_both_servers(test: impl AsyncFn(&Place<'_>) -> Result<()>) -> Result<()> {
    let stack = stack_with(&[QUEUE]).await?;
    let here = Place {
        stack: &stack,
        moto: None,
    };
    test(&here).await?;
    drop(stack);
    let stack = stack_with(&[QUEUE]).await?;
    let moto = Moto::start(&stack.dir().join("logs"), Stack::BUCKET).await?;
    let there = Place {
        stack: &stack,
        moto: Some(&moto),
    };
    test(&there).await.context("at moto")
}

#[tokio::test]
async fn verify_finds_damage_and_reports_it_to_people_and_programs() -> Result<()> {
    at_both_servers(verifies).await
}

#[tokio::test]
async fn adopt_gives_a_lake_its_pointer_back_and_the_sink_goes_on_from_there() -> Result<()> {
    at_both_servers(adopts).await
}
