//! The window engine: what has been read of a queue, and what may be closed. Pure: no clock, no
//! I/O; time is what the broker's answers say.
//!
//! For every partition that a discovery pass has named the engine keeps the next offset to read,
//! the greatest watermark shown, and from them a **frontier**: a bound that no record still unread
//! goes below. A window may end at or below every frontier and the last complete pass's `safeTime`
//! less the guard; below that bound the set of records can no longer change.
//!
//! [`discovery`] takes passes in, [`reading`] takes fetch answers in, [`close`] decides,
//! [`checkpoint`] gives positions out and takes them back.

mod checkpoint;
mod close;
mod discovery;
mod names;
mod partition;
mod reading;
mod remembered;
mod seek;
mod sizes;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::gaps::Cover;
use crate::lake::Align;
use crate::lake::manifest::OffsetRange;
use crate::time::Micros;

pub use close::{Close, ClosedWindow, Press};
pub use discovery::PassRequest;
pub use partition::{PartitionId, Unread};
pub use reading::{ReadRequest, ReadResult};
pub use remembered::{Left, Remembered};

use names::Names;
use partition::{Foreign, Partition, PartitionBuffer};
use seek::Seek;
use sizes::BufferedSizes;

/// The engine's settings, all from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The Hive bucket that a window may not straddle.
    pub align: Align,
    /// Record bytes at which a window closes.
    pub target_bytes: u64,
    /// Age, on the broker's clock, at which a window closes.
    pub max_window_us: i64,
    /// What is taken off a pass's `safeTime` before a window may close.
    pub guard_us: i64,
}

/// The reading state of one queue.
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    /// End of the last window taken out: records below it belong to earlier windows.
    cut: Micros,
    /// `safeTime` of the last complete pass.
    safe: Option<Micros>,
    /// `safeTime` when the present window began to be filled.
    opened: Option<Micros>,
    pass: discovery::Pass,
    partitions: Vec<Option<Partition>>,
    free: Vec<PartitionId>,
    names: Names,
    seeks: BTreeMap<PartitionId, Seek>,
    /// Partitions with unread records, lowest frontier first.
    behind: BTreeSet<(Micros, PartitionId)>,
    /// Those of `behind` that a fetch may be sent for.
    ready: BTreeSet<(Micros, PartitionId)>,
    buffers: BTreeMap<PartitionId, PartitionBuffer>,
    /// Record bytes of what is buffered.
    sizes: BufferedSizes,
    /// Ranges deleted before they were read, for the next window's manifest.
    lost: Vec<OffsetRange>,
    /// The same of lives that began after [`Engine::mark_lives`].
    later_lost: Vec<OffsetRange>,
    /// The generation of the last life that began before.
    marked: u32,
    /// What an earlier manifest names already.
    named: Cover,
    /// Partitions that wait for a complete full pass.
    suspects: usize,
    /// Those that wait for a page that tells their lives.
    foreign: BTreeMap<PartitionId, Foreign>,
    /// An answer named another life than a page asked for later: what answers name tells nothing.
    contradicted: bool,
    /// Whether a full pass was complete: a name met from then on is new.
    all_known: bool,
    /// Whether there may be partitions of which records are expected and only a page can tell more.
    unlisted: bool,
    generations: u32,
    /// First `ts` of the present life, where records of a former one are still buffered.
    life_starts: BTreeMap<PartitionId, Micros>,
    /// Ends of the lives before those that are to be read from their start.
    former_ends: BTreeMap<PartitionId, i64>,
    /// Where reading would have begun in partitions whose log starts later: the gap is lost, unless
    /// what follows is still below the cut.
    doubted_losses: BTreeMap<PartitionId, i64>,
    /// Partitions whose restored position is trusted once the record before it was seen, with
    /// their logs' starts.
    unproven: BTreeMap<PartitionId, i64>,
}

