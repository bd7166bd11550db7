//! Reads an object back, without the sink's code.

use std::borrow::Cow;
use std::io::Read as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::GzDecoder;
use memchr::memchr2;
use parquet::basic;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, RowAccessor};
use queen_s3::broker::Name;
use queen_s3::lake::{Compression, Format, Shape};
use queen_s3::time::Micros;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::log::{RecordKey, Truth};

/// One record of an object.
#[derive(Debug)]
pub struct Line {
    /// Which record it is.
    pub key: RecordKey,
    /// The rest of it.
    pub body: Body,
}

/// What an object says of a record besides its place.
#[derive(Debug, PartialEq)]
pub enum Body {
    /// The bytes of its line, without the end.
    Text(String),
    /// The columns of its row.
    Row {
        /// Transaction id.
        transaction_id: Arc<str>,
        /// Payload; `None` for null.
        payload: Option<Arc<str>>,
    },
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

/// The records of an object of `queue`, in its order.
pub fn lines(content: &Bytes, queue: &str, shape: Shape) -> Result<Vec<Line>, String> {
    if shape.format == Format::Parquet {
        return rows(content, queue, shape.compression);
    }
    let text = match shape.compression {
        Compression::Zstd => zstd::decode_all(&content[..]).map_err(|source| source.to_string())?,
        Compression::Gzip => {
            let mut text = Vec::new();
            GzDecoder::new(&content[..])
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

fn line(text: &str) -> Result<Line, String> {
    let fields: Fields<'_> =
        serde_json::from_str(text).map_err(|source| format!("{source} in {text}"))?;
    let ts = Micros::parse(&fields.ts).map_err(|source| source.to_string())?;
    Ok(Line {
        key: (ts.0, Name::from(fields.partition), fields.offset),
        body: Body::Text(text.to_owned()),
    })
}

/// The rows of a Parquet file, which says of itself what the lake promises.
fn rows(content: &Bytes, queue: &str, codec: Compression) -> Result<Vec<Line>, String> {
    let wrong = |source: ParquetError| source.to_string();
    let reader = SerializedFileReader::new(content.clone()).map_err(wrong)?;
    let file = reader.metadata().file_metadata();
    let told = file.key_value_metadata().map(|told| {
        told.iter()
            .map(|pair| (pair.key.as_str(), pair.value.as_deref().unwrap_or_default()))
            .collect::<Vec<_>>()
    });
    let expected = vec![("queen.envelope", "1"), ("queen.queue", queue)];
    if file.created_by() != Some("queen-s3") || told != Some(expected) {
        return Err(format!(
            "it was made by {:?} of {told:?}",
            file.created_by()
        ));
    }
    for group in reader.metadata().row_groups() {
        for column in group.columns() {
            let right = match codec {
                Compression::Snappy => column.compression() == basic::Compression::SNAPPY,
                _ => matches!(column.compression(), basic::Compression::ZSTD(_)),
            };
            if !right {
                return Err(format!("a column is {:?}", column.compression()));
            }
        }
    }
    reader
        .get_row_iter(None)
        .map_err(wrong)?
        .map(|row| {
            let row = row.map_err(wrong)?;
            let partition = Name::from(row.get_string(0).map_err(wrong)?.as_str());
            let ts = row.get_timestamp_micros(3).map_err(wrong)?;
            Ok(Line {
                key: (ts, partition, row.get_long(1).map_err(wrong)?),
                body: Body::Row {
                    transaction_id: row.get_string(2).map_err(wrong)?.as_str().into(),
                    payload: match row.get_column_iter().nth(4) {
                        Some((_, Field::Str(payload))) => Some(payload.as_str().into()),
                        Some((_, Field::Null)) => None,
                        other => return Err(format!("a payload is {other:?}")),
                    },
                },
            })
        })
        .collect()
}

/// What an object must say of a record.
pub fn expected_body(key: &RecordKey, truth: &Truth, format: Format) -> Body {
    if format == Format::Parquet {
        return Body::Row {
            transaction_id: Arc::clone(&truth.transaction_id),
            payload: Some(Arc::clone(&truth.payload)).filter(|payload| &**payload != "null"),
        };
    }
    let (ts, partition, offset) = key;
    let quoted = |text: &str| serde_json::to_string(text).expect("a text is JSON");
    let payload = if memchr2(b'\r', b'\n', truth.payload.as_bytes()).is_some() {
        Cow::from(truth.payload.replace(['\r', '\n'], " "))
    } else {
        Cow::from(&*truth.payload)
    };
    Body::Text(format!(
        "{{\"partition\":{},\"offset\":{offset},\"transactionId\":{},\"ts\":\"{}\",\"payload\":{}}}",
        quoted(partition),
        quoted(&truth.transaction_id),
        Micros(*ts),
        payload
    ))
}
