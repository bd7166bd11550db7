//! Every bound of this crate, in one place.

use std::time::Duration;

/// How long anything that should happen may take before a caller gives up: several windows behind
/// the broker's five second guard, on a busy machine.
pub const WAIT: Duration = Duration::from_secs(90);

/// How often a condition without a notification is looked at.
pub const POLL: Duration = Duration::from_millis(20);

/// How long a process may take to its readiness line and a healthy answer.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a killed process may take to be gone.
pub const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How long a check of a whole lake may take.
pub const VERIFY_LIMIT: Duration = Duration::from_secs(120);

/// Log lines kept in memory per process. The file keeps all of them.
pub const LOG_LINES: usize = 10_000;

/// Log lines that an error carries.
pub const LOG_TAIL: usize = 25;

/// How long the S3 server's port may be taken by somebody else when it is started again.
pub const REBIND_LIMIT: Duration = Duration::from_secs(10);

/// Items in one push call.
pub const PUSH_BATCH: usize = 1_000;

/// Push calls in flight.
pub const PUSH_CONCURRENCY: usize = 4;

/// Partitions asked for in one fetch call; the API takes up to 1,024.
pub const FETCH_PARTITIONS: usize = 256;

/// Partitions of one discovery page, the API's greatest.
pub const DISCOVERY_PAGE: i64 = 1_000;

/// How long one HTTP call may take.
pub const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Records that a failed check names.
pub const NAMED_RECORDS: usize = 10;
