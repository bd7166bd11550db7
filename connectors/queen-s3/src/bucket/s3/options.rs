//! What a bucket over the S3 API is opened with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Secret, Sse};
use crate::limits::{
    CONNECT_TIMEOUT, STORE_ANSWER_TIMEOUT, STORE_COMPLETE_TIMEOUT, UPLOAD_STALL_TIMEOUT,
};
use crate::observe::status::Status;

/// Called with an object's key in the middle of its upload.
pub type MidUpload = Arc<dyn Fn(&str) + Send + Sync>;

/// Where the bucket is and how it is written.
#[derive(Clone)]
pub struct S3Options {
    /// `QUEEN_S3_ENDPOINT`: scheme, host and port.
    pub endpoint: String,
    /// `QUEEN_S3_REGION`.
    pub region: String,
    /// `QUEEN_S3_BUCKET`.
    pub bucket: String,
    /// `QUEEN_S3_ACCESS_KEY`.
    pub access_key: Secret,
    /// `QUEEN_S3_SECRET_KEY`, never printed.
    pub secret_key: Secret,
    /// `QUEEN_S3_PATH_STYLE`.
    pub path_style: bool,
    /// `QUEEN_S3_SSE` and its key.
    pub sse: Sse,
    /// Where requests are counted.
    pub status: Arc<Status>,
    /// Called once per object, with its key, when half the body of a single PUT is sent or the
    /// first part of a multipart upload is up. For `QUEEN_S3_CRASH_AT=mid_upload`; the callee
    /// tells data from sidecars by the key.
    pub mid_upload: Option<MidUpload>,
    /// How long requests may take.
    pub timeouts: S3Timeouts,
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("bucket", &self.bucket)
            .field("path_style", &self.path_style)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// Time limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct S3Timeouts {
    /// For a connection to open.
    pub connect: Duration,
    /// For the answer to a request without a body of ours, and for an object's next bytes.
    pub answer: Duration,
    /// For the store to put the parts of an object together.
    pub complete: Duration,
    /// For an upload that stands still, or waits for its answer once it is sent.
    pub stall: Duration,
}

impl Default for S3Timeouts {
    fn default() -> Self {
        Self {
            connect: CONNECT_TIMEOUT,
            answer: STORE_ANSWER_TIMEOUT,
            complete: STORE_COMPLETE_TIMEOUT,
            stall: UPLOAD_STALL_TIMEOUT,
        }
    }
}
