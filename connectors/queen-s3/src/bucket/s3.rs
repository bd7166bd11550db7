//! A bucket over the S3 API.
//!
//! Uploads are streamed from the memory they lie in: the request is signed with an unsigned
//! payload, which every store takes, and the signed `Content-MD5` ties the body to it. So no body
//! is hashed twice and none is copied.

#[cfg(test)]
mod addressing_tests;
mod attempt;
mod body;
mod connection;
mod download;
mod options;
mod probe;
mod refusal;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Config, Credentials, Region, RequestChecksumCalculation,
    ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, ServerSideEncryption};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use md5::{Digest, Md5};
use tokio::task;
use tokio::time::timeout;

use self::attempt::Attempt;
use self::body::{AtHalf, PiecesBody, Progress};
use self::download::Download;
use self::refusal::Destination;
use super::{Bucket, BucketError, BucketErrorKind, ListPage, ObjectBody, ObjectInfo, ObjectReader};
use crate::config::Sse;
use crate::limits::HASH_INLINE_BYTES;
use crate::observe::status::Status;
use crate::pace::Pace;

pub use self::options::{MidUpload, S3Options, S3Timeouts};
pub use self::probe::ProbeError;

/// A bucket over the S3 API.
pub struct S3Bucket {
    client: Client,
    destination: Arc<Destination>,
    sse: Option<ServerSideEncryption>,
    sse_key_id: Option<String>,
    status: Arc<Status>,
    mid_upload: Option<MidUpload>,
    timeouts: S3Timeouts,
}

impl fmt::Debug for S3Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Bucket")
            .field("endpoint", &self.destination.endpoint)
            .field("bucket", &self.destination.bucket)
            .finish_non_exhaustive()
    }
}

impl S3Bucket {
    /// A client. Opens no connection yet.
    pub fn new(options: S3Options) -> Self {
        let credentials = Credentials::new(
            options.access_key.expose(),
            options.secret_key.expose(),
            None,
            None,
            "queen-s3",
        );
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .http_client(connection::direct())
            .endpoint_url(&options.endpoint)
            .region(Region::new(options.region.clone()))
            .credentials_provider(credentials)
            .force_path_style(options.path_style)
            // The caller looks at its lease before each attempt, so none may be made in here.
            .retry_config(RetryConfig::disabled())
            // Other stores refuse the checksum trailers that the SDK would add.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            // Uploads and downloads are watched here, where how far they are is known.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(options.timeouts.connect)
                    .disable_read_timeout()
                    .disable_operation_timeout()
                    .disable_operation_attempt_timeout()
                    .build(),
            )
            .build();
        let (sse, sse_key_id) = match options.sse {
            Sse::Unset => (None, None),
            Sse::Aes256 => (Some(ServerSideEncryption::Aes256), None),
            Sse::AwsKms { key_id } => (Some(ServerSideEncryption::AwsKms), key_id),
        };
        Self {
            client: Client::from_conf(config),
            destination: Arc::new(Destination {
                endpoint: options.endpoint,
                region: options.region,
                bucket: options.bucket,
                secret_key: options.secret_key,
            }),
            sse,
            sse_key_id,
            status: options.status,
            mid_upload: options.mid_upload,
            timeouts: options.timeouts,
        }
    }

    fn attempt(&self, operation: &'static str) -> Attempt {
        Attempt::new(operation, Arc::clone(&self.status))
    }

    /// Awaits the answer to a request whose body is not watched, for `limit` at most.
    async fn answer<T, E>(
        &self,
        attempt: Attempt,
        key: &str,
        limit: Duration,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, BucketError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let operation = attempt.operation();
        let kind = match timeout(limit, request).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => self.destination.refusal(operation, &error),
            Err(_) => self.destination.silence("did not answer", limit),
        };
        Err(BucketError {
            operation,
            key: key.to_owned(),
            kind,
        })
    }

    /// Awaits the answer to an upload, for as long as it moves.
    async fn upload<T, E>(
        &self,
        attempt: Attempt,
        key: &str,
        progress: Progress,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, BucketError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let operation = attempt.operation();
        let mut request = std::pin::pin!(request);
        let kind = loop {
            let taken = progress.taken();
            match timeout(self.timeouts.stall, &mut request).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => break self.destination.refusal(operation, &error),
                Err(_) if progress.taken() > taken => {}
                Err(_) => {
                    break self
                        .destination
                        .silence("took no more of the upload", self.timeouts.stall);
                }
            }
        };
        Err(BucketError {
            operation,
            key: key.to_owned(),
            kind,
        })
    }

    fn at_half(&self, key: &str) -> Option<AtHalf> {
        let (call, key) = (Arc::clone(self.mid_upload.as_ref()?), key.to_owned());
        Some(Box::new(move || call(&key)))
    }

    /// Whether `key` is absent, asked of the listing: under a policy that limits ListBucket by
    /// prefix, a missing key answers `403`.
    async fn listed_as_absent(&self, key: &str) -> bool {
        match self.list_page(key, None, Some(1)).await {
            // The key itself comes before every longer key that starts with it.
            Ok(page) => page.keys.first().is_none_or(|first| first != key),
            Err(_) => false,
        }
    }

    async fn list_page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: Option<i32>,
    ) -> Result<ListPage, BucketError> {
        let attempt = self.attempt("list");
        let request = self
            .client
            .list_objects_v2()
            .bucket(&self.destination.bucket)
            .prefix(prefix)
            .set_continuation_token(after.map(str::to_owned))
            .set_max_keys(limit)
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self
            .answer(attempt, prefix, self.timeouts.answer, request)
            .await?;
        let next = answer
            .next_continuation_token
            .filter(|next| !next.is_empty());
        if answer.is_truncated == Some(true) && (next.is_none() || next.as_deref() == after) {
            return Err(BucketError {
                operation: "list",
                key: prefix.to_owned(),
                kind: BucketErrorKind::Transport(
                    "the listing goes on, but its continuation token does not".into(),
                ),
            });
        }
        let mut keys: Vec<String> = answer
            .contents
            .unwrap_or_default()
            .into_iter()
            .filter_map(|o| o.key)
            .collect();
        keys.sort_unstable();
        Ok(ListPage {
            keys,
            next: next.filter(|_| answer.is_truncated == Some(true)),
        })
    }

    async fn head_once(&self, key: &str) -> Result<ObjectInfo, BucketError> {
        let attempt = self.attempt("head");
        let request = self
            .client
            .head_object()
            .bucket(&self.destination.bucket)
            .key(key)
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self
            .answer(attempt, key, self.timeouts.answer, request)
            .await?;
        Ok(ObjectInfo {
            size: size(answer.content_length, "head", key)?,
            etag: answer.e_tag.map(|etag| unquoted(&etag).to_owned()),
        })
    }

    async fn get_once(&self, key: &str) -> Result<ObjectReader, BucketError> {
        let attempt = self.attempt("get");
        let request = self
            .client
            .get_object()
            .bucket(&self.destination.bucket)
            .key(key)
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self
            .answer(attempt, key, self.timeouts.answer, request)
            .await?;
        let size = size(answer.content_length, "get", key)?;
        let download = Download {
            body: answer.body,
            left: size,
            key: key.to_owned(),
            destination: Arc::clone(&self.destination),
            pace: Pace::new(self.timeouts.answer),
        };
        let stream = stream::unfold(Some(download), |download| async {
            let mut download = download?;
            match download.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(download))),
                Ok(None) => None,
                Err(kind) => {
                    let error = BucketError {
                        operation: "get",
                        key: download.key,
                        kind,
                    };
                    Some((Err(error), None))
                }
            }
        });
        Ok(ObjectReader {
            size,
            stream: stream.boxed(),
        })
    }
}

