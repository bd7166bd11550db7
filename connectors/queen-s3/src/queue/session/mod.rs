//! The running loop of an owned queue: discover, read, close, commit; all at once, within the
//! memory budget, one window at a time.

mod passes;
mod reading;
mod sizing;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::absence::Absence;
use super::turn::{Turn, Waiting};
use super::{End, Standing, Task};
use crate::broker::{BrokerError, Changed, FetchAnswer};
use crate::config::CrashPoint;
use crate::gaps::Gaps;
use crate::lake::checkpoint::Positions;
use crate::lake::documents::Intent;
use crate::limits::{ENCODED_MARGIN, FETCH_CALL_LEAST_BYTES, QUEUE_ROOM_BYTES, WINDOWS_AHEAD};
use crate::ownership::Fence;
use crate::time::Micros;
use crate::window::{Close, Engine, Left, Policy, Press, ReadRequest, Remembered};

use passes::Discovery;
pub(super) use reading::Probing;
use reading::{Call, Reading};

/// How a session came to its end.
pub(in crate::queue) enum Outcome {
    /// Work on the queue ends.
    End(End),
    /// A window that does not fit in memory, or of which an object could not be brought to its end: its
    /// intent is durable, and it is to be written as a redo is.
    Redo(Box<Redo>),
}

/// A window to be written as a redo is.
pub(in crate::queue) struct Redo {
    pub(in crate::queue) standing: Standing,
    pub(in crate::queue) intent: Intent,
    /// The records that it had.
    pub(in crate::queue) window: Remembered,
    /// What is left of the windows after it; of the session, if the window did not fit in memory.
    pub(in crate::queue) left: Left,
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
    Committed(Result<Standing, Outcome>),
    Oversized(Result<Outcome, End>),
    /// Whether a checkpoint was written, after this window.
    Checkpointed(bool, u64),
}

/// A window that is being committed.
struct Window {
    k: u64,
    record_bytes: u64,
    /// Memory that its records take, about.
    memory: u64,
    /// Its records, and what it names as lost.
    remembered: Remembered,
}

/// A window that is encoded while one before it is being committed.
struct Ahead {
    /// Tells it that its turn has come.
    turn: oneshot::Sender<Standing>,
    window: Window,
    /// What a checkpoint after the window before it holds, if one is due.
    positions: Option<Positions>,
}

/// The windows that are closed and not committed.
struct Writing {
    committing: bool,
    /// The window that is being committed; a move of the pointer has none.
    window: Option<Window>,
    /// The windows after it that are closed, in order.
    ahead: VecDeque<Ahead>,
    /// Bytes expected of an object for each record byte of a window, at most 1.
    encoded_share: f64,
}

impl Writing {
    fn nothing() -> Self {
        Self {
            committing: false,
            window: None,
            ahead: VecDeque::new(),
            encoded_share: 1.0,
        }
    }
}

/// The checkpoints of the session.
struct Checkpoints {
    under_way: bool,
    /// Window after which the last one was written.
    last: u64,
}

