//! Who may, whose it is, and what is sealed.

use serde_json::json;

use super::{ack, ack_to, configure, numbers, pop, pop_answer, pop_from};
use crate::support::Fixture;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NAME: &str = "QUEEN_ENCRYPTION_KEY";

#[tokio::test]
async fn another_tenants_queue_is_answered_like_none() {
    let fixture = Fixture::with(&[("QUEEN_TENANCY_HEADER", "true")], &[]).await;
    const STRANGER: &str = "11111111-1111-4111-8111-111111111111";
    fixture.push("q", "p", &["0", "1"]).await;
    let messages = pop(&fixture, "/queue/q?consumerGroup=g&subscriptionMode=all").await;
    ack(&fixture, &messages[0], "dlq").await;
    let nowhere = "00000000-0000-4000-8000-000000000000";
    let http = reqwest::Client::new();
    let call = async |method: &str, path: String, body: String| {
        let request = http
            .request(method.parse().unwrap(), fixture.url() + &path)
            .header("x-queen-tenant", STRANGER)
            .body(body);
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    // The same call on what is another's and on what is nowhere, names made alike.
    let message = &messages[1];
    for (method, path, body) in [
        (
            "GET",
            "/api/v1/pop/queue/QUEUE?consumerGroup=g&wait=false",
            String::new(),
        ),
        (
            "GET",
            "/api/v1/pop/queue/QUEUE/partition/p?wait=false",
            String::new(),
        ),
        ("GET", "/api/v1/dlq?queue=QUEUE", String::new()),
        ("POST", "/api/v1/lease/LEASE/extend", "{}".into()),
        (
            "POST",
            "/api/v1/ack",
            json!({"transactionId": message.transaction_id, "partitionId": "LIFE",
                "leaseId": message.lease_id, "consumerGroup": "g"})
            .to_string(),
        ),
        (
            "DELETE",
            &*format!("/api/v1/messages/LIFE/{}", messages[0].transaction_id),
            String::new(),
        ),
        (
            "DELETE",
            "/api/v1/consumer-groups/g/queues/QUEUE",
            String::new(),
        ),
        (
            "POST",
            "/api/v1/consumer-groups/g/queues/QUEUE/seek",
            r#"{"toEnd":true}"#.into(),
        ),
    ] {
        let with = |text: &str, queue: &str, life: &str, lease: &str| {
            text.replace("QUEUE", queue)
                .replace("LIFE", life)
                .replace("LEASE", lease)
        };
        let (life, lease) = (&*message.partition_id, &*message.lease_id);
        let foreign = call(
            method,
            with(path, "q", life, lease),
            with(&body, "q", life, lease),
        )
        .await;
        let none = call(
            method,
            with(path, "x", nowhere, nowhere),
            with(&body, "x", nowhere, nowhere),
        )
        .await;
        let alike = foreign.1.replace(life, nowhere).replace(lease, nowhere);
        // The group that the pops above subscribed is the stranger's own, of either name.
        let alike = alike.replace("\"q\"", "\"x\"");
        assert_eq!((foreign.0, alike), (none.0, none.1), "{method} {path}");
    }
    // Nothing of it has touched what is the owner's.
    assert!(ack(&fixture, message, "completed").await.lease_released);
    assert_eq!(fixture.get("/api/v1/dlq").await.json()["total"], json!(1));
}

#[tokio::test]
async fn sealed_records_are_popped_in_the_clear_and_die_sealed() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    configure(&fixture, "q", json!({"encryptionEnabled": true})).await;
    let body = r#"{"items":[{"queue":"q","partition":"p","payload":"hidden words","transactionId":"hidden id"}]}"#;
    assert_eq!(fixture.post("/api/v1/push", body).await.status, 201);
    let message = pop(&fixture, "/queue/q?").await.remove(0);
    assert_eq!(message.data, json!("hidden words"));
    assert_eq!(message.transaction_id, "hidden id");
    assert!(ack(&fixture, &message, "dlq").await.dlq);
    let stored = fixture
        .session()
        .await
        .query_one("SELECT block, id_hash FROM queen.dead_letters", &[])
        .await
        .unwrap();
    assert!(stored.get::<_, Vec<u8>>(0).starts_with(b"Q\x01"));
    let plain = queen::consume::ids::stored_hash(b"\"hidden id\"", None);
    assert_ne!(stored.get::<_, uuid::Uuid>(1), plain);
    let listed = fixture.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!(listed["messages"][0]["data"], json!("hidden words"));
    assert_eq!(listed["messages"][0]["transactionId"], json!("hidden id"));
    let other = fixture.another(&[]).await;
    let url = format!("http://{}/api/v1/dlq", other.address());
    let lost = reqwest::get(url).await.unwrap();
    assert_eq!(lost.status().as_u16(), 503);
    assert!(!lost.text().await.unwrap().contains("hidden"));
    let path = format!("/api/v1/messages/{}/hidden%20id", message.partition_id);
    assert_eq!(fixture.request("DELETE", &path, "").await.status, 200);
}

