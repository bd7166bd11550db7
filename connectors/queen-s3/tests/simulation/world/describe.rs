//! Frames of blocks, and the descriptions that brokers store before them.

use std::io::Write;

use crc32c::crc32c;
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

/// `content` in a frame of LZ4, which is read behind a description alone.
pub fn lz4(content: &[u8]) -> Vec<u8> {
    let options = FrameInfo::new()
        .block_mode(BlockMode::Independent)
        .block_size(BlockSize::Max4MB)
        .content_size(Some(content.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(options, Vec::new());
    encoder.write_all(content).expect("room in memory");
    encoder.finish().expect("room in memory")
}

/// `frame` behind a description of the ids, as JSON strings, and payloads in it; `told` is the frame whose
/// checksum it names.
pub fn described<'a>(
    records: impl Iterator<Item = (&'a str, &'a str)>,
    frame: &[u8],
    told: &[u8],
) -> Vec<u8> {
    let (mut escapes, mut empty) = (0, 0_u32);
    for (id, payload) in records {
        escapes |= u8::from(id.contains('\\'));
        empty += u32::from(payload.is_empty());
    }
    let [a, b, c, d] = empty.to_le_bytes();
    let said = [1, escapes, a, b, c, d];
    let checksum = crc32c(&[&said, told].concat());
    let head = b"\x5a\x2a\x4d\x18\x0a\0\0\0";
    [head, &said[..], &checksum.to_le_bytes(), frame].concat()
}
