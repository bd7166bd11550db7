//! Admission: how many requests work at once, how many wait, and what is turned away.
//!
//! Three lanes share the database sessions: pushes cannot starve readers, nor either of them the
//! sink's commits. Consumers and the background have part of a lane only: while a standby is missing, a
//! commit keeps its slot until the database has answered, and what is left goes on. `partitions/changed` and
//! the observing routes go through none, and have sessions of their own.

mod memory;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant as Deadline, timeout_at};

use crate::config::LaneConfig;
use crate::limits::{
    CONTROL_LANE_SHARE, LANE_SHARES, LEFT_TO_OTHERS, POP_LANE_SHARE, PUSH_LANE_SHARE,
};

pub use memory::{Held, Memory};

/// What a request competes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Writing records.
    Push,
    /// Reading.
    Pop,
    /// Taking records and settling them, which commits: slots of the pop lane, and never all where it has several.
    Consume,
    /// Everything else that works on the database.
    Control,
}

/// How a route goes through its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// One slot from the whole body to the answer.
    Slot(Lane),
    /// The handler takes the slot and may give it up: none is held while parked, or while a push waits
    /// for ids that another one reads.
    Handler(Lane),
    /// No lane.
    Free,
}

/// The admission of a route's pattern. A route that no rule names is the control lane's.
pub fn admission(method: &Method, route: &str) -> Admission {
    match route {
        "/health" | "/status" | "/metrics" | "/api/v1/partitions/changed" => Admission::Free,
        "/api/v1/push" => Admission::Handler(Lane::Push),
        "/api/v1/transaction" => Admission::Slot(Lane::Push),
        "/api/v1/fetch" => Admission::Handler(Lane::Pop),
        "/api/v1/resources/queues" => Admission::Slot(Lane::Pop),
        pop if pop.starts_with("/api/v1/pop") => Admission::Handler(Lane::Consume),
        "/api/v1/ack" | "/api/v1/ack/batch" | "/api/v1/lease/{lease}/extend" => {
            Admission::Slot(Lane::Consume)
        }
        _ if *method == Method::OPTIONS => Admission::Free,
        _ => Admission::Slot(Lane::Control),
    }
}

/// A slot of a lane; dropping it, and what shares it, hands it to who has waited longest. The default is of no
/// lane.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    _permits: Arc<Vec<OwnedSemaphorePermit>>,
}

/// Why a request was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// As many wait as may.
    #[error("too many requests wait for the {} lane; try again in a moment", .0.name())]
    Full(Lane),
    /// It waited as long as it may.
    #[error("the {} lane was busy for too long; try again in a moment", .0.name())]
    Slow(Lane),
    /// Requests and answers in flight hold all the memory they may.
    #[error("requests and answers in flight fill the broker's memory; try again in a moment")]
    Memory,
    /// The ids that a push has to be compared with were not at hand in time.
    #[error(
        "the transaction ids of a partition of this push are still being read or indexed; try again \
         in a moment"
    )]
    Ids,
}

impl Overload {
    fn reason(self) -> &'static str {
        match self {
            Self::Full(_) => "full",
            Self::Slow(_) => "slow",
            Self::Memory => "memory",
            Self::Ids => "ids",
        }
    }
}

impl Lane {
    const ALL: [Self; 4] = [Self::Push, Self::Pop, Self::Consume, Self::Control];

    /// Its name in errors and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pop => "pop",
            Self::Consume => "consume",
            Self::Control => "control",
        }
    }

    /// The lane whose slots it has part of.
    fn within(self) -> Option<Self> {
        (self == Self::Consume).then_some(Self::Pop)
    }

    /// Its slots, where there are so many sessions.
    fn size(self, sessions: usize) -> usize {
        let share = match self {
            Self::Push => PUSH_LANE_SHARE,
            Self::Pop => POP_LANE_SHARE,
            Self::Consume => return part(Self::Pop.size(sessions)),
            Self::Control => CONTROL_LANE_SHARE,
        };
        (sessions * share / LANE_SHARES).max(1)
    }
}

/// So many of a lane's slots may be taken by who commits, or does what nobody waits for.
fn part(slots: usize) -> usize {
    (slots - (slots / LEFT_TO_OTHERS).max(1)).max(1)
}

/// Labels of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabels {
    lane: &'static str,
}

/// Labels of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    lane: &'static str,
    reason: &'static str,
}

#[derive(Debug)]
struct LaneState {
    slots: Arc<Semaphore>,
    size: usize,
    waiting: AtomicUsize,
}

/// The lanes of a broker, and the memory that what they admit may hold.
pub struct Lanes {
    states: [LaneState; 4],
    background: Arc<Semaphore>,
    queue: usize,
    wait: Duration,
    /// Bytes of bodies and answers in flight.
    pub memory: Memory,
    waited: Family<LaneLabels, Histogram, fn() -> Histogram>,
    refused: Family<RefusedLabels, Counter>,
    in_use: Family<LaneLabels, Gauge>,
    in_line: Family<LaneLabels, Gauge>,
    held: Gauge,
}

