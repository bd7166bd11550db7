use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::record::RowAccessor;
use proptest::prelude::*;

use super::*;
use crate::encode::testing::{batch, chunks, parquet_spec as spec};
use crate::limits::PART_BYTES;

const TS: i64 = 1_788_516_221_918_204;

fn encode(compression: Compression, chunks: &[(&str, Chunk)]) -> (Bytes, ObjectSummary) {
    encode_with(2, compression, chunks)
}

fn encode_with(
    workers: usize,
    compression: Compression,
    chunks: &[(&str, Chunk)],
) -> (Bytes, ObjectSummary) {
    let mut encoder =
        ParquetEncoder::with_workers(&spec(compression), workers).expect("an encoder");
    let mut object = Vec::new();
    for (partition, chunk) in chunks {
        encoder.push(partition, chunk).expect("it encodes");
        while let Some(part) = encoder.take_part() {
            assert_eq!(part.len(), PART_BYTES);
            object.extend_from_slice(&part);
        }
    }
    let (pieces, summary) = encoder.finish().expect("it ends");
    pieces
        .iter()
        .for_each(|piece| object.extend_from_slice(piece));
    assert_eq!(summary.bytes, object.len() as u64);
    (object.into(), summary)
}

fn reader(object: &Bytes) -> SerializedFileReader<Bytes> {
    SerializedFileReader::new(object.clone()).expect("a Parquet file")
}

type Row = (String, i64, String, i64, Option<String>);

fn rows(object: &Bytes) -> Vec<Row> {
    let text = |result: parquet::errors::Result<&String>| result.expect("a text").clone();
    reader(object)
        .get_row_iter(None)
        .expect("rows")
        .map(|row| {
            let row = row.expect("a row");
            (
                text(row.get_string(0)),
                row.get_long(1).expect("an offset"),
                text(row.get_string(2)),
                row.get_timestamp_micros(3).expect("a ts"),
                row.get_string(4).ok().cloned(),
            )
        })
        .collect()
}

