use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use queen_s3::adopt::{AdoptError, adopt};
use queen_s3::clock::SystemClock;
use queen_s3::lake::documents::CommitPointer;
use queen_s3::observe::status::Status;
use queen_s3::ownership::{Identity, Owner};
use queen_s3::retry::Jitter;
use queen_s3::verify;

use crate::lake::{EPOCH, LINEAGE, Lake, PREFIX, SECOND, SINK, store};
use crate::queen::MemoryQueen;

/// A lake of three windows, and a store that knows nothing of it.
fn stranded() -> (Lake, Arc<MemoryQueen>) {
    let mut lake = Lake::new();
    lake.window(10, &[("a", 0, 1)]);
    lake.window(20, &[("a", 1, 11), ("b", 0, 11)]);
    lake.window(30, &[("a", 2, 21), ("b", 1, 22)]);
    (lake, Arc::default())
}

async fn adopted(lake: &Lake, queen: &Arc<MemoryQueen>) -> Result<CommitPointer, AdoptError> {
    let checked = verify::Lake::new(PREFIX, SINK, &lake.queue);
    let owner = Owner {
        broker: queen.clone(),
        clock: Arc::new(SystemClock),
        status: Arc::new(Status::default()),
        jitter: Jitter::new(7),
        queue: lake.queue.as_str().into(),
        keys: lake.keys.clone(),
        identity: Identity {
            instance: "sink-0".to_owned(),
            incarnation: "this one".to_owned(),
        },
        ttl: Duration::from_secs(30),
    };
    adopt(&store(&lake.bucket), &checked, &owner).await
}

#[tokio::test]
async fn a_lake_without_a_pointer_gets_one_to_its_newest_window() {
    let (lake, queen) = stranded();
    let pointer = adopted(&lake, &queen).await.expect("it is adopted");
    assert_eq!((pointer.k, pointer.t_end), (3, EPOCH + 30 * SECOND));
    assert_eq!(pointer.lineage.as_deref(), Some(LINEAGE));
    let written = queen.value(&lake.keys.committed()).expect("a pointer");
    assert_eq!(written, serde_json::to_value(&pointer).expect("it renders"));
    assert_eq!(written["manifest"], lake.keys.manifest(3));
    assert_eq!(written["records"], 2);
    assert_eq!(
        queen.value(&lake.keys.lease()),
        None,
        "the lease is given back"
    );
}

#[tokio::test]
async fn a_pointer_that_is_there_stays_as_it_is() {
    let (lake, queen) = stranded();
    let there = json!({"k": 1, "tEnd": 7});
    queen.set(&lake.keys.committed(), there.clone());
    let error = adopted(&lake, &queen).await.expect_err("there is one");
    assert!(
        matches!(error, AdoptError::Pointer { k: 1, t_end: 7, .. }),
        "{error}"
    );
    assert!(!error.is_unreachable());
    assert_eq!(queen.value(&lake.keys.committed()), Some(there));
    assert_eq!(queen.value(&lake.keys.lease()), None);
}

#[tokio::test]
async fn a_pointer_that_appears_meanwhile_stays_as_it_is() {
    let (lake, queen) = stranded();
    let there = json!({"k": 1, "tEnd": 7});
    // The claim is the first batch, the pointer the second.
    queen.set_before(2, &lake.keys.committed(), there.clone());
    let error = adopted(&lake, &queen).await.expect_err("there is one");
    assert!(matches!(error, AdoptError::Lost(_)), "{error}");
    assert_eq!(queen.value(&lake.keys.committed()), Some(there));
}

#[tokio::test]
async fn a_queue_that_another_process_holds_is_left_alone_even_under_the_same_name() {
    let (lake, queen) = stranded();
    let lease = json!({"instance": "sink-0", "incarnation": "another", "sinceMs": 1});
    queen.set(&lake.keys.lease(), lease.clone());
    let error = adopted(&lake, &queen).await.expect_err("it is held");
    assert!(
        matches!(&error, AdoptError::Held(name) if name == "sink-0"),
        "{error}"
    );
    assert_eq!(queen.value(&lake.keys.committed()), None);
    assert_eq!(queen.value(&lake.keys.lease()), Some(lease));
}

#[tokio::test]
async fn a_lake_whose_end_is_not_whole_is_not_adopted() {
    let damage: [fn(&Lake) -> String; 5] = [
        |lake| {
            let key = lake.keys.manifest(2);
            lake.bucket.remove(&key);
            key
        },
        |lake| {
            let key = object_of(lake, 3);
            lake.bucket.remove(&key);
            key
        },
        |lake| {
            let key = object_of(lake, 3);
            lake.bucket.insert(&key, "short");
            key
        },
        |lake| {
            let key = lake.keys.manifest(3);
            lake.bucket.insert(&key, "{");
            key
        },
        |lake| {
            let key = lake.keys.manifest(3);
            let text = String::from_utf8(lake.bucket.content(&key).to_vec()).expect("UTF-8");
            lake.bucket.insert(&key, text.replace(LINEAGE, "another"));
            key
        },
    ];
    for damage in damage {
        let (lake, queen) = stranded();
        let damaged = damage(&lake);
        let error = adopted(&lake, &queen).await.expect_err("it is not whole");
        assert!(
            matches!(&error, AdoptError::Damaged { key, .. } if *key == damaged),
            "{error}"
        );
        assert_eq!(queen.value(&lake.keys.committed()), None);
        assert_eq!(
            queen.value(&lake.keys.lease()),
            None,
            "the lease is given back"
        );
    }
}

#[tokio::test]
async fn an_intent_that_is_further_than_the_manifests_is_not_passed_over() {
    let (lake, queen) = stranded();
    let intent = |k: u64| {
        json!({"k": k, "tStart": 1, "tEnd": 2, "format": "jsonl", "compression": "zstd",
            "layout": "merged"})
    };
    queen.set(&lake.keys.intent(), intent(5));
    let error = adopted(&lake, &queen)
        .await
        .expect_err("window 4 is missing");
    assert!(
        error.to_string().starts_with(&lake.keys.manifest(4)),
        "{error}"
    );
    queen.set(&lake.keys.intent(), intent(4));
    adopted(&lake, &queen)
        .await
        .expect("window 4 is only begun");
}

#[tokio::test]
async fn there_is_nothing_to_adopt_without_a_lake() {
    let (lake, queen) = (Lake::new(), Arc::default());
    let error = adopted(&lake, &queen).await.expect_err("there is none");
    assert!(matches!(&error, AdoptError::NoLake { .. }), "{error}");
    assert_eq!(queen.value(&lake.keys.committed()), None);
}

fn object_of(lake: &Lake, k: u64) -> String {
    let manifest = lake.bucket.content(&lake.keys.manifest(k));
    let manifest: queen_s3::lake::manifest::Manifest =
        serde_json::from_slice(&manifest).expect("it reads");
    manifest.objects[0].key.clone()
}
