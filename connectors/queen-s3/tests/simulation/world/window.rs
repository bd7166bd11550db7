//! Reads an object back, without the sink's code.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::GzDecoder;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use queen_s3::broker::Name;
use queen_s3::lake::{Compression, Format, Shape};
use queen_s3::time::Micros;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::log::{RecordKey, Truth};

/// One record of an object.
#[derive(Debug)]
pub struct Line {
    /// Which record it is.
    pub key: RecordKey,
    /// Its bytes, without the line's end.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    partition: String,
    offset: i64,
    #[serde(rename = "transactionId")]
    _transaction_id: String,
    ts: String,
    #[serde(borrow, rename = "payload")]
    _payload: &'a RawValue,
}

/// The records of an object, in its order.
pub fn lines(content: &[u8], shape: Shape) -> Result<Vec<Line>, String> {
    if shape.format == Format::Parquet {
        return rows(content).map_err(|source| source.to_string());
    }
    let text = match shape.compression {
        Compression::Zstd => zstd::decode_all(content).map_err(|source| source.to_string())?,
        Compression::Gzip => {
            let mut text = Vec::new();
            GzDecoder::new(content)
                .read_to_end(&mut text)
                .map_err(|source| source.to_string())?;
            text
        }
        _ => content.to_vec(),
    };
    let text = String::from_utf8(text).map_err(|source| source.to_string())?;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    text.lines().map(line).collect()
}

/// The records of a Parquet object, each as the line that it would be.
fn rows(content: &[u8]) -> parquet::errors::Result<Vec<Line>> {
    let file = SerializedFileReader::new(Bytes::copy_from_slice(content))?;
    let line = |row: parquet::errors::Result<Row>| {
        let row = row?;
        let key = (
            row.get_timestamp_micros(3)?,
            Name::from(row.get_string(0)?.as_str()),
            row.get_long(1)?,
        );
        let payload = row.get_string(4).map_or("null", String::as_str);
        let text = spelled(&key, row.get_string(2)?, payload);
        Ok(Line { key, text })
    };
    file.get_row_iter(None)?.map(line).collect()
}

fn line(text: &str) -> Result<Line, String> {
    let fields: Fields<'_> =
        serde_json::from_str(text).map_err(|source| format!("{source} in {text}"))?;
    let ts = Micros::parse(&fields.ts).map_err(|source| source.to_string())?;
    Ok(Line {
        key: (ts.0, Name::from(fields.partition), fields.offset),
        text: text.to_owned(),
    })
}

/// The bytes that a record must have.
pub fn expected_line(key: &RecordKey, truth: &Truth) -> String {
    spelled(key, &truth.transaction_id, &truth.payload)
}

fn spelled(key: &RecordKey, transaction_id: &str, payload: &str) -> String {
    let (ts, partition, offset) = key;
    format!(
        "{{\"partition\":{},\"offset\":{offset},\"transactionId\":{},\"ts\":\"{}\",\"payload\":{}}}",
        Value::from(&**partition),
        Value::from(transaction_id),
        Micros(*ts),
        payload.replace(['\r', '\n'], " ")
    )
}
