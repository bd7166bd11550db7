use std::io::Write;

use bytes::Bytes;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::super::tests::object;
use super::super::{Columns, Rows};
use crate::lake::{Compression, Format};
use crate::limits::MIB;

/// Data page and dictionary page, as `PageType` numbers them.
const DATA: i64 = 0;
const DICTIONARY: i64 = 2;

fn sound() -> Vec<u8> {
    let payloads: Vec<String> = (0..500).map(|n| format!("\"payload {n}\"")).collect();
    object(Format::Parquet, Compression::Snappy, &payloads)
}

fn metadata(object: &[u8]) -> ParquetMetaData {
    let reader = SerializedFileReader::new(Bytes::copy_from_slice(object)).expect("Parquet");
    reader.metadata().clone()
}

/// Why `object` does not read, and that nothing is made room for on its word.
fn refusal(object: &[u8]) -> String {
    let mut said = String::new();
    let counted = allocation_counter::measure(|| {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(object).expect("room");
        let outcome = Rows::new(file, Columns::All).and_then(|mut rows| {
            while rows.next_record()?.is_some() {}
            Ok(())
        });
        said = outcome.expect_err("it is refused").to_string();
    });
    let most = 2 * MIB as u64;
    assert!(counted.bytes_max < most, "{} for {said}", counted.bytes_max);
    said
}

fn number(value: i64) -> Vec<u8> {
    let mut zigzag = (value << 1 ^ value >> 63) as u64;
    let mut bytes = Vec::new();
    while zigzag > 0x7f {
        bytes.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    bytes.push(zigzag as u8);
    bytes
}

/// A page header: its kind, length decompressed, length stored, and number of values.
fn header(kind: i64, bytes: i64, stored: i64, values: i64) -> Vec<u8> {
    // A field's head is the step from the one before, and its kind.
    const I32: u8 = 0x15;
    let mut header = Vec::new();
    for value in [kind, bytes, stored] {
        header.push(I32);
        header.extend(number(value));
    }
    let (head, others): (u8, &[i64]) = match kind {
        DICTIONARY => (0x4c, &[0]),
        _ => (0x2c, &[0, 3, 3]),
    };
    header.push(head);
    for value in [&[values], others].concat() {
        header.push(I32);
        header.extend(number(value));
    }
    header.extend([0, 0]);
    header
}

/// A sound object whose chunk number `column` begins with another page header. `claims` is told how
/// long the chunk is.
fn with_header(column: usize, claims: impl Fn(i64) -> Vec<u8>) -> Vec<u8> {
    let mut object = sound();
    let (start, length) = metadata(&object).row_group(0).column(column).byte_range();
    let header = claims(length as i64);
    let start = start as usize;
    object[start..start + header.len()].copy_from_slice(&header);
    object
}

/// A sound object whose footer is written again with other row groups.
fn with_groups(change: impl Fn(RowGroupMetaData) -> Vec<RowGroupMetaData>) -> Vec<u8> {
    let mut object = sound();
    let metadata = metadata(&object);
    let groups = metadata.row_groups().iter().cloned();
    let groups = groups.flat_map(change).collect();
    let metadata = metadata.into_builder().set_row_groups(groups).build();
    object.truncate(object.len() - 8);
    ParquetMetaDataWriter::new(&mut object, &metadata)
        .finish()
        .expect("a footer");
    object
}

const PARTITION: usize = 0;
const OFFSET: usize = 1;
const PAYLOAD: usize = 4;

#[test]
fn a_page_that_claims_more_than_a_lake_has_is_refused_before_room_is_made_for_it() {
    let huge = i64::from(i32::MAX);
    for (column, claim, said) in [
        (PAYLOAD, (DATA, huge, 500), "a page of 2147483647 bytes"),
        (OFFSET, (DATA, 3 << 20, 500), "a page of 3145728 bytes"),
        (
            PARTITION,
            (DICTIONARY, 20 << 20, 1),
            "a page of 20971520 bytes",
        ),
        (
            PARTITION,
            (DICTIONARY, 1_000, huge),
            "a dictionary of 2147483647 values",
        ),
    ] {
        let (kind, bytes, values) = claim;
        let object = with_header(column, |_| header(kind, bytes, 1, values));
        assert_eq!(refusal(&object), said);
    }
}

#[test]
fn a_page_that_ends_outside_of_its_chunk_or_has_no_header_is_refused() {
    let beyond = with_header(PAYLOAD, |length| header(DATA, 100, length, 500));
    assert_eq!(refusal(&beyond), "a page lies outside of its column chunk");
    for noise in [
        vec![0xff; 40],
        vec![0],
        vec![0x19, 0xfc, 0xff, 0xff, 0xff, 0x0f],
        vec![0x1c; 40],
    ] {
        let object = with_header(PAYLOAD, |_| noise.clone());
        assert_eq!(refusal(&object), "a page header does not read", "{noise:?}");
    }
}

#[test]
fn a_row_group_that_claims_other_rows_than_it_has_is_refused() {
    let rows = |rows| {
        with_groups(move |group| {
            vec![
                group
                    .into_builder()
                    .set_num_rows(rows)
                    .build()
                    .expect("a group"),
            ]
        })
    };
    assert_eq!(
        refusal(&rows(2_000_000_000)),
        "a row group of 2000000000 rows"
    );
    assert_eq!(refusal(&rows(-1)), "a row group of -1 rows");
    for claimed in [499, 501] {
        let said = refusal(&rows(claimed));
        assert!(said.contains("claims another number of rows"), "{said}");
    }
}

#[test]
fn groups_do_not_share_bytes() {
    let twice = with_groups(|group| vec![group.clone(), group]);
    assert_eq!(refusal(&twice), "its column chunks lie in one another");
}

#[test]
fn a_footer_that_claims_more_than_there_is_or_than_a_lake_has_is_refused() {
    let mut object = sound();
    let length = object.len();
    for (claim, said) in [
        (u32::MAX, "its footer is 4294967295 bytes long"),
        (
            length as u32,
            &*format!("its footer is {length} bytes long"),
        ),
    ] {
        object[length - 8..length - 4].copy_from_slice(&claim.to_le_bytes());
        assert_eq!(refusal(&object), said);
    }
    assert_eq!(refusal(b"PAR1"), "it is too short");
    assert_eq!(
        refusal(b"{\"partition\":1}"),
        "it does not end as Parquet does"
    );
}
