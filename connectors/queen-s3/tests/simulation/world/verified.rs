//! What `queen-s3 verify` makes of the lakes that a run leaves: sink and check must not disagree
//! about what a lake may hold.

// The tests of the check ask more of it.
#[allow(dead_code)]
#[path = "../../checking/bucket.rs"]
mod left;

use std::sync::Arc;

use queen_s3::broker::Name;
use queen_s3::retry::Jitter;
use queen_s3::verify::{Finding, Kind, Progress, Store, verify};

use super::World;
use super::log::Log;
use super::spelling::{PREFIX, SINK};
use left::MemoryBucket;

/// Checks every lake of `world`, but for those that an operator has to look at.
pub fn verified(world: &World) -> Result<(), String> {
    let left = MemoryBucket::default();
    let queues = world.with(|state| {
        for (key, object) in &state.objects.visible {
            left.insert(key, object.bytes.clone());
        }
        let queues = world.scenario.queues.iter();
        let sound = queues.filter(|queue| !state.checker.contradicted(queue, &state.log));
        sound.cloned().collect::<Vec<String>>()
    });
    let store = Store::new(Arc::new(left), Jitter::new(1));
    // Objects are read on threads of their own, in real time.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O needs nothing of the machine");
    let mut progress = Progress::hidden();
    let checking = verify(&store, PREFIX, SINK, Some(&queues), &mut progress);
    let report = runtime
        .block_on(checking)
        .map_err(|error| format!("the lake cannot be verified: {error}"))?;
    for queue in &report.queues {
        let excused = |finding: &&Finding| {
            world.with(|state| {
                is_unknown(&state.log, &queue.queue, finding)
                    || is_life_below(&state.log, &queue.queue, finding)
            })
        };
        let wrong = queue.findings.iter().find(|finding| !excused(finding));
        if let Some(finding) = wrong {
            return Err(format!("verify finds in {}: {finding:?}", queue.queue));
        }
    }
    Ok(())
}

/// Whether `finding` takes a life for a repetition of the former one, or for records of it in the wrong order,
/// because the broker, which broke its promise, let it begin below that.
fn is_life_below(log: &Log, queue: &str, finding: &Finding) -> bool {
    let (true, Some(queue), Some(partition), Some(offset)) = (
        finding.kind == Kind::Duplicate || is_offset_out_of_order(finding),
        log.queues.get(queue),
        &finding.partition,
        finding.offset,
    ) else {
        return false;
    };
    let name: Name = partition.as_str().into();
    let lives = queue.lives.get(&(name.clone(), offset));
    let lives = lives.map_or(&[][..], Vec::as_slice);
    let broken = |ts: &i64| {
        let truth = queue.truth.get(&(*ts, name.clone(), offset));
        truth.is_some_and(|truth| truth.broken)
    };
    lives.len() > 1 && lives.iter().any(broken)
}

/// Whether `finding` is of a run of offsets that come after greater ones, and not of a partition's place.
fn is_offset_out_of_order(finding: &Finding) -> bool {
    finding.kind == Kind::Order && finding.text.contains("comes after offset")
}

/// Whether `finding` is a hole that no sink could have known of, which the checker has counted.
fn is_unknown(log: &Log, queue: &str, finding: &Finding) -> bool {
    let (Kind::Gap, Some(queue), Some(partition)) =
        (finding.kind, log.queues.get(queue), &finding.partition)
    else {
        return false;
    };
    let mut truths = queue.truth.iter();
    truths.any(|((_, name, _), truth)| {
        let unknown = truth.deleted && !truth.announced || truth.excused;
        **name == **partition && unknown && truth.placed.is_none()
    })
}
