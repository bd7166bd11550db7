//! Reads a lake from the folder that holds it or its copy, by the lake reference alone: nothing
//! here comes from the sink's code.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::bucket_copy::BucketCopy;
use crate::parquet;

/// One sink's lake in a bucket that is a folder, or is copied to one whenever the lake is read.
#[derive(Debug, Clone)]
pub struct Lake {
    bucket: PathBuf,
    copy: Option<Arc<BucketCopy>>,
    prefix: String,
    sink: String,
}

/// A data object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LakeObject {
    /// Its key in the bucket.
    pub key: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A record in the lake: one line of a JSONL object, or one row of a Parquet object.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LakeRecord {
    /// Partition name.
    pub partition: String,
    /// Absolute offset in the partition.
    pub offset: i64,
    /// The client's transaction id.
    #[serde(rename = "transactionId")]
    pub transaction_id: String,
    /// The segment's commit time, `YYYY-MM-DDTHH:MM:SS.ffffffZ`.
    pub ts: String,
    /// The message body as stored.
    pub payload: Box<RawValue>,
    /// The key of the object it is in.
    #[serde(skip)]
    pub key: String,
}

impl Lake {
    /// The lake of `sink` under `prefix` in the folder `bucket`.
    pub fn new(bucket: &Path, prefix: &str, sink: &str) -> Self {
        Self {
            bucket: bucket.to_path_buf(),
            copy: None,
            prefix: prefix.into(),
            sink: sink.into(),
        }
    }

    /// The lake of `sink` under `prefix` in the bucket that is copied.
    pub(crate) fn copied(copy: Arc<BucketCopy>, prefix: &str, sink: &str) -> Self {
        Self {
            copy: Some(Arc::clone(&copy)),
            ..Self::new(copy.folder(), prefix, sink)
        }
    }

    /// The folder with the data of all queues. A copy is as of the last read of this lake.
    pub fn folder(&self) -> PathBuf {
        self.bucket.join(&self.prefix).join(&self.sink)
    }

    /// The folder that stands for the bucket.
    pub fn bucket(&self) -> &Path {
        &self.bucket
    }

    /// A glob over the objects of `queue`, for a reader such as DuckDB.
    pub fn glob(&self, queue: &str) -> String {
        format!(
            "{}/queue={}/**/*.jsonl*",
            self.folder().display(),
            encode_name(queue)
        )
    }

    /// The data objects of `queue`, by key.
    pub fn objects(&self, queue: &str) -> Result<Vec<LakeObject>> {
        self.read_all(&self.folder().join(format!("queue={}", encode_name(queue))))
    }

    /// The window manifests of `queue`, by window number.
    pub fn manifests(&self, queue: &str) -> Result<Vec<serde_json::Value>> {
        let folder = self.bucket.join(self.sidecars());
        self.read_all(&folder.join(encode_name(queue)).join("windows"))?
            .iter()
            .map(|object| serde_json::from_slice(&object.bytes).context(object.key.clone()))
            .collect()
    }

    /// Every record of `queue`, by key and place in the object; those of Parquet objects at the end.
    pub fn records(&self, queue: &str) -> Result<Vec<LakeRecord>> {
        let (mut records, mut parquet) = (Vec::new(), Vec::new());
        for object in self.objects(queue)? {
            if object.key.ends_with(".parquet") {
                parquet.push(object.key);
            } else {
                records.extend(parse(&object).with_context(|| format!("read {}", object.key))?);
            }
        }
        records.extend(parquet::records(&self.bucket, &parquet)?);
        Ok(records)
    }

    /// Where the sidecars of all queues are.
    fn sidecars(&self) -> String {
        format!("{}/_queen/{}/", self.prefix, self.sink)
    }

    /// Brings a copy up to date: sidecars first, so that no manifest is newer than the objects.
    fn refresh(&self) -> Result<()> {
        let Some(copy) = &self.copy else {
            return Ok(());
        };
        let data = format!("{}/{}/", self.prefix, self.sink);
        copy.refresh(&[self.sidecars(), data])
    }

    /// Every file under `folder`, by key. A folder that is not there holds nothing.
    fn read_all(&self, folder: &Path) -> Result<Vec<LakeObject>> {
        self.refresh()?;
        let mut objects = Vec::new();
        let mut open = vec![folder.to_path_buf()];
        while let Some(folder) = open.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error).context(folder.display().to_string()),
            };
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let key = path.strip_prefix(&self.bucket)?.display().to_string();
                objects.push(LakeObject {
                    bytes: fs::read(&path).context(key.clone())?,
                    key,
                });
            }
        }
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }
}

/// The records of one object, whose name says how it is compressed.
fn parse(object: &LakeObject) -> Result<Vec<LakeRecord>> {
    let text = match object.key.rsplit('.').next() {
        Some("zst") => zstd::decode_all(object.bytes.as_slice())?,
        Some("gz") => {
            let mut text = Vec::new();
            flate2::read::GzDecoder::new(object.bytes.as_slice()).read_to_end(&mut text)?;
            text
        }
        Some("jsonl") => object.bytes.clone(),
        _ => bail!("the name says no format this reader knows"),
    };
    let text = String::from_utf8(text)?;
    ensure!(
        text.ends_with('\n'),
        "the last record does not end with a newline"
    );
    let parse_line = |(number, line): (usize, &str)| {
        let mut record: LakeRecord =
            serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        record.key.clone_from(&object.key);
        Ok(record)
    };
    text.lines().enumerate().map(parse_line).collect()
}

/// A name as keys spell it: every byte outside `[A-Za-z0-9._-]` is `%XX`; `.` and `..` are
/// escaped too. Names whose spelling is over 255 bytes are cut by the sink and not known here.
pub fn encode_name(name: &str) -> String {
    match name {
        "." => return "%2E".into(),
        ".." => return "%2E%2E".into(),
        _ => {}
    }
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::{LakeObject, encode_name, parse};

    #[test]
    fn names_are_spelled_as_the_lake_reference_says() {
        assert_eq!(encode_name("orders.eu-1_x"), "orders.eu-1_x");
        assert_eq!(encode_name("a/b ü"), "a%2Fb%20%C3%BC");
        assert_eq!(
            (encode_name("."), encode_name("..")),
            ("%2E".into(), "%2E%2E".into())
        );
    }

    #[test]
    fn an_object_cut_short_is_refused() {
        let line = r#"{"partition":"p","offset":0,"transactionId":"t","ts":"x","payload":{}}"#;
        let object = |text: String| LakeObject {
            key: "w.jsonl".into(),
            bytes: text.into(),
        };
        assert!(parse(&object(line.into())).is_err());
        assert_eq!(
            parse(&object(format!("{line}\n")))
                .map(|records| records.len())
                .ok(),
            Some(1)
        );
    }
}
