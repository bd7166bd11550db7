//! The column of partition names: a dictionary of them, and for each row the number of its name.
//!
//! Records come partition by partition, so that a name is looked at once for all of its records. The pages are
//! those of the library's own writer of columns, which looks at each, byte for byte; tests hold them to it.

use parquet::basic::Encoding;
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::TrackedWrite;
use parquet::schema::types::ColumnDescPtr;

use super::hybrid::append_runs;
use super::pages::{Pages, Told};
use crate::limits::{PARQUET_BATCH_ROWS, PARQUET_DICTIONARY_PAGE_BYTES, PARQUET_PAGE_ROWS};

/// What stands before a name in the dictionary: its length.
const LENGTH: usize = size_of::<u32>();

/// Names, and how many rows in turn have each of them.
#[derive(Default)]
pub(super) struct Names {
    runs: Vec<(ByteArray, usize)>,
    dictionary_bytes: usize,
    longest: usize,
}

impl Names {
    /// Appends `rows` rows with `name`. All rows of a name come one after the other.
    pub(super) fn push(&mut self, name: &ByteArray, rows: usize) {
        match self.runs.last_mut() {
            Some((last, of_last)) if last == name => *of_last += rows,
            _ => {
                self.dictionary_bytes += LENGTH + name.len();
                self.longest = self.longest.max(name.len());
                self.runs.push((name.clone(), rows));
            }
        }
    }

    /// The runs.
    pub(super) fn runs(&self) -> &[(ByteArray, usize)] {
        &self.runs
    }

    /// Whether all names are in the dictionary of such a column, however many rows have them. Else the last ones
    /// are written out.
    pub(super) fn fit(&self) -> bool {
        let batch = PARQUET_BATCH_ROWS * (LENGTH + self.longest);
        self.dictionary_bytes + batch < PARQUET_DICTIONARY_PAGE_BYTES
    }

    /// Encodes names that [`fit`](Self::fit) into `to`. A page ends with the batch that fills it; `batches` are the
    /// rows before which each ends.
    pub(super) fn encode(
        &self,
        batches: &[usize],
        description: ColumnDescPtr,
        properties: &WriterProperties,
        to: &mut TrackedWrite<Vec<u8>>,
    ) -> Result<ColumnCloseResult, ParquetError> {
        let mut pages = Pages::new(description, properties, to)?;
        let mut content = Vec::with_capacity(self.dictionary_bytes);
        for (name, _) in &self.runs {
            content.extend_from_slice(&(name.len() as u32).to_le_bytes());
            content.extend_from_slice(name.data());
        }
        pages.write_dictionary(&content, self.runs.len())?;
        let (mut runs, mut left) = (self.runs.iter().zip(0_u32..), 0);
        let mut number = 0;
        let (mut numbers, mut start) = (Vec::new(), 0);
        for (at, end) in batches.iter().enumerate() {
            let rows = end - start;
            if rows == 0 || rows < PARQUET_PAGE_ROWS && at + 1 < batches.len() {
                continue;
            }
            while numbers.len() < rows {
                if left == 0 {
                    let Some(((_, rows), next)) = runs.next() else {
                        break;
                    };
                    (left, number) = (*rows, next);
                }
                let taken = left.min(rows - numbers.len());
                numbers.resize(numbers.len() + taken, number);
                left -= taken;
            }
            // Of the numbers that there are by then.
            let width = u32::BITS - number.leading_zeros();
            content.clear();
            content.push(width as u8);
            append_runs(&numbers, width, &mut content);
            pages.write(&content, rows, Encoding::RLE_DICTIONARY)?;
            numbers.clear();
            start = *end;
        }
        pages.close(self.told())
    }

    fn told(&self) -> Told {
        let names = || self.runs.iter().map(|(name, _)| name);
        let least = names().min_by_key(|name| name.data()).cloned();
        let greatest = names().max_by_key(|name| name.data()).cloned();
        let statistics = ValueStatistics::new(least, greatest, None, Some(0), false)
            .with_backwards_compatible_min_max(false);
        let lengths = self.runs.iter().map(|(name, rows)| name.len() * rows);
        Told {
            statistics: Some(Statistics::ByteArray(statistics)),
            text_bytes: Some(lengths.sum::<usize>() as i64),
        }
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
