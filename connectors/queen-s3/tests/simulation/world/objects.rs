//! The objects of the bucket. They become visible whole, at the end of a PUT or a complete.

use std::collections::BTreeMap;

use bytes::Bytes;
use md5::{Digest, Md5};

/// A visible object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Content.
    pub bytes: Bytes,
    /// ETag, without quotes.
    pub etag: String,
}

#[derive(Debug, Default)]
struct Upload {
    key: String,
    /// With the MD5 of each.
    parts: BTreeMap<u16, (Bytes, [u8; 16])>,
    /// The process that was told of it.
    owner: Option<String>,
    /// Whether its owner has tried to abort it.
    given_up: bool,
}

/// The bucket.
#[derive(Debug, Default)]
pub struct Objects {
    /// Visible objects by key.
    pub visible: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    next_upload: u64,
}

/// MD5 of `bytes`.
pub fn md5_of(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

impl Objects {
    /// Starts an upload.
    pub fn create(&mut self, key: &str) -> String {
        self.next_upload += 1;
        let id = format!("upload-{}", self.next_upload);
        self.uploads.insert(
            id.clone(),
            Upload {
                key: key.to_owned(),
                ..Upload::default()
            },
        );
        id
    }

    /// Stores a part; `None` when the upload is not there.
    pub fn part(&mut self, key: &str, id: &str, number: u16, part: Bytes) -> Option<String> {
        let upload = self
            .uploads
            .get_mut(id)
            .filter(|upload| upload.key == key)?;
        let digest = md5_of(&part);
        upload.parts.insert(number, (part, digest));
        Some(format!("\"{}\"", hex::encode(digest)))
    }

    /// What completing an upload of `etags` makes visible: content and ETag. `None` when the upload is not
    /// there or the parts are others.
    pub fn complete(&mut self, key: &str, id: &str, etags: &[String]) -> Option<Object> {
        let upload = self.uploads.get(id).filter(|upload| upload.key == key)?;
        let mut content = Vec::new();
        let mut digests = Vec::new();
        for (number, etag) in (1u16..).zip(etags) {
            let (part, digest) = upload.parts.get(&number)?;
            if etag.trim_matches('"') != hex::encode(digest) {
                return None;
            }
            content.extend_from_slice(part);
            digests.extend_from_slice(digest);
        }
        self.uploads.remove(id);
        let etag = format!("{}-{}", hex::encode(md5_of(&digests)), etags.len());
        Some(Object {
            bytes: content.into(),
            etag,
        })
    }

    /// Notes that `who` has learnt that the upload `id` is there.
    pub fn known(&mut self, id: &str, who: &str) {
        if let Some(upload) = self.uploads.get_mut(id) {
            upload.owner = Some(who.to_owned());
        }
    }

    /// Notes that the owner of an upload tries to abort it.
    pub fn give_up(&mut self, id: &str) {
        if let Some(upload) = self.uploads.get_mut(id) {
            upload.given_up = true;
        }
    }

    /// Uploads that are open, although a process that lives knows them and has not tried to abort
    /// them.
    pub fn open(&self, lives: impl Fn(&str) -> bool) -> Vec<&str> {
        let kept =
            |upload: &Upload| !upload.given_up && upload.owner.as_deref().is_some_and(&lives);
        let open = self.uploads.values().filter(|upload| kept(upload));
        open.map(|upload| &*upload.key).collect()
    }

    /// How many uploads are open of processes that are gone, or that nobody knows of.
    pub fn abandoned(&self, lives: impl Fn(&str) -> bool) -> usize {
        let gone = |upload: &&Upload| !upload.owner.as_deref().is_some_and(&lives);
        self.uploads.values().filter(gone).count()
    }

    /// Forgets an upload: it is aborted, or has expired.
    pub fn abort(&mut self, id: &str) {
        self.uploads.remove(id);
    }

    /// Keys that start with `prefix`, after `after`, at most `limit`, and whether there are more.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> (Vec<String>, bool) {
        let from = after.unwrap_or(prefix).to_owned();
        let mut keys: Vec<String> = self
            .visible
            .range(from..)
            .map(|(key, _)| key)
            .filter(|key| after.is_none_or(|after| key.as_str() > after))
            .take_while(|key| key.starts_with(prefix))
            .take(limit + 1)
            .cloned()
            .collect();
        let more = keys.len() > limit;
        keys.truncate(limit);
        (keys, more)
    }
}
