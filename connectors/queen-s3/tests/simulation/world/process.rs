//! The life of sink processes: started, crashed, paused, stopped, started again.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use queen_s3::memory::MemoryBudget;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::World;
use super::clock::MachineClock;
use super::network::{Link, Process};
use super::scenario::Configuration;
use super::sink;
use super::visits::Situation;

/// What is known of a process at its start.
pub struct Start {
    /// Its connection.
    pub link: Link,
    /// Its machine's clocks.
    pub clock: MachineClock,
    /// How it is configured.
    pub configuration: Configuration,
    /// Its instance name.
    pub instance: String,
    /// Seed of what the process itself leaves to chance.
    pub seed: u64,
}

enum Trouble {
    Crash,
    Pause(Duration),
    Stop(Duration),
}

/// Keeps a process running in `slot`, from trouble to trouble.
pub async fn supervise(world: Arc<World>, slot: usize) {
    for life in 1.. {
        let downtime = world.with(|state| {
            if state.calm {
                Duration::ZERO
            } else {
                state.dice.millis(0, 20_000)
            }
        });
        if life > 1 || slot > 0 {
            sleep(downtime).await;
        }
        world.down.becomes(false).await;
        live(&world, slot, life).await;
    }
}

async fn live(world: &Arc<World>, slot: usize, life: u64) {
    let process = Arc::new(Process::new(format!("{slot}.{life}")));
    let start = world.with(|state| {
        let renamed = world.scenario.renames && state.dice.chance(0.5);
        Start {
            link: Link {
                world: Arc::clone(world),
                process: Arc::clone(&process),
                budget: MemoryBudget::new(world.scenario.memory),
                trust: Arc::default(),
            },
            clock: MachineClock::draw(world, &mut state.dice),
            configuration: Configuration::draw(&mut state.dice),
            instance: if renamed {
                format!("sink-{slot}-{life}")
            } else {
                format!("sink-{slot}")
            },
            seed: state.dice.bits() as u64,
        }
    });
    world.note(format_args!(
        "{} starts: {:?}",
        process.name, start.configuration
    ));
    let stop = CancellationToken::new();
    let running = process.gate.hold(sink::run(start, stop.clone()));
    tokio::pin!(running);
    loop {
        tokio::select! {
            biased;
            () = process.crashed.notified() => break,
            () = world.down.becomes(true) => break,
            () = &mut running => {
                world.judge(Err(format!("process {} ended by itself", process.name)));
                break;
            }
            trouble = trouble(world) => match trouble {
                Trouble::Crash => {
                    world.note(format_args!("{} is killed", process.name));
                    world.met(Situation::Killed);
                    break;
                }
                Trouble::Pause(pause) => {
                    world.note(format_args!("{} is paused for {pause:?}", process.name));
                    process.gate.pause();
                    // A pause ends early when the faults end.
                    let _ = timeout(pause, world.calm.becomes(true)).await;
                    world.note(format_args!("{} runs on", process.name));
                    process.gate.resume();
                    world.met(Situation::Paused);
                }
                Trouble::Stop(grace) => {
                    world.note(format_args!("{} is told to stop", process.name));
                    stop.cancel();
                    let ended = tokio::select! {
                        biased;
                        () = process.crashed.notified() => "crashed instead",
                        () = &mut running => {
                            world.met(Situation::Stopped);
                            "stopped"
                        }
                        () = sleep(grace) => {
                            world.met(Situation::Overdue);
                            "killed after its grace"
                        }
                    };
                    world.note(format_args!("{} {ended}", process.name));
                    break;
                }
            }
        }
    }
    world.with(|state| state.ended.insert(process.name.clone()));
    process.gate.kill();
}

async fn trouble(world: &World) -> Trouble {
    let Some(longest) = world.scenario.trouble else {
        return pending().await;
    };
    let longest = i64::try_from(longest.as_millis()).unwrap_or(i64::MAX);
    let pause = world.with(|state| state.dice.millis(0, longest));
    sleep(pause).await;
    if world.with(|state| state.calm) {
        return pending().await;
    }
    world.with(|state| match state.dice.between(0, 2) {
        0 => Trouble::Crash,
        1 => {
            let longest = i64::try_from(world.scenario.pause.as_millis()).unwrap_or(i64::MAX);
            Trouble::Pause(state.dice.millis(0, longest))
        }
        _ => Trouble::Stop(state.dice.millis(0, 60_000)),
    })
}
