//! The three key/value documents of a queue. Read tolerantly: what other implementations leave
//! out has a default, and what this one does not know is kept.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::WindowBounds;
use super::{Align, Compression, Format, Layout, Shape};
use crate::time::Micros;

/// What a window will be, written before any byte of it goes up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// Window number.
    pub k: u64,
    /// Start, µs, inclusive.
    pub t_start: i64,
    /// End, µs, exclusive.
    pub t_end: i64,
    /// Format of the objects.
    pub format: Format,
    /// Compression or codec of the objects.
    pub compression: Compression,
    /// Layout of the objects.
    pub layout: Layout,
    /// Alignment; other implementations leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub align: Option<Align>,
    /// The lake's lineage; other implementations leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Program and encoder that will write it, `queen-s3/<version> jsonl+zstd`.
    #[serde(default)]
    pub writer: String,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Intent {
    /// Number and bounds.
    pub fn bounds(&self) -> WindowBounds {
        WindowBounds {
            k: self.k,
            t_start: Micros(self.t_start),
            t_end: Micros(self.t_end),
        }
    }

    /// How its objects are made; `align` stands in where the intent names none.
    pub fn shape(&self, align: Align) -> Shape {
        Shape {
            format: self.format,
            compression: self.compression,
            layout: self.layout,
            align: self.align.unwrap_or(align),
        }
    }
}

/// The commit pointer: everything below `tEnd` is in the lake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitPointer {
    /// Number of the last committed window, 0 before the first.
    pub k: u64,
    /// End of what is committed, µs, exclusive.
    pub t_end: i64,
    /// Key of the last window's manifest, empty for k = 0.
    #[serde(default)]
    pub manifest: String,
    /// Records of the last window.
    #[serde(default)]
    pub records: u64,
    /// Object bytes of the last window.
    #[serde(default)]
    pub bytes: u64,
    /// When it was written, ms on the sink's clock.
    #[serde(default)]
    pub committed_at_ms: i64,
    /// The lake's lineage; other implementations leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Who owns the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseDocument {
    /// The instance's configured or generated name.
    #[serde(default)]
    pub instance: String,
    /// Random, one per process.
    #[serde(default)]
    pub incarnation: String,
    /// When this incarnation claimed it, ms on its clock.
    #[serde(default)]
    pub since_ms: i64,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
