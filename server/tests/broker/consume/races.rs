//! Two brokers, many consumers, one database.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use queen::broker::Running;
use queen_protocol::AckResult;
use serde_json::json;

use super::{ack_to, pop_from};
use crate::support::{Fixture, until};

/// What consumers have seen, per partition in the order of seeing.
type Seen = Mutex<HashMap<String, Vec<i64>>>;

const PARTITIONS: usize = 12;
const ROUNDS: usize = 25;

/// Pushes one record to every partition, over and over.
async fn produce(fixture: &Fixture, broker: &Running, offset: usize) {
    for round in 0..ROUNDS {
        let items: Vec<_> = (0..PARTITIONS)
            .map(|n| json!({"queue": "q", "partition": format!("{offset}-{n}"), "payload": round}))
            .collect();
        let body = json!({ "items": items }).to_string();
        loop {
            let answer = fixture.post_to(broker, "/api/v1/push", &body).await;
            if answer.status != 503 {
                assert_eq!(answer.status, 201, "{}", answer.text);
                break;
            }
        }
    }
}

/// Takes and settles until everything was seen.
async fn consume(
    fixture: &Fixture,
    broker: &Running,
    path: &str,
    seen: &Seen,
    left: &AtomicUsize,
    done: &AtomicBool,
) {
    while !done.load(Ordering::SeqCst) {
        let messages = pop_from(broker, path).await;
        if messages.is_empty() {
            continue;
        }
        {
            let mut seen = seen.lock().unwrap();
            for message in &messages {
                seen.entry(message.partition.clone())
                    .or_default()
                    .push(message.data.as_i64().unwrap());
            }
        }
        if messages[0].is_leased() {
            let acks: Vec<_> = messages
                .iter()
                .map(|message| super::acknowledgment(message, "completed"))
                .collect();
            let body =
                json!({"acknowledgments": acks, "consumerGroup": messages[0].consumer_group});
            let answer = fixture
                .post_to(broker, "/api/v1/ack/batch", &body.to_string())
                .await;
            let answers: Vec<AckResult> = answer.typed();
            assert!(answers.iter().all(|answer| answer.success), "{answers:?}");
        }
        if left.fetch_sub(messages.len(), Ordering::SeqCst) == messages.len() {
            done.store(true, Ordering::SeqCst);
        }
    }
}

