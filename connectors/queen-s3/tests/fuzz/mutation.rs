//! Changes of inputs, the same from the same seed.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Bytes that mean something to one of the readers.
const WORDS: [&[u8]; 48] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b",",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\t",
    b"\\",
    b"/",
    b"%",
    b"%2",
    b"%2F",
    b"-",
    b"+",
    b".",
    b"..",
    b"0",
    b"-0",
    b"-1",
    b"1e999",
    b"1.5",
    b"null",
    b"true",
    b"false",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"\\u0000",
    b"\\ud800",
    b"\\udc00\\ud800",
    b"\xff",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"\xf0\x9f\xa6\x80",
    b"\0",
    b"2026-09-04T10:03:41.918204Z",
    b"9999-12-31T23:59:59.999999Z",
    b"-009999-01-01T00:00:00Z",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":",
    b"<",
    b"\x28\xb5\x2f\xfd",
    b"\x1f\x8b",
];

/// Makes inputs from a corpus.
pub struct Mutator<'a> {
    dice: Xoshiro256PlusPlus,
    corpus: &'a [Vec<u8>],
    longest: usize,
}

impl<'a> Mutator<'a> {
    pub fn new(seed: u64, corpus: &'a [Vec<u8>], longest: usize) -> Self {
        Self {
            dice: Xoshiro256PlusPlus::seed_from_u64(seed),
            corpus,
            longest,
        }
    }

    /// An input of the corpus with one change or a few.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.of_the_corpus().to_vec();
        // Most with one change: of two, the first is hidden by the second often enough.
        let changes = match self.dice.random_range(0..10) {
            0..6 => 1,
            6..9 => 2,
            _ => self.dice.random_range(3..12),
        };
        for _ in 0..changes {
            self.change(&mut input);
        }
        input.truncate(self.longest);
        input
    }

    fn of_the_corpus(&mut self) -> &'a [u8] {
        self.corpus
            .choose(&mut self.dice)
            .map_or(&[], Vec::as_slice)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.place(input.len() + 1);
        match self.dice.random_range(0..10) {
            0 => self.on_a_byte(input, |byte, dice| *byte ^= 1 << dice.random_range(0..8)),
            1 => self.on_a_byte(input, |byte, dice| *byte = dice.random()),
            2 => insert(input, at, self.word()),
            3 => {
                let stretch = self.stretch(input);
                input.drain(stretch);
            }
            4 => {
                let stretch = self.stretch(input);
                let copy = input[stretch].to_vec();
                insert(input, at, &copy);
            }
            5 => {
                let stretch = self.stretch(input);
                let word = self.word();
                input.splice(stretch, word.iter().copied());
            }
            6 => {
                let other = self.of_the_corpus();
                let from = self.place(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            7 => self.on_a_token(input),
            8 => self.on_a_number(input),
            _ => input.truncate(at),
        }
    }

    fn word(&mut self) -> &'static [u8] {
        WORDS.choose(&mut self.dice).copied().unwrap_or_default()
    }

    fn place(&mut self, length: usize) -> usize {
        self.dice.random_range(0..length)
    }

    /// A short stretch, or any.
    fn stretch(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.place(input.len() + 1);
        let left = input.len() - from;
        let most = if self.dice.random_bool(0.8) {
            left.min(16)
        } else {
            left
        };
        from..from + self.place(most + 1)
    }

    fn on_a_byte(
        &mut self,
        input: &mut [u8],
        change: impl FnOnce(&mut u8, &mut Xoshiro256PlusPlus),
    ) {
        if !input.is_empty() {
            let at = self.place(input.len());
            change(&mut input[at], &mut self.dice);
        }
    }

    /// Puts one token where another stands: what is between two marks stays well formed.
    fn on_a_token(&mut self, input: &mut Vec<u8>) {
        let other = self.of_the_corpus();
        let (there, here) = (tokens(other), tokens(input));
        let pair = (there.choose(&mut self.dice), here.choose(&mut self.dice));
        if let (Some(there), Some(here)) = pair {
            input.splice(here.clone(), other[there.clone()].iter().copied());
        }
    }

    /// Changes a number by a little, or for one that is at an end of a range.
    fn on_a_number(&mut self, input: &mut Vec<u8>) {
        let numbers: Vec<_> = tokens(input)
            .into_iter()
            .filter(|token| input[token.clone()].iter().all(u8::is_ascii_digit))
            .collect();
        let Some(number) = numbers.choose(&mut self.dice).cloned() else {
            return;
        };
        let known = String::from_utf8_lossy(&input[number.clone()]).parse::<i128>();
        let ends = [
            0,
            1,
            i128::from(i64::MAX),
            i128::from(i64::MIN),
            i128::from(u64::MAX),
        ];
        let base = match self.dice.random_bool(0.7) {
            true => known.unwrap_or_default(),
            false => ends.choose(&mut self.dice).copied().unwrap_or_default(),
        };
        let changed = base.saturating_add(self.dice.random_range(-2..=2));
        input.splice(number, changed.to_string().into_bytes());
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// Runs of letters, digits and what names and times have between them; and whole quoted texts.
fn tokens(input: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut tokens = Vec::new();
    let mut start = None;
    for (at, byte) in input.iter().enumerate() {
        let inside = byte.is_ascii_alphanumeric() || b"_-.:".contains(byte) || *byte >= 0x80;
        match (inside, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                tokens.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    tokens.extend(start.map(|from| from..input.len()));
    tokens
}

#[test]
fn inputs_follow_from_their_seed_and_stay_within_their_length() {
    let corpus = [br#"{"a":12,"b":"text"}"#.to_vec(), vec![b'x'; 500]];
    let made = |seed| {
        let mut mutator = Mutator::new(seed, &corpus, 300);
        (0..500).map(|_| mutator.next_input()).collect::<Vec<_>>()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
    assert!(made(1).iter().all(|input| input.len() <= 300));
    assert_eq!(Mutator::new(1, &[], 10).next_input().len(), 0);
}
