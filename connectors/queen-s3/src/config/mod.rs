//! The configuration: every variable in one table, read and checked at once.
//!
//! Two rules hold for every variable. A value that does not parse is a [`Problem`] and never a
//! silent fall back to the default; a blank value counts as unset. Space around a value is
//! dropped, because no accepted value begins or ends with it.

mod identity;
mod parse;
mod reader;
mod secret;
mod variables;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use url::Url;

pub use identity::Identity;
pub use reader::Problem;
pub use secret::Secret;
pub use variables::{Accepts, DefaultValue, VARIABLES, Variable, help, markdown};

use crate::broker::Name;
use crate::lake::keys::encode_name;
use crate::lake::{Align, Compression, Format, Layout, Shape, spelled};
use crate::limits::{KEY_BYTES, KEY_REST_BYTES, MIB};
use reader::Reader;

spelled! {
    /// Where a queue without a commit pointer starts.
    Start {
        /// At the current `safeTime`.
        Latest = "latest",
        /// At everything that retention still holds.
        Earliest = "earliest",
    }
}

spelled! {
    /// How a bucket is asked to encrypt.
    Encryption {
        /// With the bucket's own keys.
        Aes256 = "AES256",
        /// With a key of a key management service.
        AwsKms = "aws:kms",
    }
}

spelled! {
    /// Where the process aborts itself for the crash matrix.
    CrashPoint {
        /// Nowhere.
        Never = "never",
        /// The intent is durable.
        AfterIntent = "after_intent",
        /// The first part is up, or half the body of a single PUT is sent.
        MidUpload = "mid_upload",
        /// The objects are up and the manifest is not.
        AfterUpload = "after_upload",
        /// The manifest is up.
        BeforeCommit = "before_commit",
        /// The pointer has moved.
        AfterCommit = "after_commit",
    }
}

spelled! {
    /// How log lines look.
    LogFormat {
        /// For people.
        Human = "human",
        /// One JSON object a line.
        Json = "json",
    }
}

/// The queues to mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Every queue of the tenant, listed again and again.
    All,
    /// These, each once, in the order given.
    Named(Vec<Name>),
}

/// Server-side encryption asked for with every upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sse {
    /// No header; the bucket's own default applies.
    Unset,
    /// `AES256`.
    Aes256,
    /// `aws:kms`, with a key or with the bucket's default one.
    AwsKms {
        /// Id, alias or ARN of the key.
        key_id: Option<String>,
    },
}

/// Everything that the environment says. Bounds are those of [`VARIABLES`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The broker or proxy; a path in it comes before every route.
    pub url: Url,
    /// Bearer token for it.
    pub token: Option<Secret>,
    /// The sink's name.
    pub sink: String,
    /// The queues to mirror.
    pub queues: Queues,
    /// Base URL of the S3 API, without a path or a trailing slash.
    pub endpoint: String,
    /// Region that requests are signed for.
    pub region: String,
    /// The destination bucket.
    pub bucket: String,
    /// The root of every key.
    pub prefix: String,
    /// S3 access key id.
    pub access_key: Secret,
    /// S3 secret access key.
    pub secret_key: Secret,
    /// Whether the bucket is addressed in the path.
    pub path_style: bool,
    /// Server-side encryption.
    pub sse: Sse,
    /// How new windows' objects are made; the compression is the codec for Parquet.
    pub shape: Shape,
    /// Where a queue without a pointer starts.
    pub start: Start,
    /// Record bytes at which a window closes.
    pub target_bytes: u64,
    /// Age at which a window closes.
    pub max_window: Duration,
    /// Windows between checkpoints.
    pub checkpoint_every: u64,
    /// Buffer budget of the process, in bytes.
    pub memory_bytes: usize,
    /// Fetch calls in flight per queue.
    pub fetch_concurrency: usize,
    /// How often an idle queue is discovered.
    pub discovery_interval: Duration,
    /// What is subtracted from `safeTime`.
    pub safe_guard: Duration,
    /// How long a lease lives without a refresh.
    pub lease_ttl: Duration,
    /// Greatest size of an object that goes up in one PUT, in bytes.
    pub multipart_threshold_bytes: u64,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// The configured lease identity, if there is one.
    pub instance: Option<String>,
    /// Where the process aborts itself.
    pub crash_at: CrashPoint,
    /// How log lines look.
    pub log_format: LogFormat,
    /// A valid tracing filter.
    pub log_filter: String,
}

impl Config {
    /// The broker or proxy as text, without a trailing slash.
    pub fn queen(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// Reads the process's environment.
    ///
    /// # Errors
    ///
    /// As [`Config::from_lookup`].
    pub fn from_environment() -> Result<Self, Vec<Problem>> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads the variables that `lookup` finds.
    ///
    /// # Errors
    ///
    /// Every problem there is: a variable that is required and missing, or whose value does not parse or
    /// does not go with another's.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, Vec<Problem>> {
        use variables as v;

        let mut reader = Reader::new(lookup);
        let r = &mut reader;

        let url = r.text(&v::URL, parse::url);
        let token = r.secret(&v::TOKEN);
        let sink = r.text(&v::SINK, parse::sink);
        let queues = r.text(&v::QUEUES, parse::queues);
        refuse_partitions(r);
        let endpoint = r.text(&v::ENDPOINT, parse::endpoint);
        let region = r.text(&v::REGION, parse::region);
        let bucket = r.text(&v::BUCKET, parse::bucket);
        let prefix = r.text(&v::PREFIX, parse::prefix);
        refuse_long_keys(r, prefix.as_deref(), sink.as_deref());
        let access_key = r.secret(&v::ACCESS_KEY);
        let secret_key = r.secret(&v::SECRET_KEY);
        let path_style = r.boolean(&v::PATH_STYLE);
        let sse = read_sse(r);
        let shape = read_shape(r);
        let start = r.word(&v::START, Start::from_spelling);
        let target_mb = r.number::<u64>(&v::TARGET_MB);
        let max_window_ms = r.number(&v::MAX_WINDOW_MS);
        let checkpoint_every = r.number(&v::CHECKPOINT_EVERY);
        let memory_mb = r.number::<usize>(&v::MEMORY_MB);
        let fetch_concurrency = r.number(&v::FETCH_CONCURRENCY);
        let discovery_interval_ms = r.number(&v::DISCOVERY_INTERVAL_MS);
        let safe_guard_ms = r.number(&v::SAFE_GUARD_MS);
        let lease_ttl_ms = r.number(&v::LEASE_TTL_MS);
        let multipart_threshold_mb = r.number::<u64>(&v::MULTIPART_THRESHOLD_MB);
        let listen = r.text(&v::LISTEN, |text| text.parse().map_err(|_| None));
        let instance = r.text(&v::INSTANCE, parse::instance);
        let crash_at = r.word(&v::CRASH_AT, CrashPoint::from_spelling);
        let log_format = match r.set(&v::LOG_FORMAT).as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Human,
        };
        let log_filter = r.text(&v::LOG_FILTER, parse::log_filter);

