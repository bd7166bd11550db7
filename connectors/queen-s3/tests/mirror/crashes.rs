//! A configured crash point where a window does not fit into memory.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;

use async_trait::async_trait;
use queen_protocol::kv::{KvOpKind, KvOperation};
use queen_s3::broker::{
    Broker, BrokerError, Changed, ChangedRequest, FetchAnswer, FetchRequest, KvAnswer, Name,
};
use queen_s3::config::CrashPoint;
use queen_s3::limits::MIB;
use queen_s3::memory::MemoryBudget;

use crate::bucket::{Do, MemoryBucket};
use crate::link::Link;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
/// Records of one instant, of 64 KiB each: several times what the budget is.
const RECORDS: i64 = 100;
const MEMORY: usize = MIB;
/// Set in a process of its own, to its crash point: this test is then the sink that dies there.
const CRASHES: &str = "QUEEN_TEST_CRASHES";

/// Says which documents are durable.
struct Telling(Link);

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // At an abort nothing is flushed.
    writeln!(out, "said: {text}")
        .and_then(|()| out.flush())
        .expect("a pipe");
}

#[async_trait]
impl Broker for Telling {
    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        let answer = self.0.kv(operations).await?;
        for operation in operations.iter().filter(|one| one.op == KvOpKind::Put) {
            let key = operation.key.as_deref().unwrap_or_default();
            if let (KvAnswer::Done(_), Some(document)) = (&answer, key.rsplit(':').next()) {
                say(document);
            }
        }
        Ok(answer)
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        self.0.fetch(request).await
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        self.0.changed(request).await
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        self.0.queues().await
    }
}

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(64 << 10))
}

/// Runs a sink with a crash point over an instant that is larger than its memory.
fn be_the_sink(crash_at: CrashPoint) {
    in_virtual_time(async {
        let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
        log.create(QUEUE);
        for record in 0..RECORDS {
            let name = Name::from(format!("p-{:02}", record % 20));
            log.write(QUEUE, &name, TEN, 1);
        }
        let bucket = Arc::<MemoryBucket>::default();
        bucket.plan(|asked| {
            if asked.operation == "put" {
                say(&format!("put {}", asked.key));
            }
            Do::Go
        });
        let mut options = Options::new();
        options.memory = MEMORY;
        options.settings.crash_at = crash_at;
        let budget = MemoryBudget::new(options.memory);
        let link = Arc::new(Telling(Link::new(&log, &budget, options.seed)));
        let sink = Sink::over(link, budget, &log, &bucket, &[QUEUE], &options);
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        let window = bucket
            .data()
            .values()
            .map(|object| object.len())
            .sum::<usize>();
        assert!(window > 4 * MEMORY, "{window} bytes fit");
        sink.stop().await;
        say("committed");
    });
}

/// What a process of its own with this crash point did, and what it said.
fn sink(crash_at: CrashPoint) -> (Output, Vec<String>) {
    let this = "crashes::a_window_larger_than_the_memory_has_the_crash_point_after_its_intent_as_any_other";
    let program = std::env::current_exe().expect("this test's own program");
    let ended = Command::new(program)
        .args(["--exact", this, "--nocapture"])
        .env(CRASHES, crash_at.to_string())
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    // The harness begins a line of its own.
    let said = text
        .lines()
        .filter_map(|line| Some(line.split_once("said: ")?.1.to_owned()));
    let said = said.filter(|text| text != "lease").collect();
    (ended, said)
}

#[test]
fn a_window_larger_than_the_memory_has_the_crash_point_after_its_intent_as_any_other() {
    if let Ok(crash_at) = std::env::var(CRASHES) {
        return be_the_sink(CrashPoint::from_spelling(&crash_at).expect("a crash point"));
    }
    let (whole, said) = sink(CrashPoint::Never);
    assert!(whole.status.success(), "{whole:?}");
    let data = said
        .iter()
        .position(|text| text.starts_with("put ") && text.contains("/w-"));
    let intent = said.iter().position(|text| text == "intent");
    assert!(intent.is_some() && intent < data, "{said:#?}");
    assert_eq!(said.last().map(String::as_str), Some("committed"));

    let (crashed, said) = sink(CrashPoint::AfterIntent);
    const ABORTED: i32 = 6;
    assert_eq!(crashed.status.signal(), Some(ABORTED), "{crashed:?}");
    assert_eq!(
        said,
        ["committed", "intent"],
        "the first pointer, the intent, and then nothing"
    );
}
