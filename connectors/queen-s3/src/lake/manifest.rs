//! The manifest: what one committed window holds.

use serde::{Deserialize, Serialize};

use super::{Align, Compression, Format, Layout};

/// One committed window. Times are µs since the epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The sink's raw name.
    pub sink: String,
    /// The queue's raw name.
    pub queue: String,
    /// The lake's lineage.
    #[serde(default)]
    pub lineage: String,
    /// Program and encoder that wrote it.
    #[serde(default)]
    pub writer: String,
    /// Window number.
    pub k: u64,
    /// Start, inclusive.
    pub t_start: i64,
    /// End, exclusive.
    pub t_end: i64,
    /// The pointer's end before this window: `[prevTEnd, tStart)` held no record.
    pub prev_t_end: i64,
    /// Format of the objects.
    pub format: Format,
    /// Compression or codec of the objects.
    pub compression: Compression,
    /// Layout of the objects.
    pub layout: Layout,
    /// Alignment of the window.
    pub align: Align,
    /// The objects, in key order of the layout.
    pub objects: Vec<ManifestObject>,
    /// Records of all objects.
    pub records: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Partitions with a record.
    pub partitions: u64,
    /// Least `ts` of a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ts: Option<i64>,
    /// Greatest `ts` of a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ts: Option<i64>,
    /// Offsets deleted before they were read.
    #[serde(default)]
    pub lost: Vec<OffsetRange>,
    /// Offsets of records below `tStart`: the broker broke its promise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<OffsetRange>,
    /// When the manifest was written, ISO-8601, on the sink's clock.
    pub committed_at: String,
}

/// One object of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestObject {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
    /// SHA-256 of its content, hex.
    pub sha256: String,
    /// Its partition's raw name, per-partition layout only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Its first offset, per-partition layout only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_offset: Option<i64>,
    /// Its last offset, per-partition layout only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_offset: Option<i64>,
}

/// Offsets of one partition, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetRange {
    /// The partition's raw name.
    pub partition: String,
    /// First offset.
    pub from: i64,
    /// Last offset.
    pub to: i64,
}
