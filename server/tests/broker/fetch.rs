use std::time::Duration;

use queen::admission::Slot;
use tokio::time::timeout;

use crate::support::{Fixture, until};

const TENANT_A: &str = "11111111-1111-1111-1111-111111111111";
const TENANT_B: &str = "22222222-2222-2222-2222-222222222222";
/// More than any answer that does not park takes.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn every_entry_is_answered_in_order_with_its_bounds() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2", "3"]).await;
    fixture.push("q", "7", &["7"]).await;
    let answer = fixture
        .fetch(
            r#"{"entries":[
                {"queue":"q","partition":"p","offset":1},
                {"queue":"q","partition":7,"offset":0},
                {"queue":"q","partition":"p","offset":3},
                {"queue":"q","partition":"p","offset":4},
                {"queue":"q","partition":"never written","offset":0},
                {"queue":"nowhere","offset":0}]}"#,
        )
        .await;
    let entries = &answer.entries;
    let offsets = |n: usize| {
        entries[n]
            .records
            .iter()
            .map(|r| r.offset)
            .collect::<Vec<_>>()
    };
    assert_eq!(offsets(0), [1, 2]);
    assert_eq!(
        (entries[0].high_watermark, entries[0].log_start_offset),
        (3, 0)
    );
    assert_eq!((entries[1].partition.as_str(), offsets(1)), ("7", vec![0]));
    assert!(entries[2].is_ok() && entries[2].records.is_empty());
    assert!(entries[3].is_offset_out_of_range());
    assert_eq!(entries[3].high_watermark, 3);
    assert!(entries[4].is_ok());
    assert_eq!(
        (entries[4].high_watermark, entries[4].log_start_offset),
        (0, 0)
    );
    assert!(entries[5].is_unknown_partition());
}

#[tokio::test]
async fn who_asks_for_segments_gets_the_blocks_as_they_are_stored() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "{\"n\":2}"]).await;
    fixture.push("q", "p", &["3"]).await;
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":1},{"queue":"q","offset":9}]}"#;
    let (media_type, answer) = fixture.fetch_segments(body).await;
    assert_eq!(media_type, "application/vnd.queen.segments");
    assert!(answer.starts_with(b"QSEG\x01\x02\0\0\0\x01\0q\x01\0p"));
    let refused = b"\0\0\x01\0q\x07\0Default";
    assert!(answer.windows(refused.len()).any(|bytes| bytes == refused));
    assert!(answer.ends_with(b"\0\x13OFFSET_OUT_OF_RANGE"));

    let (_, stored_blocks) = fixture
        .fetch_as("application/vnd.queen.segments;version=4", body)
        .await;
    assert!(stored_blocks.starts_with(b"QSEG\x04\x02\0\0\0\x01\0q\x01\0p"));

    let session = fixture.session().await;
    let sql = "SELECT base_offset, records, raw_bytes, block FROM queen.segments ORDER BY 1";
    let stored = session.query(sql, &[]).await.unwrap();
    assert_eq!(stored.len(), 2);
    for row in stored {
        let (records, raw_bytes, block) = (
            row.get::<_, i32>(1),
            row.get::<_, i32>(2),
            row.get::<_, &[u8]>(3),
        );
        assert!(block.starts_with(b"\x5a\x2a\x4d\x18\x0a\0\0\0"));
        assert!(block[18..].starts_with(b"\x04\x22\x4d\x18"), "LZ4");
        let mut expected = records.to_le_bytes().to_vec();
        expected.extend_from_slice(&raw_bytes.to_le_bytes());
        let found_in = |answer: &[u8], rest: &[u8]| {
            let expected = [&expected, rest].concat();
            let mut places = answer.windows(expected.len());
            assert!(places.any(|bytes| bytes == expected), "{row:?}");
        };
        let length = (block.len() as u32).to_le_bytes();
        found_in(&stored_blocks, &[&length, block].concat());
        // Who does not know of descriptions and LZ4 gets a frame of zstd.
        let mut places = answer.windows(expected.len());
        let at = places.position(|bytes| bytes == expected).unwrap();
        let frame = &answer[at + expected.len() + 4..];
        assert!(frame.starts_with(b"\x28\xb5\x2f\xfd"), "{row:?}");
    }
}

