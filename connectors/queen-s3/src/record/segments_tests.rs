use bytes::Bytes;
use proptest::prelude::*;

use super::super::packed::LAYOUT;
use super::super::testing::{Told, all, compressed};
use super::super::{RecordIndex, decode_fetch};
use super::*;
use crate::broker::FetchEntry;

pub(in crate::record) const TS: i64 = 1_788_516_221_918_204;

/// A record as pushed: its id as a JSON string without quotes, and its payload.
pub(in crate::record) type Pushed = (String, String);

#[derive(Debug)]
pub(in crate::record) struct Stored {
    pub(in crate::record) base_offset: i64,
    pub(in crate::record) ts: i64,
    pub(in crate::record) records: Vec<Pushed>,
}

#[derive(Debug)]
pub(in crate::record) struct Answered {
    pub(in crate::record) partition: String,
    pub(in crate::record) offset: i64,
    pub(in crate::record) segments: Vec<Stored>,
}

pub(in crate::record) fn request(entries: &[Answered]) -> FetchRequest {
    let entries = entries
        .iter()
        .map(|entry| FetchEntry {
            partition: entry.partition.as_str().into(),
            offset: entry.offset,
            max_bytes: 1 << 20,
        })
        .collect();
    FetchRequest {
        queue: "orders".into(),
        entries,
        max_wait_ms: 0,
    }
}

pub(in crate::record) fn content(records: &[Pushed]) -> Vec<u8> {
    let mut content = vec![LAYOUT];
    for (id, payload) in records {
        content.extend_from_slice(&(id.len() as u32 + 2).to_le_bytes());
        content.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        content.extend_from_slice(format!("\"{id}\"{payload}").as_bytes());
    }
    content
}

pub(in crate::record) fn segment(
    base_offset: i64,
    ts: i64,
    records: usize,
    raw_bytes: usize,
    block: &[u8],
) -> Vec<u8> {
    let mut out = vec![SEGMENT];
    out.extend_from_slice(&base_offset.to_le_bytes());
    out.extend_from_slice(&ts.to_le_bytes());
    for number in [records, raw_bytes, block.len()] {
        out.extend_from_slice(&(number as u32).to_le_bytes());
    }
    out.extend_from_slice(block);
    out
}

pub(in crate::record) fn entry(partition: &str, segments: &[Vec<u8>], error: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for name in ["orders", partition] {
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
    }
    out.extend_from_slice(&1_000i64.to_le_bytes());
    out.extend_from_slice(&0i64.to_le_bytes());
    out.extend(segments.concat());
    out.extend_from_slice(&[NO_MORE_SEGMENTS, error.len() as u8]);
    out.extend_from_slice(error.as_bytes());
    out
}

pub(in crate::record) fn body(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"QSEG\x01".to_vec();
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    out.extend(entries.concat());
    out
}

fn packed(entries: &[Answered]) -> Vec<u8> {
    packed_as(entries, |_, content| compressed(content))
}

