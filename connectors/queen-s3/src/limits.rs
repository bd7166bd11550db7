//! Every limit and wire constant of the sink, in one place.

use std::time::Duration;

/// Partitions per fetch call (the broker refuses more).
pub const FETCH_ENTRIES: usize = 1_024;
/// Stored bytes that one fetch entry may ask for (the broker clamps to this).
pub const FETCH_ENTRY_MAX_BYTES: u32 = 8 * MIB as u32;
/// Partitions that a fetch call is not split below.
pub const FETCH_LEAST_ENTRIES: usize = 64;
/// Partitions per discovery page (the broker clamps to this).
pub const CHANGED_PAGE: u32 = 1_000;
/// How far below the instant that is needed a discovery pass asks, because `lastWriteAt` is
/// floored to the second and moves at most once a second.
pub const CHANGED_SINCE_SLACK_US: i64 = 2_000_000;
/// Key/value namespace of the sink's documents.
pub const KV_NAMESPACE: &str = "queen-s3";
/// Bytes in a unit of every `_MB` variable.
pub const MIB: usize = 1_048_576;
/// Longest content of a frame of LZ4 that is read: that of the one block it has.
pub const LZ4_CONTENT_BYTES: usize = 4 * MIB;
/// Longest time between two looks at the clock while a write to the bucket is under way.
pub const OVERDUE_LOOK: Duration = Duration::from_secs(1);
/// How long a redo that reads may go on after a stop, so that it comes to its end where nothing holds it up: less
/// than an embedded sink has by default.
pub const REDO_STOP_GRACE: Duration = Duration::from_secs(20);
/// Length of one part of a multipart upload.
pub const PART_BYTES: usize = 16 * MIB;
/// Record bytes that are given to a compressor at a time.
pub const COMPRESS_STEP_BYTES: usize = MIB;
/// Zstandard level of JSONL objects and of checkpoints.
pub const ZSTD_LEVEL: i32 = 3;
/// Record bytes of an object that one Zstandard worker compresses at a time. Bytes depend on it.
pub const ZSTD_JOB_BYTES: u32 = 4 * MIB as u32;
/// Most threads that encode one object. Bytes do not depend on it.
pub const ENCODE_MAX_WORKERS: usize = 4;
/// Memory of the budget for each of them: as much as a row group's records take.
pub const ENCODE_WORKER_BYTES: usize = 64 * MIB;
/// Budget below which a process takes little memory rather than little time.
pub const LITTLE_MEMORY_BYTES: usize = 256 * MIB;
/// How often it is looked whether the buffers are empty.
pub const IDLE_MEMORY_EVERY: Duration = Duration::from_secs(5);
/// Buffers that were never fuller leave nothing behind that is worth giving back.
pub const IDLE_MEMORY_LEAST_BYTES: usize = 64 * MIB;
/// Zstandard compressors that wait for the next object, at most.
pub const SPARE_COMPRESSORS: usize = 2;
/// gzip level of JSONL objects.
pub const GZIP_LEVEL: u32 = 6;
/// Records after which a Parquet row group ends. Bytes depend on what is said of Parquet from here on.
pub const ROW_GROUP_RECORDS: usize = 100_000;
/// Record bytes after which a Parquet row group ends.
pub const ROW_GROUP_BYTES: u64 = 64 * MIB as u64;
/// Greatest page of texts that a Parquet file may claim when it is read back: all of a row group, and
/// the record that ended it.
pub const PARQUET_TEXTS_MOST_BYTES: usize = ROW_GROUP_BYTES as usize + RECORD_LINE_BYTES as usize;
/// Greatest page of numbers that it may claim: a page ends at a mebibyte.
pub const PARQUET_NUMBERS_MOST_BYTES: usize = 2 * PARQUET_PAGE_BYTES;
/// Greatest dictionary that it may claim.
pub const PARQUET_DICTIONARY_MOST_BYTES: usize = 2 * PARQUET_DICTIONARY_PAGE_BYTES;
/// Longest footer that it may claim: each row group takes less than a kibibyte.
pub const PARQUET_FOOTER_MOST_BYTES: usize = 8 * MIB;
/// Longest header of one of its pages.
pub const PARQUET_HEADER_MOST_BYTES: usize = 4 * 1_024;
/// Rows that are given to a Parquet column at a time.
pub const PARQUET_BATCH_ROWS: usize = 1_024;
/// Bytes of their texts after which fewer are.
pub const PARQUET_BATCH_BYTES: usize = 8 * MIB;
/// Bytes after which a Parquet data page ends.
pub const PARQUET_PAGE_BYTES: usize = MIB;
/// Rows after which a Parquet data page ends.
pub const PARQUET_PAGE_ROWS: usize = 20_000;
/// Length of the partitions' dictionary after which names are written out.
pub const PARQUET_DICTIONARY_PAGE_BYTES: usize = 8 * MIB;
/// Greatest length of a checkpoint's JSON text that is read.
pub const CHECKPOINT_BYTES: u64 = 512 * MIB as u64;
/// Greatest length of an S3 object key, in bytes.
pub const KEY_BYTES: usize = 1_024;
/// Greatest length of a name as keys spell it, in bytes; longer ones are hashed.
pub const ENCODED_NAME_BYTES: usize = 255;
/// Bytes of a hashed name's spelling that stay readable before the hash.
pub const HASHED_NAME_HEAD_BYTES: usize = 180;
/// What the longest key of a lake adds to its prefix and sink, in bytes: a per-partition data key
/// whose queue and partition both have the greatest length.
pub const KEY_REST_BYTES: usize = "//queue=".len()
    + ENCODED_NAME_BYTES
    + "/dt=2026-09-04/hour=10/w-0000000001-1788516000000000-1788516300000000-p-".len()
    + ENCODED_NAME_BYTES
    + ".jsonl.zst".len();
