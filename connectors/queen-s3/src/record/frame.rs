//! The frame of a block: its content, compressed with zstd or LZ4. One tells them apart by the number that
//! it begins with.
//!
//! A frame of zstd names the length of its content and carries its checksum. One of LZ4 has a single block:
//!
//! ```text
//! u32 0x184D2204 | u8 0x68 | u8 0x70 | u64 content length | u8 header checksum
//! u32 block length, with bit 31 set where the block is the content itself | block | u32 0
//! ```
//!
//! Integers are little-endian. Its checksum is that of the description before it; without one it is not read.

use std::cell::RefCell;
use std::io::Cursor;

use lz4_flex::block::decompress_into;
use zstd::zstd_safe::{DCtx, get_frame_content_size};

use super::packed::NULL;
use crate::limits::LZ4_CONTENT_BYTES;

/// What a frame of LZ4 begins with: its number; version 1, blocks that do not depend on each other, a content
/// length; blocks of up to 4 MiB.
const LZ4: &[u8] = b"\x04\x22\x4d\x18\x68\x70";
/// What the length of an LZ4 block has where the block is not compressed.
const UNCOMPRESSED: u32 = 1 << 31;

thread_local! {
    // A context is hundreds of kilobytes: one for each thread, not for each block.
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Whether `frame` is one of zstd, and so tells damage by itself.
pub(super) fn is_zstd(frame: &[u8]) -> bool {
    !frame.starts_with(&LZ4[..4])
}

/// The length of the content of `frame`, if it says one.
pub(super) fn content_bytes(frame: &[u8]) -> Option<u64> {
    if is_zstd(frame) {
        return get_frame_content_size(frame).ok().flatten();
    }
    let length = frame.strip_prefix(LZ4)?.first_chunk()?;
    Some(u64::from_le_bytes(*length))
}

/// Decompresses `frame`, whose content is `raw_bytes` long, behind what is in `body`.
pub(super) fn decompress(frame: &[u8], raw_bytes: usize, body: &mut Vec<u8>) -> Option<()> {
    if content_bytes(frame) != Some(raw_bytes as u64) {
        return None;
    }
    let start = body.len();
    // And room for `null`.
    body.reserve(raw_bytes + NULL.len());
    let written = match is_zstd(frame) {
        true => decompress_zstd(frame, body),
        false => decompress_lz4(frame, raw_bytes, body),
    };
    let whole = written == Some(raw_bytes) && body.len() == start + raw_bytes;
    whole.then_some(())
}

fn decompress_zstd(frame: &[u8], body: &mut Vec<u8>) -> Option<usize> {
    let end = body.len() as u64;
    let mut output = Cursor::new(body);
    output.set_position(end);
    DECOMPRESSOR.with_borrow_mut(|context| context.decompress(&mut output, frame).ok())
}

fn decompress_lz4(frame: &[u8], raw_bytes: usize, body: &mut Vec<u8>) -> Option<usize> {
    if raw_bytes > LZ4_CONTENT_BYTES {
        return None;
    }
    // Behind the content length and the checksum of the header.
    let (length, rest) = frame.get(LZ4.len() + 9..)?.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let (block, [0, 0, 0, 0]) = rest.split_last_chunk()? else {
        return None;
    };
    if block.len() != (length & !UNCOMPRESSED) as usize {
        return None;
    }
    if length & UNCOMPRESSED != 0 {
        body.extend_from_slice(block);
        return Some(block.len());
    }
    let start = body.len();
    body.resize(start + raw_bytes, 0);
    decompress_into(block, &mut body[start..]).ok()
}