#[tokio::test]
async fn an_answer_tells_the_life_of_its_partition_as_listings_do() {
    let fixture = Fixture::start().await;
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0},{"queue":"q","partition":"p","offset":9},
        {"queue":"q","partition":"never written","offset":0},{"queue":"nowhere","offset":0}]}"#;
    let mut lives = Vec::new();
    for _ in 0..2 {
        fixture.push("q", "p", &["1", "2"]).await;
        let listed = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
        let listed = listed.entries[0].partitions[0].id.clone().unwrap();
        let (_, json) = fixture.fetch_as("application/json", body).await;
        let answer: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let told = |entry: usize| answer["entries"][entry]["id"].as_str();
        assert_eq!((told(0), told(1)), (Some(&*listed), Some(&*listed)));
        assert_eq!((told(2), told(3)), (None, None));

        let life: uuid::Uuid = listed.parse().unwrap();
        let (media_type, segments) = fixture
            .fetch_as("application/vnd.queen.segments;version=2", body)
            .await;
        assert_eq!(media_type, "application/vnd.queen.segments");
        assert!(segments.starts_with(b"QSEG\x02\x04\0\0\0"));
        let count = |wanted: &[u8]| segments.windows(16).filter(|at| *at == wanted).count();
        assert_eq!(count(life.as_bytes()), 2);
        lives.push(life);
        // Who asks for no version gets the one that has no lives.
        let (_, plain) = fixture.fetch_segments(body).await;
        assert!(plain.starts_with(b"QSEG\x01"));
        assert_eq!(plain.len() + 4 * 16, segments.len());
        let deleted = fixture
            .request("DELETE", "/api/v1/resources/queues/q", "")
            .await;
        assert!(deleted.status < 300, "{}", deleted.text);
    }
    assert_ne!(lives[0], lives[1]);
}

#[tokio::test]
async fn what_is_left_of_a_segment_counts_for_who_waits_for_bytes() {
    let fixture = Fixture::start().await;
    let payload = format!("\"{}\"", "x".repeat(1_000));
    fixture.push("q", "p", &["1", &payload]).await;
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":1}],"minBytes":900,"maxWaitMs":30000}"#;
    timeout(SOON, fixture.fetch_segments(body)).await.unwrap();
    let answer = timeout(SOON, fixture.fetch(body)).await.unwrap();
    assert_eq!(answer.record_count(), 1);
}

#[tokio::test]
async fn sealed_segments_are_sent_opened() {
    let key = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let fixture = Fixture::with(&[("QUEEN_ENCRYPTION_KEY", key)], &[]).await;
    let configure = r#"{"queue":"q","options":{"encryptionEnabled":true}}"#;
    let configured = fixture.post("/api/v1/configure", configure).await;
    assert!(configured.status < 300, "{}", configured.text);
    fixture.push("q", "p", &["\"a secret\""]).await;
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    let (_, answer) = fixture.fetch_segments(body).await;
    let frame = [0x28, 0xb5, 0x2f, 0xfd];
    assert!(
        answer.windows(4).any(|bytes| bytes == frame),
        "a zstd frame"
    );
}

#[tokio::test]
async fn below_the_log_start_is_out_of_range_with_the_bounds() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2"]).await;
    fixture.push("q", "p", &["3"]).await;
    let session = fixture.session().await;
    session
        .batch_execute(
            "DELETE FROM queen.segments WHERE base_offset = 0; UPDATE queen.partitions SET log_start = 2",
        )
        .await
        .unwrap();
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":1},{"queue":"q","partition":"p","offset":2}]}"#)
        .await;
    assert!(answer.entries[0].is_offset_out_of_range());
    assert_eq!(
        (
            answer.entries[0].log_start_offset,
            answer.entries[0].high_watermark
        ),
        (2, 3)
    );
    assert_eq!(answer.entries[1].records[0].payload, 3);
}

