use std::collections::{HashMap, HashSet};

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::limits::MIB;

const MINUTE: i64 = 60_000_000;
const QUEUE: (Uuid, &str, &str) = (Uuid::nil(), "q", "p");

fn id(n: u64) -> Uuid {
    Uuid::from_u64_pair(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15), n + 1)
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// The part of the database that this is about: one partition.
struct Database {
    partition: i64,
    server: i64,
    now: i64,
    next: i64,
    /// Offset, ids and expiry of each push.
    recent: Vec<(i64, Vec<Uuid>, i64)>,
    indexed: HashMap<Uuid, i64>,
}

impl Database {
    fn new() -> Self {
        Self {
            partition: 7,
            server: 1,
            now: MINUTE,
            next: 0,
            recent: Vec::new(),
            indexed: HashMap::new(),
        }
    }

    /// As `queen.push_once`: what it wrote, or the repeated ids.
    fn push(&mut self, known: &Known, ids: &[Uuid], window: i64) -> Result<Written, HashSet<Uuid>> {
        let same = known.server == Some(at(self.server)) && known.partition == Some(self.partition);
        let mut repeated = HashSet::new();
        let mut unknown = 0;
        for (base, row, expires) in &self.recent {
            if *expires <= self.now {
                continue;
            }
            let tail = known.ranges.last().expect("a range without end");
            assert_eq!(tail.1, NO_END);
            let ranges: &[Range] = if same { &known.ranges } else { &[(0, NO_END)] };
            if !ranges
                .iter()
                .any(|(from, upto)| from <= base && base < upto)
            {
                continue;
            }
            if *base >= ranges.last().expect("a range").0 {
                unknown += row.len() as i64;
            }
            repeated.extend(ids.iter().filter(|id| row.contains(id)).copied());
        }
        let indexed = |id: &&Uuid| {
            self.indexed
                .get(id)
                .is_some_and(|expires| *expires > self.now)
        };
        repeated.extend(ids.iter().filter(indexed).copied());
        if !repeated.is_empty() {
            return Err(repeated);
        }
        let base = self.next;
        self.next += ids.len() as i64;
        self.recent.push((base, ids.to_vec(), self.now + window));
        Ok(Written {
            partition: self.partition,
            at: (base, self.next),
            unknown,
            expires: at(self.now + window),
            now: at(self.now),
            server: at(self.server),
        })
    }

    fn live(&self, id: &Uuid) -> bool {
        let recent =
            |(_, row, expires): &(i64, Vec<Uuid>, i64)| *expires > self.now && row.contains(id);
        self.recent.iter().any(recent)
            || self
                .indexed
                .get(id)
                .is_some_and(|expires| *expires > self.now)
    }

    fn load(&self, view: &View) {
        let Some(from) = view.missing() else { return };
        for (base, row, expires) in &self.recent {
            if *base >= from && *expires > self.now {
                view.load(row, (*base, base + row.len() as i64), at(*expires));
            }
        }
        view.loaded();
    }

