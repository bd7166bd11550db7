//! Names of everything the sink writes: object keys and key/value keys.
//!
//! A name is a function of the intent and the partition alone, so that a redo writes the same
//! bytes to the same key.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use sha2::{Digest, Sha256};

use super::{Align, Shape};
use crate::limits::{ENCODED_NAME_BYTES, HASHED_NAME_HEAD_BYTES};
use crate::time::Micros;

/// The names of one sink's lake of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LakeKeys {
    prefix: String,
    sink: String,
    queue: String,
}

/// What of an intent goes into its window's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// Window number, from 1.
    pub k: u64,
    /// Start, inclusive.
    pub t_start: Micros,
    /// End, exclusive.
    pub t_end: Micros,
}

impl LakeKeys {
    /// The names of the lake under `prefix` of `sink` for `queue`, both raw.
    pub fn new(prefix: &str, sink: &str, queue: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            sink: encode_name(sink),
            queue: encode_name(queue),
        }
    }

    /// Key of a data object; `partition` (raw) only in the per-partition layout.
    pub fn data(&self, bounds: WindowBounds, shape: Shape, partition: Option<&str>) -> String {
        let WindowBounds { k, t_start, t_end } = bounds;
        let mut key = self.window_prefix(k, t_start, shape);
        append(&mut key, format_args!("{:016}-{:016}", t_start.0, t_end.0));
        if let Some(partition) = partition {
            append(&mut key, format_args!("-p-{}", encode_name(partition)));
        }
        append(&mut key, format_args!(".{}", shape.extension()));
        key
    }

    /// Key of window `k`'s manifest.
    pub fn manifest(&self, k: u64) -> String {
        format!("{}{k:010}{MANIFEST_SUFFIX}", self.manifests())
    }

    /// What every manifest key of this queue starts with.
    pub fn manifests(&self) -> String {
        format!("{}/windows/", self.sidecars())
    }

    /// The window whose manifest `key` names; `None` for every other key.
    pub fn manifest_k(&self, key: &str) -> Option<u64> {
        number(key, &self.manifests(), MANIFEST_SUFFIX)
    }

    /// Key of the checkpoint after window `k`.
    pub fn checkpoint(&self, k: u64) -> String {
        format!("{}{k:010}{CHECKPOINT_SUFFIX}", self.checkpoints())
    }

    /// What every checkpoint key of this queue starts with.
    pub fn checkpoints(&self) -> String {
        format!("{}/checkpoint/", self.sidecars())
    }

    /// The window after which the checkpoint `key` was taken; `None` for every other key.
    pub fn checkpoint_k(&self, key: &str) -> Option<u64> {
        number(key, &self.checkpoints(), CHECKPOINT_SUFFIX)
    }

    /// What every data key of this queue starts with.
    pub fn data_directory(&self) -> String {
        let Self {
            prefix,
            sink,
            queue,
        } = self;
        format!("{prefix}/{sink}/queue={queue}/")
    }

    /// The window that the file name of the data key `key` names; `None` for every other key.
    pub fn data_k(&self, key: &str) -> Option<u64> {
        let file = key
            .strip_prefix(&self.data_directory())?
            .rsplit('/')
            .next()?;
        let (digits, _) = file.strip_prefix("w-")?.split_once('-')?;
        number(digits, "", "")
    }

    /// What every data key of window `k` starts with when its start lies in the bucket of `at`.
    pub fn window_prefix(&self, k: u64, at: Micros, shape: Shape) -> String {
        let at = civil(at);
        let mut key = format!("{}dt={}/", self.data_directory(), at.date());
        if shape.align != Align::Day {
            append(&mut key, format_args!("hour={:02}/", at.hour()));
        }
        append(&mut key, format_args!("w-{k:010}-"));
        key
    }

    /// What every data key of this queue starts with, the first directory's name included.
    pub fn data_prefix(&self) -> String {
        format!("{}dt=", self.data_directory())
    }

    /// Whether `key` is a data key of window `k` of this queue.
    pub fn is_window(&self, key: &str, k: u64) -> bool {
        let file = key.rsplit('/').next().unwrap_or_default();
        key.starts_with(&self.data_prefix()) && file.starts_with(&format!("w-{k:010}-"))
    }

    /// Key/value key of the intent.
    pub fn intent(&self) -> String {
        self.document("intent")
    }

    /// Key/value key of the commit pointer.
    pub fn committed(&self) -> String {
        self.document("committed")
    }

    /// Key/value key of the lease.
    pub fn lease(&self) -> String {
        self.document("lease")
    }

    fn document(&self, what: &str) -> String {
        format!("s3:{}:{}:{what}", self.sink, self.queue)
    }

    fn sidecars(&self) -> String {
        format!("{}/_queen/{}/{}", self.prefix, self.sink, self.queue)
    }
}

