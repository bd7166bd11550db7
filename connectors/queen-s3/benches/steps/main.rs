//! Times the sink's own steps over one fetch answer in memory, each against the one piece of work
//! that cannot be avoided: compressing the same JSON lines with zstd, level 3, one worker.
//!
//! `make bench` runs it. Every figure is a ratio taken in one run; a JSON record of it goes to the
//! file named by `QUEEN_BENCH_OUT`, if that is set.

mod work;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use queen_s3::encode::record_bytes;
use queen_s3::lake::{Compression, Format};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Chunk, Trust, decode_fetch, decode_segments};
use serde_json::json;

use work::{Blocks, PARTITIONS, RECORDS, answer, chunks, encode, segments, zstd_alone};

const REPETITIONS: usize = 5;

fn main() -> Result<()> {
    // Cargo's own arguments (`--bench`) mean nothing here.
    let (request, body) = answer();
    let budget = MemoryBudget::new(usize::MAX);
    let decoded = decode_fetch(&request, body.clone(), &budget)?;
    let open = chunks(&request, &decoded);
    let lengths: Vec<u64> = open
        .iter()
        .map(|(name, chunk)| record_bytes(name, chunk))
        .collect();
    let total: u64 = lengths.iter().sum();
    let lines = encode(Format::Jsonl, Compression::None, total, &open)?;
    let undescribed = segments(&open, Blocks::Undescribed)?;
    let (in_zstd, in_lz4) = (
        segments(&open, Blocks::Zstd)?,
        segments(&open, Blocks::Lz4)?,
    );
    let trust = Arc::<Trust>::default();
    let packed = |body: &Bytes| {
        let answer = decode_segments(&request, body.clone(), &budget, &trust)?;
        let packed = chunks(&request, &answer);
        let made = encode(Format::Jsonl, Compression::None, total, &packed)?;
        anyhow::ensure!(made == lines, "compressed segments make other lines");
        Ok(packed)
    };
    let (from_zstd, from_lz4) = (packed(&in_zstd)?, packed(&in_lz4)?);

    let floor = median(|| zstd_alone(&lines))?;
    let rows = [
        (
            "scan a fetch answer",
            median(|| {
                black_box(decode_fetch(&request, body.clone(), &budget)?);
                Ok(())
            })?,
        ),
        (
            "decompress its segments",
            median(|| {
                black_box(decode_segments(
                    &request,
                    undescribed.clone(),
                    &budget,
                    &trust,
                )?);
                Ok(())
            })?,
        ),
        (
            "take its segments in as they are",
            median(|| {
                black_box(decode_segments(&request, in_lz4.clone(), &budget, &trust)?);
                Ok(())
            })?,
        ),
        (
            "count record bytes",
            median(|| {
                for (name, chunk) in &open {
                    black_box(record_bytes(name, chunk));
                }
                Ok(())
            })?,
        ),
        (
            "build JSONL, no compression",
            timed(Format::Jsonl, Compression::None, total, &open)?,
        ),
        (
            "build JSONL, zstd",
            timed(Format::Jsonl, Compression::Zstd, total, &open)?,
        ),
        (
            "the same from segments of zstd",
            timed(Format::Jsonl, Compression::Zstd, total, &from_zstd)?,
        ),
        (
            "the same from segments of LZ4",
            timed(Format::Jsonl, Compression::Zstd, total, &from_lz4)?,
        ),
        (
            "build JSONL, gzip",
            timed(Format::Jsonl, Compression::Gzip, total, &open)?,
        ),
        (
            "build Parquet, zstd",
            timed(Format::Parquet, Compression::Zstd, total, &open)?,
        ),
        (
            "the same from segments of zstd",
            timed(Format::Parquet, Compression::Zstd, total, &from_zstd)?,
        ),
        (
            "the same from segments of LZ4",
            timed(Format::Parquet, Compression::Zstd, total, &from_lz4)?,
        ),
        (
            "build Parquet, snappy",
            timed(Format::Parquet, Compression::Snappy, total, &open)?,
        ),
    ];

    let megabytes = lines.len() as f64 / 1e6;
    println!(
        "{} records, {megabytes:.0} MB of JSON lines, {REPETITIONS} repetitions, medians",
        PARTITIONS * RECORDS
    );
    println!(
        "{:<33} {:>9} {:>9} {:>12}",
        "step", "ms", "MB/s", "over zstd"
    );
    let mut record = Vec::new();
    for (step, took) in std::iter::once(("zstd level 3 alone", floor)).chain(rows) {
        let ratio = took.as_secs_f64() / floor.as_secs_f64();
        let rate = megabytes / took.as_secs_f64();
        println!(
            "{step:<33} {:>9.1} {rate:>9.0} {ratio:>12.2}",
            took.as_secs_f64() * 1e3
        );
        record.push(json!({"step": step, "ms": took.as_secs_f64() * 1e3, "overZstd": ratio}));
    }
    if let Some(path) = std::env::var_os("QUEEN_BENCH_OUT").filter(|path| !path.is_empty()) {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let report = json!({
            "command": "make bench",
            "version": env!("CARGO_PKG_VERSION"),
            "cores": cores,
            "records": PARTITIONS * RECORDS,
            "jsonlBytes": lines.len(),
            "repetitions": REPETITIONS,
            "steps": record,
        });
        std::fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn timed(
    format: Format,
    compression: Compression,
    record_bytes: u64,
    chunks: &[(Arc<str>, Chunk)],
) -> Result<Duration> {
    median(|| {
        black_box(encode(format, compression, record_bytes, chunks)?);
        Ok(())
    })
}

/// The median time of a few runs, after one that does not count.
fn median(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let mut times = Vec::with_capacity(REPETITIONS);
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[REPETITIONS / 2])
}
