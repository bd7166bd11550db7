//! The embedded sink: real processes, with small programs standing in for the sink.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use private_postgres::{Options, PrivatePostgres};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Fixture, until};

/// A broker process whose sink is a shell script. Ends with the value.
struct Embedding {
    broker: Child,
    url: String,
    folder: TempDir,
    http: reqwest::Client,
    _postgres: PrivatePostgres,
}

impl Embedding {
    async fn start(script: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&folder, script);
        Self::start_with(folder, &program, variables).await
    }

    async fn start_with(folder: TempDir, program: &Path, variables: &[(&str, &str)]) -> Self {
        let broker = Path::new(env!("CARGO_BIN_EXE_queen"));
        Self::start_as(broker, folder, program, variables).await
    }

    async fn start_as(
        broker: &Path,
        folder: TempDir,
        program: &Path,
        variables: &[(&str, &str)],
    ) -> Self {
        let postgres = PrivatePostgres::start(Options::throwaway()).unwrap();
        let log = fs::File::create(folder.path().join("broker.log")).unwrap();
        let out = fs::File::create(folder.path().join("broker.out")).unwrap();
        let broker = Command::new(broker)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("PORT", "0")
            .env("PG_HOST", postgres.host())
            .env("PG_PORT", postgres.port().to_string())
            .env("PG_USER", postgres.user())
            .env("PG_PASSWORD", postgres.password())
            .env("PG_DB", postgres.database())
            .env("QUEEN_S3_EMBEDDED", "true")
            .env("QUEEN_S3_BIN", program)
            .env("QUEEN_S3_BUCKET", "lake")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .unwrap();
        let mut embedding = Self {
            broker,
            url: String::new(),
            folder,
            http: reqwest::Client::new(),
            _postgres: postgres,
        };
        until(|| async { embedding.read("broker.out").contains(" listening=") }).await;
        let said = embedding.read("broker.out");
        let (_, rest) = said.split_once("listening=").unwrap();
        let url = rest.split_whitespace().next().unwrap();
        embedding.url = url.replace("0.0.0.0", "127.0.0.1");
        embedding
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The file's text, once it ends with a newline.
    async fn written(&self, name: &str) -> String {
        until(|| async { self.read(name).ends_with('\n') }).await;
        self.read(name)
    }

    async fn status(&self) -> Value {
        let answer = self.http.get(format!("{}/status", self.url)).send();
        answer.await.unwrap().json().await.unwrap()
    }

    async fn sink(&self) -> Value {
        self.status().await["s3"].clone()
    }

    /// What `/status` shows of the sink in this phase.
    async fn seen(&self, phase: &str) -> Value {
        let seen = RefCell::new(Value::Null);
        until(|| async {
            let sink = self.sink().await;
            let there = sink["phase"] == phase;
            seen.replace(sink);
            there
        })
        .await;
        seen.into_inner()
    }

    /// The process id of the sink, once it runs.
    async fn running(&self) -> i32 {
        i32::try_from(self.seen("running").await["pid"].as_i64().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        send(i32::try_from(self.broker.id()).unwrap(), signal);
    }

    async fn ended(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            if let Some(status) = self.broker.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "{}", self.read("broker.log"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A program of this shell script, named as the sink is, in `folder`.
fn program(folder: &TempDir, script: &str) -> PathBuf {
    let program = folder.path().join("queen-s3");
    let text = format!("#!/bin/bash\ncd {:?}\n{script}\n", folder.path());
    let draft = folder.path().join("draft");
    fs::write(&draft, text).unwrap();
    install(&draft, &program);
    program
}

/// Copies a program, in a process of its own: what this one writes is open in whatever other tests begin
/// meanwhile as well, and a file that is open for writing cannot be executed.
fn install(from: &Path, to: &Path) {
    let mut command = Command::new("install");
    let done = command.args(["-m", "755"]).args([from, to]).status();
    assert!(done.unwrap().success());
}

impl Drop for Embedding {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether no process runs under this id: a zombie that nobody reaps has ended too.
fn is_gone(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z')),
        Err(_) => true,
    }
}

#[tokio::test]
async fn a_sink_that_is_killed_comes_back_after_a_pause() {
    let embedding = Embedding::start("exec sleep 600", &[]).await;
    let first = embedding.running().await;
    let status = embedding.sink().await;
    assert_eq!(
        (&status["mode"], &status["restarts"], &status["lastExit"]),
        (&"embedded".into(), &0.into(), &Value::Null)
    );
    let mut fields: Vec<&str> = status
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    let expected = [
        "backoffMs",
        "lastExit",
        "mode",
        "phase",
        "pid",
        "restarts",
        "uptimeMs",
    ];
    assert_eq!(fields, expected);
    let age = status["uptimeMs"].as_u64().unwrap();
    until(|| async { embedding.sink().await["uptimeMs"].as_u64().unwrap() > age }).await;
    let killed = Instant::now();
    send(first, Signal::KILL);
    assert_eq!(embedding.seen("backoff").await["backoffMs"], 1_000);
    let status = embedding.seen("running").await;
    assert!(killed.elapsed() >= Duration::from_secs(1));
    let second = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    assert_ne!(first, second);
    assert_eq!(
        (
            &status["restarts"],
            &status["lastExit"],
            &status["backoffMs"]
        ),
        (&1.into(), &"signal 9".into(), &0.into())
    );
    send(second, Signal::KILL);
    assert_eq!(embedding.seen("backoff").await["backoffMs"], 2_000);
}

#[tokio::test]
async fn a_broker_that_is_killed_outright_takes_its_sink_with_it() {
    let mut embedding = Embedding::start("trap '' TERM HUP INT; sleep 600", &[]).await;
    let sink = embedding.running().await;
    embedding.signal(Signal::KILL);
    embedding.ended().await;
    until(|| async { is_gone(sink) }).await;
}

#[tokio::test]
async fn a_broker_that_is_dropped_kills_its_sink_and_reaps_it() {
    let folder = tempfile::tempdir().unwrap();
    let sink = program(&folder, "trap '' TERM HUP INT; while :; do sleep 600; done");
    let variables = [
        ("QUEEN_S3_EMBEDDED", "true"),
        ("QUEEN_S3_BIN", sink.to_str().unwrap()),
        ("QUEEN_S3_BUCKET", "lake"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    let status = async || fixture.get("/status").await.json()["s3"].clone();
    until(|| async { status().await["phase"] == "running" }).await;
    let pid = i32::try_from(status().await["pid"].as_i64().unwrap()).unwrap();
    assert!(!is_gone(pid));
    drop(fixture);
    until(|| async { !Path::new(&format!("/proc/{pid}")).exists() }).await;
}

/// Where nothing else is named, the image needs no configuration.
#[tokio::test]
async fn unnamed_the_sink_is_the_file_beside_the_brokers_executable() {
    let folder = tempfile::tempdir().unwrap();
    let sink = program(&folder, "exec sleep 600");
    let broker = folder.path().join("queen");
    let built = env!("CARGO_BIN_EXE_queen");
    if fs::hard_link(built, &broker).is_err() {
        install(Path::new(built), &broker);
    }
    let embedding = Embedding::start_as(&broker, folder, &sink, &[("QUEEN_S3_BIN", "")]).await;
    embedding.running().await;
    let log = embedding.read("broker.log");
    let expected = format!("bin={}", sink.display());
    assert!(log.contains(&expected), "{expected}\n{log}");
}

/// An allocation that fails in a writer must not leave half a broker: only then is a child worth its
/// price.
#[test]
fn a_release_aborts_on_a_panic() {
    let manifest = include_str!("../../../Cargo.toml");
    let (_, release) = manifest.split_once("[profile.release]").unwrap();
    let release = release.split("\n[").next().unwrap();
    assert!(release.lines().any(|line| line == "panic = \"abort\""));
}

#[tokio::test]
async fn a_sink_that_never_stops_is_killed_with_its_group_after_the_grace() {
    let script = "trap '' TERM; sleep 600 & echo $! > grandchild; while :; do sleep 600; done";
    let grace = ("QUEEN_S3_SHUTDOWN_GRACE_MS", "700");
    let mut embedding = Embedding::start(script, &[grace]).await;
    let grandchild: i32 = embedding
        .written("grandchild")
        .await
        .trim()
        .parse()
        .unwrap();
    let sink = embedding.running().await;
    let asked = Instant::now();
    embedding.signal(Signal::TERM);
    assert!(embedding.ended().await.success());
    assert!(asked.elapsed() >= Duration::from_millis(700));
    until(|| async { is_gone(sink) && is_gone(grandchild) }).await;
    let log = embedding.read("broker.log");
    assert!(log.contains("QUEEN_S3_SHUTDOWN_GRACE_MS"), "{log}");
}

#[tokio::test]
async fn a_stopping_sink_still_reaches_the_broker_to_commit() {
    let script = r#"
        port=${QUEEN_URL##*:}
        commit() {
            body='{"operations":[{"op":"put","ns":"queen-s3","key":"s3:x","value":1,"forever":true}]}'
            exec 3<>/dev/tcp/127.0.0.1/$port
            printf 'POST /api/v1/kv HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
            head -1 <&3 > answer
            exit 0
        }
        trap commit TERM
        echo ready > ready
        while :; do sleep 0.05; done"#;
    let mut embedding = Embedding::start(script, &[]).await;
    embedding.written("ready").await;
    embedding.signal(Signal::TERM);
    assert!(embedding.ended().await.success());
    let answer = embedding.read("answer");
    assert!(answer.contains(" 200 "), "{answer:?}");
    assert!(embedding.read("broker.log").contains("exit code 0"));
}

#[tokio::test]
async fn a_gigabyte_of_output_costs_neither_memory_nor_log() {
    const LIMIT_KIB: u64 = 64 * 1_024;
    let script = r#"
        yes "$(printf '\033[31m%0200d' 7)" | head -c 1000000000
        echo done > done
        exec sleep 600"#;
    let embedding = Embedding::start(script, &[]).await;
    let limit = Instant::now() + Duration::from_secs(120);
    while embedding.read("done").is_empty() {
        assert!(Instant::now() < limit, "the gigabyte was not read in time");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until(|| async { embedding.read("broker.log").contains("suppressed=") }).await;
    let peak = fs::read_to_string(format!("/proc/{}/status", embedding.broker.id()))
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap();
    assert!(peak < LIMIT_KIB, "{peak} KiB");
    let log = embedding.read("broker.log");
    assert!(log.len() < 4_000_000, "{} bytes of log", log.len());
    assert!(!log.contains("\u{1b}[31m0000"));
    assert!(log.contains("00000007"));
}

#[tokio::test]
async fn the_sink_is_given_the_environment_without_the_brokers_secrets() {
    let script = "env > environment; echo started; exec sleep 600";
    let secret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let variables = [
        ("QUEEN_LISTEN_HOST", "0.0.0.0"),
        ("QUEEN_TOKEN", "its-own-token"),
        ("QUEEN_S3_SECRET_KEY", "its-own-key"),
        ("JWT_SECRET", secret),
        ("QUEEN_ENCRYPTION_KEY", secret),
        ("QUEEN_SYNC_SECRET", "hush"),
        ("QUEEN_URL", " "),
    ];
    let embedding = Embedding::start(script, &variables).await;
    let given = embedding.written("environment").await;
    let line = |name: &str| {
        given
            .lines()
            .find(|line| line.starts_with(&format!("{name}=")))
    };
    for name in [
        "PG_PASSWORD",
        "JWT_SECRET",
        "QUEEN_ENCRYPTION_KEY",
        "QUEEN_SYNC_SECRET",
    ] {
        assert_eq!(line(name), None);
    }
    assert_eq!(line("QUEEN_TOKEN"), Some("QUEEN_TOKEN=its-own-token"));
    assert_eq!(
        line("QUEEN_S3_SECRET_KEY"),
        Some("QUEEN_S3_SECRET_KEY=its-own-key")
    );
    assert_eq!(
        line("QUEEN_URL"),
        Some(format!("QUEEN_URL={}", embedding.url).as_str())
    );
    let pid = embedding.running().await;
    let log = embedding.read("broker.log");
    let expected = format!(
        "queen-s3 sink started (embedded) pid={pid} bin={} queen_url={} \
         queen_url_from=\"loopback (bound listener)\"",
        embedding.path("queen-s3").display(),
        embedding.url
    );
    assert!(log.contains(&expected), "{expected}\n{log}");
    until(|| async { embedding.read("broker.log").contains("queen_s3: started") }).await;
}

#[tokio::test]
async fn an_explicit_url_wins_over_the_loopback() {
    let url = "http://queen-proxy:6711";
    let script = "echo $QUEEN_URL > url; exec sleep 600";
    let embedding = Embedding::start(script, &[("QUEEN_URL", url)]).await;
    assert_eq!(embedding.written("url").await.trim(), url);
    embedding.running().await;
    let expected = format!("queen_url={url} queen_url_from=\"QUEEN_URL (explicit)\"");
    let log = embedding.read("broker.log");
    assert!(log.contains(&expected), "{log}");
}

#[tokio::test]
async fn without_an_embedded_sink_status_says_nothing_of_one() {
    let variables = [("QUEEN_S3_EMBEDDED", "false"), ("QUEEN_S3_BIN", "/nowhere")];
    let embedding = Embedding::start("echo started > started", &variables).await;
    assert!(embedding.status().await.get("s3").is_none());
    assert!(!embedding.path("started").exists());
}

#[tokio::test]
async fn the_real_sink_reads_its_place_from_the_broker_and_ends_with_its_own_code() {
    let program = queen_dev::sink_binary().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens on port 1, so the sink finds Queen and not the bucket.
    let variables = [
        ("QUEEN_S3_QUEUES", "orders"),
        ("QUEEN_S3_ENDPOINT", "http://127.0.0.1:1"),
        ("QUEEN_S3_REGION", "us-east-1"),
        ("QUEEN_S3_ACCESS_KEY", "key"),
        ("QUEEN_S3_SECRET_KEY", "hush"),
        ("QUEEN_S3_LISTEN", "127.0.0.1:0"),
    ];
    let embedding = Embedding::start_with(folder, &program, &variables).await;
    until(|| async { embedding.sink().await["lastExit"] == "exit code 3" }).await;
    let log = embedding.read("broker.log");
    assert!(
        log.contains("QUEEN_S3_ENDPOINT") && !log.contains("hush"),
        "{log}"
    );
}

#[tokio::test]
async fn a_sink_without_a_token_for_a_broker_that_demands_one_is_warned_of() {
    let variables = [
        ("JWT_ENABLED", "true"),
        ("JWT_SECRET", "0123456789abcdef0123456789abcdef"),
    ];
    let embedding = Embedding::start("echo up > up; exec sleep 600", &variables).await;
    embedding.written("up").await;
    let log = embedding.read("broker.log");
    assert!(log.contains("WARN") && log.contains("QUEEN_TOKEN"), "{log}");
}
