//! Every fixed limit of the broker, in one place.

use std::time::Duration;

/// Bytes per mebibyte: what a variable named `_MB` counts in.
pub const MIB: usize = 1_048_576;

/// Longest queue or partition name, in bytes: an index entry over two names stays within a page.
pub const NAME_MAX_BYTES: usize = 1_024;
/// Longest transaction id, in bytes.
pub const TRANSACTION_ID_MAX_BYTES: usize = 1_024;

/// A push closes a segment at this many bytes before compression; one larger record is one segment.
pub const SEGMENT_TARGET_BYTES: usize = MIB;
/// Records per segment at most: what one fetch entry can hold.
pub const SEGMENT_MAX_RECORDS: usize = FETCH_RECORDS_PER_ENTRY;
/// Level of zstd that segments are compressed with: fast, because producers wait for it.
pub const SEGMENT_ZSTD_LEVEL: i32 = 1;
/// How often a push is tried when nothing of it was written: deadlock, deletion meanwhile, a lock that could not
/// be had in time.
pub const PUSH_ATTEMPTS: usize = 4;

/// Work on more bytes than this leaves the asynchronous threads.
pub const INLINE_WORK_BYTES: usize = 64 * 1_024;

/// Entries of one fetch call.
pub const FETCH_ENTRIES: usize = 1_024;
/// Stored bytes of one fetch entry when the request does not say.
pub const FETCH_ENTRY_BYTES_DEFAULT: i64 = MIB as i64;
/// Stored bytes of one fetch entry at most.
pub const FETCH_ENTRY_BYTES_MAX: i64 = 8 * MIB as i64;
/// Stored bytes of a whole fetch call.
pub const FETCH_CALL_STORED_BYTES: i64 = 64 * MIB as i64;
/// Rendered bytes of a whole fetch call.
pub const FETCH_CALL_RENDERED_BYTES: usize = 64 * MIB;
/// Records of one fetch entry.
pub const FETCH_RECORDS_PER_ENTRY: usize = 10_000;
/// Longest park of a fetch.
pub const FETCH_WAIT_MAX: Duration = Duration::from_secs(30);
/// A parked fetch looks again at least this often, whatever it was told.
pub const FETCH_RECHECK: Duration = Duration::from_secs(5);

/// Entries of one `partitions/changed` call.
pub const CHANGED_ENTRIES: usize = 64;
/// Partitions of one page of `partitions/changed`, and the default.
pub const CHANGED_PAGE_MAX: i64 = 1_000;
/// The floor of `safeTime` lies this far behind the database's clock, in seconds.
pub const SAFE_GUARD_SECONDS: f64 = 5.0;

/// Operations of one key/value batch, and keys of one `getMany`.
pub const KV_OPERATIONS: usize = 1_000;
/// Longest key, in bytes.
pub const KV_KEY_MAX_BYTES: usize = 1_024;
/// Longest namespace, in characters.
pub const KV_NAMESPACE_MAX: usize = 64;
/// Longest value: the bytes of its JSON text.
pub const KV_VALUE_MAX_BYTES: usize = 64 * 1_024;
/// Rows of one `getPrefix` page at most.
pub const KV_PAGE_MAX: i64 = 1_000;
/// Rows of one `getPrefix` page when the request does not say.
pub const KV_PAGE_DEFAULT: i64 = 100;
/// Value bytes of one `getPrefix` page.
pub const KV_PAGE_BYTES: i64 = 8 * MIB as i64;
/// Locks that keys are spread over. More locks mean fewer strangers waiting for one another.
pub const KV_LOCK_BUCKETS: u64 = 1_024;
/// Expired rows deleted per sweep.
pub const KV_SWEEP_ROWS: i64 = 1_000;
/// Time between two sweeps.
pub const KV_SWEEP_EVERY: Duration = Duration::from_secs(30);