/// The answer with what `block` makes of each segment's content.
pub(in crate::record) fn packed_as(
    entries: &[Answered],
    block: impl Fn(&[Pushed], &[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let pack = |entry: &Answered| {
        let stored = entry.segments.iter().map(|stored| {
            let content = content(&stored.records);
            let block = block(&stored.records, &content);
            let count = stored.records.len();
            segment(stored.base_offset, stored.ts, count, content.len(), &block)
        });
        self::entry(&entry.partition, &stored.collect::<Vec<_>>(), "")
    };
    body(&entries.iter().map(pack).collect::<Vec<_>>())
}

/// The same answer as a broker renders it.
pub(in crate::record) fn rendered(entries: &[Answered]) -> String {
    let render = |entry: &Answered| {
        let mut records = Vec::new();
        for stored in &entry.segments {
            for (offset, (id, payload)) in (stored.base_offset..).zip(&stored.records) {
                let payload = if payload.is_empty() { "null" } else { payload };
                let ts = Micros(stored.ts);
                if offset >= entry.offset {
                    records.push(format!(
                        r#"{{"offset":{offset},"transactionId":"{id}","payload":{payload},"ts":"{ts}"}}"#
                    ));
                }
            }
        }
        format!(
            r#"{{"queue":"orders","partition":"{}","records":[{}],"highWatermark":1000,"logStartOffset":0}}"#,
            entry.partition,
            records.join(",")
        )
    };
    let entries: Vec<_> = entries.iter().map(render).collect();
    format!(r#"{{"entries":[{}]}}"#, entries.join(","))
}

fn decode(request: &FetchRequest, body: &[u8]) -> Result<FetchAnswer, DecodeError> {
    let body = Bytes::copy_from_slice(body);
    decode_segments(request, body, &MemoryBudget::new(0), &Arc::default())
}

/// What a window would take of an answer.
fn records(answer: &FetchAnswer) -> Vec<Told> {
    all(&answer.batch)
}

pub(in crate::record) fn one(records: &[(&str, &str)]) -> Vec<Pushed> {
    let pushed = records.iter();
    pushed
        .map(|(id, payload)| ((*id).to_owned(), (*payload).to_owned()))
        .collect()
}

pub(in crate::record) fn asking(offset: i64) -> FetchRequest {
    request(&[Answered {
        partition: "p".into(),
        offset,
        segments: vec![],
    }])
}

fn refusal(request: &FetchRequest, body: &[u8]) -> String {
    match decode(request, body) {
        Err(DecodeError::Contradiction(text)) => text,
        other => panic!("a contradiction was expected: {other:?}"),
    }
}

fn pushed() -> impl Strategy<Value = Pushed> {
    let id = prop_oneof!["[a-z0-9é-]{0,12}", Just(r#"a\u00e9\"b\\"#.to_owned())];
    let payload = prop_oneof![
        Just(String::new()),
        Just("null".to_owned()),
        Just("{\"n\": 1.50,\n \"s\":\"\\ud800 é\"}".to_owned()),
        "[1-9][0-9]{0,39}",
        "\"[a-z ☃]{0,60}\"",
    ];
    (id, payload)
}

pub(in crate::record) fn answered() -> impl Strategy<Value = Vec<Answered>> {
    let segment = (prop::collection::vec(pushed(), 1..20), 0..3i64);
    let entry = (prop::collection::vec(segment, 0..4), 0..30i64);
    prop::collection::vec(entry, 1..5).prop_map(|entries| {
        let entries = entries.into_iter().enumerate();
        entries
            .map(|(number, (stored, offset))| {
                let (mut base_offset, mut ts) = (0, TS);
                let mut segments = Vec::new();
                for (records, later) in stored {
                    let count = records.len() as i64;
                    ts += later;
                    if base_offset + count > offset {
                        segments.push(Stored {
                            base_offset,
                            ts,
                            records,
                        });
                    }
                    base_offset += count;
                }
                Answered {
                    partition: format!("p{number}"),
                    offset,
                    segments,
                }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn segments_hold_what_the_rendered_answer_holds(entries in answered()) {
        let request = request(&entries);
        let from_segments = decode(&request, &packed(&entries)).expect("segments");
        let json = Bytes::from(rendered(&entries));
        let from_json = decode_fetch(&request, json, &MemoryBudget::new(0)).expect("JSON");
        prop_assert_eq!(records(&from_segments), records(&from_json));
        prop_assert_eq!(from_segments.entries, from_json.entries);
    }

    #[test]
    fn any_bytes_at_all_are_read_without_a_panic(
        entries in answered(),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut body = packed(&entries);
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = decode(&request(&entries), &body);
        body.truncate(cut.index(body.len()));
        prop_assert!(decode(&request(&entries), &body).is_err());
    }
}

#[test]
fn an_empty_payload_is_null_and_lies_beside_its_segment() {
    let records_of = one(&[("a", "1"), ("b", ""), ("c", "")]);
    let answer = [Answered {
        partition: "p".into(),
        offset: 1,
        segments: vec![Stored {
            base_offset: 0,
            ts: TS,
            records: records_of,
        }],
    }];
    let decoded = decode(&request(&answer), &packed(&answer)).expect("it reads");
    let payloads: Vec<_> = records(&decoded)
        .into_iter()
        .map(|record| record.3)
        .collect();
    assert_eq!(payloads, [b"null".to_vec(), b"null".to_vec()]);
}

#[test]
fn a_changed_byte_of_a_block_ends_the_records_of_its_entry() {
    let content = content(&one(&[("a", "{\"n\":1}"), ("b", "{\"n\":2}")]));
    let block = compressed(&content);
    let first = segment(0, TS, 2, content.len(), &block);
    for at in 0..block.len() {
        let mut damaged = block.clone();
        damaged[at] ^= 0x55;
        let second = segment(2, TS, 2, content.len(), &damaged);
        let third = segment(4, TS, 2, content.len(), &block);
        let body = body(&[entry("p", &[first.clone(), second, third], "")]);
        let answer = decode(&asking(0), &body).expect("the answer reads");
        let whole = records(&answer).len() == 6 && answer.entries[0].error.is_none();
        // A byte of the frame's head may say nothing about its content.
        let ends = answer.entries[0].error.is_none() && answer.entries[0].records == (0..2);
        assert!(whole || ends, "byte {at}: {answer:?}");
        assert!(at < 4 || !whole, "byte {at} changed unnoticed");
    }
}

#[test]
fn a_block_that_is_not_what_its_segment_says_is_unreadable() {
    let records_of = one(&[("a", "1"), ("b", "2")]);
    let whole = content(&records_of);
    let mut long_id = whole.clone();
    long_id[1] = 200;
    let mut not_text = whole.clone();
    let last = not_text.len() - 1;
    not_text[last] = 0xff;
    let mut unquoted = whole.clone();
    unquoted[9] = b'x';
    let mut escape = whole.clone();
    escape[10] = b'\\';
    let mut layout = whole.clone();
    layout[0] = 2;
    for (what, content, count) in [
        ("a record less", &whole, 1),
        ("a record more", &whole, 3),
        ("an id past the end", &long_id, 2),
        ("no text", &not_text, 2),
        ("no JSON string", &unquoted, 2),
        ("an escape of the end", &escape, 2),
        ("another layout", &layout, 2),
    ] {
        let stored = segment(0, TS, count, content.len(), &compressed(content));
        let answer = decode(&asking(0), &body(&[entry("p", &[stored], "")])).expect(what);
        assert_eq!(
            answer.entries[0].error,
            Some(EntryError::Unreadable),
            "{what}"
        );
        assert_eq!(answer.batch.records(), 0, "{what}");
    }
    for raw_bytes in [whole.len() - 1, whole.len() + 1] {
        let stored = segment(0, TS, 1, raw_bytes, &compressed(&whole));
        let answer = decode(&asking(0), &body(&[entry("p", &[stored], "")])).expect("it reads");
        assert_eq!(answer.entries[0].error, Some(EntryError::Unreadable));
    }
}

#[test]
fn errors_and_bounds_are_read() {
    let refused = body(&[entry("p", &[], "OFFSET_OUT_OF_RANGE")]);
    let answer = decode(&asking(5), &refused).expect("it reads");
    let read = &answer.entries[0];
    assert_eq!(read.error, Some(EntryError::OffsetOutOfRange));
    assert_eq!((read.log_start, read.high_watermark), (0, 1_000));
}

#[test]
fn what_contradicts_the_request_or_itself_is_refused() {
    let content = content(&one(&[("a", "1")]));
    let block = compressed(&content);
    let stored = |offset, ts| segment(offset, ts, 1, content.len(), &block);
    let whole = body(&[entry("p", &[stored(5, TS)], "")]);
    for (body, expected) in [
        (body(&[]), "0 entries where 1 were asked for"),
        (
            body(&[entry("x", &[], "")]),
            "the answer is of queue orders, partition x",
        ),
        (
            body(&[entry("p", &[], ""), entry("q", &[], "")]),
            "more than the 1 entries",
        ),
        (
            body(&[entry("p", &[stored(6, TS), stored(6, TS)], "")]),
            "offset 6 where 7",
        ),
        (
            body(&[entry("p", &[stored(5, i64::MAX)], "")]),
            "is no instant",
        ),
        (
            body(&[entry("p", &[stored(i64::MAX, TS)], "")]),
            "a segment of 1 records",
        ),
        ([&whole[..], b"x"].concat(), "1 bytes follow"),
        (b"QSEG\x05\0\0\0\0".to_vec(), "the layout 5"),
        (
            b"{\"entries\":[]}".to_vec(),
            "does not begin as segments do",
        ),
        (
            body(&[entry("p", &[segment(0, TS, 9, 9, b"")], "")]),
            "9 records",
        ),
    ] {
        let text = refusal(&asking(5), &body);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn nothing_is_reserved_on_the_word_of_a_segment_that_is_too_long() {
    let huge = segment(0, TS, 1, u32::MAX as usize, b"");
    let text = refusal(&asking(0), &body(&[entry("p", &[huge], "")]));
    assert!(
        text.contains("more than any fetch call may return"),
        "{text}"
    );
}

#[test]
fn what_was_decompressed_counts_against_the_budget() {
    let content = content(&one(&[("a", &format!("\"{}\"", "x".repeat(100_000)))]));
    let stored = segment(0, TS, 1, content.len(), &compressed(&content));
    let budget = MemoryBudget::new(1 << 20);
    let body = body(&[entry("p", &[stored], "")]);
    let length = body.len();
    let answer = decode_segments(&asking(0), body.into(), &budget, &Arc::default());
    let answer = answer.expect("it reads");
    assert!(length < 1_000 && budget.used() >= 100_000);
    drop(answer);
    assert_eq!(budget.used(), 0);
}

#[test]
fn allocations_do_not_grow_with_the_records() {
    let allocations = |count: i64| {
        let records: Vec<Pushed> = (0..count)
            .map(|number| (format!("id-{number}"), format!("{{\"n\":{number}}}")))
            .collect();
        let content = content(&records);
        let stored = segment(0, TS, records.len(), content.len(), &compressed(&content));
        let body = Bytes::from(body(&[entry("p", &[stored], "")]));
        let (request, budget, trust) = (asking(0), MemoryBudget::new(0), Arc::default());
        let counted = allocation_counter::measure(|| {
            let answer = decode_segments(&request, body.clone(), &budget, &trust);
            assert_eq!(i64::from(answer.expect("it reads").batch.records()), count);
        });
        let kept = content.len() as u64 + count as u64 * size_of::<RecordIndex>() as u64;
        // Room for the decompressor and the answer's few parts, and none for a copy of the records.
        let room = 256 << 10;
        assert!(
            counted.bytes_total <= kept + room,
            "{} bytes for {kept}",
            counted.bytes_total
        );
        counted.count_total
    };
    let (few, many) = (allocations(100), allocations(50_000));
    assert_eq!(few, many);
}

#[test]
fn the_life_of_a_partition_is_read_where_the_version_tells_it() {
    let life = Uuid::from_u128(0x0f1e_2d3c_4b5a);
    let with_lives = |life: Uuid| {
        let content = content(&one(&[("a", "1")]));
        let stored = segment(5, TS, 1, content.len(), &compressed(&content));
        let mut body = body(&[entry("p", &[stored], "")]);
        body[MAGIC.len()] = WITH_LIVES;
        let bounds_end = MAGIC.len() + 5 + "orders".len() + "p".len() + 4 + 16;
        body.splice(bounds_end..bounds_end, life.into_bytes());
        body
    };
    let read = |body: &[u8]| decode(&asking(5), body);
    for (told, expected) in [(life, Some(life)), (Uuid::nil(), None)] {
        let answer = read(&with_lives(told)).expect("it reads");
        assert_eq!(answer.entries[0].life, expected);
        assert_eq!(answer.batch.records(), 1);
    }
    let plain = body(&[entry("p", &[], "")]);
    assert_eq!(read(&plain).expect("it reads").entries[0].life, None);
}