#[tokio::test]
async fn a_lost_key_is_an_error_and_other_partitions_go_on() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    fixture.push("q", "sealed", &["0"]).await;
    configure(&fixture, "q", json!({"encryptionEnabled": true})).await;
    fixture.push("q", "sealed", &["1"]).await;
    let keyless = fixture.another(&[]).await;
    // What can be read comes; then the error says where it ends.
    let messages = pop_from(&keyless, "/queue/q?wait=false").await;
    assert_eq!(numbers(&messages), [0]);
    assert!(
        ack_to(&fixture, &keyless, &messages[0], "completed")
            .await
            .lease_released
    );
    let lost = pop_answer(&keyless, "/queue/q?wait=false").await;
    assert_eq!(lost.status, 503);
    assert_eq!(lost.json()["code"], json!("unreadable"));
    assert!(lost.error().contains("QUEEN_ENCRYPTION_KEY") && lost.error().contains("offset 1"));
    configure(&fixture, "q", json!({"encryptionEnabled": false})).await;
    // Whoever knows the queue as encrypted goes on sealing.
    let body = r#"{"items":[{"queue":"q","partition":"plain","payload":7}]}"#;
    assert_eq!(
        fixture.post_to(&keyless, "/api/v1/push", body).await.status,
        201
    );
    assert_eq!(
        numbers(&pop_from(&keyless, "/queue/q?partitions=9&wait=false").await),
        [7]
    );
    // Nothing was lost to it, not even by settling at delivery.
    let auto =
        "/queue/q/partition/sealed?consumerGroup=g&subscriptionMode=all&autoAck=true&wait=false";
    assert_eq!(numbers(&pop_from(&keyless, auto).await), [0]);
    assert_eq!(pop_answer(&keyless, auto).await.status, 204);
    let owner = pop_from(&fixture.broker, "/queue/q/partition/sealed?timeout=30000").await;
    assert_eq!(numbers(&owner), [1]);
}

#[tokio::test]
async fn a_pop_that_fails_gives_back_what_it_took() {
    let fixture = Fixture::with(&[(NAME, KEY)], &[]).await;
    configure(&fixture, "q", json!({"encryptionEnabled": true})).await;
    fixture.push("q", "p", &["1"]).await;
    let keyless = fixture.another(&[]).await;
    // Without its function, what is to happen after the records were taken fails.
    let session = fixture.session().await;
    session
        .batch_execute("ALTER FUNCTION queen.cut RENAME TO cut_away")
        .await
        .unwrap();
    let failed = pop_answer(&keyless, "/queue/q?wait=false&leaseSeconds=300").await;
    assert_eq!(failed.status, 500, "{}", failed.text);
    assert_eq!(numbers(&pop(&fixture, "/queue/q?").await), [1]);
}
