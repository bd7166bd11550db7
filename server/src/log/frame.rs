//! The frame of a block: its content, compressed with LZ4 or zstd. Who reads one tells them apart by the
//! number that it begins with.
//!
//! A zstd frame names the length of its content and carries its checksum. An LZ4 frame has one block and
//! names the length of its content:
//!
//! ```text
//! u32 0x184D2204 | u8 0x68 | u8 0x70 | u64 content length | u8 header checksum
//! u32 block length, with bit 31 set where the block is the content itself | block | u32 0
//! ```
//!
//! Integers are little-endian. It has no checksum of its content: the description before it is one of the
//! whole frame.

use std::cell::RefCell;
use std::str::FromStr;

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use twox_hash::XxHash32;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, compress_bound};

use super::codec::Damage;
use crate::limits::{MIB, SEGMENT_ZSTD_LEVEL};

/// How blocks are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Fast for who writes and faster for who reads.
    #[default]
    Lz4,
    /// Smaller, by a third in large segments.
    Zstd,
}

impl FromStr for Compression {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            _ => Err(()),
        }
    }
}

/// What an LZ4 frame begins with: its number; version 1, blocks that do not depend on each other, a content
/// length; blocks of up to 4 MiB.
const LZ4: [u8; 6] = *b"\x04\x22\x4d\x18\x68\x70";
/// Longest content of an LZ4 frame of one block. A block can be longer only as one record; zstd takes it.
const LZ4_CONTENT: usize = 4 * MIB;
/// Bytes before the block of an LZ4 frame.
const LZ4_HEAD: usize = LZ4.len() + 8 + 1 + 4;
/// What a block length has where the block is not compressed.
const UNCOMPRESSED: u32 = 1 << 31;

thread_local! {
    // Contexts are tens to hundreds of kilobytes: one per thread, not one per block.
    static TABLE: RefCell<CompressTable> = RefCell::new(CompressTable::large());
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Replaces what is in `frame` by the frame of `content`.
///
/// # Errors
///
/// The compressor's own, which only lack of memory brings about.
pub(super) fn compress(
    content: &[u8],
    compression: Compression,
    frame: &mut Vec<u8>,
) -> std::io::Result<()> {
    frame.clear();
    match compression {
        Compression::Lz4 if content.len() <= LZ4_CONTENT => compress_lz4(content, frame),
        Compression::Lz4 | Compression::Zstd => compress_zstd(content, frame),
    }
}

fn compress_lz4(content: &[u8], frame: &mut Vec<u8>) -> std::io::Result<()> {
    frame.extend_from_slice(&LZ4);
    frame.extend_from_slice(&(content.len() as u64).to_le_bytes());
    // The checksum of a header is the second byte of that of its description.
    frame.push((XxHash32::oneshot(0, &frame[4..]) >> 8) as u8);
    frame.resize(LZ4_HEAD + get_maximum_output_size(content.len()), 0);
    let written = TABLE
        .with_borrow_mut(|table| compress_into_with_table(content, &mut frame[LZ4_HEAD..], table));
    let mut written = written.map_err(std::io::Error::other)?;
    let mut length = written as u32;
    if written >= content.len() {
        written = content.len();
        length = written as u32 | UNCOMPRESSED;
        frame[LZ4_HEAD..LZ4_HEAD + written].copy_from_slice(content);
    }
    frame[LZ4_HEAD - 4..LZ4_HEAD].copy_from_slice(&length.to_le_bytes());
    frame.truncate(LZ4_HEAD + written);
    frame.extend_from_slice(&0_u32.to_le_bytes());
    Ok(())
}

fn compress_zstd(content: &[u8], frame: &mut Vec<u8>) -> std::io::Result<()> {
    frame.reserve(compress_bound(content.len()));
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut compressor = Compressor::new(SEGMENT_ZSTD_LEVEL)?;
            compressor.set_parameter(CParameter::ChecksumFlag(true))?;
            *slot = Some(compressor);
        }
        match slot {
            Some(compressor) => compressor.compress_to_buffer(content, frame).map(drop),
            None => unreachable!("the compressor was made above"),
        }
    })
}

/// Whether `frame` is of zstd, which every client that takes segments reads, and which tells damage by itself.
pub(super) fn is_zstd(frame: &[u8]) -> bool {
    !frame.starts_with(&LZ4[..4])
}

/// Replaces what is in `content` by the content of `frame`, which is `length` bytes long.
///
/// # Errors
///
/// [`Damage::Frame`] or [`Damage::Length`]; `content` then holds nothing of use.
pub(super) fn decompress(frame: &[u8], length: usize, content: &mut Vec<u8>) -> Result<(), Damage> {
    content.clear();
    if is_zstd(frame) {
        decompress_zstd(frame, length, content)?;
    } else {
        let told = decompress_lz4(frame, length, content);
        told.ok_or_else(|| Damage::Frame("it is no LZ4 frame of one block".into()))?;
    }
    if content.len() != length {
        return Err(Damage::Length {
            expected: length,
            found: content.len(),
        });
    }
    Ok(())
}

/// Where `frame` does not say that it has `length` bytes of content, what it says is not made room for.
fn decompress_lz4(frame: &[u8], length: usize, content: &mut Vec<u8>) -> Option<()> {
    let rest = frame.strip_prefix(&LZ4)?;
    let (told, rest) = rest.split_first_chunk()?;
    if u64::from_le_bytes(*told) != length as u64 || length > LZ4_CONTENT {
        return None;
    }
    let (block_length, rest) = rest.get(1..)?.split_first_chunk()?;
    let block_length = u32::from_le_bytes(*block_length);
    let (block, [0, 0, 0, 0]) = rest.split_last_chunk()? else {
        return None;
    };
    if block.len() != (block_length & !UNCOMPRESSED) as usize {
        return None;
    }
    if block_length & UNCOMPRESSED != 0 {
        content.extend_from_slice(block);
        return Some(());
    }
    content.resize(length, 0);
    let written = decompress_into(block, content).ok()?;
    content.truncate(written);
    Some(())
}

fn decompress_zstd(frame: &[u8], length: usize, content: &mut Vec<u8>) -> Result<(), Damage> {
    content.reserve(length);
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Some(Decompressor::new().map_err(|error| Damage::Frame(error.to_string()))?);
        }
        match slot {
            Some(decompressor) => decompressor
                .decompress_to_buffer(frame, content)
                .map(drop)
                .map_err(|error| Damage::Frame(error.to_string())),
            None => unreachable!("the decompressor was made above"),
        }
    })
}
