use std::time::{Duration, Instant};

use serde_json::json;

use super::{ack, configure, numbers, pop, pop_answer, pop_from};
use crate::support::{Fixture, until};

#[tokio::test]
async fn records_come_in_order_with_all_that_a_consumer_needs() {
    let fixture = Fixture::start().await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":{"a" : 1.50},"transactionId":"t\"1"},
        {"queue":"q","partition":"p","payload":2}]}"#;
    let pushed: Vec<queen_protocol::PushResult> = fixture.post("/api/v1/push", body).await.typed();
    let answer = pop_answer(
        &fixture.broker,
        "/queue/q?subscriptionMode=all&consumerGroup=g",
    )
    .await;
    // As it was pushed, byte by byte.
    assert!(
        answer.text.contains(r#""data":{"a" : 1.50},"#),
        "{}",
        answer.text
    );
    let popped: queen_protocol::PopResponse = answer.typed();
    assert_eq!(
        (popped.queue.as_str(), popped.partition.as_str()),
        ("q", "p")
    );
    assert_eq!(popped.partitions_claimed, Some(1));
    let first = &popped.messages[0];
    assert_eq!(first.id, pushed[0].message_id);
    assert_eq!(first.transaction_id, "t\"1");
    assert_eq!(
        (first.partition.as_str(), first.consumer_group.as_str()),
        ("p", "g")
    );
    assert!(first.is_leased() && first.lease_id == popped.lease_id);
    assert_eq!(popped.messages[1].data, json!(2));
    let listed = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    assert_eq!(
        listed.entries[0].partitions[0].id.as_deref(),
        Some(first.partition_id.as_str())
    );
}

#[tokio::test]
async fn a_batch_begins_and_ends_within_segments() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2"]).await;
    fixture.push("q", "p", &["3", "4", "5"]).await;
    for expected in [vec![0, 1], vec![2, 3], vec![4, 5]] {
        let messages = pop(&fixture, "/queue/q?batch=2").await;
        assert_eq!(numbers(&messages), expected);
        assert!(
            ack(&fixture, &messages[1], "completed")
                .await
                .lease_released
        );
    }
    assert!(pop(&fixture, "/queue/q?batch=2").await.is_empty());
}

#[tokio::test]
async fn a_partition_is_one_consumers_until_its_lease_ends_and_then_comes_again() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1"]).await;
    let path = "/queue/q?consumerGroup=g&subscriptionMode=all&leaseSeconds=1";
    let first = pop(&fixture, path).await;
    assert_eq!(numbers(&first), [0, 1]);
    fixture.push("q", "p", &["2"]).await;
    assert!(pop(&fixture, path).await.is_empty());
    assert!(
        pop(&fixture, "/queue/q/partition/p?consumerGroup=g")
            .await
            .is_empty()
    );
    // Another group is not kept from it.
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=h&subscriptionMode=all").await),
        [0, 1, 2]
    );
    // A pop that waits is there when the lease ends, long before it would look again by itself.
    let begun = Instant::now();
    let again = pop_from(&fixture.broker, path).await;
    assert_eq!(numbers(&again), [0, 1, 2]);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_ne!(again[0].lease_id, first[0].lease_id);
}

#[tokio::test]
async fn several_partitions_share_one_lease_and_one_batch() {
    let fixture = Fixture::start().await;
    for partition in ["a", "b", "c"] {
        fixture.push("q", partition, &["1", "2"]).await;
    }
    let messages = pop(&fixture, "/queue/q?partitions=3&batch=5").await;
    assert_eq!(messages.len(), 5);
    assert!(
        messages
            .iter()
            .all(|message| message.lease_id == messages[0].lease_id)
    );
    let partitions: std::collections::HashSet<&str> = messages
        .iter()
        .map(|message| message.partition.as_str())
        .collect();
    assert_eq!(partitions.len(), 3);
    // Without a width it is one partition, whatever the batch; what the batch left is the rest.
    assert!(pop(&fixture, "/queue/q?batch=100").await.is_empty());
    let single = pop(
        &fixture,
        "/queue/q?batch=100&consumerGroup=g&subscriptionMode=all",
    )
    .await;
    assert_eq!(numbers(&single), [1, 2]);
}

