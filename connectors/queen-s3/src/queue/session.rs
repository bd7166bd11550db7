//! The running loop of an owned queue: discover, read, close, commit; all at once, within the
//! memory budget, one window at a time.

use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{End, Standing, Task, stopping};
use crate::broker::{
    BrokerError, Changed, ChangedRequest, EntryError, FetchAnswer, FetchEntry, FetchRequest,
};
use crate::lake::documents::Intent;
use crate::limits::{
    CHANGED_PAGE, ENTRY_RETRY, FETCH_CALL_BYTES, FETCH_CALL_LEAST_BYTES, FETCH_ENTRIES,
    FETCH_ENTRY_LEAST_BYTES, FETCH_ENTRY_MAX_BYTES, FETCH_LEAST_ENTRIES, FULL_PASS_EVERY,
    PROBE_BYTES, QUEUE_ROOM_BYTES,
};
use crate::observe::sampled::Sampled;
use crate::ownership::Fence;
use crate::retry::Backoff;
use crate::time::Micros;
use crate::window::{Close, Engine, Policy, Press, ReadRequest, ReadResult};

/// How a session came to its end.
pub(super) enum Outcome {
    /// Work on the queue ends.
    End(End),
    /// A window that does not fit in memory: its intent is durable, and it is to be written as a
    /// redo is.
    Redo(Box<(Standing, Intent)>),
}

impl<T: Into<End>> From<T> for Outcome {
    fn from(end: T) -> Self {
        Self::End(end.into())
    }
}

/// What something under way came to.
enum Event {
    Page(Result<Changed, BrokerError>),
    Fetched(Call, Result<FetchAnswer, BrokerError>),
    /// Partitions whose answer was an error may be asked for again.
    Released(Vec<ReadRequest>),
    Committed(Result<Standing, End>),
    Oversized(Result<Outcome, End>),
    /// Whether a checkpoint was written, after this window.
    Checkpointed(bool, u64),
}

/// A fetch call under way.
struct Call {
    reads: Vec<ReadRequest>,
    /// Stored bytes asked for.
    stored: f64,
    /// Rendered bytes aimed at.
    room: usize,
}

/// The pass under way, between its pages.
struct Pass {
    since: Option<Micros>,
    after: Option<String>,
}

struct Session<'a> {
    task: &'a Task,
    fence: &'a Fence,
    engine: Engine,
    standing: Standing,
    under_way: FuturesUnordered<BoxFuture<'a, Event>>,
    pass: Option<Pass>,
    page_out: bool,
    next_pass: Instant,
    next_full_pass: Instant,
    pass_backoff: Backoff,
    fetches: usize,
    fetch_backoff: Backoff,
    /// How long the broker asked to wait with the last failure.
    fetch_asked: Option<Duration>,
    /// Whether the last answer brought nothing.
    barren: bool,
    /// Rendered bytes that the calls under way aim at.
    reserved: usize,
    /// Rendered bytes per stored byte, as lately seen.
    expansion: f64,
    /// Stored bytes that a partition is asked for at least.
    entry_bytes: u32,
    committing: bool,
    checkpointing: bool,
    /// Window after which the last checkpoint was written.
    checkpointed: u64,
    /// On a stop: whether the window being filled was judged.
    judged: bool,
    discovery_log: Sampled,
    fetch_log: Sampled,
    doubt_log: Sampled,
    degraded: Option<bool>,
}

impl Task {
    pub(super) fn policy(&self) -> Policy {
        let settings = self.settings();
        Policy {
            align: settings.shape.align,
            target_bytes: settings.target_bytes,
            max_window_us: micros(settings.max_window),
            guard_us: micros(settings.safe_guard),
        }
    }

