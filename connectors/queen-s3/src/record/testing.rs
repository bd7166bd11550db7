//! Records and blocks for tests.

use std::io::Write;
use std::sync::Arc;

use crc32c::crc32c;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::{Batch, Chunk, Damaged, Unpacked};
use crate::time::Micros;

/// A record as it was read: offset, `ts`, id as the broker escaped it, payload.
pub(crate) type Told = (i64, Micros, Vec<u8>, Vec<u8>);

/// The records of `chunk`.
pub(crate) fn told(chunk: &Chunk) -> Result<Vec<Told>, Damaged> {
    let mut told = Vec::new();
    chunk.each(&mut Unpacked::default(), |record| {
        let texts = (record.transaction_id.to_vec(), record.payload.to_vec());
        told.push((record.offset, record.ts, texts.0, texts.1));
        Ok::<_, Damaged>(())
    })?;
    Ok(told)
}

/// All records of `batch`.
pub(crate) fn all(batch: &Arc<Batch>) -> Vec<Told> {
    told(&Chunk::whole(batch)).expect("no block of it is damaged")
}

/// A zstd frame as a broker makes them.
pub(crate) fn compressed(content: &[u8]) -> Vec<u8> {
    let mut compressor = Compressor::new(1).expect("memory");
    let checksum = CParameter::ChecksumFlag(true);
    compressor.set_parameter(checksum).expect("a parameter");
    compressor.compress(content).expect("memory")
}

/// An LZ4 frame with the options of a broker's, as another encoder makes it.
pub(crate) fn compressed_lz4(content: &[u8]) -> Vec<u8> {
    let options = FrameInfo::new()
        .block_mode(BlockMode::Independent)
        .block_size(BlockSize::Max4MB)
        .content_size(Some(content.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(options, Vec::new());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

/// `frame` behind a description with these figures, and a checksum that is right.
pub(crate) fn described(ids: u8, empty_payloads: u32, frame: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = empty_payloads.to_le_bytes();
    let told = [1, ids, a, b, c, d];
    let checksum = crc32c(&[&told, frame].concat());
    let head = b"\x5a\x2a\x4d\x18\x0a\0\0\0";
    [head, &told[..], &checksum.to_le_bytes(), frame].concat()
}
