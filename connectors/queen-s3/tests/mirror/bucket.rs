//! A bucket in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use queen_s3::bucket::{
    Bucket, BucketError, BucketErrorKind, ListPage, ObjectBody, ObjectInfo, ObjectReader,
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// Parts of the open uploads, by id.
    uploads: BTreeMap<String, BTreeMap<u16, Bytes>>,
    /// Uploads that were begun.
    begun: usize,
    /// Uploads that were completed.
    completed: usize,
}

/// What becomes of one request.
#[derive(Debug)]
pub enum Do {
    /// It is carried out.
    Go,
    /// It is carried out after a while.
    Slowly(Duration),
    /// It is carried out, and its answer gets lost.
    Lose,
    /// It is refused: status, code, how long to wait.
    Refuse(u16, &'static str, Option<Duration>),
    /// A look at an object that finds nothing, whatever is there.
    Miss,
}

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Operation, as the metrics name it.
    pub operation: &'static str,
    /// Key or prefix.
    pub key: String,
    /// Length of the body.
    pub bytes: usize,
    /// When.
    pub at: Instant,
    /// Requests of the same operation under way then, this one included.
    pub at_once: usize,
}

type Plan = Box<dyn FnMut(&Asked) -> Do + Send>;

/// Objects by key.
#[derive(Default)]
pub struct MemoryBucket {
    state: Mutex<State>,
    plan: Mutex<Option<Plan>>,
    asked: Mutex<Vec<Asked>>,
    under_way: Mutex<BTreeMap<&'static str, usize>>,
}

/// Counts a request for as long as it is under way.
struct UnderWay<'a>(&'a MemoryBucket, &'static str);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *held(&self.0.under_way).entry(self.1).or_default() -= 1;
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn error(operation: &'static str, key: &str, kind: BucketErrorKind) -> BucketError {
    let key = key.to_owned();
    BucketError {
        operation,
        key,
        kind,
    }
}

/// What a look that is to find nothing fails with in here.
const MISSED: &str = "missed";

fn missed<T>(error: BucketError) -> Result<Option<T>, BucketError> {
    match &error.kind {
        BucketErrorKind::Transport(text) if text == MISSED => Ok(None),
        _ => Err(error),
    }
}

fn no_such_upload(operation: &'static str, key: &str) -> BucketError {
    refused(operation, key, 404, "NoSuchUpload", None)
}

fn refused(
    operation: &'static str,
    key: &str,
    status: u16,
    code: &str,
    retry_after: Option<Duration>,
) -> BucketError {
    let kind = BucketErrorKind::Refused {
        status,
        code: code.to_owned(),
        message: "as the test wants it".to_owned(),
        retry_after,
    };
    error(operation, key, kind)
}

impl MemoryBucket {
    fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    /// From now on does with each request what `plan` says.
    pub fn plan(&self, plan: impl FnMut(&Asked) -> Do + Send + 'static) {
        *held(&self.plan) = Some(Box::new(plan));
    }

    /// The requests of `operation` whose key holds `part`, in order.
    pub fn asked(&self, operation: &str, part: &str) -> Vec<Asked> {
        let asked = held(&self.asked);
        let wanted = |asked: &&Asked| asked.operation == operation && asked.key.contains(part);
        asked.iter().filter(wanted).cloned().collect()
    }

    /// How many requests were made.
    pub fn requests(&self) -> usize {
        held(&self.asked).len()
    }

    /// Uploads in parts that are neither completed nor given up.
    pub fn open_uploads(&self) -> usize {
        self.state().uploads.len()
    }

    async fn step<T>(
        &self,
        operation: &'static str,
        key: &str,
        bytes: usize,
        work: impl FnOnce(&mut State) -> Result<T, BucketError>,
    ) -> Result<T, BucketError> {
        let at_once = {
            let mut under_way = held(&self.under_way);
            let at_once = under_way.entry(operation).or_default();
            *at_once += 1;
            *at_once
        };
        let _under_way = UnderWay(self, operation);
        let asked = Asked {
            operation,
            key: key.to_owned(),
            bytes,
            at: Instant::now(),
            at_once,
        };
        held(&self.asked).push(asked.clone());
        let todo = held(&self.plan)
            .as_mut()
            .map_or(Do::Go, |plan| plan(&asked));
        match todo {
            Do::Go => work(&mut self.state()),
            Do::Miss => Err(error(
                operation,
                key,
                BucketErrorKind::Transport(MISSED.into()),
            )),
            Do::Slowly(pause) => {
                sleep(pause).await;
                work(&mut self.state())
            }
            Do::Lose => {
                work(&mut self.state())?;
                let lost = BucketErrorKind::Transport("the answer is lost".to_owned());
                Err(error(operation, key, lost))
            }
            Do::Refuse(status, code, wait) => Err(refused(operation, key, status, code, wait)),
        }
    }

