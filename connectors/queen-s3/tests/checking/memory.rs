//! A bucket and a key/value store in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use queen_protocol::kv::{KvOpKind, KvOperation, KvResult};
use serde_json::{Value, json};

use queen_s3::broker::{
    Broker, BrokerError, BrokerErrorKind, Changed, ChangedRequest, FetchAnswer, FetchRequest,
    KvAnswer,
};
use queen_s3::bucket::{
    Bucket, BucketError, BucketErrorKind, ListPage, ObjectBody, ObjectInfo, ObjectReader,
};

/// Keys on a page of a listing: few, so that every listing has several.
const PAGE: usize = 3;
/// Bytes of a piece of a download: few, so that every object has several.
const PIECE: usize = 50;

/// Objects by key.
#[derive(Default)]
pub struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// How many downloads of a key break off half way before one succeeds.
    breaking: Mutex<BTreeMap<String, u32>>,
    /// Every request is refused.
    denied: Mutex<bool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryBucket {
    pub fn insert(&self, key: &str, content: impl Into<Bytes>) {
        locked(&self.objects).insert(key.to_owned(), content.into());
    }

    pub fn remove(&self, key: &str) -> Bytes {
        let removed = locked(&self.objects).remove(key);
        removed.unwrap_or_else(|| panic!("{key} is not there"))
    }

    pub fn content(&self, key: &str) -> Bytes {
        let content = locked(&self.objects).get(key).cloned();
        content.unwrap_or_else(|| panic!("{key} is not there"))
    }

    pub fn break_downloads(&self, key: &str, times: u32) {
        locked(&self.breaking).insert(key.to_owned(), times);
    }

    pub fn deny(&self) {
        *locked(&self.denied) = true;
    }

    fn answer(&self, operation: &'static str, key: &str) -> Result<(), BucketError> {
        match *locked(&self.denied) {
            false => Ok(()),
            true => Err(BucketError {
                operation,
                key: key.to_owned(),
                kind: BucketErrorKind::Refused {
                    status: 403,
                    code: "AccessDenied".to_owned(),
                    message: "no".to_owned(),
                    retry_after: None,
                },
            }),
        }
    }
}

fn broken_off(key: &str) -> BucketError {
    BucketError {
        operation: "get",
        key: key.to_owned(),
        kind: BucketErrorKind::Transport("the connection is gone".to_owned()),
    }
}

