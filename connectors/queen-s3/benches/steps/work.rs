//! What the steps of the sink are measured over: one fetch answer of realistic records, in each form, and
//! what is made of it.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use crc32c::crc32c;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use queen_s3::broker::{FetchAnswer, FetchEntry, FetchRequest};
use queen_s3::encode::{ObjectEncoder, ObjectSpec};
use queen_s3::lake::{Compression, Format};
use queen_s3::limits::{ENCODE_MAX_WORKERS, PART_BYTES};
use queen_s3::record::{Chunk, Damaged, Unpacked};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

pub const PARTITIONS: usize = 1_000;
pub const RECORDS: usize = 150;
/// Records of a segment.
const SEGMENT: usize = 100;

/// A fetch answer of realistic records, and its request.
pub fn answer() -> (FetchRequest, Bytes) {
    let mut entries = Vec::new();
    let mut body = String::from(r#"{"entries":["#);
    for partition in 0..PARTITIONS {
        let name = format!("customer-{partition:06}");
        let comma = if partition == 0 { "" } else { "," };
        let _ = write!(
            body,
            r#"{comma}{{"queue":"orders","partition":"{name}","records":["#
        );
        for offset in 0..RECORDS {
            let comma = if offset == 0 { "" } else { "," };
            let seed = (partition * 7_919 + offset * 104_729) % 1_000_003;
            let _ = write!(
                body,
                r#"{comma}{{"offset":{offset},"transactionId":"01J{seed:022}","payload":{{"order":"{seed:08}","customer":{partition},"status":"{}","items":[{{"sku":"A-{:05}","count":{},"price":{}.{:02}}},{{"sku":"B-{:05}","count":1,"price":19.90}}],"address":{{"street":"Lindenallee {}","zip":"{:05}","city":"Heidelberg","country":"DE"}},"note":"please ring twice, the bell is the second from the top"}},"ts":"2026-09-04T10:{:02}:{:02}.{:06}Z"}}"#,
                ["placed", "paid", "packed", "shipped"][offset % 4],
                seed % 99_991,
                offset % 9 + 1,
                seed % 500,
                seed % 100,
                seed % 88_883,
                seed % 211,
                seed % 99_999,
                offset / 60,
                offset % 60,
                seed % 1_000_000 / 100_000 * 100_000,
            );
        }
        let _ = write!(body, r#"],"highWatermark":{RECORDS},"logStartOffset":0}}"#);
        entries.push(FetchEntry {
            partition: name.into(),
            offset: 0,
            max_bytes: 1 << 20,
        });
    }
    body.push_str("]}");
    let request = FetchRequest {
        queue: "orders".into(),
        entries,
        max_wait_ms: 0,
    };
    (request, body.into())
}

/// How a broker compresses the segments that it sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// With zstd, and no descriptions of them: they are decompressed when they arrive.
    Undescribed,
    /// With zstd.
    Zstd,
    /// With LZ4.
    Lz4,
}

/// The same answer as a broker that sends its segments gives it.
pub fn segments(chunks: &[(Arc<str>, Chunk)], blocks: Blocks) -> Result<Bytes> {
    let mut compressor = Compressor::new(1)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut body = b"QSEG\x04".to_vec();
    body.extend((chunks.len() as u32).to_le_bytes());
    for (partition, chunk) in chunks {
        for name in ["orders", partition] {
            body.extend((name.len() as u16).to_le_bytes());
            body.extend(name.as_bytes());
        }
        body.extend(i64::from(chunk.range.len() as u32).to_le_bytes());
        body.extend(0_i64.to_le_bytes());
        body.extend([0; 16]);
        for start in chunk.range.clone().step_by(SEGMENT) {
            let records = chunk.part(start..chunk.range.end.min(start + SEGMENT as u32));
            let mut content = vec![1];
            records.each(&mut Unpacked::default(), |record| {
                let (id, payload) = (record.transaction_id, record.payload);
                content.extend((id.len() as u32 + 2).to_le_bytes());
                content.extend((payload.len() as u32).to_le_bytes());
                content.extend([b"\"", id, b"\"", payload].concat());
                Ok::<_, Damaged>(())
            })?;
            let mut block = match blocks {
                Blocks::Lz4 => lz4(&content)?,
                Blocks::Zstd | Blocks::Undescribed => compressor.compress(&content)?,
            };
            if blocks != Blocks::Undescribed {
                let head = b"\x5a\x2a\x4d\x18\x0a\0\0\0\x01\0\0\0\0\0";
                let checksum = crc32c(&[&head[8..], &block].concat()).to_le_bytes();
                block.splice(..0, head.iter().copied().chain(checksum));
            }
            let first = records.first().context("a segment has records")?;
            body.push(1);
            body.extend(first.offset.to_le_bytes());
            body.extend(first.ts.0.to_le_bytes());
            body.extend((records.range.len() as u32).to_le_bytes());
            body.extend((content.len() as u32).to_le_bytes());
            body.extend((block.len() as u32).to_le_bytes());
            body.extend(block);
        }
        body.extend([0, 0]);
    }
    Ok(body.into())
}

fn lz4(content: &[u8]) -> Result<Vec<u8>> {
    let options = FrameInfo::new()
        .block_mode(BlockMode::Independent)
        .block_size(BlockSize::Max4MB)
        .content_size(Some(content.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(options, Vec::new());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

/// The chunks of an answer to `request`.
pub fn chunks(request: &FetchRequest, answer: &FetchAnswer) -> Vec<(Arc<str>, Chunk)> {
    let all = Chunk::whole(&answer.batch);
    let entries = request.entries.iter().zip(&answer.entries);
    entries
        .map(|(asked, entry)| {
            (
                Arc::clone(&asked.partition),
                all.part(entry.records.clone()),
            )
        })
        .collect()
}

pub fn encode(
    format: Format,
    compression: Compression,
    record_bytes: u64,
    chunks: &[(Arc<str>, Chunk)],
) -> Result<Vec<u8>> {
    let spec = ObjectSpec {
        format,
        compression,
        queue: "orders".to_owned(),
        record_bytes,
        workers: ENCODE_MAX_WORKERS,
        part_bytes: PART_BYTES,
    };
    let mut encoder = ObjectEncoder::new(&spec)?;
    let mut object = Vec::new();
    for (name, chunk) in chunks {
        encoder.push(name, chunk)?;
        while let Some(part) = encoder.take_part() {
            object.extend_from_slice(&part);
        }
    }
    let (rest, _) = encoder.finish()?;
    rest.iter().for_each(|part| object.extend_from_slice(part));
    Ok(object)
}

/// Compresses `lines` with zstd, level 3, one worker.
pub fn zstd_alone(lines: &[u8]) -> Result<()> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3)?;
    encoder.multithread(1)?;
    encoder.write_all(lines)?;
    black_box(encoder.finish()?);
    Ok(())
}
