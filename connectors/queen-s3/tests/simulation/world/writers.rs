//! What happens in the broker besides the sinks: pushes, deletions, hidden sessions, clocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queen_s3::broker::{FetchRequest, Name};
use tokio::time::sleep;

use super::bodies::{partition_name, record};
use super::dice::Dice;
use super::objects::md5_of;
use super::scenario::Scenario;
use super::visits::Situation;
use super::{State, World, spelling};

/// Longest time that a transaction whose session is hidden stays open, ms: the broker's time-outs
/// keep it below the floor that a degraded `safeTime` stands on.
const MASKED_MS: i64 = 20_000;
/// How far back a `ts` lies at most when the broker breaks its promise, µs.
const BACK_MICROS: i64 = 90_000_000;
/// How long to wait before a partition that a transaction holds is tried again.
const HELD: Duration = Duration::from_millis(200);
/// Most records with which a partition is made again.
const MADE_AGAIN: i64 = 60;
/// As many where partitions are restless: a sink that lags has not read so far.
const RESTLESS: i64 = 300;
/// Probability that a partition ends with the request for it on its way, where they are.
const ENDS_AS_IT_IS_READ: f64 = 0.02;
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
            let broken = !state.calm && state.dice.chance(scenario.promise_breaks);
            let back = broken.then(|| state.dice.between(0, BACK_MICROS));
            state
                .log
                .insert(transaction, now, (queue, &partition), records, back);
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
        for (queue, record) in state.log.take_broken() {
            state.checker.visits.met(Situation::PromiseBroken);
            state.checker.promise_broken(&queue, record, &mut state.log);
        }
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

/// Pushes once more into every partition, so that listings name what came late.
pub async fn push_to_all(world: &World) {
    let mut left: Vec<(String, Name)> = world.with(|state| {
        let living = world.scenario.queues.iter();
        let living = living.filter_map(|queue| Some((queue, state.log.living(queue)?)));
        living
            .flat_map(|(queue, found)| {
                let names = found.partitions.keys();
                names.map(|name| (queue.clone(), name.clone()))
            })
            .collect()
    });
    while !left.is_empty() {
        let now = world.broker_now();
        world.with(|state| {
            left.retain(|(queue, name)| {
                let transaction = state.log.begin(now, false);
                let records = vec![record(&mut state.dice, 0, 0)];
                let at = (&**queue, name);
                let pushed = state.log.insert(transaction, now, at, records, None);
                let dice = &mut state.dice;
                state.log.commit(transaction, || dice.bits());
                !pushed
            });
        });
        world.written.notify_waiters();
        // A transaction may hold a partition for a while.
        sleep(HELD).await;
    }
}

/// Creates the queues, at once or after a while.
pub async fn create_queues(world: Arc<World>) {
    for queue in &world.scenario.queues {
        if world.scenario.queues_appear_late {
            let pause = world.with(|state| state.dice.millis(0, 20_000));
            sleep(pause).await;
        }
        world.note(format_args!("queue {queue} is created"));
        world.with(|state| state.log.create_queue(queue));
    }
}

/// Deletes what is too old, whole partitions, and whole queues.
pub async fn delete(world: Arc<World>) {
    loop {
        let pause = world.with(|state| state.dice.millis(1_000, 10_000));
        sleep(pause).await;
        let now = world.broker_now();
        let scenario = &world.scenario;
        let queue = &scenario.queues[0];
        let (segments, partition, gone) = world.with(|state| {
            if state.calm {
                return (0, None, false);
            }
            let age = scenario
                .retention
                .map(|age| i64::try_from(age.as_micros()).unwrap_or(i64::MAX));
            let segments = age.map_or(0, |age| state.log.retain(now - age));
            let mut partition = None;
            let often = if scenario.restless { 0.8 } else { 0.3 };
            if scenario.partition_deletes && state.dice.chance(often) {
                let name = partition_name(state.dice.between(0, scenario.partitions - 1));
                if delete_partition(state, scenario, queue, &name, now) {
                    partition = Some(name);
                }
            }
            if state.dice.chance(0.1) {
                let name = partition_name(state.dice.between(0, scenario.partitions));
                let id = state.dice.bits();
                state.log.create_partition(queue, &name, now, id);
            }
            let gone = scenario.queue_deletes
                && state.dice.chance(0.08)
                && state.log.delete_queue(queue, scenario.lives_apart());
            (segments, partition, gone)
        });
        if segments > 0 {
            world.met(Situation::Retained);
        }
        if segments > 0 || partition.is_some() {
            world.note(format_args!(
                "deleted: {segments} segments, partition {partition:?}"
            ));
        }
        if gone {
            world.note(format_args!("queue {queue} is deleted"));
            let pause = world.with(|state| state.dice.millis(0, 90_000));
            sleep(pause).await;
            world.note(format_args!("queue {queue} is made again"));
            world.met(Situation::QueueRemade);
            world.with(|state| state.log.create_queue(queue));
        }
    }
}

/// Deletes a partition that is asked for, now and then where partitions are restless: something of it was
/// unread then, for sure.
pub fn delete_as_it_is_read(world: &World, request: &FetchRequest) {
    let scenario = &world.scenario;
    if !scenario.restless {
        return;
    }
    let now = world.broker_now();
    let deleted = world.with(|state| {
        if state.calm || !state.dice.chance(ENDS_AS_IT_IS_READ) {
            return None;
        }
        let last = request.entries.len() as i64 - 1;
        let at = usize::try_from(state.dice.between(0, last)).unwrap_or(0);
        let name = request.entries[at].partition.clone();
        delete_partition(state, scenario, &request.queue, &name, now).then_some(name)
    });
    if let Some(name) = deleted {
        world.note(format_args!("deleted as it is read: partition {name:?}"));
        world.met(Situation::EndedAsItWasRead);
    }
}

