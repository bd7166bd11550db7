use queen::retention::{clear, pass};
use queen::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Fixture, until};

const QUIET: (&str, &str) = ("QUEEN_RETENTION_INTERVAL_MS", "3600000");

/// A queue with one record per age, in hours, in partition `p`.
async fn aged(fixture: &Fixture, options: Value, ages: &[i32]) {
    let body = json!({"queue": "q", "options": options}).to_string();
    assert_eq!(fixture.post("/api/v1/configure", body).await.status, 200);
    for age in ages {
        fixture.push("q", "p", &[&age.to_string()]).await;
    }
    let session = fixture.session().await;
    for (offset, age) in (0_i64..).zip(ages) {
        session
            .execute(
                "UPDATE queen.segments SET ts = ts - make_interval(hours => $1) WHERE base_offset = $2",
                &[age, &offset],
            )
            .await
            .unwrap();
    }
}

async fn log_start(fixture: &Fixture) -> i64 {
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    answer.entries[0].log_start_offset
}

async fn count(fixture: &Fixture, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM queen.{table}");
    let row = fixture.session().await.query_one(&sql, &[]).await;
    row.unwrap().get(0)
}

async fn commit(fixture: &Fixture, value: Value) {
    commit_as(fixture, "00000000-0000-0000-0000-000000000001", value).await;
}

async fn commit_as(fixture: &Fixture, tenant: &str, value: Value) {
    let body = json!({"operations": [{"op": "put", "ns": "queen-s3",
        "key": "s3:lake:q:committed", "value": value, "forever": true}]});
    let body = body.to_string();
    let answer = fixture.post_as(tenant, "/api/v1/kv", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Microseconds since the epoch, `minutes` ago by the database's clock.
async fn minutes_ago(fixture: &Fixture, minutes: i32) -> i64 {
    let sql = "SELECT (extract(epoch FROM now() - make_interval(mins => $1)) * 1e6)::int8";
    let row = fixture.session().await.query_one(sql, &[&minutes]).await;
    row.unwrap().get(0)
}

fn held(ceiling: i64) -> Value {
    json!({"retentionEnabled": true, "retentionSeconds": 60, "retentionSinkHold": "lake",
           "retentionSinkHoldMaxSeconds": ceiling})
}

#[tokio::test]
async fn segments_older_than_the_retention_go_and_the_rest_stays() {
    let fixture = Fixture::with(&[("QUEEN_RETENTION_INTERVAL_MS", "100")], &[]).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 5400});
    aged(&fixture, options, &[3, 2, 1, 0]).await;
    until(|| async { log_start(&fixture).await == 2 && count(&fixture, "segments").await == 2 })
        .await;
    let answer = fixture
        .fetch(
            r#"{"entries":[{"queue":"q","partition":"p","offset":1},
                           {"queue":"q","partition":"p","offset":2}]}"#,
        )
        .await;
    assert_eq!(
        answer.entries[0].error.as_deref(),
        Some("OFFSET_OUT_OF_RANGE")
    );
    assert_eq!(answer.entries[1].records.len(), 2);
    assert_eq!(answer.entries[1].high_watermark, 4);
    let metrics = fixture.get("/metrics").await.text;
    assert!(
        metrics.contains("queen_expired_records_total 2"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_queue_without_retention_keeps_everything() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    aged(&fixture, json!({"retentionSeconds": 60}), &[3, 0]).await;
    pass(fixture.broker.broker(), true).await.unwrap();
    assert_eq!(
        (log_start(&fixture).await, count(&fixture, "segments").await),
        (0, 2)
    );
}

#[tokio::test]
async fn a_hold_keeps_what_the_sink_has_not_committed() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    aged(&fixture, held(604_800), &[3, 2, 1]).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 0, "no pointer yet");
    let end = minutes_ago(&fixture, 90).await;
    commit(&fixture, json!({"k": 1, "tEnd": end, "lineage": "x"})).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 2);
    let end = minutes_ago(&fixture, 0).await;
    commit(&fixture, json!({"k": 2, "tEnd": end})).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 3);
}

