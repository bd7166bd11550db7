use std::iter::repeat_n;
use std::sync::Arc;

use parquet::column::writer::{get_column_writer, get_typed_column_writer};
use parquet::data_type::ByteArrayType;
use parquet::file::writer::SerializedPageWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use proptest::prelude::*;

use super::*;
use crate::encode::testing::properties;
use crate::lake::Compression;

fn description() -> ColumnDescPtr {
    let schema = parse_message_type("message m { required binary partition (STRING); }");
    SchemaDescriptor::new(Arc::new(schema.expect("a schema"))).column(0)
}

/// The bytes of the column, and what the library is told of it, by its own writer.
fn expected(
    compression: Compression,
    runs: &[(String, usize)],
    batches: &[usize],
) -> (Vec<u8>, String) {
    let mut content = TrackedWrite::new(Vec::new());
    let pages = Box::new(SerializedPageWriter::new(&mut content));
    let writer = get_column_writer(description(), properties(compression), pages);
    let mut writer = get_typed_column_writer::<ByteArrayType>(writer);
    let rows: Vec<ByteArray> = runs
        .iter()
        .flat_map(|(name, rows)| repeat_n(ByteArray::from(name.as_str()), *rows))
        .collect();
    let mut start = 0;
    for end in batches {
        let batch = &rows[start..*end];
        writer.write_batch(batch, None, None).expect("it writes");
        start = *end;
    }
    let close = writer.close().expect("it ends");
    (
        content.into_inner().expect("the bytes"),
        format!("{close:?}"),
    )
}

fn names(runs: &[(String, usize)]) -> Names {
    let mut names = Names::default();
    for (name, rows) in runs {
        names.push(&ByteArray::from(name.as_str()), *rows);
    }
    names
}

/// Ends of batches of the `sizes` by turns, what is left, and sometimes an empty one.
fn batches(rows: usize, sizes: &[usize]) -> Vec<usize> {
    let mut ends = vec![];
    let mut at = 0;
    for size in sizes.iter().cycle() {
        at = rows.min(at + size);
        ends.push(at);
        if at == rows {
            if ends.len().is_multiple_of(2) {
                ends.push(rows);
            }
            return ends;
        }
    }
    ends
}

fn hold(runs: &[(String, usize)], sizes: &[usize]) {
    let rows = runs.iter().map(|(_, rows)| rows).sum();
    let batches = batches(rows, sizes);
    let names = names(runs);
    assert!(names.fit());
    for compression in [Compression::Zstd, Compression::Snappy] {
        let mut content = TrackedWrite::new(Vec::new());
        let close = names.encode(
            &batches,
            description(),
            &properties(compression),
            &mut content,
        );
        let close = format!("{:?}", close.expect("it encodes"));
        let (expected, told) = expected(compression, runs, &batches);
        assert_eq!(close, told, "{compression}");
        let content = content.into_inner().expect("the bytes");
        assert!(content == expected, "{compression}");
    }
}

fn name(number: usize) -> String {
    format!("device/{number:06}")
}

#[test]
fn pages_are_the_librarys_from_one_name_to_a_hundred_thousand() {
    for rows_of_each in [1, 3, 7, 8, 9, 100, 345, 30_000, 100_000] {
        let runs: Vec<_> = (0..100_000 / rows_of_each)
            .map(|number| (name(number), rows_of_each))
            .collect();
        hold(&runs, &[PARQUET_BATCH_ROWS]);
    }
    hold(&[(String::new(), 1)], &[1]);
}

#[test]
fn a_row_group_ends_with_its_last_page_where_no_row_is_left() {
    hold(&[(name(1), PARQUET_PAGE_ROWS)], &[PARQUET_PAGE_ROWS / 20]);
    hold(&[(name(1), 5)], &[3, 2]);
}

#[test]
fn names_fit_that_the_librarys_dictionary_takes() {
    let runs = |count: usize, length: usize| -> Vec<_> {
        let names = (0..count).map(|number| format!("{number:0length$}"));
        names.map(|name| (name, 1)).collect()
    };
    let most = (PARQUET_DICTIONARY_PAGE_BYTES - 1) / (LENGTH + 1_000) - PARQUET_BATCH_ROWS;
    hold(&runs(most, 1_000), &[PARQUET_BATCH_ROWS]);
    assert!(!names(&runs(most + 1, 1_000)).fit());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pages_are_the_librarys_whatever_the_rows_are(
        lengths in prop::collection::vec(prop_oneof![8 => 1_usize..12, 1 => 1_usize..3_000], 1..600),
        times in 1_usize..20,
        sizes in prop::collection::vec(1_usize..=PARQUET_BATCH_ROWS, 1..4),
    ) {
        let lengths = (0..times).flat_map(|_| &lengths).enumerate();
        let runs: Vec<_> = lengths
            .scan(0, |rows, (number, length)| {
                *rows += length;
                (*rows < 60_000).then(|| (name(number), *length))
            })
            .collect();
        hold(&runs, &sizes);
    }
}
