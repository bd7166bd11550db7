//! What `queen-s3 verify` makes of the lakes that a run leaves: sink and check must not disagree
//! about what a lake may hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use queen_s3::bucket::{Bucket, BucketError, ListPage, ObjectBody, ObjectInfo, ObjectReader};
use queen_s3::retry::Jitter;
use queen_s3::verify::{Finding, Kind, Progress, Store, verify};

use super::World;
use super::log::Log;
use super::spelling::{PREFIX, SINK};

/// Keys of a page of a listing.
const PAGE: usize = 7;

/// What a run left in its bucket, for somebody who writes nothing.
struct Left(BTreeMap<String, Bytes>);

/// Checks every lake of `world`, but for those that an operator has to look at.
pub fn verified(world: &World) -> Result<(), String> {
    let (left, queues) = world.with(|state| {
        let visible = state.objects.visible.iter();
        let objects = visible.map(|(key, object)| (key.clone(), object.bytes.clone()));
        let queues = world.scenario.queues.iter();
        let sound = queues.filter(|queue| !state.checker.contradicted(queue, &state.log));
        (
            Left(objects.collect()),
            sound.cloned().collect::<Vec<String>>(),
        )
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
        let wrong = queue
            .findings
            .iter()
            .find(|finding| world.with(|state| !is_unknown(&state.log, &queue.queue, finding)));
        if let Some(finding) = wrong {
            return Err(format!("verify finds in {}: {finding:?}", queue.queue));
        }
    }
    Ok(())
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

#[async_trait]
impl Bucket for Left {
    async fn put(&self, key: &str, _: ObjectBody) -> Result<(), BucketError> {
        unreachable!("a check puts {key}")
    }

    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        Ok(self.0.get(key).map(|content| ObjectReader {
            size: content.len() as u64,
            stream: stream::iter([Ok(content.clone())]).boxed(),
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        unreachable!("a check looks at {key}")
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, BucketError> {
        let from = after.unwrap_or(prefix).to_owned();
        let keys = self.0.range(from..).map(|(key, _)| key);
        let wanted = keys.filter(|key| key.starts_with(prefix) && Some(&***key) != after);
        let keys: Vec<String> = wanted.take(PAGE).cloned().collect();
        let next = keys.last().filter(|_| keys.len() == PAGE).cloned();
        Ok(ListPage { keys, next })
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        unreachable!("a check deletes {key}")
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        unreachable!("a check uploads {key}")
    }

    async fn upload_part(
        &self,
        key: &str,
        _: &str,
        _: u16,
        _: Bytes,
    ) -> Result<String, BucketError> {
        unreachable!("a check uploads {key}")
    }

    async fn complete_multipart(
        &self,
        key: &str,
        _: &str,
        _: &[String],
    ) -> Result<(), BucketError> {
        unreachable!("a check uploads {key}")
    }

    async fn abort_multipart(&self, key: &str, _: &str) -> Result<(), BucketError> {
        unreachable!("a check uploads {key}")
    }
}