/// What the keys of every queue of a sink start with, sidecars and data; a queue's name as keys
/// spell it comes next, and then `/`.
pub fn sink_directories(prefix: &str, sink: &str) -> [String; 2] {
    let sink = encode_name(sink);
    [
        format!("{prefix}/_queen/{sink}/"),
        format!("{prefix}/{sink}/queue="),
    ]
}

const MANIFEST_SUFFIX: &str = ".json";
const CHECKPOINT_SUFFIX: &str = ".json.zst";

/// A raw name as keys spell it: every byte outside `[A-Za-z0-9._-]` escaped, long ones hashed.
///
/// At most [`ENCODED_NAME_BYTES`] long, never `.` or `..`, and never with a `/`.
pub fn encode_name(raw: &str) -> String {
    if matches!(raw, "." | "..") {
        return raw.replace('.', "%2E");
    }
    let mut encoded = String::with_capacity(raw.len());
    for byte in raw.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            encoded.push(char::from(byte));
        } else {
            append(&mut encoded, format_args!("%{byte:02X}"));
        }
    }
    if encoded.len() > ENCODED_NAME_BYTES {
        shorten(&mut encoded, raw);
    }
    encoded
}

/// The raw name that keys spell as `encoded`; `None` where it is hashed, or spells no name.
pub fn decode_name(encoded: &str) -> Option<String> {
    let mut raw = Vec::with_capacity(encoded.len());
    let mut pieces = encoded.split('%');
    raw.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        raw.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        raw.extend_from_slice(&piece.as_bytes()[2..]);
    }
    let raw = String::from_utf8(raw).ok()?;
    (encode_name(&raw) == encoded).then_some(raw)
}

/// Cuts an encoded name and ends it with the hash of the raw one. `~` is always escaped, so that
/// no other name can look like the result.
fn shorten(encoded: &mut String, raw: &str) {
    let head = &encoded[..HASHED_NAME_HEAD_BYTES];
    let cut = match head.rfind('%') {
        Some(escape) if escape + "%XX".len() > head.len() => escape,
        _ => head.len(),
    };
    encoded.truncate(cut);
    encoded.push('~');
    for byte in &Sha256::digest(raw)[..16] {
        append(encoded, format_args!("{byte:02x}"));
    }
}

/// The number between `before` and `after`, spelled as keys spell it.
fn number(key: &str, before: &str, after: &str) -> Option<u64> {
    let digits = key.strip_prefix(before)?.strip_suffix(after)?;
    let k = digits.parse().ok()?;
    (format!("{k:010}") == digits).then_some(k)
}

/// Date and time of day, UTC. An instant beyond the calendar (years -9999 to 9999) counts as its
/// nearest end: no broker's clock stands there.
fn civil(at: Micros) -> DateTime {
    let instant = Timestamp::from_microsecond(at.0).unwrap_or(match at {
        Micros(..0) => Timestamp::MIN,
        _ => Timestamp::MAX,
    });
    Offset::UTC.to_datetime(instant)
}

fn append(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing into a String never fails.
    let _ = text.write_fmt(what);
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
