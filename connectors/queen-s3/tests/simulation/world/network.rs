//! Calls between a process and the world, and everything that can happen to one.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use queen_s3::memory::MemoryBudget;
use queen_s3::record::Trust;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::World;
use super::dice::Dice;
use super::gate::Gate;
use super::scenario::Scenario;
use super::visits::Situation;

/// What a call does in the world, possibly more than once.
pub type Effect<T> = Arc<dyn Fn(Arc<World>) -> BoxFuture<'static, T> + Send + Sync>;

/// A process's connection to the broker and the bucket.
#[derive(Clone)]
pub struct Link {
    /// Where the calls go.
    pub world: Arc<World>,
    /// Who calls.
    pub process: Arc<Process>,
    /// The process's buffer budget.
    pub budget: Arc<MemoryBudget>,
    /// Whether it believes descriptions of blocks.
    pub trust: Arc<Trust>,
}

/// One incarnation of a sink process, as the network sees it.
pub struct Process {
    /// Name for the trace.
    pub name: String,
    /// What lets it run.
    pub gate: Gate,
    /// A call has crashed it.
    pub crashed: Notify,
    doomed: AtomicBool,
    /// A checkpoint was just written: what follows is its list of older ones.
    checkpointed: AtomicBool,
    /// When the latest applied lease write of each queue was sent.
    leases: Mutex<BTreeMap<String, Duration>>,
}

/// Why a call brought no answer.
#[derive(Debug)]
pub enum Failure {
    /// No connection, or none in time.
    Transport(&'static str),
    /// An HTTP status and its `Retry-After`.
    Status(u16, Option<Duration>),
    /// Right, but the answer's checksum is wrong.
    Checksum,
}

enum Fate {
    Answered,
    Refused(Failure),
    AnswerLost(Failure),
    Late {
        patience: Duration,
        lands: Option<Duration>,
    },
    Twice {
        again: Duration,
        second: bool,
    },
    Crash {
        lands: Option<Duration>,
    },
}

impl Process {
    /// A process called `name`.
    pub fn new(name: String) -> Self {
        Self {
            name,
            gate: Gate::default(),
            crashed: Notify::new(),
            doomed: AtomicBool::new(false),
            checkpointed: AtomicBool::new(false),
            leases: Mutex::default(),
        }
    }

    /// Notes that a lease write of this process for `queue`, sent at `sent`, has been applied.
    pub fn lease_applied(&self, queue: &str, sent: Duration) {
        self.leases(|leases| {
            let latest = leases.entry(queue.to_owned()).or_default();
            *latest = sent.max(*latest);
        });
    }

    /// Notes that this process knows a checkpoint of its own to be written.
    pub fn checkpoint_written(&self) {
        self.checkpointed.store(true, Ordering::Relaxed);
    }

    /// Whether a checkpoint was written since this was asked last.
    pub fn take_checkpoint_written(&self) -> bool {
        self.checkpointed.swap(false, Ordering::Relaxed)
    }

    /// When the latest applied lease write for `queue` was sent.
    pub fn lease_sent(&self, queue: &str) -> Option<Duration> {
        self.leases(|leases| leases.get(queue).copied())
    }

