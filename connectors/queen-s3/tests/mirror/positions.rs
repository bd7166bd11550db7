//! A start without a checkpoint: positions are found by looking at few records.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::kv::{Expiry, KvOperation};
use queen_s3::broker::Name;
use serde_json::json;

use crate::bucket::MemoryBucket;
use crate::history::records;
use crate::log::{Counts, Limits, Log};
use crate::sink::{Options, SINK, Sink, committed, eventually};
use crate::{SECOND, TEN, in_virtual_time};

const PARTITIONS: i64 = 100;
const SEGMENTS: i64 = 1_000;
const SEGMENT_RECORDS: i64 = 20;
/// Offsets in doubt that are read through rather than searched.
const READ_THROUGH: i64 = 256;
/// Bytes of an answer that a record takes at most, and what goes with it.
const RECORD_BYTES: i64 = 350;
/// Looks that a search among this many offsets takes at most.
const LOOKS: i64 = 9;

/// Long enough that a segment is more than a look asks for.
fn payload(_: &str, offset: i64) -> String {
    format!("{{\"n\":{offset},\"pad\":\"{}\"}}", "x".repeat(200))
}

/// Mirrors the last `unread` segments of each partition, with nothing to begin from but a pointer,
/// and answers what that cost and how many records were wanted.
fn start_without_a_checkpoint(unread: i64, strict: bool) -> (Counts, i64) {
    in_virtual_time(async {
        let log = Log::new(TEN + (SEGMENTS + 10) * SECOND, payload);
        log.limit(Limits {
            strict,
            ..Limits::default()
        });
        log.create("orders");
        for segment in 0..SEGMENTS {
            for number in 0..PARTITIONS {
                let name = Name::from(format!("p-{number:03}"));
                let ts = TEN + segment * SECOND;
                log.write("orders", &name, ts, SEGMENT_RECORDS as u32);
            }
        }
        let cut = TEN + (SEGMENTS - unread) * SECOND;
        let pointer = json!({"k": 0, "tEnd": cut, "manifest": "", "lineage": "l"});
        let key = format!("s3:{SINK}:orders:committed");
        let put = KvOperation::put("queen-s3", &key, pointer, Expiry::Forever);
        log.kv(&[put.expect("an expiry of the wire")])
            .expect("a batch of the API");
        let bucket = Arc::<MemoryBucket>::default();
        let mut options = Options::new();
        options.settings.max_window = Duration::from_secs(10);
        let sink = Sink::start(&log, &bucket, &["orders"], &options);
        let end = TEN + SEGMENTS * SECOND;
        eventually("the log's end", || committed(&log, "orders").1 > end).await;
        sink.stop().await;
        let wanted = unread * SEGMENT_RECORDS * PARTITIONS;
        assert_eq!(records(&bucket).len() as i64, wanted);
        (log.take_counts(), wanted)
    })
}

#[test]
fn a_start_without_a_checkpoint_reads_a_handful_of_records_before_those_it_wants() {
    let all = PARTITIONS * SEGMENTS * SEGMENT_RECORDS;
    for unread in [1, 30, SEGMENTS / 5] {
        let (counts, wanted) = start_without_a_checkpoint(unread, false);
        // Each look brings one segment.
        let spare = PARTITIONS * (READ_THROUGH + (LOOKS + 1) * SEGMENT_RECORDS);
        let read = counts.records as i64;
        assert!(read <= wanted + spare, "{read} read for {wanted} of {all}");
        let bytes = counts.bytes as i64;
        let bound = RECORD_BYTES * (wanted + spare);
        assert!(bytes <= bound, "{bytes} bytes, {bound} at most");
        assert!(spare < all / 20, "the bound is far below the log's size");
    }
}

#[test]
fn the_searches_of_all_partitions_go_out_together_however_little_an_entry_may_bring() {
    for strict in [false, true] {
        // So few records are wanted that the calls are the searches'.
        let (counts, _) = start_without_a_checkpoint(30, strict);
        let fetches = counts.fetches;
        assert!(fetches < 100, "{fetches} fetches, strict {strict}");
    }
}
