//! What befalls a whole deployment, and the operator who mends what only an operator may.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use queen_s3::adopt::adopt;
use queen_s3::lake::documents::{CommitPointer, Intent};
use queen_s3::lake::keys::LakeKeys;
use queen_s3::memory::MemoryBudget;
use queen_s3::observe::status::Status;
use queen_s3::ownership::{Identity, Owner};
use queen_s3::retry::Jitter;
use queen_s3::verify;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::clock::MachineClock;
use super::network::{Link, Process};
use super::objects::{Object, md5_of};
use super::spelling::{self, PREFIX, SINK};
use super::store::Store;
use super::visits::Situation;
use super::{State, World};

/// Time in which every request that is on its way has landed, beside the slowest one's own.
const LANDED: Duration = Duration::from_secs(2);
/// How often the operator looks.
const ROUNDS: Duration = Duration::from_secs(10);
/// How long another lake's manifest lies beside this one's.
const FOREIGN: Duration = Duration::from_secs(30);

/// How often, and at which pauses, a moment is looked for.
const TRIES: u32 = 1_000;
const TRY: Duration = Duration::from_millis(10);

/// Kills every process now and then, and lets the key/value store come back another.
pub async fn strike(world: Arc<World>) {
    if !world.scenario.disasters {
        return;
    }
    let mut snapshot = Store::default();
    // A request may be slow, and be repeated as slowly.
    let slowest = Duration::from_millis(world.scenario.slow_ms.unsigned_abs() * 2);
    loop {
        let pause = world.with(|state| state.dice.millis(5_000, 60_000));
        sleep(pause).await;
        if world.with(|state| state.calm) {
            return;
        }
        if world.with(|state| state.dice.chance(0.5)) {
            if !world.with(|state| state.dice.chance(0.4)) {
                until(&world, |state| state.checker.amid_a_window()).await;
            }
            snapshot = world.with(|state| state.store.clone());
            continue;
        }
        if world.with(|state| state.own.chance(0.5)) {
            until(&world, |state| state.checker.is_half_up()).await;
        }
        world.note(format_args!("every process is killed"));
        world.down.set(true);
        sleep(slowest + LANDED).await;
        let now = world.broker_now();
        let event = world.with(|state| {
            let at = state
                .dice
                .between(0, world.scenario.queues.len() as i64 - 1);
            let queue = &world.scenario.queues[usize::try_from(at).unwrap_or(0)];
            match state.dice.between(0, 3) {
                0 => {
                    state.store.restore(&snapshot);
                    state.checker.visits.met(Situation::StoreOlder);
                    for queue in &world.scenario.queues {
                        replaced(state, queue, now);
                    }
                    "the key/value store is restored".to_owned()
                }
                1 => {
                    for name in ["intent", "committed", "lease"] {
                        state.store.remove(&spelling::document(queue, name));
                    }
                    replaced(state, queue, now);
                    state.checker.visits.met(Situation::DocumentsLost);
                    format!("the documents of {queue} are lost")
                }
                2 => plant(state, queue),
                _ => "nothing else".to_owned(),
            }
        });
        world.note(format_args!("{event}"));
        world.down.set(false);
    }
}

/// Waits a while for what `holds`: a store that comes back with an intent is rare, and one that comes back
/// without that of objects which are up.
async fn until(world: &World, holds: impl Fn(&State) -> bool) {
    for _ in 0..TRIES {
        if world.with(|state| holds(state)) {
            return;
        }
        sleep(TRY).await;
    }
}

fn replaced(state: &mut State, queue: &str, now: i64) {
    fn read<T: DeserializeOwned>(state: &State, queue: &str, name: &str, now: i64) -> Option<T> {
        let key = spelling::document(queue, name);
        let value = state.store.value("queen-s3", &key, now)?;
        serde_json::from_value(value.clone()).ok()
    }
    let pointer: Option<CommitPointer> = read(state, queue, "committed", now);
    let intent: Option<Intent> = read(state, queue, "intent", now);
    state.checker.store_replaced(queue, pointer, intent);
}

