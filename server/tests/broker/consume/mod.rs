//! Consumers, over HTTP.

mod ack;
mod dead_letters;
mod groups;
mod options;
mod pop;
mod races;
mod scope;

use queen::broker::Running;
use queen_protocol::{AckResult, Message, PopResponse};
use serde_json::{Value, json};

use crate::support::{Answer, Fixture};

/// A pop of `path` (`queue/q?…` or `?namespace=…`) from a broker.
async fn pop_answer(broker: &Running, path: &str) -> Answer {
    let url = format!("http://{}/api/v1/pop{path}", broker.address());
    Answer::of(reqwest::get(url).await.unwrap()).await
}

async fn pop_from(broker: &Running, path: &str) -> Vec<Message> {
    let answer = pop_answer(broker, path).await;
    if answer.status == 204 {
        assert_eq!(answer.text, "");
        return Vec::new();
    }
    let popped: PopResponse = answer.typed();
    assert!(popped.success && !popped.messages.is_empty());
    popped.messages
}

/// A pop that does not wait.
async fn pop(fixture: &Fixture, path: &str) -> Vec<Message> {
    pop_from(&fixture.broker, &format!("{path}&wait=false")).await
}

/// Payloads, which are numbers.
fn numbers(messages: &[Message]) -> Vec<i64> {
    messages
        .iter()
        .map(|message| message.data.as_i64().unwrap())
        .collect()
}

fn acknowledgment(message: &Message, status: &str) -> Value {
    let mut ack = json!({
        "transactionId": message.transaction_id,
        "partitionId": message.partition_id,
        "consumerGroup": message.consumer_group,
        "status": status,
        "error": format!("reason of {}", message.data),
    });
    if message.is_leased() {
        ack["leaseId"] = json!(message.lease_id);
    }
    ack
}

async fn ack(fixture: &Fixture, message: &Message, status: &str) -> AckResult {
    ack_to(fixture, &fixture.broker, message, status).await
}

async fn ack_to(fixture: &Fixture, broker: &Running, message: &Message, status: &str) -> AckResult {
    let body = acknowledgment(message, status).to_string();
    let answer = fixture.post_to(broker, "/api/v1/ack", &body).await;
    answer.typed::<Vec<AckResult>>().remove(0)
}

/// One call for all of them, each with its status.
async fn ack_batch(fixture: &Fixture, messages: &[Message], statuses: &[&str]) -> Vec<AckResult> {
    let acks: Vec<Value> = messages
        .iter()
        .zip(statuses)
        .map(|(message, status)| acknowledgment(message, status))
        .collect();
    let body = json!({
        "acknowledgments": acks,
        "consumerGroup": messages[0].consumer_group,
    });
    fixture
        .post("/api/v1/ack/batch", body.to_string())
        .await
        .typed()
}

async fn configure(fixture: &Fixture, queue: &str, options: Value) {
    let body = json!({"queue": queue, "options": options}).to_string();
    let answer = fixture.post("/api/v1/configure", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}
