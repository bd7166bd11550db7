//! What the sink asks of Queen: one trait, implemented over HTTP by [`http`] and by the simulation.

pub mod http;
pub mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queen_protocol::kv::{KvOperation, KvResult};
use thiserror::Error;

use crate::record::{Batch, DecodeError};
use crate::time::Micros;

/// A queue's or partition's raw name, cheap to clone.
pub type Name = Arc<str>;

/// Queen, as the sink sees it. Every method is one HTTP call and never retries: the caller knows
/// what a retry is worth.
///
/// # Errors
///
/// Of every method: when no answer came, or one that refuses or does not read. [`BrokerError::outcome_unknown`]
/// tells whether the call may have been carried out all the same.
#[async_trait]
pub trait Broker: Send + Sync {
    /// `POST /api/v1/fetch`: records of up to [`crate::limits::FETCH_ENTRIES`] partitions of one
    /// queue, from absolute offsets.
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError>;

    /// `POST /api/v1/partitions/changed` for one queue, or for `safeTime` alone when `None`.
    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError>;

    /// `POST /api/v1/kv`: one atomic batch.
    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError>;

    /// `GET /api/v1/resources/queues`: names of the tenant's queues.
    async fn queues(&self) -> Result<Vec<String>, BrokerError>;
}

/// One fetch call.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// The queue that every entry reads.
    pub queue: Name,
    /// What to read, 1 to [`crate::limits::FETCH_ENTRIES`] partitions, each at most once.
    pub entries: Vec<FetchEntry>,
    /// How long the broker may park the call when nothing is there, in ms; 0 answers at once.
    pub max_wait_ms: u32,
}

/// One partition of a fetch call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchEntry {
    /// The partition.
    pub partition: Name,
    /// First offset wanted.
    pub offset: i64,
    /// Stored (compressed) bytes wanted at most.
    pub max_bytes: u32,
}

/// A fetch answer, aligned with its request: checked by the decoder to name the same queue and
/// partitions in the same order.
#[derive(Debug)]
pub struct FetchAnswer {
    /// The records of all entries.
    pub batch: Arc<Batch>,
    /// One per entry of the request.
    pub entries: Vec<FetchedEntry>,
}

/// What one entry of a fetch was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedEntry {
    /// The entry's records, a range into the batch's index; `offset` rises strictly, `ts` does
    /// not fall.
    pub records: std::ops::Range<u32>,
    /// The next offset to be assigned.
    pub high_watermark: i64,
    /// The first offset still held.
    pub log_start: i64,
    /// Identity of the partition's life that was read; brokers may leave it out.
    pub life: Option<uuid::Uuid>,
    /// The entry's error, if any.
    pub error: Option<EntryError>,
}

/// A per-entry error of `fetch` and `partitions/changed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryError {
    /// The offset is below the log start or above the watermark; the bounds are given.
    OffsetOutOfRange,
    /// The queue is unknown to this tenant.
    UnknownQueue,
    /// The cursor was refused.
    BadCursor,
    /// The broker cannot read a segment (damaged, or its key is lost).
    Unreadable,
    /// A code that this version does not know.
    Other(String),
}

impl EntryError {
    /// The code of the wire, read.
    pub fn from_code(code: &str) -> Self {
        match code {
            "OFFSET_OUT_OF_RANGE" => Self::OffsetOutOfRange,
            "UNKNOWN_TOPIC_OR_PARTITION" => Self::UnknownQueue,
            "BAD_CURSOR" => Self::BadCursor,
            "UNREADABLE" => Self::Unreadable,
            other => Self::Other(other.chars().take(100).collect()),
        }
    }
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OffsetOutOfRange => "OFFSET_OUT_OF_RANGE",
            Self::UnknownQueue => "UNKNOWN_TOPIC_OR_PARTITION",
            Self::BadCursor => "BAD_CURSOR",
            Self::Unreadable => "UNREADABLE",
            Self::Other(code) => code,
        })
    }
}

/// One page of a discovery pass.
#[derive(Clone, Debug)]
pub struct ChangedRequest {
    /// The queue.
    pub queue: Name,
    /// Only partitions written at or after this; `None` lists every partition.
    pub since: Option<Micros>,
    /// The former page's cursor, never parsed.
    pub after: Option<String>,
    /// Partitions wanted, 1 to [`crate::limits::CHANGED_PAGE`].
    pub limit: u32,
}

/// A discovery answer.
#[derive(Clone, Debug)]
pub struct Changed {
    /// No segment that will ever become visible carries a `ts` below this.
    pub safe_time: Micros,
    /// The broker could not see every session and answered a floor.
    pub degraded: bool,
    /// The page; empty for a call without a queue.
    pub partitions: Vec<ListedPartition>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
    /// The entry's error, if any.
    pub error: Option<EntryError>,
}

/// One partition of a discovery page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPartition {
    /// The partition.
    pub name: Name,
    /// Identity of this life of the partition; older brokers send none.
    pub id: Option<uuid::Uuid>,
    /// Greatest offset, -1 for a partition never written.
    pub last_offset: i64,
    /// First offset still held.
    pub log_start: i64,
    /// When it was last written to, up to [`crate::limits::CHANGED_SINCE_SLACK_US`] behind the
    /// `ts` of its last record; only moves forward. Brokers may leave it out.
    pub last_write_at: Option<Micros>,
}

/// The answer to a key/value batch.
#[derive(Debug)]
pub enum KvAnswer {
    /// Every operation was carried out; one result per operation. A write without `required` may
    /// still have lost its precondition (`applied: false`).
    Done(Vec<KvResult>),
    /// A required precondition was lost and nothing was written. The index of the failed
    /// operation, if the broker named it.
    RolledBack(Option<usize>),
}

/// A call to Queen that brought no usable answer.
#[derive(Debug, Error)]
#[error("{operation} at {url}: {kind}")]
pub struct BrokerError {
    /// Method and path.
    pub operation: &'static str,
    /// Scheme, host and port called.
    pub url: String,
    /// What went wrong.
    pub kind: BrokerErrorKind,
}

/// Why a call to Queen failed. None of them says whether a write took effect, but `Status` below
/// 500, which says that it did not.
#[derive(Debug, Error)]
pub enum BrokerErrorKind {
    /// No answer: connection, TLS or time-out. The text never holds a token.
    #[error("{0}")]
    Transport(String),
    /// An HTTP status other than 200.
    #[error("HTTP {code}: {excerpt}")]
    Status {
        /// The status.
        code: u16,
        /// The start of the body, cleaned of control bytes.
        excerpt: String,
        /// `Retry-After`, when the answer carried one.
        retry_after: Option<Duration>,
    },
    /// An answer that is no answer of this API.
    #[error("the answer does not read: {0}")]
    Malformed(String),
    /// A fetch answer that does not read.
    #[error("the answer does not read: {0}")]
    Decode(#[from] DecodeError),
}

impl BrokerError {
    /// How long the broker asked to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.kind {
            BrokerErrorKind::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The HTTP status, when there was one.
    pub fn status(&self) -> Option<u16> {
        match &self.kind {
            BrokerErrorKind::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a write may have taken effect although no answer says so.
    pub fn outcome_unknown(&self) -> bool {
        !matches!(&self.kind, BrokerErrorKind::Status { code, .. } if *code < 500)
    }
}
