//! The engine's behaviour, one sentence a test. Instants are seconds on the broker's clock.

mod closing;
mod lives;
mod positions;
mod reading;
mod remembered;

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::broker::{EntryError, FetchedEntry, ListedPartition};
use crate::lake::checkpoint::{Position, Positions};
use crate::memory::MemoryBudget;
use crate::record::{Batch, Ids, RecordIndex};

const GUARD: i64 = 5;
const AGE: i64 = 60;

fn at(seconds: i64) -> Micros {
    Micros(seconds * Micros::PER_SECOND)
}

fn policy() -> Policy {
    Policy {
        align: Align::Hour,
        target_bytes: 10_000,
        max_window_us: AGE * Micros::PER_SECOND,
        guard_us: GUARD * Micros::PER_SECOND,
    }
}

fn engine(committed: i64) -> Engine {
    Engine::new(policy(), at(committed))
}

fn listed(name: &str, log_start: i64, last_offset: i64, id: Option<u128>) -> ListedPartition {
    ListedPartition {
        name: name.into(),
        id: id.map(Uuid::from_u128),
        last_offset,
        log_start,
        last_write_at: None,
    }
}

/// As [`listed`], last written to at `seconds`.
fn written(listed: ListedPartition, seconds: i64) -> ListedPartition {
    ListedPartition {
        last_write_at: Some(at(seconds)),
        ..listed
    }
}

fn pass(engine: &mut Engine, safe: i64, partitions: &[ListedPartition]) {
    run_pass(engine, safe, partitions, false);
}

fn run_pass(engine: &mut Engine, safe: i64, partitions: &[ListedPartition], full: bool) {
    engine.begin_pass(full);
    engine.page_asked();
    engine.page(at(safe), partitions);
    engine.end_pass();
}

fn request(engine: &mut Engine, name: &str) -> ReadRequest {
    let reads = engine.next_reads(100);
    let mut wanted = None;
    for read in reads {
        if &*read.name == name {
            wanted = Some(read);
        } else {
            engine.unread(&read);
        }
    }
    wanted.unwrap_or_else(|| panic!("{name} is ready to be read"))
}

fn entry(records: u32, high_watermark: i64) -> FetchedEntry {
    FetchedEntry {
        records: 0..records,
        high_watermark,
        log_start: 0,
        life: None,
        error: None,
    }
}

/// A batch of records `(offset, ts in seconds)`, each with a payload of 100 bytes.
fn batch(records: &[(i64, i64)], budget: &Arc<MemoryBudget>) -> Arc<Batch> {
    let mut body = b"id".to_vec();
    body.resize(102, b'1');
    let index = records
        .iter()
        .map(|(offset, seconds)| RecordIndex {
            offset: *offset,
            ts: at(*seconds),
            transaction_id_start: 0,
            transaction_id_len: 2,
            payload_start: 2,
            payload_len: 100,
        })
        .collect();
    Batch::new(Bytes::from(body), index, Ids::Escaped, budget)
}

/// Reads `records` of `name`, whose watermark is then `high_watermark`.
fn read(
    engine: &mut Engine,
    name: &str,
    records: &[(i64, i64)],
    high_watermark: i64,
) -> ReadResult {
    let request = request(engine, name);
    let mut records = records.to_vec();
    if request.overlap {
        // The record before, of the same life.
        records.insert(0, (request.offset, 0));
    }
    answer(engine, &request, &records, high_watermark)
}

/// Answers `request` with exactly `records`.
fn answer(
    engine: &mut Engine,
    request: &ReadRequest,
    records: &[(i64, i64)],
    high_watermark: i64,
) -> ReadResult {
    answer_of(engine, request, records, high_watermark, None)
}

/// As [`answer`], of a life that the broker names.
fn answer_of(
    engine: &mut Engine,
    request: &ReadRequest,
    records: &[(i64, i64)],
    high_watermark: i64,
    life: Option<u128>,
) -> ReadResult {
    let batch = batch(records, &MemoryBudget::new(usize::MAX));
    let entry = FetchedEntry {
        // Where a request begins without a look at the record before, there is none.
        log_start: if request.overlap { 0 } else { request.offset },
        life: life.map(Uuid::from_u128),
        ..entry(records.len() as u32, high_watermark)
    };
    engine.read(request, &batch, &entry)
}

fn window(engine: &mut Engine) -> ClosedWindow {
    match engine.close(Press::None) {
        Some(Close::Window(window)) => window,
        other => panic!("a window closes, not {other:?}"),
    }
}

fn offsets(window: &ClosedWindow) -> Vec<(String, Vec<i64>)> {
    let all = |chunks: &Vec<crate::record::Chunk>| {
        chunks
            .iter()
            .flat_map(|c| c.marks().map(|r| r.offset))
            .collect()
    };
    window
        .partitions
        .iter()
        .map(|(name, chunks)| (name.to_string(), all(chunks)))
        .collect()
}

fn position(partition: &str, offset: i64, id: Option<u128>) -> Position<'_> {
    Position {
        partition,
        offset,
        id: id.map(Uuid::from_u128),
    }
}

/// What a checkpoint taken now says: `(name, offset, id)`, by name.
fn checkpoint(engine: &Engine) -> Vec<(String, i64, Option<u128>)> {
    let mut positions = engine.checkpoint();
    positions.sort();
    positions
        .iter()
        .map(|one| {
            let id = one.id.map(|id| id.as_u128());
            (one.partition.to_owned(), one.offset, id)
        })
        .collect()
}