    fn index(&mut self, below: i64) {
        let (old, new) = self.recent.drain(..).partition(|(base, ..)| *base < below);
        self.recent = new;
        let old: Vec<(i64, Vec<Uuid>, i64)> = old;
        for (_, row, expires) in old {
            self.indexed.extend(row.into_iter().map(|id| (id, expires)));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A broker pushes new ids and some old ones; whether it hears of it at once.
    Push {
        broker: usize,
        new: usize,
        old: Vec<prop::sample::Index>,
        heard: bool,
    },
    /// A broker hears of what it pushed.
    Hear {
        broker: usize,
    },
    Wait {
        micros: i64,
    },
    Crowd {
        broker: usize,
    },
    /// The partition is made anew.
    Anew,
    /// Another server takes over, which lacks the last pushes.
    Fail {
        lost: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let old = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    prop_oneof![
        8 => (0..2usize, 0..150usize, old, any::<bool>())
            .prop_map(|(broker, new, old, heard)| Step::Push { broker, new, old, heard }),
        3 => (0..2usize).prop_map(|broker| Step::Hear { broker }),
        2 => (0..MINUTE).prop_map(|micros| Step::Wait { micros }),
        1 => (0..2usize).prop_map(|broker| Step::Crowd { broker }),
        1 => Just(Step::Anew),
        1 => (0..3usize).prop_map(|lost| Step::Fail { lost }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_repetition_is_missed_and_nothing_new_is_taken_for_one(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let mut database = Database::new();
        let brokers = [Recent::bounded(20_000), Recent::bounded(20_000)];
        let mut unheard: [Vec<(Known, Vec<Uuid>, Written)>; 2] = [Vec::new(), Vec::new()];
        let mut made = 0;
        for step in steps {
            match step {
                Step::Push { broker, new, old, heard } => {
                    let mut ids: Vec<Uuid> = (made..made + new as u64).map(id).collect();
                    let before = made;
                    made += new as u64;
                    ids.extend(old.iter().filter(|_| before > 0).map(|n| id(n.index(before as usize) as u64)));
                    let mut seen = HashSet::new();
                    ids.retain(|id| seen.insert(*id));
                    if ids.is_empty() { continue; }
                    let recent = &brokers[broker];
                    let mut known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &ids);
                    if let Some(view) = recent.behind(QUEUE.0, QUEUE.1, QUEUE.2) {
                        database.load(&view);
                        known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &ids);
                    }
                    let repeated: HashSet<Uuid> =
                        ids.iter().filter(|id| database.live(id)).copied().collect();
                    match database.push(&known, &ids, MINUTE) {
                        Err(found) => prop_assert_eq!(found, repeated),
                        Ok(written) => {
                            prop_assert!(repeated.is_empty(), "{repeated:?} were missed");
                            if heard {
                                recent.learn(QUEUE, &known, &ids, &written);
                            } else {
                                unheard[broker].push((known, ids, written));
                            }
                        }
                    }
                }
                Step::Hear { broker } => {
                    if let Some((known, ids, written)) = unheard[broker].pop() {
                        brokers[broker].learn(QUEUE, &known, &ids, &written);
                    }
                }
                Step::Wait { micros } => database.now += micros,
                Step::Crowd { broker } => {
                    while let Some((view, below)) = brokers[broker].make_room() {
                        if view.partition() == database.partition {
                            database.index(below);
                        }
                        view.forget_below(below);
                    }
                }
                Step::Anew => {
                    database.partition += 1;
                    database.next = 0;
                    database.recent.clear();
                    database.indexed.clear();
                }
                Step::Fail { lost } => {
                    database.server += 1;
                    for _ in 0..lost {
                        if let Some((base, ..)) = database.recent.pop() {
                            database.next = base;
                        }
                    }
                }
            }
        }
    }
}

fn push(recent: &Recent, database: &mut Database, ids: std::ops::Range<u64>) -> Written {
    let ids: Vec<Uuid> = ids.map(id).collect();
    let known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &ids);
    let written = database.push(&known, &ids, MINUTE).expect("new ids");
    recent.learn(QUEUE, &known, &ids, &written);
    written
}

#[test]
fn what_this_broker_pushed_is_not_looked_up_again() {
    let (recent, mut database) = (Recent::bounded(128 * MIB), Database::new());
    for round in 0..20 {
        let written = push(&recent, &mut database, round * 100..round * 100 + 100);
        assert_eq!(written.unknown, 0, "round {round}");
        database.now += MINUTE / 20;
    }
    // A repetition is looked for in the part of the log that it may be in.
    let known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &[id(1_050), id(9_999)]);
    assert_eq!(known.ranges.len(), 2);
    let (from, upto) = known.ranges[0];
    assert!(
        from <= 1_000 && 1_100 <= upto && upto - from <= 500,
        "{from} {upto}"
    );
}

#[test]
fn answers_out_of_order_leave_nothing_unknown() {
    let (recent, mut database) = (Recent::bounded(128 * MIB), Database::new());
    push(&recent, &mut database, 0..100);
    let begin = |ids: std::ops::Range<u64>| {
        let ids: Vec<Uuid> = ids.map(id).collect();
        (recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &ids), ids)
    };
    let (known_one, one) = begin(100..200);
    let (known_two, two) = begin(200..300);
    let first = database.push(&known_one, &one, MINUTE).expect("new ids");
    let second = database.push(&known_two, &two, MINUTE).expect("new ids");
    assert_eq!((first.unknown, second.unknown), (0, 100));
    recent.learn(QUEUE, &known_two, &two, &second);
    recent.learn(QUEUE, &known_one, &one, &first);
    assert_eq!(push(&recent, &mut database, 300..400).unknown, 0);
}

#[test]
fn ids_are_missing_until_all_of_them_were_read() {
    let (recent, mut database) = (Recent::bounded(128 * MIB), Database::new());
    let pushed = push(&Recent::bounded(128 * MIB), &mut database, 0..100);
    recent.fall_behind(QUEUE.0, QUEUE.1, QUEUE.2, &pushed);
    let known = || recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &[id(1)]);
    let behind = || recent.behind(QUEUE.0, QUEUE.1, QUEUE.2);
    let view = behind().expect("a view that lacks ids");
    let ids: Vec<Uuid> = (0..50).map(id).collect();
    view.load(&ids, (0, 50), pushed.expires);
    // There may be another page.
    assert_eq!(view.missing(), Some(50));
    view.loaded();
    assert!(behind().is_none());
    assert_eq!(known().ranges, [(0, 50), (50, NO_END)]);
}

