//! The look at the bucket before any queue is claimed.

use thiserror::Error;

use super::{S3Bucket, is_absent};
use crate::bucket::{BucketError, BucketErrorKind};

/// Why the bucket cannot be used.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The store answers, and has no such bucket.
    #[error(
        "there is no bucket {bucket} at {endpoint}: check QUEEN_S3_BUCKET, QUEEN_S3_ENDPOINT and \
         QUEEN_S3_PATH_STYLE, or make the bucket"
    )]
    MissingBucket {
        /// `QUEEN_S3_BUCKET`.
        bucket: String,
        /// `QUEEN_S3_ENDPOINT`.
        endpoint: String,
    },
    /// The store refuses the sink: credentials, policy, region or clock.
    #[error("the bucket refuses the sink: {0}")]
    Refused(BucketError),
    /// The store does not answer, or is out of order.
    #[error("the bucket cannot be reached, check QUEEN_S3_ENDPOINT and the network: {0}")]
    Unreachable(BucketError),
}

impl S3Bucket {
    /// Proves endpoint, credentials and bucket by a HEAD of `<prefix>/`, where a missing key is a
    /// fine answer. Writes nothing.
    ///
    /// # Errors
    ///
    /// Says what to check; [`ProbeError`].
    pub async fn probe(&self, prefix: &str) -> Result<(), ProbeError> {
        let root = format!("{prefix}/");
        let Err(error) = self.head_once(&root).await else {
            return Ok(());
        };
        if is_absent(&error) {
            // A HEAD has no body to tell a missing key from a missing bucket.
            return match self.head_bucket().await {
                Err(error) if is_absent(&error) => Err(self.missing()),
                Err(error) if is_unreachable(&error) => Err(ProbeError::Unreachable(error)),
                // A policy that limits ListBucket by prefix denies HEAD on the bucket, though
                // the answer for the key has proved the rest.
                _ => Ok(()),
            };
        }
        if is_unreachable(&error) {
            return Err(ProbeError::Unreachable(error));
        }
        // Either the same policy denies a missing key, or the listing's body says what is wrong.
        match self.list_page(&root, None, Some(1)).await {
            Ok(_) if status(&error) == Some(403) => Ok(()),
            Ok(_) => Err(ProbeError::Refused(error)),
            Err(error) if is_missing_bucket(&error) => Err(self.missing()),
            Err(error) if is_unreachable(&error) => Err(ProbeError::Unreachable(error)),
            Err(error) => Err(ProbeError::Refused(error)),
        }
    }

    async fn head_bucket(&self) -> Result<(), BucketError> {
        let attempt = self.attempt("head");
        let bucket = &self.destination.bucket;
        let request = self
            .client
            .head_bucket()
            .bucket(bucket)
            .customize()
            .interceptor(attempt.watch())
            .send();
        self.answer(attempt, bucket, self.timeouts.answer, request)
            .await
            .map(drop)
    }

    fn missing(&self) -> ProbeError {
        ProbeError::MissingBucket {
            bucket: self.destination.bucket.clone(),
            endpoint: self.destination.endpoint.clone(),
        }
    }
}

fn status(error: &BucketError) -> Option<u16> {
    match &error.kind {
        BucketErrorKind::Refused { status, .. } => Some(*status),
        _ => None,
    }
}

fn is_unreachable(error: &BucketError) -> bool {
    status(error).is_none_or(|status| status >= 500 || status == 429)
}

fn is_missing_bucket(error: &BucketError) -> bool {
    matches!(&error.kind, BucketErrorKind::Refused { code, .. } if code == "NoSuchBucket")
}
