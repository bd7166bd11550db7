//! What a refused request means for the operator.

use std::time::Duration;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use jiff::Timestamp;

use crate::bucket::BucketErrorKind;
use crate::config::Secret;
use crate::pace::TooSlow;
use crate::wire::{causes, excerpt, retry_after};

/// What errors say about the bucket that was asked.
#[derive(Debug)]
pub(super) struct Destination {
    /// `QUEEN_S3_ENDPOINT`.
    pub endpoint: String,
    /// `QUEEN_S3_REGION`.
    pub region: String,
    /// `QUEEN_S3_BUCKET`.
    pub bucket: String,
    /// `QUEEN_S3_SECRET_KEY`, to keep it out of every text.
    pub secret_key: Secret,
}

impl Destination {
    /// Reads a failed request of `operation`.
    pub(super) fn refusal<E>(
        &self,
        operation: &str,
        error: &SdkError<E, HttpResponse>,
    ) -> BucketErrorKind
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let Some(response) = error.raw_response() else {
            let causes = causes(error, &self.secrets());
            return BucketErrorKind::Transport(format!(
                "no answer from {}: {causes}",
                self.endpoint
            ));
        };
        let status = response.status().as_u16();
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .filter(|value| !value.is_empty())
        };
        let service = error.as_service_error();
        let code = service.and_then(|error| error.code()).unwrap_or_default();
        if code.is_empty() && (200..300).contains(&status) {
            return BucketErrorKind::Transport(format!(
                "the answer of {} does not read: {}",
                self.endpoint,
                causes(error, &self.secrets())
            ));
        }

        let said = service
            .and_then(|error| error.message())
            .unwrap_or_default();
        let said = excerpt(said, &self.secrets());
        let advice = self.advice(operation, status, code, header("x-amz-bucket-region"));
        let message = match (said.is_empty(), advice.is_empty()) {
            (true, _) => advice,
            (false, true) => said,
            (false, false) => format!("{said} ({advice})"),
        };
        BucketErrorKind::Refused {
            status,
            code: excerpt(code, &self.secrets()),
            message,
            retry_after: header("retry-after").and_then(seconds_or_date),
        }
    }

    /// Nothing came from the store for `limit`.
    pub(super) fn silence(&self, what: &str, limit: Duration) -> BucketErrorKind {
        BucketErrorKind::Transport(format!(
            "{} {what} within {} ms",
            self.endpoint,
            limit.as_millis()
        ))
    }

    /// An object is not waited for any longer.
    pub(super) fn too_slow(&self, slow: TooSlow) -> BucketErrorKind {
        BucketErrorKind::Transport(format!(
            "the object is given up: {slow} from {}",
            self.endpoint
        ))
    }

    /// An answer's body ended before its end.
    pub(super) fn broken_off(&self, error: &(dyn std::error::Error + 'static)) -> BucketErrorKind {
        BucketErrorKind::Transport(format!(
            "the answer of {} broke off: {}",
            self.endpoint,
            causes(error, &self.secrets())
        ))
    }

    /// What to do about a refusal; empty when only waiting helps.
    fn advice(&self, operation: &str, status: u16, code: &str, home: Option<&str>) -> String {
        let Self {
            endpoint,
            region,
            bucket,
            ..
        } = self;
        match code {
            "NoSuchBucket" => format!(
                "there is no bucket {bucket} at {endpoint}: check QUEEN_S3_BUCKET, \
                 QUEEN_S3_ENDPOINT and QUEEN_S3_PATH_STYLE, or make the bucket"
            ),
            "RequestTimeTooSkewed" | "RequestExpired" => {
                "this machine's clock and the store's are too far apart: set the clock (NTP)".into()
            }
            "InvalidAccessKeyId" => {
                "the store does not know the key id: check QUEEN_S3_ACCESS_KEY and \
                 QUEEN_S3_ENDPOINT"
                    .into()
            }
            "SignatureDoesNotMatch" => {
                "the secret does not fit the key id: check QUEEN_S3_SECRET_KEY, and \
                 QUEEN_S3_REGION"
                    .into()
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
                "temporary credentials cannot be used: put a lasting pair into \
                 QUEEN_S3_ACCESS_KEY and QUEEN_S3_SECRET_KEY"
                    .into()
            }
            "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
            | "PermanentRedirect"
            | "TemporaryRedirect"
            | "Redirect" => self.elsewhere(home),
            _ if home.is_some_and(|home| home != region) => self.elsewhere(home),
            _ if (300..400).contains(&status) => self.elsewhere(home),
            "AccessDenied" | "" if status == 403 => format!(
                "the policy of QUEEN_S3_ACCESS_KEY must allow {} for {bucket}",
                action(operation)
            ),
            "" if status == 401 => "check QUEEN_S3_ACCESS_KEY and QUEEN_S3_SECRET_KEY".into(),
            _ => String::new(),
        }
    }

    fn elsewhere(&self, home: Option<&str>) -> String {
        let Self {
            endpoint,
            region,
            bucket,
            ..
        } = self;
        match home {
            Some(home) if home != region => format!(
                "the bucket {bucket} is in region {}: set QUEEN_S3_REGION to it, and \
                 QUEEN_S3_ENDPOINT to that region's endpoint",
                excerpt(home, &self.secrets())
            ),
            _ => format!(
                "the bucket {bucket} is not served at {endpoint} for region {region}: check \
                 QUEEN_S3_REGION and QUEEN_S3_ENDPOINT"
            ),
        }
    }

    fn secrets(&self) -> [&str; 1] {
        [self.secret_key.expose()]
    }
}

/// The policy's verb for an operation.
fn action(operation: &str) -> &'static str {
    match operation {
        "get" | "head" => "s3:GetObject",
        "list" => "s3:ListBucket",
        "delete" => "s3:DeleteObject",
        "multipart_abort" => "s3:AbortMultipartUpload",
        _ => "s3:PutObject",
    }
}

fn seconds_or_date(value: &str) -> Option<Duration> {
    retry_after(value, Timestamp::now())
}
