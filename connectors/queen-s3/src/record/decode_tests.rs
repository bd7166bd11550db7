use proptest::prelude::*;
use serde_json::json;

use super::super::Chunk;
use super::super::RecordIndex;
use super::super::testing::{all, told};
use super::*;
use crate::broker::{FetchEntry, FetchedEntry};

const TS: &str = "2026-09-04T10:03:41.918204Z";

fn request(partitions: &[(&str, i64)]) -> FetchRequest {
    let entries = partitions
        .iter()
        .map(|(partition, offset)| FetchEntry {
            partition: (*partition).into(),
            offset: *offset,
            max_bytes: 1 << 20,
        })
        .collect();
    FetchRequest {
        queue: "orders".into(),
        entries,
        max_wait_ms: 0,
    }
}

fn decode(request: &FetchRequest, body: impl Into<String>) -> Result<FetchAnswer, DecodeError> {
    decode_fetch(request, Bytes::from(body.into()), &MemoryBudget::new(0))
}

/// One entry of queue `orders`, partition `p`, bounds 0 and 100, with `records` as its text.
fn entry(records: &str) -> String {
    format!(
        r#"{{"entries":[{{"queue":"orders","partition":"p","records":[{records}],"highWatermark":100,"logStartOffset":0}}]}}"#
    )
}

fn record(offset: i64, ts: &str) -> String {
    format!(r#"{{"offset":{offset},"transactionId":"t","payload":1,"ts":"{ts}"}}"#)
}

fn refusal(result: Result<FetchAnswer, DecodeError>) -> String {
    match result {
        Err(DecodeError::Contradiction(text)) => text,
        other => panic!("a contradiction was expected: {other:?}"),
    }
}

#[test]
fn every_slice_is_the_brokers_own_text() {
    let body = entry(&format!(
        r#"{{"offset":7,"transactionId":"a\u00e9\"b","payload": {{"n": 1.50, "s":"\ud800"}} ,"ts":"{TS}"}},
           {{"offset":8,"transactionId":"","payload":null,"ts":"{TS}"}}"#
    ));
    let answer = decode(&request(&[("p", 7)]), body).expect("it reads");
    let records = all(&answer.batch);
    let ts = records[0].1;
    assert_eq!(ts.to_string(), TS);
    let texts = [
        (
            br#"a\u00e9\"b"#.to_vec(),
            br#"{"n": 1.50, "s":"\ud800"}"#.to_vec(),
        ),
        (b"".to_vec(), b"null".to_vec()),
    ];
    let [first, second] = texts;
    assert_eq!(
        records,
        [(7, ts, first.0, first.1), (8, ts, second.0, second.1)]
    );
    assert_eq!(
        answer.entries,
        [FetchedEntry {
            records: 0..2,
            high_watermark: 100,
            log_start: 0,
            life: None,
            error: None
        }]
    );
}

#[test]
fn an_answer_reads_as_the_wire_types_write_it() {
    let wire: queen_protocol::fetch::FetchResponse = serde_json::from_value(json!({
        "entries": [
            {"queue": "orders", "partition": "p", "records": [
                {"offset": 3, "transactionId": "t", "payload": {"a": [1]}, "ts": TS},
            ], "highWatermark": 4, "logStartOffset": 1},
            {"queue": "orders", "partition": "q", "records": [], "highWatermark": 9,
             "logStartOffset": 5, "error": "OFFSET_OUT_OF_RANGE"},
        ]
    }))
    .expect("the wire types read it");
    let body = serde_json::to_string(&wire).expect("the wire types write it");
    let answer = decode(&request(&[("p", 3), ("q", 0)]), body).expect("it reads");
    assert_eq!(all(&answer.batch)[0].3, br#"{"a":[1]}"#);
    assert_eq!(answer.entries[1].error, Some(EntryError::OffsetOutOfRange));
    assert_eq!(
        (
            answer.entries[1].log_start,
            answer.entries[1].high_watermark
        ),
        (5, 9)
    );
}

#[test]
fn unknown_fields_absent_records_and_any_order_are_taken() {
    let body = format!(
        r#" {{"new":[{{"deep":[[]]}}],"entries":[
            {{"error":null,"logStartOffset":0,"highWatermark":3,"x":{{}},"records":[
                {{"ts":"{TS}","y":"z","payload":[],"transactionId":"t","offset":2}}],
              "partition":"p","queue":"orders"}},
            {{"queue":"orders","partition":"q","highWatermark":0,"logStartOffset":0}},
            {{"queue":"orders","partition":"r","records":null,"highWatermark":0,"logStartOffset":0}}
        ],"cost":1}} "#
    );
    let answer = decode(&request(&[("p", 0), ("q", 0), ("r", 0)]), body).expect("it reads");
    assert_eq!(answer.entries[0].records, 0..1);
    assert_eq!(answer.entries[1].records, 1..1);
    assert_eq!(answer.entries[2].records, 1..1);
}

