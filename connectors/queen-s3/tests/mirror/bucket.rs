//! A bucket in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use queen_s3::bucket::{Bucket, BucketError, ListPage, ObjectBody, ObjectInfo, ObjectReader};
use serde_json::Value;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, BTreeMap<u16, Bytes>>,
    /// Uploads that were completed.
    completed: usize,
}

/// Objects by key.
#[derive(Default)]
pub struct MemoryBucket(Mutex<State>);

impl MemoryBucket {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let before = self
            .state()
            .objects
            .insert(key.to_owned(), body.pieces.concat().into());
        let data = !key.contains("/_queen/");
        assert!(!data || before.is_none(), "{key} is written twice");
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        Ok(self.state().objects.get(key).map(|content| ObjectReader {
            size: content.len() as u64,
            stream: stream::iter([Ok(content.clone())]).boxed(),
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        Ok(self.state().objects.get(key).map(|content| ObjectInfo {
            size: content.len() as u64,
            etag: None,
        }))
    }

    async fn list(&self, prefix: &str, _: Option<&str>) -> Result<ListPage, BucketError> {
        let state = self.state();
        let keys = state.objects.keys().filter(|key| key.starts_with(prefix));
        Ok(ListPage {
            keys: keys.cloned().collect(),
            next: None,
        })
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        assert!(key.contains("/checkpoint/"), "{key} is deleted");
        self.state().objects.remove(key);
        Ok(())
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        self.state().uploads.insert(key.to_owned(), BTreeMap::new());
        Ok(key.to_owned())
    }

    async fn upload_part(
        &self,
        key: &str,
        _: &str,
        number: u16,
        part: Bytes,
    ) -> Result<String, BucketError> {
        let mut state = self.state();
        let upload = state.uploads.get_mut(key).expect("an upload that is open");
        upload.insert(number, part);
        Ok(format!("{number}"))
    }

    async fn complete_multipart(
        &self,
        key: &str,
        _: &str,
        etags: &[String],
    ) -> Result<(), BucketError> {
        let parts = self.state().uploads.remove(key).expect("an upload");
        assert_eq!(parts.len(), etags.len());
        let content: Vec<Bytes> = parts.into_values().collect();
        let mut state = self.state();
        state.completed += 1;
        let before = state
            .objects
            .insert(key.to_owned(), content.concat().into());
        assert!(before.is_none(), "{key} is written twice");
        Ok(())
    }

    async fn abort_multipart(&self, key: &str, _: &str) -> Result<(), BucketError> {
        self.state().uploads.remove(key);
        Ok(())
    }
}