fn small() -> Vec<(&'static str, Chunk)> {
    let berlin = batch(&[
        (5, TS, "t-0", r#"{"order":1, "sum":12.50}"#),
        (6, TS, r"t-\u00e9", "null"),
    ]);
    let rome = batch(&[(0, TS - 9, "t-2", "\"null\"")]);
    vec![
        ("berlin", chunks(&berlin, 2)[0].clone()),
        ("rome/é", chunks(&rome, 1)[0].clone()),
    ]
}

#[test]
fn every_field_of_every_record_reads_back() {
    for compression in [Compression::Zstd, Compression::Snappy] {
        let (object, summary) = encode(compression, &small());
        assert_eq!(summary.records, 3);
        assert_eq!(
            rows(&object),
            [
                (
                    "berlin".into(),
                    5,
                    "t-0".into(),
                    TS,
                    Some(r#"{"order":1, "sum":12.50}"#.into())
                ),
                ("berlin".into(), 6, "t-é".into(), TS, None),
                (
                    "rome/é".into(),
                    0,
                    "t-2".into(),
                    TS - 9,
                    Some("\"null\"".into())
                ),
            ]
        );
    }
}

#[test]
fn the_file_says_what_the_lake_says_and_nothing_else() {
    let (object, _) = encode(Compression::Zstd, &small());
    let reader = reader(&object);
    let file = reader.metadata().file_metadata();
    assert_eq!(file.created_by(), Some("queen-s3"));
    assert_eq!(file.version(), 1);
    let pairs: Vec<_> = file
        .key_value_metadata()
        .expect("metadata")
        .iter()
        .map(|pair| (pair.key.as_str(), pair.value.as_deref()))
        .collect();
    assert_eq!(
        pairs,
        [
            ("queen.envelope", Some("1")),
            ("queen.queue", Some("orders"))
        ]
    );

    let columns = file.schema_descr().columns();
    let names: Vec<_> = columns.iter().map(|column| column.name()).collect();
    assert_eq!(
        names,
        ["partition", "offset", "transaction_id", "ts", "payload"]
    );
    let Some(LogicalType::Timestamp(ts)) = columns[3].logical_type_ref() else {
        panic!("{:?}", columns[3])
    };
    assert!(
        ts.is_adjusted_to_u_t_c && ts.unit == TimeUnit::MICROS,
        "{ts:?}"
    );
    let optional: Vec<_> = columns
        .iter()
        .map(|column| column.max_def_level())
        .collect();
    assert_eq!(optional, [0, 0, 0, 0, 1]);
}

#[test]
fn columns_carry_the_encodings_and_statistics_of_the_lake() {
    let (object, _) = encode(Compression::Snappy, &small());
    let reader = reader(&object);
    let group = reader.metadata().row_group(0);
    let column = |at: usize| group.column(at);
    for at in 0..5 {
        assert_eq!(column(at).compression(), Codec::SNAPPY);
    }
    assert!(column(0).dictionary_page_offset().is_some());
    for at in [1, 3] {
        let encodings: Vec<_> = column(at).encodings().collect();
        assert!(
            encodings.contains(&Encoding::DELTA_BINARY_PACKED),
            "{encodings:?}"
        );
        assert!(!encodings.contains(&Encoding::PLAIN), "{encodings:?}");
    }
    for at in [2, 4] {
        assert!(
            column(at)
                .encodings()
                .any(|encoding| encoding == Encoding::PLAIN)
        );
        assert!(column(at).dictionary_page_offset().is_none());
        assert!(
            column(at).statistics().is_none(),
            "{:?}",
            column(at).statistics()
        );
    }
    let Some(Statistics::ByteArray(partition)) = column(0).statistics() else {
        panic!("none")
    };
    let bounds = (partition.min_opt(), partition.max_opt());
    assert_eq!(bounds, (Some(&"berlin".into()), Some(&"rome/é".into())));
    let Some(Statistics::Int64(offset)) = column(1).statistics() else {
        panic!("none")
    };
    assert_eq!((offset.min_opt(), offset.max_opt()), (Some(&0), Some(&6)));
    let Some(Statistics::Int64(ts)) = column(3).statistics() else {
        panic!("none")
    };
    assert_eq!((ts.min_opt(), ts.max_opt()), (Some(&(TS - 9)), Some(&TS)));
    for at in 0..5 {
        assert_eq!(column(at).offset_index_offset(), None);
        assert_eq!(column(at).column_index_offset(), None);
        assert_eq!(column(at).bloom_filter_offset(), None);
    }
}

#[test]
fn a_row_group_ends_at_its_records_or_its_bytes() {
    let few: Vec<_> = (0..250_000).map(|offset| (offset, TS, "t", "1")).collect();
    let few = batch(&few);
    let (object, _) = encode(
        Compression::Zstd,
        &[("p", chunks(&few, 250_000)[0].clone())],
    );
    let sizes = |object: &Bytes| -> Vec<i64> {
        let reader = reader(object);
        reader
            .metadata()
            .row_groups()
            .iter()
            .map(|group| group.num_rows())
            .collect()
    };
    assert_eq!(sizes(&object), [100_000, 100_000, 50_000]);

    let payload = format!("\"{}\"", "x".repeat(MEBIBYTE));
    let large: Vec<_> = (0..70)
        .map(|offset| (offset, TS, "t", payload.as_str()))
        .collect();
    let large = batch(&large);
    let (object, _) = encode(Compression::Zstd, &[("p", chunks(&large, 70)[0].clone())]);
    // A line is a little longer than a mebibyte, so the 64th passes the limit.
    assert_eq!(sizes(&object), [64, 6]);
}

const MEBIBYTE: usize = 1 << 20;

#[test]
fn names_that_no_dictionary_takes_are_written_out() {
    let record = batch(&[(7, TS, "t", "1")]);
    let names: Vec<_> = (0..9_000).map(|number| format!("{number:01000}")).collect();
    let chunk = chunks(&record, 1)[0].clone();
    let window: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), chunk.clone()))
        .collect();
    let (object, _) = encode(Compression::Zstd, &window);
    let read = rows(&object).into_iter().map(|row| row.0);
    assert!(read.eq(names));
    let reader = reader(&object);
    let column = reader.metadata().row_group(0).column(0);
    let pages = column.page_encoding_stats_mask().expect("they are told");
    for encoding in [Encoding::RLE_DICTIONARY, Encoding::PLAIN] {
        assert!(pages.is_set(encoding), "{pages:?}");
    }
}

#[test]
fn a_finished_row_group_leaves_before_the_object_ends() {
    let mut state = 1_u64;
    let payload: String = (0..MEBIBYTE)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'!' + ((state >> 40) % 90) as u8).to_ascii_lowercase()
        })
        .filter(|character| !matches!(character, '"' | '\\'))
        .collect();
    let payload = format!("\"{payload}\"");
    let records: Vec<_> = (0..70)
        .map(|offset| (offset, TS, "t", payload.as_str()))
        .collect();
    let batch = batch(&records);
    // Each further worker lets one more row group be on its way.
    let mut encoder =
        ParquetEncoder::with_workers(&spec(Compression::Snappy), 1).expect("an encoder");
    encoder
        .push("p", &chunks(&batch, 70)[0])
        .expect("it encodes");
    assert!(
        encoder
            .take_part()
            .is_some_and(|part| part.len() == PART_BYTES)
    );
}

