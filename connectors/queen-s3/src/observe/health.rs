//! Whether the sink keeps up: the answer of `/healthz`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Serialize;

use super::status::{QueueStatus, boot_ms};

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

/// Judges `queues`, which come by name, at `now`; the process started at `started`. Both are of the boot
/// clock: a step of the wall clock neither hides a sink that stands still nor turns one red that goes on.
///
/// A queue that is absent or never committed is healthy. One that stopped for an operator is not,
/// at once. Any other must have committed within `limit`, by whichever process: a start is no
/// commit, and a sink that is started again and again without one must not look healthy. A lease
/// lost to another instance shows here like an outage does: this process no longer commits.
pub fn judge(
    queues: &[(String, Arc<QueueStatus>)],
    now: Duration,
    started: Duration,
    limit: Duration,
) -> Health {
    let (now_ms, started_ms, limit_ms) = (boot_ms(now), boot_ms(started), boot_ms(limit));
    let offender = queues.iter().find_map(|(name, status)| {
        let committed_ms = status.committed_ms();
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
    use crate::clock::Clock;
    use crate::observe::status::Status;
    use crate::time::Micros;

    const START: i64 = 10_000_000;
    const LIMIT: Duration = Duration::from_secs(900);

    fn status(committed: &[(&str, i64)]) -> Status {
        let status = Status::default();
        for (queue, at) in committed {
            let queue = status.queue(queue);
            queue.present.store(true, Relaxed);
            queue.owned.store(true, Relaxed);
            queue.committed(Micros(at * 1_000), *at, ms(*at));
        }
        status
    }

    fn body(status: &Status, now_ms: i64) -> String {
        let health = judge(&status.queues(), ms(now_ms), ms(START), LIMIT);
        serde_json::to_string(&health).expect("plain")
    }

    fn ms(ms: i64) -> Duration {
        Duration::from_millis(ms.unsigned_abs())
    }

    /// Clocks that a test sets, ms.
    struct Clocks {
        boot: i64,
        wall: i64,
    }

    impl Clock for Clocks {
        fn boottime(&self) -> Duration {
            ms(self.boot)
        }

        fn wall_ms(&self) -> i64 {
            self.wall
        }
    }

    #[test]
    fn how_old_a_pointer_is_that_was_found_is_asked_of_the_wall_clock_once() {
        const WALL: i64 = 1_788_523_200_000;
        const HOUR: i64 = 3_600_000;
        let status = Status::default();
        let orders = status.queue("orders");
        let found = |boot, wall| orders.found(Micros(0), WALL, &Clocks { boot, wall });
        // A minute after the boot, and longer after the commit than the machine has run.
        found(60_000, WALL + 800_000);
        assert_eq!(orders.committed_ms(), Some(60_000 - 800_000));
        assert_eq!(body(&status, 160_000), r#"{"ok":true}"#);
        assert!(body(&status, 160_001).contains(r#""staleMs":900001"#));
        // It is found again, by a clock that has been set.
        for wall in [WALL - HOUR, WALL + HOUR] {
            found(100_000, wall);
            assert_eq!(orders.committed_ms(), Some(60_000 - 800_000));
        }
        // A pointer from the future is a young one.
        orders.found(
            Micros(0),
            WALL + 1,
            &Clocks {
                boot: START,
                wall: WALL,
            },
        );
        assert_eq!(orders.committed_ms(), Some(START));
        // What this process commits counts by the boot clock alone.
        orders.committed(Micros(0), WALL - HOUR, ms(START + 7));
        assert_eq!(orders.committed_ms(), Some(START + 7));
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
        assert!(!judge(&young.queues(), ms(START + 1_001), ms(START), LIMIT).ok);
        let old = status(&[("orders", START - 5_000_000)]);
        assert_eq!(
            body(&old, START + 1),
            r#"{"ok":false,"queue":"orders","staleMs":5000001,"limitMs":900000}"#
        );
        old.queue("orders")
            .committed(Micros(START * 1_000), START + 2, ms(START + 2));
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