#[tokio::test]
async fn a_pointer_of_another_tenant_frees_and_holds_nothing() {
    let fixture = Fixture::with(&[QUIET, ("QUEEN_TENANCY_HEADER", "true")], &[]).await;
    aged(&fixture, held(604_800), &[3, 2, 1]).await;
    let other = "11111111-1111-1111-1111-111111111111";
    let end = minutes_ago(&fixture, 0).await;
    commit_as(&fixture, other, json!({"k": 9, "tEnd": end})).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 0, "its own sink has none");
    let end = minutes_ago(&fixture, 90).await;
    commit(&fixture, json!({"k": 1, "tEnd": end})).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 2);
}

#[tokio::test]
async fn what_waited_too_long_goes_without_retention_and_whatever_a_sink_holds() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let mut options = held(604_800);
    options["maxWaitTimeSeconds"] = json!(9_000);
    aged(&fixture, options, &[4, 3, 2, 1]).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 2, "the sink holds the rest");
    assert_eq!(count(&fixture, "segments").await, 2);
    let body = json!({"queue": "q", "mode": "replace", "options": {"maxWaitTimeSeconds": 5_400}});
    let answer = fixture.post("/api/v1/configure", body.to_string()).await;
    assert_eq!(answer.status, 200);
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 3);
    // Nobody is given what is gone.
    complete(&fixture, "late", 1).await;
}

#[tokio::test]
async fn a_hostile_pointer_neither_frees_nor_holds_more_than_the_ceiling() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    aged(&fixture, held(9_000), &[3, 2, 1]).await;
    for hostile in [
        json!({"tEnd": i64::MAX}),
        json!({"tEnd": "now"}),
        json!([1]),
        Value::Null,
        json!({"tEnd": -5}),
    ] {
        commit(&fixture, hostile.clone()).await;
        pass(fixture.broker.broker(), false).await.unwrap();
        assert_eq!(log_start(&fixture).await, 1, "{hostile}");
    }
}

#[tokio::test]
async fn a_pointer_that_cannot_be_read_leaves_the_ceiling_alone() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    aged(&fixture, held(9_000), &[3, 2, 1]).await;
    let end = minutes_ago(&fixture, 0).await;
    commit(&fixture, json!({"k": 1, "tEnd": end})).await;
    let session = fixture.session().await;
    let away = "ALTER TABLE queen.kv RENAME TO kv_away";
    session.batch_execute(away).await.unwrap();
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 1);
    let back = "ALTER TABLE queen.kv_away RENAME TO kv";
    session.batch_execute(back).await.unwrap();
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 3);
}

#[tokio::test]
async fn a_hold_keeps_no_transaction_id_past_its_window() {
    const PUSH: &str =
        r#"{"items":[{"queue":"q","partition":"p","payload":1,"transactionId":"t"}]}"#;
    let fixture = Fixture::with(&[QUIET], &[]).await;
    aged(&fixture, held(604_800), &[3]).await;
    assert_eq!(fixture.post("/api/v1/push", PUSH).await.status, 201);
    assert_eq!(count(&fixture, "recent_ids").await, 1);
    let session = fixture.session().await;
    let expire = "UPDATE queen.recent_ids SET expires_at = clock_timestamp()";
    session.batch_execute(expire).await.unwrap();
    queen::log::repeats::sweep(fixture.broker.broker())
        .await
        .unwrap();
    assert_eq!(count(&fixture, "recent_ids").await, 0);
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 0, "the records are held");
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_waits_for_no_push_and_no_push_waits_for_its_deletes() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 5400});
    aged(&fixture, options, &[3, 2, 0]).await;
    // A push in progress holds the partition's row: the pass goes on without it.
    let mut session = fixture.session().await;
    let push = session.transaction().await.unwrap();
    push.execute("SELECT 1 FROM queen.partitions FOR UPDATE", &[])
        .await
        .unwrap();
    let second = std::time::Duration::from_secs(3);
    timeout(second, pass(fixture.broker.broker(), true))
        .await
        .unwrap()
        .unwrap();
    push.rollback().await.unwrap();
    assert_eq!(log_start(&fixture).await, 0);
    // A delete that cannot go on holds nothing that a push needs.
    let other = session.transaction().await.unwrap();
    other
        .execute(
            "SELECT 1 FROM queen.segments WHERE base_offset = 0 FOR UPDATE",
            &[],
        )
        .await
        .unwrap();
    let broker = std::sync::Arc::clone(fixture.broker.broker());
    let passing = tokio::spawn(async move { pass(&broker, false).await });
    until(|| async { log_start(&fixture).await == 2 }).await;
    timeout(second, fixture.push("q", "p", &["4"]))
        .await
        .unwrap();
    assert!(!passing.is_finished());
    other.rollback().await.unwrap();
    passing.await.unwrap().unwrap();
    assert_eq!(count(&fixture, "segments").await, 2);
}

