//! What consumers report of records.

use serde::Deserialize;
use uuid::Uuid;

use crate::consume::QUEUE_MODE;
use crate::consume::segments::partition_id;
use crate::consume::verdict::Status;
use crate::error::ApiError;
use crate::http::json;
use crate::limits::{ACK_ITEMS, REASON_MAX_BYTES};
use crate::name::check_name;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Acknowledgment {
    transaction_id: String,
    #[serde(default)]
    partition_id: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    consumer_group: Option<String>,
    #[serde(default)]
    lease_id: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Batch {
    acknowledgments: Vec<Acknowledgment>,
    #[serde(default)]
    consumer_group: Option<String>,
}

/// A checked request: acknowledgments of one group.
#[derive(Debug)]
pub struct AckRequest {
    /// The group.
    pub group: String,
    /// What it says of each record.
    pub acks: Vec<Ack>,
}

/// What a consumer says of a record.
#[derive(Debug)]
pub struct Ack {
    /// The record.
    pub transaction_id: String,
    /// `None` when it cannot be a partition of this broker.
    pub life: Option<Uuid>,
    /// What became of it.
    pub status: Status,
    /// The lease that it was taken under, if one is named; one that cannot be a lease is an error.
    pub lease: Option<Result<Uuid, ()>>,
    /// Why it failed.
    pub reason: Option<String>,
}

/// Reads the body of a single acknowledgment.
///
/// # Errors
///
/// `400` with the field that is wrong.
pub fn parse_one(body: &[u8]) -> Result<AckRequest, ApiError> {
    let mut ack: Acknowledgment = json::parse(body)?;
    let group = group(ack.consumer_group.take())?;
    Ok(AckRequest {
        group,
        acks: vec![checked(ack, "")?],
    })
}

/// Reads the body of a batch.
///
/// # Errors
///
/// `400` with the field that is wrong.
pub fn parse_batch(body: &[u8]) -> Result<AckRequest, ApiError> {
    let batch: Batch = json::parse(body)?;
    if batch.acknowledgments.len() > ACK_ITEMS {
        return Err(ApiError::bad_request(format!(
            "acknowledgments: {} of them, at most {ACK_ITEMS} a call",
            batch.acknowledgments.len()
        )));
    }
    let acks = batch.acknowledgments.into_iter().enumerate();
    Ok(AckRequest {
        group: group(batch.consumer_group)?,
        acks: acks
            .map(|(index, ack)| checked(ack, &format!("acknowledgments[{index}].")))
            .collect::<Result<_, _>>()?,
    })
}

fn group(named: Option<String>) -> Result<String, ApiError> {
    match named {
        Some(group) if !group.is_empty() => {
            check_name(&group, "consumerGroup")?;
            Ok(group)
        }
        _ => Ok(QUEUE_MODE.to_owned()),
    }
}

fn checked(ack: Acknowledgment, place: &str) -> Result<Ack, ApiError> {
    // A transaction id alone is not unique over partitions.
    let Some(partition) = ack.partition_id.filter(|id| !id.is_empty()) else {
        return Err(ApiError::bad_request(format!(
            "{place}partitionId: missing"
        )));
    };
    let lease = ack.lease_id.filter(|id| !id.is_empty());
    Ok(Ack {
        life: partition_id(&partition),
        status: Status::parse(ack.status.as_deref()),
        lease: lease.map(|id| Uuid::try_parse(&id).map_err(drop)),
        reason: ack.error.map(reason),
        transaction_id: ack.transaction_id,
    })
}

/// A reason as it is kept: text that PostgreSQL takes, of bounded length.
fn reason(mut text: String) -> String {
    text.retain(|c| c != '\0');
    let mut end = text.len().min(REASON_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_published_types_send_is_read() {
        let lease = Uuid::new_v4();
        let life = Uuid::new_v4();
        let one = queen_protocol::AckRequest {
            transaction_id: "t".into(),
            partition_id: life.to_string(),
            status: queen_protocol::AckStatus::Retry,
            consumer_group: Some("g".into()),
            lease_id: Some(lease.to_string()),
            error: Some("boom\0".into()),
        };
        let request = parse_one(&serde_json::to_vec(&one).expect("JSON")).expect("an ack");
        assert_eq!(request.group, "g");
        let ack = &request.acks[0];
        assert_eq!((ack.life, ack.status), (Some(life), Status::Retry));
        assert_eq!(ack.lease, Some(Ok(lease)));
        assert_eq!(ack.reason.as_deref(), Some("boom"));
        let batch =
            br#"{"acknowledgments":[{"transactionId":"t","partitionId":"x","status":"nonsense",
            "leaseId":"y","error":null}],"consumerGroup":null}"#;
        let request = parse_batch(batch).expect("acks");
        assert_eq!(request.group, QUEUE_MODE);
        assert_eq!(request.acks[0].status, Status::Failed);
        assert_eq!(
            (request.acks[0].life, request.acks[0].lease),
            (None, Some(Err(())))
        );
    }

    #[test]
    fn a_wrong_acknowledgment_is_named() {
        let error = parse_batch(br#"{"acknowledgments":[{"transactionId":"t"}]}"#)
            .expect_err("no partition")
            .to_string();
        assert!(error.contains("acknowledgments[0].partitionId"), "{error}");
        assert!(parse_one(b"{}").is_err());
    }
}
