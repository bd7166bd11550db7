//! What happens in the broker besides the sinks: pushes, deletions, hidden sessions, clocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::World;
use super::bodies::{partition_name, record};
use super::log::Queue;

/// Longest time that a transaction whose session is hidden stays open, ms: the broker's time-outs
/// keep it below the floor that a degraded `safeTime` stands on.
const MASKED_MS: i64 = 20_000;
/// Longest time that a transaction stays open, ms.
const LONG_MS: i64 = 90_000;

/// Pushes until the task is stopped.
pub async fn push(world: Arc<World>) {
    let mut number = 0;
    loop {
        // A backlog of the time of faults must be worked off, however slow a sink is configured.
        let pause = world.with(|state| {
            let longest = world.scenario.push_pause_ms * if state.calm { 10 } else { 1 };
            state.dice.millis(1, longest)
        });
        sleep(pause).await;
        number += 1;
        tokio::spawn(transaction(Arc::clone(&world), number));
    }
}

async fn transaction(world: Arc<World>, number: u64) {
    let scenario = &world.scenario;
    let started = world.broker_now();
    let (transaction, stages, gaps, aborts) = world.with(|state| {
        let masked = !state.calm && state.dice.chance(scenario.masked);
        let long = !state.calm && state.dice.chance(scenario.long_transaction);
        let longest = match (masked, long) {
            (true, true) => MASKED_MS / 5,
            (false, true) => LONG_MS / 5,
            _ => 20,
        };
        let transaction = state.log.begin(started, masked);
        let stages = state.dice.pick(&[1, 1, 1, 2, 4]);
        let gaps: Vec<Duration> = (0..=stages)
            .map(|_| state.dice.millis(0, longest))
            .collect();
        (transaction, stages, gaps, state.dice.chance(0.05))
    });
    for (stage, gap) in (0..stages).zip(&gaps) {
        sleep(*gap).await;
        let now = world.broker_now();
        world.with(|state| {
            let at = state.dice.between(0, scenario.queues.len() as i64 - 1);
            let queue = &scenario.queues[usize::try_from(at).unwrap_or(0)];
            let partition = partition_name(state.dice.between(0, scenario.partitions - 1));
            let count = state.dice.between(1, scenario.push_records);
            let records = (0..count)
                .map(|index| {
                    let number = number * 1_000 + stage * 100 + index.unsigned_abs();
                    record(&mut state.dice, number, scenario.pad)
                })
                .collect();
            state
                .log
                .insert(transaction, now, queue, &partition, records);
        });
    }
    sleep(gaps[gaps.len() - 1]).await;
    if aborts {
        world.with(|state| state.log.abort(transaction));
        return;
    }
    let verdicts: Vec<_> = world.with(|state| {
        let dice = &mut state.dice;
        let visible = state.log.commit(transaction, || dice.bits());
        visible
            .iter()
            .map(|(queue, ts)| state.checker.segment_visible(queue, *ts))
            .collect()
    });
    for verdict in verdicts {
        world.judge(verdict);
    }
    world.note(format_args!("transaction {number} ends"));
    world.written.notify_waiters();
}

/// Creates the queues, at once or after a while.
pub async fn create_queues(world: Arc<World>) {
    for queue in &world.scenario.queues {
        if world.scenario.queues_appear_late {
            let pause = world.with(|state| state.dice.millis(0, 20_000));
            sleep(pause).await;
        }
        world.note(format_args!("queue {queue} is created"));
        world.with(|state| state.log.queues.insert(queue.clone(), Queue::default()));
    }
}

/// Deletes what is too old, and whole partitions.
pub async fn delete(world: Arc<World>) {
    loop {
        let pause = world.with(|state| state.dice.millis(1_000, 10_000));
        sleep(pause).await;
        let now = world.broker_now();
        let scenario = &world.scenario;
        let (segments, partition) = world.with(|state| {
            if state.calm {
                return (0, None);
            }
            let age = scenario
                .retention
                .map(|age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
            let segments = age.map_or(0, |age| state.log.retain(now - age));
            let mut gone = None;
            if scenario.partition_deletes && state.dice.chance(0.3) {
                let name = partition_name(state.dice.between(0, scenario.partitions - 1));
                let queue = &scenario.queues[0];
                if state.log.delete_partition(queue, &name) {
                    gone = Some(name);
                }
            }
            if state.dice.chance(0.1) {
                let name = partition_name(state.dice.between(0, scenario.partitions));
                let id = state.dice.bits();
                state
                    .log
                    .create_partition(&scenario.queues[0], &name, now, id);
            }
            (segments, gone)
        });
        if segments > 0 || partition.is_some() {
            world.note(format_args!(
                "deleted: {segments} segments, partition {partition:?}"
            ));
        }
    }
}

/// Hides sessions now and then, deletes leases, and steps the broker's clock back.
pub async fn disturb(world: Arc<World>) {
    loop {
        let pause = world.with(|state| state.dice.millis(1_000, 60_000));
        sleep(pause).await;
        let scenario = &world.scenario;
        world.with(|state| {
            if state.calm {
                state.log.hidden_session = false;
                return;
            }
            if scenario.masked > 0.0 {
                state.log.hidden_session = state.dice.chance(0.3);
            }
            if scenario.lease_deletes && state.dice.chance(0.5) {
                state.store.delete(":lease");
            }
            if scenario.clock_steps_back && state.dice.chance(0.3) {
                state.clock_step -= state.dice.between(0, 20_000_000);
            }
        });
    }
}