impl Engine {
    /// An engine that knows of everything below `committed` that it is in the lake.
    pub fn new(policy: Policy, committed: Micros) -> Self {
        Self {
            policy,
            cut: committed,
            safe: None,
            opened: None,
            pass: discovery::Pass::default(),
            partitions: Vec::new(),
            free: Vec::new(),
            names: Names::default(),
            seeks: BTreeMap::new(),
            behind: BTreeSet::new(),
            ready: BTreeSet::new(),
            buffers: BTreeMap::new(),
            sizes: BufferedSizes::default(),
            lost: Vec::new(),
            later_lost: Vec::new(),
            marked: u32::MAX,
            named: Cover::default(),
            suspects: 0,
            foreign: BTreeMap::new(),
            contradicted: false,
            all_known: false,
            unlisted: false,
            generations: 0,
            life_starts: BTreeMap::new(),
            former_ends: BTreeMap::new(),
            doubted_losses: BTreeMap::new(),
            unproven: BTreeMap::new(),
        }
    }

    /// End of the last window taken out, or of what was committed at the start.
    #[cfg(test)]
    fn cut(&self) -> Micros {
        self.cut
    }

    /// `safeTime` of the last complete pass, the greatest so far.
    pub fn safe_time(&self) -> Option<Micros> {
        self.safe
    }

    /// Record bytes buffered: JSONL line lengths.
    pub fn buffered_bytes(&self) -> u64 {
        self.sizes.total()
    }

    /// Partitions tracked.
    #[cfg(test)]
    fn tracked(&self) -> usize {
        self.names.len()
    }

    /// Partitions that a fetch could be sent for now.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Whether a fetch could be sent now.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether the position of a partition is still looked for.
    pub fn is_seeking(&self) -> bool {
        !self.seeks.is_empty()
    }

    /// Whether neither a record nor a lost range waits for a window.
    pub fn is_drained(&self) -> bool {
        self.buffers.is_empty() && self.lost.is_empty()
    }

    /// Sets the lives that are tracked now apart from those that begin later, if that was not done
    /// before.
    pub fn mark_lives(&mut self) {
        if self.marked == u32::MAX {
            self.marked = self.generations;
        }
    }

    /// What is unread of the partitions that live a life from before [`Engine::mark_lives`], by name
    /// (bytes). A partition that has `late` records is read from the first of them.
    pub fn unread_partitions(&self, late: &[OffsetRange]) -> Vec<Unread> {
        let safe = self.safe.unwrap_or(Micros::MIN);
        let mut first_late: HashMap<&str, i64> = HashMap::new();
        for range in late {
            let first = first_late.entry(&range.partition).or_insert(range.from);
            *first = range.from.min(*first);
        }
        let tracked = self.partitions.iter().flatten();
        let marked = tracked.filter(|partition| partition.generation <= self.marked);
        let mut unread: Vec<Unread> = marked
            .filter_map(|partition| {
                let name = self.names.of(partition.name);
                let late = first_late.get(name).copied();
                let position = late.map_or(partition.position, |from| from.min(partition.position));
                (position < partition.watermark).then(|| Unread {
                    position,
                    late: late.is_some(),
                    told: partition.id.filter(|_| !self.contradicted),
                    ..Unread::of(name, partition, safe)
                })
            })
            .collect();
        unread.sort_unstable_by(|a, b| a.partition.as_bytes().cmp(b.partition.as_bytes()));
        unread
    }

    /// Whether the partition still lives the life in which `unread` was found, as far as passes and
    /// answers have shown. Without an id, a log that ends earlier is another one.
    pub fn lives_on(&self, unread: &Unread) -> bool {
        let partition = self.find(&unread.partition).map(|id| self.partition(id));
        partition.is_some_and(|partition| {
            partition.generation == unread.generation
                && (unread.life.is_some() || partition.watermark >= unread.watermark)
        })
    }