/// First key of the broker's advisory locks of two keys: migrations.
pub const LOCK_CLASS_MIGRATE: i32 = 0x5155_0001;
/// First key of the broker's advisory locks of two keys: key/value buckets.
pub const LOCK_CLASS_KV: i32 = 0x5155_0002;

/// How long a migration waits for a lock at a time: whatever comes after it waits, too.
pub const MIGRATION_LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often a migration asks for its locks before the broker gives up.
pub const MIGRATION_ATTEMPTS: usize = 60;
/// While a migration runs, or another broker's is waited for, the server is asked this often whether it lives.
pub const MIGRATION_PROBE: Duration = Duration::from_secs(5);
/// A server that has taken no connection for this long meanwhile is not waited for.
pub const MIGRATION_SILENCE: Duration = Duration::from_secs(20);
/// Pause between two of these attempts: what waited for the migration goes on meanwhile.
pub const MIGRATION_PAUSE: Duration = Duration::from_secs(1);

/// How long a request waits for a database connection.
pub const CONNECTION_WAIT: Duration = Duration::from_secs(5);
/// How long a connection attempt may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A statement that PostgreSQL has not answered so long after it should have ended it is not answered any more: the
/// server is stopped, or its machine is gone.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// A session that was not used for this long is asked for an answer before it is given out.
pub const SESSION_TRUST: Duration = Duration::from_secs(1);
/// So long after one of the sessions ended, all are asked before they are given out.
pub const SESSION_DOUBT: Duration = Duration::from_secs(5);
/// How long such an answer may take: as long as a new session, since a server that is only slow is waited for.
pub const SESSION_PING: Duration = CONNECT_TIMEOUT;
/// Of so many sessions without an answer nobody waits for a further one.
pub const SILENT_SESSIONS: u64 = 2;
/// A push that has no session by now does not ask for one again: it was not slow, there is none.
pub const SESSION_PATIENCE: Duration = Duration::from_secs(8);
/// A database server whose machine has not been heard of for this long is gone.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// A machine that was not heard of for this long is asked, and again after as long.
pub const SILENCE_PROBE: Duration = Duration::from_secs(10);
/// So many unanswered questions make [`SILENCE_LIMIT`], where the system knows no limit of its own.
pub const SILENCE_PROBES: u32 = 2;
/// Signals to the other brokers are gathered for this long.
pub const PEER_SIGNAL_EVERY: Duration = Duration::from_millis(50);
/// Longest payload of a PostgreSQL notification is 8,000 bytes; stay below.
pub const PEER_SIGNAL_MAX_BYTES: usize = 7_000;
/// Pause before a lost listening connection is made again.
pub const PEER_RECONNECT: Duration = Duration::from_secs(1);
/// Database sessions are shared out in this many parts.
pub const LANE_SHARES: usize = 16;
/// Parts of the push lane.
pub const PUSH_LANE_SHARE: usize = 5;
/// Parts of the pop lane.
pub const POP_LANE_SHARE: usize = 5;
/// Parts of the control lane.
pub const CONTROL_LANE_SHARE: usize = 3;
/// One of so many slots of a lane stays with those who only read, or whom somebody waits for; at least one.
pub const LEFT_TO_OTHERS: usize = 4;
/// Parts that no lane can take: for discovery, health and status.
pub const OBSERVING_SHARE: usize = 3;

/// Buffer of a connection, and so the largest head of a request.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1_024;
/// Room that is made for a body before any of it has come.
pub const BODY_ROOM_BYTES: usize = 64 * 1_024;
/// What a client has to take of an answer within `QUEEN_HTTP_WRITE_MS`.
pub const WRITE_STEP_BYTES: usize = MIB;
/// Pause after the system refused to accept a connection.
pub const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// File descriptors that are kept free of client connections and database sessions.
pub const SPARE_DESCRIPTORS: usize = 64;