#[tokio::test]
async fn an_empty_idle_partition_goes_and_its_next_life_begins_above_the_former() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 5400});
    aged(&fixture, options, &[3]).await;
    fixture.push("q", "kept", &["1"]).await;
    let session = fixture.session().await;
    // The clock stood an hour ahead when it was written to last.
    session
        .batch_execute(
            "UPDATE queen.partitions SET last_write_at = now() - interval '8 days';
             UPDATE queen.partitions SET last_ts = now() + interval '1 hour' WHERE name = 'p'",
        )
        .await
        .unwrap();
    let former = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    let last: std::time::SystemTime = session
        .query_one("SELECT last_ts FROM queen.partitions WHERE name = 'p'", &[])
        .await
        .unwrap()
        .get(0);
    pass(fixture.broker.broker(), false).await.unwrap();
    pass(fixture.broker.broker(), true).await.unwrap();
    clear(fixture.broker.broker()).await.unwrap();
    let listed = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    let names: Vec<_> = listed.entries[0]
        .partitions
        .iter()
        .map(|p| p.name.clone())
        .collect();
    assert_eq!(names, ["kept"]);
    fixture.push("q", "p", &["2"]).await;
    let row = session
        .query_one(
            "SELECT s.ts > $1, s.base_offset FROM queen.segments s
             JOIN queen.partitions p ON p.id = s.partition_id WHERE p.name = 'p'",
            &[&last],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (true, 0));
    let again = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    assert_ne!(
        serde_json::to_value(&former.entries[0].partitions[1]).unwrap()["id"],
        serde_json::to_value(&again.entries[0].partitions[1]).unwrap()["id"]
    );
    assert_eq!(count(&fixture, "trash").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_is_gone_at_once_and_ends_the_fetches_that_wait_for_it() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    fixture.push("a/b", "p", &["1", "2"]).await;
    let parked = fixture
        .fetch(r#"{"entries":[{"queue":"a/b","partition":"p","offset":2}],"maxWaitMs":30000}"#);
    let deleting = async {
        fixture.until_parked(1).await;
        fixture
            .request("DELETE", "/api/v1/resources/queues/a%2Fb", "")
            .await
    };
    let both = async { tokio::join!(parked, deleting) };
    let (parked, deleted) = timeout(std::time::Duration::from_secs(4), both)
        .await
        .unwrap();
    assert_eq!(
        deleted.json(),
        json!({"deleted": true, "queue": "a/b", "existed": true})
    );
    assert!(parked.entries[0].is_unknown_partition());
    assert_eq!(
        fixture.get("/api/v1/resources/queues").await.json(),
        json!({"queues": []})
    );
    assert_eq!(count(&fixture, "segments").await, 1);
    clear(fixture.broker.broker()).await.unwrap();
    assert_eq!(
        (
            count(&fixture, "segments").await,
            count(&fixture, "trash").await
        ),
        (0, 0)
    );
    fixture.push("a/b", "p", &["3"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"a/b","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.entries[0].high_watermark, 1);
}

#[tokio::test]
async fn deleting_a_foreign_queue_answers_as_deleting_none() {
    let fixture = Fixture::with(&[QUIET, ("QUEEN_TENANCY_HEADER", "true")], &[]).await;
    let owner = "11111111-1111-1111-1111-111111111111";
    let push = r#"{"items":[{"queue":"q","payload":1}]}"#;
    assert_eq!(
        fixture.post_as(owner, "/api/v1/push", push).await.status,
        201
    );
    let foreign = fixture
        .request("DELETE", "/api/v1/resources/queues/q", "")
        .await;
    assert_eq!(foreign.json()["existed"], false);
    let none = fixture
        .request("DELETE", "/api/v1/resources/queues/none", "")
        .await;
    assert_eq!(foreign.text.replace("\"q\"", "\"none\""), none.text);
    assert_eq!(count(&fixture, "queues").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_go_on_while_their_queue_is_deleted_again_and_again() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let pushing = (0..4).map(|_| async {
        for _ in 0..15 {
            let body = r#"{"items":[{"queue":"q","partition":"a","payload":1},
                {"queue":"q","partition":"b","payload":1},{"queue":"r","payload":1}]}"#;
            let answer = fixture.post("/api/v1/push", body).await;
            assert_eq!(answer.status, 201, "{}", answer.text);
        }
    });
    let deleting = async {
        for _ in 0..15 {
            let answer = fixture
                .request("DELETE", "/api/v1/resources/queues/q", "")
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
    };
    tokio::join!(futures_util::future::join_all(pushing), deleting);
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"r","offset":0}]}"#)
        .await;
    assert_eq!(answer.entries[0].records.len(), 60);
}