    /// Runs the queue until it ends or a window has to be written the other way.
    pub(super) async fn session(
        &self,
        fence: &Fence,
        standing: Standing,
        mut stop: watch::Receiver<bool>,
    ) -> Outcome {
        let engine = tokio::select! {
            biased;
            () = stopping(&mut stop) => return End::Drained.into(),
            engine = self.engine(&standing) => engine,
        };
        let age = self.status.checkpoint_age.load(Relaxed);
        let checkpointed = standing.pointer.k - age;
        let now = Instant::now();
        let mut session = Session {
            task: self,
            fence,
            engine,
            standing,
            under_way: FuturesUnordered::new(),
            pass: None,
            page_out: false,
            next_pass: now,
            next_full_pass: now + FULL_PASS_EVERY,
            pass_backoff: self.context.jitter.backoff(),
            fetches: 0,
            fetch_backoff: self.context.jitter.backoff(),
            fetch_asked: None,
            barren: false,
            reserved: 0,
            expansion: 4.0,
            entry_bytes: FETCH_ENTRY_LEAST_BYTES,
            committing: false,
            checkpointing: false,
            checkpointed,
            judged: false,
            discovery_log: Sampled::default(),
            fetch_log: Sampled::default(),
            doubt_log: Sampled::default(),
            degraded: None,
        };
        session.run(&mut stop).await
    }

