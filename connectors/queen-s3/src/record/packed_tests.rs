use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::super::segments::tests::{
    Answered, Pushed, Stored, TS, answered, asking, body, content, entry, one, packed_as, rendered,
    request, segment,
};
use super::super::testing::{all, compressed, compressed_lz4, described, told};
use super::super::{Chunk, Content, decode_fetch, decode_segments};
use super::*;
use crate::broker::{EntryError, FetchAnswer, FetchRequest, FetchedEntry};
use crate::encode::record_bytes;
use crate::memory::MemoryBudget;

/// What makes the frame of a block's content.
type Compress = fn(&[u8]) -> Vec<u8>;

const ZSTD: Compress = compressed;
const LZ4: Compress = compressed_lz4;

/// A block as a broker describes it.
fn truly_described(records: &[Pushed], frame: &[u8]) -> Vec<u8> {
    let escaped = records.iter().any(|(id, _)| id.contains('\\'));
    let empty = records.iter().filter(|(_, payload)| payload.is_empty());
    described(escaped.into(), empty.count() as u32, frame)
}

/// The answer of the version that has descriptions and LZ4, with these entries.
fn version_4(mut body: Vec<u8>, entries: &[Answered]) -> Bytes {
    body[4] = 4;
    // A life goes behind each entry's bounds.
    let mut at = 9;
    for entry in entries {
        at += 2 + "orders".len() + 2 + entry.partition.len() + 16;
        body.splice(at..at, [0; 16]);
        at += 16;
        while body[at] == 1 {
            let length = body[at + 25..at + 29].try_into().expect("four bytes");
            at += 29 + u32::from_le_bytes(length) as usize;
        }
        at += 2;
    }
    body.into()
}

fn decode(request: &FetchRequest, body: &Bytes, trust: &Arc<Trust>) -> FetchAnswer {
    let read = decode_segments(request, body.clone(), &MemoryBudget::new(0), trust);
    read.expect("the answer reads")
}

fn packed(answer: &FetchAnswer) -> Option<&Packed> {
    match &answer.batch.content {
        Content::Packed(packed) => Some(packed),
        Content::Open(_) => None,
    }
}

/// Everything that can be asked of a chunk.
fn questions(chunk: &Chunk) -> impl PartialEq + std::fmt::Debug + use<> {
    let marks: Vec<Mark> = chunk.marks().collect();
    let below: Vec<u32> = (-1..8).map(|at| chunk.below(Micros(TS + at))).collect();
    let mut instants: Vec<(Micros, u64)> = Vec::new();
    for (ts, stretch) in chunk.instants() {
        let bytes = record_bytes("p é", &stretch);
        match instants.last_mut() {
            Some((last, sum)) if *last == ts => *sum += bytes,
            _ => instants.push((ts, bytes)),
        }
    }
    let ends = (chunk.first(), chunk.last());
    let bytes = record_bytes("p é", chunk);
    let compacted = told(&chunk.compacted(&MemoryBudget::new(0))).expect("whole");
    let told = told(chunk).expect("whole");
    assert_eq!(compacted, told);
    (marks, below, instants, ends, bytes, told)
}

proptest! {
    #[test]
    fn what_stays_compressed_answers_as_what_does_not(
        mut entries in answered(),
        escapes in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 8),
        compress in prop::sample::select(vec![ZSTD, LZ4]),
    ) {
        let mut stored = entries.iter_mut().flat_map(|entry| &mut entry.segments);
        if !escapes {
            let records = stored.by_ref().flat_map(|stored| &mut stored.records);
            records.for_each(|(id, _)| *id = id.replace('\\', "/").replace('"', "'"));
        }
        let request = request(&entries);
        let body = packed_as(&entries, |records, content| {
            truly_described(records, &compress(content))
        });
        let body = version_4(body, &entries);
        let answer = decode(&request, &body, &Arc::default());
        let json = Bytes::from(rendered(&entries));
        let from_json = decode_fetch(&request, json, &MemoryBudget::new(0)).expect("JSON");
        prop_assert_eq!(&answer.entries, &from_json.entries);
        prop_assert_eq!(all(&answer.batch), all(&from_json.batch));
        for entry in &answer.entries {
            let all = entry.records.clone();
            let at = |cut: &prop::sample::Index| all.start + cut.index(all.len() + 1) as u32;
            let parts = cuts.chunks(2).map(|two| {
                let (one, other) = (at(&two[0]), at(&two[1]));
                one.min(other)..one.max(other)
            });
            for part in parts.chain([all.clone()]) {
                let chunk = Chunk::whole(&answer.batch).part(part.clone());
                let open = Chunk::whole(&from_json.batch).part(part);
                prop_assert_eq!(questions(&chunk), questions(&open));
            }
        }
        // Where nothing stands against it, nothing was decompressed.
        let mut stored = entries.iter().flat_map(|entry| {
            entry.segments.iter().map(move |stored| (stored, entry.offset))
        });
        let known = stored.all(|(stored, from)| {
            stored.base_offset >= from && stored.records.iter().all(|(id, _)| !id.contains('\\'))
        });
        prop_assert_eq!(packed(&answer).is_some(), known);
    }
}