#[test]
fn workers_change_no_byte() {
    let records: Vec<_> = (0..350_000)
        .map(|offset| (offset, TS + offset / 7, "t", r#"{"visit":1}"#))
        .collect();
    let batch = batch(&records);
    let object = |workers| {
        let chunks = [
            ("berlin", chunks(&batch, 120_000)[0].clone()),
            ("rome", chunks(&batch, 350_000)[0].clone()),
        ];
        encode_with(workers, Compression::Zstd, &chunks)
    };
    let alone = object(1);
    assert_eq!(reader(&alone.0).metadata().num_row_groups(), 5);
    for workers in [2, 4] {
        assert!(object(workers) == alone, "{workers} workers");
    }
}

#[test]
fn half_a_surrogate_pair_becomes_the_replacement_character() {
    for (escaped, text) in [
        (r"\ud83d\ude00", "😀"),
        (r"a\ud83db", "a\u{fffd}b"),
        (r"\ude00\ud83d", "\u{fffd}\u{fffd}"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
        (r"\\ud83d\n", "\\ud83d\n"),
        (r"é\\\\\ud83d", "é\\\\\u{fffd}"),
    ] {
        let batch = batch(&[(0, TS, escaped, "1")]);
        let (object, _) = encode(Compression::Zstd, &[("p", chunks(&batch, 1)[0].clone())]);
        assert_eq!(rows(&object)[0].2, text, "{escaped}");
    }
}

#[test]
fn the_bytes_of_a_window_are_these() {
    let records: Vec<_> = (0..120_000_i64)
        .map(|offset| {
            let payload = match offset % 97 {
                0 => "null".to_owned(),
                _ => format!(
                    r#"{{"order":{},"sum":"{}.{:02}"}}"#,
                    offset * 7_919,
                    offset % 83,
                    offset % 100
                ),
            };
            (
                offset,
                TS + offset / 100,
                format!("t-{:x}", offset * 104_729),
                payload,
            )
        })
        .collect();
    let batch = batch(&records);
    let window: Vec<_> = chunks(&batch, 30_000)
        .into_iter()
        .zip(["a", "b", "c", "d"])
        .map(|(c, p)| (p, c))
        .collect();
    let digests = [Compression::Zstd, Compression::Snappy].map(|compression| {
        let (object, summary) = encode(compression, &window);
        format!(
            "{compression} {} {}",
            object.len(),
            hex::encode(summary.sha256)
        )
    });
    insta::assert_snapshot!(digests.join("\n"));
}

#[test]
fn what_is_allocated_follows_the_bytes_and_not_the_records() {
    let payload = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
    let allocated = |records: i64, payload: &str| {
        let records: Vec<_> = (0..records)
            .map(|offset| (offset, TS, "t", payload))
            .collect();
        let chunk = chunks(&batch(&records), records.len())[0].clone();
        let counted = allocation_counter::measure(|| {
            let mut encoder =
                ParquetEncoder::with_workers(&spec(Compression::Snappy), 1).expect("an encoder");
            encoder.push("p", &chunk).expect("it encodes");
            encoder.finish().expect("it ends");
        });
        counted.count_total
    };
    let few = allocated(1_000, &payload(4_000));
    let many = allocated(50_000, &payload(80));
    // Pages and statistics, and nothing for a record.
    assert!(many <= few + 500, "{few}, and {many} for 50,000 records");
}

#[test]
fn an_object_without_records_is_a_valid_file() {
    let (object, summary) = encode(Compression::Zstd, &[]);
    assert_eq!((rows(&object), summary.records), (Vec::new(), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_cut_of_the_records_changes_a_byte(
        lengths in prop::collection::vec(0_usize..3_000, 1..3_000),
        cut in 1_usize..2_000,
        page in 1_usize..2_000,
    ) {
        let records: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(offset, length)| {
                let payload = match length % 7 {
                    0 => "null".to_owned(),
                    _ => format!("\"{}\"", "y".repeat(*length)),
                };
                (offset as i64, TS + offset as i64 / 3, format!("t{length}"), payload)
            })
            .collect();
        let whole = batch(&records);
        let whole = [("p", chunks(&whole, records.len())[0].clone())];
        let pages: Vec<_> = records.chunks(page).map(batch).collect();
        let pieces: Vec<_> =
            pages.iter().flat_map(|page| chunks(page, cut)).map(|chunk| ("p", chunk)).collect();
        for compression in [Compression::Zstd, Compression::Snappy] {
            prop_assert!(encode(compression, &whole) == encode(compression, &pieces));
        }
    }
}
