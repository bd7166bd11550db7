//! What a Parquet file claims of itself, held to what the lake's files can be before anything is made
//! room for: the library reserves memory on the word of a footer and of page headers, and one row may
//! stand for two thousand million.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parquet::basic::Type;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

use super::ReadError;
use crate::limits::{
    PARQUET_DICTIONARY_MOST_BYTES, PARQUET_FOOTER_MOST_BYTES, PARQUET_HEADER_MOST_BYTES,
    PARQUET_NUMBERS_MOST_BYTES, PARQUET_TEXTS_MOST_BYTES, ROW_GROUP_RECORDS,
};

/// What ends every Parquet file: the footer's length, and this.
const MAGIC: &[u8; 4] = b"PAR1";
/// Least length of a value in a page of texts that is not compressed: that of its own length.
const TEXT_LEAST_BYTES: u64 = 4;
/// Structs within structs of a page header; the lake's have three.
const NESTED: u32 = 16;

fn refuse(detail: impl Into<String>) -> ReadError {
    ReadError::Claim(detail.into())
}

/// The length of `file`, whose footer is no longer than one of the lake's.
pub(super) fn check_footer(file: &File) -> Result<u64, ReadError> {
    let length = file.metadata()?.len();
    let mut tail = [0; 8];
    let start = length
        .checked_sub(tail.len() as u64)
        .ok_or_else(|| refuse("it is too short"))?;
    file.read_exact_at(&mut tail, start)?;
    let (footer, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err(refuse("it does not end as Parquet does"));
    }
    let footer = u32::from_le_bytes(footer.try_into().expect("four bytes"));
    if footer as usize > PARQUET_FOOTER_MOST_BYTES || u64::from(footer) > start {
        return Err(refuse(format!("its footer is {footer} bytes long")));
    }
    Ok(length)
}

/// Checks the claims of row groups, in the file's order.
#[derive(Debug)]
pub(super) struct Claims {
    file: File,
    length: u64,
    /// Where what was checked last ends: each chunk lies behind the one before, or a few bytes
    /// would serve any number of groups.
    end: u64,
}

impl Claims {
    pub(super) fn new(file: File, length: u64) -> Self {
        Self {
            file,
            length,
            end: 0,
        }
    }

    /// How many rows `group` claims, once it and the chunks of `columns` are as the lake's can be.
    pub(super) fn check(
        &mut self,
        group: &RowGroupMetaData,
        columns: &[usize],
    ) -> Result<usize, ReadError> {
        let rows = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
        if rows > ROW_GROUP_RECORDS {
            let claimed = group.num_rows();
            return Err(refuse(format!("a row group of {claimed} rows")));
        }
        let mut chunks = Vec::with_capacity(columns.len());
        for column in columns {
            let chunk = group.column(*column);
            chunks.push((self.range(chunk)?, chunk.column_type()));
        }
        chunks.sort_unstable_by_key(|((start, _), _)| *start);
        for ((start, end), column) in chunks {
            if start < self.end {
                return Err(refuse("its column chunks lie in one another"));
            }
            self.end = end;
            self.check_pages(start, end, column)?;
        }
        Ok(rows)
    }

    /// Where a chunk begins and ends.
    fn range(&self, chunk: &ColumnChunkMetaData) -> Result<(u64, u64), ReadError> {
        let start = chunk
            .dictionary_page_offset()
            .unwrap_or_else(|| chunk.data_page_offset());
        let bounds = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
        let end = match bounds {
            (Ok(start), Ok(length)) => start.checked_add(length).map(|end| (start, end)),
            _ => None,
        };
        end.filter(|(_, end)| *end <= self.length)
            .ok_or_else(|| refuse("a column chunk lies outside of it"))
    }

