//! Who may work on a queue: the lease over long uploads, its loss, and its hand-over.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use queen_s3::broker::Name;
use tokio::time::Instant;

use crate::bucket::{Do, MemoryBucket};
use crate::history::records;
use crate::lines::Lines;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN, in_virtual_time};

const QUEUE: &str = "orders";
const TTL: Duration = Duration::from_secs(30);

/// A log of one record in its last whole hour.
fn one_record() -> Arc<Log> {
    let log = Log::new(TEN + HOUR + 10 * SECOND, |_, offset| offset.to_string());
    log.create(QUEUE);
    log.write(QUEUE, &Name::from("p"), TEN, 1);
    log
}

fn holder(log: &Log) -> Option<String> {
    let lease = log.document("s3:main:orders:lease")?;
    Some(lease["instance"].as_str().expect("a name").to_owned())
}

fn named(instance: &'static str, seed: u64) -> Options {
    let mut options = Options::new();
    (options.instance, options.seed) = (instance, seed);
    options
}

/// Lets the puts of data objects take so long.
fn slowly(bucket: &MemoryBucket, pause: Duration) {
    bucket.plan(move |asked| match asked.operation {
        "put" if !asked.key.contains("/_queen/") => Do::Slowly(pause),
        _ => Do::Go,
    });
}

#[test]
fn a_lease_is_kept_over_an_upload_that_takes_many_times_its_ttl() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        slowly(&bucket, TTL * 40);
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("the upload", || !bucket.asked("put", "w-").is_empty()).await;
        let other = Sink::start(&log, &bucket, &[QUEUE], &named("sink-1", 2));
        eventually("the window", || {
            assert_eq!(holder(&log).as_deref(), Some("sink-0"));
            committed(&log, QUEUE).0 == 1
        })
        .await;
        assert_eq!(bucket.asked("put", "w-").len(), 1, "in one go");
        assert_eq!(sink.status.preconditions_lost.load(Relaxed), 0);
        other.stop().await;
        sink.stop().await;
    });
}

#[test]
fn a_lost_lease_ends_the_work_at_once_and_is_looked_at_again_once_a_ttl() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        slowly(&bucket, TTL * 40);
        let sink = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("the upload", || !bucket.asked("put", "w-").is_empty()).await;
        const HELD: Duration = Duration::from_secs(600);
        let stolen = Instant::now();
        log.give_away(QUEUE, HELD);
        let lost = || sink.status.preconditions_lost.load(Relaxed);
        eventually("the loss", || lost() == 1).await;
        assert!(stolen.elapsed() < TTL / 2, "{:?}", stolen.elapsed());
        assert!(!sink.status.queue(QUEUE).owned.load(Relaxed));

        log.take_counts();
        while stolen.elapsed() < HELD - Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(holder(&log).as_deref(), Some("another"));
        }
        let looks = log.take_counts();
        assert!((18..=20).contains(&looks.claims), "{} looks", looks.claims);
        assert_eq!((looks.fetches, looks.pages), (0, 0));
        assert_eq!(bucket.asked("put", "").len(), 1, "nothing more goes up");
        assert!(bucket.data().is_empty(), "what was going up is dropped");

        slowly(&bucket, Duration::ZERO);
        let free = Instant::now();
        eventually("its turn", || holder(&log).as_deref() == Some("sink-0")).await;
        assert!(free.elapsed() <= TTL + Duration::from_secs(2));
        eventually("the window", || committed(&log, QUEUE).0 == 1).await;
        assert_eq!(lost(), 1, "counted once");
        sink.stop().await;
        assert_eq!(records(&bucket), log.records(QUEUE));
    });
}

#[test]
fn a_stop_gives_the_lease_back_and_a_kill_leaves_it_to_its_ttl() {
    for killed in [false, true] {
        in_virtual_time(async {
            let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
            let first = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
            eventually("a window", || committed(&log, QUEUE).0 == 1).await;
            if killed {
                first.kill();
            } else {
                first.stop().await;
                assert_eq!(holder(&log), None);
            }
            let start = Instant::now();
            let second = Sink::start(&log, &bucket, &[QUEUE], &named("sink-1", 2));
            eventually("the next", || holder(&log).as_deref() == Some("sink-1")).await;
            let waited = start.elapsed();
            if killed {
                let left = TTL * 2 / 3..=TTL * 2 + Duration::from_secs(1);
                assert!(left.contains(&waited), "{waited:?}");
            } else {
                assert!(waited < Duration::from_secs(1), "{waited:?}");
            }
            let written = log.now();
            log.write(QUEUE, &Name::from("p"), written, 1);
            eventually("its record", || committed(&log, QUEUE).1 > written).await;
            second.stop().await;
            assert_eq!(records(&bucket), log.records(QUEUE));
        });
    }
}

#[test]
fn an_instance_that_comes_back_under_its_name_takes_its_lease_over_at_once() {
    in_virtual_time(async {
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let first = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        let lease = || log.document("s3:main:orders:lease").expect("it is held");
        let before = lease()["incarnation"].clone();
        first.kill();
        let start = Instant::now();
        let second = Sink::start(&log, &bucket, &[QUEUE], &named("sink-0", 2));
        eventually("the next", || lease()["incarnation"] != before).await;
        assert!(start.elapsed() < Duration::from_secs(1));
        second.stop().await;
    });
}

#[test]
fn a_lease_lives_for_its_ttl_in_whole_seconds_and_a_second_at_least() {
    for (ttl, seconds) in [(1_000, 1), (2_999, 2), (30_000, 30)] {
        in_virtual_time(async {
            let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
            let mut options = Options::new();
            options.settings.lease_ttl = Duration::from_millis(ttl);
            let sink = Sink::start(&log, &bucket, &[QUEUE], &options);
            eventually("a window", || committed(&log, QUEUE).0 == 1).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            sink.kill();
            let expiries = log.take_counts().expiries;
            let lease = &expiries["s3:main:orders:lease"];
            assert_eq!(lease.iter().collect::<Vec<_>>(), [&Some(seconds)]);
            for forever in ["s3:main:orders:intent", "s3:main:orders:committed"] {
                assert_eq!(expiries[forever].iter().collect::<Vec<_>>(), [&None]);
            }
        });
    }
}

#[test]
fn what_is_said_of_a_lease_names_its_queue() {
    in_virtual_time(async {
        let (lines, _guard) = Lines::start();
        let (log, bucket) = (one_record(), Arc::<MemoryBucket>::default());
        let first = Sink::start(&log, &bucket, &[QUEUE], &Options::new());
        eventually("a window", || committed(&log, QUEUE).0 == 1).await;
        first.kill();
        let second = Sink::start(&log, &bucket, &[QUEUE], &named("sink-0", 2));
        for said in ["taking over the lease", "is held again"] {
            eventually(said, || !lines.with(said).is_empty()).await;
            for line in lines.with(said) {
                assert!(line.contains(" queue=orders"), "{line}");
            }
            // As by an operator.
            log.take_away("s3:main:orders:lease");
        }
        second.stop().await;
    });
}
