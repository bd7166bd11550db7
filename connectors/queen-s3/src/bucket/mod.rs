//! What the sink asks of an object store: one trait, implemented over the S3 API by [`s3`] and by
//! the simulation.

pub mod s3;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use thiserror::Error;

/// An object store's bucket. Every method is one HTTP request and never retries: the caller must
/// look at its lease before each attempt.
///
/// # Errors
///
/// Of every method: when no answer came, or one that refuses or does not read, or that shows other bytes to
/// be there than were sent. A write may have been carried out all the same.
#[async_trait]
pub trait Bucket: Send + Sync {
    /// Uploads an object in one request with `Content-MD5`, and checks the answer's ETag against
    /// it where it has the shape of an MD5.
    async fn put(&self, key: &str, body: ObjectBody) -> Result<(), BucketError>;

    /// Opens an object; `None` when it is absent.
    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError>;

    /// Looks at an object; `None` when it is absent.
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError>;

    /// Lists keys that start with `prefix`, one page; `after` is the former page's `next`.
    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, BucketError>;

    /// Deletes an object. Used for superseded checkpoints only.
    async fn delete(&self, key: &str) -> Result<(), BucketError>;

    /// Starts a multipart upload and answers its id.
    async fn create_multipart(&self, key: &str) -> Result<String, BucketError>;

    /// Uploads one part, numbered from 1, and answers its ETag as the server wrote it.
    async fn upload_part(
        &self,
        key: &str,
        upload_id: &str,
        number: u16,
        part: Bytes,
    ) -> Result<String, BucketError>;

    /// Completes a multipart upload of `etags`, the parts in order, and checks the answer's
    /// part count where the ETag shows one.
    async fn complete_multipart(
        &self,
        key: &str,
        upload_id: &str,
        etags: &[String],
    ) -> Result<(), BucketError>;

    /// Gives a multipart upload up.
    async fn abort_multipart(&self, key: &str, upload_id: &str) -> Result<(), BucketError>;
}

/// A whole object, in pieces that are sent one after the other.
#[derive(Clone, Debug)]
pub struct ObjectBody {
    /// The content, in order.
    pub pieces: Vec<Bytes>,
    /// MD5 of the content.
    pub md5: [u8; 16],
}

impl ObjectBody {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Whether the object is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What HEAD tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Length in bytes.
    pub size: u64,
    /// The ETag without its quotes, if the store sent one.
    pub etag: Option<String>,
}

/// An open object.
pub struct ObjectReader {
    /// Length in bytes.
    pub size: u64,
    /// The content.
    pub stream: BoxStream<'static, Result<Bytes, BucketError>>,
}

impl ObjectReader {
    /// The whole content, cut at `limit` bytes, where a document no longer reads.
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, BucketError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.stream.try_next().await? {
            if bytes.len() + piece.len() > limit {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Keys, in byte order.
    pub keys: Vec<String>,
    /// What to pass as `after` for the next page, if there is one.
    pub next: Option<String>,
}

/// A request to the bucket that failed.
#[derive(Debug, Error)]
#[error("{operation} {key}: {kind}")]
pub struct BucketError {
    /// The operation, as the metrics name it.
    pub operation: &'static str,
    /// The key, or the prefix of a listing.
    pub key: String,
    /// What went wrong.
    pub kind: BucketErrorKind,
}

/// Why a request to the bucket failed.
#[derive(Debug, Error)]
pub enum BucketErrorKind {
    /// No answer: connection, TLS or time-out. Whether a write took effect is unknown.
    #[error("{0}")]
    Transport(String),
    /// The store refused the request.
    #[error("HTTP {status} {code}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The S3 error code, or empty.
        code: String,
        /// The store's message, or what to do about it.
        message: String,
        /// `Retry-After`, when the answer carried one.
        retry_after: Option<Duration>,
    },
    /// The store answered success for other bytes than were sent.
    #[error("the store holds other bytes than were sent: {0}")]
    Integrity(String),
}

impl BucketError {
    /// How long the store asked to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.kind {
            BucketErrorKind::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the multipart upload is not there (any more).
    pub fn no_such_upload(&self) -> bool {
        matches!(&self.kind, BucketErrorKind::Refused { code, .. } if code == "NoSuchUpload")
    }
}