    fn leases<T>(&self, with: impl FnOnce(&mut BTreeMap<String, Duration>) -> T) -> T {
        with(&mut self.leases.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Link {
    /// Makes a call whose effect is `effect`. `streamed` requests go on only while the process
    /// runs, as a body does that is sent piece by piece.
    pub async fn call<T: Send + 'static>(
        &self,
        what: &str,
        streamed: bool,
        effect: Effect<T>,
    ) -> Result<T, Failure> {
        self.process.gate.running().await;
        self.world.count_call();
        let calm = self.world.with(|state| state.calm);
        let doomed = self.process.doomed.load(Ordering::Relaxed);
        let scenario = &self.world.scenario;
        let (there, back, fate) = self.world.with(|state| {
            let there = way(&mut state.dice, scenario, calm);
            let back = way(&mut state.dice, scenario, calm);
            (
                there,
                back,
                Fate::draw(&mut state.dice, scenario, calm, streamed),
            )
        });
        let who = &self.process.name;
        if doomed {
            pending::<()>().await;
        }
        if let Some(situation) = fate.situation() {
            self.world.met(situation);
        }
        let outcome = match fate {
            Fate::Answered => {
                let answer = self.send(there, streamed, &effect).await;
                sleep(back).await;
                Ok(answer)
            }
            Fate::Refused(failure) => {
                sleep(there + back).await;
                Err(failure)
            }
            Fate::AnswerLost(failure) => {
                self.send(there, streamed, &effect).await;
                sleep(back).await;
                Err(failure)
            }
            Fate::Late { patience, lands } => {
                if let Some(lands) = lands {
                    drop(self.launch(lands, streamed, &effect));
                }
                sleep(patience).await;
                Err(Failure::Transport("no answer in time"))
            }
            Fate::Twice { again, second } => {
                let first = self.launch(there, streamed, &effect);
                let repeated = self.launch(there + again, false, &effect);
                let answer = if second {
                    received(repeated).await
                } else {
                    received(first).await
                };
                sleep(back).await;
                Ok(answer)
            }
            Fate::Crash { lands } => {
                self.world.note(format_args!("{who} crashes at {what}"));
                if let Some(lands) = lands {
                    drop(self.launch(lands, false, &effect));
                }
                self.process.doomed.store(true, Ordering::Relaxed);
                self.process.crashed.notify_one();
                pending().await
            }
        };
        self.process.gate.running().await;
        match &outcome {
            Ok(_) => self.world.note(format_args!("{who} {what}")),
            Err(failure) => self.world.note(format_args!("{who} {what}: {failure:?}")),
        }
        outcome
    }

    async fn send<T: Send + 'static>(
        &self,
        there: Duration,
        streamed: bool,
        effect: &Effect<T>,
    ) -> T {
        received(self.launch(there, streamed, effect)).await
    }

    /// Starts a request that lands after `there`, whatever becomes of the process, unless it is
    /// still being sent.
    fn launch<T: Send + 'static>(
        &self,
        there: Duration,
        streamed: bool,
        effect: &Effect<T>,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        let effect = Arc::clone(effect);
        tokio::spawn(async move {
            sleep(there).await;
            if streamed && !process.gate.settled().await {
                return;
            }
            let answer = effect(world).await;
            // A caller that is gone wants no answer.
            let _ = sender.send(answer);
        });
        receiver
    }
}

async fn received<T>(receiver: oneshot::Receiver<T>) -> T {
    match receiver.await {
        Ok(answer) => answer,
        // The request was dropped with its dead process.
        Err(_) => pending().await,
    }
}

/// How long one way takes.
fn way(dice: &mut Dice, scenario: &Scenario, calm: bool) -> Duration {
    if !calm && dice.chance(scenario.slow_rate) {
        dice.millis(50, (scenario.slow_ms / 3).max(51))
    } else {
        dice.millis(0, 12)
    }
}

impl Fate {
    fn situation(&self) -> Option<Situation> {
        match self {
            Self::Answered | Self::Late { lands: None, .. } => None,
            Self::Refused(_) => Some(Situation::Refused),
            Self::AnswerLost(_) => Some(Situation::AnswerLost),
            Self::Late { lands: Some(_), .. } => Some(Situation::Late),
            Self::Twice { .. } => Some(Situation::Twice),
            Self::Crash { lands: None } => Some(Situation::Crashed),
            Self::Crash { lands: Some(_) } => Some(Situation::CrashedAfterwards),
        }
    }

    fn draw(dice: &mut Dice, scenario: &Scenario, calm: bool, streamed: bool) -> Self {
        if calm {
            return Self::Answered;
        }
        if dice.chance(scenario.crash_rate) {
            let lands = dice.chance(0.5).then(|| late(dice, scenario));
            return Self::Crash { lands };
        }
        if !dice.chance(scenario.error_rate) {
            return Self::Answered;
        }
        match dice.between(0, 7) {
            0 => Self::Refused(Failure::Transport("connection refused")),
            1 => {
                let retry_after = dice.chance(0.5).then(|| Duration::from_secs(2));
                Self::Refused(Failure::Status(dice.pick(&[429, 503]), retry_after))
            }
            2 => Self::Refused(Failure::Status(500, None)),
            3 => Self::AnswerLost(Failure::Transport("connection reset")),
            4 if streamed => Self::AnswerLost(Failure::Checksum),
            4 => Self::AnswerLost(Failure::Status(502, None)),
            5 | 6 => {
                let lands = dice.chance(0.7).then(|| late(dice, scenario));
                Self::Late {
                    patience: dice.millis(100, scenario.slow_ms.min(30_000)),
                    lands,
                }
            }
            _ => Self::Twice {
                again: late(dice, scenario),
                second: dice.chance(0.5),
            },
        }
    }
}

fn late(dice: &mut Dice, scenario: &Scenario) -> Duration {
    if dice.chance(0.5) {
        dice.millis(0, 100)
    } else {
        dice.millis(0, scenario.slow_ms)
    }
}
