use std::collections::HashMap;

use queen::admission::Slot;
use queen_protocol::PushResult;

use crate::support::{Fixture, until};

#[tokio::test]
async fn payload_bytes_come_back_exactly_as_pushed() {
    let fixture = Fixture::start().await;
    let nested = format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000));
    let payloads = [
        "{\"a\" :\t1,\n \"a\":2 }",
        "1234567890123456789012345678901234567890.10",
        "\"\\ud800 lone, \\u0000 escaped, \\/ slash\"",
        "1e999",
        "-0.0",
        "null",
        "\"\"",
        "\"ключ 🗝 \u{2028}\"",
        &nested,
    ];
    fixture.push("q", "p", &payloads).await;
    let answer = fixture
        .post(
            "/api/v1/fetch",
            r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#,
        )
        .await;
    for (offset, payload) in payloads.iter().enumerate() {
        let (_, rest) = answer
            .text
            .split_once(&format!("{{\"offset\":{offset},"))
            .unwrap();
        let (_, rest) = rest.split_once("\"payload\":").unwrap();
        assert!(
            rest.starts_with(&format!("{payload},\"ts\":\"")),
            "{payload}"
        );
    }
}

#[tokio::test]
async fn a_push_answers_with_offsets_and_ids_in_the_order_of_its_items() {
    let fixture = Fixture::start().await;
    fixture.push("q", "a", &["0"]).await;
    let body = r#"{"items":[
        {"queue":"q","partition":"a","payload":1,"transactionId":"t1"},
        {"queue":"q","payload":2},
        {"queue":"q","partition":"a","payload":3,"transactionId":""}]}"#;
    let results: Vec<PushResult> = fixture.post("/api/v1/push", body).await.typed();
    let offsets: Vec<_> = results
        .iter()
        .map(|result| result.offset.unwrap())
        .collect();
    assert_eq!(offsets, [1, 0, 2]);
    assert_eq!(results[0].transaction_id, "t1");
    assert!(!results[2].transaction_id.is_empty());
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"a","offset":1}]}"#)
        .await;
    let ids: Vec<_> = answer.entries[0]
        .records
        .iter()
        .map(|record| record.transaction_id.clone())
        .collect();
    assert_eq!(
        ids,
        [
            results[0].transaction_id.clone(),
            results[2].transaction_id.clone()
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pushes_over_the_same_partitions_neither_deadlock_nor_share_an_offset() {
    const TASKS: usize = 8;
    const PUSHES: usize = 10;
    let fixture = Fixture::start().await;
    let push = |task: usize| {
        let fixture = &fixture;
        async move {
            let mut results = Vec::new();
            for round in 0..PUSHES {
                // Existing and new partitions, half of the tasks in the opposite order.
                let mut partitions: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
                partitions.push(format!("new-{round}"));
                if task.is_multiple_of(2) {
                    partitions.reverse();
                }
                let items: Vec<String> = partitions
                    .iter()
                    .map(|p| {
                        format!(
                            r#"{{"queue":"q{}","partition":"{p}","payload":1}}"#,
                            round % 2
                        )
                    })
                    .collect();
                let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
                let answer = fixture.post("/api/v1/push", body).await;
                let answer: Vec<PushResult> = answer.typed();
                for (result, partition) in answer.into_iter().zip(partitions) {
                    results.push((result.queue_name, partition, result.offset.unwrap()));
                }
            }
            results
        }
    };
    let mut all: HashMap<(String, String), Vec<i64>> = HashMap::new();
    for results in futures_util::future::join_all((0..TASKS).map(push)).await {
        for (queue, partition, offset) in results {
            all.entry((queue, partition)).or_default().push(offset);
        }
    }
    for (name, mut offsets) in all {
        offsets.sort_unstable();
        let expected: Vec<i64> = (0..offsets.len() as i64).collect();
        assert_eq!(offsets, expected, "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_outlasts_a_line_that_is_longer_than_one_wait_for_a_lock() {
    let fixture = Fixture::with(&[("QUEEN_PG_LOCK_TIMEOUT_MS", "1500")], &[]).await;
    fixture.push("q", "p", &["0"]).await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions FOR UPDATE")
        .await
        .unwrap();
    let releasing = async {
        let sql = "SELECT query_start FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.push%'";
        let waiting = || async {
            let row = observer.query_opt(sql, &[]).await.unwrap();
            row.map(|row| row.get::<_, std::time::SystemTime>(0))
        };
        until(|| async { waiting().await.is_some() }).await;
        let first = waiting().await;
        until(|| async { matches!(waiting().await, now if now.is_some() && now != first) }).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    tokio::join!(fixture.push("q", "p", &["1"]), releasing);
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.record_count(), 2);
}

#[tokio::test]
async fn ts_never_falls_within_a_partition_when_the_clock_steps_back() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    // As if the newest segment had been written before the clock stepped back an hour.
    session
        .batch_execute(
            "UPDATE queen.segments SET ts = ts + interval '1 hour';
             UPDATE queen.partitions SET last_ts = last_ts + interval '1 hour'",
        )
        .await
        .unwrap();
    fixture.push("q", "p", &["1"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    let records = &answer.entries[0].records;
    assert!(records[1].ts >= records[0].ts, "{records:?}");
}

#[tokio::test]
async fn no_ts_is_below_the_floor() {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    session
        .batch_execute("UPDATE queen.floor SET ts = '2099-01-01T00:00:00Z'")
        .await
        .unwrap();
    fixture.push("q", "p", &["0"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(
        answer.entries[0].records[0].ts,
        "2099-01-01T00:00:00.000000Z"
    );
}

#[tokio::test]
async fn the_floor_is_read_after_the_allocator_row_is_locked() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let session = fixture.session().await;
    session
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions FOR UPDATE")
        .await
        .unwrap();
    let pushed = fixture.push("q", "p", &["1"]);
    let raised = async {
        // The push waits for the row before the floor is raised.
        let observer = fixture.session().await;
        crate::support::until(|| async {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            observer
                .query_one(waiting, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                > 0
        })
        .await;
        observer
            .batch_execute("UPDATE queen.floor SET ts = '2099-01-01T00:00:00Z'")
            .await
            .unwrap();
        session.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(pushed, raised);
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":1}]}"#)
        .await;
    assert_eq!(
        answer.entries[0].records[0].ts,
        "2099-01-01T00:00:00.000000Z"
    );
}

#[tokio::test]
async fn a_push_with_one_bad_item_writes_nothing() {
    let fixture = Fixture::start().await;
    for (bad, place) in [
        (r#"{"queue":"","payload":1}"#, "items[1].queue"),
        (r#"{"queue":"x\u0000","payload":1}"#, "items[1].queue"),
        (r#"{"queue":"x"}"#, "items[1]"),
        (
            r#"{"queue":"x","payload":1,"transactionId":5}"#,
            "items[1].transactionId",
        ),
        (r#"{"queue":"x","payload":nul}"#, "items[1].payload"),
        (r#"{"queue":"x","payload":1"#, "line 1"),
    ] {
        let body = format!(r#"{{"items":[{{"queue":"good","payload":1}},{bad}]}}"#);
        let answer = fixture.post("/api/v1/push", body).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert!(answer.error().contains(place), "{bad}: {}", answer.error());
    }
    let mut invalid = br#"{"items":[{"queue":"good","payload":""#.to_vec();
    invalid.extend_from_slice(b"\xff\"}]}");
    assert_eq!(fixture.post("/api/v1/push", invalid).await.status, 400);
    assert_eq!(
        fixture.get("/api/v1/resources/queues").await.json()["queues"],
        serde_json::json!([])
    );
}

#[tokio::test]
async fn many_partitions_and_a_large_record_go_in_one_push() {
    let fixture = Fixture::start().await;
    let mut items: Vec<String> = (0..2_000)
        .map(|n| format!(r#"{{"queue":"wide","partition":{n},"payload":{n}}}"#))
        .collect();
    items.push(format!(
        r#"{{"queue":"wide","payload":"{}"}}"#,
        "x".repeat(3_000_000)
    ));
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let results: Vec<PushResult> = fixture.post("/api/v1/push", body).await.typed();
    assert_eq!(results.len(), 2_001);
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"wide","partition":1999,"offset":0},{"queue":"wide","offset":0}]}"#)
        .await;
    assert_eq!(answer.entries[0].records[0].payload, 1999);
    assert_eq!(
        answer.entries[1].records[0].payload.as_str().unwrap().len(),
        3_000_000
    );
}

#[tokio::test]
async fn an_empty_push_is_answered_with_nothing() {
    let fixture = Fixture::start().await;
    let answer = fixture.post("/api/v1/push", r#"{"items":[]}"#).await;
    assert_eq!((answer.status, answer.text.as_str()), (201, "[]"));
}

#[tokio::test]
async fn a_plan_made_on_an_empty_database_finds_partitions_by_their_names() {
    const PUSH: &str = "SELECT queen.allocate($1, ARRAY['q'], ARRAY[$2])";
    let fixture = Fixture::start().await;
    let client = fixture
        .broker
        .broker()
        .database
        .client(Slot::default())
        .await
        .unwrap();
    let tenant = uuid::Uuid::from_u128(1);
    client.execute(PUSH, &[&tenant, &"first"]).await.unwrap();
    let made = "INSERT INTO queen.partitions (queue_id, name)
                SELECT id, n::text FROM queen.queues, generate_series(1, 5000) n";
    client.execute(made, &[]).await.unwrap();
    client.execute(PUSH, &[&tenant, &"4000"]).await.unwrap();
    client.execute(PUSH, &[&tenant, &"second"]).await.unwrap();
    let flush = "SELECT pg_stat_force_next_flush()";
    client.execute(flush, &[]).await.unwrap();
    let scans = "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes
                 WHERE relname = 'partitions' AND idx_scan > 0";
    let used = || async {
        let rows = client.query(scans, &[]).await.unwrap();
        let rows = rows.iter().map(|row| row.get::<_, String>(0));
        rows.collect::<Vec<_>>()
    };
    until(|| async { !used().await.is_empty() }).await;
    let used = used().await;
    assert!(
        !used.iter().any(|index| index == "partitions_by_last_write"),
        "{used:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_makes_a_queue_keeps_no_reader_waiting_while_it_waits_itself() {
    let fixture = Fixture::start().await;
    fixture.push("old", "p", &["1"]).await;
    let session = fixture.session().await;
    let deleted = "UPDATE queen.partitions SET last_ts = last_ts + interval '1 hour',
                       last_write_at = last_write_at + interval '1 hour';
                   SELECT queen.delete_queue('00000000-0000-0000-0000-000000000001', 'old')";
    session.batch_execute(deleted).await.unwrap();
    fixture.push("busy", "p", &["1"]).await;
    session
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions FOR UPDATE")
        .await
        .unwrap();
    let observer = fixture.session().await;
    let body = r#"{"items":[{"queue":"busy","partition":"p","payload":1},
        {"queue":"old","partition":"p","payload":1}]}"#;
    let reading = async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.push%'";
        until(|| async {
            let row = observer.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
        let free = "SELECT 1 FROM queen.floor FOR UPDATE NOWAIT";
        let free = observer.execute(free, &[]).await;
        session.batch_execute("ROLLBACK").await.unwrap();
        free.expect("the push holds the floor");
    };
    let (pushed, ()) = tokio::join!(fixture.post("/api/v1/push", body), reading);
    assert_eq!(pushed.status, 201, "{}", pushed.text);
}