#[tokio::test]
async fn a_wrong_call_is_refused_whole() {
    let fixture = Fixture::start().await;
    let many = vec![r#"{"queue":"q","offset":0}"#; 1_025].join(",");
    for body in [
        format!(r#"{{"entries":[{many}]}}"#),
        r#"{"entries":[{"queue":"q","offset":-1}]}"#.into(),
        r#"{"entries":[{"queue":"q","offset":0,"maxBytes":"1"}]}"#.into(),
        r#"{"entries":[{"queue":"q"}]}"#.into(),
        "[]".into(),
        String::new(),
    ] {
        assert_eq!(
            fixture.post("/api/v1/fetch", body.clone()).await.status,
            400,
            "{body:.80}"
        );
    }
    let most = vec![r#"{"queue":"q","offset":0}"#; 1_024].join(",");
    let answer = fixture.fetch(&format!(r#"{{"entries":[{most}]}}"#)).await;
    assert_eq!(answer.entries.len(), 1_024);
}

#[tokio::test]
async fn a_parked_fetch_is_woken_by_a_push_and_holds_no_session() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let parked = fixture.fetch(
        r#"{"entries":[{"queue":"q","partition":"other","offset":0},{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30000}"#,
    );
    let push = async {
        fixture.until_parked(1).await;
        until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
        assert_eq!(fixture.get("/status").await.json()["fetchesParked"], 1);
        fixture.push("q", "p", &["2"]).await;
    };
    let (answer, ()) = timeout(SOON, async { tokio::join!(parked, push) })
        .await
        .unwrap();
    assert_eq!(answer.entries[1].records[0].payload, 2);
}

#[tokio::test]
async fn a_parked_fetch_is_woken_by_a_push_to_another_broker() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    fixture.push("q", "p", &["1"]).await;
    // The listening connection is up once the first signal of the other broker arrives: every
    // round starts from a watermark that the former moved.
    let mut woken = false;
    for offset in 1..6 {
        let body = format!(
            r#"{{"entries":[{{"queue":"q","partition":"p","offset":{offset}}}],"maxWaitMs":30000}}"#
        );
        let begun = tokio::time::Instant::now();
        let parked = fixture.fetch(&body);
        let push = async {
            fixture.until_parked(1).await;
            until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
            let body = r#"{"items":[{"queue":"q","partition":"p","payload":2}]}"#;
            assert_eq!(
                fixture.post_to(&other, "/api/v1/push", body).await.status,
                201
            );
        };
        let (answer, ()) = timeout(SOON, async { tokio::join!(parked, push) })
            .await
            .unwrap();
        assert_eq!(answer.entries[0].records[0].offset, offset);
        // Sooner than it looks again by itself.
        woken |= begun.elapsed() < Duration::from_secs(4);
    }
    assert!(woken, "no signal of the other broker arrived");
}

#[tokio::test]
async fn an_entry_with_an_error_ends_the_long_poll_at_once() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    for wrong in [
        r#"{"queue":"nowhere","offset":0}"#,
        r#"{"queue":"q","partition":"p","offset":9}"#,
    ] {
        let body = format!(
            r#"{{"entries":[{{"queue":"q","partition":"p","offset":1}},{wrong}],"maxWaitMs":30000}}"#
        );
        let answer = timeout(SOON, fixture.fetch(&body)).await.unwrap();
        assert!(!answer.entries[1].is_ok());
    }
}

#[tokio::test]
async fn a_fetch_waits_for_min_bytes_but_not_past_its_wait() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["123"]).await;
    let body = |wait: u32| {
        format!(
            r#"{{"entries":[{{"queue":"q","partition":"p","offset":0}}],"maxWaitMs":{wait},"minBytes":6}}"#
        )
    };
    let answer = timeout(SOON, fixture.fetch(&body(50))).await.unwrap();
    assert_eq!(
        answer.record_count(),
        1,
        "the wait is over, so what is there comes"
    );
    let full = body(30_000);
    let parked = fixture.fetch(&full);
    let push = async {
        fixture.until_parked(1).await;
        fixture.push("q", "p", &["456"]).await;
    };
    let (answer, ()) = timeout(SOON, async { tokio::join!(parked, push) })
        .await
        .unwrap();
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn min_bytes_0_never_parks() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let body =
        r#"{"entries":[{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30000,"minBytes":0}"#;
    let answer = timeout(SOON, fixture.fetch(body)).await.unwrap();
    assert!(answer.entries[0].is_ok() && answer.entries[0].records.is_empty());
}