/// Partitions that no statement of half a second could delete together.
async fn many_partitions(fixture: &Fixture) -> tokio_postgres::Client {
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    session
        .batch_execute(
            "INSERT INTO queen.partitions (queue_id, name)
             SELECT q.id, 'n' || n FROM queen.queues q, generate_series(1, 100000) n",
        )
        .await
        .unwrap();
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_any_number_of_partitions_is_deleted_at_once_and_swept_in_small_steps() {
    let variables = [
        QUIET,
        ("QUEEN_PG_STATEMENT_TIMEOUT_MS", "300"),
        ("QUEEN_PG_LOCK_TIMEOUT_MS", "300"),
    ];
    let fixture = Fixture::with(&variables, &[]).await;
    many_partitions(&fixture).await;
    let answer = fixture
        .request("DELETE", "/api/v1/resources/queues/q", "")
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let unknown = fixture.changed(r#"{"entries":[{"queue":"q"}]}"#).await;
    assert!(unknown.entries[0].is_unknown_queue());
    // The name is free for another life before the former is swept.
    fixture.push("q", "p", &["2"]).await;
    let answer = fixture
        .fetch(r#"{"entries":[{"queue":"q","partition":"p","offset":0}]}"#)
        .await;
    assert_eq!(answer.entries[0].high_watermark, 1);
    clear(fixture.broker.broker()).await.unwrap();
    for (table, left) in [
        ("partitions", 1),
        ("segments", 1),
        ("queues", 1),
        ("trash", 0),
        ("deleted_queues", 0),
    ] {
        assert_eq!(count(&fixture, table).await, left, "{table}");
    }
}

#[tokio::test]
async fn a_queue_made_anew_begins_above_its_former_life_though_the_clock_stepped_back() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    // As if it had been written before the clock stepped back an hour.
    session
        .batch_execute(
            "UPDATE queen.segments SET ts = ts + interval '1 hour';
             UPDATE queen.partitions SET last_ts = last_ts + interval '1 hour',
                 last_write_at = last_write_at + interval '1 hour'",
        )
        .await
        .unwrap();
    let sql = "SELECT ts FROM queen.segments ORDER BY ts DESC LIMIT 1";
    let last: Timestamp = session.query_one(sql, &[]).await.unwrap().get(0);
    let delete = || fixture.request("DELETE", "/api/v1/resources/queues/q", "");
    assert_eq!(delete().await.status, 200);
    let sql = "SELECT ts > $1 FROM queen.floor";
    let above: bool = session.query_one(sql, &[&last]).await.unwrap().get(0);
    assert!(above, "the floor was not raised before the answer");
    fixture.push("q", "p", &["2"]).await;
    clear(fixture.broker.broker()).await.unwrap();
    let sql = "SELECT ts > $1 FROM queen.segments";
    let above: bool = session.query_one(sql, &[&last]).await.unwrap().get(0);
    assert!(above);
}

#[tokio::test]
async fn a_queue_made_anew_begins_above_a_former_life_whose_deletion_was_cut_short() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    // The broker was killed between the deletion and raising the floor.
    session
        .batch_execute(
            "UPDATE queen.partitions SET last_ts = last_ts + interval '1 hour',
                 last_write_at = last_write_at + interval '1 hour';
             SELECT queen.delete_queue('00000000-0000-0000-0000-000000000001', 'q')",
        )
        .await
        .unwrap();
    let sql = "SELECT last_ts FROM queen.partitions";
    let last: Timestamp = session.query_one(sql, &[]).await.unwrap().get(0);
    fixture.push("q", "p", &["2"]).await;
    let sql = "SELECT max(ts) > $1 FROM queen.segments";
    let above: bool = session.query_one(sql, &[&last]).await.unwrap().get(0);
    assert!(above);
}

#[tokio::test]
async fn deleting_a_queue_of_many_partitions_raises_the_floor_no_higher_than_its_newest_record() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    fixture.push("q", "p", &["1"]).await;
    let session = fixture.session().await;
    session
        .batch_execute(
            "INSERT INTO queen.partitions (queue_id, name, last_ts, last_write_at)
             SELECT queue_id, n::text, last_ts, last_write_at
             FROM queen.partitions, generate_series(1, 2000) n;
             UPDATE queen.partitions SET last_ts = '2099-01-01 00:00:00.25Z',
                 last_write_at = '2099-01-01 00:00:00Z'",
        )
        .await
        .unwrap();
    let delete = fixture.request("DELETE", "/api/v1/resources/queues/q", "");
    assert_eq!(delete.await.status, 200);
    let sql = "SELECT ts = '2099-01-01 00:00:00.250001Z' FROM queen.floor";
    assert!(session.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
}

/// Takes and settles the next records of partition `p` for `group`.
async fn complete(fixture: &Fixture, group: &str, count: usize) {
    let path = format!(
        "/api/v1/pop/queue/q/partition/p?consumerGroup={group}&batch={count}&autoAck=true\
         &wait=false&subscriptionMode=all"
    );
    let answer = fixture.get(&path).await;
    let messages = answer.json()["messages"].as_array().unwrap().len();
    assert_eq!(messages, count, "{}", answer.text);
}

#[tokio::test]
async fn what_every_group_has_settled_goes_by_its_own_age() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let options = json!({"retentionEnabled": true, "completedRetentionSeconds": 5400});
    aged(&fixture, options, &[5, 4, 3, 0]).await;
    pass(fixture.broker.broker(), true).await.unwrap();
    assert_eq!(log_start(&fixture).await, 0, "no group has settled any");
    complete(&fixture, "fast", 4).await;
    complete(&fixture, "slow", 1).await;
    pass(fixture.broker.broker(), true).await.unwrap();
    assert_eq!(
        log_start(&fixture).await,
        1,
        "the slow group has the rest to do"
    );
    complete(&fixture, "slow", 3).await;
    pass(fixture.broker.broker(), true).await.unwrap();
    assert_eq!(log_start(&fixture).await, 3, "the last is too young");
    assert_eq!(count(&fixture, "segments").await, 1);
}

#[tokio::test]
async fn what_is_settled_stays_for_a_sink_that_holds_it_and_goes_before_its_retention() {
    let fixture = Fixture::with(&[QUIET], &[]).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 15_000,
        "completedRetentionSeconds": 60, "retentionSinkHold": "lake"});
    aged(&fixture, options, &[3, 2, 1]).await;
    complete(&fixture, "g", 3).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(
        log_start(&fixture).await,
        0,
        "the sink has committed nothing"
    );
    let end = minutes_ago(&fixture, 90).await;
    commit(&fixture, json!({"k": 1, "tEnd": end})).await;
    pass(fixture.broker.broker(), false).await.unwrap();
    assert_eq!(log_start(&fixture).await, 2);
}