#[test]
fn a_name_may_come_as_a_number_or_with_escapes() {
    let body = r#"{"entries":[
        {"queue":"\u006frders","partition":17,"highWatermark":0,"logStartOffset":0},
        {"queue":"orders","partition":"\u00e9","highWatermark":0,"logStartOffset":0}]}"#;
    assert!(decode(&request(&[("17", 0), ("é", 0)]), body).is_ok());
}

#[test]
fn an_answer_to_another_request_is_refused() {
    let empty = |queue: &str, partition: &str| json!({"queue": queue, "partition": partition, "highWatermark": 0, "logStartOffset": 0});
    let answer = |entries: Vec<serde_json::Value>| json!({ "entries": entries }).to_string();
    let asked = request(&[("p", 0), ("q", 0)]);
    for (body, why) in [
        (answer(vec![empty("orders", "p")]), "1 entries where 2"),
        (answer(vec![]), "0 entries where 2"),
        (
            answer(vec![
                empty("orders", "p"),
                empty("orders", "q"),
                empty("orders", "r"),
            ]),
            "more than the 2",
        ),
        (
            answer(vec![empty("orders", "q"), empty("orders", "p")]),
            "the partition is \"q\"",
        ),
        (
            answer(vec![empty("clicks", "p"), empty("orders", "q")]),
            "the queue is \"clicks\"",
        ),
    ] {
        let text = refusal(decode(&asked, body));
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn offsets_rise_from_the_one_asked_for() {
    let asked = request(&[("p", 5)]);
    for offsets in [&[4][..], &[5, 5], &[6, 5], &[-1]] {
        let records: Vec<_> = offsets.iter().map(|offset| record(*offset, TS)).collect();
        let text = refusal(decode(&asked, entry(&records.join(","))));
        assert!(text.contains("partition p"), "{text}");
    }
    let gap = entry(&[record(5, TS), record(9, TS)].join(","));
    assert!(decode(&asked, gap).is_ok());
    for (last, taken) in [(i64::MAX - 1, true), (i64::MAX, false)] {
        // Of the last one nothing could say what follows it.
        let read = decode(&asked, entry(&record(last, TS)));
        assert_eq!(read.is_ok(), taken, "{last}");
    }
    let negative = refusal(decode(&request(&[("p", -9)]), entry(&record(-3, TS))));
    assert!(negative.contains("offset -3"), "{negative}");
}

#[test]
fn ts_may_stay_and_from_a_record_on_whose_ts_falls_the_next_answer_begins() {
    let later = "2026-09-04T10:03:41.918205Z";
    let asked = request(&[("p", 0)]);
    let rising = entry(&[record(0, TS), record(1, TS), record(2, later)].join(","));
    let answer = decode(&asked, rising).expect("it reads");
    let records = all(&answer.batch);
    assert_eq!(records[2].1, records[1].1.on(1));
    let falling = entry(&[record(0, later), record(1, TS), record(2, later)].join(","));
    let answer = decode(&asked, falling).expect("it reads");
    assert_eq!(answer.entries[0].records, 0..1);
}

#[test]
fn ts_starts_anew_with_every_entry() {
    let body = format!(
        r#"{{"entries":[
        {{"queue":"orders","partition":"p","records":[{}],"highWatermark":1,"logStartOffset":0}},
        {{"queue":"orders","partition":"q","records":[{}],"highWatermark":1,"logStartOffset":0}}]}}"#,
        record(0, "2026-09-04T10:00:00.000001Z"),
        record(0, "2026-09-04T09:00:00.000001Z"),
    );
    assert!(decode(&request(&[("p", 0), ("q", 0)]), body).is_ok());
}