        let config = (|| {
            Some(Self {
                url: url?,
                token,
                sink: sink?,
                queues: queues?,
                endpoint: endpoint?,
                region: region?,
                bucket: bucket?,
                prefix: prefix?,
                access_key: access_key?,
                secret_key: secret_key?,
                path_style: path_style?,
                sse: sse?,
                shape: shape?,
                start: start?,
                target_bytes: target_mb? * MIB as u64,
                max_window: Duration::from_millis(max_window_ms?),
                checkpoint_every: checkpoint_every?,
                memory_bytes: memory_mb? * MIB,
                fetch_concurrency: fetch_concurrency?,
                discovery_interval: Duration::from_millis(discovery_interval_ms?),
                safe_guard: Duration::from_millis(safe_guard_ms?),
                lease_ttl: Duration::from_millis(lease_ttl_ms?),
                multipart_threshold_bytes: multipart_threshold_mb? * MIB as u64,
                listen: listen?,
                instance,
                crash_at: crash_at?,
                log_format,
                log_filter: log_filter?,
            })
        })();
        let problems = reader.into_problems();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(problems),
        }
    }
}

/// A static list of partitions has no `safeTime`, and so no boundary that a window may close at.
fn refuse_partitions<L: Fn(&str) -> Option<OsString>>(r: &mut Reader<L>) {
    if r.set(&variables::PARTITIONS).is_some() {
        r.problem(Problem::new(
            &variables::PARTITIONS,
            "a static partition list is refused in this release: a window may close only at or \
             below safeTime, safeTime is answered by discovery, and a sink that names its own \
             partitions never asks for it, so no window could ever close; leave it unset, \
             discovery finds the partitions at any cardinality"
                .to_owned(),
        ));
    }
}

fn refuse_long_keys<L: Fn(&str) -> Option<OsString>>(
    r: &mut Reader<L>,
    prefix: Option<&str>,
    sink: Option<&str>,
) {
    let (Some(prefix), Some(sink)) = (prefix, sink) else {
        return;
    };
    let room = KEY_BYTES - KEY_REST_BYTES - encode_name(sink).len();
    if prefix.len() > room {
        r.problem(Problem::new(
            &variables::PREFIX,
            format!(
                "it is {} bytes long; with the sink {sink:?} at most {room} leave room for the \
                 longest queue and partition names in a key of {KEY_BYTES} bytes",
                prefix.len()
            ),
        ));
    }
}

fn read_sse<L: Fn(&str) -> Option<OsString>>(r: &mut Reader<L>) -> Option<Sse> {
    let encryption = r.word(&variables::SSE, Encryption::from_spelling);
    let key_id = r.text(&variables::SSE_KMS_KEY_ID, parse::kms_key);
    match (encryption, key_id) {
        (Some(Encryption::AwsKms), key_id) => Some(Sse::AwsKms { key_id }),
        // The problem of the encryption itself says enough.
        (None, Some(_)) if r.set(&variables::SSE).is_some() => None,
        (encryption, Some(_)) => {
            let beside = match encryption {
                Some(encryption) => format!("beside QUEEN_S3_SSE={encryption}"),
                None => "without QUEEN_S3_SSE=aws:kms".to_owned(),
            };
            r.problem(Problem::new(
                &variables::SSE_KMS_KEY_ID,
                format!(
                    "a KMS key {beside} would be ignored while the deployment looks correct; set \
                     QUEEN_S3_SSE=aws:kms or leave the key unset"
                ),
            ));
            None
        }
        (Some(Encryption::Aes256), None) => Some(Sse::Aes256),
        (None, None) => Some(Sse::Unset),
    }
}

/// Both compression variables are checked, whichever of them the format uses.
fn read_shape<L: Fn(&str) -> Option<OsString>>(r: &mut Reader<L>) -> Option<Shape> {
    let format = r.word(&variables::FORMAT, Format::from_spelling);
    let compression = r.word(&variables::COMPRESSION, Compression::from_spelling);
    let codec = r.word(&variables::PARQUET_CODEC, Compression::from_spelling);
    let layout = r.word(&variables::LAYOUT, Layout::from_spelling);
    let align = r.word(&variables::ALIGN, Align::from_spelling);
    let format = format?;
    let compression = match format {
        Format::Jsonl => compression?,
        Format::Parquet => codec?,
    };
    Some(Shape {
        format,
        compression,
        layout: layout?,
        align: align?,
    })
}

#[cfg(test)]
mod tests;
