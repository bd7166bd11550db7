//! A column of texts: their lengths and bytes, one after the other, in pages that are compressed each by
//! itself.
//!
//! Its pages are those that the library's own writer of columns makes, byte for byte, which tests hold them
//! to. Here a text is copied once, from where it lies into the page that is compressed: that writer takes values
//! that it shares, counts who does for each of them, and copies each page once more to put it together.

use std::io;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, Encoding, EncodingMask, PageType};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageEncodingStats};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk;

use super::levels::{append_levels, levels_most_bytes};
use crate::limits::{PARQUET_BATCH_ROWS, PARQUET_PAGE_BYTES, PARQUET_PAGE_ROWS, ZSTD_LEVEL};

/// What stands before a text: its length.
const LENGTH: usize = size_of::<u32>();
/// Room before the texts of a page for its levels. A page ends with the batch that fills it.
const LEVELS: usize = levels_most_bytes(PARQUET_PAGE_ROWS + PARQUET_BATCH_ROWS);

/// One column of texts of a row group.
pub(super) struct Texts<'a> {
    description: ColumnDescPtr,
    codec: Codec,
    compressor: Compressor,
    pages: SerializedPageWriter<'a, Vec<u8>>,
    /// [`LEVELS`] of free room, and the texts that are in no page yet, each behind its length.
    content: Vec<u8>,
    /// The rows that are in no page yet.
    rows: usize,
    /// Which of them have a text, where a row may be without one.
    present: Option<Vec<bool>>,
    /// Where the batch that is being filled begins among them.
    batch: Place,
    total: Total,
    levels: Vec<u8>,
    compressed: Vec<u8>,
}

/// A place between two rows, and between their texts.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    byte: usize,
}

const START: Place = Place {
    row: 0,
    byte: LEVELS,
};

/// What the pages of a column come to, with their headers.
#[derive(Default)]
struct Total {
    pages: i32,
    rows: u64,
    bytes: u64,
    compressed: u64,
    uncompressed: u64,
    first: Option<u64>,
}

impl<'a> Texts<'a> {
    /// An empty column, whose pages go to `to`.
    pub(super) fn new(
        description: ColumnDescPtr,
        properties: &WriterProperties,
        to: &'a mut TrackedWrite<Vec<u8>>,
    ) -> Result<Self, ParquetError> {
        let codec = properties.compression(description.path());
        let optional = description.max_def_level() > 0;
        Ok(Self {
            description,
            codec,
            compressor: Compressor::new(codec)?,
            pages: SerializedPageWriter::new(to),
            content: vec![0; LEVELS],
            rows: 0,
            present: optional.then(Vec::new),
            batch: START,
            total: Total::default(),
            levels: Vec::new(),
            compressed: Vec::new(),
        })
    }

    /// Appends a row with `text`. A row without one must be of an optional column.
    pub(super) fn push(&mut self, text: Option<&[u8]>) {
        self.rows += 1;
        if let Some(present) = &mut self.present {
            present.push(text.is_some());
        }
        if let Some(text) = text {
            // No record is as long as what fits.
            let length = text.len() as u32;
            self.content.extend_from_slice(&length.to_le_bytes());
            self.content.extend_from_slice(text);
        }
    }

    /// Ends a batch of rows, and with it the page that it fills. A page ends within it only where its texts
    /// alone are longer than one.
    pub(super) fn end_batch(&mut self) -> Result<(), ParquetError> {
        let step = self.step();
        let (mut page, mut at) = (START, self.batch);
        while at.row < self.rows {
            at = self.after(at, step);
            let rows = at.row - page.row;
            if rows >= PARQUET_PAGE_ROWS || at.byte - page.byte >= PARQUET_PAGE_BYTES {
                self.write_page(page, at)?;
                page = at;
            }
        }
        self.rows -= page.row;
        if let Some(present) = &mut self.present {
            present.drain(..page.row);
        }
        self.content.drain(LEVELS..page.byte);
        self.batch = self.end();
        Ok(())
    }

