use std::time::Duration;

use queen_protocol::AckResult;
use serde_json::json;

use super::{ack, ack_batch, ack_to, acknowledgment, configure, numbers, pop};
use crate::support::{Fixture, until};

#[tokio::test]
async fn an_ack_settles_everything_before_it_and_nothing_after() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2"]).await;
    let path = "/queue/q?leaseSeconds=1";
    let messages = pop(&fixture, path).await;
    let answer = ack(&fixture, &messages[1], "completed").await;
    assert!(answer.success && !answer.lease_released && !answer.noop);
    let again = ack(&fixture, &messages[0], "completed").await;
    assert!(again.success && again.noop);
    let late = ack(&fixture, &messages[0], "failed").await;
    assert!(!late.success && late.error.unwrap().contains("committed"));
    until(|| async { numbers(&pop(&fixture, path).await) == [2] }).await;
}

#[tokio::test]
async fn the_last_ack_gives_the_lease_back() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2"]).await;
    let messages = pop(&fixture, "/queue/q?batch=2").await;
    assert!(
        !ack(&fixture, &messages[0], "completed")
            .await
            .lease_released
    );
    assert!(
        ack(&fixture, &messages[1], "completed")
            .await
            .lease_released
    );
    assert_eq!(numbers(&pop(&fixture, "/queue/q?").await), [2]);
    // The lease is gone, and with it what it allowed.
    let late = ack(&fixture, &messages[1], "completed").await;
    assert_eq!(late.error.as_deref(), Some("invalid or expired lease"));
}

#[tokio::test]
async fn a_rejection_in_a_batch_holds_back_everything_behind_it() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1", "2", "3"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    let answers = ack_batch(&fixture, &messages, &["ok", "failed", "completed", "retry"]).await;
    let told: Vec<bool> = answers.iter().map(|answer| answer.success).collect();
    assert_eq!(told, [true, true, false, true]);
    assert!(answers[1].lease_released && !answers[1].dlq);
    assert_eq!(numbers(&pop(&fixture, "/queue/q?").await), [1, 2, 3]);
}

#[tokio::test]
async fn a_batch_settles_records_of_many_partitions() {
    let fixture = Fixture::start().await;
    for partition in ["a", "b", "c"] {
        fixture.push("q", partition, &["1", "2"]).await;
    }
    let messages = pop(&fixture, "/queue/q?partitions=3").await;
    let answers = ack_batch(&fixture, &messages, &["completed"; 6]).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.success && answer.lease_released)
    );
    assert!(pop(&fixture, "/queue/q?partitions=3").await.is_empty());
}

#[tokio::test]
async fn retries_are_free_and_failures_end_in_a_dead_letter() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({"retryLimit": 2})).await;
    fixture.push("q", "p", &["0", "1"]).await;
    for status in ["retry", "retry", "failed", "retry", "failed", "retry"] {
        let messages = pop(&fixture, "/queue/q?").await;
        assert_eq!(numbers(&messages), [0, 1]);
        let answer = ack(&fixture, &messages[0], status).await;
        assert!(
            answer.success && answer.lease_released && !answer.dlq,
            "{status}"
        );
    }
    let messages = pop(&fixture, "/queue/q?").await;
    let answer = ack(&fixture, &messages[0], "failed").await;
    assert!(answer.success && answer.dlq && answer.lease_released);
    assert_eq!(numbers(&pop(&fixture, "/queue/q?").await), [1]);
}

