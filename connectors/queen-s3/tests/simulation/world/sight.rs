//! What a process knows: which records its reading state was shown, and so owes the lake.

use std::collections::{BTreeMap, BTreeSet};

use queen_s3::broker::Name;
use serde_json::Value;

/// One partition's life as a listing or a fetch tells it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its name.
    pub name: Name,
    /// Its life.
    pub life: u128,
    /// First offset still held.
    pub log_start: i64,
    /// Next offset to be assigned.
    pub end: i64,
}

/// The sight of one reading state of one process, for one queue.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// The checker's count when the reading state was made.
    pub made_at: u64,
    /// By life, the offsets `from..end` that were there when the state met it, or since.
    lives: BTreeMap<u128, (i64, i64)>,
    /// The same, as far as the present engine was shown it.
    present: BTreeMap<u128, (i64, i64)>,
    /// Lives that an answer showed.
    met: BTreeSet<u128>,
    /// By partition, the life that a listing showed last.
    listed: BTreeMap<Name, u128>,
    /// Lives in whose place another one was read, as no answer told.
    mistaken: BTreeSet<u128>,
}

impl Sight {
    /// The sight of a reading state that is made now and knows nothing.
    pub fn new(made_at: u64) -> Self {
        Self {
            made_at,
            ..Self::default()
        }
    }

    /// Another engine takes over what was shown.
    pub fn hand_on(&mut self) {
        self.present.clear();
    }

    /// Whether `offset` of `life` was shown to former engines alone.
    pub fn was_handed_on(&self, life: u128, offset: i64) -> bool {
        let present = self.present.get(&life);
        !present.is_some_and(|(from, end)| (*from..*end).contains(&offset))
    }

    /// Takes in what an answer showed.
    pub fn shown(&mut self, shown: &Shown) {
        self.met.insert(shown.life);
        self.listed.insert(Name::clone(&shown.name), shown.life);
        for lives in [&mut self.lives, &mut self.present] {
            let (_, end) = lives
                .entry(shown.life)
                .or_insert((shown.log_start, shown.end));
            *end = (*end).max(shown.end);
        }
    }

    /// Takes in that a fetch of `partition` was answered with what is of `life`, and did not tell so.
    pub fn read_untold(&mut self, partition: &Name, life: u128) {
        let listed = self.listed.get(partition).copied();
        self.mistaken
            .extend(listed.filter(|listed| *listed != life));
    }

    /// Whether another life than `life` was read in its place.
    pub fn has_mistaken(&self, life: u128) -> bool {
        self.mistaken.contains(&life)
    }

    /// Takes in the positions of a checkpoint that tells lives apart.
    pub fn restored(&mut self, checkpoint: &Value) {
        let positions = checkpoint["positions"].as_array();
        for position in positions.into_iter().flatten() {
            let id = position[2].as_str().and_then(|id| id.parse().ok());
            let (Some(id), Some(offset)) = (id, position[1].as_i64()) else {
                continue;
            };
            let id: uuid::Uuid = id;
            for lives in [&mut self.lives, &mut self.present] {
                lives.entry(id.as_u128()).or_insert((offset, offset));
            }
        }
    }

    /// Whether an answer has shown `life`.
    pub fn has_met(&self, life: u128) -> bool {
        self.met.contains(&life)
    }

    /// Whether the state knows that `offset` of `life` was there to be read.
    pub fn knows(&self, life: u128, offset: i64) -> bool {
        self.lives
            .get(&life)
            .is_some_and(|(from, end)| (*from..*end).contains(&offset))
    }
}
