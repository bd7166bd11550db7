//! The manifest: what one committed window holds.

use serde::{Deserialize, Serialize};

use super::keys::WindowBounds;
use super::{Align, Compression, Format, Layout, Shape};
use crate::time::Micros;

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
    /// Format of the objects.
    pub format: Format,
    /// Compression or codec of the objects.
    pub compression: Compression,
    /// Layout of the objects.
    pub layout: Layout,
    /// Alignment of the window; other implementations leave it out and align to the hour.
    #[serde(default = "hour")]
    pub align: Align,
    /// Window number.
    pub k: u64,
    /// Start, inclusive.
    pub t_start: i64,
    /// End, exclusive.
    pub t_end: i64,
    /// The pointer's end before this window: `[prevTEnd, tStart)` held no record.
    pub prev_t_end: i64,
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

impl Manifest {
    /// Number and bounds.
    pub fn bounds(&self) -> WindowBounds {
        WindowBounds {
            k: self.k,
            t_start: Micros(self.t_start),
            t_end: Micros(self.t_end),
        }
    }

    /// How its objects are made.
    pub fn shape(&self) -> Shape {
        Shape {
            format: self.format,
            compression: self.compression,
            layout: self.layout,
            align: self.align,
        }
    }
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

impl OffsetRange {
    /// How many offsets it holds.
    pub fn count(&self) -> u64 {
        match self.from <= self.to {
            true => self.to.abs_diff(self.from).saturating_add(1),
            false => 0,
        }
    }

    /// Whether `offset` lies in the range.
    pub fn contains(&self, offset: i64) -> bool {
        (self.from..=self.to).contains(&offset)
    }

    /// Whether it holds `offset` of `partition`.
    pub fn holds(&self, partition: &str, offset: i64) -> bool {
        self.contains(offset) && self.partition == partition
    }
}

fn hour() -> Align {
    Align::Hour
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Manifest {
        let range = |from, to| OffsetRange {
            partition: "p".into(),
            from,
            to,
        };
        Manifest {
            sink: "default".into(),
            queue: "orders".into(),
            lineage: "l".into(),
            writer: "queen-s3/1.5.0 jsonl+zstd".into(),
            format: Format::Jsonl,
            compression: Compression::Zstd,
            layout: Layout::PerPartition,
            align: Align::Hour,
            k: 3,
            t_start: 20,
            t_end: 30,
            prev_t_end: 10,
            objects: vec![ManifestObject {
                key: "key".into(),
                bytes: 4,
                records: 2,
                sha256: "00".into(),
                partition: Some("p".into()),
                first_offset: Some(5),
                last_offset: Some(6),
            }],
            records: 2,
            bytes: 4,
            partitions: 1,
            min_ts: Some(21),
            max_ts: Some(22),
            lost: vec![range(0, 4)],
            late: vec![range(5, 5)],
            committed_at: "2026-09-04T10:03:41.918204Z".into(),
        }
    }

    #[test]
    fn a_manifest_is_written_with_the_lakes_fields_in_its_order() {
        let written = serde_json::to_string(&manifest()).expect("it writes");
        assert_eq!(
            written,
            concat!(
                r#"{"sink":"default","queue":"orders","lineage":"l","writer":"queen-s3/1.5.0 jsonl+zstd","#,
                r#""format":"jsonl","compression":"zstd","layout":"per-partition","align":"hour","#,
                r#""k":3,"tStart":20,"tEnd":30,"prevTEnd":10,"#,
                r#""objects":[{"key":"key","bytes":4,"records":2,"sha256":"00","partition":"p","firstOffset":5,"lastOffset":6}],"#,
                r#""records":2,"bytes":4,"partitions":1,"minTs":21,"maxTs":22,"#,
                r#""lost":[{"partition":"p","from":0,"to":4}],"late":[{"partition":"p","from":5,"to":5}],"#,
                r#""committedAt":"2026-09-04T10:03:41.918204Z"}"#,
            )
        );
        let read: Manifest = serde_json::from_str(&written).expect("it reads");
        assert_eq!(read, manifest());
    }

    #[test]
    fn a_window_without_records_leaves_its_times_and_late_records_out() {
        let empty = Manifest {
            objects: Vec::new(),
            min_ts: None,
            max_ts: None,
            late: Vec::new(),
            lost: Vec::new(),
            ..manifest()
        };
        let written = serde_json::to_value(&empty).expect("it writes");
        assert_eq!(written["lost"], json!([]));
        for field in ["minTs", "maxTs", "late"] {
            assert_eq!(written.get(field), None, "{field}");
        }
    }

    #[test]
    fn a_manifest_with_less_and_with_more_than_this_version_writes_is_read() {
        let read: Manifest = serde_json::from_value(json!({
            "sink": "default", "queue": "orders", "k": 3, "tStart": 20, "tEnd": 30,
            "prevTEnd": 10, "format": "jsonl", "compression": "zstd", "layout": "merged",
            "objects": [{"key": "key", "bytes": 4, "records": 2, "sha256": "00", "new": 1}],
            "records": 2, "bytes": 4, "partitions": 1, "committedAt": "", "new": [],
        }))
        .expect("it reads");
        assert_eq!((read.align, read.lineage.as_str()), (Align::Hour, ""));
        assert_eq!(read.objects[0].partition, None);
    }
}