#[test]
fn impossible_bounds_are_refused() {
    for (log_start, high_watermark) in [(-1, 0), (0, -1), (5, 4)] {
        let body = json!({"entries": [{"queue": "orders", "partition": "p", "records": [],
            "highWatermark": high_watermark, "logStartOffset": log_start}]});
        let text = refusal(decode(&request(&[("p", 0)]), body.to_string()));
        assert!(text.contains("the log runs from"), "{text}");
    }
}

#[test]
fn a_record_raises_a_watermark_that_was_read_before_it() {
    let answer = decode(&request(&[("p", 100)]), entry(&record(100, TS))).expect("it reads");
    assert_eq!(answer.entries[0].high_watermark, 101);
}

#[test]
fn an_error_needs_bounds_only_where_it_is_about_them() {
    let body = |error: &str| {
        json!({"entries": [{"queue": "orders", "partition": "p", "error": error,
            "highWatermark": -1}]})
        .to_string()
    };
    let asked = request(&[("p", 0)]);
    let answer = decode(&asked, body("UNKNOWN_TOPIC_OR_PARTITION")).expect("it reads");
    assert_eq!(
        answer.entries,
        [FetchedEntry {
            records: 0..0,
            high_watermark: 0,
            log_start: 0,
            life: None,
            error: Some(EntryError::UnknownQueue)
        }]
    );
    assert!(decode(&asked, body("OFFSET_OUT_OF_RANGE")).is_err());
}