#[tokio::test]
async fn max_bytes_bounds_an_entry_but_its_first_segment_always_comes() {
    let fixture = Fixture::start().await;
    for payload in ["1", "2", "3"] {
        fixture.push("q", "p", &[payload]).await;
    }
    let body = |bytes: i64| {
        format!(r#"{{"entries":[{{"queue":"q","partition":"p","offset":0,"maxBytes":{bytes}}}]}}"#)
    };
    assert_eq!(fixture.fetch(&body(1)).await.record_count(), 1);
    assert_eq!(fixture.fetch(&body(0)).await.record_count(), 1);
    assert_eq!(fixture.fetch(&body(100_000_000)).await.record_count(), 3);
}

#[tokio::test]
async fn an_entry_returns_at_most_10000_records_and_the_rest_follows() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"; 6_000]).await;
    fixture.push("q", "p", &["1"; 6_000]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":1000}]}"#)
        .await;
    assert_eq!(answer.record_count(), 10_000);
    let next = answer.entries[0].next_offset().unwrap();
    assert_eq!(next, 11_000);
    let body = format!(r#"{{"entries":[{{"queue":"q","partition":"p","offset":{next}}}]}}"#);
    assert_eq!(fixture.fetch(&body).await.record_count(), 1_000);
}

#[tokio::test]
async fn a_call_ends_at_its_rendered_bytes_and_later_entries_are_empty_below_their_watermark() {
    const MIB: usize = 1_048_576;
    let fixture = Fixture::start().await;
    let large = format!("\"{}\"", "x".repeat(4 * MIB));
    for partition in ["a", "b"] {
        fixture.push("q", partition, &[large.as_str(); 10]).await;
    }
    let mut next = [0_i64, 0];
    let mut calls = 0;
    while next != [10, 10] {
        let body = format!(
            r#"{{"entries":[{{"queue":"q","partition":"a","offset":{}}},{{"queue":"q","partition":"b","offset":{}}}]}}"#,
            next[0], next[1]
        );
        let answer = fixture.post("/api/v1/fetch", body).await;
        assert!(
            answer.text.len() <= 64 * MIB + 1_000,
            "{}",
            answer.text.len()
        );
        let answer: queen_protocol::FetchResponse = answer.typed();
        assert!(answer.record_count() > 0);
        for (position, entry) in next.iter_mut().zip(&answer.entries) {
            assert!(entry.is_ok());
            assert_eq!(entry.high_watermark, 10);
            *position = entry.next_offset().unwrap_or(*position);
        }
        calls += 1;
    }
    assert_eq!(calls, 2);
}

#[tokio::test]
async fn a_call_ends_at_its_stored_bytes_but_its_first_segment_always_comes() {
    let fixture = Fixture::start().await;
    for partition in ["a", "b"] {
        for payload in ["1", "2"] {
            fixture.push("q", partition, &[payload]).await;
        }
    }
    let session = fixture.session().await;
    let segments = async |budget: i64| -> Vec<(i32, i64)> {
        let rows = session
            .query(
                "SELECT entry, base_offset
                 FROM queen.fetch('00000000-0000-0000-0000-000000000001', ARRAY['q', 'q'],
                     ARRAY['a', 'b'], ARRAY[0::int8, 0], ARRAY[1000::int8, 1000], $1, 1000, 10000, false)
                 WHERE base_offset IS NOT NULL",
                &[&budget],
            )
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    assert_eq!(segments(1).await, [(0, 0)]);
    assert_eq!(segments(10_000).await, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    let size: i32 = session
        .query_one("SELECT max(octet_length(block)) FROM queen.segments", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        segments(i64::from(size) * 3).await,
        [(0, 0), (0, 1), (1, 0)]
    );
}

#[tokio::test]
async fn a_damaged_segment_is_reported_where_it_lies_and_never_skipped() {
    let fixture = Fixture::start().await;
    for payload in ["1", "2", "3"] {
        fixture.push("q", "p", &[payload]).await;
    }
    let session = fixture.session().await;
    session
        .batch_execute(
            "UPDATE queen.segments SET block = set_byte(block, 30, get_byte(block, 30) # 255)
             WHERE base_offset = 1",
        )
        .await
        .unwrap();
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0},{"queue":"q","partition":"p","offset":2}]}"#)
        .await;
    assert_eq!(answer.entries[0].records.len(), 1);
    assert_eq!(answer.entries[0].error.as_deref(), Some("UNREADABLE"));
    assert_eq!(answer.entries[1].records[0].payload, 3);
}

#[tokio::test]
async fn a_damaged_segment_ends_the_long_poll_of_who_waits_for_more_bytes() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}],"maxWaitMs":30000,"minBytes":1000}"#;
    let damage = async {
        fixture.until_parked(1).await;
        let session = fixture.session().await;
        session
            .batch_execute(
                "CREATE FUNCTION damage() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                     NEW.block := set_byte(NEW.block, 30, get_byte(NEW.block, 30) # 255);
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER damage BEFORE INSERT ON queen.segments
                 FOR EACH ROW EXECUTE FUNCTION damage()",
            )
            .await
            .unwrap();
        fixture.push("q", "p", &["2"]).await;
    };
    let meeting = async { tokio::join!(fixture.fetch(body), damage).0 };
    let met = timeout(SOON, meeting).await.unwrap();
    let found = timeout(SOON, fixture.fetch(body)).await.unwrap();
    for answer in [met, found] {
        assert_eq!(answer.entries[0].records.len(), 1);
        assert_eq!(answer.entries[0].error.as_deref(), Some("UNREADABLE"));
    }
}

