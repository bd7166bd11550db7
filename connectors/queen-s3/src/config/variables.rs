//! The table of variables. The parser, the errors, `--help` and the documentation all read it.

use std::fmt::{self, Write as _};

use super::{CrashPoint, Encryption, Start};
use crate::lake::{Align, Compression, Format, Layout};

/// One variable of the environment.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What counts when it is unset or blank.
    pub default: DefaultValue,
    /// What it may be.
    pub accepts: Accepts,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// What it is for, in one or two sentences.
    pub doc: &'static str,
}

/// What counts when a variable is unset or blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// There is none: boot fails.
    Required,
    /// There is none, and none is needed.
    Unset,
    /// This value.
    Value(&'static str),
    /// A value found at boot, described.
    Found(&'static str),
}

/// What a variable may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepts {
    /// A whole number, both ends included.
    Number {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// One of these words, spelled exactly so.
    Words(&'static [&'static str]),
    /// A text, described.
    Text(&'static str),
}

impl fmt::Display for DefaultValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Required => "required",
            Self::Unset => "unset",
            Self::Value(text) | Self::Found(text) => text,
        })
    }
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Words(words) => match words {
                [] => f.write_str("nothing"),
                [only] => f.write_str(only),
                [first @ .., last] => write!(f, "{} or {last}", first.join(", ")),
            },
            Self::Text(description) => f.write_str(description),
        }
    }
}

macro_rules! variables {
    ($($id:ident: $name:literal, $default:expr, $accepts:expr, $($secret:ident,)? $doc:literal;)+) => {
        $(#[doc = $doc] pub(super) static $id: Variable = Variable {
            name: $name,
            default: $default,
            accepts: $accepts,
            secret: variables!(@secret $($secret)?),
            doc: $doc,
        };)+

        /// Every variable that the sink reads, in the order of the documentation.
        pub static VARIABLES: &[&Variable] = &[$(&$id),+];
    };
    (@secret secret) => { true };
    (@secret) => { false };
}

use Accepts::{Number, Text, Words};
use DefaultValue::{Found, Required, Unset, Value};

const BOOLEAN: Accepts = Words(&["true", "false"]);