#[test]
fn a_record_that_lacks_a_field_or_has_it_twice_is_malformed() {
    let asked = request(&[("p", 0)]);
    let whole = [
        r#""offset":0"#.to_owned(),
        r#""transactionId":"t""#.to_owned(),
        r#""payload":1"#.to_owned(),
        format!(r#""ts":"{TS}""#),
    ];
    assert!(decode(&asked, entry(&format!("{{{}}}", whole.join(",")))).is_ok());
    for at in 0..whole.len() {
        let mut lacking = whole.to_vec();
        let field = lacking.remove(at);
        assert!(
            decode(&asked, entry(&format!("{{{}}}", lacking.join(",")))).is_err(),
            "{field}"
        );
        let mut doubled = whole.to_vec();
        doubled.push(field.clone());
        assert!(
            decode(&asked, entry(&format!("{{{}}}", doubled.join(",")))).is_err(),
            "{field}"
        );
    }
}

#[test]
fn what_is_no_json_or_no_utf8_is_malformed() {
    let asked = request(&[("p", 0)]);
    let whole = entry(&record(0, TS));
    assert!(matches!(
        decode(&asked, format!("{whole}x")),
        Err(DecodeError::Json(_))
    ));
    let mut bytes = whole.into_bytes();
    let at = bytes
        .iter()
        .position(|byte| *byte == b't')
        .expect("a transaction id");
    bytes[at] = 0xFF;
    let read = decode_fetch(&asked, bytes.into(), &MemoryBudget::new(0));
    assert!(matches!(read, Err(DecodeError::Json(_))));
}

#[test]
fn the_body_and_its_index_count_against_the_budget() {
    let budget = MemoryBudget::new(1 << 20);
    let body = entry(&record(0, TS));
    let len = body.len();
    let answer = decode_fetch(&request(&[("p", 0)]), body.into(), &budget).expect("it reads");
    assert_eq!(budget.used(), len + size_of::<RecordIndex>());
    drop(answer);
    assert_eq!(budget.used(), 0);
}

#[test]
fn allocations_do_not_grow_with_the_records() {
    let allocations = |records: i64| {
        let texts: Vec<_> = (0..records)
            .map(|offset| {
                let ts = format!("2026-09-04T10:03:41.{:06}Z", offset / 10);
                format!(r#"{{"offset":{offset},"transactionId":"t\u00e9-{offset}","payload":{{"n":[{offset}]}},"ts":"{ts}"}}"#)
            })
            .collect();
        let body = Bytes::from(entry(&texts.join(",")));
        let (asked, budget) = (request(&[("p", 0)]), MemoryBudget::new(0));
        let counted = allocation_counter::measure(|| {
            let answer = decode_fetch(&asked, body.clone(), &budget).expect("it reads");
            assert_eq!(i64::from(answer.batch.records()), records);
        });
        counted.count_total
    };
    let (few, many) = (allocations(1_000), allocations(64_000));
    // The index doubles six times on the way from one to the other.
    assert!(
        many <= few + 6,
        "{few} allocations for 1,000 records, {many} for 64,000"
    );
}

fn any_answer() -> impl Strategy<Value = String> {
    let records = prop::collection::vec(("[ -~é\n]{0,12}", 0_u32..3), 0..6);
    prop::collection::vec(records, 3).prop_map(|entries| {
        let entries: Vec<_> = entries
            .iter()
            .zip(["p", "q", "r"])
            .map(|(records, partition)| {
                let records: Vec<_> = records
                    .iter()
                    .enumerate()
                    .map(|(offset, (text, second))| {
                        json!({"offset": offset, "transactionId": text,
                               "payload": {"text": text, "second": second}, "ts": TS})
                    })
                    .collect();
                json!({"queue": "orders", "partition": partition, "records": records,
                       "highWatermark": 10, "logStartOffset": 0})
            })
            .collect();
        json!({ "entries": entries }).to_string()
    })
}

proptest! {
    #[test]
    fn a_damaged_answer_is_refused_or_read_but_never_panics(
        body in any_answer(),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        keep_length in any::<bool>(),
    ) {
        let mut bytes = body.into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if !keep_length {
            bytes.truncate(cut.index(bytes.len()));
        }
        let asked = request(&[("p", 0), ("q", 0), ("r", 0)]);
        if let Ok(answer) = decode_fetch(&asked, bytes.into(), &MemoryBudget::new(0)) {
            prop_assert_eq!(answer.entries.len(), 3);
            for (_, _, _, payload) in all(&answer.batch) {
                prop_assert!(serde_json::from_slice::<&RawValue>(&payload).is_ok());
            }
        }
    }

    #[test]
    fn every_field_of_a_sound_answer_comes_back(body in any_answer()) {
        let asked = request(&[("p", 0), ("q", 0), ("r", 0)]);
        let answer = decode(&asked, body.clone()).expect("it reads");
        let wire: queen_protocol::fetch::FetchResponse =
            serde_json::from_str(&body).expect("the wire types read it");
        for (entry, wire) in answer.entries.iter().zip(&wire.entries) {
            let chunk = Chunk::whole(&answer.batch).part(entry.records.clone());
            let records = told(&chunk).expect("nothing is compressed");
            prop_assert_eq!(records.len(), wire.records.len());
            for ((offset, _, id, payload), wire) in records.iter().zip(&wire.records) {
                prop_assert_eq!(*offset, wire.offset);
                let quoted = format!("\"{}\"", std::str::from_utf8(id).expect("UTF-8"));
                let transaction_id: String = serde_json::from_str(&quoted).expect("a string");
                prop_assert_eq!(&transaction_id, &wire.transaction_id);
                let payload: serde_json::Value = serde_json::from_slice(payload).expect("JSON");
                prop_assert_eq!(&payload, &wire.payload);
            }
        }
    }
}

#[test]
fn the_life_of_a_partition_is_read_where_the_broker_tells_it() {
    let asked = request(&[("p", 0)]);
    let read = |id: &str| {
        let body = format!(
            r#"{{"entries":[{{"queue":"orders","partition":"p","records":[],"highWatermark":0,
                "logStartOffset":0{id}}}]}}"#
        );
        let answer = decode(&asked, body).expect("it reads");
        answer.entries[0].life
    };
    let life = "9f0c1f4e-54a5-4a3f-8a65-6d7f0b2c1d3e";
    let named = format!(r#","id":"{life}""#);
    assert_eq!(read(&named), Some(life.parse().expect("a UUID")));
    for other in [
        "",
        r#","id":null"#,
        r#","id":7"#,
        r#","id":"of another shape""#,
    ] {
        assert_eq!(read(other), None, "{other}");
    }
}