    /// Takes in that what `unread` found below `offset` is in earlier windows.
    pub fn is_written(&mut self, unread: &Unread, offset: i64) {
        let found = self.find(&unread.partition);
        if let Some(id) = found.filter(|id| self.partition(*id).generation == unread.generation) {
            self.unproven.remove(&id);
            self.update(id, |engine| {
                let partition = engine.partition_mut(id);
                partition.position = offset.max(partition.position).min(partition.watermark);
            });
        }
    }

    /// Notes ranges that the last window's manifest names: a position restored from before it would
    /// find them missing again.
    pub fn note_named(&mut self, named: &[OffsetRange]) {
        named.iter().for_each(|range| self.named.add(range));
    }

    /// Forgets what a manifest names of a partition whose life may be another one: a range tells no
    /// lives apart, and a loss named twice harms less than one not named.
    fn forget_named(&mut self, partition: &str) {
        self.named.forget(partition);
    }

    /// Takes out the ranges that are known to be deleted and that no window names yet.
    pub fn take_lost(&mut self) -> Vec<OffsetRange> {
        std::mem::take(&mut self.lost)
    }

    fn find(&self, name: &str) -> Option<PartitionId> {
        self.names.find(name, &self.partitions)
    }

    /// As [`Engine::take_lost`], of lives that began after [`Engine::mark_lives`].
    pub fn take_later_lost(&mut self) -> Vec<OffsetRange> {
        std::mem::take(&mut self.later_lost)
    }

    fn partition(&self, id: PartitionId) -> &Partition {
        self.partitions[id.0 as usize]
            .as_ref()
            .expect("an id is handed out while it is tracked")
    }

    fn partition_mut(&mut self, id: PartitionId) -> &mut Partition {
        self.partitions[id.0 as usize]
            .as_mut()
            .expect("an id is handed out while it is tracked")
    }

    /// The bound below which `id` has no unread record, when it has any.
    fn frontier(&self, id: PartitionId) -> Micros {
        if self.seeks.contains_key(&id) {
            Micros::MIN
        } else {
            self.partition(id).last_ts
        }
    }

    /// Changes a partition and keeps the two ordered sets in step with it.
    fn update<R>(&mut self, id: PartitionId, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = (self.frontier(id), id);
        self.behind.remove(&before);
        self.ready.remove(&before);
        let result = change(self);
        if let Some(Some(partition)) = self.partitions.get(id.0 as usize)
            && partition.is_open()
        {
            let key = (self.frontier(id), id);
            self.behind.insert(key);
            if !partition.flags.busy && !partition.flags.suspect {
                self.ready.insert(key);
            }
        }
        result
    }

    fn next_generation(&mut self) -> u32 {
        self.generations = self.generations.wrapping_add(1);
        self.generations
    }

    /// The name of a tracked partition.
    fn name(&self, id: PartitionId) -> &str {
        self.names.of(self.partition(id).name)
    }

    /// Tracks `partition` under `name`, which none has yet.
    fn track(&mut self, name: &str, partition: Partition) -> PartitionId {
        let name = self.names.add(name);
        let partition = Partition { name, ..partition };
        let id = if let Some(id) = self.free.pop() {
            self.partitions[id.0 as usize] = Some(partition);
            id
        } else {
            let index = u32::try_from(self.partitions.len())
                .expect("a queue has fewer partitions than u32 counts: memory ends before");
            self.partitions.push(Some(partition));
            PartitionId(index)
        };
        self.names.insert(id, &self.partitions);
        id
    }

    /// Notes `from..=to` of `id` as deleted before it was read.
    fn note_lost(&mut self, id: PartitionId, from: i64, to: i64) {
        if from <= to {
            let partition = self.name(id).to_owned();
            let range = OffsetRange {
                partition,
                from,
                to,
            };
            let unnamed = self.named.without(range);
            match self.partition(id).generation > self.marked {
                true => self.later_lost.extend(unnamed),
                false => self.lost.extend(unnamed),
            }
        }
    }
}
