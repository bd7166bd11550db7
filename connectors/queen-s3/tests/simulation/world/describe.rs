//! Descriptions of blocks, as brokers store them before their frames.

use crc32c::crc32c;

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