fn seconds() -> Histogram {
    Histogram::new([0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0])
}

impl Lanes {
    /// Lanes that share `sessions` database sessions; a part of them stays outside of all lanes.
    pub fn new(config: &LaneConfig, sessions: usize) -> Self {
        let state = |lane: Lane| {
            let size = lane.size(sessions);
            LaneState {
                slots: Arc::new(Semaphore::new(size)),
                size,
                waiting: AtomicUsize::new(0),
            }
        };
        Self {
            states: Lane::ALL.map(state),
            background: Arc::new(Semaphore::new(part(Lane::Control.size(sessions)))),
            queue: config.queue,
            wait: config.wait,
            memory: Memory::new(config.memory_bytes),
            waited: Family::new_with_constructor(seconds),
            refused: Family::default(),
            in_use: Family::default(),
            in_line: Family::default(),
            held: Gauge::default(),
        }
    }

    fn state(&self, lane: Lane) -> &LaneState {
        &self.states[lane as usize]
    }

    /// A slot of `lane`, after those who came before.
    ///
    /// # Errors
    ///
    /// [`Overload`]: nothing was done.
    pub async fn enter(&self, lane: Lane) -> Result<Slot, Overload> {
        let begun = Instant::now();
        let outcome = self.take(lane).await;
        match outcome {
            Ok(_) => {
                let labels = LaneLabels { lane: lane.name() };
                let waited = begun.elapsed().as_secs_f64();
                self.waited.get_or_create(&labels).observe(waited);
            }
            Err(overload) => self.refuse(lane, overload),
        }
        outcome
    }

    /// The turn of who has this slot of `lane`.
    pub fn turn(&self, lane: Lane, slot: Slot) -> Turn<'_> {
        Turn {
            lanes: self,
            lane,
            slot: Some(slot),
            deadline: None,
        }
    }

    async fn take(&self, lane: Lane) -> Result<Slot, Overload> {
        self.take_by(lane, Deadline::now() + self.wait).await
    }

    async fn take_by(&self, lane: Lane, deadline: Deadline) -> Result<Slot, Overload> {
        self.memory.check()?;
        let mut permits = Vec::with_capacity(2);
        for lane in std::iter::successors(Some(lane), |lane| lane.within()) {
            permits.push(self.permit(lane, deadline).await?);
        }
        Ok(Slot {
            _permits: Arc::new(permits),
        })
    }

    async fn permit(
        &self,
        lane: Lane,
        deadline: Deadline,
    ) -> Result<OwnedSemaphorePermit, Overload> {
        let state = self.state(lane);
        if let Ok(permit) = Arc::clone(&state.slots).try_acquire_owned() {
            return Ok(permit);
        }
        let _place = Place::take(&state.waiting, self.queue).ok_or(Overload::Full(lane))?;
        match timeout_at(deadline, Arc::clone(&state.slots).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            // Nobody closes a lane; a closed one has no slots.
            Ok(Err(_)) | Err(_) => Err(Overload::Slow(lane)),
        }
    }

    /// A slot of the control lane for what nobody waits for, however long it takes. It never has all of
    /// them where there are several.
    pub async fn background(&self) -> Slot {
        let mut permits = Vec::with_capacity(2);
        for slots in [&self.background, &self.state(Lane::Control).slots] {
            // Nobody closes a lane.
            permits.extend(Arc::clone(slots).acquire_owned().await);
        }
        Slot {
            _permits: Arc::new(permits),
        }
    }

    /// Whether a request of `lane` would be turned away at once: asked before its body is read.
    ///
    /// # Errors
    ///
    /// [`Overload`], when it would.
    pub fn check(&self, lane: Lane) -> Result<(), Overload> {
        let full = |lane: &Lane| {
            let state = self.state(*lane);
            state.slots.available_permits() == 0
                && state.waiting.load(Ordering::Relaxed) >= self.queue
        };
        let mut lanes = std::iter::successors(Some(lane), |lane| lane.within());
        let outcome = self.memory.check();
        let outcome = outcome.and_then(|()| match lanes.find(full) {
            Some(lane) => Err(Overload::Full(lane)),
            None => Ok(()),
        });
        if let Err(overload) = outcome {
            self.refuse(lane, overload);
        }
        outcome
    }

    fn refuse(&self, lane: Lane, overload: Overload) {
        let labels = RefusedLabels {
            lane: lane.name(),
            reason: overload.reason(),
        };
        self.refused.get_or_create(&labels).inc();
    }

    /// Registers what is measured of the lanes.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "lane_wait_seconds",
            "Time that admitted requests waited for a slot of their lane",
            self.waited.clone(),
        );
        registry.register(
            "lane_refused",
            "Requests turned away: the line was full, the wait too long, the memory spent",
            self.refused.clone(),
        );
        registry.register(
            "lane_slots_in_use",
            "Slots of a lane in use",
            self.in_use.clone(),
        );
        registry.register(
            "lane_waiting",
            "Requests that wait for a slot of a lane",
            self.in_line.clone(),
        );
        registry.register(
            "memory_held_bytes",
            "Bytes of request bodies and answers in flight",
            self.held.clone(),
        );
    }

    /// Sets the gauges to what holds now.
    pub fn measure(&self) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for lane in Lane::ALL {
            let state = self.state(lane);
            let labels = LaneLabels { lane: lane.name() };
            let in_use = state.size.saturating_sub(state.slots.available_permits());
            self.in_use.get_or_create(&labels).set(number(in_use));
            let waiting = state.waiting.load(Ordering::Relaxed);
            self.in_line.get_or_create(&labels).set(number(waiting));
        }
        self.held.set(number(self.memory.held()));
    }
}