/// Greatest length of a sink's name.
pub const SINK_CHARS: usize = 64;
/// Greatest length of an instance's name.
pub const INSTANCE_CHARS: usize = 255;
/// First pause before a failed call is tried again; doubles up to [`RETRY_MAX`], with jitter.
pub const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a failed call is tried again.
pub const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long answers must agree that a queue is gone before its partitions have ended.
pub const QUEUE_GONE_AFTER: Duration = Duration::from_secs(120);
/// How many answers must do so at least.
pub const QUEUE_GONE_ANSWERS: u32 = 3;
/// How often a queue that does not exist is looked for.
pub const UNKNOWN_QUEUE_RETRY: Duration = Duration::from_secs(60);
/// How long an answered `safeTime` is shown where nothing asks for the next one: two looks for a
/// queue that does not exist.
pub const SAFE_TIME_STANDS: Duration = Duration::from_secs(120);
/// Discovery intervals between two listings of `QUEEN_S3_QUEUES=*`.
pub const RELIST_INTERVALS: u32 = 10;
/// Least time between two listings of `QUEEN_S3_QUEUES=*`.
pub const RELIST_MIN: Duration = Duration::from_secs(1);
/// On a stop, a window with at least this many record bytes is finished.
pub const DRAIN_WORTH_BYTES: u64 = MIB as u64;
/// On a stop, a window that has been open this long on the broker's clock is finished.
pub const DRAIN_WORTH_OPEN_US: i64 = 10_000_000;
/// Bytes of lost and late ranges that an intent carries at most; a key/value document may hold
/// 64 KiB in all.
pub const INTENT_GAPS_BYTES: usize = 48 * 1_024;
/// Greatest length of a manifest that is read.
pub const SIDECAR_BYTES: usize = 256 * MIB;
/// Hours between pointer and present up to which a start lists the directories in between for
/// objects that no intent names; for more it lists the queue's data keys once.
pub const LISTED_HOURS: i64 = 48;
/// Of the memory budget, the part (one in so many) that reading leaves to encoded bytes which are not
/// compressed.
pub const ENCODED_PART: usize = 4;
/// Windows of a queue that may be encoded while the one before them is being committed.
pub const WINDOWS_AHEAD: usize = 2;
/// How much longer than the last window's a window's objects are expected to be, for their length in
/// records.
pub const ENCODED_MARGIN: f64 = 1.25;
/// Record bytes that are handed to the encoder at a time.
pub const ENCODE_STEP_BYTES: usize = 4 * MIB;
/// Parts of one multipart upload that are in flight at a time, at most.
pub const PARTS_IN_FLIGHT: usize = 8;
/// And at least, however little memory there is.
pub const PARTS_IN_FLIGHT_LEAST: usize = 2;
/// Memory of the budget for each of them.
pub const PART_BUDGET_BYTES: usize = 80 * MIB;
/// Rendered bytes that one fetch call aims at, at most.
pub const FETCH_CALL_BYTES: usize = 16 * MIB;
/// Rendered bytes that one fetch call aims at, at least.
pub const FETCH_CALL_LEAST_BYTES: usize = MIB / 4;
/// Stored bytes that a fetch entry asks for, at least.
pub const FETCH_ENTRY_LEAST_BYTES: u32 = 4 * 1_024;
/// Stored bytes that a probe asks for, at least: one record is enough.
pub const PROBE_BYTES: u32 = 1_024;
/// How often every partition is listed, to learn which have ended.
pub const FULL_PASS_EVERY: Duration = Duration::from_secs(3_600);
/// Partitions that a redo fetches in one call.
pub const STREAM_ENTRIES: usize = 64;
/// Least pause between two passes where `QUEEN_S3_DISCOVERY_INTERVAL_MS` is longer and a window's age asks
/// for one.
pub const PASS_PAUSE_LEAST: Duration = Duration::from_secs(1);
/// How long a partition that the broker cannot read is left alone.
pub const ENTRY_RETRY: Duration = Duration::from_secs(5);
/// How long a connection to Queen or to the store may take to open.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Least pace of an object and of a fetch answer, beyond the time for the first bytes: 8 kbit/s, because
/// many of them may share a slow line.
pub const BODY_LEAST_BYTES_PER_SECOND: u32 = 1_024;
/// How long Queen may take to answer, beyond the time that a fetch asks it to wait, and how long
/// an answer's next bytes may take.
pub const BROKER_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Greatest body of a fetch answer: four times what a call renders at most, because one record
/// comes whatever its size.
pub const FETCH_BODY_BYTES: usize = 256 * MIB;
/// Buffers of answers below this are not kept for the next answer.
pub const SPARE_BUFFER_LEAST_BYTES: usize = MIB;
/// Greatest body of any other answer of Queen.
pub const ANSWER_BODY_BYTES: usize = 64 * MIB;
/// Greatest body that is read for an error's text.
pub const ERROR_BODY_BYTES: usize = 16 * 1024;
/// Greatest length of a foreign text in an error, in characters.
pub const EXCERPT_CHARS: usize = 300;
/// Connections of scrapes and probes that are open at a time, at most.
pub const OBSERVERS: usize = 32;
/// How long a scrape or a probe may take to say what it wants, and a connection may wait for the next
/// one: longer than the usual pause between two.
pub const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Pause after a connection could not be accepted: for want of descriptors, say.
pub const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Longest `Retry-After` that is obeyed: what says more, or says it by a clock that is wrong, is asked
/// again by then.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// Fetch answers longer than this are decoded off the async threads.
pub const DECODE_INLINE_BYTES: usize = 64 * 1024;
/// The same for answers of compressed segments.
pub const DECODE_INLINE_SEGMENTS_BYTES: usize = 8 * 1024;
/// Greatest body of an answer of the store, but for an object's content: eight times a page of a
/// thousand keys of the greatest length.
pub const STORE_ANSWER_BYTES: usize = 8 * 1_000 * KEY_BYTES;
/// How long the store may take to answer a request without a body of ours, and how long an
/// object's next bytes may take.
pub const STORE_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the store may take to put the parts of an object together.
pub const STORE_COMPLETE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long an upload may stand still, or wait for its answer once it is sent. Nothing bounds an
/// upload that moves.
pub const UPLOAD_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Greatest piece of an upload that is handed to the connection at once: what the stall check
/// sees move.
pub const UPLOAD_FRAME_BYTES: usize = 256 * 1024;
/// Uploads longer than this are hashed off the async threads.
pub const HASH_INLINE_BYTES: usize = 256 * 1024;
/// Memory that buffered records may take while a queue may go on reading however short memory is.
pub const QUEUE_ROOM_BYTES: u64 = 4 * MIB as u64;
/// Objects of one window that are on their way to their end at a time, in the per-partition layout.
pub const OBJECTS_IN_FLIGHT: usize = 16;
/// Objects, and manifests, that a check of a lake reads at a time.
pub const VERIFY_IN_FLIGHT: usize = 4;
/// Pieces of an object that wait for a check to read them.
pub const VERIFY_PIECES: usize = 8;
/// Findings about a queue that a check's report names; the rest is counted.
pub const VERIFY_FINDINGS: usize = 10_000;
/// Findings about one object's records that a check names; the rest is counted.
pub const VERIFY_OBJECT_FINDINGS: usize = 100;
/// Longest line of an object that is read back: one record of a fetch answer, and its envelope.
pub const RECORD_LINE_BYTES: u64 = FETCH_BODY_BYTES as u64 + MIB as u64;
/// How often a check asks the bucket before it gives up.
pub const VERIFY_TRIES: u32 = 5;
/// How often a check's progress is shown.
pub const VERIFY_PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// How long a lease write may take at least before its outcome counts as unknown.
pub const LEASE_CALL_LEAST: Duration = Duration::from_secs(1);
