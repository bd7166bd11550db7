//! That no step of the sink becomes dearer beside the one that cannot be avoided, compressing the lines.
//!
//! What is compared are processor times of one process in one run: how fast the machine is cancels out. The
//! bounds are those of the build that the tests run, in which the sink's own code, and with it what it inlines of
//! LZ4, is not optimized and the compressor is a little.

#[path = "../benches/steps/work.rs"]
mod work;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use queen_s3::encode::record_bytes;
use queen_s3::lake::{Compression, Format};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Chunk, Trust, decode_fetch, decode_segments};
use rustix::time::{ClockId, clock_gettime};

use work::{Blocks, PARTITIONS, RECORDS, answer, chunks, encode, segments, zstd_alone};

/// Times that each step is taken; the least counts, because whatever else runs only adds.
const REPETITIONS: usize = 8;

type Step<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// Processor time of all threads of this process.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn least(steps: &[Step<'_>]) -> Result<Vec<f64>> {
    let mut least = vec![f64::MAX; steps.len()];
    for _ in 0..REPETITIONS {
        for (step, least) in steps.iter().zip(&mut least) {
            let before = spent();
            step()?;
            *least = least.min((spent() - before).as_secs_f64());
        }
    }
    Ok(least)
}

#[test]
fn no_step_costs_more_beside_the_compressor_than_it_should() -> Result<()> {
    let (request, body) = answer();
    let budget = MemoryBudget::new(usize::MAX);
    let open = chunks(&request, &decode_fetch(&request, body.clone(), &budget)?);
    let (in_zstd, in_lz4) = (
        segments(&open, Blocks::Zstd)?,
        segments(&open, Blocks::Lz4)?,
    );
    let undescribed = segments(&open, Blocks::Undescribed)?;
    let trust = Arc::<Trust>::default();
    let packed = |body: &Bytes| {
        let answer = decode_segments(&request, body.clone(), &budget, &trust)?;
        let packed = chunks(&request, &answer);
        let records: usize = packed.iter().map(|(_, chunk)| chunk.range.len()).sum();
        assert_eq!(records, PARTITIONS * RECORDS);
        anyhow::Ok(packed)
    };
    let (from_zstd, from_lz4) = (packed(&in_zstd)?, packed(&in_lz4)?);
    let total = |chunks: &[(Arc<str>, Chunk)]| {
        let lengths = chunks.iter().map(|(name, chunk)| record_bytes(name, chunk));
        lengths.sum::<u64>()
    };
    let lines = encode(Format::Jsonl, Compression::None, total(&open), &open)?;
    let build = |format, chunks: &[(Arc<str>, Chunk)]| {
        encode(format, Compression::Zstd, total(chunks), chunks).map(drop)
    };
    let read = |body| decode_segments(&request, body, &budget, &trust).map(drop);
    let steps: [Step<'_>; 8] = [
        Box::new(|| zstd_alone(&lines)),
        Box::new(|| {
            decode_fetch(&request, body.clone(), &budget)?;
            Ok(())
        }),
        Box::new(|| Ok(read(undescribed.clone())?)),
        Box::new(|| Ok(read(in_lz4.clone())?)),
        Box::new(|| build(Format::Jsonl, &from_zstd)),
        Box::new(|| build(Format::Jsonl, &from_lz4)),
        Box::new(|| build(Format::Parquet, &from_zstd)),
        Box::new(|| build(Format::Parquet, &from_lz4)),
    ];
    let least = least(&steps)?;
    let bounds = [
        ("scanning JSON", 1.8),
        ("decompressing segments", 1.7),
        ("taking segments in as they are", 0.05),
        ("JSON lines from segments of zstd", 3.2),
        ("JSON lines from segments of LZ4", 5.0),
        ("Parquet from segments of zstd", 3.0),
        ("Parquet from segments of LZ4", 4.4),
    ];
    for ((step, bound), took) in bounds.into_iter().zip(&least[1..]) {
        let ratio = took / least[0];
        println!("{step}: {ratio:.3} of zstd");
        assert!(
            ratio <= bound,
            "{step} costs {ratio:.3} of zstd, and may cost {bound}"
        );
    }
    Ok(())
}