struct Session<'a> {
    task: &'a Task,
    fence: &'a Fence,
    engine: Engine,
    standing: Standing,
    under_way: FuturesUnordered<BoxFuture<'a, Event>>,
    discovery: Discovery,
    reading: Reading,
    writing: Writing,
    checkpoints: Checkpoints,
    /// Whether memory for more was missed.
    short: bool,
    /// The last answers, when they said that the queue is gone.
    absent: Option<Absence>,
    /// The `safeTime` of the last one, once that is certain: what was read of the queue is brought
    /// into windows, and what was not is named there.
    gone: Option<Micros>,
    /// On a stop: whether the window being filled was judged.
    judged: bool,
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

    /// Runs the queue, of which another session has `left` something, until it ends or a window has to be
    /// written the other way.
    pub(super) async fn session(
        &self,
        fence: &Fence,
        standing: Standing,
        left: Left,
        stop: &CancellationToken,
    ) -> Outcome {
        let engine = tokio::select! {
            biased;
            () = stop.cancelled() => return End::Drained.into(),
            engine = self.engine(&standing, Remembered::default(), left) => engine,
        };
        let _asking = self.context.status.asking();
        let age = self.status.checkpoint_age.load(Relaxed);
        let checkpoints = Checkpoints {
            under_way: false,
            last: standing.pointer.k - age,
        };
        let jitter = &self.context.jitter;
        let mut session = Session {
            task: self,
            fence,
            engine,
            standing,
            under_way: FuturesUnordered::new(),
            discovery: Discovery::due(jitter),
            reading: Reading::new(jitter),
            writing: Writing::nothing(),
            checkpoints,
            short: false,
            absent: None,
            gone: None,
            judged: false,
        };
        let outcome = session.run(stop).await;
        self.status.buffered.store(0, Relaxed);
        outcome
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl<'a> Session<'a> {
    async fn run(&mut self, stop: &CancellationToken) -> Outcome {
        let budget = &self.task.context.budget;
        let mut woken = false;
        loop {
            self.short = false;
            if stop.is_cancelled() {
                if self.judged_last_window() && !self.writing.committing {
                    return End::Drained.into();
                }
            } else if let Some(safe_time) = self.gone {
                self.close(Press::Gone);
                if !self.writing.committing && self.engine.is_drained() {
                    return End::Absent(safe_time).into();
                }
                // Later answers settle the rest.
                self.discover();
            } else if self.absent.is_some() {
                self.close(self.press());
                // Later answers agree, or say that the queue is back.
                self.discover();
            } else {
                self.discover();
                self.close(self.press());
                self.read();
            }
            self.show_buffered();
            if std::mem::take(&mut woken) && !self.short {
                // There may be room for others as well.
                budget.offer_room();
            }
            let draining = stop.is_cancelled();
            let waits = self.discovery.is_idle() && !draining;
            let wake = waits.then(|| self.next_pass());
            let event = tokio::select! {
                biased;
                () = stop.cancelled(), if !draining => continue,
                Some(event) = self.under_way.next() => event,
                () = budget.room(), if self.short => {
                    woken = true;
                    continue;
                }
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
        if !self.writing.committing && !std::mem::replace(&mut self.judged, true) {
            self.close(if self.gone.is_some() {
                Press::Gone
            } else {
                Press::Drain
            });
        }
        self.judged
    }

    fn start(&mut self, work: impl Future<Output = Event> + Send + 'a) {
        self.under_way.push(work.boxed());
    }

    fn apply(&mut self, event: Event) -> Result<(), Outcome> {
        match event {
            Event::Page(answer) => self.page(answer),
            Event::Fetched(call, answer) => self.fetched(&call, answer),
            Event::Released(reads) => reads.iter().for_each(|read| self.engine.unread(read)),
            Event::Committed(Ok(standing)) => self.committed(standing),
            Event::Committed(Err(Outcome::Redo(redo))) => {
                return Err(Outcome::Redo(self.with_left(redo)));
            }
            Event::Committed(Err(outcome)) => return Err(outcome),
            Event::Checkpointed(written, k) => {
                self.checkpoints.under_way = false;
                if written {
                    self.checkpoints.last = k;
                }
                self.show_checkpoint_age();
            }
            Event::Oversized(result) => return Err(result?),
        }
        Ok(())
    }

    /// Adds what this session, which ends with it, knows of the window and of those after it.
    fn with_left(&mut self, mut redo: Box<Redo>) -> Box<Redo> {
        let window = self.writing.window.take();
        let window = window.map(|window| window.remembered).unwrap_or_default();
        redo.window = self.engine.outlived(window);
        let ahead = self.writing.ahead.drain(..);
        redo.left = self.engine.left(ahead.map(|ahead| ahead.window.remembered));
        redo
    }

    fn committed(&mut self, standing: Standing) {
        self.task.goes_on();
        self.standing = standing;
        if let Some(written) = self.writing.window.take() {
            self.learn(&written);
        }
        let ahead = self.writing.ahead.pop_front();
        self.writing.committing = ahead.is_some();
        let ahead_of_it = self.writing.ahead.iter();
        let windows = ahead.iter().chain(ahead_of_it);
        let writing = windows.map(|ahead| ahead.window.memory).sum();
        self.task.status.writing.store(writing, Relaxed);
        self.show_checkpoint_age();
        let due = self.checkpoint_due(self.standing.pointer.k) && !self.checkpoints.under_way;
        let positions = match ahead {
            Some(ahead) => {
                // It waits for nothing else.
                let _ = ahead.turn.send(self.standing.clone());
                self.writing.window = Some(ahead.window);
                ahead.positions.filter(|_| due)
            }
            None => due.then(|| self.engine.checkpoint()),
        };
        if let Some(positions) = positions {
            self.checkpoints.under_way = true;
            let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
            self.start(async move {
                let written = task.write_checkpoint(fence, &standing, positions).await;
                Event::Checkpointed(written, standing.pointer.k)
            });
        }
    }

    /// Learns from a window that is committed how long the objects of the next ones may become.
    fn learn(&mut self, written: &Window) {
        if written.record_bytes > 0 {
            let share = self.standing.pointer.bytes as f64 / written.record_bytes as f64;
            self.writing.encoded_share = (share * ENCODED_MARGIN).min(1.0);
        }
    }

    /// Whether a checkpoint is to be written once window `k` is committed.
    fn checkpoint_due(&self, k: u64) -> bool {
        k.saturating_sub(self.checkpoints.last) >= self.task.settings().checkpoint_every
    }

    fn show_checkpoint_age(&self) {
        let k = self.standing.pointer.k;
        let age = k.saturating_sub(self.checkpoints.last);
        self.task.status.checkpoint_age.store(age, Relaxed);
    }

    /// Shows what is buffered and in no window, of which it answers how much memory it takes: what other
    /// queues compare theirs with while this one waits.
    fn show_buffered(&self) -> u64 {
        let buffered = self.buffered();
        self.task.status.buffered.store(buffered, Relaxed);
        buffered
    }

    /// Whether memory is short and this queue's buffer is the largest of all. A larger window that
    /// another queue is writing makes room soon; until then a queue stays within its own.
    fn press(&self) -> Press {
        let context = &self.task.context;
        let mine = self.show_buffered();
        let taken = self.task.taken();
        if taken + FETCH_CALL_LEAST_BYTES <= context.budget.limit() || mine == 0 {
            return Press::None;
        }
        let larger = context.status.any_queue(|status| {
            let written = mine < QUEUE_ROOM_BYTES && status.writing.load(Relaxed) > mine;
            written || status.buffered.load(Relaxed) > mine
        });
        if larger { Press::None } else { Press::Memory }
    }

    fn close(&mut self, press: Press) {
        if self.writing.committing {
            return self.close_ahead();
        }
        let Some(close) = self.engine.close(press) else {
            return;
        };
        self.writing.committing = true;
        let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
        match close {
            Close::Window(mut window) => {
                let memory = self.memory_of(window.record_bytes);
                self.task.status.writing.store(memory, Relaxed);
                self.writing.window = Some(Window {
                    k: standing.pointer.k + 1,
                    record_bytes: window.record_bytes,
                    memory,
                    // An intent has not room for all that may be lost.
                    remembered: std::mem::take(&mut window.remembered).with_lost(&window.lost),
                });
                let turn = Turn::Now(standing);
                let room = task.context.budget.claim(0);
                self.start(
                    async move { Event::Committed(task.commit(fence, turn, room, window).await) },
                )
            }
            Close::Idle(t_end) => self.start(async move {
                let moved = task.commit_idle(fence, &standing, t_end).await;
                Event::Committed(moved.map_err(Outcome::End))
            }),
        }
    }

    /// Closes a window after the one that is being committed, to be encoded meanwhile: one that is
    /// full, while there is room for its records, for what they are likely to become, and for what is
    /// read meanwhile.
    fn close_ahead(&mut self) {
        let last = self.writing.ahead.back().map(|ahead| &ahead.window);
        let Some(&Window { k, .. }) = last.or(self.writing.window.as_ref()) else {
            return;
        };
        if self.writing.ahead.len() >= WINDOWS_AHEAD {
            return;
        }
        if !self.engine.is_full() {
            return;
        }
        let settings = self.task.settings();
        let reading = self.reading.reserved + settings.fetch_concurrency * self.task.call_bytes();
        let encoded = settings.target_bytes as f64 * self.writing.encoded_share;
        let budget = &self.task.context.budget;
        let Some(room) = budget.reserve(encoded as usize, reading) else {
            self.short = true;
            return;
        };
        let positions = self.checkpoint_due(k).then(|| self.engine.checkpoint());
        let Some(Close::Window(mut window)) = self.engine.close(Press::None) else {
            return;
        };
        let memory = self.memory_of(window.record_bytes);
        self.task.status.writing.fetch_add(memory, Relaxed);
        let (turn, committed) = oneshot::channel();
        self.writing.ahead.push_back(Ahead {
            turn,
            window: Window {
                k: k + 1,
                record_bytes: window.record_bytes,
                memory,
                remembered: std::mem::take(&mut window.remembered).with_lost(&window.lost),
            },
            positions,
        });
        let turn = Turn::Later(Waiting {
            k,
            lineage: self.standing.lineage.clone(),
            committed,
        });
        let (task, fence) = (self.task, self.fence);
        self.start(async move { Event::Committed(task.commit(fence, turn, room, window).await) });
    }

    /// Begins a window whose records do not fit in memory; `false` when there is none to begin.
    fn stream_oversized(&mut self) -> bool {
        let Some((t_start, t_end)) = self.engine.oversized() else {
            return false;
        };
        self.writing.committing = true;
        // The engine ends with this session, and what it holds with it.
        let late = self.engine.late(t_start, t_end);
        let mut left = self.engine.left([]);
        let lost = std::mem::take(&mut left.gone);
        let gaps = Gaps { lost, late };
        let (task, fence, standing) = (self.task, self.fence, self.standing.clone());
        self.start(async move {
            let (after, lineage) = (standing.pointer.k, &standing.lineage);
            let intent = task.intent(after, lineage, t_start, t_end, &gaps);
            let written = fence.write_intent(&intent).await;
            Event::Oversized(written.map_err(End::from).map(|()| {
                task.context.crash_point(CrashPoint::AfterIntent);
                Outcome::Redo(Box::new(Redo {
                    standing,
                    intent,
                    window: Remembered::default().with_lost(&gaps.lost),
                    left,
                }))
            }))
        });
        true
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
