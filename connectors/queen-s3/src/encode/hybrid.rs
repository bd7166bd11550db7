//! Parquet's hybrid of runs and packed bits: levels, of one bit, and numbers in a dictionary.
//!
//! ```text
//! run: LEB128 (values << 1) | the value, in whole bytes            of values that are the same
//!      u8 (groups << 1 | 1) | the values of each, bit by bit       of eight values each, the lowest bits first
//! ```
//!
//! Which of the two stands where is free; here it is as the Parquet library has it.

/// Values that are packed together.
const GROUP: usize = 8;
/// Groups after which a run of packed ones ends, so that its header is one byte.
const RUN_GROUPS: usize = 63;

/// Greatest length of the [levels](append_levels) of so many rows.
pub(super) const fn levels_most_bytes(rows: usize) -> usize {
    // Each run, and each group by itself, is of eight rows or more but for the last one, and takes two bytes for
    // each eight of them at most.
    size_of::<u32>() + 2 * rows.div_ceil(GROUP)
}

/// Appends the definition levels of rows of which each is present or not, and before them their length.
pub(super) fn append_levels(present: &[bool], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(&[0; size_of::<u32>()]);
    append_runs(present, 1, to);
    let length = (to.len() - start - size_of::<u32>()) as u32;
    to[start..start + size_of::<u32>()].copy_from_slice(&length.to_le_bytes());
}

/// Appends `values`, each of which fits in `width` bits.
pub(super) fn append_runs<T>(values: &[T], width: u32, to: &mut Vec<u8>)
where
    T: Copy + PartialEq + Into<u32>,
{
    let mut rest = values;
    // Packed groups that the last header in `to` is of, and where it stands.
    let (mut groups, mut header) = (0, to.len());
    while let Some(&first) = rest.first() {
        let group = &rest[..rest.len().min(GROUP)];
        let same = group.iter().all(|value| *value == first);
        // What is left after packed groups is packed with them.
        if same && (group.len() == GROUP || groups == 0) {
            groups = 0;
            let run = rest.iter().take_while(|value| **value == first).count();
            append_number((run as u64) << 1, to);
            let value: u32 = first.into();
            to.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
            rest = &rest[run..];
            continue;
        }
        if groups == 0 {
            header = to.len();
            to.push(0);
        }
        append_packed(group, width, to);
        groups += 1;
        to[header] = (groups << 1 | 1) as u8;
        groups %= RUN_GROUPS;
        rest = &rest[group.len()..];
    }
}

/// Appends a group, with zeros for the values that it lacks.
fn append_packed<T: Copy + Into<u32>>(group: &[T], width: u32, to: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0);
    let values = group.iter().map(|value| u64::from((*value).into()));
    for value in values.chain([0; GROUP]).take(GROUP) {
        bits |= value << count;
        count += width;
        while count >= 8 {
            to.push(bits as u8);
            bits >>= 8;
            count -= 8;
        }
    }
}

fn append_number(mut number: u64, to: &mut Vec<u8>) {
    while number >= 1 << 7 {
        to.push(number as u8 | 1 << 7);
        number >>= 7;
    }
    to.push(number as u8);
}