#[tokio::test]
async fn metrics_count_what_is_popped_settled_and_dead() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({"retryLimit": 0})).await;
    fixture.push("q", "p", &["0", "11", "222"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    assert!(ack(&fixture, &messages[0], "completed").await.success);
    fixture
        .assert_metrics(&[
            "queen_popped_records_total 3",
            "queen_popped_bytes_total 6",
            "queen_settled_records_total 1",
            "queen_dead_letters_total 0",
        ])
        .await;
    assert!(ack(&fixture, &messages[1], "failed").await.dlq);
    fixture
        .assert_metrics(&["queen_dead_letters_total 1"])
        .await;
}

#[tokio::test]
async fn without_dead_letters_a_record_that_fails_stays() {
    let fixture = Fixture::start().await;
    configure(
        &fixture,
        "q",
        json!({"retryLimit": 0, "deadLetterQueue": false}),
    )
    .await;
    fixture.push("q", "p", &["0"]).await;
    for _ in 0..3 {
        let messages = pop(&fixture, "/queue/q?").await;
        assert_eq!(numbers(&messages), [0]);
        assert!(!ack(&fixture, &messages[0], "failed").await.dlq);
    }
}

#[tokio::test]
async fn a_rejected_record_comes_back_after_the_delay_of_its_queue() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({"retryDelay": 1500})).await;
    fixture.push("q", "p", &["0"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    let begun = std::time::Instant::now();
    assert!(ack(&fixture, &messages[0], "failed").await.success);
    let again = super::pop_from(&fixture.broker, "/queue/q?timeout=30000").await;
    assert_eq!(numbers(&again), [0]);
    assert!(begun.elapsed() >= Duration::from_millis(1_500));
}

#[tokio::test]
async fn an_ack_that_names_an_ended_lease_is_refused_and_one_that_names_none_counts() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0"]).await;
    let mut message = pop(&fixture, "/queue/q?leaseSeconds=1").await.remove(0);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let answer = ack(&fixture, &message, "completed").await;
    assert_eq!(answer.error.as_deref(), Some("invalid or expired lease"));
    message.lease_id.clear();
    assert!(ack(&fixture, &message, "completed").await.success);
    assert!(pop(&fixture, "/queue/q?").await.is_empty());
}

#[tokio::test]
async fn a_record_that_was_never_taken_cannot_be_settled() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1"]).await;
    let message = pop(&fixture, "/queue/q?batch=1").await.remove(0);
    let mut ghost = message.clone();
    ghost.transaction_id = "ghost".into();
    let mut elsewhere = message.clone();
    elsewhere.partition_id = "00000000-0000-4000-8000-000000000000".into();
    let mut stranger = message.clone();
    stranger.consumer_group = "another".into();
    for (wrong, status) in [
        (&ghost, "completed"),
        (&ghost, "failed"),
        (&elsewhere, "completed"),
        (&stranger, "completed"),
    ] {
        let answer = ack(&fixture, wrong, status).await;
        assert!(!answer.success && answer.error.unwrap().contains("unresolvable"));
    }
    assert!(ack(&fixture, &message, "completed").await.success);
}