variables! {
    URL: "QUEEN_URL", Value("http://localhost:6632"),
        Text("an http or https URL, such as http://localhost:6632"),
        "The broker or proxy that the sink calls.";
    TOKEN: "QUEEN_TOKEN", Unset, Text("a bearer token of visible ASCII characters"), secret,
        "Bearer token for that broker or proxy. Never logged.";
    SINK: "QUEEN_S3_SINK", Value("default"),
        Text("1 to 64 characters of [A-Za-z0-9._-]"),
        "Name of the sink: a segment of every object key and every key/value key, so that two sinks on one queue are two lakes.";
    QUEUES: "QUEEN_S3_QUEUES", Required,
        Text("queue names separated by commas, or * for every queue"),
        "The queues to mirror. * is listed again every ten discovery intervals and needs the read scope.";
    PARTITIONS: "QUEEN_S3_PARTITIONS", Unset, Text("nothing: leave it unset"),
        "A static partition list. Refused in this release: a window may close only at or below safeTime, and only discovery answers safeTime.";
    ENDPOINT: "QUEEN_S3_ENDPOINT", Required,
        Text("scheme://host[:port] with scheme http or https and no path"),
        "Base URL of the S3 API.";
    REGION: "QUEEN_S3_REGION", Required,
        Text("a region label without a slash or a space, such as eu-central-1"),
        "Region that requests are signed for.";
    BUCKET: "QUEEN_S3_BUCKET", Required,
        Text("one bucket name without a slash or a space"),
        "The destination bucket.";
    PREFIX: "QUEEN_S3_PREFIX", Value("queen"),
        Text("path segments joined by /, without a leading or trailing slash and without an empty or relative segment"),
        "The root that every object is written under.";
    ACCESS_KEY: "QUEEN_S3_ACCESS_KEY", Required,
        Text("an access key id of visible ASCII characters"), secret,
        "S3 access key id.";
    SECRET_KEY: "QUEEN_S3_SECRET_KEY", Required,
        Text("a secret access key of visible ASCII characters"), secret,
        "S3 secret access key. Never logged.";
    PATH_STYLE: "QUEEN_S3_PATH_STYLE", Value("false"), BOOLEAN,
        "true addresses the bucket as the first segment of the path instead of as part of the host name.";
    SSE: "QUEEN_S3_SSE", Unset,
        Words(&[Encryption::Aes256.as_str(), Encryption::AwsKms.as_str()]),
        "Server-side encryption asked for with every upload. Unset leaves it to the bucket.";
    SSE_KMS_KEY_ID: "QUEEN_S3_SSE_KMS_KEY_ID", Unset,
        Text("a KMS key id, alias or ARN, only with QUEEN_S3_SSE=aws:kms"),
        "The KMS key to encrypt with.";
    FORMAT: "QUEEN_S3_FORMAT", Value("jsonl"),
        Words(&[Format::Jsonl.as_str(), Format::Parquet.as_str()]),
        "Format of the data objects.";
    COMPRESSION: "QUEEN_S3_COMPRESSION", Value("zstd"),
        Words(&[Compression::Zstd.as_str(), Compression::Gzip.as_str(), Compression::None.as_str()]),
        "Compression of jsonl objects.";
    PARQUET_CODEC: "QUEEN_S3_PARQUET_CODEC", Value("zstd"),
        Words(&[Compression::Zstd.as_str(), Compression::Snappy.as_str()]),
        "Codec inside parquet objects.";
    LAYOUT: "QUEEN_S3_LAYOUT", Value("merged"),
        Words(&[Layout::Merged.as_str(), Layout::PerPartition.as_str()]),
        "One object per window, or one per window and partition.";
    ALIGN: "QUEEN_S3_ALIGN", Value("hour"),
        Words(&[Align::Hour.as_str(), Align::Day.as_str(), Align::None.as_str()]),
        "The Hive bucket that a window may not straddle.";
    START: "QUEEN_S3_START", Value("latest"),
        Words(&[Start::Latest.as_str(), Start::Earliest.as_str()]),
        "Where a queue without a commit pointer starts: at the current safeTime, or at everything retention still holds.";
    TARGET_MB: "QUEEN_S3_TARGET_MB", Value("128"), Number { min: 1, max: 5_120 },
        "Close a window at this many uncompressed buffered megabytes.";
    MAX_WINDOW_MS: "QUEEN_S3_MAX_WINDOW_MS", Value("300000"), Number { min: 100, max: 86_400_000 },
        "Close a window at this age.";
    CHECKPOINT_EVERY: "QUEEN_S3_CHECKPOINT_EVERY", Value("20"), Number { min: 1, max: 100_000 },
        "Windows between position checkpoints, which bound what a restart reads again.";
    MEMORY_MB: "QUEEN_S3_MEMORY_MB", Value("1024"), Number { min: 1, max: 1_048_576 },
        "Buffer budget across every queue of this process.";
    FETCH_CONCURRENCY: "QUEEN_S3_FETCH_CONCURRENCY", Value("4"), Number { min: 1, max: 256 },
        "Fetch calls in flight per queue. Each spends the broker's pop admission budget.";
    DISCOVERY_INTERVAL_MS: "QUEEN_S3_DISCOVERY_INTERVAL_MS", Value("2000"), Number { min: 10, max: 3_600_000 },
        "How often an idle queue asks which partitions moved.";
    SAFE_GUARD_MS: "QUEEN_S3_SAFE_GUARD_MS", Value("5000"), Number { min: 0, max: 3_600_000 },
        "Subtracted from the broker's safeTime before a window may close, on top of the broker's own guard.";
    LEASE_TTL_MS: "QUEEN_S3_LEASE_TTL_MS", Value("30000"), Number { min: 1_000, max: 3_600_000 },
        "How long a queue's lease lives without a refresh.";
    MULTIPART_THRESHOLD_MB: "QUEEN_S3_MULTIPART_THRESHOLD_MB", Value("64"), Number { min: 5, max: 5_120 },
        "Objects up to this size go up in one PUT, larger ones as multipart uploads of 16 MiB parts.";
    LISTEN: "QUEEN_S3_LISTEN", Value("127.0.0.1:9333"),
        Text("an IP address and a port, such as 0.0.0.0:9333 or [::1]:9333"),
        "Where /healthz and /metrics are served.";
    INSTANCE: "QUEEN_S3_INSTANCE", Found("the hostname"),
        Text("1 to 255 characters without a space or a control character"),
        "Lease identity. Without a usable hostname one is generated, and the boot line says so.";
    CRASH_AT: "QUEEN_S3_CRASH_AT", Value("never"),
        Words(&[
            CrashPoint::Never.as_str(),
            CrashPoint::AfterIntent.as_str(),
            CrashPoint::MidUpload.as_str(),
            CrashPoint::AfterUpload.as_str(),
            CrashPoint::BeforeCommit.as_str(),
            CrashPoint::AfterCommit.as_str(),
        ]),
        "Fault injection for crash tests: the process aborts at this point of its first window. Leave it unset anywhere else.";
    LOG_FORMAT: "QUEEN_S3_LOG_FORMAT", Unset, Text("json; anything else is the human format"),
        "json switches the log to one JSON object per line.";
    LOG_FILTER: "RUST_LOG", Value("warn,queen_s3=info"),
        Text("a tracing filter, such as warn,queen_s3=debug"),
        "What is logged.";
}

/// The table as text for a terminal, a paragraph per variable.
pub fn help() -> String {
    let mut text = String::new();
    for variable in VARIABLES {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {}  [{}]\n      {}\n      Accepted: {}.",
            variable.name, variable.default, variable.doc, variable.accepts
        );
    }
    text
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut text =
        String::from("| Variable | Default | Accepted | What it is |\n| --- | --- | --- | --- |\n");
    for variable in VARIABLES {
        let default = match variable.default {
            DefaultValue::Required => "**required**".to_owned(),
            DefaultValue::Value(value) => format!("`{value}`"),
            other => other.to_string(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {default} | {} | {} |",
            variable.name,
            variable.accepts.to_string().replace('|', "\\|"),
            variable.doc
        );
    }
    text
}
