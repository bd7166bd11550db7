//! A bucket in memory for somebody who checks, and who therefore writes nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use queen_s3::bucket::{
    Bucket, BucketError, BucketErrorKind, ListPage, ObjectBody, ObjectInfo, ObjectReader,
};

/// Keys on a page of a listing: few, so that every listing has several.
const PAGE: usize = 3;
/// Pieces of a download.
const PIECES: usize = 5;

/// Objects by key.
#[derive(Default)]
pub struct MemoryBucket {
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// How many downloads of a key break off half way before one succeeds.
    breaking: Mutex<BTreeMap<String, u32>>,
    /// Every request is refused.
    denied: Mutex<bool>,
}

/// What `mutex` guards, whoever panicked.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let piece = sent.div_ceil(PIECES).max(1);
        let mut pieces: Vec<_> = (0..sent)
            .step_by(piece)
            .map(|at| Ok(content.slice(at..sent.min(at + piece))))
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
        let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let objects = locked(&self.objects);
        let listed = objects.range::<str, _>((from, Bound::Unbounded));
        let mut keys: Vec<String> = listed
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(prefix))
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