#[async_trait]
impl Bucket for S3Bucket {
    async fn put(&self, key: &str, body: ObjectBody) -> Result<(), BucketError> {
        let (length, md5) = (body.len(), body.md5);
        let progress = Progress::default();
        let attempt = self.attempt("put");
        let request = self
            .client
            .put_object()
            .bucket(&self.destination.bucket)
            .key(key)
            .content_length(i64::try_from(length).unwrap_or(i64::MAX))
            .content_md5(STANDARD.encode(md5))
            .set_server_side_encryption(self.sse.clone())
            .set_ssekms_key_id(self.sse_key_id.clone())
            .body(streamed(PiecesBody::new(
                body.pieces,
                progress.clone(),
                self.at_half(key),
            )))
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self.upload(attempt, key, progress, request).await?;

        let opaque = is_kms(self.sse.as_ref()) || is_kms(answer.server_side_encryption.as_ref());
        let etag = answer.e_tag.as_deref().map(unquoted).unwrap_or_default();
        if opaque || !is_md5(etag) {
            tracing::debug!(
                key,
                etag,
                "the ETag of the object is no MD5 and was not compared"
            );
        } else if !etag.eq_ignore_ascii_case(&hex::encode(md5)) {
            return Err(BucketError {
                operation: "put",
                key: key.to_owned(),
                kind: BucketErrorKind::Integrity(format!(
                    "its ETag is {etag}, the MD5 sent is {}",
                    hex::encode(md5)
                )),
            });
        }
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        match self.get_once(key).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) if is_denied(&error) && self.listed_as_absent(key).await => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        match self.head_once(key).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) if is_denied(&error) && self.listed_as_absent(key).await => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, BucketError> {
        self.list_page(prefix, after, None).await
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        let attempt = self.attempt("delete");
        let request = self
            .client
            .delete_object()
            .bucket(&self.destination.bucket)
            .key(key)
            .customize()
            .interceptor(attempt.watch())
            .send();
        match self
            .answer(attempt, key, self.timeouts.answer, request)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        let attempt = self.attempt("multipart_create");
        let request = self
            .client
            .create_multipart_upload()
            .bucket(&self.destination.bucket)
            .key(key)
            .set_server_side_encryption(self.sse.clone())
            .set_ssekms_key_id(self.sse_key_id.clone())
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self
            .answer(attempt, key, self.timeouts.answer, request)
            .await?;
        answer
            .upload_id
            .filter(|id| !id.is_empty())
            .ok_or_else(|| BucketError {
                operation: "multipart_create",
                key: key.to_owned(),
                kind: BucketErrorKind::Transport("the answer names no upload".into()),
            })
    }

    async fn upload_part(
        &self,
        key: &str,
        upload_id: &str,
        number: u16,
        part: Bytes,
    ) -> Result<String, BucketError> {
        let md5 = md5_of(part.clone()).await;
        let progress = Progress::default();
        let attempt = self.attempt("multipart_part");
        let request = self
            .client
            .upload_part()
            .bucket(&self.destination.bucket)
            .key(key)
            .upload_id(upload_id)
            .part_number(i32::from(number))
            .content_length(i64::try_from(part.len()).unwrap_or(i64::MAX))
            .content_md5(STANDARD.encode(md5))
            .body(streamed(PiecesBody::new(
                vec![part],
                progress.clone(),
                None,
            )))
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self.upload(attempt, key, progress, request).await?;

        if number == 1
            && let Some(mid_upload) = &self.mid_upload
        {
            mid_upload(key);
        }
        answer
            .e_tag
            .filter(|etag| !etag.is_empty())
            .ok_or_else(|| BucketError {
                operation: "multipart_part",
                key: key.to_owned(),
                kind: BucketErrorKind::Integrity(format!(
                    "part {number} was answered without an ETag"
                )),
            })
    }

    async fn complete_multipart(
        &self,
        key: &str,
        upload_id: &str,
        etags: &[String],
    ) -> Result<(), BucketError> {
        let parts = (1..).zip(etags).map(|(number, etag)| {
            CompletedPart::builder()
                .part_number(number)
                .e_tag(etag)
                .build()
        });
        let attempt = self.attempt("multipart_complete");
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(&self.destination.bucket)
            .key(key)
            .upload_id(upload_id)
            .multipart_upload(
                CompletedMultipartUpload::builder()
                    .set_parts(Some(parts.collect()))
                    .build(),
            )
            .customize()
            .interceptor(attempt.watch())
            .send();
        let answer = self
            .answer(attempt, key, self.timeouts.complete, request)
            .await?;

        let etag = answer.e_tag.as_deref().map(unquoted).unwrap_or_default();
        match etag
            .rsplit_once('-')
            .and_then(|(_, parts)| parts.parse::<usize>().ok())
        {
            None => tracing::debug!(key, etag, "the ETag of the object shows no count of parts"),
            Some(parts) if parts == etags.len() => {}
            Some(parts) => {
                return Err(BucketError {
                    operation: "multipart_complete",
                    key: key.to_owned(),
                    kind: BucketErrorKind::Integrity(format!(
                        "it has {parts} parts, {} were sent",
                        etags.len()
                    )),
                });
            }
        }
        Ok(())
    }

    async fn abort_multipart(&self, key: &str, upload_id: &str) -> Result<(), BucketError> {
        let attempt = self.attempt("multipart_abort");
        let request = self
            .client
            .abort_multipart_upload()
            .bucket(&self.destination.bucket)
            .key(key)
            .upload_id(upload_id)
            .customize()
            .interceptor(attempt.watch())
            .send();
        self.answer(attempt, key, self.timeouts.answer, request)
            .await
            .map(drop)
    }
}