const RECORDS: [(&str, &str); 3] = [("a", "{\"n\":1}"), ("b", ""), ("c", "[2]")];

/// One answer from offset 0 with a segment of [`RECORDS`] and then one that `block` makes of them.
fn with(compress: Compress, records: usize, block: impl Fn(&[u8], &[u8]) -> Vec<u8>) -> Bytes {
    let pushed = one(&RECORDS);
    let content = content(&pushed);
    let frame = compress(&content);
    let sound = truly_described(&pushed, &frame);
    let first = segment(0, TS, 3, content.len(), &sound);
    let block = block(&content, &frame);
    let second = segment(3, TS, records, content.len(), &block);
    let entries = [Answered {
        partition: "p".into(),
        offset: 0,
        segments: vec![],
    }];
    version_4(body(&[entry("p", &[first, second], "")]), &entries)
}

/// Whether that is all of the first segment, and says that there is more.
fn ends_at_the_damage(entry: &FetchedEntry) -> bool {
    entry.error.is_none() && entry.records == (0..3) && entry.high_watermark > 3
}

#[test]
fn a_block_that_is_not_the_one_described_is_unreadable_when_it_arrives() {
    for (compress, tells_damage) in [(ZSTD, true), (LZ4, false)] {
        let sound = with(compress, 3, |_, frame| described(0, 1, frame));
        assert!(packed(&decode(&asking(0), &sound, &Arc::default())).is_some());
        let frame = compress(&content(&one(&RECORDS))).len();
        let end = sound.len() - 2;
        // What is described and the checksum of it, and the frame.
        for at in end - frame - 10..end {
            let mut damaged = sound.to_vec();
            damaged[at] ^= 0x55;
            let answer = decode(&asking(0), &damaged.into(), &Arc::default());
            assert!(packed(&answer).is_none(), "byte {at} changed unnoticed");
            let read = &answer.entries[0];
            let whole = read.error.is_none() && read.records == (0..6);
            let found = ends_at_the_damage(read);
            assert!(whole || found, "byte {at}: {answer:?}");
            assert!(tells_damage || found, "byte {at} was not looked into");
        }
        let longer = with(compress, 3, |content, _| {
            described(0, 1, &compress(&content[1..]))
        });
        let answer = decode(&asking(0), &longer, &Arc::default());
        assert!(ends_at_the_damage(&answer.entries[0]));
        let answer = decode(&asking(3), &longer, &Arc::default());
        assert_eq!(answer.entries[0].error, Some(EntryError::Unreadable));
    }
}

