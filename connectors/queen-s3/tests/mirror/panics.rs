//! A defect that shows while records are read, or only while a window is encoded: what it costs, and whom;
//! and what a panic tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queen_protocol::kv::KvOperation;
use queen_s3::broker::http::{HttpBroker, HttpBrokerOptions};
use queen_s3::broker::{
    Broker, BrokerError, Changed, ChangedRequest, FetchAnswer, FetchRequest, KvAnswer, Name,
};
use queen_s3::bucket::s3::{S3Bucket, S3Options, S3Timeouts};
use queen_s3::compute::Compute;
use queen_s3::config::Config;
use queen_s3::memory::MemoryBudget;
use queen_s3::observe::logging;
use queen_s3::record::{Batch, Chunk, Ids, Mark, RecordIndex};
use tokio::time::{Instant, sleep};

use crate::bucket::MemoryBucket;
use crate::bytes::ENCODINGS;
use crate::lines::Lines;
use crate::link::Link;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{SECOND, TEN, in_virtual_time};

/// The queue whose records are spoiled, and another one.
const SPOILED: &str = "clicks";
const SOUND: &str = "orders";
/// Records of each.
const RECORDS: u32 = 500;
/// How long the queue of a task that panicked rests.
const REST: Duration = Duration::from_secs(30);

/// Where the defect shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meets {
    /// Where an answer is read.
    Reader,
    /// Where its records are encoded.
    Encoder,
}

/// A way to the broker on which records lose their payloads: no byte of them is where the index says,
/// which no decoder lets through. Whoever encodes one panics, if who reads it does not.
struct Spoiling {
    link: Link,
    spoils: Arc<AtomicBool>,
    meets: Meets,
    /// Answers that were spoiled.
    count: Arc<AtomicUsize>,
}

impl Spoiling {
    fn new(link: Link, meets: Meets) -> Self {
        Self {
            link,
            spoils: Arc::new(AtomicBool::new(true)),
            meets,
            count: Arc::default(),
        }
    }
}

#[async_trait]
impl Broker for Spoiling {
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        let mut answer = self.link.fetch(request).await?;
        if &*request.queue == SPOILED && self.spoils.load(Relaxed) {
            self.count.fetch_add(1, Relaxed);
            assert!(self.meets != Meets::Reader, "the reader meets a defect");
            let spoil = |record: Mark| RecordIndex {
                offset: record.offset,
                ts: record.ts,
                transaction_id_start: 0,
                transaction_id_len: 1,
                payload_start: u32::MAX / 2,
                payload_len: 1,
            };
            let index = Chunk::whole(&answer.batch).marks().map(spoil).collect();
            let budget = MemoryBudget::new(0);
            answer.batch = Batch::new(Bytes::from_static(b"t"), index, Ids::Plain, &budget);
        }
        Ok(answer)
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        self.link.changed(request).await
    }

    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        self.link.kv(operations).await
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        self.link.queues().await
    }
}

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset}}}")
}

#[test]
fn an_encoder_that_panics_stops_its_queue_for_a_while_and_no_other() {
    for (format, compression) in ENCODINGS {
        in_virtual_time(async {
            let log = Log::new(TEN + 600 * SECOND, payload);
            for queue in [SPOILED, SOUND] {
                log.create(queue);
                log.write(queue, &Name::from("p"), TEN, RECORDS);
            }
            let mut options = Options::new();
            options.settings.shape.format = format;
            options.settings.shape.compression = compression;
            options.compute = Compute::Offloaded;
            options.rest = Some(REST);
            let bucket = Arc::<MemoryBucket>::default();
            let budget = MemoryBudget::new(options.memory);
            let link = Link::new(&log, &budget, options.seed);
            let spoiling = Arc::new(Spoiling::new(link, Meets::Encoder));
            let spoils = Arc::clone(&spoiling.spoils);
            let tries = Arc::clone(&spoiling.count);
            let queues = [SPOILED, SOUND];
            let sink = Sink::over(spoiling, budget, &log, &bucket, &queues, &options);
            let stopped = format!("queen_s3_queue_stopped{{queue=\"{SPOILED}\"}}");
            let shown = || sink.shown(&stopped) == Some(1.0);
            eventually("it is shown", shown).await;
            // It is tried again after its rest, and after what an interrupted window waits.
            for _ in 0..2 {
                let (begin, before) = (Instant::now(), tries.load(Relaxed));
                eventually("the next try", || tries.load(Relaxed) > before).await;
                assert!(
                    begin.elapsed() <= REST + options.settings.lease_ttl + Duration::from_secs(2)
                );
            }
            assert_eq!(committed(&log, SPOILED).0, 0);
            let sound = committed(&log, SOUND).1;
            sleep(Duration::from_secs(600)).await;
            assert!(committed(&log, SOUND).1 > sound, "the other queue goes on");
            spoils.store(false, Relaxed);
            eventually("its window", || committed(&log, SPOILED).0 == 1).await;
            eventually("it is no longer shown", || !shown()).await;
            sink.stop().await;
            for queue in queues {
                let windows = bucket.manifests(queue);
                let records: i64 = windows
                    .iter()
                    .filter_map(|one| one["records"].as_i64())
                    .sum();
                assert_eq!(
                    records,
                    i64::from(RECORDS),
                    "{queue}, {format} {compression}"
                );
            }
        });
    }
}

