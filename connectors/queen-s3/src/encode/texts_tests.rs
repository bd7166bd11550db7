use std::sync::Arc;

use parquet::column::writer::{get_column_writer, get_typed_column_writer};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedPageWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use proptest::prelude::*;

use super::*;
use crate::encode::testing::properties;
use crate::lake::Compression;

type Row = Option<Vec<u8>>;

fn description(optional: bool) -> ColumnDescPtr {
    let repetition = if optional { "optional" } else { "required" };
    let schema = format!("message m {{ {repetition} binary payload (STRING); }}");
    let schema = parse_message_type(&schema).expect("a schema");
    SchemaDescriptor::new(Arc::new(schema)).column(0)
}

/// The bytes of a column, and what the library is told of it, by its own writer.
fn expected(compression: Compression, optional: bool, batches: &[&[Row]]) -> (Vec<u8>, String) {
    let mut content = TrackedWrite::new(Vec::new());
    let pages = Box::new(SerializedPageWriter::new(&mut content));
    let writer = get_column_writer(description(optional), properties(compression), pages);
    let mut writer = get_typed_column_writer::<ByteArrayType>(writer);
    for batch in batches {
        let texts: Vec<ByteArray> = batch.iter().flatten().cloned().map(Into::into).collect();
        let levels: Vec<i16> = batch.iter().map(|row| i16::from(row.is_some())).collect();
        let levels = optional.then_some(&levels[..]);
        writer.write_batch(&texts, levels, None).expect("it writes");
    }
    let close = writer.close().expect("it ends");
    (
        content.into_inner().expect("the bytes"),
        format!("{close:?}"),
    )
}

fn written(compression: Compression, optional: bool, batches: &[&[Row]]) -> (Vec<u8>, String) {
    let mut content = TrackedWrite::new(Vec::new());
    let properties = properties(compression);
    let mut texts =
        Texts::new(description(optional), &properties, &mut content).expect("a compressor");
    for batch in batches {
        batch.iter().for_each(|row| texts.push(row.as_deref()));
        texts.end_batch().expect("it writes");
    }
    let close = texts.close().expect("it ends");
    (
        content.into_inner().expect("the bytes"),
        format!("{close:?}"),
    )
}

fn hold(optional: bool, rows: &[Row], batch: usize) {
    let batches: Vec<_> = rows.chunks(batch).collect();
    for compression in [Compression::Zstd, Compression::Snappy] {
        let (content, close) = written(compression, optional, &batches);
        let (expected, told) = expected(compression, optional, &batches);
        assert_eq!(close, told, "{compression} {optional} {batch}");
        assert!(content == expected, "{compression} {optional} {batch}");
    }
}

fn text(length: usize, seed: usize) -> Row {
    Some(
        (0..length)
            .map(|at| b'a' + ((at * seed) % 23) as u8)
            .collect(),
    )
}

#[test]
fn pages_are_the_librarys_where_texts_are_short() {
    let rows: Vec<_> = (0..70_000).map(|row| text(row % 90, row)).collect();
    hold(false, &rows, PARQUET_BATCH_ROWS);
    // Without empty rows, with some in places that do not repeat, in long runs, and alone.
    for empty in [
        |_: usize| false,
        |row: usize| row.is_multiple_of(7) || row % 31 < 3,
        |row: usize| (row / 900).is_multiple_of(2),
        |_: usize| true,
    ] {
        let rows = rows.iter().enumerate();
        let rows = rows.map(|(row, text)| text.clone().filter(|_| !empty(row)));
        hold(true, &rows.collect::<Vec<_>>(), PARQUET_BATCH_ROWS);
    }
}

#[test]
fn pages_are_the_librarys_where_a_batch_is_longer_than_one() {
    for length in [2_000, 100_000, PARQUET_PAGE_BYTES - LENGTH, 3 << 20] {
        let count = (20 << 20) / length;
        let rows: Vec<_> = (0..count)
            .map(|row| text(length + row % 3 - 1, row))
            .collect();
        let some = |row: usize| rows[row].clone().filter(|_| !row.is_multiple_of(3));
        let some: Vec<_> = (0..count).map(some).collect();
        for batch in [PARQUET_BATCH_ROWS, 5, 1] {
            hold(false, &rows, batch);
            hold(true, &some, batch);
        }
    }
}

#[test]
fn levels_of_any_rows_fit_before_their_page() {
    let rows = PARQUET_PAGE_ROWS + PARQUET_BATCH_ROWS;
    // Runs of eight, groups and runs in turn, and one run.
    for present in [
        |row: usize| (row / 8).is_multiple_of(2),
        |row: usize| row.is_multiple_of(16),
        |row: usize| row.is_multiple_of(2),
        |_: usize| true,
    ] {
        let present: Vec<_> = (0..rows).map(present).collect();
        let mut levels = Vec::new();
        append_levels(&present, &mut levels);
        assert!(levels.len() <= LEVELS, "{} bytes", levels.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pages_are_the_librarys_whatever_the_rows_are(
        lengths in prop::collection::vec(
            prop_oneof![8 => Just(None), 16 => (0_usize..40).prop_map(Some), 1 => (0_usize..200_000).prop_map(Some)],
            0..400,
        ),
        times in 1_usize..60,
        batch in 1_usize..=PARQUET_BATCH_ROWS,
    ) {
        let rows: Vec<_> = (0..times)
            .flat_map(|_| &lengths)
            .scan(0, |bytes, length| {
                *bytes += length.unwrap_or(0);
                (*bytes < 30 << 20).then_some(length)
            })
            .enumerate()
            .map(|(row, length)| text(length.unwrap_or(0), row).filter(|_| length.is_some()))
            .collect();
        hold(true, &rows, batch);
        let full: Vec<_> = rows.into_iter().map(|row| Some(row.unwrap_or_default())).collect();
        hold(false, &full, batch);
    }
}
