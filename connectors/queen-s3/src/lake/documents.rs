//! The three key/value documents of a queue. Read tolerantly: what other implementations leave
//! out has a default, and what this one does not know is kept.

use serde::{Deserialize, Deserializer, Serialize};
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
    #[serde(default, deserialize_with = "or_default")]
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
    #[serde(default, deserialize_with = "or_default")]
    pub manifest: String,
    /// Records of the last window.
    #[serde(default, deserialize_with = "or_default")]
    pub records: u64,
    /// Object bytes of the last window.
    #[serde(default, deserialize_with = "or_default")]
    pub bytes: u64,
    /// When it was written, ms on the sink's clock.
    #[serde(default, deserialize_with = "or_default")]
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
    #[serde(default, deserialize_with = "or_default")]
    pub instance: String,
    /// Random, one per process.
    #[serde(default, deserialize_with = "or_default")]
    pub incarnation: String,
    /// When this incarnation claimed it, ms on its clock.
    #[serde(default, deserialize_with = "or_default")]
    pub since_ms: i64,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Reads null as the default: some writers say null where others leave a field out.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn read<T: DeserializeOwned>(value: &Value) -> T {
        serde_json::from_value(value.clone()).expect("it reads")
    }

    fn written<T: Serialize>(document: &T) -> String {
        serde_json::to_string(document).expect("it writes")
    }

    #[test]
    fn documents_are_written_with_the_lakes_fields_in_its_order() {
        let intent = Intent {
            k: 3,
            t_start: 10,
            t_end: 20,
            format: Format::Jsonl,
            compression: Compression::Zstd,
            layout: Layout::PerPartition,
            align: Some(Align::Hour),
            lineage: Some("l".into()),
            writer: "queen-s3/1.5.0 jsonl+zstd".into(),
            other: Map::new(),
        };
        assert_eq!(
            written(&intent),
            r#"{"k":3,"tStart":10,"tEnd":20,"format":"jsonl","compression":"zstd","layout":"per-partition","align":"hour","lineage":"l","writer":"queen-s3/1.5.0 jsonl+zstd"}"#
        );
        let pointer = CommitPointer {
            k: 3,
            t_end: 20,
            manifest: "m".into(),
            records: 5,
            bytes: 6,
            committed_at_ms: 7,
            lineage: Some("l".into()),
            other: Map::new(),
        };
        assert_eq!(
            written(&pointer),
            r#"{"k":3,"tEnd":20,"manifest":"m","records":5,"bytes":6,"committedAtMs":7,"lineage":"l"}"#
        );
        let lease = LeaseDocument {
            instance: "sink-0".into(),
            incarnation: "i".into(),
            since_ms: 7,
            other: Map::new(),
        };
        assert_eq!(
            written(&lease),
            r#"{"instance":"sink-0","incarnation":"i","sinceMs":7}"#
        );
    }

    #[test]
    fn what_another_implementation_leaves_out_or_sets_to_null_has_a_default() {
        let intent: Intent = read(&json!({"k": 1, "tStart": 0, "tEnd": 9, "format": "parquet",
            "compression": "snappy", "layout": "merged", "writer": null, "align": null}));
        assert_eq!(
            (
                intent.align,
                intent.lineage.as_deref(),
                intent.writer.as_str()
            ),
            (None, None, "")
        );
        assert_eq!(intent.shape(Align::Day).align, Align::Day);
        let pointer: CommitPointer = read(&json!({"k": 0, "tEnd": 9, "manifest": null}));
        assert_eq!((pointer.manifest.as_str(), pointer.lineage), ("", None));
        let lease: LeaseDocument = read(&json!({"instance": "sink-1"}));
        assert_eq!((lease.incarnation.as_str(), lease.since_ms), ("", 0));
    }

    #[test]
    fn unknown_fields_survive_a_rewrite() {
        for value in [
            json!({"k": 1, "tStart": 0, "tEnd": 9, "format": "jsonl", "compression": "zstd",
                "layout": "merged", "writer": "w", "shard": {"a": [1]}}),
            json!({"k": 1, "tStart": 0, "tEnd": 9, "format": "jsonl", "compression": "gzip",
                "layout": "merged", "align": "none", "lineage": "l", "writer": "w", "z": null, "a": 1}),
        ] {
            assert_eq!(written(&read::<Intent>(&value)), value.to_string());
        }
        let value = json!({"k": 1, "tEnd": 9, "manifest": "m", "records": 1, "bytes": 2,
            "committedAtMs": 3, "lineage": "l", "hold": true});
        assert_eq!(written(&read::<CommitPointer>(&value)), value.to_string());
        let value = json!({"instance": "i", "incarnation": "n", "sinceMs": 1, "host": "h"});
        assert_eq!(written(&read::<LeaseDocument>(&value)), value.to_string());
    }

    #[test]
    fn an_intent_of_an_unknown_shape_is_refused() {
        let value = json!({"k": 1, "tStart": 0, "tEnd": 9, "format": "orc", "compression": "zstd",
            "layout": "merged"});
        let error = serde_json::from_value::<Intent>(value).expect_err("no such format");
        assert!(error.to_string().contains("orc"), "{error}");
    }
}
