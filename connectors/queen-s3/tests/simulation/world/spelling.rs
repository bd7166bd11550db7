//! How names are spelled, written a second time from the specification and never from the sink.

use jiff::Timestamp;
use queen_s3::lake::{Align, Compression, Format, Shape};
use sha2::{Digest, Sha256};

/// The root of every object of the simulated sinks.
pub const PREFIX: &str = "lake/all";
/// Their name.
pub const SINK: &str = "main";

/// Longest encoded name, bytes.
const NAME_BYTES: usize = 255;
/// What stays of a longer one before its hash.
const NAME_HEAD: usize = 180;

/// A name as keys spell it.
pub fn encoded(raw: &str) -> String {
    match raw {
        "." => return "%2E".to_owned(),
        ".." => return "%2E%2E".to_owned(),
        _ => {}
    }
    let (mut whole, mut head) = (String::new(), 0);
    for byte in raw.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            whole.push(char::from(byte));
        } else {
            whole.push_str(&format!("%{byte:02X}"));
        }
        if whole.len() <= NAME_HEAD {
            head = whole.len();
        }
    }
    if whole.len() <= NAME_BYTES {
        return whole;
    }
    format!(
        "{}~{}",
        &whole[..head],
        &hex::encode(Sha256::digest(raw.as_bytes()))[..32]
    )
}

/// What a key of the lake names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A window's data.
    Data {
        /// Window number.
        k: u64,
        /// Start, µs.
        start: i64,
        /// End, µs.
        end: i64,
    },
    /// A window's manifest.
    Manifest(u64),
    /// The checkpoint after a window.
    Checkpoint(u64),
}

/// Key of one of `queue`'s documents in the key/value store.
pub fn document(queue: &str, name: &str) -> String {
    format!("s3:{SINK}:{}:{name}", encoded(queue))
}

/// What everything of a queue's lake starts with.
#[derive(Debug, Default)]
pub struct Roots {
    data: String,
    sidecars: String,
    /// Of its documents in the key/value store.
    pub documents: String,
}

impl Roots {
    /// Those of `queue`.
    pub fn of(queue: &str) -> Self {
        let encoded = encoded(queue);
        Self {
            data: format!("{PREFIX}/{SINK}/queue={encoded}/"),
            sidecars: format!("{PREFIX}/_queen/{SINK}/{encoded}/"),
            documents: format!("s3:{SINK}:{encoded}:"),
        }
    }

    /// What `key` names of the lake, if it is one of its keys.
    pub fn named(&self, key: &str) -> Option<Named> {
        if let Some(rest) = key.strip_prefix(&self.sidecars) {
            let number = |digits: &str| (digits.len() == 10).then(|| digits.parse().ok()).flatten();
            if let Some(rest) = rest.strip_prefix("windows/") {
                return number(rest.strip_suffix(".json")?).map(Named::Manifest);
            }
            let rest = rest
                .strip_prefix("checkpoint/")?
                .strip_suffix(".json.zst")?;
            return number(rest).map(Named::Checkpoint);
        }
        let rest = key.strip_prefix(&self.data)?;
        let file = rest.rsplit('/').next()?.strip_prefix("w-")?;
        let mut numbers = file.split(['-', '.']);
        Some(Named::Data {
            k: numbers.next()?.parse().ok()?,
            start: numbers.next()?.parse().ok()?,
            end: numbers.next()?.parse().ok()?,
        })
    }
}

/// Key of window `k`'s manifest.
pub fn manifest(queue: &str, k: u64) -> String {
    format!(
        "{PREFIX}/_queen/{SINK}/{}/windows/{k:010}.json",
        encoded(queue)
    )
}

/// Key of a window's data.
pub fn data(
    roots: &Roots,
    k: u64,
    start: i64,
    end: i64,
    shape: Shape,
    partition: Option<&str>,
) -> String {
    let at = Timestamp::from_microsecond(start).expect("a start within the calendar");
    let day = at.strftime("dt=%Y-%m-%d");
    let hour = at.strftime("hour=%H/");
    let hour = if shape.align == Align::Day {
        String::new()
    } else {
        hour.to_string()
    };
    let extension = match (shape.format, shape.compression) {
        (Format::Parquet, _) => "parquet",
        (_, Compression::Zstd) => "jsonl.zst",
        (_, Compression::Gzip) => "jsonl.gz",
        _ => "jsonl",
    };
    let partition = partition
        .map(|name| format!("-p-{}", encoded(name)))
        .unwrap_or_default();
    format!(
        "{}{day}/{hour}w-{k:010}-{start:016}-{end:016}{partition}.{extension}",
        roots.data
    )
}

#[cfg(test)]
mod tests {
    use queen_s3::lake::Layout;

    use super::*;

    #[test]
    fn keys_are_spelled_as_the_specification_has_them() {
        let shape = Shape {
            format: Format::Jsonl,
            compression: Compression::Zstd,
            layout: Layout::Merged,
            align: Align::Hour,
        };
        let roots = Roots::of("a/b");
        let key = data(
            &roots,
            7,
            1_772_323_199_000_000,
            1_772_323_200_000_000,
            shape,
            None,
        );
        assert_eq!(
            key,
            "lake/all/main/queue=a%2Fb/dt=2026-02-28/hour=23/\
             w-0000000007-1772323199000000-1772323200000000.jsonl.zst"
        );
        let window = Named::Data {
            k: 7,
            start: 1_772_323_199_000_000,
            end: 1_772_323_200_000_000,
        };
        assert_eq!(roots.named(&key), Some(window));
        assert_eq!(roots.named(&manifest("a/b", 3)), Some(Named::Manifest(3)));
        assert_eq!(Roots::of("other").named(&key), None);
        assert_eq!(encoded(".."), "%2E%2E");
        assert_eq!(encoded(&"ü".repeat(100)).len(), 180 + 33);
    }
}