fn streamed(body: PiecesBody) -> ByteStream {
    ByteStream::new(SdkBody::from_body_1_x(body))
}

async fn md5_of(bytes: Bytes) -> [u8; 16] {
    if bytes.len() <= HASH_INLINE_BYTES {
        return Md5::digest(&bytes).into();
    }
    match task::spawn_blocking({
        let bytes = bytes.clone();
        move || Md5::digest(&bytes).into()
    })
    .await
    {
        Ok(md5) => md5,
        // The runtime is stopping and takes no more blocking work.
        Err(_) => Md5::digest(&bytes).into(),
    }
}

/// Whether the store says that the key is not there.
fn is_absent(error: &BucketError) -> bool {
    matches!(&error.kind, BucketErrorKind::Refused { status: 404, code, .. }
        if !matches!(code.as_str(), "NoSuchBucket" | "NoSuchUpload"))
}

/// Whether the store denies the request without saying that the credentials are wrong.
fn is_denied(error: &BucketError) -> bool {
    matches!(&error.kind, BucketErrorKind::Refused { status: 403, code, .. }
        if matches!(code.as_str(), "" | "AccessDenied" | "Forbidden"))
}

fn is_kms(sse: Option<&ServerSideEncryption>) -> bool {
    matches!(
        sse,
        Some(ServerSideEncryption::AwsKms | ServerSideEncryption::AwsKmsDsse)
    )
}

fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|b| b.is_ascii_hexdigit())
}

fn unquoted(etag: &str) -> &str {
    etag.trim_matches('"')
}

fn size(
    content_length: Option<i64>,
    operation: &'static str,
    key: &str,
) -> Result<u64, BucketError> {
    content_length
        .and_then(|length| u64::try_from(length).ok())
        .ok_or_else(|| BucketError {
            operation,
            key: key.to_owned(),
            kind: BucketErrorKind::Transport("the answer does not say the object's length".into()),
        })
}
