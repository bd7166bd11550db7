//! An object's content as it arrives.

use std::sync::Arc;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use super::refusal::Destination;
use crate::bucket::BucketErrorKind;
use crate::pace::Pace;

/// An object on its way here.
pub(super) struct Download {
    pub(super) body: ByteStream,
    pub(super) left: u64,
    pub(super) key: String,
    pub(super) destination: Arc<Destination>,
    pub(super) pace: Pace,
}

impl Download {
    /// The next bytes, or `None` once as many are here as the answer promised.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, BucketErrorKind> {
        let bytes = match self.pace.next(self.body.next()).await {
            Ok(Some(Ok(bytes))) => bytes,
            Ok(Some(Err(error))) => return Err(self.destination.broken_off(&error)),
            Ok(None) if self.left == 0 => return Ok(None),
            Ok(None) => {
                return Err(BucketErrorKind::Transport(format!(
                    "the object broke off {} bytes before its end",
                    self.left
                )));
            }
            Err(slow) => return Err(self.destination.too_slow(slow)),
        };
        self.pace.came(bytes.len());
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            BucketErrorKind::Transport("the object is longer than its Content-Length".into())
        })?;
        Ok(Some(bytes))
    }
}
