//! The checkpoint: where each partition's reading stood after a window. A cache.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};

use serde::de::{self, DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::limits::{CHECKPOINT_BYTES, ZSTD_LEVEL};

/// Positions after window `k`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// The window.
    pub k: u64,
    /// The pointer's end when it was taken, µs.
    pub t_end: i64,
    /// Sorted by name in the object.
    pub positions: Positions,
}

/// Where reading goes on in one partition: the first offset not in any window up to `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position<'a> {
    /// The partition's raw name.
    pub partition: &'a str,
    /// First offset not in any window up to `k`.
    pub offset: i64,
    /// The partition's life.
    pub id: Option<Uuid>,
}

/// Any number of positions, in one piece of memory for all names and one for the rest: there may be
/// millions.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    names: String,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: usize,
    offset: i64,
    id: Option<Uuid>,
    length: u32,
}

impl Positions {
    /// None yet, with room for `partitions` whose names take `name_bytes`.
    pub fn with_capacity(partitions: usize, name_bytes: usize) -> Self {
        Self {
            names: String::with_capacity(name_bytes),
            entries: Vec::with_capacity(partitions),
        }
    }

    /// Appends a position.
    pub fn push(&mut self, position: Position<'_>) {
        let at = self.names.len();
        self.names.push_str(position.partition);
        self.entries.push(Entry {
            at,
            offset: position.offset,
            id: position.id,
            length: position.partition.len() as u32,
        });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Position<'_>> {
        self.entries.iter().map(|entry| Position {
            partition: name(&self.names, entry),
            offset: entry.offset,
            id: entry.id,
        })
    }

    /// Sorts them by name (bytes).
    pub fn sort(&mut self) {
        let names = &self.names;
        self.entries
            .sort_unstable_by(|a, b| name(names, a).cmp(name(names, b)));
    }
}

fn name<'a>(names: &'a str, entry: &Entry) -> &'a str {
    &names[entry.at..entry.at + entry.length as usize]
}

impl PartialEq for Positions {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a> FromIterator<Position<'a>> for Positions {
    fn from_iter<I: IntoIterator<Item = Position<'a>>>(positions: I) -> Self {
        let mut all = Self::default();
        positions
            .into_iter()
            .for_each(|position| all.push(position));
        all
    }
}

impl Serialize for Positions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// `[name, offset, id?]`.
impl Serialize for Position<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut uuid = Uuid::encode_buffer();
        match &self.id {
            Some(id) => {
                let id: &str = id.hyphenated().encode_lower(&mut uuid);
                (self.partition, self.offset, id).serialize(serializer)
            }
            None => (self.partition, self.offset).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Positions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PositionsVisitor)
    }
}

struct PositionsVisitor;

impl<'de> Visitor<'de> for PositionsVisitor {
    type Value = Positions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("positions")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Positions, S::Error> {
        let mut positions = Positions::default();
        while seq.next_element_seed(Append(&mut positions))?.is_some() {}
        Ok(positions)
    }
}

/// Reads one position and appends it.
struct Append<'a>(&'a mut Positions);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position: [name, offset] or [name, offset, id]")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<(), S::Error> {
        let partition: String = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(0, &self))?;
        let offset: i64 = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(1, &self))?;
        if offset < 0 {
            return Err(de::Error::custom(format!("a position below 0: {offset}")));
        }
        let id: Option<String> = seq.next_element()?.flatten();
        let id = id
            .as_deref()
            .map(Uuid::try_parse)
            .transpose()
            .map_err(de::Error::custom)?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.0.push(Position {
            partition: &partition,
            offset,
            id,
        });
        Ok(())
    }
}

impl Checkpoint {
    /// The object's bytes: JSON, compressed, the positions sorted.
    pub fn encode(mut self) -> io::Result<Vec<u8>> {
        self.positions.sort();
        let mut encoder = zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut json = BufWriter::new(encoder);
        serde_json::to_writer(&mut json, &self)?;
        json.flush()?;
        json.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .finish()
    }

