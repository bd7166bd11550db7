//! What a pop asks for: its path and its query.

use std::time::Duration;

use crate::consume::QUEUE_MODE;
use crate::error::ApiError;
use crate::limits::{
    POP_BATCH_DEFAULT, POP_BATCH_MAX, POP_LEASE_MAX_SECONDS, POP_WAIT_DEFAULT, POP_WAIT_MAX,
    POP_WIDTH_AUTOPILOT, POP_WIDTH_MAX,
};
use crate::name::check_name;
use crate::timestamp::Timestamp;

/// Which queues a pop looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// One queue, and one partition of it or any.
    Queue(String, Option<String>),
    /// The queues of a namespace, of a task, or of both.
    Discovery {
        /// `namespace` of the queue's options.
        namespace: Option<String>,
        /// `task` of the queue's options.
        task: Option<String>,
    },
}

/// Where a group begins that nobody has subscribed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// At the oldest record kept.
    Start,
    /// At what is pushed from now on.
    Now,
    /// At an instant.
    At(Timestamp),
}

/// A checked pop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PopRequest {
    /// Where to look.
    pub from: From,
    /// The group; [`QUEUE_MODE`] for those who name none.
    pub group: String,
    /// Where it begins.
    pub since: Since,
    /// Records at most.
    pub batch: i64,
    /// Partitions at most.
    pub width: i32,
    /// Whether the broker chose one of the two, which the answer then tells.
    pub autopilot: bool,
    /// Settle at delivery, without a lease.
    pub auto_ack: bool,
    /// How long a lease holds, in seconds; the queue's option when `None`.
    pub lease_seconds: Option<i32>,
    /// How long to wait for a record.
    pub wait: Duration,
}

/// Parses a query. `addressed` is what the path names.
///
/// # Errors
///
/// `400` naming the parameter; `501` for one that this broker does not serve.
pub fn parse(
    addressed: Option<(String, Option<String>)>,
    query: &str,
) -> Result<PopRequest, ApiError> {
    let mut request = PopRequest {
        from: From::Discovery {
            namespace: None,
            task: None,
        },
        group: QUEUE_MODE.to_owned(),
        since: Since::Now,
        batch: POP_BATCH_DEFAULT,
        width: 1,
        autopilot: false,
        auto_ack: false,
        lease_seconds: None,
        wait: POP_WAIT_DEFAULT,
    };
    let (mut namespace, mut task) = (None, None);
    let (mut batch, mut width) = (None, None);
    let mut waits = true;
    let (mut mode, mut begin) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if value.is_empty() {
            continue;
        }
        match &*name {
            "batch" => batch = Some(number("batch", &value)?.clamp(1, POP_BATCH_MAX)),
            "partitions" => width = Some(number("partitions", &value)?.clamp(1, POP_WIDTH_MAX)),
            "leaseSeconds" => {
                let seconds = number("leaseSeconds", &value)?.clamp(1, POP_LEASE_MAX_SECONDS);
                request.lease_seconds = i32::try_from(seconds).ok();
            }
            "timeout" => {
                let millis = number("timeout", &value)?.max(0).unsigned_abs();
                request.wait = Duration::from_millis(millis).min(POP_WAIT_MAX);
            }
            "wait" => waits = flag("wait", &value)?,
            "autoAck" => request.auto_ack = flag("autoAck", &value)?,
            "autopilot" => request.autopilot = flag("autopilot", &value)?,
            "consumerGroup" => {
                check_name(&value, "consumerGroup")?;
                request.group = value.into_owned();
            }
            "namespace" => namespace = Some(value.into_owned()),
            "task" => task = Some(value.into_owned()),
            "subscriptionMode" => mode = Some(mode_of(&value)?),
            "subscriptionFrom" if &*value == "now" => begin = Some(Since::Now),
            "subscriptionFrom" => {
                let instant = Timestamp::parse(&value).map_err(|error| {
                    ApiError::bad_request(format!(
                        "subscriptionFrom: neither \"now\" nor an instant: {error}"
                    ))
                })?;
                begin = Some(Since::At(instant));
            }
            "conflation" if flag("conflation", &value)? => {
                return Err(ApiError::NotImplemented("conflation".into()));
            }
            _ => {}
        }
    }
    request.from = match addressed {
        Some((queue, partition)) => {
            check_name(&queue, "the queue in the path")?;
            if let Some(partition) = &partition {
                check_name(partition, "the partition in the path")?;
            }
            From::Queue(queue, partition)
        }
        None if namespace.is_none() && task.is_none() => {
            return Err(ApiError::bad_request(
                "namespace, task: a pop without a queue in its path needs one of them",
            ));
        }
        None => From::Discovery { namespace, task },
    };
    request.since = if request.group == QUEUE_MODE {
        // Nobody may lose a backlog by not naming a group.
        Since::Start
    } else {
        begin.or(mode).unwrap_or(Since::Now)
    };
    if !waits {
        request.wait = Duration::ZERO;
    }
    // What the caller sets is the caller's; the broker chooses the rest when it is asked to.
    request.autopilot &= batch.is_none() || width.is_none();
    let unset = if request.autopilot {
        POP_WIDTH_AUTOPILOT
    } else {
        1
    };
    request.batch = batch.unwrap_or(POP_BATCH_DEFAULT);
    // Both bounds fit.
    request.width = i32::try_from(width.unwrap_or(unset)).unwrap_or(1);
    Ok(request)
}

