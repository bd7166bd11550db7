//! A million partitions in one queue, of which few move.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use queen_s3::broker::Name;
use queen_s3::config::Start;
use tokio::time::sleep;

use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::log::Log;
use crate::sink::{Options, Sink, committed, eventually};
use crate::{HOUR, SECOND, TEN};

const PARTITIONS: u32 = 1_000_000;
const MOVED: u32 = 50;
/// Bytes that a partition in which nothing happens may cost.
const RESIDENT_BYTES: u64 = 140;

fn name(number: u32) -> Name {
    Name::from(format!("tenant-{number:07}"))
}

fn payload(_: &str, offset: i64) -> String {
    offset.to_string()
}

/// Moves some partitions, and answers which.
fn move_some(log: &Log, from: u32) -> BTreeSet<Name> {
    let step = PARTITIONS / MOVED;
    let moved: BTreeSet<Name> = (0..MOVED)
        .map(|number| name(from + number * step))
        .collect();
    for name in &moved {
        log.write("orders", name, log.now(), 1);
    }
    moved
}

/// Waits for the next window and for the checkpoint after it.
async fn window(log: &Log, bucket: &MemoryBucket, k: u64) {
    eventually("a window", || committed(log, "orders").0 == k).await;
    let key = format!("/{k:010}.json.zst");
    eventually("a checkpoint", || {
        bucket
            .checkpoints()
            .iter()
            .any(|found| found.ends_with(&key))
    })
    .await;
}

/// Waits until every partition was listed once more.
async fn full_sweep(log: &Log) -> BTreeSet<Name> {
    let mut counts = log.take_counts();
    eventually("a full sweep", || {
        let more = log.take_counts();
        counts.listed += more.listed;
        counts.asked.extend(more.asked);
        counts.listed >= u64::from(PARTITIONS)
    })
    .await;
    // What the sweep's last page gave reason to ask for.
    sleep(Duration::from_secs(60)).await;
    counts.asked.extend(log.take_counts().asked);
    counts.asked
}

#[test]
fn a_million_partitions_cost_no_request_and_little_memory_while_they_do_not_move() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the machine");
    let _inside = runtime.enter();
    let log = Log::new(TEN + 10 * HOUR, payload);
    log.create("orders");
    for number in 0..PARTITIONS {
        // Some are long enough that a position in them would be searched for.
        let records = if number % 1_000 == 0 { 1_000 } else { 3 };
        log.write("orders", &name(number), TEN, records);
    }
    let bucket = Arc::<MemoryBucket>::default();
    let mut options = Options::new();
    options.settings.start = Start::Latest;
    options.settings.checkpoint_every = 1;
    options.settings.discovery_interval = Duration::from_secs(60);

    let mut sink = None;
    let swept = measure(|| {
        runtime.block_on(async {
            sink = Some(Sink::start(&log, &bucket, &["orders"], &options));
            let asked = full_sweep(&log).await;
            assert_eq!(asked.len(), 0, "partitions that did not move are asked for");
        });
    });
    let each = swept.bytes_current.unsigned_abs() / u64::from(PARTITIONS);
    println!("after a full sweep a partition costs {each} bytes");
    assert!(each <= RESIDENT_BYTES, "a partition costs {each} bytes");

    runtime.block_on(async {
        let moved = move_some(&log, 7);
        window(&log, &bucket, 1).await;
        assert_eq!(log.take_counts().asked, moved);
        assert_eq!(records(&bucket).len(), MOVED as usize);
        sink.take().expect("it runs").stop().await;
    });

    // A start from the checkpoint: nothing but what moves is asked for, not even by a full sweep.
    options.seed = 2;
    let again = measure(|| {
        runtime.block_on(async {
            let started = Sink::start(&log, &bucket, &["orders"], &options);
            sleep(Duration::from_secs(10)).await;
            let moved = move_some(&log, 11);
            window(&log, &bucket, 2).await;
            assert_eq!(records(&bucket).len(), 2 * MOVED as usize);
            let mut asked = full_sweep(&log).await;
            asked.retain(|name| !moved.contains(name));
            assert_eq!(asked.len(), 0, "partitions that did not move are asked for");
            sink = Some(started);
        });
    });
    let each = again.bytes_current.unsigned_abs() / u64::from(PARTITIONS);
    println!("after a start from a checkpoint a partition costs {each} bytes");
    assert!(each <= RESIDENT_BYTES, "a partition costs {each} bytes");
    assert!(log.now() > TEN + 10 * HOUR + 2 * 3_600 * SECOND);
    runtime.block_on(sink.take().expect("it runs").stop());
}
