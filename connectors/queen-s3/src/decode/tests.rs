use std::io::Write;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::sync::mpsc::channel;

use super::*;
use crate::encode::testing::batch;
use crate::encode::{ObjectEncoder, ObjectSpec, record_bytes};
use crate::lake::Format;
use crate::record::Chunk;

pub(super) fn object(format: Format, compression: Compression, payloads: &[String]) -> Vec<u8> {
    let records: Vec<_> = (0i64..)
        .zip(payloads)
        .map(|(offset, payload)| (offset, 7, "t\\u00e9", payload.as_str()))
        .collect();
    let batch = batch(&records);
    let chunk = Chunk::whole(&batch);
    let spec = ObjectSpec {
        format,
        compression,
        queue: "orders".to_owned(),
        record_bytes: record_bytes("p", &chunk),
        workers: 1,
        part_bytes: crate::limits::PART_BYTES,
    };
    let mut encoder = ObjectEncoder::new(&spec).expect("an encoder");
    encoder.push("p", &chunk).expect("it encodes");
    encoder.finish().expect("it ends").0.concat()
}

/// The lines of an object whose pieces come one by one, each only when it is waited for.
fn lines(compression: Compression, object: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, ReadError> {
    let (sender, arriving) = channel(1);
    let mut sender = Some(sender);
    let mut pieces = object.chunks(piece).map(Bytes::copy_from_slice);
    let mut lines = Lines::new(compression, Arriving::new(arriving, false))?;
    let mut read = Vec::new();
    loop {
        match lines.next_record() {
            Ok(Some(found)) => read.push(found.line.into_owned()),
            Ok(None) => return Ok(read),
            Err(error) if error.is_starved() => match (pieces.next(), &sender) {
                (Some(piece), Some(sender)) => sender.try_send(piece).expect("it was taken"),
                _ => sender = None,
            },
            Err(error) => return Err(error),
        }
    }
}

proptest! {
    #[test]
    fn lines_read_the_same_however_their_bytes_arrive(
        payloads in prop::collection::vec("[1-9][0-9]{0,39}", 1..60),
        piece in 1usize..200,
    ) {
        let plain = object(Format::Jsonl, Compression::None, &payloads);
        let wanted: Vec<_> = plain.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let object = object(Format::Jsonl, compression, &payloads);
            prop_assert_eq!(&lines(compression, &object, piece).expect("it reads"), &wanted);
        }
    }

    #[test]
    fn rows_read_as_the_lines_of_the_same_records(
        payloads in prop::collection::vec("[1-9][0-9]{0,39}|null|\\{\"a\":[\r\n]+1\\}", 1..60),
    ) {
        let plain = object(Format::Jsonl, Compression::None, &payloads);
        let wanted = lines(Compression::None, &plain, 100).expect("it reads");
        for codec in [Compression::Zstd, Compression::Snappy] {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&object(Format::Parquet, codec, &payloads)).expect("room");
            let mut rows = Rows::new(file, Columns::All).expect("Parquet");
            let mut read = Vec::new();
            while let Some(found) = rows.next_record().expect("a row") {
                prop_assert_eq!(found.seen.partition, "p");
                read.push(found.line.into_owned());
            }
            prop_assert_eq!(&read, &wanted);
        }
    }
}

#[test]
fn bytes_after_the_compressed_frame_are_refused() {
    for compression in [Compression::Gzip, Compression::Zstd] {
        let mut twice = object(Format::Jsonl, compression, &["1".to_owned()]);
        twice.extend_from_slice(&twice.clone());
        let read = lines(compression, &twice, 10);
        assert!(matches!(read, Err(ReadError::Trailing)), "{read:?}");
    }
}
