use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize};

use async_trait::async_trait;
use queen_protocol::kv::KvOperation;
use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::broker::{
    BrokerErrorKind, Changed, ChangedRequest, FetchAnswer, FetchRequest, KvAnswer,
};

/// A tenant whose queues the test sets. `safeTime` is the number of `changed` calls so far.
#[derive(Default)]
struct Tenant {
    queues: Mutex<Vec<&'static str>>,
    failing: Mutex<Option<u16>>,
    changed_calls: AtomicI64,
    lists: Mutex<Vec<Instant>>,
}

impl Tenant {
    fn of(queues: &[&'static str]) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::new(queues.to_vec()),
            ..Self::default()
        })
    }

    fn set(&self, queues: &[&'static str]) {
        *self.queues.lock().unwrap() = queues.to_vec();
    }
}

#[async_trait]
impl Broker for Tenant {
    async fn fetch(&self, _: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        unreachable!("the queue set reads no log")
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        assert!(request.is_none(), "the queue set asks for safeTime alone");
        let safe_time = Micros(self.changed_calls.fetch_add(1, Relaxed));
        Ok(Changed {
            safe_time,
            degraded: false,
            partitions: vec![],
            next: None,
            error: None,
        })
    }

    async fn kv(&self, _: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        unreachable!("the queue set owns no document")
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        self.lists.lock().unwrap().push(Instant::now());
        if let Some(code) = *self.failing.lock().unwrap() {
            return Err(BrokerError {
                operation: "GET /api/v1/resources/queues",
                url: "http://tenant".into(),
                kind: BrokerErrorKind::Status {
                    code,
                    excerpt: String::new(),
                    retry_after: None,
                },
            });
        }
        Ok(self
            .queues
            .lock()
            .unwrap()
            .iter()
            .map(|name| (*name).to_owned())
            .collect())
    }
}

type Started = Arc<Mutex<Vec<(String, Option<i64>)>>>;