#[test]
fn a_description_that_is_not_true_is_the_last_one_believed() {
    let changed = |content: &[u8], at: usize, byte: u8| {
        let mut content = content.to_vec();
        content[at] = byte;
        described(0, 1, &ZSTD(&content))
    };
    type Block<'a> = &'a dyn Fn(&[u8], &[u8]) -> Vec<u8>;
    let cases: [(&str, usize, Block<'_>); 8] = [
        ("an empty payload too many", 3, &|_, frame| {
            described(0, 2, frame)
        }),
        ("an empty payload too few", 3, &|_, frame| {
            described(0, 0, frame)
        }),
        ("a record more", 4, &|_, frame| described(0, 1, frame)),
        ("a record less", 2, &|_, frame| described(0, 1, frame)),
        ("an escape", 3, &|content, _| changed(content, 10, b'\\')),
        ("no text", 3, &|content, _| {
            changed(content, content.len() - 2, 0xff)
        }),
        (
            "a frame of LZ4 that says another length",
            3,
            &|content, _| {
                let mut frame = LZ4(&content[..content.len() - 1]);
                frame[6..14].copy_from_slice(&(content.len() as u64).to_le_bytes());
                described(0, 1, &frame)
            },
        ),
        ("a frame of LZ4 with a byte more", 3, &|content, _| {
            described(0, 1, &[&LZ4(content)[..], b"\0"].concat())
        }),
    ];
    for (what, records, block) in cases {
        let trust = Arc::default();
        let body = with(ZSTD, records, block);
        let answer = decode(&asking(0), &body, &trust);
        assert!(packed(&answer).is_some(), "{what}: it is believed at first");
        let damaged = told(&Chunk::whole(&answer.batch)).expect_err(what);
        assert!(
            damaged.to_string().contains("from offset 3 on"),
            "{damaged}"
        );
        // The first block is as it was said to be.
        assert_eq!(
            told(&Chunk::whole(&answer.batch).part(0..3))
                .expect(what)
                .len(),
            3
        );

        let answer = decode(&asking(0), &body, &trust);
        assert!(packed(&answer).is_none(), "{what}: it is believed still");
        let read = &answer.entries[0];
        let whole = read.error.is_none() && read.records == (0..6);
        let found = ends_at_the_damage(read);
        assert!(whole || found, "{what}: {answer:?}");
    }
}

#[test]
fn blocks_of_another_kind_are_read_as_they_come() {
    let answers = |block: Vec<u8>| {
        let body = with(ZSTD, 3, move |_, _| block.clone());
        let answer = decode(&asking(0), &body, &Arc::default());
        (packed(&answer).is_some(), answer.batch.records())
    };
    let content = content(&one(&RECORDS));
    let frame = ZSTD(&content);
    assert_eq!(answers(frame.clone()), (false, 6), "no description");
    let lz4 = LZ4(&content);
    assert_eq!(answers(lz4.clone()), (false, 3), "no checksum at all");
    assert_eq!(answers(described(1, 1, &lz4)), (false, 6), "escapes");
    assert_eq!(answers(described(1, 1, &frame)), (false, 6), "escapes");
    assert_eq!(answers(described(7, 1, &frame)), (false, 6), "unknown ids");
    let mut later = described(0, 1, &frame);
    later[8] = 2;
    let checksum = crc32c(&[&later[8..14], &frame[..]].concat());
    later[14..18].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(answers(later), (false, 6), "another layout");
    assert_eq!(
        answers(b"\x5a\x2a\x4d\x18\x0a\0\0\0\x01".to_vec()),
        (false, 3),
        "cut"
    );
}

#[test]
fn compressed_records_count_as_such_against_the_budget() {
    let pushed = one(&[("a", &format!("\"{}\"", "x".repeat(100_000)))]);
    let entries = [Answered {
        partition: "p".into(),
        offset: 0,
        segments: vec![Stored {
            base_offset: 0,
            ts: TS,
            records: pushed,
        }],
    }];
    let body = packed_as(&entries, |records, content| {
        truly_described(records, &compressed(content))
    });
    let body = version_4(body, &entries);
    let budget = MemoryBudget::new(1 << 20);
    let answer = decode_segments(&asking(0), body.clone(), &budget, &Arc::default());
    let answer = answer.expect("it reads");
    assert_eq!(budget.used(), body.len() + size_of::<Block>());
    assert!(budget.used() < 1_000, "{}", budget.used());
    assert!(Chunk::whole(&answer.batch).text_bytes() > 100_000);
    drop(answer);
    assert_eq!(budget.used(), 0);
}

#[test]
fn reading_compressed_records_allocates_nothing_once_there_is_room() {
    for compress in [ZSTD, LZ4] {
        reads_without_allocating(compress);
    }
}

fn reads_without_allocating(compress: Compress) {
    let body = with(compress, 3, |_, frame| described(0, 1, frame));
    let answer = decode(&asking(0), &body, &Arc::default());
    let chunk = Chunk::whole(&answer.batch);
    let mut scratch = Unpacked::default();
    let mut read = || {
        let mut records = 0;
        let outcome = chunk.each(&mut scratch, |_| {
            records += 1;
            Ok::<_, Damaged>(())
        });
        outcome.map(|()| records)
    };
    assert_eq!(read().expect("whole"), 6);
    let counted = allocation_counter::measure(|| assert_eq!(read().expect("whole"), 6));
    assert_eq!(counted.count_total, 0);
}
