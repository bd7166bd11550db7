//! Pushes that are repeated.

use std::sync::Arc;

use queen::log::recent::{View, Written};
use queen::timestamp::Timestamp;
use queen_protocol::{PushResult, PushStatus};
use serde_json::json;
use uuid::Uuid;

use crate::support::{Fixture, until};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A push of `(partition, id)` pairs to the queue `q`; payloads count up.
fn body(items: &[(&str, &str)]) -> String {
    let items: Vec<_> = items
        .iter()
        .enumerate()
        .map(|(n, (partition, id))| {
            json!({"queue": "q", "partition": partition, "payload": n, "transactionId": id})
        })
        .collect();
    json!({ "items": items }).to_string()
}

async fn push(fixture: &Fixture, items: &[(&str, &str)]) -> Vec<PushResult> {
    fixture.post("/api/v1/push", body(items)).await.typed()
}

fn statuses(results: &[PushResult]) -> Vec<PushStatus> {
    results.iter().map(|result| result.status).collect()
}

/// Transaction ids of a partition, in the order of its log.
async fn log(fixture: &Fixture, partition: &str) -> Vec<String> {
    let body = json!({"entries": [{"queue": "q", "partition": partition, "offset": 0}]});
    let answer = fixture.fetch(&body.to_string()).await;
    let records = answer.entries[0].records.iter();
    records
        .map(|record| record.transaction_id.clone())
        .collect()
}

async fn window(fixture: &Fixture, seconds: i64) {
    let body = json!({"queue": "q", "options": {"dedupWindowSeconds": seconds}}).to_string();
    assert_eq!(fixture.post("/api/v1/configure", body).await.status, 200);
}

use PushStatus::{Duplicate, Queued};

#[tokio::test]
async fn a_repeated_id_is_answered_with_the_record_that_is_there() {
    let fixture = Fixture::start().await;
    let first = push(&fixture, &[("p", "a"), ("p", "b")]).await;
    let again = push(&fixture, &[("p", "a"), ("p", "b")]).await;
    assert_eq!(statuses(&again), [Duplicate, Duplicate]);
    for (one, other) in first.iter().zip(&again) {
        assert_eq!(one.message_id, other.message_id);
        assert_eq!(
            (one.offset, &one.transaction_id),
            (other.offset, &other.transaction_id)
        );
        assert_eq!(other.queue_name, "q");
    }
    assert_eq!(log(&fixture, "p").await, ["a", "b"]);
}

#[tokio::test]
async fn what_is_new_in_a_repeated_push_is_written() {
    let fixture = Fixture::start().await;
    push(&fixture, &[("p", "a"), ("r", "a")]).await;
    // Another partition is another place; the same request counts, too.
    let mixed = [
        ("p", "new"),
        ("p", "a"),
        ("s", "a"),
        ("p", "new"),
        ("p", "last"),
        ("r", "a"),
    ];
    let results = push(&fixture, &mixed).await;
    assert_eq!(
        statuses(&results),
        [Queued, Duplicate, Queued, Duplicate, Queued, Duplicate]
    );
    let offsets: Vec<_> = results
        .iter()
        .map(|result| result.offset.unwrap())
        .collect();
    assert_eq!(offsets, [1, 0, 0, 1, 2, 0]);
    assert_eq!(results[3].message_id, results[0].message_id);
    assert_eq!(log(&fixture, "p").await, ["a", "new", "last"]);
    assert_eq!(log(&fixture, "r").await, ["a"]);
    assert_eq!(log(&fixture, "s").await, ["a"]);
}

#[tokio::test]
async fn an_id_counts_for_its_window_and_no_longer() {
    let fixture = Fixture::start().await;
    push(&fixture, &[("p", "a")]).await;
    let session = fixture.session().await;
    session
        .batch_execute("UPDATE queen.recent_ids SET expires_at = clock_timestamp()")
        .await
        .unwrap();
    let again = push(&fixture, &[("p", "a")]).await;
    assert_eq!((again[0].status, again[0].offset), (Queued, Some(1)));
    let third = push(&fixture, &[("p", "a")]).await;
    assert_eq!((third[0].status, third[0].offset), (Duplicate, Some(1)));
}