/// A set whose tasks note how they were started and then wait for the stop flag.
struct Running {
    started: Started,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

async fn running(tenant: &Arc<Tenant>, queues: Queues, relist: Duration) -> Running {
    let broker: Arc<dyn Broker> = Arc::<Tenant>::clone(tenant);
    let safe_time = broker.changed(None).await.unwrap().safe_time;
    let first = FirstQueues::of(&queues, &*broker, safe_time).await.unwrap();
    let started = Started::default();
    let stop = CancellationToken::new();
    let notes = Arc::clone(&started);
    let set = QueueSet {
        broker,
        status: Arc::new(Status::default()),
        jitter: Jitter::new(1),
        relist,
        rest: Duration::from_secs(30),
        run: move |queue: Name, since: Option<Micros>, stop: CancellationToken| {
            notes
                .lock()
                .unwrap()
                .push((queue.to_string(), since.map(|since| since.0)));
            async move { stop.cancelled().await }
        },
    };
    let done = tokio::spawn(set.mirror(first, stop.clone()));
    Running {
        started,
        stop,
        done,
    }
}

/// Waits, in virtual time, until `queues` have been started, whatever their order.
async fn until_started(started: &Started, queues: &[&str]) {
    timeout(Duration::from_secs(600), async {
        loop {
            let mut names: Vec<_> = started
                .lock()
                .unwrap()
                .iter()
                .map(|(name, _)| name.clone())
                .collect();
            names.sort_unstable();
            if names == queues {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the queues start");
}

const TICK: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn named_queues_are_started_without_a_listing() {
    let tenant = Tenant::of(&["other"]);
    let named = Queues::Named(vec!["orders".into(), "clicks".into()]);
    let set = running(&tenant, named, TICK).await;
    until_started(&set.started, &["clicks", "orders"]).await;
    advance(TICK * 10).await;
    assert!(tenant.lists.lock().unwrap().is_empty());
    set.stop.cancel();
    set.done.await.expect("it drains");
}

#[tokio::test(start_paused = true)]
async fn a_queue_first_listed_later_starts_at_the_safe_time_before_the_list_without_it() {
    let tenant = Tenant::of(&["orders"]);
    let set = running(&tenant, Queues::All, TICK).await;
    until_started(&set.started, &["orders"]).await;
    sleep(TICK * 3 + TICK / 2).await;
    tenant.set(&["orders", "clicks"]);
    until_started(&set.started, &["clicks", "orders"]).await;
    let started = set.started.lock().unwrap().clone();
    // The boot asked for safeTime 0, three lists without the queue for 1 to 3, its own for 4.
    assert_eq!(
        started,
        [("orders".to_owned(), None), ("clicks".to_owned(), Some(3))]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_proves_no_absence_and_is_tried_again() {
    let tenant = Tenant::of(&[]);
    let set = running(&tenant, Queues::All, TICK).await;
    *tenant.failing.lock().unwrap() = Some(503);
    tenant.set(&["orders"]);
    sleep(TICK * 10).await;
    *tenant.failing.lock().unwrap() = None;
    until_started(&set.started, &["orders"]).await;
    assert_eq!(set.started.lock().unwrap()[0].1, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_no_longer_listed_stays_and_is_not_started_twice() {
    let tenant = Tenant::of(&["orders"]);
    let set = running(&tenant, Queues::All, TICK).await;
    until_started(&set.started, &["orders"]).await;
    tenant.set(&[]);
    sleep(TICK * 2).await;
    tenant.set(&["orders"]);
    sleep(TICK * 2).await;
    assert_eq!(set.started.lock().unwrap().len(), 1);
    assert!(!set.done.is_finished());
}

#[tokio::test(start_paused = true)]
async fn the_list_is_asked_for_once_per_interval() {
    let tenant = Tenant::of(&["orders"]);
    let _set = running(&tenant, Queues::All, TICK).await;
    sleep(TICK * 5 + TICK / 2).await;
    let lists = tenant.lists.lock().unwrap();
    assert_eq!(lists.len(), 6);
    assert!(lists.windows(2).all(|pair| pair[1] - pair[0] >= TICK));
}

#[test]
fn the_interval_is_ten_discovery_intervals_and_never_below_a_second() {
    assert_eq!(
        relist_interval(Duration::from_secs(2)),
        Duration::from_secs(20)
    );
    assert_eq!(
        relist_interval(Duration::from_millis(10)),
        Duration::from_secs(1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_until_every_task_has_drained() {
    let stop = CancellationToken::new();
    let release = CancellationToken::new();
    let released = release.clone();
    let set = QueueSet {
        broker: Tenant::of(&[]),
        status: Arc::new(Status::default()),
        jitter: Jitter::new(1),
        relist: TICK,
        rest: TICK,
        run: move |_: Name, _: Option<Micros>, stop: CancellationToken| {
            let released = released.clone();
            async move {
                stop.cancelled().await;
                released.cancelled().await;
            }
        },
    };
    let first = FirstQueues::Named(vec!["orders".into()]);
    let mut done = tokio::spawn(set.mirror(first, stop.clone()));
    stop.cancel();
    assert!(
        timeout(TICK, &mut done).await.is_err(),
        "its task has not drained"
    );
    release.cancel();
    timeout(TICK, done)
        .await
        .expect("it drains")
        .expect("without a panic");
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_task_panics_begins_again_and_is_shown_as_stopped_until_it_says_otherwise() {
    let status = Arc::new(Status::default());
    let runs = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let counted = Arc::clone(&runs);
    let set = QueueSet {
        broker: Tenant::of(&[]),
        status: Arc::clone(&status),
        jitter: Jitter::new(1),
        relist: TICK,
        rest: TICK,
        run: move |_: Name, _: Option<Micros>, stop: CancellationToken| {
            let run = counted.fetch_add(1, Relaxed);
            async move {
                assert!(run > 0, "the first run panics");
                stop.cancelled().await;
            }
        },
    };
    let done = tokio::spawn(set.mirror(FirstQueues::Named(vec!["orders".into()]), stop.clone()));
    sleep(TICK / 2).await;
    assert!(status.queue("orders").stopped.load(Relaxed));
    sleep(TICK).await;
    assert_eq!(runs.load(Relaxed), 2);
    assert!(
        status.queue("orders").stopped.load(Relaxed),
        "it may panic again"
    );
    stop.cancel();
    done.await.expect("it drains");
}