    /// Ends the column.
    pub(super) fn close(mut self) -> Result<ColumnCloseResult, ParquetError> {
        self.end_batch()?;
        if self.rows > 0 {
            self.write_page(START, self.end())?;
        }
        self.pages.close()?;
        let total = self.total;
        let pages = PageEncodingStats {
            page_type: PageType::DATA_PAGE,
            encoding: Encoding::PLAIN,
            count: total.pages,
        };
        let encodings = [Encoding::PLAIN, Encoding::RLE];
        let metadata = ColumnChunkMetaData::builder(self.description)
            .set_compression(self.codec)
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(vec![pages])
            .set_total_compressed_size(total.compressed as i64)
            .set_total_uncompressed_size(total.uncompressed as i64)
            .set_num_values(total.rows as i64)
            .set_data_page_offset(total.first.unwrap_or(0) as i64)
            .build()?;
        Ok(ColumnCloseResult {
            bytes_written: total.bytes,
            rows_written: total.rows,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        })
    }

    fn end(&self) -> Place {
        Place {
            row: self.rows,
            byte: self.content.len(),
        }
    }

    /// Rows of the batch after which to look whether the page is full: all of them, or as many as have a page's
    /// worth of texts at its start.
    fn step(&self) -> usize {
        let Place { row, byte } = self.batch;
        let rows = self.rows - row;
        if self.content.len() - byte <= PARQUET_PAGE_BYTES {
            return rows;
        }
        let texts = match &self.present {
            Some(present) => present[row..].iter().filter(|present| **present).count(),
            None => rows,
        };
        let (mut at, mut fit) = (byte, 0);
        while fit < texts && at - byte <= PARQUET_PAGE_BYTES {
            at = self.text_end(at);
            fit += 1;
        }
        (fit * rows).div_ceil(texts)
    }

    /// The place so many rows behind `at`, or the end.
    fn after(&self, at: Place, rows: usize) -> Place {
        if rows >= self.rows - at.row {
            return self.end();
        }
        let row = at.row + rows;
        let texts = match &self.present {
            Some(present) => present[at.row..row].iter().filter(|there| **there).count(),
            None => rows,
        };
        let byte = (0..texts).fold(at.byte, |byte, _| self.text_end(byte));
        Place { row, byte }
    }

    /// Where the text ends whose length stands at `at`.
    fn text_end(&self, at: usize) -> usize {
        let length = self.content[at..at + LENGTH].try_into();
        let length = u32::from_le_bytes(length.expect("four bytes"));
        at + LENGTH + length as usize
    }

    fn write_page(&mut self, from: Place, to: Place) -> Result<(), ParquetError> {
        let mut start = from.byte;
        if let Some(present) = &self.present {
            self.levels.clear();
            append_levels(&present[from.row..to.row], &mut self.levels);
            // Over what was written before, if this is not the first page of them.
            start -= self.levels.len();
            self.content[start..from.byte].copy_from_slice(&self.levels);
        }
        let page = &self.content[start..to.byte];
        self.compressor.compress(page, &mut self.compressed)?;
        let rows = to.row - from.row;
        let data = Page::DataPage {
            buf: Bytes::copy_from_slice(&self.compressed),
            num_values: rows as u32,
            encoding: Encoding::PLAIN,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let written = self
            .pages
            .write_page(CompressedPage::new(data, page.len()))?;
        self.total.add(&written);
        Ok(())
    }
}

impl Total {
    fn add(&mut self, page: &PageWriteSpec) {
        self.pages += 1;
        self.rows += u64::from(page.num_values);
        self.bytes += page.bytes_written;
        self.compressed += page.compressed_size as u64;
        self.uncompressed += page.uncompressed_size as u64;
        self.first.get_or_insert(page.offset);
    }
}

/// What compresses pages.
enum Compressor {
    Zstd(bulk::Compressor<'static>),
    Snappy(Box<snap::raw::Encoder>),
}

impl Compressor {
    fn new(codec: Codec) -> io::Result<Self> {
        Ok(match codec {
            Codec::SNAPPY => Self::Snappy(Box::new(snap::raw::Encoder::new())),
            _ => Self::Zstd(bulk::Compressor::new(ZSTD_LEVEL)?),
        })
    }

    /// Puts `page` into `to`, compressed, instead of what is there.
    fn compress(&mut self, page: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
        to.clear();
        match self {
            Self::Zstd(compressor) => {
                to.reserve(zstd::zstd_safe::compress_bound(page.len()));
                compressor.compress_to_buffer(page, to)?;
            }
            Self::Snappy(compressor) => {
                to.resize(snap::raw::max_compress_len(page.len()), 0);
                let length = compressor.compress(page, to).map_err(io::Error::other)?;
                to.truncate(length);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "texts_tests.rs"]
mod tests;
