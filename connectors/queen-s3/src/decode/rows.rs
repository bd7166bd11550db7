//! Parquet objects, read row by row.

use std::borrow::Cow;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::pages::{Claims, check_footer};
use super::{Found, ReadError, Seen};
use crate::encode::append_line;
use crate::limits::PARQUET_BATCH_ROWS;
use crate::time::Micros;

/// Which columns are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Those that tell which record a row is.
    Identity,
    /// All of them.
    All,
}

/// The records of a Parquet object, in its order.
pub struct Rows {
    reader: SerializedFileReader<File>,
    claims: Claims,
    columns: Columns,
    /// The next row group.
    group: usize,
    open: Option<Group>,
    /// Rows of `open` that are decoded, and the next one of them to hand out.
    batch: Batch,
    at: usize,
    number: u64,
}

type Text = ColumnReaderImpl<ByteArrayType>;
type Integers = ColumnReaderImpl<Int64Type>;

struct Group {
    partition: Text,
    offset: Integers,
    ts: Integers,
    /// Transaction id and payload.
    content: Option<(Text, Text)>,
    /// Rows that it claims and that were not read yet.
    left: usize,
}

/// Reads with the library, which asserts what it expects of bytes that anybody may have written. Nothing
/// is read on with after an error.
fn guarded<T>(read: impl FnOnce() -> Result<T, ReadError>) -> Result<T, ReadError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text: String = text.unwrap_or_default().chars().take(200).collect();
        Err(ReadError::Claim(format!("it is damaged: {text}")))
    })
}

#[derive(Default)]
struct Batch {
    partitions: Vec<ByteArray>,
    offsets: Vec<i64>,
    instants: Vec<i64>,
    transaction_ids: Vec<ByteArray>,
    payloads: Vec<Option<ByteArray>>,
}

impl Rows {
    /// Reads `file`.
    ///
    /// # Errors
    ///
    /// For a file that is no Parquet.
    pub fn new(file: File, columns: Columns) -> Result<Self, ReadError> {
        let length = check_footer(&file)?;
        let claims = Claims::new(file.try_clone()?, length);
        Ok(Self {
            reader: guarded(|| Ok(SerializedFileReader::new(file)?))?,
            claims,
            columns,
            group: 0,
            open: None,
            batch: Batch::default(),
            at: 0,
            number: 0,
        })
    }

    /// The next record, `None` after the last.
    ///
    /// # Errors
    ///
    /// At the first row that does not read.
    pub fn next_record(&mut self) -> Result<Option<Found<'_>>, ReadError> {
        while self.at == self.batch.partitions.len() {
            if !guarded(|| self.decode())? {
                return Ok(None);
            }
        }
        let at = self.at;
        self.at += 1;
        self.number += 1;
        let number = self.number;
        let refuse = |error: ParquetError| ReadError::Row {
            number,
            detail: error.to_string(),
        };
        let batch = &self.batch;
        let seen = Seen {
            partition: batch.partitions[at].as_utf8().map_err(refuse)?,
            offset: batch.offsets[at],
            ts: Micros(batch.instants[at]),
        };
        let mut line = Vec::new();
        if self.columns == Columns::All {
            let payload = batch.payloads[at]
                .as_ref()
                .map_or(&b"null"[..], |p| p.data());
            let transaction_id = batch.transaction_ids[at].as_utf8().map_err(refuse)?;
            append_line(&mut line, &seen, transaction_id, payload);
        }
        Ok(Some(Found {
            seen,
            line: Cow::Owned(line),
        }))
    }

    /// Decodes the next rows; `false` when there are none.
    fn decode(&mut self) -> Result<bool, ReadError> {
        self.at = 0;
        loop {
            if self.open.is_none() {
                if self.group == self.reader.num_row_groups() {
                    self.batch.clear();
                    return Ok(false);
                }
                self.open = Some(self.open_group(self.group)?);
                self.group += 1;
            }
            let number = self.number;
            if let Some(open) = &mut self.open
                && self.batch.fill(open, number)?
            {
                return Ok(true);
            }
            self.open = None;
        }
    }

    fn open_group(&mut self, group: usize) -> Result<Group, ReadError> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let group = self.reader.get_row_group(group)?;
        let index = |name: &'static str| {
            let columns = schema.columns();
            let found = columns.iter().position(|c| c.path().string() == name);
            found.ok_or(ReadError::Column(name))
        };
        let wanted: &[&'static str] = match self.columns {
            Columns::Identity => &["partition", "offset", "ts"],
            Columns::All => &["partition", "offset", "ts", "transaction_id", "payload"],
        };
        let wanted: Result<Vec<usize>, ReadError> = wanted.iter().map(|name| index(name)).collect();
        let left = self.claims.check(group.metadata(), &wanted?)?;
        let text = |name| match group.get_column_reader(index(name)?)? {
            ColumnReader::ByteArrayColumnReader(reader) => Ok(reader),
            _ => Err(ReadError::Column(name)),
        };
        let integers = |name| match group.get_column_reader(index(name)?)? {
            ColumnReader::Int64ColumnReader(reader) => Ok(reader),
            _ => Err(ReadError::Column(name)),
        };
        Ok(Group {
            partition: text("partition")?,
            offset: integers("offset")?,
            ts: integers("ts")?,
            content: match self.columns {
                Columns::Identity => None,
                Columns::All => Some((text("transaction_id")?, text("payload")?)),
            },
            left,
        })
    }
}

impl Batch {
    fn clear(&mut self) {
        self.partitions.clear();
        self.offsets.clear();
        self.instants.clear();
        self.transaction_ids.clear();
        self.payloads.clear();
    }

    /// Decodes the next rows of `group`; `false` when there are none. `number`: rows before them.
    fn fill(&mut self, group: &mut Group, number: u64) -> Result<bool, ReadError> {
        const ROWS: usize = PARQUET_BATCH_ROWS;
        self.clear();
        group
            .partition
            .read_records(ROWS, None, None, &mut self.partitions)?;
        group
            .offset
            .read_records(ROWS, None, None, &mut self.offsets)?;
        group
            .ts
            .read_records(ROWS, None, None, &mut self.instants)?;
        let mut lengths = vec![self.offsets.len(), self.instants.len()];
        if let Some((transaction_id, payload)) = &mut group.content {
            transaction_id.read_records(ROWS, None, None, &mut self.transaction_ids)?;
            let (mut levels, mut payloads) = (Vec::new(), Vec::new());
            payload.read_records(ROWS, Some(&mut levels), None, &mut payloads)?;
            let mut payloads = payloads.into_iter();
            self.payloads.extend(levels.iter().map(|level| match level {
                0 => None,
                _ => payloads.next(),
            }));
            lengths.extend([self.transaction_ids.len(), self.payloads.len()]);
        }
        if lengths
            .iter()
            .any(|length| *length != self.partitions.len())
        {
            return Err(ReadError::Row {
                number: number + 1,
                detail: "its columns have different lengths".to_owned(),
            });
        }
        let rows = self.partitions.len();
        if rows > group.left || (rows == 0 && group.left > 0) {
            return Err(ReadError::Row {
                number: number + 1,
                detail: "its row group claims another number of rows".to_owned(),
            });
        }
        group.left -= rows;
        Ok(rows > 0)
    }
}