    /// Reads an object's bytes. Fails on damage, and on more than [`CHECKPOINT_BYTES`] of JSON,
    /// whatever the compressed length.
    pub fn decode(object: &[u8]) -> io::Result<Self> {
        Self::decode_at_most(object, CHECKPOINT_BYTES)
    }

    fn decode_at_most(object: &[u8], limit: u64) -> io::Result<Self> {
        let json = zstd::Decoder::with_buffer(object)?;
        let mut json = BufReader::new(json.take(limit));
        let checkpoint = serde_json::from_reader(&mut json)?;
        Ok(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            k: 20,
            t_end: 1_788_516_000_000_000,
            positions: Positions::from_iter([
                Position {
                    partition: "a",
                    offset: 7,
                    id: None,
                },
                Position {
                    partition: "b",
                    offset: 0,
                    id: Some(Uuid::from_u128(5)),
                },
            ]),
        }
    }

    #[test]
    fn a_checkpoint_is_written_as_the_lake_spells_it() {
        let object = checkpoint().encode().expect("it encodes");
        let json = zstd::decode_all(&object[..]).expect("zstd");
        assert_eq!(
            String::from_utf8(json).expect("UTF-8"),
            r#"{"k":20,"tEnd":1788516000000000,"positions":[["a",7],["b",0,"00000000-0000-0000-0000-000000000005"]]}"#
        );
        assert_eq!(
            Checkpoint::decode(&object).expect("it decodes"),
            checkpoint()
        );
    }

    #[test]
    fn a_position_may_lack_an_id_or_carry_more_than_this_version_knows() {
        let read = |value: serde_json::Value| serde_json::from_value::<Positions>(json!([value]));
        let plain = Positions::from_iter([Position {
            partition: "p",
            offset: 3,
            id: None,
        }]);
        assert_eq!(read(json!(["p", 3])).expect("it reads"), plain);
        assert_eq!(read(json!(["p", 3, null])).expect("it reads"), plain);
        assert_eq!(
            read(json!(["p", 3, null, {"new": 1}])).expect("it reads"),
            plain
        );
        for value in [
            json!(["p"]),
            json!([]),
            json!(["p", -1]),
            json!([3, 3]),
            json!(["p", 3, "x"]),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
    }

    #[test]
    fn a_checkpoint_that_expands_past_the_limit_is_refused() {
        let object = checkpoint().encode().expect("it encodes");
        let json_bytes = zstd::decode_all(&object[..]).expect("zstd").len() as u64;
        assert!(Checkpoint::decode_at_most(&object, json_bytes).is_ok());
        assert!(Checkpoint::decode_at_most(&object, json_bytes - 1).is_err());
    }

    #[test]
    fn a_damaged_checkpoint_is_refused() {
        let object = checkpoint().encode().expect("it encodes");
        for at in 0..object.len() {
            let mut damaged = object.clone();
            damaged[at] ^= 0x55;
            let read = Checkpoint::decode(&damaged);
            assert!(read.is_err() || at < 9, "a changed byte {at} went unseen");
            assert!(Checkpoint::decode(&object[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_positions_survive_writing_and_reading(
            positions in prop::collection::btree_map(".{0,20}", (0..i64::MAX, any::<Option<u128>>()), 0..20)
        ) {
            let position = |(partition, (offset, id)): (&'_ String, &'_ (i64, Option<u128>))| (
                partition.clone(), *offset, id.map(Uuid::from_u128)
            );
            let sorted: Vec<_> = positions.iter().map(position).collect();
            let positions = sorted.iter().rev().map(|(partition, offset, id)| Position {
                partition, offset: *offset, id: *id
            });
            let written = Checkpoint { k: 1, t_end: 2, positions: positions.collect() };
            let object = written.encode().expect("it encodes");
            let read = Checkpoint::decode(&object).expect("it decodes").positions;
            let read: Vec<_> = read.iter().map(|one| (one.partition.to_owned(), one.offset, one.id)).collect();
            prop_assert_eq!(read, sorted);
        }
    }
}