    /// One fetch call, counted.
    pub(super) async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        let answer = self.context.broker.fetch(request).await;
        let counter = match &answer {
            Ok(_) => &self.status.fetches_ok,
            Err(_) => &self.status.fetches_failed,
        };
        counter.fetch_add(1, Relaxed);
        answer
    }

    /// One discovery page, its `safeTime` noted.
    async fn changed(&self, request: &ChangedRequest) -> Result<Changed, BrokerError> {
        let answer = self.context.broker.changed(Some(request)).await?;
        self.context.status.set_safe_time(answer.safe_time);
        Ok(answer)
    }

    /// A whole pass, one page after the other, tried until it is complete.
    pub(super) async fn whole_pass(&self, engine: &mut Engine, full: bool) -> Result<(), End> {
        let mut backoff = self.context.jitter.backoff();
        let mut sampled = Sampled::default();
        'pass: loop {
            let since = engine.begin_pass(full).since;
            let mut after = None;
            loop {
                engine.page_asked();
                let answer = match self.changed(&self.page_request(since, after.take())).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        if let Some(suppressed) = sampled.failure() {
                            let queue = &self.queue;
                            warn!(%queue, %error, suppressed, "discovery failed; trying again");
                        }
                        tokio::time::sleep(backoff.next(error.retry_after())).await;
                        continue 'pass;
                    }
                };
                match answer.error {
                    Some(EntryError::UnknownQueue) => return Err(End::Absent(answer.safe_time)),
                    Some(_) => {
                        tokio::time::sleep(backoff.next(None)).await;
                        continue 'pass;
                    }
                    None => engine.page(answer.safe_time, &answer.partitions),
                }
                after = answer.next;
                if after.is_none() {
                    engine.end_pass();
                    return Ok(());
                }
            }
        }
    }

    fn page_request(&self, since: Option<Micros>, after: Option<String>) -> ChangedRequest {
        ChangedRequest {
            queue: self.queue.clone(),
            since,
            after,
            limit: CHANGED_PAGE,
        }
    }

    /// One call of probes for the positions that `engine` still looks for.
    pub(super) async fn probe(&self, engine: &mut Engine) -> Result<(), End> {
        let probes = engine.next_probes(FETCH_ENTRIES);
        if probes.is_empty() {
            // What is left contradicts the last pass.
            return self.whole_pass(engine, true).await;
        }
        let request = self.fetch_request(&probes, PROBE_BYTES);
        match self.fetch(&request).await {
            Ok(answer) => {
                for (read, entry) in probes.iter().zip(&answer.entries) {
                    engine.read(read, &answer.batch, entry);
                    engine.unread(read);
                }
            }
            Err(error) => {
                probes.iter().for_each(|read| engine.unread(read));
                let pause = self.context.jitter.backoff().next(error.retry_after());
                tokio::time::sleep(pause).await;
            }
        }
        Ok(())
    }

    fn fetch_request(&self, reads: &[ReadRequest], max_bytes: u32) -> FetchRequest {
        let entries = reads
            .iter()
            .map(|read| FetchEntry {
                partition: read.name.clone(),
                offset: read.offset,
                max_bytes: if read.probe { PROBE_BYTES } else { max_bytes },
            })
            .collect();
        FetchRequest {
            queue: self.queue.clone(),
            entries,
            max_wait_ms: 0,
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl<'a> Session<'a> {
    async fn run(&mut self, stop: &mut watch::Receiver<bool>) -> Outcome {
        loop {
            if *stop.borrow() {
                if self.judged_last_window() && !self.committing {
                    return End::Drained.into();
                }
            } else {
                self.discover();
                self.close(self.press());
                self.read();
            }
            let draining = *stop.borrow();
            let waits = self.pass.is_none() && !draining;
            let wake = waits.then_some(self.next_pass);
            let event = tokio::select! {
                biased;
                () = stopping(stop), if !draining => continue,
                Some(event) = self.under_way.next() => event,
                () = until(wake) => continue,
            };
            if let Err(outcome) = self.apply(event) {
                return outcome;
            }
        }
    }

    /// On a stop the window being filled is judged once, when no other is under way: it is
    /// finished or left to the next start.
    fn judged_last_window(&mut self) -> bool {
        if !self.committing && !std::mem::replace(&mut self.judged, true) {
            self.close(Press::Drain);
        }
        self.judged
    }

    fn start(&mut self, work: impl Future<Output = Event> + Send + 'a) {
        self.under_way.push(work.boxed());
    }

    fn apply(&mut self, event: Event) -> Result<(), Outcome> {
        match event {
            Event::Page(answer) => self.page(answer)?,
            Event::Fetched(call, answer) => self.fetched(&call, answer),
            Event::Released(reads) => reads.iter().for_each(|read| self.engine.unread(read)),
            Event::Committed(result) => self.committed(result?),
            Event::Checkpointed(written, k) => {
                self.checkpointing = false;
                if written {
                    self.checkpointed = k;
                }
                self.show_checkpoint_age();
            }
            Event::Oversized(result) => return Err(result?),
        }
        Ok(())
    }

    // Discovery.

    fn discover(&mut self) {
        if self.page_out {
            return;
        }
        let now = Instant::now();
        let pass = match self.pass.take() {
            Some(pass) => pass,
            None if now < self.next_pass => return,
            None => {
                let full = now >= self.next_full_pass;
                if full {
                    self.next_full_pass = now + FULL_PASS_EVERY;
                }
                Pass {
                    since: self.engine.begin_pass(full).since,
                    after: None,
                }
            }
        };
        self.engine.page_asked();
        self.page_out = true;
        let task = self.task;
        let request = task.page_request(pass.since, pass.after);
        self.pass = Some(Pass {
            since: pass.since,
            after: None,
        });
        self.start(async move { Event::Page(task.changed(&request).await) });
    }

    fn page(&mut self, answer: Result<Changed, BrokerError>) -> Result<(), Outcome> {
        self.page_out = false;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(suppressed) = self.discovery_log.failure() {
                    let queue = &self.task.queue;
                    warn!(%queue, %error, suppressed, "discovery failed; trying again");
                }
                let pause = self.pass_backoff.next(error.retry_after());
                self.give_pass_up(pause);
                return Ok(());
            }
        };
        match &answer.error {
            None => {}
            Some(EntryError::UnknownQueue) => return Err(End::Absent(answer.safe_time).into()),
            Some(error) => {
                warn!(queue = %self.task.queue, %error, "a discovery page was refused");
                let pause = self.pass_backoff.next(None);
                self.give_pass_up(pause);
                return Ok(());
            }
        }
        self.discovery_log.success();
        self.pass_backoff.reset();
        self.task.status.present.store(true, Relaxed);
        self.note_degraded(answer.degraded);
        self.engine.page(answer.safe_time, &answer.partitions);
        if let (Some(after), Some(pass)) = (answer.next, &mut self.pass) {
            pass.after = Some(after);
            return Ok(());
        }
        self.pass = None;
        if let Some(summary) = self.engine.end_pass() {
            self.task.status.discovered.store(summary.listed, Relaxed);
        }
        self.next_pass = Instant::now() + self.task.settings().discovery_interval;
        Ok(())
    }

    fn give_pass_up(&mut self, pause: Duration) {
        self.engine.abandon_pass();
        self.pass = None;
        self.next_pass = Instant::now() + pause;
    }

    fn note_degraded(&mut self, degraded: bool) {
        let queue = &self.task.queue;
        match (self.degraded.replace(degraded), degraded) {
            (Some(before), now) if before == now => {}
            (None, false) => {}
            (_, true) => warn!(
                %queue,
                "the broker's safeTime is degraded: it cannot see every database session, and \
                 windows close later; GRANT pg_read_all_stats to the broker's role"
            ),
            (_, false) => info!(%queue, "the broker's safeTime is whole again"),
        }
    }

    // Reading.

    fn read(&mut self) {
        while self.engine.has_ready() && self.fetches < self.task.settings().fetch_concurrency {
            let Some(room) = self.room() else { return };
            let reads = self.engine.next_reads(self.entries(room));
            let stored = (room as f64 / self.expansion / reads.len() as f64) as u32;
            let max_bytes = stored.clamp(self.entry_bytes, FETCH_ENTRY_MAX_BYTES);
            let request = self.task.fetch_request(&reads, max_bytes);
            let call = Call {
                stored: f64::from(max_bytes) * reads.len() as f64,
                reads,
                room,
            };
            self.fetches += 1;
            self.reserved += room;
            // After a failure, or when a call brought nothing, the next one waits.
            let pause = if self.fetch_log.is_failing() || self.barren {
                self.fetch_backoff.next(self.fetch_asked.take())
            } else {
                Duration::ZERO
            };
            let task = self.task;
            self.start(async move {
                tokio::time::sleep(pause).await;
                let answer = task.fetch(&request).await;
                Event::Fetched(call, answer)
            });
        }
    }

    /// Partitions to fetch in the next call: an even share of those that are ready, so that every
    /// call that may be under way has some, and no more than the call's bytes are enough for.
    fn entries(&self, room: usize) -> usize {
        let slots = self.task.settings().fetch_concurrency - self.fetches;
        let share = self.engine.ready().div_ceil(slots).max(FETCH_LEAST_ENTRIES);
        let enough = (room as f64 / self.expansion / f64::from(self.entry_bytes)) as usize;
        share.min(enough).clamp(1, FETCH_ENTRIES)
    }

    /// Rendered bytes that one more fetch call may aim at, if it may be sent.
    fn room(&mut self) -> Option<usize> {
        let budget = &self.task.context.budget;
        let share = budget.limit() / (self.task.settings().fetch_concurrency + 1);
        let call = share.clamp(FETCH_CALL_LEAST_BYTES, FETCH_CALL_BYTES);
        let taken = budget.used() + self.reserved;
        if taken + call <= budget.limit() {
            return Some(call);
        }
        if self.fetches > 0 || self.committing {
            return None;
        }
        // Room for one small fetch is every queue's; beyond it the largest buffer makes room.
        if self.engine.buffered_bytes() < QUEUE_ROOM_BYTES {
            return Some(FETCH_CALL_LEAST_BYTES);
        }
        if self.press() == Press::None {
            return None;
        }
        self.close(Press::Memory);
        if self.committing {
            return None;
        }
        // Nothing can be closed before the partition with the lowest frontier is read on: the
        // records furthest ahead make room for that.
        self.engine
            .shed((taken + call).saturating_sub(budget.limit()) as u64, budget);
        let alone = self.engine.buffered_bytes() > budget.limit() as u64 / 2;
        if alone && budget.used() > budget.limit() && self.stream_oversized() {
            return None;
        }
        Some(FETCH_CALL_LEAST_BYTES)
    }

    /// Whether memory is short and this queue's buffer is the largest of all.
    fn press(&self) -> Press {
        let context = &self.task.context;
        let mine = self.engine.buffered_bytes();
        self.task.status.buffered.store(mine, Relaxed);
        if context.budget.used() + FETCH_CALL_LEAST_BYTES <= context.budget.limit() || mine == 0 {
            return Press::None;
        }
        let mut queues = context.status.queues().into_iter();
        let largest = queues.all(|(_, status)| status.buffered.load(Relaxed) <= mine);
        if largest { Press::Memory } else { Press::None }
    }

    fn fetched(&mut self, call: &Call, answer: Result<FetchAnswer, BrokerError>) {
        self.fetches -= 1;
        self.reserved -= call.room;
        let queue = &self.task.queue;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                call.reads.iter().for_each(|read| self.engine.unread(read));
                self.fetch_asked = error.retry_after();
                if let Some(suppressed) = self.fetch_log.failure() {
                    warn!(%queue, %error, suppressed, "fetching failed; trying again");
                }
                return;
            }
        };
        if self.fetch_log.success() {
            info!(%queue, "fetching works again");
        }
        self.expansion = expansion(self.expansion, answer.batch.held_bytes(), call.stored);
        let mut held = Vec::new();
        let mut starved = 0;
        self.barren = true;
        for (read, entry) in call.reads.iter().zip(&answer.entries) {
            match self.engine.read(read, &answer.batch, entry) {
                ReadResult::Progress => self.barren = false,
                ReadResult::Nothing => starved += 1,
                ReadResult::Suspect(why) => {
                    self.doubt(
                        read,
                        &why,
                        "a partition's answers contradict; it waits for a pass",
                    );
                }
                ReadResult::Error(error) => {
                    self.doubt(
                        read,
                        &error,
                        "the broker cannot read a partition; trying again",
                    );
                    held.push(read.clone());
                }
            }
        }
        // Partitions whose next segment is larger than what was asked for come back empty.
        self.entry_bytes = if starved * 2 > call.reads.len() {
            self.entry_bytes
                .saturating_mul(4)
                .min(FETCH_ENTRY_MAX_BYTES)
        } else {
            (self.entry_bytes - self.entry_bytes / 8).max(FETCH_ENTRY_LEAST_BYTES)
        };
        if !self.barren {
            self.fetch_backoff.reset();
        }
        if !held.is_empty() {
            let pause = self.task.context.jitter.backoff().next(Some(ENTRY_RETRY));
            self.start(async move {
                tokio::time::sleep(pause).await;
                Event::Released(held)
            });
        }
    }

    fn doubt(&mut self, read: &ReadRequest, why: &dyn std::fmt::Display, what: &'static str) {
        if let Some(suppressed) = self.doubt_log.failure() {
            let queue = &self.task.queue;
            let (partition, offset) = (&read.name, read.offset);
            warn!(%queue, %partition, offset, %why, suppressed, "{what}");
        }
    }

    // Closing.

    fn committed(&mut self, standing: Standing) {
        self.committing = false;
        self.standing = standing;
        self.show_checkpoint_age();
        let age = self.standing.pointer.k.saturating_sub(self.checkpointed);
        if age >= self.task.settings().checkpoint_every && !self.checkpointing {
            self.checkpointing = true;
            let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
            let positions = self.engine.checkpoint();
            self.start(async move {
                let written = task.write_checkpoint(fence, &standing, positions).await;
                Event::Checkpointed(written, standing.pointer.k)
            });
        }
    }

    fn show_checkpoint_age(&self) {
        let age = self.standing.pointer.k.saturating_sub(self.checkpointed);
        self.task.status.checkpoint_age.store(age, Relaxed);
    }

    fn close(&mut self, press: Press) {
        if self.committing {
            return;
        }
        let Some(close) = self.engine.close(press) else {
            return;
        };
        self.committing = true;
        let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
        match close {
            Close::Window(window) => {
                self.start(
                    async move { Event::Committed(task.commit(fence, &standing, &window).await) },
                )
            }
            Close::Idle(t_end) => self.start(async move {
                Event::Committed(task.commit_idle(fence, &standing, t_end).await)
            }),
        }
    }

    /// Begins a window whose records do not fit in memory; `false` when there is none to begin.
    fn stream_oversized(&mut self) -> bool {
        let Some((t_start, t_end)) = self.engine.oversized() else {
            return false;
        };
        self.committing = true;
        let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
        self.start(async move {
            let intent = task.intent(&standing, t_start, t_end);
            let written = fence.write_intent(&intent).await;
            Event::Oversized(
                written
                    .map_err(End::from)
                    .map(|()| Outcome::Redo(Box::new((standing, intent)))),
            )
        });
        true
    }
}

/// What to expect of rendered bytes per stored byte after an answer of `rendered` bytes to a
/// request for `stored`: rises at once, falls slowly.
fn expansion(before: f64, rendered: usize, stored: f64) -> f64 {
    let seen = rendered as f64 / stored;
    let after = if seen > before {
        seen
    } else {
        before * 0.98 + seen * 0.02
    };
    after.clamp(1.0, 100.0)
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
