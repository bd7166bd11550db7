//! The bucket's S3 API, as a process meets it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use queen_s3::bucket::{
    Bucket, BucketError, BucketErrorKind, ListPage, ObjectBody, ObjectInfo, ObjectReader,
};

use super::World;
use super::doubt::{Counted, counted};
use super::network::{Failure, Link};
use super::objects::{Object, md5_of};
use super::scenario::ETags;
use super::visits::Situation;

/// Bytes that a download hands out at a time.
const CHUNK: usize = 700;

#[async_trait]
impl Bucket for Link {
    async fn put(&self, key: &str, body: ObjectBody) -> Result<(), BucketError> {
        let who = self.process.name.clone();
        self.check_fence(key);
        let content: Bytes = body.pieces.concat().into();
        let md5 = md5_of(&content);
        if md5 != body.md5 {
            self.world.judge(Err(format!(
                "PUT {key} carries another MD5 than its body has"
            )));
        }
        let doubt = self
            .world
            .with(|state| state.doubts.manifest(&who, &content));
        self.world.judge(doubt);
        let (at, etag) = (key.to_owned(), hex::encode(md5));
        self.call(
            &format!("put {key}"),
            true,
            Arc::new(move |world| {
                let (who, key) = (who.clone(), at.clone());
                let (bytes, etag) = (content.clone(), etag.clone());
                Box::pin(async move { show(&world, &who, &key, Object { bytes, etag }) })
            }),
        )
        .await
        .map_err(|failure| error("put", key, failure))?;
        self.doubt_ends(key);
        if key.contains("/checkpoint/") {
            self.process.checkpoint_written();
        }
        Ok(())
    }