fn mode_of(word: &str) -> Result<Since, ApiError> {
    match word {
        "all" => Ok(Since::Start),
        "new" | "new-only" => Ok(Since::Now),
        other => Err(ApiError::bad_request(format!(
            "subscriptionMode: {other} is not all or new"
        ))),
    }
}

fn number(name: &str, value: &str) -> Result<i64, ApiError> {
    value
        .parse()
        .map_err(|_| ApiError::bad_request(format!("{name}: {value} is not an integer")))
}

fn flag(name: &str, value: &str) -> Result<bool, ApiError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => Err(ApiError::bad_request(format!(
            "{name}: {other} is not true or false"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(query: &str) -> Result<PopRequest, ApiError> {
        parse(Some(("q".into(), None)), query)
    }

    #[test]
    fn what_the_published_client_sends_is_read() {
        let params = queen_protocol::PopParams {
            batch: Some(7),
            partitions: Some(3),
            auto_ack: Some(true),
            wait: Some(false),
            timeout_millis: Some(500),
            lease_seconds: Some(9),
            consumer_group: Some("g h".into()),
            subscription_mode: Some(queen_protocol::SubscriptionMode::All),
            ..queen_protocol::PopParams::default()
        };
        let query: Vec<String> = params
            .to_pairs()
            .iter()
            .map(|(name, value)| format!("{name}={}", value.replace(' ', "%20")))
            .collect();
        let request = queue(&query.join("&")).expect("a pop");
        assert_eq!(
            request,
            PopRequest {
                from: From::Queue("q".into(), None),
                group: "g h".into(),
                since: Since::Start,
                batch: 7,
                width: 3,
                autopilot: false,
                auto_ack: true,
                lease_seconds: Some(9),
                wait: Duration::ZERO,
            }
        );
    }

    #[test]
    fn a_group_begins_now_unless_it_says_otherwise_and_queue_mode_at_the_start() {
        let since = |query: &str| queue(query).expect(query).since;
        assert_eq!(since("consumerGroup=g"), Since::Now);
        assert_eq!(since("consumerGroup=g&subscriptionMode=all"), Since::Start);
        assert_eq!(
            since("consumerGroup=g&subscriptionMode=new&subscriptionFrom=1970-01-01T00:00:01Z"),
            Since::At(Timestamp::from_micros(1_000_000))
        );
        assert_eq!(since("subscriptionMode=new"), Since::Start);
    }

    #[test]
    fn the_broker_chooses_only_what_the_caller_leaves_open() {
        let sizes = |query: &str| {
            let request = queue(query).expect(query);
            (request.batch, request.width, request.autopilot)
        };
        assert_eq!(sizes(""), (POP_BATCH_DEFAULT, 1, false));
        assert_eq!(
            sizes("autopilot=true&partitions=1"),
            (POP_BATCH_DEFAULT, 1, true)
        );
        assert_eq!(sizes("autopilot=true&partitions=2&batch=3"), (3, 2, false));
        let (batch, width, told) = sizes("autopilot=true&batch=5");
        assert!(batch == 5 && width > 1 && told);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        for (query, place) in [
            ("batch=x", "batch"),
            ("wait=maybe", "wait"),
            ("subscriptionMode=some", "subscriptionMode"),
            ("subscriptionFrom=soon", "subscriptionFrom"),
            ("conflation=true", "conflation"),
        ] {
            let error = queue(query).expect_err(query).to_string();
            assert!(error.contains(place), "{query}: {error}");
        }
        assert!(parse(None, "batch=1").is_err());
    }
}
