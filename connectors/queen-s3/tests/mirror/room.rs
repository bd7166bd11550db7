//! Queues that share a memory budget: room that one gives back goes on to those who wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use queen_s3::broker::Name;
use queen_s3::lake::Compression;
use queen_s3::limits::{FETCH_CALL_LEAST_BYTES, MIB};
use queen_s3::memory::MemoryBudget;
use queen_s3::observe::status::QueueStatus;

use crate::answers::Form;
use crate::bucket::{Do, MemoryBucket};
use crate::link::Link;
use crate::log::{Limits, Log};
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUES: [&str; 4] = ["a", "b", "c", "d"];
/// Record bytes at which a window is full: two records.
const TARGET: u64 = 150 << 10;
/// How long a request of the bucket takes, and how long no pass looks for room besides.
const LONG: Duration = Duration::from_secs(1_000);
/// Real time in which a test is over that takes a second: one whose queues wake each other for ever never
/// is, because virtual time stands still.
const PATIENCE: Duration = Duration::from_secs(120);

fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(100 << 10))
}

/// Four queues of six records of about 100 KiB each, of which an answer brings two.
fn log() -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, payload);
    for queue in QUEUES {
        log.create(queue);
        for record in 0..6 {
            log.write(queue, &Name::from("p"), TEN + record * SECOND, 1);
        }
    }
    log.limit(Limits {
        entry_records: 2,
        ..Limits::default()
    });
    log
}

fn options() -> Options {
    let mut options = Options::new();
    options.settings.shape.compression = Compression::Zstd;
    options.settings.discovery_interval = LONG;
    options.settings.lease_ttl = LONG;
    options.settings.fetch_concurrency = 1;
    options.settings.target_bytes = TARGET;
    options
}

/// A store that takes long to put an object there.
fn bucket() -> Arc<MemoryBucket> {
    let bucket = Arc::<MemoryBucket>::default();
    bucket.plan(|asked| match asked.operation {
        "put" => Do::Slowly(LONG),
        _ => Do::Go,
    });
    bucket
}

/// Runs a test that must not go round in one instant for ever.
fn in_time(test: fn()) {
    let (ended, end) = mpsc::channel();
    let run = thread::spawn(move || {
        test();
        // It may have been given up.
        let _ = ended.send(());
    });
    match end.recv_timeout(PATIENCE) {
        Ok(()) => {}
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(run.join().expect_err("it ended without a word"));
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the queues wake each other for ever"),
    }
}

/// A sink over `log` with this budget.
fn start(log: &Arc<Log>, budget: &Arc<MemoryBudget>, options: &Options) -> Sink {
    let link = Arc::new(Link::new(log, budget, options.seed));
    Sink::over(link, Arc::clone(budget), log, &bucket(), &QUEUES, options)
}

#[test]
fn room_that_is_given_back_at_once_goes_from_queue_to_queue_until_all_read_on() {
    in_time(|| {
        in_virtual_time(async {
            let (log, options) = (log(), options());
            let budget = MemoryBudget::new(8 * MIB);
            let taken = budget.hold(budget.limit());
            let sink = start(&log, &budget, &options);
            let shown =
                |of: fn(&QueueStatus) -> u64| QUEUES.map(|queue| of(&sink.status.queue(queue)));
            // The first small call of each is made however short memory is.
            eventually("a window of each queue goes up", || {
                shown(|status| status.writing.load(Relaxed))
                    .iter()
                    .all(|bytes| *bytes > 0)
            })
            .await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            let read =
                |status: &QueueStatus| status.writing.load(Relaxed) + status.buffered.load(Relaxed);
            let before = shown(read);
            log.take_counts();
            tokio::time::sleep(Duration::from_secs(60)).await;
            let fetches = log.take_counts().fetches;
            assert_eq!(fetches, 0, "there is no room to read on");

            // Given back in one piece, to who cannot give anything back in turn: who is told first has to
            // tell the next one.
            log.refuse_fetches(u64::MAX);
            drop(taken);
            tokio::time::sleep(Duration::from_secs(1)).await;
            let tried = shown(|status| status.fetches_failed.load(Relaxed));
            assert!(tried.iter().all(|tries| *tries > 0), "{tried:?}");
            log.refuse_fetches(0);
            tokio::time::sleep(Duration::from_secs(120)).await;
            let after = shown(read);
            let mut both = before.iter().zip(&after);
            assert!(
                both.all(|(before, after)| after > before),
                "{before:?}, {after:?}"
            );
            for queue in QUEUES {
                assert_eq!(committed(&log, queue).0, 0, "its window goes up meanwhile");
            }
            sink.kill();
        });
    });
}

