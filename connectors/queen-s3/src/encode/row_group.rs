//! One row group of a Parquet object: encoded by itself, on any thread, and then put where it
//! belongs in the file.
//!
//! Chunks are kept as they came. All columns are written at once, straight from the bodies of the chunks or from
//! the block that was decompressed just before: a text is copied once, into the page being built.

use std::borrow::Cow;
use std::io::Write;
use std::iter::repeat_n;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriterImpl, get_column_writer, get_typed_column_writer,
};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::SchemaDescPtr;

use super::EncodeError;
use super::names::Names;
use super::texts::Texts;
use crate::limits::{PARQUET_BATCH_BYTES, PARQUET_BATCH_ROWS, ROW_GROUP_BYTES, ROW_GROUP_RECORDS};
use crate::record::{Chunk, Record, Unpacked};

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

impl Columns {
    fn texts<'a>(
        &self,
        number: usize,
        content: &'a mut TrackedWrite<Vec<u8>>,
    ) -> Result<Texts<'a>, ParquetError> {
        Texts::new(self.schema.column(number), &self.properties, content)
    }

    fn names(
        &self,
        names: &Names,
        batches: &[usize],
        content: &mut TrackedWrite<Vec<u8>>,
    ) -> Result<ColumnCloseResult, ParquetError> {
        if names.fit() {
            return names.encode(batches, self.schema.column(0), &self.properties, content);
        }
        let mut column = Column::<ByteArrayType>::new(self, 0, content);
        let runs = names.runs().iter();
        let mut rows = runs.flat_map(|(name, rows)| repeat_n(name, *rows));
        let mut start = 0;
        for end in batches {
            column
                .values
                .extend(rows.by_ref().take(end - start).cloned());
            column.write()?;
            start = *end;
        }
        column.writer.close()
    }
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

    /// Counts that many records with so many record bytes, which a run will hold, unless one of them may
    /// be the last one.
    pub(super) fn count_all(&mut self, records: u64, bytes: u64) -> bool {
        let (records, bytes) = (self.records + records as usize, self.bytes + bytes);
        let fit = records < ROW_GROUP_RECORDS && bytes < ROW_GROUP_BYTES;
        if fit {
            (self.records, self.bytes) = (records, bytes);
        }
        fit
    }

    /// Holds the records of `chunk`, which belong to `partition`.
    pub(super) fn hold(&mut self, partition: &ByteArray, chunk: Chunk) {
        if !chunk.range.is_empty() {
            self.runs.push((partition.clone(), chunk));
        }
    }

    /// Encodes every column. What comes out is a function of the records alone.
    pub(super) fn encode(&self, columns: &Columns) -> Result<EncodedRowGroup, EncodeError> {
        let mut contents: [_; 5] = std::array::from_fn(|_| TrackedWrite::new(Vec::new()));
        let [name, offset, transaction_id, ts, payload] = &mut contents;
        let mut rows = Rows {
            offset: Column::new(columns, 1, offset),
            transaction_id: columns.texts(2, transaction_id)?,
            ts: Column::new(columns, 3, ts),
            payload: columns.texts(4, payload)?,
            waiting: 0,
            waiting_bytes: 0,
            batches: Vec::new(),
        };
        let mut names = Names::default();
        let mut scratch = Unpacked::default();
        for (partition, chunk) in &self.runs {
            names.push(partition, chunk.range.len());
            chunk.each(&mut scratch, |record| rows.push(&record))?;
        }
        let (batches, [offset, transaction_id, ts, payload]) = rows.close()?;
        let name = columns.names(&names, &batches, name)?;
        let closed = [name, offset, transaction_id, ts, payload];
        let encoded = contents.into_iter().zip(closed).map(|(content, close)| {
            let content = content.into_inner()?.into_boxed_slice().into();
            Ok(EncodedColumn { content, close })
        });
        let encoded: Result<_, ParquetError> = encoded.collect();
        Ok(EncodedRowGroup(encoded?))
    }
}

/// The columns of a row group, and rows that they are about to be given: in batches that end at the same
/// rows however the records came.
struct Rows<'a> {
    offset: Column<'a, Int64Type>,
    transaction_id: Texts<'a>,
    ts: Column<'a, Int64Type>,
    payload: Texts<'a>,
    waiting: usize,
    /// Bytes of their texts.
    waiting_bytes: usize,
    /// Rows before the end of each batch so far.
    batches: Vec<usize>,
}

impl Rows<'_> {
    fn push(&mut self, record: &Record<'_>) -> Result<(), EncodeError> {
        self.offset.values.push(record.offset);
        self.transaction_id.push(Some(&transaction_id(record)));
        self.ts.values.push(record.ts.0);
        let payload = record.payload;
        self.payload.push((payload != b"null").then_some(payload));
        self.waiting += 1;
        self.waiting_bytes += record.transaction_id.len() + payload.len();
        if self.waiting == PARQUET_BATCH_ROWS || self.waiting_bytes >= PARQUET_BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ParquetError> {
        let before = self.batches.last().copied().unwrap_or(0);
        self.batches.push(before + self.waiting);
        self.offset.write()?;
        self.transaction_id.end_batch()?;
        self.ts.write()?;
        self.payload.end_batch()?;
        (self.waiting, self.waiting_bytes) = (0, 0);
        Ok(())
    }

    fn close(mut self) -> Result<(Vec<usize>, [ColumnCloseResult; 4]), ParquetError> {
        self.write()?;
        let closed = [
            self.offset.writer.close()?,
            self.transaction_id.close()?,
            self.ts.writer.close()?,
            self.payload.close()?,
        ];
        Ok((self.batches, closed))
    }
}

/// One column without empty values, and those that it is about to be given.
struct Column<'a, T: DataType> {
    writer: ColumnWriterImpl<'a, T>,
    values: Vec<T::T>,
}

impl<'a, T: DataType> Column<'a, T> {
    fn new(columns: &Columns, number: usize, content: &'a mut TrackedWrite<Vec<u8>>) -> Self {
        let description = columns.schema.column(number);
        let pages = Box::new(SerializedPageWriter::new(content));
        let properties = Arc::clone(&columns.properties);
        Self {
            writer: get_typed_column_writer(get_column_writer(description, properties, pages)),
            values: Vec::with_capacity(PARQUET_BATCH_ROWS),
        }
    }

    fn write(&mut self) -> Result<(), ParquetError> {
        self.writer.write_batch(&self.values, None, None)?;
        self.values.clear();
        Ok(())
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
fn transaction_id<'a>(record: &Record<'a>) -> Cow<'a, [u8]> {
    let escaped = record.transaction_id;
    if !record.escaped {
        return escaped.into();
    }
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