#[tokio::test]
async fn without_a_window_ids_may_repeat_until_one_is_set() {
    let fixture = Fixture::start().await;
    window(&fixture, 0).await;
    for _ in 0..2 {
        let results = push(&fixture, &[("p", "a"), ("p", "a")]).await;
        assert_eq!(statuses(&results), [Queued, Queued]);
    }
    let stored = "SELECT count(*) FROM queen.recent_ids";
    let session = fixture.session().await;
    assert_eq!(
        session
            .query_one(stored, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
    // The broker knows that this queue takes them, and learns that it no longer does.
    window(&fixture, 60).await;
    assert_eq!(statuses(&push(&fixture, &[("p", "b")]).await), [Queued]);
    assert_eq!(statuses(&push(&fixture, &[("p", "b")]).await), [Duplicate]);
}

#[tokio::test]
async fn ids_that_the_broker_gives_are_not_kept() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2"]).await;
    let stored = "SELECT count(*) FROM queen.recent_ids";
    let session = fixture.session().await;
    assert_eq!(
        session
            .query_one(stored, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
    // Beside one that is repeated, it stays the one that was answered.
    push(&fixture, &[("p", "a")]).await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":1},
        {"queue":"q","partition":"p","payload":2,"transactionId":"a"}]}"#;
    let results: Vec<PushResult> = fixture.post("/api/v1/push", body).await.typed();
    assert_eq!(statuses(&results), [Queued, Duplicate]);
    assert_eq!(log(&fixture, "p").await[3], results[0].transaction_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_pushes_of_one_id_at_two_brokers_one_is_written() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    for round in 0..5 {
        let (id, more) = (format!("id-{round}"), format!("more-{round}"));
        let body = body(&[("p", &id), ("r", &more)]);
        let pushes = (0..8).map(|n| {
            let broker = if n % 2 == 0 { &fixture.broker } else { &other };
            fixture.post_to(broker, "/api/v1/push", &body)
        });
        let mut ids = std::collections::HashSet::new();
        let mut queued = 0;
        for answer in futures_util::future::join_all(pushes).await {
            let results: Vec<PushResult> = answer.typed();
            queued += statuses(&results)
                .iter()
                .filter(|status| **status == Queued)
                .count();
            ids.insert(results[0].message_id.clone());
        }
        assert_eq!((queued, ids.len()), (2, 1), "round {round}");
    }
    assert_eq!(log(&fixture, "p").await.len(), 5);
}

#[tokio::test]
async fn ids_of_an_encrypted_queue_are_compared_and_cannot_be_guessed() {
    let fixture = Fixture::with(&[("QUEEN_ENCRYPTION_KEY", KEY)], &[]).await;
    let body = json!({"queue": "q", "options": {"encryptionEnabled": true}}).to_string();
    assert_eq!(fixture.post("/api/v1/configure", body).await.status, 200);
    assert_eq!(statuses(&push(&fixture, &[("p", "a")]).await), [Queued]);
    let mixed = push(&fixture, &[("p", "a"), ("p", "b")]).await;
    assert_eq!(statuses(&mixed), [Duplicate, Queued]);
    assert_eq!(log(&fixture, "p").await, ["a", "b"]);
    let session = fixture.session().await;
    let rows = session
        .query("SELECT unnest(ids) FROM queen.recent_ids", &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    let plain = queen::consume::ids::stored_hash(b"\"a\"", None);
    assert!(rows.iter().all(|row| row.get::<_, Uuid>(0) != plain));
    let sealed = "SELECT bool_and(get_byte(block, 0) = ascii('Q')) FROM queen.segments";
    assert!(
        session
            .query_one(sealed, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_whose_queue_is_deleted_while_it_waits_is_written_to_the_next_life() {
    let fixture = Fixture::start().await;
    push(&fixture, &[("p", "a")]).await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.partitions FOR UPDATE")
        .await
        .unwrap();
    let deleting = async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.push%'";
        until(|| async {
            let row = observer.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
        let path = "/api/v1/resources/queues/q";
        assert_eq!(fixture.request("DELETE", path, "").await.status, 200);
        holder.batch_execute("ROLLBACK").await.unwrap();
    };
    let (results, ()) = tokio::join!(push(&fixture, &[("p", "b")]), deleting);
    assert_eq!((results[0].status, results[0].offset), (Queued, Some(0)));
    assert_eq!(log(&fixture, "p").await, ["b"]);
    assert_eq!(statuses(&push(&fixture, &[("p", "b")]).await), [Duplicate]);
}

#[tokio::test]
async fn an_id_counts_once_at_brokers_that_knew_its_queue_as_encrypted_and_others() {
    let fixture = Fixture::with(&[("QUEEN_ENCRYPTION_KEY", KEY)], &[]).await;
    let encrypt = |on: bool| {
        let body = json!({"queue": "q", "options": {"encryptionEnabled": on}});
        fixture.post("/api/v1/configure", body.to_string())
    };
    assert_eq!(encrypt(true).await.status, 200);
    push(&fixture, &[("p", "secret")]).await;
    assert_eq!(encrypt(false).await.status, 200);
    assert_eq!(statuses(&push(&fixture, &[("p", "a")]).await), [Queued]);
    let other = fixture.another(&[("QUEEN_ENCRYPTION_KEY", KEY)]).await;
    let again = fixture
        .post_to(&other, "/api/v1/push", &body(&[("p", "a")]))
        .await;
    assert_eq!(statuses(&again.typed::<Vec<PushResult>>()), [Duplicate]);
    assert_eq!(log(&fixture, "p").await, ["secret", "a"]);
}

/// A push of the ids `id-<n>` of a range to the partition `p`.
fn range(ids: std::ops::Range<usize>) -> String {
    let ids: Vec<String> = ids.map(|n| format!("id-{n}")).collect();
    let items: Vec<(&str, &str)> = ids.iter().map(|id| ("p", id.as_str())).collect();
    body(&items)
}

/// Pushes a range, and gives back how many of it were there already, with the offsets of all.
async fn push_range(
    fixture: &Fixture,
    broker: &queen::broker::Running,
    ids: std::ops::Range<usize>,
) -> (usize, Vec<i64>) {
    let answer = fixture.post_to(broker, "/api/v1/push", &range(ids)).await;
    let results: Vec<PushResult> = answer.typed();
    let repeated = results.iter().filter(|result| result.status == Duplicate);
    (
        repeated.count(),
        results
            .iter()
            .map(|result| result.offset.unwrap())
            .collect(),
    )
}

#[tokio::test]
async fn many_ids_are_found_again_at_every_broker() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    // In turn, so that each has to learn what the other wrote; in parts that end up in one push.
    for (round, broker) in [&fixture.broker, &other, &fixture.broker, &other]
        .iter()
        .enumerate()
    {
        let ids = round * 500..round * 500 + 500;
        assert_eq!(push_range(&fixture, broker, ids).await.0, 0);
    }
    for broker in [&fixture.broker, &other] {
        let (repeated, offsets) = push_range(&fixture, broker, 400..1_600).await;
        assert_eq!(repeated, 1_200);
        assert_eq!(offsets, (400..1_600).collect::<Vec<i64>>());
    }
    let (repeated, offsets) = push_range(&fixture, &other, 1_900..2_100).await;
    assert_eq!(repeated, 100);
    assert_eq!(offsets, (1_900..2_100).collect::<Vec<i64>>());
    assert_eq!(
        push_range(&fixture, &fixture.broker, 2_099..2_101).await.0,
        1
    );
}

#[tokio::test]
async fn a_new_broker_reads_the_ids_of_a_large_partition_before_it_writes() {
    let fixture = Fixture::start().await;
    for part in 0..5 {
        let ids = part * 5_000..part * 5_000 + 5_000;
        assert_eq!(push_range(&fixture, &fixture.broker, ids).await.0, 0);
    }
    let other = fixture.another(&[]).await;
    let (repeated, offsets) = push_range(&fixture, &other, 24_990..25_010).await;
    assert_eq!(repeated, 10);
    assert_eq!(offsets, (24_990..25_010).collect::<Vec<i64>>());
    assert_eq!(push_range(&fixture, &other, 0..10).await.0, 10);
}

#[tokio::test]
async fn ids_that_were_indexed_are_found_and_count_for_their_window() {
    let fixture = Fixture::start().await;
    assert_eq!(push_range(&fixture, &fixture.broker, 0..300).await.0, 0);
    assert_eq!(push_range(&fixture, &fixture.broker, 300..600).await.0, 0);
    let session = fixture.session().await;
    let index = "SELECT queen.index_ids(id, 300, 1000) FROM queen.partitions";
    let row = session.query_one(index, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    let (repeated, offsets) = push_range(&fixture, &fixture.broker, 299..301).await;
    assert_eq!((repeated, offsets), (2, vec![299, 300]));
    let other = fixture.another(&[]).await;
    assert_eq!(push_range(&fixture, &other, 0..600).await.0, 600);
    // Pushed anew after its window, it stands where it is now.
    session
        .batch_execute("UPDATE queen.transaction_ids SET expires_at = clock_timestamp()")
        .await
        .unwrap();
    for (repeated, offset) in [(0, 600), (1, 600)] {
        let again = push_range(&fixture, &other, 7..8).await;
        assert_eq!(again, (repeated, vec![offset]));
    }
    let index = "SELECT queen.index_ids(id, 1000, 1000) FROM queen.partitions";
    session.query_one(index, &[]).await.unwrap();
    let again = push_range(&fixture, &fixture.broker, 7..8).await;
    assert_eq!(again, (1, vec![600]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_another_takes_meanwhile_do_not_pass_for_the_last_ones() {
    let fixture = Fixture::start().await;
    push_range(&fixture, &fixture.broker, 0..300).await;
    push_range(&fixture, &fixture.broker, 300..600).await;
    let (holder, session) = (fixture.session().await, fixture.session().await);
    let observer = fixture.session().await;
    // Two brokers index one partition at once, and begin at the same row.
    let index = "SELECT queen.index_ids(id, 600, 10) FROM queen.partitions";
    holder.batch_execute("BEGIN").await.unwrap();
    holder.query_one(index, &[]).await.unwrap();
    let release = async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.index_ids%'";
        until(|| async { observer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1 }).await;
        holder.batch_execute("COMMIT").await.unwrap();
    };
    let (row, ()) = tokio::join!(session.query_one(index, &[]), release);
    assert_eq!(row.unwrap().get::<_, i64>(0), 1);
    let indexed = "SELECT count(*) FROM queen.transaction_ids";
    for (found, ids) in [(1, 600), (0, 600)] {
        let row = session.query_one(index, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), found);
        let row = session.query_one(indexed, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), ids);
    }
}

#[tokio::test]
async fn ids_past_their_window_are_swept_and_live_ones_stay() {
    let fixture = Fixture::start().await;
    for part in 0..3 {
        push_range(&fixture, &fixture.broker, part * 10..part * 10 + 10).await;
    }
    let session = fixture.session().await;
    session
        .batch_execute(
            "SELECT queen.index_ids(id, 20, 10) FROM queen.partitions;
             UPDATE queen.recent_ids SET expires_at = clock_timestamp() WHERE base_offset = 10;
             UPDATE queen.transaction_ids SET expires_at = clock_timestamp() WHERE record_offset < 5",
        )
        .await
        .unwrap();
    queen::log::repeats::sweep(fixture.broker.broker())
        .await
        .unwrap();
    let left = "SELECT (SELECT count(*) FROM queen.recent_ids), (SELECT count(*) FROM queen.transaction_ids)";
    let row = session.query_one(left, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 5));
    assert_eq!(push_range(&fixture, &fixture.broker, 5..10).await.0, 5);
    assert_eq!(push_range(&fixture, &fixture.broker, 0..30).await.0, 15);
}

#[tokio::test]
async fn the_ids_of_a_deleted_queue_go_with_it() {
    let fixture = Fixture::with(&[("QUEEN_RETENTION_INTERVAL_MS", "100")], &[]).await;
    push_range(&fixture, &fixture.broker, 0..100).await;
    let path = "/api/v1/resources/queues/q";
    assert_eq!(fixture.request("DELETE", path, "").await.status, 200);
    // They are another life's: what this broker remembers of them counts for nothing.
    assert_eq!(push_range(&fixture, &fixture.broker, 0..100).await.0, 0);
    let session = fixture.session().await;
    let left = "SELECT count(*) FROM queen.recent_ids r
                WHERE NOT EXISTS (
                    SELECT 1 FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
                    WHERE p.id = r.partition_id AND q.tenant IS NOT NULL)";
    until(|| async { session.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_found_again_after_the_database_has_restarted() {
    let mut fixture = Fixture::start().await;
    push_range(&fixture, &fixture.broker, 0..200).await;
    tokio::task::block_in_place(|| fixture.postgres.restart()).unwrap();
    until(|| async { fixture.get("/health").await.status == 200 }).await;
    assert_eq!(push_range(&fixture, &fixture.broker, 150..350).await.0, 50);
    assert_eq!(push_range(&fixture, &fixture.broker, 0..350).await.0, 350);
}

const TENANT: Uuid = Uuid::from_u128(1);

/// What this broker remembers of the partition `p`, which it has to read anew.
async fn forgotten(fixture: &Fixture) -> Arc<View> {
    let sql =
        "SELECT p.id, p.next_offset, clock_timestamp(), clock_timestamp() + interval '1 hour',
               pg_postmaster_start_time() FROM queen.partitions p WHERE p.name = 'p'";
    let row = fixture.session().await.query_one(sql, &[]).await.unwrap();
    let end: i64 = row.get(1);
    let written = Written {
        partition: row.get(0),
        at: (end, end),
        unknown: 0,
        now: row.get(2),
        expires: row.get(3),
        server: row.get(4),
    };
    let recent = &fixture.broker.broker().repeats.recent;
    recent.fall_behind(TENANT, "q", "p", &written);
    recent.behind(TENANT, "q", "p").unwrap()
}

async fn slots_in_use(fixture: &Fixture) -> bool {
    let text = fixture.get("/metrics").await.text;
    !text.contains("queen_lane_slots_in_use{lane=\"push\"} 0")
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_wait_for_ids_that_another_reads_without_a_session_or_a_slot() {
    let variables = [
        ("QUEEN_PG_CONNECTIONS", "4"),
        ("QUEEN_LANE_WAIT_MS", "20000"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    push(&fixture, &[("p", "a")]).await;
    let view = forgotten(&fixture).await;
    let reader = view.reader().unwrap();
    let waiting = (0..8).map(|_| push(&fixture, &[("p", "a")]));
    let other = async {
        let line = "queen_lane_waiting{lane=\"push\"} 8";
        until(|| async { fixture.get("/metrics").await.text.contains(line) }).await;
        assert!(!slots_in_use(&fixture).await);
        assert_eq!(fixture.broker.broker().database.usage().0, 0);
        // The only slot of the lane is another partition's to take.
        assert_eq!(statuses(&push(&fixture, &[("r", "a")]).await), [Queued]);
        drop(reader);
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(waiting), other);
    assert!(answers.iter().all(|answer| statuses(answer) == [Duplicate]));
    assert!(view.missing().is_none(), "they were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_waits_too_long_for_ids_is_answered_503_and_writes_nothing() {
    let fixture = Fixture::with(&[("QUEEN_LANE_WAIT_MS", "50")], &[]).await;
    push(&fixture, &[("p", "a")]).await;
    let reader = forgotten(&fixture).await.reader().unwrap();
    let refused = fixture.post("/api/v1/push", body(&[("p", "b")])).await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (503, Some("overloaded"))
    );
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    let metrics = fixture.get("/metrics").await.text;
    let count = "queen_lane_refused_total{lane=\"push\",reason=\"ids\"} 1";
    assert!(metrics.contains(count), "{metrics}");
    drop(reader);
    assert_eq!(statuses(&push(&fixture, &[("p", "b")]).await), [Queued]);
    assert_eq!(log(&fixture, "p").await, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_reads_ids_for_a_bounded_time_and_the_next_one_goes_on_from_there() {
    let fixture = Fixture::with(&[("QUEEN_LANE_WAIT_MS", "0")], &[]).await;
    push(&fixture, &[("p", "a")]).await;
    // Two statements' worth of rows, more ids than are compared while the partition is held.
    let session = fixture.session().await;
    let last = queen::consume::ids::stored_hash(b"\"last\"", None);
    session
        .execute(
            "INSERT INTO queen.recent_ids (partition_id, base_offset, records, expires_at, ids)
             SELECT p.id, 1 + 5 * n, 5, clock_timestamp() + interval '1 hour',
                    ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
                          CASE n WHEN 1999 THEN $1 ELSE gen_random_uuid() END]
             FROM queen.partitions p, generate_series(0, 1999) n",
            &[&last],
        )
        .await
        .unwrap();
    session
        .batch_execute("UPDATE queen.partitions SET next_offset = 10001")
        .await
        .unwrap();
    let again = fixture.another(&[("QUEEN_LANE_WAIT_MS", "0")]).await;
    let body = body(&[("p", "last")]);
    for expected in [503, 503, 201] {
        let answer = fixture.post_to(&again, "/api/v1/push", &body).await;
        assert_eq!(answer.status, expected, "{}", answer.text);
        if expected == 201 {
            let results: Vec<PushResult> = answer.typed();
            assert_eq!(
                (results[0].status, results[0].offset),
                (Duplicate, Some(10_000))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_wait_while_more_ids_are_remembered_than_may_be_and_never_for_ever() {
    let variables = [
        ("QUEEN_DEDUP_MEMORY_MB", "1"),
        ("QUEEN_LANE_WAIT_MS", "50"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "500"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    push(&fixture, &[("p", "a")]).await;
    let holder = fixture.session().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE queen.transaction_ids IN SHARE MODE")
        .await
        .unwrap();
    let view = forgotten(&fixture).await;
    let expires = Timestamp::from_micros(i64::MAX / 2);
    let ids: Vec<Uuid> = (0..600_000).map(|_| Uuid::new_v4()).collect();
    for (n, part) in (0_i64..).zip(ids.chunks(50_000)) {
        view.load(part, (n * 50_000, n * 50_000 + 50_000), expires);
    }
    view.loaded();
    drop(view);
    let recent = &fixture.broker.broker().repeats.recent;
    assert!(recent.is_full());
    let refused = fixture.post("/api/v1/push", body(&[("r", "a")])).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    // Pushes without ids are none of its business.
    fixture.push("q", "s", &["1"]).await;
    // Ids that cannot be indexed are forgotten, and read when they are asked for.
    until(|| async {
        fixture
            .post("/api/v1/push", body(&[("r", "a")]))
            .await
            .status
            == 201
    })
    .await;
    assert_eq!(statuses(&push(&fixture, &[("p", "a")]).await), [Duplicate]);
    holder.batch_execute("ROLLBACK").await.unwrap();
}