/// How long a stop waits for requests in flight.
pub const STOP_GRACE: Duration = Duration::from_secs(20);
/// How long `/health` waits for the database.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Least grace of a stopping sink: none at all is a SIGKILL with extra steps.
pub const SINK_GRACE_MIN: Duration = Duration::from_millis(100);
/// First pause before an embedded sink that ended is started again.
pub const SINK_BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest such pause.
pub const SINK_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// A sink that ran for this long was healthy: pauses begin at the first again.
pub const SINK_HEALTHY_AFTER: Duration = Duration::from_secs(3_600);
/// Longest line of the sink's output in the broker's log.
pub const SINK_LINE_MAX_BYTES: usize = 4 * 1_024;
/// Lines of the sink's output per window.
pub const SINK_LINES_PER_WINDOW: u32 = 200;
/// The window of that budget.
pub const SINK_LINES_WINDOW: Duration = Duration::from_secs(10);
/// How long segments that cannot be read for one and the same cause stay silent after a line.
pub const UNREADABLE_QUIET: Duration = Duration::from_secs(60);

/// Encrypted queues that a broker remembers.
pub const KNOWN_ENCRYPTED_QUEUES: usize = 10_000;

/// An HMAC secret shorter than what it signs with is weak.
pub const TOKEN_SECRET_SHORT_BYTES: usize = 32;

/// Queues that retention reads at once.
pub const RETENTION_QUEUES: i64 = 1_000;
/// Partitions that one step of retention looks at.
pub const RETENTION_PARTITIONS: i64 = 100;
/// Segments that one statement of retention deletes at most, or looks at per partition.
pub const RETENTION_SEGMENTS: i64 = 200;
/// Partitions of a deleted queue that one statement removes.
pub const DELETION_PARTITIONS: i64 = 1_000;
/// Time between two passes that also look for empty partitions.
pub const PARTITION_CLEANUP_EVERY: Duration = Duration::from_secs(600);
/// A sink's hold keeps this much below the end of what is committed: covers the sub-second skew of
/// a bound that is derived from a watermark.
pub const SINK_HOLD_SLACK_SECONDS: i64 = 60;