#[test]
fn what_is_remembered_is_bounded_and_the_ids_of_few_partitions_go_to_the_index() {
    let recent = Recent::bounded(100_000);
    let server = at(1);
    let written = |partition: i64, at_offset: i64, count: i64| Written {
        partition,
        at: (at_offset, at_offset + count),
        unknown: 0,
        expires: at(2 * MINUTE),
        now: at(MINUTE),
        server,
    };
    let learn = |partition: i64, at_offset: i64, ids: std::ops::Range<u64>| {
        let ids: Vec<Uuid> = ids.map(id).collect();
        let name = partition.to_string();
        let known = recent.look(QUEUE.0, QUEUE.1, &name, &ids);
        let written = written(partition, at_offset, ids.len() as i64);
        recent.learn((QUEUE.0, QUEUE.1, &name), &known, &ids, &written);
    };
    // Partitions with few ids are forgotten without more ado.
    for partition in 0..200 {
        learn(partition, 0, 0..100);
        assert!(recent.bytes.load(Ordering::Relaxed) <= 200_000);
        assert!(recent.make_room().is_none());
        assert!(recent.bytes.load(Ordering::Relaxed) <= 100_000);
    }
    // One with many is indexed from its beginning on.
    let (mut next, mut indexed) = (0, 0);
    while next < 30_000 {
        learn(1_000, next, next as u64..next as u64 + 1_000);
        next += 1_000;
        while let Some((view, below)) = recent.make_room() {
            assert_eq!(view.partition(), 1_000);
            assert!(indexed < below && below <= next);
            indexed = below;
            view.forget_below(below);
        }
        assert!(recent.bytes.load(Ordering::Relaxed) <= 100_000);
    }
    assert!(indexed > 0);
    drop(recent.views().drain());
    assert_eq!(recent.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn ids_that_come_within_no_time_are_remembered_in_parts_of_bounded_size() {
    let (recent, mut database) = (Recent::bounded(128 * MIB), Database::new());
    for round in 0..30 {
        push(
            &recent,
            &mut database,
            round * 10_000..round * 10_000 + 10_000,
        );
    }
    let known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &[id(7)]);
    let view = known.view.as_ref().expect("a view");
    let sizes: Vec<usize> = view
        .state()
        .sealed
        .iter()
        .map(|part| part.ids.len())
        .collect();
    assert_eq!(sizes, [140_000, 140_000]);
    // A repetition is looked for in its part alone.
    assert_eq!(known.ranges, [(0, 140_000), (300_000, NO_END)]);
}

#[tokio::test]
async fn more_than_may_be_remembered_is_kept_and_said_to_be_too_much() {
    let (recent, mut database) = (Recent::bounded(20_000), Database::new());
    for round in 0..20 {
        push(&recent, &mut database, round * 400..round * 400 + 400);
    }
    assert!(recent.is_full());
    // Forgotten here, all of it would be read again by the next push, and again after that.
    let known = recent.look(QUEUE.0, QUEUE.1, QUEUE.2, &[id(9_999)]);
    assert_eq!(known.ranges, [(8_000, NO_END)]);
    let mut room = Box::pin(recent.room());
    assert!((&mut room).now_or_never().is_none());
    while let Some((view, below)) = recent.make_room() {
        database.index(below);
        view.forget_below(below);
    }
    recent.made_room();
    assert!(room.now_or_never().is_some());
    assert_eq!(push(&recent, &mut database, 8_000..8_400).unknown, 0);
}

#[tokio::test]
async fn one_at_a_time_reads_what_a_view_lacks() {
    let (recent, mut database) = (Recent::bounded(MIB), Database::new());
    let pushed = push(&Recent::bounded(MIB), &mut database, 0..100);
    recent.fall_behind(QUEUE.0, QUEUE.1, QUEUE.2, &pushed);
    let view = recent.behind(QUEUE.0, QUEUE.1, QUEUE.2).expect("a view");
    let reader = view.reader().expect("nobody reads it");
    assert!(view.reader().is_none());
    let mut waiting = Box::pin(view.until_read());
    assert!((&mut waiting).now_or_never().is_none());
    drop(reader);
    assert!(waiting.now_or_never().is_some());
    assert!(view.reader().is_some());
}
