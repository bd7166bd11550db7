//! Parquet files, of row groups that are encoded side by side and leave as parts, one after the
//! other.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use parquet::basic::{Compression as Codec, Encoding, ZstdLevel};
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{
    BloomFilterPosition, DeltaBinaryPackedEncoderOptions, EnabledStatistics, WriterProperties,
    WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, SchemaDescriptor};

use super::jsonl::LineLength;
use super::parts::Parts;
use super::row_group::{Columns, EncodedRowGroup, RowGroup};
use super::{EncodeError, ObjectSpec, ObjectSummary};
use crate::lake::Compression;
use crate::limits::{
    PARQUET_BATCH_ROWS, PARQUET_DICTIONARY_PAGE_BYTES, PARQUET_PAGE_BYTES, PARQUET_PAGE_ROWS,
    ROW_GROUP_RECORDS, ZSTD_LEVEL,
};
use crate::record::{Chunk, Piece, Unpacked};

const SCHEMA: &str = "
    message queen {
        required binary partition (STRING);
        required int64 offset;
        required binary transaction_id (STRING);
        required int64 ts (TIMESTAMP(MICROS, true));
        optional binary payload (STRING);
    }
";

/// Builds one Parquet object. Row groups that are full are encoded by threads of their own, a few
/// at a time; the file's bytes do not depend on how many.
pub(super) struct ParquetEncoder {
    writer: SerializedFileWriter<Parts>,
    columns: Columns,
    /// The row group being collected.
    collecting: RowGroup,
    /// Those being encoded, in the file's order.
    encoding: VecDeque<JoinHandle<Encoded>>,
    workers: usize,
    partition: ByteArray,
    length: LineLength,
    /// The block that is being looked into.
    scratch: Unpacked,
    records: u64,
}

type Encoded = Result<EncodedRowGroup, EncodeError>;

impl ParquetEncoder {
    /// An encoder for one object.
    pub(super) fn new(spec: &ObjectSpec) -> Result<Self, EncodeError> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_workers(spec, cores.min(spec.workers))
    }

    fn with_workers(spec: &ObjectSpec, workers: usize) -> Result<Self, EncodeError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = Arc::new(properties(spec)?);
        let parts = Parts::new(spec.record_bytes, spec.part_bytes);
        let columns = Columns {
            schema: Arc::new(SchemaDescriptor::new(Arc::clone(&schema))),
            properties: Arc::clone(&properties),
        };
        Ok(Self {
            writer: SerializedFileWriter::new(parts, schema, properties)?,
            columns,
            collecting: RowGroup::default(),
            encoding: VecDeque::new(),
            workers,
            partition: ByteArray::from(""),
            length: LineLength::new(""),
            scratch: Unpacked::default(),
            records: 0,
        })
    }

    /// Appends the records of `chunk`, which belong to `partition` (raw).
    pub(super) fn push(&mut self, partition: &str, chunk: &Chunk) -> Result<(), EncodeError> {
        if partition.as_bytes() != self.partition.data() {
            self.partition = ByteArray::from(partition);
            self.length = LineLength::new(partition);
        }
        // What is not held yet begins at `start`, what is not counted at `next`.
        let mut start = chunk.range.start;
        let mut next = start;
        for piece in chunk.pieces() {
            if let Piece::Packed(packing) = &piece
                && let Some(known) = packing.known()
                && self
                    .collecting
                    .count_all(known.records, self.length.of_known(&known))
            {
                next += known.records as u32;
                continue;
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            let counted = piece.each(&mut scratch, |record| {
                next += 1;
                if self.collecting.count(self.length.of(&record)) {
                    let full = chunk.part(start..next);
                    self.collecting.hold(&self.partition, full);
                    self.end_row_group()?;
                    start = next;
                }
                Ok::<_, EncodeError>(())
            });
            self.scratch = scratch;
            counted?;
        }
        let rest = chunk.part(start..chunk.range.end);
        self.collecting.hold(&self.partition, rest);
        Ok(())
    }

    /// Takes the next full part.
    pub(super) fn take_part(&mut self) -> Option<Bytes> {
        self.writer.inner_mut().take()
    }

    /// Ends the object.
    pub(super) fn finish(mut self) -> Result<(Vec<Bytes>, ObjectSummary), EncodeError> {
        let last = self.take_row_group();
        // Here, while the threads are at those before it.
        let last = last.map(|group| group.encode(&self.columns)).transpose()?;
        self.collect(0)?;
        if let Some(last) = last {
            last.append_to(&mut self.writer)?;
        }
        Ok(self.writer.into_inner()?.finish(self.records))
    }

    fn take_row_group(&mut self) -> Option<RowGroup> {
        let group = std::mem::take(&mut self.collecting);
        self.records += group.records() as u64;
        (!group.is_empty()).then_some(group)
    }

    fn end_row_group(&mut self) -> Result<(), EncodeError> {
        let Some(group) = self.take_row_group() else {
            return Ok(());
        };
        let group = Arc::new(group);
        if self.workers > 1 {
            self.collect(self.workers - 1)?;
            let (group, columns) = (Arc::clone(&group), self.columns.clone());
            let work = move || group.encode(&columns);
            if let Ok(thread) = thread::Builder::new()
                .name("parquet".to_owned())
                .spawn(work)
            {
                self.encoding.push_back(thread);
                return Ok(());
            }
        }
        // Alone, or no thread is to be had: this one does it.
        self.collect(0)?;
        Ok(group.encode(&self.columns)?.append_to(&mut self.writer)?)
    }

    /// Appends what is encoded to the file, until at most `left` row groups are not.
    fn collect(&mut self, left: usize) -> Result<(), EncodeError> {
        while self.encoding.len() > left {
            let Some(thread) = self.encoding.pop_front() else {
                break;
            };
            let encoded = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            encoded?.append_to(&mut self.writer)?;
        }
        Ok(())
    }
}

/// Every property that has a setter is set here, so that a library's changed default moves no
/// byte unnoticed.
pub(super) fn properties(spec: &ObjectSpec) -> Result<WriterProperties, ParquetError> {
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

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