#[tokio::test]
async fn who_settles_at_delivery_holds_no_lease_and_sees_nothing_twice() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2", "3"]).await;
    let messages = pop(&fixture, "/queue/q?autoAck=true&batch=2").await;
    assert_eq!(numbers(&messages), [1, 2]);
    assert!(!messages[0].is_leased());
    assert_eq!(numbers(&pop(&fixture, "/queue/q?autoAck=true").await), [3]);
    // Acknowledged all the same, it is a noop.
    let late = ack(&fixture, &messages[0], "completed").await;
    assert!(!late.success && late.error.unwrap().contains("unresolvable"));
    fixture.push("q", "p", &["4"]).await;
    let last = pop(&fixture, "/queue/q?autoAck=true").await;
    assert!(ack(&fixture, &last[0], "completed").await.noop);
}

#[tokio::test]
async fn what_was_not_delivered_is_not_settled_at_delivery() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2"]).await;
    let session = fixture.session().await;
    let rename = async |from: &str, to: &str| {
        let statement = format!("ALTER FUNCTION queen.{from} RENAME TO {to}");
        session.batch_execute(&statement).await.unwrap();
    };
    // The broker fails after it has taken the records and before it has answered.
    rename("settle_delivered", "away").await;
    let failed = pop_answer(&fixture.broker, "/queue/q?autoAck=true&wait=false").await;
    assert_eq!(failed.status, 500, "{}", failed.text);
    rename("away", "settle_delivered").await;
    let messages = pop(&fixture, "/queue/q?autoAck=true").await;
    assert_eq!(numbers(&messages), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_at_delivery_is_kept_longer_than_the_longest_statement() {
    let variables = [
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "100000"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "100000"),
        ("QUEEN_FETCH_SAFE_FLOOR_MS", "300000"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    // The broker waits to settle what it has taken and rendered.
    session
        .batch_execute(
            "SELECT pg_advisory_lock(77);
             ALTER FUNCTION queen.settle_delivered RENAME TO settle_at_once;
             CREATE FUNCTION queen.settle_delivered(uuid, bigint, bigint[], bigint[], integer[])
             RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM pg_advisory_xact_lock(77);
                 RETURN queen.settle_at_once($1, $2, $3, $4, $5);
             END $$",
        )
        .await
        .unwrap();
    let kept = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE wait_event_type = 'Lock' AND query LIKE '%queen.settle_delivered%'";
        until(|| async {
            let row = session.query_one(waiting, &[]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
        let left = "SELECT extract(epoch FROM due - clock_timestamp())::float8 FROM queen.cursors
                    WHERE lease_id IS NOT NULL";
        let left: f64 = session.query_one(left, &[]).await.unwrap().get(0);
        session
            .batch_execute("SELECT pg_advisory_unlock(77)")
            .await
            .unwrap();
        left
    };
    let (messages, left) = tokio::join!(pop(&fixture, "/queue/q?autoAck=true"), kept);
    assert_eq!(numbers(&messages), [1]);
    assert!(left > 200.0, "{left} s");
}

#[tokio::test]
async fn a_parked_pop_is_woken_for_what_another_left_when_it_settled_at_delivery() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1", "2"]).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    fixture.push("q", "p", &["3", "4"]).await;
    let mut session = fixture.session().await;
    let held = session.transaction().await.unwrap();
    held.batch_execute("SELECT 1 FROM queen.cursors FOR UPDATE")
        .await
        .unwrap();
    let path = "/queue/q?consumerGroup=g&autoAck=true&batch=1&timeout=30000";
    let parked = async {
        let messages = pop_from(&fixture.broker, path).await;
        assert_eq!(numbers(&messages), [4]);
    };
    let taking = async {
        fixture.until_parked(1).await;
        held.commit().await.unwrap();
        let begun = Instant::now();
        let messages = pop(&fixture, "/queue/q?consumerGroup=g&autoAck=true&batch=1").await;
        assert_eq!(numbers(&messages), [3]);
        begun
    };
    let ((), begun) = tokio::join!(parked, taking);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_parked_pop_is_woken_by_a_push_and_holds_neither_session_nor_slot() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({})).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    let parked = async {
        let begun = Instant::now();
        let messages = pop_from(&fixture.broker, "/queue/q?consumerGroup=g&timeout=30000").await;
        assert_eq!(numbers(&messages), [7]);
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "{:?}",
            begun.elapsed()
        );
    };
    let pushing = async {
        fixture.until_parked(1).await;
        until(|| async { fixture.broker.broker().database.usage().0 == 0 }).await;
        let metrics = fixture.get("/metrics").await.text;
        let free = "queen_lane_slots_in_use{lane=\"pop\"} 0\n";
        assert!(metrics.contains(free), "{metrics}");
        fixture.push("q", "new", &["7"]).await;
    };
    tokio::join!(parked, pushing);
}

#[tokio::test]
async fn a_parked_pop_is_woken_by_a_push_to_another_broker() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    configure(&fixture, "q", json!({})).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    let parked = pop_from(&other, "/queue/q/partition/p?consumerGroup=g&timeout=30000");
    let pushing = async {
        until(|| async { other.broker().waiters.count() == 1 }).await;
        fixture.push("q", "p", &["7"]).await;
    };
    let (messages, ()) = tokio::join!(parked, pushing);
    assert_eq!(numbers(&messages), [7]);
}

