use queen::log::push::message_id;
use serde_json::json;

use super::{ack, numbers, pop};
use crate::support::{Fixture, until};

#[tokio::test]
async fn a_group_begins_at_now_at_the_start_or_at_an_instant() {
    let fixture = Fixture::start().await;
    for payload in ["0", "1", "2"] {
        fixture.push("q", "p", &[payload]).await;
    }
    let log = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    let second = &log.entries[0].records[1].ts;
    let from = format!("/queue/q?consumerGroup=instant&subscriptionFrom={second}");
    assert_eq!(numbers(&pop(&fixture, &from).await), [1, 2]);
    assert!(pop(&fixture, "/queue/q?consumerGroup=now").await.is_empty());
    assert!(
        pop(
            &fixture,
            "/queue/q?consumerGroup=told&subscriptionMode=new&subscriptionFrom=now"
        )
        .await
        .is_empty()
    );
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=all&subscriptionMode=all").await),
        [0, 1, 2]
    );
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?subscriptionMode=new").await),
        [0, 1, 2]
    );
    fixture.push("q", "p", &["3"]).await;
    fixture.push("q", "later", &["4"]).await;
    // What a group asks for when it is there already changes nothing.
    let mut seen = numbers(
        &pop(
            &fixture,
            "/queue/q?consumerGroup=now&subscriptionMode=all&partitions=9",
        )
        .await,
    );
    seen.sort_unstable();
    assert_eq!(seen, [3, 4]);
}

#[tokio::test]
async fn a_group_that_is_there_before_its_queue_misses_nothing() {
    let fixture = Fixture::start().await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    assert_eq!(
        fixture.get("/api/v1/resources/queues").await.json()["queues"],
        json!([])
    );
    fixture.push("q", "p", &["1"]).await;
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=g").await),
        [1]
    );
}

#[tokio::test]
async fn now_is_exact_even_when_the_clock_steps_back() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    // As if the group had subscribed before the clock stepped back an hour: floor and group agree.
    let session = fixture.session().await;
    let moved = session
        .query_one(
            "WITH f AS (UPDATE queen.floor SET ts = ts + interval '1 hour' RETURNING ts),
                  s AS (UPDATE queen.groups SET since = since + interval '1 hour' RETURNING since)
             SELECT f.ts >= s.since FROM f, s",
            &[],
        )
        .await
        .unwrap();
    assert!(
        moved.get::<_, bool>(0),
        "the floor is below a group's beginning"
    );
    fixture.push("q", "new", &["1"]).await;
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=g").await),
        [1]
    );
}

