//! A copy of a bucket in a folder, read over the S3 API.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;

use crate::limits::CALL_LIMIT;
use crate::moto::ANYBODY;

/// A folder that holds what a bucket did when it was last asked. Nothing here comes from the sink's
/// code, nor from the SDK that the sink reads with.
#[derive(Debug)]
pub(crate) struct BucketCopy {
    bucket: Url,
    folder: PathBuf,
    /// The ETag of each object in the folder. Both servers' follow from the content.
    copied: Mutex<BTreeMap<String, String>>,
}

/// A page of `ListObjectsV2`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    contents: Vec<Listed>,
    next_continuation_token: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "ETag")]
    etag: String,
}

impl BucketCopy {
    /// A copy in `folder` of the bucket at `url`, `http://127.0.0.1:<port>/<bucket>`.
    pub(crate) fn new(url: &str, folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self {
            bucket: url.parse()?,
            folder,
            copied: Mutex::default(),
        })
    }

    /// The folder that stands for the bucket.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Brings what is under `prefixes` up to date, one after the other. Objects that did not change
    /// are not read again.
    pub(crate) fn refresh(&self, prefixes: &[String]) -> Result<()> {
        let refresh = || {
            // An object is noted only once it is in the folder: what a panic cuts short is done
            // again.
            let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let http = Client::builder().no_proxy().timeout(CALL_LIMIT).build()?;
                for prefix in prefixes {
                    self.refresh_one(&http, prefix, &mut copied).await?;
                }
                anyhow::Ok(())
            })
        };
        // On a thread of its own: a caller may be in a runtime, and no runtime runs in another.
        let refreshed = thread::scope(|scope| scope.spawn(refresh).join());
        refreshed.map_err(|_| anyhow!("the copy of a bucket panicked"))?
    }

    async fn refresh_one(
        &self,
        http: &Client,
        prefix: &str,
        copied: &mut BTreeMap<String, String>,
    ) -> Result<()> {
        let listed = self.list(http, prefix).await?;
        let known = copied.range(prefix.to_owned()..).map(|(key, _)| key);
        let known = known.take_while(|key| key.starts_with(prefix));
        let gone = known.filter(|key| !listed.contains_key(*key));
        for key in gone.cloned().collect::<Vec<_>>() {
            fs::remove_file(self.folder.join(&key)).with_context(|| format!("remove {key}"))?;
            copied.remove(&key);
        }
        for (key, etag) in listed {
            if copied.get(&key) == Some(&etag) {
                continue;
            }
            // It may be deleted since it was listed.
            let Some(content) = self.get(http, &key).await? else {
                continue;
            };
            let path = self.folder.join(&key);
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
            copied.insert(key, etag);
        }
        Ok(())
    }

    /// The ETag of every object under `prefix`.
    async fn list(&self, http: &Client, prefix: &str) -> Result<BTreeMap<String, String>> {
        let mut listed = BTreeMap::new();
        let mut next: Option<String> = None;
        loop {
            let mut url = self.bucket.clone();
            url.query_pairs_mut()
                .append_pair("list-type", "2")
                .append_pair("prefix", prefix)
                .extend_pairs(next.iter().map(|token| ("continuation-token", token)));
            let answer = http.get(url).header("Authorization", ANYBODY).send();
            let text = answer.await?.error_for_status()?.text().await?;
            let page: Page = quick_xml::de::from_str(&text)
                .with_context(|| format!("the listing of {prefix}: {text}"))?;
            listed.extend(page.contents.into_iter().map(|one| (one.key, one.etag)));
            next = page.next_continuation_token;
            if next.is_none() {
                return Ok(listed);
            }
        }
    }

    /// The content of an object, `None` where there is none.
    async fn get(&self, http: &Client, key: &str) -> Result<Option<Vec<u8>>> {
        let url = object_url(&self.bucket, key)?;
        let answer = http.get(url).header("Authorization", ANYBODY).send();
        let answer = answer.await.with_context(|| format!("read {key}"))?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let content = answer.error_for_status()?.bytes().await;
        Ok(Some(content.with_context(|| format!("read {key}"))?.into()))
    }

    /// Puts `content` under `key` in the bucket.
    pub(crate) async fn put(&self, key: &str, content: Vec<u8>) -> Result<()> {
        let http = Client::builder().no_proxy().timeout(CALL_LIMIT).build()?;
        let put = http.put(object_url(&self.bucket, key)?);
        let put = put.header("Authorization", ANYBODY).body(content);
        let answer = put.send().await?.error_for_status();
        answer.with_context(|| format!("put {key}"))?;
        Ok(())
    }
}

/// The URL of an object in the bucket at `bucket`: the percent signs of a key are characters of it.
fn object_url(bucket: &Url, key: &str) -> Result<Url> {
    let mut url = bucket.clone();
    let segments = url.path_segments_mut();
    segments
        .map_err(|()| anyhow!("{bucket} has no path"))?
        .extend(key.split('/'));
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::{Page, object_url};

    #[test]
    fn a_key_is_spelled_so_that_the_server_reads_it_as_it_is() {
        let bucket = "http://127.0.0.1:1/lake".parse().expect("a URL");
        let url = object_url(&bucket, "queen/l/queue=a%2Fb/dt=1").expect("a path");
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:1/lake/queen/l/queue=a%252Fb/dt=1"
        );
    }

    #[test]
    fn a_page_without_objects_is_a_page_and_the_last_names_no_next() {
        let page = |text| quick_xml::de::from_str::<Page>(text).expect("a page");
        let empty = page("<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>");
        assert!(empty.contents.is_empty() && empty.next_continuation_token.is_none());
        let full = page(
            "<ListBucketResult><Contents><Key>a&amp;b</Key><ETag>&quot;1&quot;</ETag></Contents>\
             <NextContinuationToken>n</NextContinuationToken></ListBucketResult>",
        );
        assert_eq!(
            (
                full.contents[0].key.as_str(),
                full.contents[0].etag.as_str()
            ),
            ("a&b", "\"1\"")
        );
        assert_eq!(full.next_continuation_token.as_deref(), Some("n"));
    }
}
