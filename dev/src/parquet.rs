//! Reads Parquet objects of a lake with PyArrow, which shares no code with what wrote them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::binaries::python;
use crate::lake::LakeRecord;

/// Prints every row of the files that standard input lists, after the number of its file.
const ROWS: &str = r#"
import json, sys
import pyarrow.parquet
COLUMNS = ["partition", "offset", "transaction_id", "ts", "payload"]
for number, path in enumerate(json.load(sys.stdin)):
    for row in pyarrow.parquet.ParquetFile(path).read(COLUMNS).to_pylist():
        row["ts"] = row["ts"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        print(json.dumps([number] + [row[column] for column in COLUMNS]))
"#;

/// File, partition, offset, transaction id, `ts`, payload.
#[derive(Deserialize)]
struct Row(usize, String, i64, String, String, Option<String>);

/// The records of the objects under `keys` in the folder `bucket`, by key and place in the object.
///
/// # Errors
///
/// When Python or PyArrow is missing (`scripts/setup run` installs them) or cannot read an object.
pub(crate) fn records(bucket: &Path, keys: &[String]) -> Result<Vec<LakeRecord>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let paths: Vec<_> = keys.iter().map(|key| bucket.join(key)).collect();
    let mut reader = Command::new(python())
        .args(["-c", ROWS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}; scripts/setup run makes it", python().display()))?;
    let mut list = reader.stdin.take().context("no standard input")?;
    // It reads the whole list before it prints anything.
    list.write_all(&serde_json::to_vec(&paths)?)?;
    drop(list);
    let output = reader.wait_with_output()?;
    ensure!(
        output.status.success(),
        "PyArrow cannot read the Parquet objects in {}",
        bucket.display()
    );
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| record(line, keys)).collect()
}

fn record(line: &str, keys: &[String]) -> Result<LakeRecord> {
    let Row(number, partition, offset, transaction_id, ts, payload) = serde_json::from_str(line)?;
    let payload = payload.unwrap_or_else(|| "null".into());
    Ok(LakeRecord {
        partition,
        offset,
        transaction_id,
        ts,
        payload: RawValue::from_string(payload).context("a payload is no JSON")?,
        key: keys.get(number).context("a file of no number")?.clone(),
    })
}