/// A slot that its holder may give up for a while. All that it waits aside, and for a slot again, takes
/// no longer than one wait for a slot may.
pub struct Turn<'a> {
    lanes: &'a Lanes,
    lane: Lane,
    slot: Option<Slot>,
    deadline: Option<Deadline>,
}

impl Turn<'_> {
    /// The slot, to share with work that may outlast this turn.
    ///
    /// # Errors
    ///
    /// [`Overload`], for who stepped aside and was refused another one.
    pub fn slot(&self) -> Result<Slot, Overload> {
        self.slot.clone().ok_or(Overload::Slow(self.lane))
    }

    /// Begins to count the wait, unless it has begun; gives back when it ends.
    pub fn deadline(&mut self) -> Deadline {
        *self
            .deadline
            .get_or_insert_with(|| Deadline::now() + self.lanes.wait)
    }

    /// Gives the slot up until `ready` completes, and takes one again. `bytes` are counted meanwhile:
    /// who waits aside is not bounded by the slots.
    ///
    /// # Errors
    ///
    /// [`Overload`], without a slot: the line is full, or the wait too long.
    pub async fn step_aside(
        &mut self,
        bytes: usize,
        ready: impl Future<Output = ()>,
    ) -> Result<(), Overload> {
        let deadline = self.deadline();
        self.slot = None;
        let outcome = self.wait_aside(bytes, ready, deadline).await;
        match outcome {
            Ok(slot) => {
                self.slot = Some(slot);
                Ok(())
            }
            Err(overload) => {
                self.lanes.refuse(self.lane, overload);
                Err(overload)
            }
        }
    }

    async fn wait_aside(
        &self,
        bytes: usize,
        ready: impl Future<Output = ()>,
        deadline: Deadline,
    ) -> Result<Slot, Overload> {
        let Self { lanes, lane, .. } = self;
        let _held = lanes.memory.hold(bytes);
        let place = Place::take(&lanes.state(*lane).waiting, lanes.queue);
        let place = place.ok_or(Overload::Full(*lane))?;
        if timeout_at(deadline, ready).await.is_err() {
            return Err(Overload::Ids);
        }
        drop(place);
        lanes.take_by(*lane, deadline).await
    }

    /// Whether there is time left to wait.
    ///
    /// # Errors
    ///
    /// [`Overload::Ids`], when there is none.
    pub fn check(&mut self) -> Result<(), Overload> {
        let deadline = self.deadline();
        if Deadline::now() < deadline {
            return Ok(());
        }
        self.lanes.refuse(self.lane, Overload::Ids);
        Err(Overload::Ids)
    }
}