#[tokio::test]
async fn a_group_meets_every_partition_of_a_large_queue() {
    let fixture = Fixture::start().await;
    let items: Vec<String> = (0..1_700)
        .map(|n| format!(r#"{{"queue":"q","partition":"{n}","payload":{n}}}"#))
        .collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
    // One that begins now arms them all and takes nothing until something is pushed.
    assert!(pop(&fixture, "/queue/q?consumerGroup=now").await.is_empty());
    fixture.push("q", "1699", &["7"]).await;
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=now").await),
        [7]
    );
    let mut seen = Vec::new();
    loop {
        let messages = pop(&fixture, "/queue/q?autoAck=true&partitions=400&batch=400").await;
        if messages.is_empty() {
            break;
        }
        seen.extend(numbers(&messages));
    }
    seen.sort_unstable();
    let mut expected: Vec<i64> = (0..1_700).chain([7]).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_deleted_group_begins_anew_and_a_moved_one_elsewhere() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1"]).await;
    let path = "/queue/q?consumerGroup=g&subscriptionMode=all";
    let messages = pop(&fixture, path).await;
    ack(&fixture, &messages[1], "completed").await;
    assert!(pop(&fixture, path).await.is_empty());
    let deleted = fixture
        .request("DELETE", "/api/v1/consumer-groups/g/queues/q", "")
        .await
        .json();
    assert_eq!(
        (&deleted["success"], &deleted["deletedPartitions"]),
        (&json!(true), &json!(1))
    );
    let again = pop(&fixture, path).await;
    assert_eq!(numbers(&again), [0, 1]);

    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    let sought = fixture.post(seek, r#"{"toEnd":true}"#).await.json();
    assert_eq!(sought["partitionsUpdated"], json!(1));
    // What was taken before the move can no longer be settled.
    assert!(!ack(&fixture, &again[1], "completed").await.success);
    assert!(pop(&fixture, path).await.is_empty());
    fixture
        .post(seek, r#"{"timestamp":"1970-01-01T00:00:00Z"}"#)
        .await
        .json();
    assert_eq!(numbers(&pop(&fixture, path).await), [0, 1]);
    assert_eq!(
        fixture
            .post(seek, r#"{"position":"earliest"}"#)
            .await
            .status,
        400
    );
    let nobody = "/api/v1/consumer-groups/nobody/queues/q/seek";
    assert_eq!(fixture.post(nobody, r#"{"toEnd":true}"#).await.status, 404);
}

#[tokio::test]
async fn everything_below_the_least_cursor_of_all_groups_is_complete() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2"]).await;
    let session = fixture.session().await;
    let completed = async || {
        let sql = "SELECT queen.completed_to(id) FROM queen.partitions";
        session
            .query_one(sql, &[])
            .await
            .unwrap()
            .get::<_, Option<i64>>(0)
    };
    assert_eq!(completed().await, None);
    let first = pop(&fixture, "/queue/q?consumerGroup=a&subscriptionMode=all").await;
    assert_eq!(completed().await, Some(0));
    ack(&fixture, &first[1], "completed").await;
    assert_eq!(completed().await, Some(2));
    let second = pop(&fixture, "/queue/q?consumerGroup=b&subscriptionMode=all").await;
    assert_eq!(completed().await, Some(0));
    ack(&fixture, &second[0], "completed").await;
    assert_eq!(completed().await, Some(1));
}

#[tokio::test]
async fn deleting_a_queue_takes_groups_cursors_and_dead_letters_along() {
    let fixture = Fixture::with(&[("QUEEN_RETENTION_INTERVAL_MS", "100")], &[]).await;
    fixture.push("q", "p", &["0", "1"]).await;
    let messages = pop(&fixture, "/queue/q?consumerGroup=g&subscriptionMode=all").await;
    assert!(ack(&fixture, &messages[0], "dlq").await.dlq);
    let deleted = fixture
        .request("DELETE", "/api/v1/resources/queues/q", "")
        .await;
    assert_eq!(deleted.json()["existed"], json!(true));
    let late = ack(&fixture, &messages[1], "completed").await;
    assert!(!late.success);
    let dead = fixture.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!(dead["total"], json!(0));
    // The queue made anew knows nothing of what the group was: it begins now, as a new one does.
    fixture.push("q", "p", &["7"]).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    let again = pop(&fixture, "/queue/q?").await;
    assert_eq!(numbers(&again), [7]);
    assert_ne!(again[0].partition_id, messages[0].partition_id);
    let life = again[0].partition_id.parse().unwrap();
    assert_eq!(again[0].id, message_id(life, 0).to_string());
    let session = fixture.session().await;
    let remains =
        "SELECT (SELECT count(*) FROM queen.dead_letters) + (SELECT count(*) FROM queen.cursors c
        WHERE NOT EXISTS (SELECT 1 FROM queen.partitions p WHERE p.id = c.partition_id))";
    crate::support::until(|| async {
        let row = session.query_one(remains, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    })
    .await;
}

#[tokio::test]
async fn a_group_that_begins_later_gets_nothing_from_before() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let later = "2999-01-01T00:00:00Z";
    let subscribed = format!("/queue/q?consumerGroup=subscribed&subscriptionFrom={later}");
    let moved = "/queue/q?consumerGroup=moved&subscriptionMode=all";
    assert_eq!(numbers(&pop(&fixture, moved).await), [0]);
    let seek = json!({ "timestamp": later }).to_string();
    let route = "/api/v1/consumer-groups/moved/queues/q/seek";
    assert_eq!(fixture.post(route, seek).await.status, 200);
    assert!(pop(&fixture, &subscribed).await.is_empty());
    fixture.push("q", "p", &["1"]).await;
    fixture.push("q", "new", &["1"]).await;
    for path in [subscribed.as_str(), moved] {
        assert!(pop(&fixture, path).await.is_empty(), "{path}");
    }
    // The instant comes.
    let session = fixture.session().await;
    session
        .batch_execute("UPDATE queen.groups SET since = clock_timestamp()")
        .await
        .unwrap();
    fixture.push("q", "p", &["2"]).await;
    for path in [subscribed.as_str(), moved] {
        assert_eq!(numbers(&pop(&fixture, path).await), [2], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_the_end_holds_no_cursor_while_it_waits_for_the_floor() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    pop(&fixture, "/queue/q?consumerGroup=g").await;
    let (holder, observer) = (fixture.session().await, fixture.session().await);
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.floor FOR UPDATE")
        .await
        .unwrap();
    let looking = async {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND application_name = 'queen'";
        until(|| async {
            let row = observer.query_one(sql, &[]).await.unwrap();
            row.get::<_, i64>(0) == 1
        })
        .await;
        let free = "SELECT 1 FROM queen.cursors FOR UPDATE NOWAIT";
        let free = observer.execute(free, &[]).await;
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(free.expect("the move holds a cursor"), 1);
    };
    let seek = "/api/v1/consumer-groups/g/queues/q/seek";
    let (sought, ()) = tokio::join!(fixture.post(seek, r#"{"toEnd":true}"#), looking);
    assert_eq!(sought.status, 200);
    let sql = "SELECT f.ts >= s.since FROM queen.floor f, queen.groups s";
    let above = observer.query_one(sql, &[]).await.unwrap();
    assert!(above.get::<_, bool>(0), "the floor is below the group");
}

/// Pushes one record each to `count` partitions, numbered from 0.
async fn fill(fixture: &Fixture, count: usize) {
    let items: Vec<String> = (0..count)
        .map(|n| format!(r#"{{"queue":"q","partition":"{n:04}","payload":{n}}}"#))
        .collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
}

/// All that pops of a path give until they give nothing, sorted.
async fn drained(fixture: &Fixture, path: &str) -> Vec<i64> {
    let mut seen = Vec::new();
    loop {
        let messages = pop(fixture, path).await;
        if messages.is_empty() {
            seen.sort_unstable();
            return seen;
        }
        seen.extend(numbers(&messages));
    }
}

const SEEK: &str = "/api/v1/consumer-groups/g/queues/q/seek";
const START: &str = r#"{"timestamp":"1970-01-01T00:00:00Z"}"#;

#[tokio::test]
async fn a_group_of_many_partitions_is_moved_at_once_and_in_all_of_them() {
    let fixture = Fixture::start().await;
    fill(&fixture, 1_700).await;
    let all: Vec<i64> = (0..1_700).collect();
    let settle =
        "/queue/q?consumerGroup=g&subscriptionMode=all&autoAck=true&partitions=400&batch=400";
    assert_eq!(drained(&fixture, settle).await, all);
    assert_eq!(fixture.post(SEEK, START).await.status, 200);
    assert_eq!(drained(&fixture, settle).await, all);
    assert_eq!(fixture.post(SEEK, START).await.status, 200);
    assert_eq!(fixture.post(SEEK, r#"{"toEnd":true}"#).await.status, 200);
    // The first look meets some of them, a push wakes any.
    assert!(pop(&fixture, settle).await.is_empty());
    fixture.push("q", "1699", &["7"]).await;
    fixture.push("q", "new", &["8"]).await;
    assert_eq!(drained(&fixture, settle).await, [7, 8]);
}

#[tokio::test]
async fn a_move_waits_for_no_cursor_and_nobody_settles_by_an_earlier_one() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2"]).await;
    fixture.push("q", "other", &["5"]).await;
    let path = "/queue/q/partition/p?consumerGroup=g&subscriptionMode=all";
    let taken = pop(&fixture, path).await;
    let holder = fixture.session().await;
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.cursors FOR UPDATE")
        .await
        .unwrap();
    assert_eq!(fixture.post(SEEK, START).await.status, 200);
    holder.batch_execute("ROLLBACK").await.unwrap();
    // The cursor itself has not followed yet.
    assert!(!ack(&fixture, &taken[1], "completed").await.success);
    let lease = taken[0].lease_id.clone();
    let extended = fixture
        .post(&format!("/api/v1/lease/{lease}/extend"), "")
        .await
        .json();
    assert_eq!(extended["success"], json!(false));
    let completed = "SELECT queen.completed_to(id) FROM queen.partitions WHERE name = 'p'";
    let row = holder.query_one(completed, &[]).await.unwrap();
    assert_eq!(row.get::<_, Option<i64>>(0), Some(0));
    // It is taken anew although the lease from before would hold on.
    let again = pop(&fixture, path).await;
    assert_eq!(numbers(&again), [0, 1, 2]);
    assert!(ack(&fixture, &again[2], "completed").await.success);
    assert!(pop(&fixture, path).await.is_empty());
    assert_eq!(
        numbers(&pop(&fixture, "/queue/q?consumerGroup=g&subscriptionMode=all").await),
        [5]
    );
}

#[tokio::test]
async fn the_cursors_of_a_deleted_group_go_in_the_background() {
    let fixture = Fixture::with(&[("QUEEN_RETENTION_INTERVAL_MS", "100")], &[]).await;
    fill(&fixture, 1_200).await;
    let settle =
        "/queue/q?consumerGroup=g&subscriptionMode=all&autoAck=true&partitions=400&batch=400";
    assert_eq!(drained(&fixture, settle).await.len(), 1_200);
    let holder = fixture.session().await;
    holder
        .batch_execute("BEGIN; SELECT 1 FROM queen.cursors LIMIT 10 FOR UPDATE")
        .await
        .unwrap();
    // No cursor is waited for.
    let deleted = fixture
        .request("DELETE", "/api/v1/consumer-groups/g", "")
        .await
        .json();
    assert_eq!(
        (&deleted["deletedPartitions"], &deleted["metadataDeleted"]),
        (&json!(1_200), &json!(true))
    );
    let left = "SELECT count(*) FROM queen.cursors c
                WHERE NOT EXISTS (SELECT 1 FROM queen.groups s WHERE s.id = c.group_id)";
    let count = async || {
        let session = fixture.session().await;
        session.query_one(left, &[]).await.unwrap().get::<_, i64>(0)
    };
    until(|| async { count().await == 10 }).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(drained(&fixture, settle).await.len(), 1_200);
    until(|| async { count().await == 0 }).await;
    // One that found the group before may still bring a cursor.
    let session = fixture.session().await;
    session
        .batch_execute(
            "INSERT INTO queen.cursors (partition_id, group_id)
             SELECT p.id, d.group_id FROM queen.deleted_groups d, queen.partitions p WHERE p.name = '0007'",
        )
        .await
        .unwrap();
    until(|| async { count().await == 0 }).await;
    session
        .batch_execute(
            "UPDATE queen.deleted_groups SET deleted_at = deleted_at - interval '1 hour'",
        )
        .await
        .unwrap();
    let noted = "SELECT count(*) FROM queen.deleted_groups";
    until(|| async {
        session
            .query_one(noted, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
}

#[tokio::test]
async fn a_deleted_group_is_kept_in_mind_longer_than_the_longest_statement() {
    let variables = [
        ("QUEEN_RETENTION_INTERVAL_MS", "3600000"),
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "100000"),
        ("QUEEN_FETCH_SAFE_FLOOR_MS", "300000"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    fixture.push("q", "p", &["1"]).await;
    pop(&fixture, "/queue/q?consumerGroup=g&subscriptionMode=all").await;
    let path = "/api/v1/consumer-groups/g";
    assert_eq!(fixture.request("DELETE", path, "").await.status, 200);
    let session = fixture.session().await;
    for (seconds, left) in [(90.0, 1), (140.0, 0)] {
        let age = "UPDATE queen.deleted_groups
                   SET deleted_at = clock_timestamp() - make_interval(secs => $1)";
        session.execute(age, &[&seconds]).await.unwrap();
        queen::retention::clear(fixture.broker.broker())
            .await
            .unwrap();
        let count = "SELECT count(*) FROM queen.deleted_groups";
        let row = session.query_one(count, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), left, "after {seconds} s");
    }
}

#[tokio::test]
async fn a_tenant_has_so_many_groups_of_absent_queues_and_no_more() {
    let fixture = Fixture::start().await;
    let session = fixture.session().await;
    assert!(
        pop(&fixture, "/queue/absent?consumerGroup=g")
            .await
            .is_empty()
    );
    session
        .batch_execute(
            "INSERT INTO queen.groups (tenant, queue, name, since, waits)
             SELECT s.tenant, 'absent-' || n, 'g', s.since, true
             FROM queen.groups s, generate_series(2, 1000) n",
        )
        .await
        .unwrap();
    let refused = fixture.get("/api/v1/pop/queue/more?consumerGroup=g").await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (400, Some("too_many_waiting_groups"))
    );
    // One that is there, and one of a queue that is, are not refused.
    assert!(
        pop(&fixture, "/queue/absent?consumerGroup=g")
            .await
            .is_empty()
    );
    fixture.push("q", "p", &["0"]).await;
    assert!(pop(&fixture, "/queue/q?consumerGroup=g").await.is_empty());
    // A queue that came makes room for another.
    fixture.push("absent-2", "p", &["0"]).await;
    assert!(
        pop(&fixture, "/queue/more?consumerGroup=g")
            .await
            .is_empty()
    );
    let refused = fixture
        .get("/api/v1/pop/queue/yet-more?consumerGroup=g")
        .await;
    assert_eq!(refused.status, 400);
    let path = "/api/v1/consumer-groups/g/queues/absent";
    assert_eq!(fixture.request("DELETE", path, "").await.status, 200);
    assert!(
        pop(&fixture, "/queue/yet-more?consumerGroup=g")
            .await
            .is_empty()
    );
}