#[tokio::test]
async fn a_parked_pop_is_woken_when_another_consumer_gives_back() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    fixture.push("q", "p", &["1"]).await;
    let mut held = pop(&fixture, "/queue/q?leaseSeconds=300").await;
    for broker in [&fixture.broker, &other] {
        let parked = async {
            let begun = Instant::now();
            let messages = pop_from(broker, "/queue/q?timeout=30000&leaseSeconds=300").await;
            assert_eq!(numbers(&messages), [1]);
            assert!(
                begun.elapsed() < Duration::from_secs(4),
                "{:?}",
                begun.elapsed()
            );
            messages
        };
        let rejecting = async {
            until(|| async { broker.broker().waiters.count() == 1 }).await;
            assert!(ack(&fixture, &held[0], "retry").await.success);
        };
        (held, _) = tokio::join!(parked, rejecting);
    }
}

#[tokio::test]
async fn a_pop_that_finds_nothing_in_time_answers_nothing() {
    let fixture = Fixture::start().await;
    let begun = Instant::now();
    assert!(
        pop_from(&fixture.broker, "/queue/q?timeout=300")
            .await
            .is_empty()
    );
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(pop(&fixture, "/queue/q?timeout=30000").await.is_empty());
    assert!(begun.elapsed() < Duration::from_secs(20));
    let wrong = pop_answer(&fixture.broker, "/queue/q?batch=many").await;
    assert_eq!(wrong.status, 400);
    let later = pop_answer(&fixture.broker, "/queue/q?consumerGroup=g&conflation=true").await;
    assert_eq!(later.status, 501);
    assert!(later.error().contains("conflation"));
}