/// A place in the line of a lane.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Option<Self> {
        let join = |count: usize| (count < most).then_some(count + 1);
        waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, join)
            .ok()?;
        Some(Self(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::database::observing;

    fn lanes(queue: usize) -> Lanes {
        lanes_of(queue, 4)
    }

    fn lanes_of(queue: usize, sessions: usize) -> Lanes {
        let config = LaneConfig {
            queue,
            wait: Duration::from_secs(5),
            memory_bytes: 1_000,
        };
        Lanes::new(&config, sessions)
    }

    #[test]
    fn the_lanes_leave_sessions_to_what_goes_through_none() {
        for sessions in [8, 16, 100] {
            let lanes = lanes_of(0, sessions);
            let outer = Lane::ALL.into_iter().filter(|lane| lane.within().is_none());
            let taken: usize = outer.map(|lane| lanes.state(lane).size).sum();
            let left = sessions - observing(sessions);
            assert!(taken <= left, "{taken} of {left}");
        }
    }

    #[tokio::test]
    async fn who_finds_the_line_full_is_turned_away_at_once_and_other_lanes_go_on() {
        let lanes = lanes(1);
        let first = lanes.enter(Lane::Push).await.expect("a slot");
        let mut second = Box::pin(lanes.enter(Lane::Push));
        assert!((&mut second).now_or_never().is_none(), "it waits");
        assert_eq!(lanes.check(Lane::Push), Err(Overload::Full(Lane::Push)));
        assert_eq!(
            lanes.enter(Lane::Push).await.err(),
            Some(Overload::Full(Lane::Push))
        );
        assert!(lanes.enter(Lane::Pop).await.is_ok());
        drop(first);
        assert!(second.await.is_ok());
    }

    #[tokio::test]
    async fn consumers_leave_a_slot_to_who_reads_and_the_background_one_to_who_waits() {
        let lanes = lanes_of(0, 16);
        let mut taken = Vec::new();
        while let Ok(slot) = lanes.enter(Lane::Consume).await {
            taken.push(slot);
        }
        assert_eq!(taken.len(), 4);
        let full = Overload::Full(Lane::Consume);
        assert_eq!(lanes.check(Lane::Consume), Err(full));
        let reader = lanes.enter(Lane::Pop).await.expect("a slot");
        assert_eq!(lanes.check(Lane::Pop), Err(Overload::Full(Lane::Pop)));
        taken.clear();
        drop(reader);
        while let Some(slot) = lanes.background().now_or_never() {
            taken.push(slot);
        }
        assert_eq!(taken.len(), 2);
        assert!(lanes.enter(Lane::Control).await.is_ok());
        let alone = lanes_of(0, 4);
        assert!(alone.enter(Lane::Consume).await.is_ok());
        assert!(alone.background().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_goes_away_leaves_its_place_in_the_line() {
        let lanes = lanes(1);
        let _first = lanes.enter(Lane::Push).await.expect("a slot");
        let mut gone = Box::pin(lanes.enter(Lane::Push));
        assert!((&mut gone).now_or_never().is_none());
        drop(gone);
        assert_eq!(lanes.check(Lane::Push), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_has_an_end() {
        let lanes = lanes(1);
        let _first = lanes.enter(Lane::Push).await.expect("a slot");
        assert_eq!(
            lanes.enter(Lane::Push).await.err(),
            Some(Overload::Slow(Lane::Push))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_steps_aside_leaves_its_slot_and_waits_no_longer_than_for_one() {
        let lanes = lanes(1);
        let slot = lanes.enter(Lane::Push).await.expect("a slot");
        let mut turn = lanes.turn(Lane::Push, slot);
        let (ready, until_ready) = tokio::sync::oneshot::channel::<()>();
        {
            let aside = turn.step_aside(600, async { until_ready.await.expect("a word") });
            let mut aside = Box::pin(aside);
            assert!((&mut aside).now_or_never().is_none(), "it waits");
            let other = lanes.enter(Lane::Push).await.expect("the slot left");
            assert_eq!(lanes.memory.held(), 600);
            ready.send(()).expect("someone waits");
            assert!((&mut aside).now_or_never().is_none(), "the slot is taken");
            drop(other);
            assert_eq!(aside.await, Ok(()));
        }
        assert_eq!((lanes.memory.held(), turn.check()), (0, Ok(())));
        assert!(
            lanes.enter(Lane::Push).now_or_never().is_none(),
            "it has it"
        );
        let never = turn.step_aside(0, std::future::pending());
        assert_eq!(never.await, Err(Overload::Ids));
        assert_eq!(turn.check(), Err(Overload::Ids));
        assert!(lanes.enter(Lane::Push).await.is_ok());
    }

    #[tokio::test]
    async fn nobody_is_admitted_while_the_memory_is_spent() {
        let lanes = lanes(1);
        let held = lanes.memory.hold(1_000);
        assert_eq!(lanes.enter(Lane::Pop).await.err(), Some(Overload::Memory));
        drop(held);
        assert!(lanes.enter(Lane::Pop).await.is_ok());
    }

    #[test]
    fn each_route_has_its_lane() {
        for (route, expected) in [
            ("/api/v1/push", Admission::Handler(Lane::Push)),
            ("/api/v1/fetch", Admission::Handler(Lane::Pop)),
            ("/api/v1/pop/{*rest}", Admission::Handler(Lane::Consume)),
            ("/api/v1/resources/queues", Admission::Slot(Lane::Pop)),
            ("/api/v1/partitions/changed", Admission::Free),
            ("/health", Admission::Free),
            ("/api/v1/kv", Admission::Slot(Lane::Control)),
            ("/api/v1/ack", Admission::Slot(Lane::Consume)),
            ("/something/new", Admission::Slot(Lane::Control)),
        ] {
            assert_eq!(admission(&Method::POST, route), expected, "{route}");
        }
    }
}
