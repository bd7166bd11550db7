//! Sets of 64-bit fingerprints: one that grows, and one that is small.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use uuid::Uuid;

/// The fingerprint of an id; `None` for the zeros of a record without one.
pub fn fingerprint(id: &Uuid) -> Option<u64> {
    let (high, low) = id.as_u64_pair();
    (high != 0 || low != 0).then_some(high)
}

/// Ids are hashes already.
#[derive(Debug, Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only 64-bit numbers are hashed");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A set that grows.
#[derive(Debug, Default)]
pub struct Open(HashSet<u64, BuildHasherDefault<AsIs>>);

impl Open {
    pub fn insert(&mut self, print: u64) {
        self.0.insert(print);
    }

    pub fn contains(&self, print: u64) -> bool {
        self.0.contains(&print)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A slot is a number and a byte; a table is seven eighths full at most.
    pub fn bytes(&self) -> usize {
        (self.0.capacity() * 8 / 7).next_power_of_two() * 9
    }
}

/// A set that does not change, in about 5 bytes a fingerprint: the first bits say where it stands, and
/// the 32 after them are kept. It may hold one that was never in it, once in billions of looks.
#[derive(Debug)]
pub struct Sealed {
    bits: u32,
    starts: Box<[u32]>,
    rests: Box<[u32]>,
}

impl Sealed {
    pub fn of(open: Open) -> Self {
        let mut prints: Vec<u64> = open.0.into_iter().collect();
        prints.sort_unstable();
        // About eight in a row.
        let bits = (prints.len() / 8).max(2).ilog2();
        let mut starts = vec![0; (1 << bits) + 1];
        for print in &prints {
            starts[row(*print, bits) + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Self {
            bits,
            starts: starts.into(),
            rests: prints.iter().map(|print| rest(*print, bits)).collect(),
        }
    }

    pub fn contains(&self, print: u64) -> bool {
        let row = row(print, self.bits);
        let (start, end) = (self.starts[row] as usize, self.starts[row + 1] as usize);
        self.rests[start..end].contains(&rest(print, self.bits))
    }

    pub fn len(&self) -> usize {
        self.rests.len()
    }

    pub fn bytes(&self) -> usize {
        (self.starts.len() + self.rests.len()) * size_of::<u32>()
    }
}

fn row(print: u64, bits: u32) -> usize {
    (print >> (64 - bits)) as usize
}

fn rest(print: u64, bits: u32) -> u32 {
    (print << bits >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_set_holds_what_the_open_one_held_and_hardly_anything_else() {
        for count in [0, 1, 2, 15, 16, 17, 1_000, 20_000] {
            let mut open = Open::default();
            // Spread like hashes; a multiple of an odd number repeats none.
            let print = |n: u64| n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..count).for_each(|n| open.insert(print(n)));
            assert_eq!(open.len() as u64, count);
            let sealed = Sealed::of(open);
            assert!((0..count).all(|n| sealed.contains(print(n))), "{count}");
            let others = (count..count + 100_000).filter(|n| sealed.contains(print(*n)));
            assert_eq!(others.count(), 0, "{count}");
            assert!(sealed.bytes() as u64 <= 5 * count + 40, "{count}");
        }
    }

    #[test]
    fn the_zeros_of_a_record_without_an_id_have_no_fingerprint() {
        assert_eq!(fingerprint(&Uuid::nil()), None);
        assert_eq!(fingerprint(&Uuid::from_u128(7 << 64)), Some(7));
        assert_eq!(fingerprint(&Uuid::from_u128(7)), Some(0));
    }
}
