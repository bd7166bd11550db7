//! One row group of a Parquet object: encoded by itself, on any thread, and then put where it
//! belongs in the file.
//!
//! Chunks are kept as they came, and each column is written straight from them: a payload is copied
//! once, into the page being built.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::writer::{ColumnCloseResult, get_column_writer, get_typed_column_writer};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::SchemaDescPtr;

use crate::limits::{PARQUET_BATCH_ROWS, ROW_GROUP_BYTES, ROW_GROUP_RECORDS};
use crate::record::{Batch, Chunk, RecordIndex};

/// What every row group of a file shares.
#[derive(Clone)]
pub(super) struct Columns {
    /// The columns, in the order of [`RowGroup::encode`].
    pub(super) schema: SchemaDescPtr,
    /// How they are encoded.
    pub(super) properties: WriterPropertiesPtr,
}

/// The records of a row group, with their partition's name.
#[derive(Default)]
pub(super) struct RowGroup {
    runs: Vec<(ByteArray, Chunk)>,
    records: usize,
    bytes: u64,
}

impl RowGroup {
    /// Whether there is nothing to encode.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records in it.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Counts one more record of `bytes` record bytes, which a run will hold, and says whether it
    /// is the last one.
    pub(super) fn count(&mut self, bytes: u64) -> bool {
        self.records += 1;
        self.bytes += bytes;
        self.records == ROW_GROUP_RECORDS || self.bytes >= ROW_GROUP_BYTES
    }

    /// Holds the records `range` of the batch of `chunk`, which belong to `partition`.
    pub(super) fn hold(&mut self, partition: &ByteArray, chunk: &Chunk, range: Range<u32>) {
        if !range.is_empty() {
            let batch = Arc::clone(&chunk.batch);
            self.runs.push((partition.clone(), Chunk { batch, range }));
        }
    }

    /// Encodes every column. What comes out is a function of the records alone.
    pub(super) fn encode(&self, columns: &Columns) -> Result<EncodedRowGroup, ParquetError> {
        let encoded = vec![
            self.column::<ByteArrayType>(columns, 0, |partition, _, _| Some(partition.clone()))?,
            self.column::<Int64Type>(columns, 1, |_, _, record| Some(record.offset))?,
            self.column::<ByteArrayType>(columns, 2, |_, batch, record| {
                Some(transaction_id(batch, record))
            })?,
            self.column::<Int64Type>(columns, 3, |_, _, record| Some(record.ts.0))?,
            self.column::<ByteArrayType>(columns, 4, |_, batch, record| {
                let payload = batch.payload_bytes(record);
                (payload != "null").then(|| payload.into())
            })?,
        ];
        Ok(EncodedRowGroup(encoded))
    }

    /// Writes one column, in batches that begin at the same rows however the records came.
    fn column<T: DataType>(
        &self,
        columns: &Columns,
        number: usize,
        value: impl Fn(&ByteArray, &Batch, &RecordIndex) -> Option<T::T>,
    ) -> Result<EncodedColumn, ParquetError> {
        let description = columns.schema.column(number);
        let optional = description.max_def_level() > 0;
        let mut content = TrackedWrite::new(Vec::new());
        let pages = Box::new(SerializedPageWriter::new(&mut content));
        let properties = Arc::clone(&columns.properties);
        let mut writer =
            get_typed_column_writer::<T>(get_column_writer(description, properties, pages));
        let mut values = Vec::with_capacity(PARQUET_BATCH_ROWS);
        let mut levels = Vec::with_capacity(PARQUET_BATCH_ROWS);
        for (partition, chunk) in &self.runs {
            for record in chunk.records() {
                let value = value(partition, &chunk.batch, record);
                levels.push(i16::from(value.is_some()));
                values.extend(value);
                if levels.len() == PARQUET_BATCH_ROWS {
                    writer.write_batch(&values, optional.then_some(&levels), None)?;
                    values.clear();
                    levels.clear();
                }
            }
        }
        writer.write_batch(&values, optional.then_some(&levels), None)?;
        let close = writer.close()?;
        let content = content.into_inner()?.into_boxed_slice().into();
        Ok(EncodedColumn { content, close })
    }
}

/// A row group's columns, as they will lie in the file but for their place in it.
pub(super) struct EncodedRowGroup(Vec<EncodedColumn>);

impl EncodedRowGroup {
    /// Puts the row group behind those that the file has.
    pub(super) fn append_to<W: Write + Send>(
        self,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        let mut group = file.next_row_group()?;
        for EncodedColumn { content, close } in self.0 {
            group.append_column(&content, close)?;
        }
        group.close()?;
        file.flush()?;
        Ok(())
    }
}

struct EncodedColumn {
    content: Bytes,
    close: ColumnCloseResult,
}

/// The transaction id as text. Half a surrogate pair, which no text can hold, becomes U+FFFD.
fn transaction_id(batch: &Batch, record: &RecordIndex) -> ByteArray {
    if !batch.has_escapes(record) {
        return batch.transaction_id_bytes(record).into();
    }
    let escaped = batch.transaction_id(record);
    let mut quoted = Vec::with_capacity(escaped.len() + 2);
    quoted.push(b'"');
    append_whole_pairs(&mut quoted, escaped);
    quoted.push(b'"');
    // It reads: the decoder took it for a JSON string, and every escape now names a character.
    let text: String = serde_json::from_slice(&quoted).unwrap_or_default();
    text.into_bytes().into()
}

/// Copies an escaped string, with `\ufffd` for each escape of half a surrogate pair.
fn append_whole_pairs(to: &mut Vec<u8>, escaped: &[u8]) {
    const UNIT: usize = r"\uXXXX".len();
    let unit = |at: usize| {
        let digits = escaped.get(at..at + UNIT)?.strip_prefix(br"\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while at < escaped.len() {
        let (replacement, taken) = match (escaped[at], unit(at)) {
            (b'\\', Some(0xD800..=0xDBFF)) => match unit(at + UNIT) {
                Some(0xDC00..=0xDFFF) => (None, 2 * UNIT),
                _ => (Some(br"\ufffd"), UNIT),
            },
            (b'\\', Some(0xDC00..=0xDFFF)) => (Some(br"\ufffd"), UNIT),
            // Any other escape is taken with the character it escapes, which may be a backslash.
            (b'\\', _) => (None, 2),
            _ => (None, 1),
        };
        let end = escaped.len().min(at + taken);
        match replacement {
            Some(replacement) => to.extend_from_slice(replacement),
            None => to.extend_from_slice(&escaped[at..end]),
        }
        at = end;
    }
}
