use queen_protocol::DlqResponse;
use serde_json::json;

use super::{ack, numbers, pop};
use crate::support::Fixture;

async fn list(fixture: &Fixture, query: &str) -> DlqResponse {
    fixture.get(&format!("/api/v1/dlq?{query}")).await.typed()
}

#[tokio::test]
async fn a_dead_letter_keeps_the_record_and_why_it_died() {
    let fixture = Fixture::start().await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":{"n" : 1.0},"transactionId":"t/1"},
        {"queue":"q","partition":"p","payload":2}]}"#;
    assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
    let messages = pop(&fixture, "/queue/q?consumerGroup=g&subscriptionMode=all").await;
    let answer = ack(&fixture, &messages[0], "dlq").await;
    assert!(answer.success && answer.dlq && !answer.lease_released);
    // The rest of what was taken can still be settled.
    assert!(
        ack(&fixture, &messages[1], "completed")
            .await
            .lease_released
    );
    let answer = fixture.get("/api/v1/dlq?queue=q").await;
    assert!(
        answer.text.contains(r#""data":{"n" : 1.0}"#),
        "{}",
        answer.text
    );
    let page: DlqResponse = answer.typed();
    let dead = &page.messages[0];
    assert_eq!(page.total, 1);
    assert_eq!(dead.id.as_deref(), Some(messages[0].id.as_str()));
    assert_eq!(dead.transaction_id.as_deref(), Some("t/1"));
    assert_eq!(
        dead.partition_id.as_deref(),
        Some(messages[0].partition_id.as_str())
    );
    assert_eq!(
        (dead.queue.as_deref(), dead.partition.as_deref()),
        (Some("q"), Some("p"))
    );
    assert_eq!(dead.error.as_deref(), Some(r#"reason of {"n":1.0}"#));
    assert_eq!(dead.rest["consumerGroup"], json!("g"));
    assert_eq!(dead.rest["createdAt"], json!(messages[0].created_at));
}

#[tokio::test]
async fn dead_letters_are_listed_by_queue_and_group_in_pages() {
    let fixture = Fixture::start().await;
    for queue in ["a", "b"] {
        fixture.push(queue, "p", &["0", "1", "2"]).await;
        for group in ["g", "h"] {
            let path = format!("/queue/{queue}?consumerGroup={group}&subscriptionMode=all");
            for message in pop(&fixture, &path).await {
                assert!(ack(&fixture, &message, "dlq").await.dlq);
            }
        }
    }
    assert_eq!(list(&fixture, "").await.total, 12);
    assert_eq!(list(&fixture, "queue=a").await.total, 6);
    let page = list(&fixture, "queue=a&consumerGroup=h&limit=2").await;
    assert_eq!((page.total, page.messages.len()), (3, 2));
    assert_eq!(page.messages[0].data, json!(2));
    let rest = list(&fixture, "queue=a&consumerGroup=h&limit=2&offset=2").await;
    assert_eq!(rest.messages.len(), 1);
    assert_eq!(rest.messages[0].data, json!(0));
    assert_eq!(list(&fixture, "queue=c").await.total, 0);
}

#[tokio::test]
async fn a_dead_letter_can_be_deleted_and_a_record_cannot() {
    let fixture = Fixture::start().await;
    fixture.push("q", "p", &["0", "1"]).await;
    let messages = pop(&fixture, "/queue/q?").await;
    let path = |index: usize| {
        let message = &messages[index];
        format!(
            "/api/v1/messages/{}/{}",
            message.partition_id, message.transaction_id
        )
    };
    assert_eq!(fixture.request("DELETE", &path(0), "").await.status, 404);
    assert!(ack(&fixture, &messages[0], "dlq").await.dlq);
    let deleted = fixture.request("DELETE", &path(0), "").await;
    assert_eq!(deleted.json()["success"], json!(true));
    assert_eq!(list(&fixture, "queue=q").await.total, 0);
    assert_eq!(fixture.request("DELETE", &path(0), "").await.status, 404);
    assert_eq!(numbers(&messages), [0, 1]);
}

#[tokio::test]
async fn a_page_of_dead_letters_ends_where_its_bytes_do_and_the_next_goes_on() {
    let fixture = Fixture::start().await;
    let payloads = ["0", "1", "2", "3"];
    fixture.push("q", "p", &payloads).await;
    for message in pop(&fixture, "/queue/q?").await {
        assert!(ack(&fixture, &message, "dlq").await.dlq);
    }
    // As large as it says, the latest fills a page alone.
    let session = fixture.session().await;
    let latest = "(SELECT max(id) FROM queen.dead_letters)";
    let blow_up =
        format!("UPDATE queen.dead_letters SET raw_bytes = 40000000 WHERE id = {latest} - 1");
    session.batch_execute(&blow_up).await.unwrap();
    let page = list(&fixture, "queue=q").await;
    assert_eq!((page.total, page.messages.len()), (4, 1));
    assert_eq!(page.messages[0].data, json!(3));
    // One that is larger than a page comes when it is the first; this one is not as large as it says.
    let answer = fixture.get("/api/v1/dlq?queue=q&offset=1").await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    let page = list(&fixture, "queue=q&offset=2").await;
    assert_eq!(page.messages.len(), 2);
}