/// Deletes a partition, unless it is a further life that no lake has dealt with yet: what two lives
/// in a row left in a sink's buffer under one name cannot be told apart if not every answer tells its
/// life. Without ids, or where partitions are restless, its next life mostly begins at once, with about
/// as many records or more: nothing else is as hard to tell.
fn delete_partition(
    state: &mut State,
    scenario: &Scenario,
    queue: &str,
    name: &Name,
    now: i64,
) -> bool {
    let length = state.log.length(queue, name);
    let deletes = (scenario.restless || state.log.is_dealt_with(queue, name)) && {
        let gap = scenario.lives_apart();
        state.log.delete_partition(queue, name, gap)
    };
    if deletes {
        state.checker.visits.met(Situation::PartitionEnded);
    }
    if deletes && (!scenario.ids || scenario.restless) && state.dice.chance(0.7) {
        state.checker.visits.met(Situation::Reborn);
        let most = if scenario.restless {
            RESTLESS
        } else {
            MADE_AGAIN
        };
        let count = (length + state.dice.between(-3, 12)).clamp(1, most);
        let transaction = state.log.begin(now, false);
        let records = (0..count)
            .map(|number| record(&mut state.dice, number.unsigned_abs(), scenario.pad))
            .collect();
        let at = (queue, name);
        state.log.insert(transaction, now, at, records, None);
        let dice = &mut state.dice;
        state.log.commit(transaction, || dice.bits());
    }
    deletes
}

/// Hides sessions now and then, moves the broker's clock, and drops leases.
pub async fn disturb(world: Arc<World>) {
    loop {
        let pause = world.with(|state| state.dice.millis(1_000, 60_000));
        sleep(pause).await;
        let scenario = &world.scenario;
        let event = world.with(|state| {
            if state.calm {
                state.log.hidden_session = false;
                return None;
            }
            if scenario.masked > 0.0 {
                state.log.hidden_session = state.dice.chance(0.3);
            }
            if scenario.leases_vanish && state.dice.chance(0.3) {
                let at = state.dice.between(0, scenario.queues.len() as i64 - 1);
                let queue = &scenario.queues[usize::try_from(at).unwrap_or(0)];
                state.store.remove(&spelling::document(queue, "lease"));
                state.checker.visits.met(Situation::LeaseVanished);
                return Some(format!("the lease of {queue} vanishes"));
            }
            let step = if scenario.clock_steps_back && state.dice.chance(0.3) {
                -state.dice.between(0, 20_000_000)
            } else if scenario.clock_jump > 0 && state.dice.chance(0.3) {
                state.dice.between(0, scenario.clock_jump)
            } else {
                return None;
            };
            state.clock_step += step;
            state.checker.visits.met(match step < 0 {
                true => Situation::ClockBack,
                false => Situation::ClockAhead,
            });
            Some(format!("the broker's clock jumps by {step} µs"))
        });
        if let Some(event) = event {
            world.note(format_args!("{event}"));
        }
    }
}

/// Loses and damages checkpoints.
pub async fn damage_checkpoints(world: Arc<World>) {
    if !world.scenario.checkpoints_suffer {
        return;
    }
    loop {
        let pause = world.with(|state| state.dice.millis(1_000, 40_000));
        sleep(pause).await;
        let event = world.with(|state| {
            if state.calm {
                return None;
            }
            let keys: Vec<String> = state
                .objects
                .visible
                .keys()
                .filter(|key| key.contains("/checkpoint/"))
                .cloned()
                .collect();
            let at = state.dice.between(0, keys.len() as i64);
            let key = keys.get(usize::try_from(at).unwrap_or(0))?;
            let object = state.objects.visible.get_mut(key)?;
            let dice = &mut state.dice;
            let damaged = match dice.between(0, 3) {
                0 => {
                    state.objects.visible.remove(key);
                    state.checker.visits.met(Situation::CheckpointLost);
                    return Some(format!("{key} is lost"));
                }
                1 => {
                    let end = dice.between(0, object.bytes.len() as i64);
                    object
                        .bytes
                        .slice(..usize::try_from(end).unwrap_or_default())
                }
                2 => "no checkpoint".into(),
                _ => moved_positions(dice, &object.bytes)?,
            };
            object.etag = hex::encode(md5_of(&damaged));
            object.bytes = damaged;
            state.checker.checkpoint_damaged(key);
            state.checker.visits.met(Situation::CheckpointDamaged);
            Some(format!("{key} is damaged"))
        });
        if let Some(event) = event {
            world.note(format_args!("{event}"));
        }
    }
}

/// A checkpoint whose positions are wrong in both directions, but read.
fn moved_positions(dice: &mut Dice, content: &[u8]) -> Option<Bytes> {
    let text = zstd::decode_all(content).ok()?;
    let mut document: serde_json::Value = serde_json::from_slice(&text).ok()?;
    for position in document["positions"].as_array_mut()? {
        let offset = position[1].as_i64()? + dice.between(-20, 20);
        position[1] = offset.max(0).into();
    }
    let text = document.to_string();
    Some(zstd::encode_all(text.as_bytes(), 3).ok()?.into())
}
