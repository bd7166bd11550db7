//! The log as a queue's task meets it, each call after a while that differs from call to call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queen_protocol::kv::KvOperation;
use queen_s3::broker::{
    Broker, BrokerError, BrokerErrorKind, Changed, ChangedRequest, EntryError, FetchAnswer,
    FetchRequest, KvAnswer, ListedPartition,
};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Trust, decode_fetch, decode_segments};
use queen_s3::time::Micros;
use tokio::time::sleep;

use crate::answers::Form;
use crate::log::Log;

/// One sink's way to the broker.
pub struct Link {
    log: Arc<Log>,
    budget: Arc<MemoryBudget>,
    trust: Arc<Trust>,
    dice: AtomicU64,
    /// Fetch calls under way.
    fetching: AtomicUsize,
}

impl Link {
    /// A link whose calls take times that follow from `seed`.
    pub fn new(log: &Arc<Log>, budget: &Arc<MemoryBudget>, seed: u64) -> Self {
        Self {
            log: Arc::clone(log),
            budget: Arc::clone(budget),
            trust: Arc::default(),
            dice: AtomicU64::new(seed),
            fetching: AtomicUsize::new(0),
        }
    }

    async fn travel(&self) {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let drawn = self.dice.fetch_add(STEP, Ordering::Relaxed);
        let mixed = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        sleep(Duration::from_micros((mixed >> 40) % 20_000)).await;
    }
}

fn error(operation: &'static str, kind: BrokerErrorKind) -> BrokerError {
    BrokerError {
        operation,
        url: "http://broker:6632".to_owned(),
        kind,
    }
}

#[async_trait]
impl Broker for Link {
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        if self.log.refuses_fetch() {
            self.travel().await;
            let silence = BrokerErrorKind::Malformed("nobody answers".to_owned());
            return Err(error("POST /api/v1/fetch", silence));
        }
        let at_once = self.fetching.fetch_add(1, Ordering::Relaxed) + 1;
        self.travel().await;
        self.log.fetching();
        let (form, body) = (self.log.form(), self.log.fetch(request, at_once));
        self.travel().await;
        self.fetching.fetch_sub(1, Ordering::Relaxed);
        let answer = match form {
            Form::Json => decode_fetch(request, body.into(), &self.budget),
            Form::Segments | Form::Described | Form::Lz4 | Form::Misdescribed => {
                decode_segments(request, body.into(), &self.budget, &self.trust)
            }
        };
        // Only an arriving answer adds to it.
        self.log.note_held(self.budget.used());
        answer.map_err(|source| error("POST /api/v1/fetch", BrokerErrorKind::Decode(source)))
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        let mut answer = Changed {
            safe_time: Micros(self.log.safe_time()),
            degraded: self.log.is_degraded(),
            partitions: Vec::new(),
            next: None,
            error: None,
        };
        self.travel().await;
        if self.log.is_mute() {
            let silence = BrokerErrorKind::Malformed("nobody answers".to_owned());
            return Err(error("POST /api/v1/partitions/changed", silence));
        }
        let Some(request) = request else {
            return Ok(answer);
        };
        let Some((listed, next)) = self.log.page(request) else {
            answer.error = Some(EntryError::UnknownQueue);
            return Ok(answer);
        };
        answer.next = next;
        answer.partitions = listed
            .into_iter()
            .map(|line| ListedPartition {
                name: line.name,
                id: self.log.identifies().then_some(line.id),
                last_offset: line.last_offset,
                log_start: line.log_start,
                last_write_at: (self.log.tells_times()).then_some(Micros(line.last_write_at)),
            })
            .collect();
        Ok(answer)
    }

    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        self.travel().await;
        self.log
            .kv(operations)
            .map_err(|text| error("POST /api/v1/kv", BrokerErrorKind::Malformed(text)))
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        Ok(Vec::new())
    }
}