    fn check_pages(&self, mut at: u64, end: u64, column: Type) -> Result<(), ReadError> {
        while at < end {
            let header = self.header(at, end)?;
            let most = match (header.dictionary, column) {
                (Some(_), _) => PARQUET_DICTIONARY_MOST_BYTES,
                (None, Type::INT64) => PARQUET_NUMBERS_MOST_BYTES,
                (None, _) => PARQUET_TEXTS_MOST_BYTES,
            };
            if header.bytes > most as u64 {
                let bytes = header.bytes;
                return Err(refuse(format!("a page of {bytes} bytes")));
            }
            if let Some(values) = header.dictionary
                && values > header.bytes / TEXT_LEAST_BYTES
            {
                return Err(refuse(format!("a dictionary of {values} values")));
            }
            at = at
                .checked_add(header.length + header.stored)
                .filter(|next| *next <= end)
                .ok_or_else(|| refuse("a page lies outside of its column chunk"))?;
        }
        Ok(())
    }

    fn header(&self, at: u64, end: u64) -> Result<PageHeader, ReadError> {
        let length = (end - at).min(PARQUET_HEADER_MOST_BYTES as u64) as usize;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.file.read_at(&mut bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        PageHeader::read(&bytes[..filled]).ok_or_else(|| refuse("a page header does not read"))
    }
}

/// What a page header claims.
struct PageHeader {
    /// Its own length.
    length: u64,
    /// The page's length, decompressed.
    bytes: u64,
    /// Its length in the file.
    stored: u64,
    /// Values of a dictionary, of the page that is one.
    dictionary: Option<u64>,
}

impl PageHeader {
    /// Reads a `PageHeader` of Parquet's Thrift definition, fields 2, 3 and 7.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut compact = Compact(bytes);
        let (mut raw, mut stored, mut dictionary) = (None, None, None);
        let mut last = 0;
        while let Some((id, kind)) = compact.field(last)? {
            last = id;
            match (id, kind) {
                (2, Compact::I32) => raw = Some(u64::try_from(compact.integer()?).ok()?),
                (3, Compact::I32) => stored = Some(u64::try_from(compact.integer()?).ok()?),
                (7, Compact::STRUCT) => dictionary = Some(compact.dictionary()?),
                (_, kind) => compact.skip(kind, NESTED)?,
            }
        }
        Some(Self {
            length: (bytes.len() - compact.0.len()) as u64,
            bytes: raw?,
            stored: stored?,
            dictionary,
        })
    }
}

/// Thrift's compact protocol, as far as a page header needs it.
struct Compact<'a>(&'a [u8]);

impl Compact<'_> {
    const I32: u8 = 5;
    const STRUCT: u8 = 12;

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn pass(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// Id and kind of the next field of a struct, `None` at its end.
    #[expect(
        clippy::option_option,
        reason = "the outer one is that of every reader here: the bytes end"
    )]
    fn field(&mut self, last: i64) -> Option<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        let id = match head >> 4 {
            0 => self.integer()?,
            step => last.checked_add(i64::from(step))?,
        };
        Some(Some((id, head & 0x0f)))
    }

    /// The number of values that a `DictionaryPageHeader` claims, its field 1.
    fn dictionary(&mut self) -> Option<u64> {
        let mut values = None;
        let mut last = 0;
        while let Some((id, kind)) = self.field(last)? {
            last = id;
            match (id, kind) {
                (1, Self::I32) => values = Some(u64::try_from(self.integer()?).ok()?),
                (_, kind) => self.skip(kind, NESTED)?,
            }
        }
        values
    }

    fn skip(&mut self, kind: u8, nested: u32) -> Option<()> {
        let nested = nested.checked_sub(1)?;
        match kind {
            // True and false are their own values.
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.pass(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                for _ in 0..count {
                    match head & 0x0f {
                        // In a list a truth value takes a byte.
                        1 | 2 => self.pass(1)?,
                        kind => self.skip(kind, nested)?,
                    }
                }
                Some(())
            }
            Self::STRUCT => {
                let mut last = 0;
                while let Some((id, kind)) = self.field(last)? {
                    last = id;
                    self.skip(kind, nested)?;
                }
                Some(())
            }
            // No field of a page header is a map.
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
