//! A defect that shows only while a window is encoded: what it costs, and whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queen_protocol::kv::KvOperation;
use queen_s3::broker::{
    Broker, BrokerError, Changed, ChangedRequest, FetchAnswer, FetchRequest, KvAnswer, Name,
};
use queen_s3::compute::Compute;
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Batch, Ids, RecordIndex};
use tokio::time::{Instant, sleep};

use crate::bucket::MemoryBucket;
use crate::bytes::ENCODINGS;
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

/// A way to the broker on which records lose their payloads: no byte of them is where the index says,
/// which no decoder lets through. Whoever encodes one panics.
struct Spoiling {
    link: Link,
    spoils: Arc<AtomicBool>,
}

#[async_trait]
impl Broker for Spoiling {
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        let mut answer = self.link.fetch(request).await?;
        if &*request.queue == SPOILED && self.spoils.load(Relaxed) {
            let spoil = |record: &RecordIndex| RecordIndex {
                transaction_id_start: 0,
                transaction_id_len: 1,
                payload_start: u32::MAX / 2,
                ..*record
            };
            let index = answer.batch.index().iter().map(spoil).collect();
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
            let spoils = Arc::new(AtomicBool::new(true));
            let spoiling = Arc::new(Spoiling {
                link: Link::new(&log, &budget, options.seed),
                spoils: Arc::clone(&spoils),
            });
            let queues = [SPOILED, SOUND];
            let sink = Sink::over(spoiling, budget, &log, &bucket, &queues, &options);
            let stopped = format!("queen_s3_queue_stopped{{queue=\"{SPOILED}\"}}");
            let shown = || sink.shown(&stopped) == Some(1.0);
            for _ in 0..2 {
                eventually("it is shown", shown).await;
                // It is tried again after its rest.
                let begin = Instant::now();
                eventually("the next try", || !shown()).await;
                assert!(begin.elapsed() <= REST + Duration::from_secs(1));
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