    async fn get(&self, key: &str) -> Result<Option<ObjectReader>, BucketError> {
        let at = key.to_owned();
        let found = self
            .call(
                &format!("get {key}"),
                false,
                Arc::new(move |world: Arc<World>| {
                    let key = at.clone();
                    Box::pin(
                        async move { world.with(|state| state.objects.visible.get(&key).cloned()) },
                    )
                }),
            )
            .await
            .map_err(|failure| error("get", key, failure))?;
        let breaks = self
            .world
            .with(|state| !state.calm && state.dice.chance(self.world.scenario.error_rate / 4.0));
        if let Some(object) = found.as_ref().filter(|_| !breaks)
            && key.contains("/checkpoint/")
        {
            let who = &self.process.name;
            self.world
                .with(|state| state.checker.checkpoint_read(who, key, &object.bytes));
        }
        if found.is_some() && !breaks {
            self.doubt_ends(key);
        }
        Ok(found.map(|object| {
            let mut chunks: Vec<_> = object
                .bytes
                .chunks(CHUNK)
                .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
                .collect();
            if breaks {
                chunks.pop();
                let broken = Failure::Transport("connection reset");
                chunks.push(Err(error("get", key, broken)));
            }
            ObjectReader {
                size: object.bytes.len() as u64,
                stream: futures::stream::iter(chunks).boxed(),
            }
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, BucketError> {
        let at = key.to_owned();
        let etags = self.world.scenario.etags;
        let found = self
            .call(
                &format!("head {key}"),
                false,
                Arc::new(move |world: Arc<World>| {
                    let key = at.clone();
                    Box::pin(async move {
                        world.with(|state| {
                            state.objects.visible.get(&key).map(|object| ObjectInfo {
                                size: object.bytes.len() as u64,
                                etag: match etags {
                                    ETags::Plain => Some(object.etag.clone()),
                                    ETags::Opaque => Some("of-no-meaning".to_owned()),
                                    ETags::Missing => None,
                                },
                            })
                        })
                    })
                }),
            )
            .await
            .map_err(|failure| error("head", key, failure))?;
        if let Some(etag) = found.as_ref().and_then(|found| found.etag.as_ref()) {
            let who = &self.process.name;
            self.world.with(|state| state.doubts.seen(who, key, etag));
        }
        Ok(found)
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, BucketError> {
        if after.is_none() && prefix.contains("/checkpoint/") {
            self.reading_goes_on(prefix);
        }
        let (at, from) = (prefix.to_owned(), after.map(str::to_owned));
        self.call(
            &format!("list {prefix}"),
            false,
            Arc::new(move |world: Arc<World>| {
                let (prefix, after) = (at.clone(), from.clone());
                Box::pin(async move {
                    world.with(|state| {
                        let limit = usize::try_from(state.dice.between(1, 20)).unwrap_or(1);
                        let (keys, more) = state.objects.list(&prefix, after.as_deref(), limit);
                        let next = keys.last().filter(|_| more).cloned();
                        ListPage { keys, next }
                    })
                })
            }),
        )
        .await
        .map_err(|failure| error("list", prefix, failure))
    }

    async fn delete(&self, key: &str) -> Result<(), BucketError> {
        let at = key.to_owned();
        self.call(
            &format!("delete {key}"),
            false,
            Arc::new(move |world: Arc<World>| {
                let key = at.clone();
                Box::pin(async move {
                    let verdict = world.with(|state| {
                        state.objects.visible.remove(&key);
                        state.checker.object_deleted(&key)
                    });
                    world.judge(verdict);
                })
            }),
        )
        .await
        .map_err(|failure| error("delete", key, failure))
    }

    async fn create_multipart(&self, key: &str) -> Result<String, BucketError> {
        let at = key.to_owned();
        let created = self
            .call(
                &format!("create multipart {key}"),
                false,
                Arc::new(move |world: Arc<World>| {
                    let key = at.clone();
                    Box::pin(async move { world.with(|state| state.objects.create(&key)) })
                }),
            )
            .await
            .map_err(|failure| error("multipart_create", key, failure))?;
        let who = &self.process.name;
        self.world.with(|state| state.objects.known(&created, who));
        Ok(created)
    }

    async fn upload_part(
        &self,
        key: &str,
        upload_id: &str,
        number: u16,
        part: Bytes,
    ) -> Result<String, BucketError> {
        let (at, id) = (key.to_owned(), upload_id.to_owned());
        self.call(
            &format!("part {number} of {key}"),
            true,
            Arc::new(move |world: Arc<World>| {
                let (key, id, part) = (at.clone(), id.clone(), part.clone());
                Box::pin(async move {
                    expire(&world, &id);
                    world.with(|state| state.objects.part(&key, &id, number, part))
                })
            }),
        )
        .await
        .map_err(|failure| error("multipart_part", key, failure))?
        .ok_or_else(|| no_such_upload("multipart_part", key))
    }

    async fn complete_multipart(
        &self,
        key: &str,
        upload_id: &str,
        etags: &[String],
    ) -> Result<(), BucketError> {
        let who = self.process.name.clone();
        self.check_fence(key);
        let (at, id, parts) = (key.to_owned(), upload_id.to_owned(), etags.to_vec());
        let counted = self
            .call(
                &format!("complete {key}"),
                false,
                Arc::new(move |world: Arc<World>| {
                    let (who, key) = (who.clone(), at.clone());
                    let (id, etags) = (id.clone(), parts.clone());
                    Box::pin(async move {
                        expire(&world, &id);
                        let object = world.with(|state| state.objects.complete(&key, &id, &etags));
                        object.map(|mut object| {
                            world.met(Situation::InParts);
                            let counted = counted(&world, &mut object);
                            show(&world, &who, &key, object);
                            counted
                        })
                    })
                }),
            )
            .await
            .map_err(|failure| error("multipart_complete", key, failure))?
            .ok_or_else(|| no_such_upload("multipart_complete", key))?;
        match counted {
            Counted::Right => {
                self.doubt_ends(key);
                Ok(())
            }
            Counted::Wrong(right) => {
                let who = &self.process.name;
                self.world
                    .note(format_args!("{who} is told of other parts of {key}"));
                self.world.with(|state| state.doubts.begin(who, key, right));
                Err(error("multipart_complete", key, Failure::Checksum))
            }
        }
    }

    async fn abort_multipart(&self, key: &str, upload_id: &str) -> Result<(), BucketError> {
        let id = upload_id.to_owned();
        self.world.with(|state| state.objects.give_up(&id));
        self.call(
            &format!("abort {key}"),
            false,
            Arc::new(move |world: Arc<World>| {
                let id = id.clone();
                Box::pin(async move { world.with(|state| state.objects.abort(&id)) })
            }),
        )
        .await
        .map_err(|failure| error("multipart_abort", key, failure))
    }
}

impl Link {
    /// This process knows the object under `key` to be right.
    fn doubt_ends(&self, key: &str) {
        let who = &self.process.name;
        self.world.with(|state| state.doubts.end(who, key));
    }

    /// A list of checkpoints is where an engine is made, unless it follows a new one.
    fn reading_goes_on(&self, prefix: &str) {
        if self.process.take_checkpoint_written() {
            return;
        }
        let who = &self.process.name;
        let probe = format!("{prefix}{:010}.json.zst", 0);
        self.world.with(|state| {
            if let Some(queue) = state.checker.queue_of(&probe) {
                state.checker.reading_goes_on(who, &queue, &mut state.log);
            }
        });
    }

    /// No upload may begin that could outlive the lease by more than itself.
    fn check_fence(&self, key: &str) {
        let ttl = Duration::from_secs(u64::try_from(self.world.scenario.lease_ttl_s).unwrap_or(1));
        let margin = Duration::from_secs(1).min(ttl / 2);
        let queue = self.world.with(|state| state.checker.queue_of(key));
        let now = self.world.elapsed();
        let fenced = queue
            .and_then(|queue| self.process.lease_sent(&queue))
            .is_some_and(|sent| now <= sent + ttl - margin);
        if !fenced {
            let who = &self.process.name;
            self.world.judge(Err(format!(
                "{who} uploads {key} later than its lease allows"
            )));
        }
    }
}

/// Forgets an upload under way now and then, as a lifecycle rule does.
fn expire(world: &World, id: &str) {
    let expires = world.with(|state| {
        let may = world.scenario.uploads_expire && !state.calm;
        let expires = may && state.dice.chance(0.05);
        if expires {
            state.objects.abort(id);
        }
        expires
    });
    if expires {
        world.met(Situation::Expired);
        world.note(format_args!("{id} expires"));
    }
}

fn show(world: &World, who: &str, key: &str, object: Object) {
    let verdict = world.with(|state| {
        let former = state.objects.visible.insert(key.to_owned(), object.clone());
        state.checker.object_visible(
            who,
            key,
            &object.bytes,
            former.as_ref().map(|former| &former.bytes),
            &mut state.log,
            &state.objects,
        )
    });
    world.judge(verdict);
}

fn error(operation: &'static str, key: &str, failure: Failure) -> BucketError {
    let kind = match failure {
        Failure::Transport(text) => BucketErrorKind::Transport(text.to_owned()),
        Failure::Status(status, retry_after) => BucketErrorKind::Refused {
            status,
            code: "Simulated".to_owned(),
            message: "simulated".to_owned(),
            retry_after,
        },
        Failure::Checksum => BucketErrorKind::Integrity("simulated".to_owned()),
    };
    BucketError {
        operation,
        key: key.to_owned(),
        kind,
    }
}

fn no_such_upload(operation: &'static str, key: &str) -> BucketError {
    let kind = BucketErrorKind::Refused {
        status: 404,
        code: "NoSuchUpload".to_owned(),
        message: "simulated".to_owned(),
        retry_after: None,
    };
    BucketError {
        operation,
        key: key.to_owned(),
        kind,
    }
}
