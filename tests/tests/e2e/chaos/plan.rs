//! What happens when, drawn from one seed before anything begins.

use std::time::Duration;

use fastrand::Rng;
use queen_dev::{Faults, Silence};

use super::stage::{LINKS, NODES, SINKS, is_database_link};

/// Pause between two acts, at least and at most.
const PAUSE_MS: std::ops::Range<u64> = 400..1_600;
/// How long a link is faulty.
const FAULTY_MS: std::ops::Range<u64> = 1_000..6_000;
/// No connection falls silent so shortly before the end: a client gives a silent one up after a
/// minute, and the test should not take that much longer.
const TALK_AT_THE_END: Duration = Duration::from_secs(25);

/// A whole run.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub length: Duration,
    /// By time.
    pub acts: Vec<Act>,
}

#[derive(Debug, Clone, Copy)]
pub struct Act {
    pub at: Duration,
    pub what: What,
}

/// What is done to the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// These faults on this link from now on; the default ones heal it.
    Link(usize, Faults),
    /// SIGKILL.
    KillSink(usize),
    /// SIGTERM: it drains.
    StopSink(usize),
    /// SIGKILL.
    KillNode(usize),
    /// Sessions are cut, and the database is back at once.
    RestartDatabase,
    /// SIGKILL, then recovery.
    KillDatabase,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Latency,
    Bandwidth,
    Resets,
    Silence,
    RefusedBefore,
    RefusedAfter,
    KillSink,
    StopSink,
    KillNode,
    RestartDatabase,
    KillDatabase,
}

const KINDS: [Kind; 11] = [
    Kind::Latency,
    Kind::Bandwidth,
    Kind::Resets,
    Kind::Silence,
    Kind::RefusedBefore,
    Kind::RefusedAfter,
    Kind::KillSink,
    Kind::StopSink,
    Kind::KillNode,
    Kind::RestartDatabase,
    Kind::KillDatabase,
];

/// Cards that are all drawn once before any comes again, so that no run leaves a kind out by luck.
struct Deck<T> {
    cards: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    fn of(cards: impl IntoIterator<Item = T>) -> Self {
        Self {
            cards: cards.into_iter().collect(),
            left: Vec::new(),
        }
    }

    fn draw(&mut self, dice: &mut Rng) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.cards);
            dice.shuffle(&mut self.left);
        }
        self.left.pop().expect("no deck is made without cards")
    }
}

impl Plan {
    pub fn draw(seed: u64, length: Duration) -> Self {
        let mut dice = Rng::with_seed(seed);
        let mut kinds = Deck::of(KINDS);
        let mut links = Deck::of(0..LINKS);
        let mut http_links = Deck::of((0..LINKS).filter(|link| !is_database_link(*link)));
        let (mut sinks, mut nodes) = (Deck::of(0..SINKS), Deck::of(0..NODES));
        let mut acts = Vec::new();
        let mut at = Duration::ZERO;
        loop {
            at += Duration::from_millis(dice.u64(PAUSE_MS));
            if at >= length {
                break;
            }
            let kind = kinds.draw(&mut dice);
            let what = match kind {
                Kind::KillSink => What::KillSink(sinks.draw(&mut dice)),
                Kind::StopSink => What::StopSink(sinks.draw(&mut dice)),
                Kind::KillNode => What::KillNode(nodes.draw(&mut dice)),
                Kind::RestartDatabase => What::RestartDatabase,
                Kind::KillDatabase => What::KillDatabase,
                Kind::Silence if at + TALK_AT_THE_END >= length => continue,
                Kind::RefusedBefore | Kind::RefusedAfter => {
                    let link = http_links.draw(&mut dice);
                    What::Link(link, faults(kind, link, &mut dice))
                }
                _ => {
                    let link = links.draw(&mut dice);
                    What::Link(link, faults(kind, link, &mut dice))
                }
            };
            acts.push(Act { at, what });
            if let What::Link(link, _) = what {
                acts.push(Act {
                    at: at + Duration::from_millis(dice.u64(FAULTY_MS)),
                    what: What::Link(link, Faults::default()),
                });
            }
        }
        acts.sort_by_key(|act| act.at);
        Self { seed, length, acts }
    }
}

fn faults(kind: Kind, link: usize, dice: &mut Rng) -> Faults {
    let mut faults = Faults::default();
    match kind {
        Kind::Latency => {
            faults.latency = Duration::from_millis(dice.u64(20..300));
            faults.jitter = Duration::from_millis(dice.u64(0..400));
        }
        Kind::Bandwidth => faults.bytes_per_second = Some(dice.u32(8_000..80_000)),
        Kind::Resets => faults.resets = dice.u16(100..600),
        // The database's clients wait for its answers as long as its sessions stand.
        Kind::Silence if is_database_link(link) => faults.silence = Silence::Passing,
        Kind::Silence => faults.silence = Silence::Lasting,
        Kind::RefusedBefore => faults.refused_before = dice.u16(300..900),
        Kind::RefusedAfter => faults.refused_after = dice.u16(300..900),
        _ => unreachable!("the other kinds are no faults of a link"),
    }
    faults
}

#[test]
fn a_plan_follows_from_its_seed_and_leaves_no_kind_out_of_a_minute() {
    let minute = Duration::from_secs(60);
    let plan = Plan::draw(1, minute);
    let again = Plan::draw(1, minute);
    let whats = |plan: &Plan| plan.acts.iter().map(|act| act.what).collect::<Vec<_>>();
    assert_eq!(whats(&plan), whats(&again));
    assert_ne!(whats(&plan), whats(&Plan::draw(2, minute)));
    for seed in 0..50 {
        let whats = whats(&Plan::draw(seed, minute));
        let on_a_link = |test: fn(&Faults) -> bool| {
            let link = |what: &What| matches!(what, What::Link(_, faults) if test(faults));
            whats.iter().any(link)
        };
        assert!(on_a_link(|faults| !faults.latency.is_zero()));
        assert!(on_a_link(|faults| faults.bytes_per_second.is_some()));
        assert!(on_a_link(|faults| faults.resets > 0));
        assert!(on_a_link(|faults| faults.silence == Silence::Lasting));
        assert!(on_a_link(|faults| faults.refused_before > 0));
        assert!(on_a_link(|faults| faults.refused_after > 0));
        for sink in 0..SINKS {
            let dies = [What::KillSink(sink), What::StopSink(sink)];
            assert!(whats.iter().any(|what| dies.contains(what)), "{seed}");
        }
        assert!(whats.contains(&What::KillNode(0)) && whats.contains(&What::KillNode(1)));
        assert!(whats.contains(&What::RestartDatabase) && whats.contains(&What::KillDatabase));
    }
}
