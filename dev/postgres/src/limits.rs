//! Every bound of this crate, in one place.

use std::time::Duration;

/// How long the server may take from its start to "ready", recovery after a crash included.
pub const START_LIMIT: Duration = Duration::from_secs(120);

/// How long a fast shutdown (SIGINT) may take before an immediate one (SIGQUIT) follows.
pub const FAST_STOP_LIMIT: Duration = Duration::from_secs(20);

/// How long an immediate shutdown may take before SIGKILL follows.
pub const IMMEDIATE_STOP_LIMIT: Duration = Duration::from_secs(5);

/// How long another server in the same folder, whose program has just been killed, may take to
/// notice and go away.
pub const PREDECESSOR_LIMIT: Duration = Duration::from_secs(3);

/// How often readiness is looked at. The server writes it to a file; there is nothing to wait on.
pub const POLL: Duration = Duration::from_millis(5);

/// Attempts to start, each on another port when the former was taken in the meantime.
pub const START_ATTEMPTS: u32 = 10;

/// Pause before an attempt that waits for a former server's processes to end.
pub const ATTEMPT_PAUSE: Duration = Duration::from_millis(300);

/// Bytes of the server's log that an error carries.
pub const LOG_TAIL: u64 = 2_000;

/// Longest path of a unix socket (`sun_path` less its NUL), the smaller of Linux's and BSD's.
pub const SOCKET_PATH: usize = 103;