#[test]
fn room_that_is_enough_for_none_of_those_who_wait_is_not_offered_round_for_ever() {
    in_time(|| {
        in_virtual_time(async {
            let (log, options) = (log(), options());
            // For what is encoded ahead a call's bytes are to stay free: more than ever are.
            let budget = MemoryBudget::new(2 * MIB);
            let taken = budget.hold(MIB / 2);
            let sink = start(&log, &budget, &options);
            let status = |queue: &str| sink.status.queue(queue);
            eventually("the next window of each queue is full", || {
                let full = |queue: &&str| {
                    let status = status(queue);
                    status.writing.load(Relaxed) > 0 && status.buffered.load(Relaxed) > TARGET
                };
                QUEUES.iter().all(full)
            })
            .await;
            assert!(
                budget.used() + FETCH_CALL_LEAST_BYTES <= budget.limit(),
                "{} bytes are used: nobody would be told",
                budget.used()
            );
            for _ in 0..100 {
                drop(budget.hold(1));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let ahead = QUEUES.map(|queue| status(queue).writing.load(Relaxed));
            assert!(ahead.iter().all(|bytes| *bytes < 2 * TARGET), "{ahead:?}");
            drop(taken);
            sink.kill();
        });
    });
}

#[test]
fn what_a_queue_shows_to_be_buffered_is_without_the_windows_that_are_being_written() {
    in_virtual_time(async {
        let (log, budget) = (log(), MemoryBudget::new(64 * MIB));
        let mut options = options();
        options.settings.target_bytes = 64 * MIB as u64;
        let sink = start(&log, &budget, &options);
        for queue in QUEUES {
            let status = sink.status.queue(queue);
            eventually("its only window goes up", || {
                status.writing.load(Relaxed) > 2 * TARGET
            })
            .await;
            // Nothing happens to the queue until that is there.
            assert_eq!(status.buffered.load(Relaxed), 0, "{queue}");
        }
        sink.kill();
    });
}

/// A partition whose records compress to next to nothing, and one whose records hardly do.
const EMPTY: &str = "empty";
const DENSE: &str = "dense";

/// About 100 KiB, as the partition's name says.
fn empty_or_dense(partition: &str, offset: i64) -> String {
    if partition == EMPTY {
        return payload(partition, offset);
    }
    let mut drawn = offset as u64 + 1;
    let digits = (0..6_400).map(|_| {
        drawn = drawn.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
        format!("{:016x}", drawn ^ (drawn >> 32))
    });
    format!("\"{}\"", digits.collect::<String>())
}

/// A sink of queues whose answers come compressed. The first one's objects take long to be put there.
struct Packed {
    log: Arc<Log>,
    budget: Arc<MemoryBudget>,
    sink: Sink,
}

impl Packed {
    fn start(target: usize) -> Self {
        // All within the present hour: nothing closes before it is full, or has to make room.
        let log = Log::new(TEN + HOUR / 2, empty_or_dense);
        log.answer_in(Form::Described);
        log.limit(Limits {
            entry_records: 2,
            ..Limits::default()
        });
        QUEUES.iter().for_each(|queue| log.create(queue));
        let budget = MemoryBudget::new(64 * MIB);
        let bucket = Arc::<MemoryBucket>::default();
        bucket.plan(
            |asked| match asked.operation == "put" && asked.key.contains("/queue=a/dt=") {
                true => Do::Slowly(LONG),
                false => Do::Go,
            },
        );
        let mut options = options();
        options.settings.discovery_interval = Duration::from_secs(1);
        options.settings.target_bytes = target as u64;
        let link = Arc::new(Link::new(&log, &budget, options.seed));
        let sink = Sink::over(link, Arc::clone(&budget), &log, &bucket, &QUEUES, &options);
        Self { log, budget, sink }
    }

    /// Writes so many records now, a millisecond apart.
    fn write(&self, queue: &str, partition: &str, records: i64) {
        let now = self.log.now();
        for record in 0..records {
            let ts = now + record * (SECOND / 1_000);
            self.log.write(queue, &Name::from(partition), ts, 1);
        }
    }

    async fn goes_up(&self, queue: &str) {
        let status = self.sink.status.queue(queue);
        eventually("a window goes up", || status.writing.load(Relaxed) > 0).await;
    }
}

#[test]
fn a_queue_makes_room_unless_another_writes_what_takes_more_memory_however_long_its_records_are() {
    in_virtual_time(async {
        let packed = Packed::start(2 * MIB);
        packed.write("a", EMPTY, 21);
        packed.goes_up("a").await;
        let taken = packed.budget.hold(packed.budget.limit());
        packed.write("b", DENSE, 8);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(committed(&packed.log, "a").0, 0, "it goes up meanwhile");
        assert!(committed(&packed.log, "b").0 > 0, "what it holds is more");
        drop(taken);
        packed.sink.kill();
    });
}

#[test]
fn a_queue_reads_on_up_to_so_much_memory_however_long_its_records_are() {
    in_virtual_time(async {
        let packed = Packed::start(64 * MIB);
        let taken = packed.budget.hold(packed.budget.limit());
        packed.write("a", DENSE, 2);
        packed.goes_up("a").await;
        packed.log.take_counts();
        packed.write("b", EMPTY, 80);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(committed(&packed.log, "a").0, 0, "it goes up meanwhile");
        let held = packed.budget.used() - packed.budget.limit();
        assert!(held < MIB, "{held} bytes");
        assert_eq!(packed.log.take_counts().records, 80);
        drop(taken);
        packed.sink.kill();
    });
}
