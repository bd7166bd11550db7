//! The pages of one column, compressed each by itself, and what the file says of them.

use std::io;

use bytes::Bytes;
use parquet::basic::{Compression as Codec, Encoding, EncodingMask};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageEncodingStats};
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk;

use crate::limits::ZSTD_LEVEL;

/// Takes the pages of a column: at most one dictionary, before all others, and pages of one encoding.
pub(super) struct Pages<'a> {
    description: ColumnDescPtr,
    codec: Codec,
    compressor: Compressor,
    writer: SerializedPageWriter<'a, Vec<u8>>,
    compressed: Vec<u8>,
    encodings: Vec<PageEncodingStats>,
    dictionary: Option<u64>,
    first: Option<u64>,
    rows: u64,
    bytes: u64,
    compressed_bytes: u64,
    uncompressed_bytes: u64,
}

/// What a column says of its values beside its pages.
#[derive(Default)]
pub(super) struct Told {
    /// Statistics over all of them.
    pub(super) statistics: Option<Statistics>,
    /// How long its texts are without their lengths.
    pub(super) text_bytes: Option<i64>,
}

impl<'a> Pages<'a> {
    /// No page yet; what comes goes to `to`.
    pub(super) fn new(
        description: ColumnDescPtr,
        properties: &WriterProperties,
        to: &'a mut TrackedWrite<Vec<u8>>,
    ) -> Result<Self, ParquetError> {
        let codec = properties.compression(description.path());
        Ok(Self {
            description,
            codec,
            compressor: Compressor::new(codec)?,
            writer: SerializedPageWriter::new(to),
            compressed: Vec::new(),
            encodings: Vec::new(),
            dictionary: None,
            first: None,
            rows: 0,
            bytes: 0,
            compressed_bytes: 0,
            uncompressed_bytes: 0,
        })
    }

    /// Appends a page of `rows` rows.
    pub(super) fn write(
        &mut self,
        content: &[u8],
        rows: usize,
        encoding: Encoding,
    ) -> Result<(), ParquetError> {
        let page = Page::DataPage {
            buf: self.compressed(content)?,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let written = self.append(page, content.len(), encoding)?;
        self.first.get_or_insert(written.offset);
        self.rows += rows as u64;
        Ok(())
    }

    /// Appends the dictionary, of `values` values.
    pub(super) fn write_dictionary(
        &mut self,
        content: &[u8],
        values: usize,
    ) -> Result<(), ParquetError> {
        let page = Page::DictionaryPage {
            buf: self.compressed(content)?,
            num_values: values as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let written = self.append(page, content.len(), Encoding::PLAIN)?;
        self.dictionary = Some(written.offset);
        Ok(())
    }

    /// Ends the column.
    pub(super) fn close(mut self, told: Told) -> Result<ColumnCloseResult, ParquetError> {
        self.writer.close()?;
        let encodings = self.encodings.iter().map(|pages| &pages.encoding);
        // That of the levels, which even a column without any counts.
        let encodings = EncodingMask::new_from_encodings(encodings.chain([&Encoding::RLE]));
        let mut metadata = ColumnChunkMetaData::builder(self.description)
            .set_compression(self.codec)
            .set_encodings_mask(encodings)
            .set_page_encoding_stats(self.encodings)
            .set_total_compressed_size(self.compressed_bytes as i64)
            .set_total_uncompressed_size(self.uncompressed_bytes as i64)
            .set_num_values(self.rows as i64)
            .set_data_page_offset(self.first.unwrap_or(0) as i64)
            .set_dictionary_page_offset(self.dictionary.map(|offset| offset as i64))
            .set_unencoded_byte_array_data_bytes(told.text_bytes);
        if let Some(statistics) = told.statistics {
            metadata = metadata.set_statistics(statistics);
        }
        Ok(ColumnCloseResult {
            bytes_written: self.bytes,
            rows_written: self.rows,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        })
    }

    fn compressed(&mut self, content: &[u8]) -> io::Result<Bytes> {
        self.compressor.compress(content, &mut self.compressed)?;
        Ok(Bytes::copy_from_slice(&self.compressed))
    }

    fn append(
        &mut self,
        page: Page,
        content_bytes: usize,
        encoding: Encoding,
    ) -> Result<PageWriteSpec, ParquetError> {
        let page = CompressedPage::new(page, content_bytes);
        let page_type = page.page_type();
        let written = self.writer.write_page(page)?;
        self.bytes += written.bytes_written;
        self.compressed_bytes += written.compressed_size as u64;
        self.uncompressed_bytes += written.uncompressed_size as u64;
        match self.encodings.last_mut() {
            Some(pages) if pages.page_type == page_type => pages.count += 1,
            _ => self.encodings.push(PageEncodingStats {
                page_type,
                encoding,
                count: 1,
            }),
        }
        Ok(written)
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
