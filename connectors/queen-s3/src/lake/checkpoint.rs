//! The checkpoint: where each partition's reading stood after a window. A cache.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};

use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
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
    /// Sorted by name.
    pub positions: Vec<Position>,
}

/// `[name, offset, id?]`: the first offset not in any window up to `k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition's raw name.
    pub partition: String,
    /// First offset not in any window up to `k`.
    pub offset: i64,
    /// The partition's life.
    pub id: Option<Uuid>,
}

impl Serialize for Position {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.id {
            Some(id) => (&self.partition, self.offset, id.to_string()).serialize(serializer),
            None => (&self.partition, self.offset).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PositionVisitor)
    }
}

struct PositionVisitor;

impl<'de> Visitor<'de> for PositionVisitor {
    type Value = Position;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position: [name, offset] or [name, offset, id]")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Position, S::Error> {
        let partition = seq
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
        Ok(Position {
            partition,
            offset,
            id,
        })
    }
}

impl Checkpoint {
    /// The object's bytes: JSON, compressed.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut encoder = zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut json = BufWriter::new(encoder);
        serde_json::to_writer(&mut json, self)?;
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
            positions: vec![
                Position {
                    partition: "a".into(),
                    offset: 7,
                    id: None,
                },
                Position {
                    partition: "b".into(),
                    offset: 0,
                    id: Some(Uuid::from_u128(5)),
                },
            ],
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
        let read = |value: serde_json::Value| serde_json::from_value::<Position>(value);
        let plain = Position {
            partition: "p".into(),
            offset: 3,
            id: None,
        };
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
            positions in prop::collection::vec((".{0,20}", 0..i64::MAX, any::<Option<u128>>()), 0..20)
        ) {
            let positions = positions
                .into_iter()
                .map(|(partition, offset, id)| Position { partition, offset, id: id.map(Uuid::from_u128) })
                .collect();
            let written = Checkpoint { k: 1, t_end: 2, positions };
            let object = written.encode().expect("it encodes");
            prop_assert_eq!(Checkpoint::decode(&object).expect("it decodes"), written);
        }
    }
}