/// Records of one pop when the request does not say.
pub const POP_BATCH_DEFAULT: i64 = 200;
/// Records of one pop at most.
pub const POP_BATCH_MAX: i64 = 10_000;
/// Partitions of one pop at most.
pub const POP_WIDTH_MAX: i64 = 1_000;
/// Partitions of one pop where the broker chooses.
pub const POP_WIDTH_AUTOPILOT: i64 = 16;
/// Bytes before compression that one pop reads, a record counting a little more than it holds; the
/// first segment always comes.
pub const POP_RAW_BYTES: i64 = 32 * MIB as i64;
/// Longest lease, in seconds: a year.
pub const POP_LEASE_MAX_SECONDS: i64 = 366 * 86_400;
/// Longest park of a pop.
pub const POP_WAIT_MAX: Duration = Duration::from_secs(60);
/// Park of a pop that does not say.
pub const POP_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// A parked pop looks again at least this often, whatever it was told.
pub const POP_RECHECK: Duration = Duration::from_secs(5);
/// A pop that was told of something due waits at least this long before it looks.
pub const POP_WAKE_MIN: Duration = Duration::from_millis(20);
/// What is settled at delivery is kept from others for this long at least while it is rendered.
pub const DELIVERY_LEASE_LEAST: Duration = Duration::from_secs(60);
/// Partitions that one look of a pop finds nothing in before it lets go of its session.
pub const POP_LOOKS: i32 = 200;
/// How long a pop that does not wait goes on while there are partitions that it has not looked at.
pub const POP_PATIENCE: Duration = Duration::from_secs(2);
/// Queues that a pop by namespace or task looks at in one go.
pub const POP_QUEUES: i64 = 100;
/// Queues that it looks at before it waits; after that it goes on with the next.
pub const DISCOVERY_SWEEP_QUEUES: i64 = 1_000;
/// Pairs of namespace and task of which a broker remembers the queue that was looked at last.
pub const DISCOVERIES_REMEMBERED: usize = 10_000;
/// How long a partition with a segment that cannot be read is left alone.
pub const UNREADABLE_PAUSE: Duration = Duration::from_secs(5);
/// Acknowledgments of one call.
pub const ACK_ITEMS: usize = 10_000;
/// How often an ack is worked out anew when a cursor has moved meanwhile.
pub const ACK_ATTEMPTS: usize = 8;
/// Bytes before compression that one call copies to the dead letters, and the record that exceeds
/// them: all that one pop gives fits.
pub const ACK_DEAD_RAW_BYTES: usize = 64 * MIB;
/// Longest reason that is kept with a dead letter, in bytes.
pub const REASON_MAX_BYTES: usize = 4_096;
/// Bytes of what a broker remembers of the ids in segments: 8 an id, and what a segment and a partition
/// take.
pub const REMEMBERED_ID_BYTES: usize = 32 * MIB;
/// Groups of queues that are not there that one tenant may have.
pub const WAITING_GROUPS: i64 = 1_000;
/// Lease extension in seconds when the request does not say.
pub const LEASE_EXTENSION_DEFAULT_SECONDS: i32 = 60;
/// Dead letters of one page at most.
pub const DEAD_LETTERS_PAGE_MAX: i64 = 1_000;
/// Bytes before compression of one page; the first dead letter always comes.
pub const DEAD_LETTERS_PAGE_RAW_BYTES: i64 = 32 * MIB as i64;
/// Cursors of a moved or deleted group that are counted: the answer says no more than this.
pub const CURSORS_COUNTED: i64 = 100_000;
/// Cursors of a deleted group that one statement removes.
pub const DELETION_CURSORS: i64 = 1_000;
/// A deleted group may still be given cursors, by who found it before, for this long at least.
pub const DELETED_GROUP_LEAST: Duration = Duration::from_secs(60);
/// What a request may take besides its statements: two sessions, and the work between them.
pub const BESIDES_STATEMENTS: Duration = Duration::from_secs(30);
/// Dead letters that are counted: `total` says no more than this.
pub const DEAD_LETTERS_COUNTED: i64 = 100_000;
/// Dead letters of one page when the request does not say.
pub const DEAD_LETTERS_PAGE_DEFAULT: i64 = 100;

/// Queues without deduplication that a broker remembers.
pub const KNOWN_REPEATING_QUEUES: usize = 10_000;
/// Transaction ids past their window that are deleted per sweep.
pub const DEDUP_SWEEP_ROWS: i64 = 1_000;
/// Time between two sweeps.
pub const DEDUP_SWEEP_EVERY: Duration = Duration::from_secs(30);
/// Fewer ids of a partition are not worth remembering: the database compares them at every push.
pub const RECENT_LEAST_IDS: usize = 64;
/// A partition with fewer ids is forgotten without more ado when there is no room: they are soon read.
pub const RECENT_FEW_IDS: usize = 512;
/// Unknown ids of a push's partitions that are compared while these are locked; more are read first.
pub const RECENT_MOST_UNKNOWN: i64 = 8_000;
/// So many per id of the push are compared in any case: the pushes before it in the line may be as large.
pub const RECENT_UNKNOWN_PER_ID: i64 = 8;
/// A window's ids are forgotten in so many parts.
pub const RECENT_PARTS: i64 = 8;
/// So many ids make a part, however soon they came: they are sorted while pushes wait.
pub const RECENT_PART_IDS: usize = 128 * 1024;
/// Stretches of a partition that are known ahead of one that is not.
pub const RECENT_AHEAD: usize = 64;
/// Rows of ids that one statement reads.
pub const RECENT_ROWS: i64 = 1_000;
/// Ids that one statement moves to the index.
pub const RECENT_INDEX_IDS: i64 = 5_000;
/// Pause after ids could not be moved there.
pub const RECENT_PAUSE: Duration = Duration::from_secs(1);
/// Pause before it is looked again whether remembered ids that pushes hold are gone.
pub const RECENT_HELD_PAUSE: Duration = Duration::from_millis(50);
