use futures::StreamExt;
use futures::stream;

use super::*;
use crate::encode::testing::batch;
use crate::encode::{ObjectEncoder, ObjectSpec, record_bytes};
use crate::record::Chunk;

const PAYLOAD: &str = "{\"a\":\n1}";

/// Records of partitions `a` and `b`, given as partition and offset.
type Records<'a> = &'a [(&'a str, i64)];

/// The object of `records`, as the encoder writes it.
fn encoded(format: Format, compression: Compression, records: Records<'_>) -> Vec<u8> {
    let chunks: Vec<(&str, Chunk)> = records
        .iter()
        .map(|(partition, offset)| {
            let payload = if offset % 2 == 0 { "null" } else { PAYLOAD };
            let batch = batch(&[(*offset, 1_000 + offset, r"t\ud800\n", payload)]);
            (*partition, Chunk { batch, range: 0..1 })
        })
        .collect();
    let length = chunks.iter().map(|(p, chunk)| record_bytes(p, chunk));
    let spec = ObjectSpec {
        format,
        compression,
        queue: "orders".to_owned(),
        record_bytes: length.sum(),
        workers: 1,
        part_bytes: crate::limits::PART_BYTES,
    };
    let mut encoder = ObjectEncoder::new(&spec).expect("an encoder");
    for (partition, chunk) in &chunks {
        encoder.push(partition, chunk).expect("it encodes");
    }
    encoder.finish().expect("it ends").0.concat()
}

fn lines(records: Records<'_>) -> Vec<u8> {
    encoded(Format::Jsonl, Compression::None, records)
}

async fn matcher(
    content: &[u8],
    (format, compression): (Format, Compression),
    piece: usize,
    partition: Option<&str>,
) -> Result<Matcher, Mismatch> {
    let pieces: Vec<_> = content.chunks(piece).map(Bytes::copy_from_slice).collect();
    let reader = ObjectReader {
        size: content.len() as u64,
        stream: stream::iter(pieces).map(Ok).boxed(),
    };
    Matcher::new(reader, format, compression, partition, Compute::InPlace).await
}

const MADE: [(Format, Compression); 5] = [
    (Format::Jsonl, Compression::Zstd),
    (Format::Jsonl, Compression::Gzip),
    (Format::Jsonl, Compression::None),
    (Format::Parquet, Compression::Zstd),
    (Format::Parquet, Compression::Snappy),
];

#[tokio::test]
async fn an_object_with_more_records_than_are_found_again_stays() {
    for made in MADE {
        let all = [("a", 1), ("a", 2), ("b", 1), ("b", 2)];
        let content = encoded(made.0, made.1, &all);
        for piece in [1, 7, 100_000] {
            let mut matcher = matcher(&content, made, piece, None)
                .await
                .expect("it opens");
            matcher
                .rebuilt(&lines(&[("a", 2)]))
                .await
                .expect("it holds it");
            let whole = lines(&[("b", 2)]);
            let (begin, rest) = whole.split_at(20);
            matcher.rebuilt(begin).await.expect("half a line");
            matcher.rebuilt(rest).await.expect("it holds it");
            let (summary, tally) = matcher.finish().await.expect("it reads");
            assert_eq!(summary.bytes, content.len() as u64);
            assert_eq!(summary.sha256, <[u8; 32]>::from(Sha256::digest(&content)));
            assert_eq!(summary.records, 4);
            assert_eq!(tally.partitions, 2);
            assert_eq!(tally.offsets, Some((1, 2)));
            let kept = |partition: &str| OffsetRange {
                partition: partition.into(),
                from: 1,
                to: 1,
            };
            assert_eq!(tally.kept, [kept("a"), kept("b")], "{made:?}");
        }
    }
}

#[tokio::test]
async fn an_object_that_lacks_a_record_does_not_match() {
    for made in MADE {
        let content = encoded(made.0, made.1, &[("a", 1)]);
        let mut matcher = matcher(&content, made, 10, None).await.expect("it opens");
        let mismatch = matcher.rebuilt(&lines(&[("a", 1), ("a", 2)])).await;
        assert!(
            matches!(&mismatch, Err(Mismatch::Differs(line)) if line.contains("\"offset\":2")),
            "{made:?}: {mismatch:?}"
        );
    }
}

#[tokio::test]
async fn an_object_that_does_not_read_does_not_match() {
    for made in MADE {
        let content = encoded(made.0, made.1, &[("a", 1), ("a", 2)]);
        let mismatch = match matcher(&content[..content.len() - 2], made, 10, None).await {
            Ok(matcher) => matcher.finish().await.map(drop),
            Err(mismatch) => Err(mismatch),
        };
        assert!(matches!(mismatch, Err(Mismatch::Differs(_))), "{made:?}");
    }
}

#[tokio::test]
async fn an_object_of_one_partition_holds_no_record_of_another() {
    for made in MADE {
        let content = encoded(made.0, made.1, &[("a", 1), ("b", 1)]);
        let matcher = matcher(&content, made, 10, Some("a"))
            .await
            .expect("it opens");
        let mismatch = matcher.finish().await;
        assert!(
            matches!(&mismatch, Err(Mismatch::Differs(text)) if text.contains("\"b\"")),
            "{made:?}"
        );
    }
}