/// What consumers see, per partition in the order of seeing.
async fn seen_by_all(path: &str) -> Vec<Vec<i64>> {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    let seen = Seen::default();
    let left = AtomicUsize::new(2 * PARTITIONS * ROUNDS);
    let done = AtomicBool::new(false);
    let (one, two) = (&fixture.broker, &other);
    let consumer = |broker| consume(&fixture, broker, path, &seen, &left, &done);
    let work = async {
        tokio::join!(
            produce(&fixture, one, 0),
            produce(&fixture, two, 1),
            consumer(one),
            consumer(one),
            consumer(two),
            consumer(two),
        )
    };
    tokio::time::timeout(std::time::Duration::from_secs(120), work)
        .await
        .expect("all records are seen");
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 2 * PARTITIONS);
    seen.into_values().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_of_two_brokers_see_every_record_once_and_in_order() {
    let path = "/queue/q?consumerGroup=g&subscriptionMode=all&batch=7&partitions=3&timeout=500";
    for numbers in seen_by_all(path).await {
        assert_eq!(numbers, (0..ROUNDS as i64).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_settle_at_delivery_see_every_record_once() {
    let path = "/queue/q?autoAck=true&batch=7&partitions=3&timeout=500";
    for mut numbers in seen_by_all(path).await {
        // Without leases two consumers can be at one partition: each has its records in order.
        numbers.sort_unstable();
        assert_eq!(numbers, (0..ROUNDS as i64).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_acks_of_one_record_at_two_brokers_one_counts() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    super::configure(&fixture, "q", json!({"retryLimit": 0})).await;
    for n in 0..10 {
        fixture.push("q", &format!("p{n}"), &["1"]).await;
        let message = super::pop(&fixture, "/queue/q?").await.remove(0);
        let (one, two) = tokio::join!(
            ack_to(&fixture, &fixture.broker, &message, "failed"),
            ack_to(&fixture, &other, &message, "failed"),
        );
        assert!(one.success ^ two.success, "{one:?} {two:?}");
        let dead = fixture.get("/api/v1/dlq?queue=q").await.json();
        assert_eq!(dead["total"], json!(n + 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_misses_no_partition_that_is_made_while_it_subscribes() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    for round in 0..15 {
        let queue = format!("q{}", round % 3);
        let group = format!("g{round}");
        let partition = format!("p{round}");
        let path = format!(
            "/queue/{queue}?consumerGroup={group}&subscriptionMode=all&autoAck=true&wait=false&partitions=99"
        );
        let ((), first) = tokio::join!(
            fixture.push(&queue, &partition, &["1"]),
            pop_from(&other, &path)
        );
        let rest = pop_from(&other, &path).await;
        let seen = first
            .iter()
            .chain(&rest)
            .filter(|message| message.partition == partition);
        assert_eq!(seen.count(), 1, "round {round}");
    }
}

/// What waits for all pushes that make partitions of a queue, while such pushes keep coming.
async fn is_not_overtaken(waits: impl AsyncFnOnce(&Fixture), of_it: &str) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    // A push that makes a partition and is not done.
    holder
        .batch_execute(
            "BEGIN; SELECT queen.allocate(tenant, ARRAY[name], ARRAY['first']) FROM queen.queues",
        )
        .await
        .unwrap();
    let waiting = async |like: &str| {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND application_name = 'queen' AND query LIKE $1";
        let row = observer.query_one(sql, &[&like]).await.unwrap();
        row.get::<_, i64>(0)
    };
    let later = async {
        until(|| async { waiting(of_it).await == 1 }).await;
        fixture.push("q", "second", &["2"]).await;
    };
    let release = async {
        // The later push stands behind.
        until(|| async { waiting("%queen.push%").await == 1 }).await;
        assert_eq!(waiting(of_it).await, 1);
        holder.batch_execute("COMMIT").await.unwrap();
    };
    tokio::join!(waits(&fixture), later, release);
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_a_queue_is_not_overtaken_by_pushes_that_make_partitions() {
    let fixture = is_not_overtaken(
        async |fixture| {
            let path = "/api/v1/resources/queues/q";
            assert_eq!(fixture.request("DELETE", path, "").await.status, 200);
        },
        "%queen.delete_queue%",
    )
    .await;
    // What came later is in the next life.
    let changed = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    let names: Vec<&str> = changed.entries[0]
        .partitions
        .iter()
        .map(|partition| partition.name.as_str())
        .collect();
    assert_eq!(names, ["second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_meets_a_queue_is_not_overtaken_by_pushes_that_make_partitions() {
    let fixture = is_not_overtaken(
        async |fixture| {
            let path = "/queue/q?consumerGroup=g&subscriptionMode=all&wait=false";
            let seen = pop_from(&fixture.broker, path).await;
            assert_eq!(seen.len(), 1);
        },
        "%queen.pop%",
    )
    .await;
    let path = "/queue/q?consumerGroup=g&partitions=9&wait=false";
    let seen = pop_from(&fixture.broker, path).await;
    assert_eq!(super::numbers(&seen), [2]);
}

/// A pop that waits to meet the queue's partitions, while its group is deleted by a statement: how many
/// records it is answered with.
async fn popped_while_deleted(delete: &str) -> usize {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    for sql in [
        "SELECT queen.subscribe(tenant, name, 'g', '-infinity', 1) FROM queen.queues",
        "BEGIN",
        "SELECT pg_advisory_xact_lock(1364525059, queen.queue_lock(tenant, name)) FROM queen.queues",
    ] {
        holder.batch_execute(sql).await.unwrap();
    }
    let deleting = async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND query LIKE '%queen.pop%'";
        until(|| async { observer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1 }).await;
        holder.batch_execute(delete).await.unwrap();
        holder.batch_execute("COMMIT").await.unwrap();
    };
    let path = "/queue/q?consumerGroup=g&subscriptionMode=all&wait=false";
    let (messages, ()) = tokio::join!(pop_from(&fixture.broker, path), deleting);
    messages.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_whose_group_is_deleted_while_it_waits_begins_anew() {
    let seen = popped_while_deleted("DELETE FROM queen.groups").await;
    assert_eq!(seen, 1);
    // With the queue, nothing is left to begin at.
    let seen =
        popped_while_deleted("SELECT queen.delete_queue(tenant, name) FROM queen.queues").await;
    assert_eq!(seen, 0);
}