    /// Puts an object there as somebody else may, or takes it away; answers what was there.
    pub fn place(&self, key: &str, content: Option<Bytes>) -> Option<Bytes> {
        let objects = &mut self.state().objects;
        match content {
            Some(content) => objects.insert(key.to_owned(), content),
            None => objects.remove(key),
        }
    }

    /// The data objects, by key.
    pub fn data(&self) -> BTreeMap<String, Bytes> {
        let mut objects = self.state().objects.clone();
        objects.retain(|key, _| !key.contains("/_queen/"));
        objects
    }

    /// The manifests of `queue`, in order of their windows.
    pub fn manifests(&self, queue: &str) -> Vec<Value> {
        let part = format!("/{queue}/windows/");
        let state = self.state();
        let manifests = state.objects.iter().filter(|(key, _)| key.contains(&part));
        manifests
            .map(|(_, bytes)| serde_json::from_slice(bytes).expect("a manifest is JSON"))
            .collect()
    }

    /// How many objects went up in parts.
    pub fn in_parts(&self) -> usize {
        self.state().completed
    }

    /// The keys of checkpoints.
    pub fn checkpoints(&self) -> Vec<String> {
        let state = self.state();
        let keys = state.objects.keys();
        keys.filter(|key| key.contains("/checkpoint/"))
            .cloned()
            .collect()
    }
}

#[async_trait]
impl Bucket for MemoryBucket {
    async fn put(&self, key: &str, body: ObjectBody) -> Result<(), BucketError> {
        let content: Bytes = body.pieces.concat().into();
        self.step("put", key, content.len(), |state| {
            let before = state.objects.insert(key.to_owned(), content.clone());
            let data = !key.contains("/_queen/");
            // A put whose answer was lost is made again, with the same bytes.
            let same = before.is_none_or(|before| before == content);
            assert!(!data || same, "{key} is changed");
            Ok(())
        })
        .await
    }

    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        let found = |state: &mut State| {
            Ok(state.objects.get(key).map(|content| ObjectReader {
                size: content.len() as u64,
                stream: stream::iter([Ok(content.clone())]).boxed(),
            }))
        };
        self.step("get", key, 0, found).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        let found = |state: &mut State| {
            Ok(state.objects.get(key).map(|content| ObjectInfo {
                size: content.len() as u64,
                etag: None,
            }))
        };
        self.step("head", key, 0, found).await.or_else(missed)
    }

    async fn list(&self, prefix: &str, _: Option<&str>) -> Result<ListPage, BucketError> {
        let listed = |state: &mut State| {
            let keys = state.objects.keys().filter(|key| key.starts_with(prefix));
            Ok(ListPage {
                keys: keys.cloned().collect(),
                next: None,
            })
        };
        self.step("list", prefix, 0, listed).await
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        assert!(key.contains("/checkpoint/"), "{key} is deleted");
        let deleted = |state: &mut State| {
            state.objects.remove(key);
            Ok(())
        };
        self.step("delete", key, 0, deleted).await
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        let created = |state: &mut State| {
            state.begun += 1;
            let id = format!("upload-{}", state.begun);
            state.uploads.insert(id.clone(), BTreeMap::new());
            Ok(id)
        };
        self.step("multipart_create", key, 0, created).await
    }

    async fn upload_part(
        &self,
        key: &str,
        id: &str,
        number: u16,
        part: Bytes,
    ) -> Result<String, BucketError> {
        const STEP: &str = "multipart_part";
        self.step(STEP, key, part.len(), |state| {
            let upload = state.uploads.get_mut(id);
            upload
                .ok_or_else(|| no_such_upload(STEP, key))?
                .insert(number, part);
            Ok(format!("{number}"))
        })
        .await
    }

    async fn complete_multipart(
        &self,
        key: &str,
        id: &str,
        etags: &[String],
    ) -> Result<(), BucketError> {
        const STEP: &str = "multipart_complete";
        self.step(STEP, key, 0, |state| {
            let parts = state.uploads.remove(id);
            let parts = parts.ok_or_else(|| no_such_upload(STEP, key))?;
            assert_eq!(parts.len(), etags.len());
            let content: Vec<Bytes> = parts.into_values().collect();
            state.completed += 1;
            let content = content.concat().into();
            let before = state.objects.insert(key.to_owned(), content);
            assert!(before.is_none(), "{key} is written twice");
            Ok(())
        })
        .await
    }

    async fn abort_multipart(&self, key: &str, id: &str) -> Result<(), BucketError> {
        let given_up = |state: &mut State| {
            state.uploads.remove(id);
            Ok(())
        };
        self.step("multipart_abort", key, 0, given_up).await
    }
}