#[async_trait]
impl Bucket for MemoryBucket {
    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        self.answer("get", key)?;
        let Some(content) = locked(&self.objects).get(key).cloned() else {
            return Ok(None);
        };
        let breaks = match locked(&self.breaking).get_mut(key) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        };
        let sent = if breaks {
            content.len() / 2
        } else {
            content.len()
        };
        let mut pieces: Vec<_> = (0..sent)
            .step_by(PIECE)
            .map(|at| Ok(content.slice(at..sent.min(at + PIECE))))
            .collect();
        if breaks {
            pieces.push(Err(broken_off(key)));
        }
        Ok(Some(ObjectReader {
            size: content.len() as u64,
            stream: stream::iter(pieces).boxed(),
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        self.answer("head", key)?;
        let objects = locked(&self.objects);
        Ok(objects.get(key).map(|content| ObjectInfo {
            size: content.len() as u64,
            etag: None,
        }))
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, BucketError> {
        self.answer("list", prefix)?;
        let mut keys: Vec<String> = locked(&self.objects)
            .keys()
            .filter(|key| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after))
            .take(PAGE + 1)
            .cloned()
            .collect();
        let more = keys.len() > PAGE;
        keys.truncate(PAGE);
        let next = keys.last().filter(|_| more).cloned();
        Ok(ListPage { keys, next })
    }

    async fn put(&self, key: &str, _: ObjectBody) -> Result<(), BucketError> {
        panic!("a check wrote {key}")
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        panic!("a check deleted {key}")
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        panic!("a check wrote {key}")
    }

    async fn upload_part(
        &self,
        key: &str,
        _: &str,
        _: u16,
        _: Bytes,
    ) -> Result<String, BucketError> {
        panic!("a check wrote {key}")
    }

    async fn complete_multipart(
        &self,
        key: &str,
        _: &str,
        _: &[String],
    ) -> Result<(), BucketError> {
        panic!("a check wrote {key}")
    }

    async fn abort_multipart(&self, key: &str, _: &str) -> Result<(), BucketError> {
        panic!("a check wrote {key}")
    }
}

/// The key/value store of a broker that can nothing else. Nothing expires.
#[derive(Default)]
pub struct MemoryQueen {
    rows: Mutex<BTreeMap<String, (Value, i64)>>,
    versions: Mutex<i64>,
    batches: Mutex<u32>,
    /// Written when this many batches have come, by somebody else.
    meanwhile: Mutex<Option<(u32, String, Value)>>,
}

impl MemoryQueen {
    pub fn set(&self, key: &str, value: Value) {
        let version = self.next_version();
        locked(&self.rows).insert(key.to_owned(), (value, version));
    }

    pub fn value(&self, key: &str) -> Option<Value> {
        locked(&self.rows).get(key).map(|(value, _)| value.clone())
    }

    /// Somebody else writes `key` just before batch number `batch`, from 1.
    pub fn set_before(&self, batch: u32, key: &str, value: Value) {
        *locked(&self.meanwhile) = Some((batch, key.to_owned(), value));
    }

    fn next_version(&self) -> i64 {
        let mut versions = locked(&self.versions);
        *versions += 1;
        *versions
    }

    fn apply(&self, rows: &mut BTreeMap<String, (Value, i64)>, operation: &KvOperation) -> Value {
        let key = operation.key.clone().unwrap_or_default();
        let current = rows.get(&key).cloned();
        let version = current.as_ref().map_or(0, |(_, version)| *version);
        let expected = match operation.op {
            KvOpKind::PutIfAbsent => Some(0),
            _ => operation.expect,
        };
        let met = expected.is_none_or(|expected| expected == version);
        match operation.op {
            KvOpKind::Put | KvOpKind::PutIfAbsent if met => {
                let version = self.next_version();
                let value = operation.value.clone().unwrap_or_default();
                rows.insert(key.clone(), (value, version));
                json!({"op": "put", "key": key, "applied": true, "version": version})
            }
            KvOpKind::Delete if met => {
                let applied = rows.remove(&key).is_some();
                json!({"op": "delete", "key": key, "applied": applied})
            }
            KvOpKind::Put | KvOpKind::PutIfAbsent | KvOpKind::Delete => {
                json!({"op": operation.op, "key": key, "applied": false, "reason": "version"})
            }
            KvOpKind::Get => match current {
                Some((value, version)) => {
                    json!({"op": "get", "key": key, "found": true, "value": value, "version": version})
                }
                None => json!({"op": "get", "key": key, "found": false}),
            },
            other => panic!("the sink does not use {other:?}"),
        }
    }
}

#[async_trait]
impl Broker for MemoryQueen {
    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        *locked(&self.batches) += 1;
        let batch = *locked(&self.batches);
        let foreign = locked(&self.meanwhile).take_if(|(at, ..)| *at == batch);
        if let Some((_, key, value)) = foreign {
            self.set(&key, value);
        }
        let mut rows = locked(&self.rows);
        let before = rows.clone();
        let mut results: Vec<KvResult> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let result = self.apply(&mut rows, operation);
            let result: KvResult = serde_json::from_value(result).expect("a result");
            if operation.required == Some(true) && result.applied == Some(false) {
                *rows = before;
                return Ok(KvAnswer::RolledBack(Some(at)));
            }
            results.push(result);
        }
        Ok(KvAnswer::Done(results))
    }

    async fn fetch(&self, _: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        Err(unasked())
    }

    async fn changed(&self, _: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        Err(unasked())
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        Err(unasked())
    }
}

fn unasked() -> BrokerError {
    BrokerError {
        operation: "anything but key/value batches",
        url: String::new(),
        kind: BrokerErrorKind::Transport("not asked of this store".to_owned()),
    }
}