/// Puts another lake's manifest where this one's next is to be.
fn plant(state: &mut State, queue: &str) -> String {
    if state.planted.is_some() {
        return "nothing else".to_owned();
    }
    let Some(k) = state.checker.pointed(queue).filter(|k| *k > 0) else {
        return "nothing else".to_owned();
    };
    let last = state.objects.visible.get(&spelling::manifest(queue, k));
    let key = spelling::manifest(queue, k + 1);
    let (Some(last), false) = (last, state.objects.visible.contains_key(&key)) else {
        return "nothing else".to_owned();
    };
    let Ok(mut manifest) = serde_json::from_slice::<serde_json::Value>(&last.bytes) else {
        return "nothing else".to_owned();
    };
    manifest["k"] = (k + 1).into();
    manifest["prevTEnd"] = manifest["tEnd"].clone();
    manifest["tStart"] = manifest["tEnd"].clone();
    manifest["tEnd"] = (manifest["tStart"].as_i64().unwrap_or(0) + 1).into();
    manifest["lineage"] = "another lake".into();
    manifest["objects"] = serde_json::Value::Array(Vec::new());
    let bytes = bytes::Bytes::from(manifest.to_string());
    let etag = hex::encode(md5_of(&bytes));
    state
        .objects
        .visible
        .insert(key.clone(), Object { bytes, etag });
    let event = format!("another lake's manifest lies at {key}");
    state.checker.foreign(queue, Some(key.clone()));
    state.checker.visits.met(Situation::ForeignManifest);
    state.planted = Some((queue.to_owned(), key));
    event
}

/// Does what the errors of stopped queues ask for; never ends.
pub async fn operate(world: Arc<World>) {
    if !world.scenario.disasters {
        pending::<()>().await;
    }
    let mut round = 0;
    loop {
        sleep(ROUNDS).await;
        round += 1;
        let planted = world.with(|state| state.planted.clone());
        if let Some((queue, key)) = planted {
            sleep(FOREIGN).await;
            world.note(format_args!("the operator moves {key} away"));
            world.with(|state| {
                state.objects.visible.remove(&key);
                state.checker.foreign(&queue, None);
                state.planted = None;
            });
        }
        if world.down.is_raised() {
            continue;
        }
        for queue in &world.scenario.queues {
            if world.with(|state| state.checker.stranded(queue)) {
                try_adopt(&world, queue, round).await;
            }
            let Some((k, keys)) = world.with(|state| state.checker.unnamed(queue)) else {
                continue;
            };
            world.met(Situation::Unnamed);
            for key in keys {
                world.note(format_args!("the operator moves {key} away"));
                world.with(|state| {
                    state.objects.visible.remove(&key);
                    state.checker.object_moved(queue, k, &key, &mut state.log);
                });
            }
        }
    }
}

/// Runs `queen-s3 adopt`, which may come to nothing: the next round tries again.
async fn try_adopt(world: &Arc<World>, queue: &str, round: u64) {
    let process = Arc::new(Process::new(format!("operator.{round}")));
    let link = Link {
        world: Arc::clone(world),
        process: Arc::clone(&process),
        budget: MemoryBudget::new(1 << 20),
        trust: Arc::default(),
    };
    let (seed, clock) = world.with(|state| {
        let seed = state.dice.bits() as u64;
        (seed, MachineClock::draw(world, &mut state.dice))
    });
    let owner = Owner {
        broker: Arc::new(link.clone()),
        clock: Arc::new(clock),
        status: Arc::new(Status::default()),
        jitter: Jitter::new(seed),
        queue: queue.into(),
        keys: LakeKeys::new(PREFIX, SINK, queue),
        identity: Identity {
            instance: "operator".to_owned(),
            incarnation: format!("{seed:016x}"),
        },
        ttl: Duration::from_secs(world.scenario.lease_ttl_s.unsigned_abs()),
    };
    let store = verify::Store::new(Arc::new(link), Jitter::new(seed));
    let lake = verify::Lake::new(PREFIX, SINK, queue);
    tokio::select! {
        biased;
        () = process.crashed.notified() => {}
        () = world.down.becomes(true) => {}
        adopted = process.gate.hold(adopt(&store, &lake, &owner)) => match adopted {
            Ok(pointer) => {
                world.met(Situation::Adopted);
                world.note(format_args!("adopted {queue} at window {}", pointer.k));
            }
            Err(error) => world.note(format_args!("adopting {queue} comes to nothing: {error}")),
        }
    }
    process.gate.kill();
}
