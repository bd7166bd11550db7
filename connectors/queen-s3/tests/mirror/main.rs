//! The shipped queue task between a log and a bucket that are made for each test: what it writes
//! byte for byte, where it reads, and what that costs.

mod ahead;
mod answers;
mod bucket;
mod bytes;
mod crashes;
#[path = "../simulation/world/describe.rs"]
mod describe;
mod described;
mod dialect;
mod figures;
mod history;
mod lease;
mod lines;
mod link;
mod log;
mod million;
mod panics;
mod positions;
mod reborn;
mod room;
mod settings;
mod sink;
mod starts;
// The simulation asks more of it.
#[allow(dead_code)]
#[path = "../simulation/world/store.rs"]
mod store;
mod unreadable;
mod uploads;

use std::future::Future;

/// 2026-09-04T10:00:00Z, µs.
const TEN: i64 = 1_788_516_000_000_000;
const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;

/// Runs a test in virtual time.
fn in_virtual_time<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the machine")
        .block_on(test)
}
