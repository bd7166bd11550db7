//! Parquet files, written one row group at a time.
//!
//! A row group's chunks are kept as they came, and each column is written straight from them: a
//! payload is copied once, into the page being built, and a finished row group leaves as parts.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{
    BloomFilterPosition, DeltaBinaryPackedEncoderOptions, EnabledStatistics, WriterProperties,
    WriterVersion,
};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::jsonl::LineLength;
use super::parts::Parts;
use super::{EncodeError, ObjectSpec, ObjectSummary};
use crate::lake::Compression;
use crate::limits::{
    PARQUET_BATCH_ROWS, PARQUET_DICTIONARY_PAGE_BYTES, PARQUET_PAGE_BYTES, PARQUET_PAGE_ROWS,
    ROW_GROUP_BYTES, ROW_GROUP_RECORDS, ZSTD_LEVEL,
};
use crate::record::{Batch, Chunk, RecordIndex};

const SCHEMA: &str = "
    message queen {
        required binary partition (STRING);
        required int64 offset;
        required binary transaction_id (STRING);
        required int64 ts (TIMESTAMP(MICROS, true));
        optional binary payload (STRING);
    }
";

/// Builds one Parquet object.
pub(super) struct ParquetEncoder {
    writer: SerializedFileWriter<Parts>,
    /// What the row group being collected holds, with the partition's name.
    pending: Vec<(ByteArray, Chunk)>,
    pending_records: usize,
    pending_bytes: u64,
    partition: ByteArray,
    length: LineLength,
    records: u64,
}

impl ParquetEncoder {
    /// An encoder for one object.
    pub(super) fn new(spec: &ObjectSpec) -> Result<Self, EncodeError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = Arc::new(properties(spec)?);
        let parts = Parts::new(spec.record_bytes);
        Ok(Self {
            writer: SerializedFileWriter::new(parts, schema, properties)?,
            pending: Vec::new(),
            pending_records: 0,
            pending_bytes: 0,
            partition: ByteArray::from(""),
            length: LineLength::new(""),
            records: 0,
        })
    }

    /// Appends the records of `chunk`, which belong to `partition` (raw).
    pub(super) fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        if partition.as_bytes() != self.partition.data() {
            self.partition = ByteArray::from(partition);
            self.length = LineLength::new(partition);
        }
        let mut start = chunk.range.start;
        for (next, record) in (chunk.range.start + 1..).zip(chunk.records()) {
            self.pending_records += 1;
            self.pending_bytes += self.length.of(&chunk.batch, record);
            if self.pending_records == ROW_GROUP_RECORDS || self.pending_bytes >= ROW_GROUP_BYTES {
                self.keep(chunk, start..next);
                self.write_row_group()?;
                start = next;
            }
        }
        self.keep(chunk, start..chunk.range.end);
        Ok(())
    }

    /// Takes the next full part.
    pub(super) fn take_part(&mut self) -> Option<Bytes> {
        self.writer.inner_mut().take()
    }

    /// Ends the object.
    pub(super) fn finish(mut self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        if self.pending_records > 0 {
            self.write_row_group()?;
        }
        Ok(self.writer.into_inner()?.finish(self.records))
    }

    fn keep(&mut self, chunk: &Chunk, range: std::ops::Range<u32>) {
        if !range.is_empty() {
            let batch = Arc::clone(&chunk.batch);
            self.pending
                .push((self.partition.clone(), Chunk { batch, range }));
        }
    }

    fn write_row_group(&mut self) -> Result<(), EncodeError> {
        let rows = &self.pending;
        let mut group = self.writer.next_row_group()?;
        required::<ByteArrayType>(&mut group, rows, |partition, _, _| partition.clone())?;
        required::<Int64Type>(&mut group, rows, |_, _, record| record.offset)?;
        required::<ByteArrayType>(&mut group, rows, |_, batch, record| {
            transaction_id(batch, record)
        })?;
        required::<Int64Type>(&mut group, rows, |_, _, record| record.ts.0)?;
        column::<ByteArrayType>(&mut group, rows, true, |_, batch, record| {
            let payload = batch.payload_bytes(record);
            (payload != "null").then(|| payload.into())
        })?;
        group.close()?;
        self.writer.flush()?;
        self.records += self.pending_records as u64;
        self.pending.clear();
        self.pending_records = 0;
        self.pending_bytes = 0;
        Ok(())
    }
}

fn required<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Parts>,
    rows: &[(ByteArray, Chunk)],
    value: impl Fn(&ByteArray, &Batch, &RecordIndex) -> T::T,
) -> Result<(), ParquetError> {
    column::<T>(group, rows, false, |partition, batch, record| {
        Some(value(partition, batch, record))
    })
}

/// Writes the next column of a row group, in batches that begin at the same rows however the
/// records came.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Parts>,
    rows: &[(ByteArray, Chunk)],
    optional: bool,
    value: impl Fn(&ByteArray, &Batch, &RecordIndex) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("a column more than the schema has".to_owned()))?;
    let writer = column.typed::<T>();
    let mut values = Vec::with_capacity(PARQUET_BATCH_ROWS);
    let mut levels = Vec::with_capacity(PARQUET_BATCH_ROWS);
    for (partition, chunk) in rows {
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
    column.close()
}

/// Every property that has a setter is set here, so that a library's changed default moves no
/// byte unnoticed.
fn properties(spec: &ObjectSpec) -> Result<WriterProperties, ParquetError> {
    let metadata = vec![
        KeyValue::new("queen.envelope".to_owned(), "1".to_owned()),
        KeyValue::new("queen.queue".to_owned(), spec.queue.clone()),
    ];
    let codec = match spec.compression {
        Compression::Snappy => Codec::SNAPPY,
        _ => Codec::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?),
    };
    let path = |name: &str| ColumnPath::from(name);
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by("queen-s3".to_owned())
        .set_key_value_metadata(Some(metadata))
        .set_sorting_columns(None)
        .set_compression(codec)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled(path("partition"), true)
        .set_dictionary_page_size_limit(PARQUET_DICTIONARY_PAGE_BYTES)
        .set_delta_binary_packed_encoder_options(DeltaBinaryPackedEncoderOptions::try_new(128, 4)?)
        .set_write_batch_size(PARQUET_BATCH_ROWS)
        .set_data_page_size_limit(PARQUET_PAGE_BYTES)
        .set_data_page_row_count_limit(PARQUET_PAGE_ROWS)
        .set_data_page_v2_compression_ratio_threshold(1.0)
        .set_max_row_group_row_count(Some(ROW_GROUP_RECORDS))
        .set_max_row_group_bytes(None)
        .set_content_defined_chunking(None)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_statistics_truncate_length(None)
        .set_column_index_truncate_length(None)
        .set_write_page_header_statistics(false)
        .set_write_row_group_number_distinct_values(false)
        .set_offset_index_disabled(true)
        .set_bloom_filter_enabled(false)
        .set_bloom_filter_position(BloomFilterPosition::AfterRowGroup)
        .set_bloom_filter_for_dictionary_encoded_chunks(false)
        .set_write_path_in_schema(true)
        .set_coerce_types(false);
    for name in ["partition", "offset", "ts"] {
        builder = builder.set_column_statistics_enabled(path(name), EnabledStatistics::Chunk);
    }
    for name in ["offset", "ts"] {
        builder = builder.set_column_encoding(path(name), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(builder.build())
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

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
