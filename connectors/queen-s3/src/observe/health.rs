//! Whether the sink keeps up: the answer of `/healthz`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Serialize;

use super::status::QueueStatus;

/// Windows that may pass without a commit. One closes at its age limit, then has to be uploaded
/// and committed, and `safeTime` lags; a probe that flaps gets turned off.
const WINDOWS: u32 = 3;
/// Least time without a commit that counts as stale.
const LEAST_LIMIT: Duration = Duration::from_secs(30);

/// The answer of `/healthz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Whether every queue keeps up.
    pub ok: bool,
    /// The first queue by name that does not.
    #[serde(flatten)]
    pub offender: Option<Offender>,
}

/// A queue that does not keep up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offender {
    /// The queue.
    pub queue: String,
    /// Time since its last commit, ms; since the process started where it never committed.
    pub stale_ms: i64,
    /// The greatest such time that is healthy, ms.
    pub limit_ms: i64,
}

/// How long a queue may go without a commit when a window may be `max_window` old.
pub fn limit(max_window: Duration) -> Duration {
    (max_window * WINDOWS).max(LEAST_LIMIT)
}

/// Judges `queues`, which come by name, at `now_ms`; the process started at `started_ms`.
///
/// A queue that is absent or never committed is healthy. One that stopped for an operator is not,
/// at once. Any other must have committed within `limit`, by whichever process: a start is no
/// commit, and a sink that is started again and again without one must not look healthy. A lease
/// lost to another instance shows here like an outage does: this process no longer commits.
pub fn judge(
    queues: &[(String, Arc<QueueStatus>)],
    now_ms: i64,
    started_ms: i64,
    limit: Duration,
) -> Health {
    let limit_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let offender = queues.iter().find_map(|(name, status)| {
        let committed_ms = status.committed_wall_ms();
        let stale_ms = (now_ms - committed_ms.unwrap_or(started_ms)).max(0);
        let present = status.present.load(Relaxed);
        let stale = present && committed_ms.is_some() && stale_ms > limit_ms;
        let unhealthy = stale || status.stopped.load(Relaxed);
        unhealthy.then(|| Offender {
            queue: name.clone(),
            stale_ms,
            limit_ms,
        })
    });
    Health {
        ok: offender.is_none(),
        offender,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::status::Status;
    use crate::time::Micros;

    const START: i64 = 1_000_000;
    const LIMIT: Duration = Duration::from_secs(900);

    fn status(committed: &[(&str, i64)]) -> Status {
        let status = Status::default();
        for (queue, at) in committed {
            let queue = status.queue(queue);
            queue.present.store(true, Relaxed);
            queue.owned.store(true, Relaxed);
            queue.pointer(Micros(at * 1_000), *at);
        }
        status
    }

    fn body(status: &Status, now_ms: i64) -> String {
        serde_json::to_string(&judge(&status.queues(), now_ms, START, LIMIT)).expect("plain")
    }

    #[test]
    fn every_queue_within_the_limit_is_healthy() {
        let status = status(&[("clicks", START), ("orders", START)]);
        assert_eq!(body(&status, START + 900_000), r#"{"ok":true}"#);
    }

    #[test]
    fn the_first_queue_by_name_past_the_limit_is_named() {
        let status = status(&[
            ("orders", START),
            ("clicks", START + 400_000),
            ("zeta", START),
        ]);
        assert_eq!(
            body(&status, START + 1_200_000),
            r#"{"ok":false,"queue":"orders","staleMs":1200000,"limitMs":900000}"#
        );
    }

    #[test]
    fn a_queue_that_never_committed_is_healthy() {
        let status = Status::default();
        status.queue("orders").present.store(true, Relaxed);
        assert_eq!(body(&status, START + 10_000_000), r#"{"ok":true}"#);
    }

    #[test]
    fn an_absent_queue_is_not_counted() {
        let status = status(&[("orders", START)]);
        status.queue("orders").present.store(false, Relaxed);
        assert_eq!(body(&status, START + 10_000_000), r#"{"ok":true}"#);
    }

    #[test]
    fn a_lease_lost_to_another_instance_shows_like_an_outage() {
        let status = status(&[("orders", START)]);
        status.queue("orders").owned.store(false, Relaxed);
        assert!(body(&status, START + 900_001).starts_with(r#"{"ok":false,"queue":"orders""#));
    }

    #[test]
    fn a_stopped_queue_is_unhealthy_at_once() {
        let status = status(&[("orders", START)]);
        status.queue("orders").stopped.store(true, Relaxed);
        assert_eq!(
            body(&status, START + 7),
            r#"{"ok":false,"queue":"orders","staleMs":7,"limitMs":900000}"#
        );
        status.queue("a").stopped.store(true, Relaxed);
        assert!(body(&status, START + 9).contains(r#""queue":"a","staleMs":9"#));
    }

    #[test]
    fn a_start_gives_no_time_beyond_the_last_commit_of_a_former_process() {
        let young = status(&[("orders", START - 899_000)]);
        assert_eq!(body(&young, START + 1_000), r#"{"ok":true}"#);
        assert!(!judge(&young.queues(), START + 1_001, START, LIMIT).ok);
        let old = status(&[("orders", START - 5_000_000)]);
        assert_eq!(
            body(&old, START + 1),
            r#"{"ok":false,"queue":"orders","staleMs":5000001,"limitMs":900000}"#
        );
        old.queue("orders")
            .pointer(Micros(START * 1_000), START + 2);
        assert_eq!(body(&old, START + 3), r#"{"ok":true}"#);
    }

    #[test]
    fn the_limit_is_three_windows_and_at_least_thirty_seconds() {
        assert_eq!(
            limit(Duration::from_millis(300_000)),
            Duration::from_secs(900)
        );
        assert_eq!(limit(Duration::from_millis(100)), Duration::from_secs(30));
    }
}
