//! A column of texts: their lengths and bytes, one after the other, in pages that are compressed each by
//! itself.
//!
//! Its pages are those that the library's own writer of columns makes, byte for byte, which tests hold them
//! to. Here a text is copied once, from where it lies into the page that is compressed: that writer takes values
//! that it shares, counts who does for each of them, and copies each page once more to put it together.

use parquet::basic::Encoding;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::TrackedWrite;
use parquet::schema::types::ColumnDescPtr;

use super::hybrid::{append_levels, levels_most_bytes};
use super::pages::{Pages, Told};
use crate::limits::{PARQUET_BATCH_ROWS, PARQUET_PAGE_BYTES, PARQUET_PAGE_ROWS};

/// What stands before a text: its length.
const LENGTH: usize = size_of::<u32>();
/// Room before the texts of a page for its levels. A page ends with the batch that fills it.
const LEVELS: usize = levels_most_bytes(PARQUET_PAGE_ROWS + PARQUET_BATCH_ROWS);

/// One column of texts of a row group.
pub(super) struct Texts<'a> {
    pages: Pages<'a>,
    /// [`LEVELS`] of free room, and the texts that are in no page yet, each behind its length.
    content: Vec<u8>,
    /// The rows that are in no page yet.
    rows: usize,
    /// Which of them have a text, where a row may be without one.
    present: Option<Vec<bool>>,
    /// Where the batch that is being filled begins among them.
    batch: Place,
    levels: Vec<u8>,
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

impl<'a> Texts<'a> {
    /// An empty column, whose pages go to `to`.
    pub(super) fn new(
        description: ColumnDescPtr,
        properties: &WriterProperties,
        to: &'a mut TrackedWrite<Vec<u8>>,
    ) -> Result<Self, ParquetError> {
        let optional = description.max_def_level() > 0;
        Ok(Self {
            pages: Pages::new(description, properties, to)?,
            content: vec![0; LEVELS],
            rows: 0,
            present: optional.then(Vec::new),
            batch: START,
            levels: Vec::new(),
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
        self.pages.close(Told::default())
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
        self.pages.write(page, to.row - from.row, Encoding::PLAIN)
    }
}

#[cfg(test)]
#[path = "texts_tests.rs"]
mod tests;