#[tokio::test]
async fn records_of_a_delayed_queue_come_when_they_are_due() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({"delayedProcessing": 1})).await;
    let begun = Instant::now();
    fixture.push("q", "p", &["1"]).await;
    assert!(pop(&fixture, "/queue/q?").await.is_empty());
    let messages = pop_from(&fixture.broker, "/queue/q?timeout=30000").await;
    assert_eq!(numbers(&messages), [1]);
    let waited = begun.elapsed();
    assert!(
        (Duration::from_secs(1)..Duration::from_secs(4)).contains(&waited),
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_namespace_or_a_task_stands_for_its_queues() {
    let fixture = Fixture::start().await;
    for (queue, namespace, task) in [("a", "n", "t"), ("b", "n", "u"), ("c", "m", "t")] {
        configure(
            &fixture,
            queue,
            json!({"namespace": namespace, "task": task}),
        )
        .await;
        fixture.push(queue, "p", &["1"]).await;
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        let url = format!("{}/api/v1/pop?namespace=n&wait=false", fixture.url());
        let popped: queen_protocol::PopResponse =
            reqwest::get(url).await.unwrap().json().await.unwrap();
        seen.push(popped.queue);
    }
    seen.sort();
    assert_eq!(seen, ["a", "b"]);
    assert_eq!(pop(&fixture, "?namespace=m&task=t").await.len(), 1);
    assert!(pop(&fixture, "?namespace=m&task=u").await.is_empty());
    assert_eq!(pop_answer(&fixture.broker, "?wait=false").await.status, 400);
}

/// Queues of namespace `n`, more than a pop looks at in one go.
async fn many_queues(fixture: &Fixture) {
    fixture
        .session()
        .await
        .batch_execute(
            r#"INSERT INTO queen.queues (tenant, name, options)
               SELECT '00000000-0000-0000-0000-000000000001', 'q' || n, '{"namespace": "n"}'
               FROM generate_series(100, 204) AS n"#,
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_namespace_of_any_size_is_looked_at_to_its_end() {
    let fixture = Fixture::start().await;
    many_queues(&fixture).await;
    for queue in ["q203", "q100", "q204"] {
        fixture.push(queue, "p", &["1"]).await;
        assert_eq!(pop(&fixture, "?namespace=n&autoAck=true").await.len(), 1);
    }
    assert!(pop(&fixture, "?namespace=n").await.is_empty());
}

#[tokio::test]
async fn a_pop_of_a_large_namespace_is_woken_by_any_of_its_queues() {
    let fixture = Fixture::start().await;
    many_queues(&fixture).await;
    let parked = pop_from(&fixture.broker, "?namespace=n&timeout=30000");
    let pushing = async {
        fixture.until_parked(2).await;
        // Of all that it registers for, this is looked at last.
        fixture.push("q204", "p", &["7"]).await;
        Instant::now()
    };
    let (messages, pushed) = tokio::join!(parked, pushing);
    assert_eq!(numbers(&messages), [7]);
    assert!(pushed.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn what_a_client_took_and_never_got_is_there_again_at_once() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    session
        .batch_execute("BEGIN; LOCK TABLE queen.segments IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let gone = tokio::time::timeout(
        Duration::from_secs(1),
        pop(&fixture, "/queue/q?leaseSeconds=300"),
    );
    assert!(gone.await.is_err());
    session.batch_execute("COMMIT").await.unwrap();
    until(|| async { !pop(&fixture, "/queue/q?leaseSeconds=300").await.is_empty() }).await;
}

#[tokio::test]
async fn a_look_costs_the_same_however_many_partitions_have_nothing_to_take() {
    let fixture = Fixture::start().await;
    let mut reads = Vec::new();
    for more in [200, 5_000] {
        let items: Vec<String> = (0..more)
            .map(|n| format!(r#"{{"queue":"q","partition":"{more}-{n}","payload":{n}}}"#))
            .collect();
        let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
        assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
        until(|| async {
            pop(&fixture, "/queue/q?autoAck=true&partitions=1000&batch=1000")
                .await
                .is_empty()
        })
        .await;
        fixture.push("q", &format!("{more}-7"), &["7"]).await;
        let session = fixture.session().await;
        session
            .batch_execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off")
            .await
            .unwrap();
        let plan = session
            .query_one(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM queen.pop(
                    '00000000-0000-0000-0000-000000000001', 'q', NULL, '__QUEUE_MODE__',
                    gen_random_uuid(), 300, 10, 1, 1000000, 200)",
                &[],
            )
            .await
            .unwrap();
        let plan: serde_json::Value = plan.get(0);
        let plan = &plan[0]["Plan"];
        assert_eq!(plan["Actual Rows"].as_f64(), Some(2.0));
        reads.push(
            plan["Shared Hit Blocks"].as_i64().unwrap()
                + plan["Shared Read Blocks"].as_i64().unwrap(),
        );
    }
    // A level more in an index, and rows that are no longer seen; never a row per partition.
    assert!(reads[1] < reads[0] + 300, "{reads:?}");
}

#[tokio::test]
async fn head_takes_nothing() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["1"]).await;
    let query = "consumerGroup=g&autoAck=true&wait=false&subscriptionMode=all";
    for path in [
        "/api/v1/pop",
        "/api/v1/pop/queue/q",
        "/api/v1/pop/queue/q/partition/p",
    ] {
        let path = format!("{path}?{query}");
        let answer = fixture.request("HEAD", &path, "").await;
        assert_eq!(answer.status, 405, "{path}");
    }
    let popped = fixture.get(&format!("/api/v1/pop/queue/q?{query}")).await;
    assert_eq!(popped.json()["messages"].as_array().unwrap().len(), 1);
}
