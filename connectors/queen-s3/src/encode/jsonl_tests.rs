use std::io::Read;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::encode::testing::{batch, chunks};
use crate::lake::Format;
use crate::limits::PART_BYTES;
use crate::record::Batch;

const TS: i64 = 1_788_516_221_918_204;

fn spec(compression: Compression, record_bytes: u64) -> ObjectSpec {
    ObjectSpec {
        format: Format::Jsonl,
        compression,
        queue: "orders".to_owned(),
        record_bytes,
        workers: 1,
        part_bytes: PART_BYTES,
    }
}

/// One object of `chunks`, whole.
fn encode(compression: Compression, chunks: &[(&str, Chunk)]) -> (Vec<u8>, ObjectSummary) {
    let lines = chunks
        .iter()
        .map(|(partition, chunk)| record_bytes(partition, chunk))
        .sum();
    let encoder = JsonlEncoder::new(&spec(compression, lines)).expect("an encoder");
    run(encoder, chunks)
}

fn run(mut encoder: JsonlEncoder, chunks: &[(&str, Chunk)]) -> (Vec<u8>, ObjectSummary) {
    let mut object = Vec::new();
    for (partition, chunk) in chunks {
        encoder.push(partition, chunk).expect("it encodes");
        while let Some(part) = encoder.take_part() {
            assert_eq!(part.len(), PART_BYTES);
            object.extend_from_slice(&part);
        }
    }
    let (pieces, summary) = encoder.finish().expect("it ends");
    for (number, piece) in pieces.iter().enumerate() {
        assert!(!piece.is_empty());
        assert!(piece.len() == PART_BYTES || number + 1 == pieces.len());
        object.extend_from_slice(piece);
    }
    assert_eq!(summary.bytes, object.len() as u64);
    assert_eq!(
        summary.sha256,
        <[u8; 32]>::from(<sha2::Sha256 as sha2::Digest>::digest(&object))
    );
    assert_eq!(
        summary.md5,
        <[u8; 16]>::from(<md5::Md5 as md5::Digest>::digest(&object))
    );
    (object, summary)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// Records of varied lengths, about `bytes` of them, that compress as events do.
fn many(bytes: usize) -> Vec<(i64, i64, String, String)> {
    let mut state = 7_u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut records = Vec::new();
    let mut total = 0;
    while total < bytes {
        let offset = records.len() as i64;
        let payload = format!(
            r#"{{"order":{},"sum":"{}","note":"{:x}{}"}}"#,
            random(),
            random() % 1_000,
            random(),
            "ab".repeat((random() % 300) as usize)
        );
        total += payload.len() + 120;
        records.push((
            offset,
            TS + offset / 100,
            format!("{:08x}-{:08x}", random(), random()),
            payload,
        ));
    }
    records
}

#[test]
fn a_record_is_one_line_with_its_fields_in_order() {
    let batch = batch(&[
        (7, TS, "t-1", r#"{"n": 1.50}"#),
        (8, TS + 1_000_000, "t-2", "null"),
    ]);
    let (object, summary) = encode(
        Compression::None,
        &[("eu \"west\"/é\n", chunks(&batch, 2)[0].clone())],
    );
    assert_eq!(
        text(object),
        concat!(
            r#"{"partition":"eu \"west\"/é\n","offset":7,"transactionId":"t-1","ts":"2026-09-04T10:03:41.918204Z","payload":{"n": 1.50}}"#,
            "\n",
            r#"{"partition":"eu \"west\"/é\n","offset":8,"transactionId":"t-2","ts":"2026-09-04T10:03:42.918204Z","payload":null}"#,
            "\n",
        )
    );
    assert_eq!(summary.records, 2);
}

#[test]
fn a_transaction_id_is_escaped_as_serde_json_escapes_it() {
    for (escaped, written) in [
        ("plain é", r#""plain é""#),
        (r"\u00e9\/\u0041", r#""é/A""#),
        (r#"\"\\\n\u000a\u001f"#, r#""\"\\\n\n\u001f""#),
        (r"\ud83d\ude00", r#""😀""#),
        // Half a surrogate pair names no text that could be escaped anew.
        (r"\ud83d \u0041", r#""\ud83d \u0041""#),
    ] {
        let batch = batch(&[(0, TS, escaped, "1")]);
        let chunk = &chunks(&batch, 1)[0];
        let line = text(encode(Compression::None, &[("p", chunk.clone())]).0);
        let expected = format!(
            "{{\"partition\":\"p\",\"offset\":0,\"transactionId\":{written},\
             \"ts\":\"2026-09-04T10:03:41.918204Z\",\"payload\":1}}\n"
        );
        assert_eq!(line, expected);
        assert_eq!(record_bytes("p", chunk), expected.len() as u64);
    }
}

#[test]
fn a_raw_line_break_in_a_payload_becomes_a_space_and_nothing_else_changes() {
    let batch = batch(&[(0, TS, "t", "{\r\n\t\"a\" : [ 1e5 ,\n\"\\n\\u0041\"]}")]);
    let line = text(encode(Compression::None, &[("p", chunks(&batch, 1)[0].clone())]).0);
    let expected = "\"payload\":{  \t\"a\" : [ 1e5 , \"\\n\\u0041\"]}}\n";
    assert!(line.ends_with(expected), "{line}");
}

#[test]
fn the_bytes_of_a_small_window_are_these() {
    let batch = batch(&[
        (0, TS, "t-0", r#"{"order":1,"sum":"12.50"}"#),
        (1, TS, "t-1", r#"{"order":2,"sum":"8.00"}"#),
        (2, TS + 7, r"t-\u00e9", "null"),
    ]);
    let window = [("berlin", chunks(&batch, 3)[0].clone())];
    let objects = [Compression::Zstd, Compression::Gzip, Compression::None].map(|compression| {
        let (object, _) = encode(compression, &window);
        format!("{compression} {}", hex::encode(&object))
    });
    insta::assert_snapshot!(objects.join("\n"));
}

#[test]
fn the_bytes_of_a_large_window_are_these() {
    let records = many(20 << 20);
    let batch = batch(&records);
    let window = [("berlin", chunks(&batch, records.len())[0].clone())];
    let digests = [Compression::Zstd, Compression::Gzip, Compression::None].map(|compression| {
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
fn every_compression_reads_back_as_one_stream() {
    let records = many(3 << 20);
    let batch = batch(&records);
    let window = [("p", chunks(&batch, records.len())[0].clone())];
    let plain = encode(Compression::None, &window).0;

    let frame = encode(Compression::Zstd, &window).0;
    assert_eq!(zstd::decode_all(&frame[..]).expect("zstd"), plain);
    let size = zstd::zstd_safe::get_frame_content_size(&frame).expect("a frame");
    assert_eq!(
        size,
        Some(plain.len() as u64),
        "the header carries the content's size"
    );
    let first_frame = zstd::zstd_safe::find_frame_compressed_size(&frame).expect("a frame");
    assert_eq!(first_frame, frame.len(), "one frame");

    let gzip = encode(Compression::Gzip, &window).0;
    // Magic, deflate, no flags (so no name), mtime 0, no extra flags, unknown system.
    assert_eq!(gzip[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&gzip[..])
        .read_to_end(&mut unpacked)
        .expect("gzip");
    assert_eq!(unpacked, plain);
}

#[test]
fn workers_do_not_change_a_byte() {
    let records = many(30 << 20);
    let batch = batch(&records);
    let chunk = chunks(&batch, records.len())[0].clone();
    let spec = spec(Compression::Zstd, record_bytes("p", &chunk));
    let window = [("p", chunk)];
    let [one, two, four] = [1, 2, 4].map(|workers| {
        run(
            JsonlEncoder::with_workers(&spec, workers).expect("an encoder"),
            &window,
        )
        .0
    });
    assert!(one == two && two == four);
}

#[test]
fn parts_leave_before_the_object_ends() {
    let mut encoder = JsonlEncoder::new(&spec(Compression::None, 40 << 20)).expect("an encoder");
    let payload = format!("\"{}\"", "x".repeat((20 << 20) - 115));
    let batch = batch(&[(0, TS, "t", payload.as_str())]);
    let chunk = &chunks(&batch, 1)[0];
    encoder.push("p", chunk).expect("it encodes");
    assert_eq!(encoder.take_part().map(|part| part.len()), Some(PART_BYTES));
    assert_eq!(encoder.take_part(), None);
}

#[test]
fn other_record_bytes_than_announced_are_refused() {
    let batch = batch(&[(0, TS, "t", "1")]);
    let chunk = &chunks(&batch, 1)[0];
    let exact = record_bytes("p", chunk);
    for compression in [Compression::Zstd, Compression::Gzip, Compression::None] {
        for announced in [exact - 1, exact + 1] {
            let mut encoder = JsonlEncoder::new(&spec(compression, announced)).expect("an encoder");
            encoder.push("p", chunk).expect("nothing is compressed yet");
            let Err(EncodeError::RecordBytes {
                announced: told,
                pushed,
            }) = encoder.finish()
            else {
                panic!("{compression} took {exact} bytes for {announced}");
            };
            assert_eq!((told, pushed), (announced, exact));
        }
    }
}

#[test]
fn an_object_without_records_is_a_valid_empty_stream() {
    let (frame, summary) = encode(Compression::Zstd, &[]);
    assert_eq!(zstd::decode_all(&frame[..]).expect("zstd"), b"");
    assert_eq!(summary.records, 0);
    assert_eq!(encode(Compression::None, &[]).0, b"");
}

fn any_record() -> impl Strategy<Value = (String, String)> {
    let payload = prop_oneof![
        Just("null".to_owned()),
        Just("{\r\n \"a\": [1, 2]}".to_owned()),
        "[a-z]{0,2000}".prop_map(|text| format!("\"{text}\"")),
    ];
    let transaction_id = any::<String>().prop_map(|text| {
        let quoted = serde_json::to_string(&text).expect("a string");
        quoted[1..quoted.len() - 1].to_owned()
    });
    (transaction_id, payload)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_cut_of_the_records_changes_a_byte(
        records in prop::collection::vec(any_record(), 1..40),
        cut in 1_usize..40,
        page in 1_usize..40,
    ) {
        let records: Vec<_> = records
            .into_iter()
            .enumerate()
            .map(|(offset, (id, payload))| (offset as i64, TS + offset as i64 / 3, id, payload))
            .collect();
        let whole = batch(&records);
        let whole = [("p", chunks(&whole, records.len())[0].clone())];
        let pages: Vec<Arc<Batch>> = records.chunks(page).map(batch).collect();
        let pieces: Vec<_> =
            pages.iter().flat_map(|page| chunks(page, cut)).map(|chunk| ("p", chunk)).collect();
        for compression in [Compression::Zstd, Compression::Gzip, Compression::None] {
            prop_assert!(encode(compression, &whole) == encode(compression, &pieces));
        }
    }

    #[test]
    fn record_bytes_is_the_length_of_the_lines(
        partition in ".{0,10}",
        records in prop::collection::vec(any_record(), 1..10),
    ) {
        let records: Vec<_> = records
            .into_iter()
            .enumerate()
            .map(|(offset, (id, payload))| (offset as i64 * 977, TS, id, payload))
            .collect();
        let batch = batch(&records);
        let chunk = chunks(&batch, records.len())[0].clone();
        let counted = record_bytes(&partition, &chunk);
        let (object, summary) = encode(Compression::None, &[(partition.as_str(), chunk)]);
        prop_assert_eq!(counted, object.len() as u64);
        prop_assert_eq!(summary.records, records.len() as u64);
        for (line, (offset, ..)) in text(object).lines().zip(&records) {
            let value: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
            prop_assert_eq!(&value["partition"], &partition);
            prop_assert_eq!(value["offset"].as_i64(), Some(*offset));
        }
    }
}

#[test]
fn allocations_do_not_grow_with_the_records() {
    let allocations = |bytes: usize, compression: Compression| {
        let records = many(bytes);
        let records: Vec<_> = records
            .iter()
            .map(|(offset, ts, id, payload)| (*offset, *ts, id.as_str(), payload.as_str()))
            .collect();
        let chunk = chunks(&batch(&records), records.len())[0].clone();
        let lines = record_bytes("p", &chunk);
        let counted = allocation_counter::measure(|| {
            let mut encoder = JsonlEncoder::new(&spec(compression, lines)).expect("an encoder");
            encoder.push("p", &chunk).expect("it encodes");
            encoder.finish().expect("it ends");
        });
        if compression == Compression::None {
            // The lines, once, beside the step that is being built and a part that is begun.
            let room = 4 * COMPRESS_STEP_BYTES as u64;
            let bytes = counted.bytes_total;
            assert!(bytes <= lines + room, "{bytes} bytes for {lines} of lines");
        }
        (records.len() as u64, counted.count_total)
    };
    for compression in [Compression::None, Compression::Zstd, Compression::Gzip] {
        let (_, few) = allocations(1 << 20, compression);
        let (count, many) = allocations(8 << 20, compression);
        // Buffers grow by doubling; nothing is made for a record.
        assert!(
            many <= few + 16,
            "{compression:?}: {few}, and {many} for {count} records"
        );
    }
}