#[test]
fn a_queue_that_panics_again_and_again_is_shown_without_a_break_and_goes_on_once() {
    for meets in [Meets::Reader, Meets::Encoder] {
        in_virtual_time(async {
            let (lines, _guard) = Lines::start();
            let log = Log::new(TEN + 600 * SECOND, payload);
            log.create(SPOILED);
            log.write(SPOILED, &Name::from("p"), TEN, RECORDS);
            let mut options = Options::new();
            options.rest = Some(REST);
            let bucket = Arc::<MemoryBucket>::default();
            let budget = MemoryBudget::new(options.memory);
            let link = Link::new(&log, &budget, options.seed);
            let spoiling = Arc::new(Spoiling::new(link, meets));
            let spoils = Arc::clone(&spoiling.spoils);
            let tries = Arc::clone(&spoiling.count);
            let sink = Sink::over(spoiling, budget, &log, &bucket, &[SPOILED], &options);
            let stopped = format!("queen_s3_queue_stopped{{queue=\"{SPOILED}\"}}");
            let shown = || sink.shown(&stopped) == Some(1.0);
            eventually("it is shown", shown).await;
            for _ in 0..1_200 {
                sleep(Duration::from_secs(1)).await;
                assert!(shown(), "{meets:?}: nothing says that it goes on");
            }
            let tries = tries.load(Relaxed);
            assert!(tries >= 15, "{meets:?}: {tries} tries in 20 minutes");
            let (claimed, on) = ("queue claimed", "it goes on");
            assert_eq!(lines.with(claimed).len(), 1, "{:#?}", lines.with(claimed));
            assert!(lines.with(on).is_empty(), "{:#?}", lines.with(on));

            spoils.store(false, Relaxed);
            eventually("its window", || committed(&log, SPOILED).0 == 1).await;
            eventually("it is no longer shown", || !shown()).await;
            sleep(Duration::from_secs(1_200)).await;
            assert_eq!(lines.with(on).len(), 1, "{:#?}", lines.with(on));
            sink.stop().await;
        });
    }
}

/// Set in a process of its own, to how its log is to look: this test then panics in it.
const PANICS: &str = "QUEEN_TEST_PANICS";
/// The secrets, and another credential that is nobody's business.
const SECRETS: [&str; 3] = ["token-hunter2", "secret/hunter2+=", "AKIAHUNTER2"];

/// Panics as nothing in the program does: with all that knows a secret in its message.
fn panic_with_everything(log_format: &str) {
    let [token, secret_key, access_key] = SECRETS;
    let config = Config::from_lookup(|name| {
        let value = match name {
            "QUEEN_TOKEN" => token,
            "QUEEN_S3_SECRET_KEY" => secret_key,
            "QUEEN_S3_ACCESS_KEY" => access_key,
            "QUEEN_S3_LOG_FORMAT" => log_format,
            "QUEEN_S3_QUEUES" | "QUEEN_S3_BUCKET" | "QUEEN_S3_REGION" => "name",
            "QUEEN_S3_ENDPOINT" => "http://127.0.0.1:9",
            _ => return None,
        };
        Some(value.into())
    });
    let config = config.expect("a configuration");
    logging::start(config.log_format, &config.log_filter).expect("a filter");
    let broker_options = HttpBrokerOptions::new(
        config.url.clone(),
        config.token.clone(),
        MemoryBudget::new(0),
    );
    let broker = HttpBroker::new(broker_options.clone()).expect("a token that can be sent");
    let bucket_options = S3Options {
        endpoint: config.endpoint.clone(),
        region: config.region.clone(),
        bucket: config.bucket.clone(),
        access_key: config.access_key.clone(),
        secret_key: config.secret_key.clone(),
        path_style: true,
        sse: config.sse.clone(),
        status: Arc::default(),
        mid_upload: None,
        timeouts: S3Timeouts::default(),
    };
    let bucket = S3Bucket::new(bucket_options.clone());
    let everything = (config, broker_options, broker, bucket_options, bucket);
    panic!("met {everything:?} {everything:#?}");
}

#[test]
fn a_panic_tells_no_secret_even_with_all_that_knows_one_in_its_message() {
    if let Ok(log_format) = std::env::var(PANICS) {
        panic_with_everything(&log_format);
    }
    for log_format in ["human", "json"] {
        let this = "panics::a_panic_tells_no_secret_even_with_all_that_knows_one_in_its_message";
        let program = std::env::current_exe().expect("this test's own program");
        let ended = std::process::Command::new(program)
            .args(["--exact", this, "--nocapture"])
            .env(PANICS, log_format)
            .env("RUST_BACKTRACE", "full")
            .output()
            .expect("a process");
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!ended.status.success(), "{said}");
        let lines: Vec<&str> = said.lines().collect();
        let panics = lines.iter().filter(|line| line.contains("panic at "));
        assert_eq!(panics.count(), 1, "{said}");
        assert!(
            said.contains("<secret>") && said.contains("S3Bucket"),
            "{said}"
        );
        for secret in SECRETS {
            assert!(!said.contains(secret), "{said}");
        }
    }
}
