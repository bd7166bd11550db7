//! A lease that is not there any more.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use async_trait::async_trait;
use queen_protocol::kv::KvOpKind;
use serde_json::{Map, json};
use tokio::time::{sleep, timeout};

use super::*;
use crate::broker::{
    BrokerErrorKind, Changed, ChangedRequest, FetchAnswer, FetchRequest, KvAnswer,
};
use crate::clock::SystemClock;
use crate::lake::{Align, Compression, Format, Layout};

/// Values and their versions by key, and the version given out last.
type Rows = (BTreeMap<String, (Value, i64)>, i64);

/// A key/value store without expiry.
#[derive(Default)]
struct Store {
    rows: Mutex<Rows>,
    /// Whether it does not tell the versions that it writes.
    untold: AtomicBool,
    /// Batches that it was sent.
    batches: AtomicUsize,
}

/// A clock that is set by hand.
#[derive(Default)]
struct SetClock(Mutex<Duration>);

impl SetClock {
    fn go_on(&self, by: Duration) {
        *self.0.lock().expect("no holder panics") += by;
    }
}

impl Clock for SetClock {
    fn boottime(&self) -> Duration {
        *self.0.lock().expect("no holder panics")
    }

    fn wall_ms(&self) -> i64 {
        0
    }
}

impl Store {
    fn put(&self, key: String, value: Value) {
        let mut rows = self.rows.lock().expect("no holder panics");
        rows.1 += 1;
        let version = rows.1;
        rows.0.insert(key, (value, version));
    }

    fn delete(&self, key: &str) {
        self.rows.lock().expect("no holder panics").0.remove(key);
    }

    fn holder(&self, key: &str) -> Option<Value> {
        let rows = self.rows.lock().expect("no holder panics");
        Some(rows.0.get(key)?.0["incarnation"].clone())
    }
}

fn nothing<T>(operation: &'static str) -> Result<T, BrokerError> {
    Err(BrokerError {
        operation,
        url: "test".to_owned(),
        kind: BrokerErrorKind::Transport("not there".to_owned()),
    })
}

#[async_trait]
impl Broker for Store {
    async fn fetch(&self, _: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        nothing("fetch")
    }

    async fn changed(&self, _: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        nothing("changed")
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        nothing("queues")
    }

    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        let mut rows = self.rows.lock().expect("no holder panics");
        self.batches.fetch_add(1, Relaxed);
        let mut after = (rows.0.clone(), rows.1);
        let mut results = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let key = operation.key.clone().expect("every operation names a key");
            let found = after.0.get(&key).cloned();
            let held = found.as_ref().map_or(0, |(_, version)| *version);
            let mut result = KvResult {
                index,
                found: Some(found.is_some()),
                version: Some(held),
                value: found.map(|(value, _)| value),
                ..KvResult::default()
            };
            let expect = match operation.op {
                KvOpKind::PutIfAbsent => Some(0),
                _ => operation.expect,
            };
            if operation.op != KvOpKind::Get {
                let applied = expect.is_none_or(|expect| expect == held);
                if !applied && operation.required == Some(true) {
                    return Ok(KvAnswer::RolledBack(Some(index)));
                }
                result.applied = Some(applied);
                if applied {
                    after.1 += 1;
                    let told = !self.untold.load(Relaxed);
                    result.version = told.then_some(after.1);
                    let value = operation.value.clone().unwrap_or_default();
                    after.0.insert(key, (value, after.1));
                }
            }
            results.push(result);
        }
        *rows = after;
        Ok(KvAnswer::Done(results))
    }
}

fn keys() -> LakeKeys {
    LakeKeys::new("p", "s", "q")
}

async fn claimed(store: &Arc<Store>) -> Fence {
    claimed_by(store, Arc::new(SystemClock)).await
}