#[tokio::test]
async fn another_tenants_queue_looks_exactly_like_none() {
    let fixture = Fixture::with(&[("QUEEN_TENANCY_HEADER", "true")], &[]).await;
    let push = r#"{"items":[{"queue":"secret","payload":1}]}"#;
    let fetch = r#"{"entries":[{"queue":"secret","offset":0}]}"#;
    let before = fixture.post_as(TENANT_B, "/api/v1/fetch", fetch).await;
    assert_eq!(
        fixture.post_as(TENANT_A, "/api/v1/push", push).await.status,
        201
    );
    let after = fixture.post_as(TENANT_B, "/api/v1/fetch", fetch).await;
    assert_eq!(before.text, after.text);
    let own: queen_protocol::FetchResponse = fixture
        .post_as(TENANT_A, "/api/v1/fetch", fetch)
        .await
        .typed();
    assert_eq!(own.record_count(), 1);
    assert_eq!(
        fixture
            .post_as("not a uuid", "/api/v1/fetch", fetch)
            .await
            .status,
        400
    );
}

#[tokio::test]
async fn without_the_flag_the_tenant_header_means_nothing() {
    let fixture = Fixture::start().await;
    let push = r#"{"items":[{"queue":"q","payload":1}]}"#;
    assert_eq!(
        fixture.post_as(TENANT_A, "/api/v1/push", push).await.status,
        201
    );
    let fetch = r#"{"entries":[{"queue":"q","offset":0}]}"#;
    assert_eq!(fixture.fetch(fetch).await.record_count(), 1);
}