#[tokio::test]
async fn a_lease_that_is_extended_outlives_its_time() {
    let fixture = Fixture::start().await;
    for partition in ["a", "b"] {
        fixture.push("q", partition, &["0"]).await;
    }
    let messages = pop(&fixture, "/queue/q?partitions=2&leaseSeconds=2").await;
    let path = format!("/api/v1/lease/{}/extend", messages[0].lease_id);
    let renewed: queen_protocol::RenewLeaseResponse =
        fixture.post(&path, r#"{"seconds":300}"#).await.typed();
    assert!(renewed.success && renewed.renewed == 2);
    assert!(renewed.expires_at().unwrap().ends_with('Z'));
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(pop(&fixture, "/queue/q?partitions=2").await.is_empty());
    assert!(ack(&fixture, &messages[0], "completed").await.success);
    // One that has ended, or never was, is not an error of the call.
    for lease in ["00000000-0000-4000-8000-000000000000", "none"] {
        let path = format!("/api/v1/lease/{lease}/extend");
        let unknown: queen_protocol::RenewLeaseResponse = fixture.post(&path, "{}").await.typed();
        assert!(!unknown.success && unknown.renewed == 0 && unknown.expires_at().is_none());
    }
    assert_eq!(fixture.post(&path, r#"{"seconds":0}"#).await.status, 400);
}

#[tokio::test]
async fn another_broker_settles_what_one_has_given() {
    let fixture = Fixture::start().await;
    let other = fixture.another(&[]).await;
    configure(&fixture, "q", json!({"retryLimit": 0})).await;
    fixture.push("q", "p", &["0", "1"]).await;
    fixture.push("q", "p", &["2", "3"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    assert!(
        ack_to(&fixture, &other, &messages[2], "completed")
            .await
            .success
    );
    assert!(ack_to(&fixture, &other, &messages[3], "failed").await.dlq);
    assert!(pop(&fixture, "/queue/q?").await.is_empty());
}

#[tokio::test]
async fn an_id_that_was_pushed_twice_is_settled_record_by_record() {
    let fixture = Fixture::start().await;
    configure(&fixture, "q", json!({"dedupWindowSeconds": 0})).await;
    let item = r#"{"queue":"q","partition":"p","payload":1,"transactionId":"t"}"#;
    let body = format!(r#"{{"items":[{item},{item}]}}"#);
    assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
    let messages = pop(&fixture, "/queue/q?").await;
    assert!(
        !ack(&fixture, &messages[0], "completed")
            .await
            .lease_released
    );
    assert!(
        ack(&fixture, &messages[1], "completed")
            .await
            .lease_released
    );
}

#[tokio::test]
async fn a_wrong_ack_is_refused_and_says_where() {
    let fixture = Fixture::start().await;
    for (path, body, place) in [
        ("/api/v1/ack", "{}", "transactionId"),
        ("/api/v1/ack", r#"{"transactionId":"t"}"#, "partitionId"),
        (
            "/api/v1/ack/batch",
            r#"{"acknowledgments":[{"transactionId":"t"}]}"#,
            "acknowledgments[0].partitionId",
        ),
        (
            "/api/v1/ack/batch",
            r#"{"acknowledgments":7}"#,
            "acknowledgments",
        ),
    ] {
        let answer = fixture.post(path, body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.error().contains(place), "{}", answer.error());
    }
    let empty = fixture
        .post("/api/v1/ack/batch", r#"{"acknowledgments":[]}"#)
        .await;
    assert_eq!((empty.status, empty.text.as_str()), (200, "[]"));
}

#[tokio::test]
async fn a_batch_of_dead_letters_is_copied_segment_by_segment_and_says_what_was_gone() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1"]).await;
    fixture.push("q", "p", &["2", "3"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    // Retention takes the first segment while the consumer is at it.
    fixture
        .session()
        .await
        .batch_execute("DELETE FROM queen.segments WHERE base_offset = 0")
        .await
        .unwrap();
    let answers = ack_batch(&fixture, &messages, &["dlq"; 4]).await;
    for (answer, kept) in answers.iter().zip([false, false, true, true]) {
        assert!(answer.success && answer.dlq == kept, "{answer:?}");
        assert_eq!(answer.error.is_none(), kept, "{answer:?}");
    }
    let listed = fixture.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!(listed["total"], json!(2));
    assert_eq!(listed["messages"][0]["data"], json!(3));
    assert_eq!(listed["messages"][1]["data"], json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_whose_session_is_cut_half_way_settles_nothing_and_may_be_sent_again() {
    let fixture = Fixture::start().await;
    for partition in ["a", "b"] {
        fixture.push("q", partition, &["1"]).await;
    }
    let messages = pop(&fixture, "/queue/q?partitions=2").await;
    let body = json!({ "acknowledgments": [
        acknowledgment(&messages[0], "dlq"), acknowledgment(&messages[1], "completed"),
    ]})
    .to_string();
    let holder = fixture.session().await;
    // The partition that an ack comes to last.
    holder
        .batch_execute(
            "BEGIN;
             SELECT 1 FROM queen.cursors
             WHERE partition_id = (SELECT max(partition_id) FROM queen.cursors) FOR UPDATE",
        )
        .await
        .unwrap();
    let cut = fixture.cut("%queen.settle%");
    let (answer, ()) = tokio::join!(fixture.post("/api/v1/ack/batch", body.clone()), cut);
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("database_unavailable"))
    );
    assert_eq!(answer.retry_after.as_deref(), Some("1"));
    holder.batch_execute("ROLLBACK").await.unwrap();
    let settled = "SELECT (SELECT count(*) FROM queen.dead_letters),
                          (SELECT count(*) FROM queen.cursors WHERE lease_id IS NOT NULL)";
    let state = async || {
        let row = holder.query_one(settled, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    assert_eq!(state().await, (0, 2));
    let again: Vec<AckResult> = fixture.post("/api/v1/ack/batch", body).await.typed();
    assert!(again.iter().all(|answer| answer.success) && again[0].dlq);
    assert_eq!(state().await, (1, 0));
}