async fn claimed_by(store: &Arc<Store>, clock: Arc<dyn Clock>) -> Fence {
    let owner = Owner {
        broker: Arc::clone(store) as Arc<dyn Broker>,
        clock,
        status: Arc::default(),
        jitter: Jitter::new(1),
        queue: "q".into(),
        keys: keys(),
        identity: Identity {
            instance: "one".to_owned(),
            incarnation: "mine".to_owned(),
        },
        ttl: Duration::from_secs(10),
    };
    match owner.claim(false).await.expect("the store answers") {
        Claim::Owned(owned) => owned.fence,
        Claim::Held(instance) => panic!("held by {instance}"),
    }
}

fn pointer(k: u64, t_end: i64) -> CommitPointer {
    serde_json::from_value(json!({"k": k, "tEnd": t_end})).expect("it reads")
}

fn intent(k: u64) -> Intent {
    Intent {
        k,
        t_start: 1,
        t_end: 2,
        format: Format::Jsonl,
        compression: Compression::Zstd,
        layout: Layout::Merged,
        align: Some(Align::Hour),
        lineage: None,
        writer: String::new(),
        other: Map::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_between_two_windows_is_held_again() {
    let store = Arc::new(Store::default());
    let fence = claimed(&store).await;
    fence.write_committed(&pointer(0, 1)).await.expect("owned");
    fence.write_intent(&intent(1)).await.expect("owned");
    fence.write_committed(&pointer(1, 2)).await.expect("owned");
    for t_end in 3..5 {
        store.delete(&keys().lease());
        fence
            .write_committed(&pointer(1, t_end))
            .await
            .expect("held again");
        assert_eq!(store.holder(&keys().lease()), Some(json!("mine")));
    }
    store.delete(&keys().lease());
    fence.write_intent(&intent(2)).await.expect("held again");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_while_a_window_is_written_is_lost() {
    let store = Arc::new(Store::default());
    let fence = claimed(&store).await;
    fence.write_committed(&pointer(0, 1)).await.expect("owned");
    fence.write_intent(&intent(1)).await.expect("owned");
    store.delete(&keys().lease());
    let lost = fence.write_committed(&pointer(1, 2)).await;
    assert_eq!(lost, Err(Lost::Expired));
    assert_eq!(store.holder(&keys().lease()), None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_held_again_over_what_another_owner_wrote() {
    for written in [keys().intent(), keys().committed()] {
        let store = Arc::new(Store::default());
        let fence = claimed(&store).await;
        fence.write_committed(&pointer(0, 1)).await.expect("owned");
        store.put(written, json!({"k": 0, "tEnd": 7}));
        store.delete(&keys().lease());
        let lost = fence.write_committed(&pointer(0, 2)).await;
        assert!(matches!(lost, Err(Lost::To(_))), "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_instance_holds_by_now_is_lost() {
    let store = Arc::new(Store::default());
    let fence = claimed(&store).await;
    store.put(
        keys().lease(),
        json!({"instance": "two", "incarnation": "theirs"}),
    );
    let lost = fence.write_committed(&pointer(0, 1)).await;
    assert_eq!(lost, Err(Lost::To("two".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_tells_no_versions_is_not_asked_without_end() {
    let (store, clock) = (Arc::new(Store::default()), Arc::new(SetClock::default()));
    let fence = claimed_by(&store, Arc::clone(&clock) as Arc<dyn Clock>).await;
    store.untold.store(true, Relaxed);
    clock.go_on(Duration::from_secs(5));
    let kept = timeout(Duration::from_secs(300), fence.keep()).await;
    assert!(kept.is_err(), "nothing says that the lease is held");
    let batches = store.batches.load(Relaxed);
    assert!(batches < 1_000, "{batches} in five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_write_is_given_up_in_time_also_after_a_machine_was_suspended() {
    let (store, clock) = (Arc::new(Store::default()), Arc::new(SetClock::default()));
    let fence = claimed_by(&store, Arc::clone(&clock) as Arc<dyn Clock>).await;
    let suspended = async {
        sleep(Duration::from_secs(1)).await;
        clock.go_on(Duration::from_secs(60));
        sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        written = fence.guard(pending::<()>()) => assert_eq!(written, None),
        () = suspended => panic!("another instance may write by now"),
    }
}