/// Plans are made once a session, and statistics may be old or none: what a fetch reads must not depend on either.
#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_reads_no_more_than_it_answers_whatever_is_known_of_the_tables() {
    const ENTRIES: i64 = 64;
    // One session is the lanes'.
    let variables = [
        ("QUEEN_PG_CONNECTIONS", "2"),
        ("QUEEN_RETENTION_INTERVAL_MS", "3600000"),
    ];
    let fixture = Fixture::with(&variables, &[("autovacuum", "off")]).await;
    fixture.push("q", "p", &["0"]).await;
    let asked = |partition: i64| {
        format!(r#"{{"queue":"q","partition":"n{partition}","offset":0,"maxBytes":1}}"#)
    };
    // The plan of a database that is all but empty.
    let first = format!(r#"{{"entries":[{}]}}"#, asked(1));
    assert_eq!(fixture.fetch(&first).await.record_count(), 0);
    let session = fixture.session().await;
    session
        .batch_execute(
            "INSERT INTO queen.partitions (queue_id, name, next_offset)
             SELECT id, 'n' || n, 20 FROM queen.queues, generate_series(1, 20000) n;
             INSERT INTO queen.segments
             SELECT p.id, n, now(), s.payload_bytes, s.raw_bytes, s.records, s.block
             FROM queen.partitions p, generate_series(0, 19) n, queen.segments s
             WHERE p.name LIKE 'n%' AND n < CASE WHEN p.name < 'n11' THEN 20 ELSE 1 END",
        )
        .await
        .unwrap();
    let statistics = "SELECT max(reltuples)::int8 FROM pg_class
                      WHERE oid IN ('queen.partitions'::regclass, 'queen.segments'::regclass)";
    let known: i64 = session.query_one(statistics, &[]).await.unwrap().get(0);
    assert_eq!(known, -1, "the tables were analyzed");
    let entries: Vec<String> = (1..=ENTRIES).map(|n| asked(n * 300)).collect();
    let body = format!(r#"{{"entries":[{}]}}"#, entries.join(","));
    let later = fixture.another(&variables).await;
    for broker in [&fixture.broker, &later] {
        let read = async || -> i64 {
            let client = broker
                .broker()
                .database
                .client(Slot::default())
                .await
                .unwrap();
            let flush = "SELECT pg_stat_force_next_flush()";
            client.execute(flush, &[]).await.unwrap();
            drop(client);
            let sql = "SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::int8
                       FROM pg_statio_user_tables WHERE relname IN ('queues', 'partitions', 'segments')";
            session.query_one(sql, &[]).await.unwrap().get(0)
        };
        let before = read().await;
        let answer: queen_protocol::FetchResponse = fixture
            .post_to(broker, "/api/v1/fetch", &body)
            .await
            .typed();
        assert_eq!(answer.record_count(), usize::try_from(ENTRIES).unwrap());
        // The session tells its figures once it is idle.
        until(|| async { read().await > before }).await;
        // Of each entry the queue, the partition and a segment: the way down an index and a page of the table.
        let pages = read().await - before;
        assert!(pages <= 15 * ENTRIES, "{pages} pages were read");
    }
}

#[tokio::test]
async fn what_is_stored_is_read_whichever_compression_is_configured() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let other = fixture
        .another(&[("QUEEN_SEGMENT_COMPRESSION", "zstd")])
        .await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":2}]}"#;
    let pushed = fixture.post_to(&other, "/api/v1/push", body).await;
    assert_eq!(pushed.status, 201);
    let session = fixture.session().await;
    let sql = "SELECT block FROM queen.segments ORDER BY base_offset";
    let stored = session.query(sql, &[]).await.unwrap();
    let kinds = stored
        .iter()
        .map(|row| row.get::<_, &[u8]>(0)[18..22].to_vec());
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds, [b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"]);
    let body = r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#;
    for answer in [
        fixture.post("/api/v1/fetch", body).await,
        fixture.post_to(&other, "/api/v1/fetch", body).await,
    ] {
        let answer = answer.json();
        let records = answer["entries"][0]["records"].as_array().unwrap();
        let payloads: Vec<_> = records.iter().map(|record| &record["payload"]).collect();
        assert_eq!(payloads, [1, 2]);
    }
}
