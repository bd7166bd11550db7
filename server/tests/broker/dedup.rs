//! Pushes that are repeated.

use queen_protocol::{PushResult, PushStatus};
use serde_json::json;

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
        .batch_execute("UPDATE queen.transaction_ids SET expires_at = clock_timestamp()")
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
    let stored = "SELECT count(*) FROM queen.transaction_ids";
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
    let stored = "SELECT count(*) FROM queen.transaction_ids";
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
        .query("SELECT id FROM queen.transaction_ids", &[])
        .await
        .unwrap();
    let plain = queen::consume::ids::stored_hash(b"\"a\"", None);
    assert!(rows.iter().all(|row| row.get::<_, uuid::Uuid>(0) != plain));
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
