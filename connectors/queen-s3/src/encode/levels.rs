//! Definition levels of an optional column: one bit for each row, in Parquet's hybrid of runs and packed bits.
//!
//! ```text
//! u32 length | runs
//! run: LEB128 (rows << 1) | u8 bit           of rows that are the same
//!      u8 (groups << 1 | 1) | u8 of each     of eight rows each, the first one in the lowest bit
//! ```
//!
//! Which of the two stands where is free; here it is as the Parquet library has it.

/// Rows that are packed together.
const GROUP: usize = 8;
/// Groups after which a run of packed ones ends, so that its header is one byte.
const RUN_GROUPS: usize = 63;

/// Greatest length of the levels of so many rows.
pub(super) const fn levels_most_bytes(rows: usize) -> usize {
    // Each run, and each group by itself, is of eight rows or more but for the last one, and takes two bytes for
    // each eight of them at most.
    size_of::<u32>() + 2 * rows.div_ceil(GROUP)
}

/// Appends the levels of rows of which each is present or not.
pub(super) fn append_levels(present: &[bool], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(&[0; size_of::<u32>()]);
    let mut packed = [0_u8; RUN_GROUPS];
    let mut groups = 0;
    let mut rest = present;
    while let Some(&first) = rest.first() {
        let group = &rest[..rest.len().min(GROUP)];
        let same = group.iter().all(|bit| *bit == first);
        // What is left after packed groups is packed with them.
        if same && (group.len() == GROUP || groups == 0) {
            append_packed(&packed[..groups], to);
            groups = 0;
            let run = rest.iter().take_while(|bit| **bit == first).count();
            append_number((run as u64) << 1, to);
            to.push(u8::from(first));
            rest = &rest[run..];
        } else {
            let bits = group.iter().rev();
            packed[groups] = bits.fold(0, |bits, bit| bits << 1 | u8::from(*bit));
            groups += 1;
            if groups == RUN_GROUPS {
                append_packed(&packed, to);
                groups = 0;
            }
            rest = &rest[group.len()..];
        }
    }
    append_packed(&packed[..groups], to);
    let length = (to.len() - start - size_of::<u32>()) as u32;
    to[start..start + size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
}

fn append_packed(groups: &[u8], to: &mut Vec<u8>) {
    if !groups.is_empty() {
        to.push((groups.len() << 1 | 1) as u8);
        to.extend_from_slice(groups);
    }
}

fn append_number(mut number: u64, to: &mut Vec<u8>) {
    while number >= 1 << 7 {
        to.push(number as u8 | 1 << 7);
        number >>= 7;
    }
    to.push(number as u8);
}
