//! One object on its way into the bucket: encoded as records come, in one PUT or in parts.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::PoisonError;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, TryStreamExt, select_biased};
use md5::{Digest, Md5};
use sha2::Sha256;
use tracing::{debug, warn};

use super::matching::{Matcher, Mismatch};
use super::start::overdue;
use super::turn::Permit;
use super::writer::Tally;
use super::{End, Halt, Task, sampled};
use crate::broker::Name;
use crate::bucket::{BucketError, ObjectBody, ObjectInfo};
use crate::encode::{EncodeError, ObjectEncoder, ObjectSpec, ObjectSummary};
use crate::lake::{Compression, Format};
use crate::limits::{ENCODE_STEP_BYTES, PART_BUDGET_BYTES, PARTS_IN_FLIGHT, PARTS_IN_FLIGHT_LEAST};
use crate::memory::Reservation;
use crate::record::Chunk;

const ENCODER_IN_PLACE: &str = "the encoder is in place between two steps";

/// Why an object did not get written.
pub(super) enum Trouble {
    /// The store forgot the upload, or a block was not what the broker said of it: the object has to be
    /// built again.
    Restart,
    /// An object that is there is not the one that was built: it has to be read.
    Differs,
    /// Work on the queue ends.
    End(End),
}

impl<T: Into<End>> From<T> for Trouble {
    fn from(end: T) -> Self {
        Self::End(end.into())
    }
}

/// How a writer looks for an object that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looking {
    /// Not at all.
    Nowhere,
    /// One that equals what is built stays. Lines are compared as [`Looking::AtRecords`] does,
    /// because they need not be compressed for it.
    AtBytes,
    /// One that holds every record built stays.
    AtRecords,
}

/// What was found under the key before anything was built.
enum Existing {
    /// Nothing: what is built goes up.
    Nothing,
    /// An object that is read in step with what is rebuilt.
    Records(Box<Matcher>),
    /// One that must equal what is built.
    Whole(ObjectInfo),
}

type PartUpload<'a> = BoxFuture<'a, (u16, Option<String>)>;

/// Encoded bytes on their way into the bucket.
struct Encoded {
    bytes: Bytes,
    /// What they take of the memory budget.
    room: Reservation,
}

/// Encodes records and uploads what comes out, while more records come.
pub(super) struct ObjectWriter<'a> {
    task: &'a Task,
    permit: Permit<'a>,
    key: String,
    k: u64,
    existing: Existing,
    /// Figures of the records pushed.
    pub(super) tally: Tally,
    encoder: Option<ObjectEncoder>,
    waiting: Vec<(Name, Chunk)>,
    waiting_bytes: usize,
    /// Encoded parts that are not handed to an upload.
    parts: Vec<Encoded>,
    upload_id: Option<String>,
    uploads: FuturesUnordered<PartUpload<'a>>,
    /// ETags of finished parts; `None` where the store forgot the upload.
    etags: BTreeMap<u16, Option<String>>,
    next_part: u16,
}

impl<'a> ObjectWriter<'a> {
    /// A writer for window `k`'s object `key`, which is `partition`'s alone in the per-partition
    /// layout. An object that is already there is compared and left alone; nothing goes up without
    /// `permit`.
    pub(super) async fn new(
        task: &'a Task,
        permit: Permit<'a>,
        key: String,
        k: u64,
        partition: Option<&str>,
        spec: &ObjectSpec,
        looking: Looking,
    ) -> Result<Self, Trouble> {
        let mut spec = spec.clone();
        let mut writer = Self {
            task,
            permit,
            key,
            k,
            existing: Existing::Nothing,
            tally: Tally::default(),
            encoder: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
            parts: Vec::new(),
            upload_id: None,
            uploads: FuturesUnordered::new(),
            etags: BTreeMap::new(),
            next_part: 1,
        };
        writer.look(partition, &mut spec, looking).await?;
        let encoder = ObjectEncoder::new(&spec);
        writer.encoder = Some(encoder.map_err(|error| writer.unencodable(error))?);
        Ok(writer)
    }

    /// Looks under the key. An object that is to be read is compared with lines, so `spec` then
    /// asks for them, without compression.
    async fn look(
        &mut self,
        partition: Option<&str>,
        spec: &mut ObjectSpec,
        looking: Looking,
    ) -> Result<(), Trouble> {
        if looking == Looking::Nowhere {
            return Ok(());
        }
        let (task, bucket) = (self.task, &self.task.context.bucket);
        let Some(info) = task.persist("head", || bucket.head(&self.key)).await else {
            return Ok(());
        };
        if looking == Looking::AtBytes && spec.format != Format::Jsonl {
            self.existing = Existing::Whole(info);
            return Ok(());
        }
        let Some(reader) = task.persist("get", || bucket.get(&self.key)).await else {
            return Err(Trouble::Restart);
        };
        let format = std::mem::replace(&mut spec.format, Format::Jsonl);
        let compression = std::mem::replace(&mut spec.compression, Compression::None);
        let compute = task.context.compute;
        let matcher = Matcher::new(reader, format, compression, partition, compute).await;
        let matcher = matcher.map_err(|mismatch| self.mismatch(mismatch))?;
        self.existing = Existing::Records(Box::new(matcher));
        Ok(())
    }

    /// The object's key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether an object was found under the key.
    pub(super) fn was_there(&self) -> bool {
        !matches!(self.existing, Existing::Nothing)
    }

    /// Appends records of `partition`.
    pub(super) async fn push(&mut self, partition: &Name, chunk: Chunk) -> Result<(), Trouble> {
        self.waiting_bytes += chunk.text_bytes();
        self.waiting.push((partition.clone(), chunk));
        if self.waiting_bytes >= ENCODE_STEP_BYTES {
            self.encode().await
        } else {
            Ok(())
        }
    }

    /// Ends the object: when this returns it is in the bucket, whole. Answers its figures, which
    /// are those of an object that was there already and stays.
    pub(super) async fn finish(mut self) -> Result<(ObjectSummary, Tally), Trouble> {
        self.encode().await?;
        let encoder = self.encoder.take().expect(ENCODER_IN_PLACE);
        let (tail, summary) = self
            .compute(move || encoder.finish())
            .await
            .map_err(|error| self.unencodable(error))?;
        match std::mem::replace(&mut self.existing, Existing::Nothing) {
            Existing::Nothing => {}
            Existing::Records(mut matcher) => {
                for lines in &tail {
                    let matched = matcher.rebuilt(lines).await;
                    matched.map_err(|mismatch| self.mismatch(mismatch))?;
                }
                let figures = matcher.finish().await;
                return figures.map_err(|mismatch| self.mismatch(mismatch));
            }
            Existing::Whole(found) => {
                self.compare(&found, &summary).await?;
                return Ok((summary, self.tally));
            }
        }
        self.hold(tail);
        self.permit.gate.pass().await;
        let threshold = self.task.settings().multipart_threshold_bytes;
        if self.upload_id.is_none() && summary.bytes <= threshold {
            let pieces = self.parts.iter().map(|part| part.bytes.clone()).collect();
            let md5 = summary.md5;
            let body = ObjectBody { pieces, md5 };
            self.task.put(self.permit.fence, &self.key, body).await;
            return Ok((summary, self.tally));
        }
        self.upload_parts().await;
        self.drain_uploads(0).await;
        self.complete(summary.bytes).await?;
        Ok((summary, self.tally))
    }

    async fn encode(&mut self) -> Result<(), Trouble> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let chunks = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let mut encoder = self.encoder.take().expect(ENCODER_IN_PLACE);
        let (encoder, parts) = self
            .compute(move || {
                let mut parts = Vec::new();
                for (partition, chunk) in &chunks {
                    encoder.push(partition, chunk)?;
                    parts.extend(std::iter::from_fn(|| encoder.take_part()));
                }
                Ok::<_, EncodeError>((encoder, parts))
            })
            .await
            .map_err(|error| self.unencodable(error))?;
        self.encoder = Some(encoder);
        match &mut self.existing {
            Existing::Nothing => {}
            Existing::Whole(_) => return Ok(()),
            Existing::Records(matcher) => {
                for lines in &parts {
                    if let Err(mismatch) = matcher.rebuilt(lines).await {
                        return Err(self.mismatch(mismatch));
                    }
                }
                return Ok(());
            }
        }
        self.hold(parts);
        if !self.permit.gate.is_open() {
            return Ok(());
        }
        let held: u64 = self.parts.iter().map(|part| part.bytes.len() as u64).sum();
        if self.upload_id.is_some() || held > self.task.settings().multipart_threshold_bytes {
            self.upload_parts().await;
        }
        Ok(())
    }

    /// Takes encoded bytes in that are to go up.
    fn hold(&mut self, parts: Vec<Bytes>) {
        let room = self.permit.room.lock();
        let mut room = room.unwrap_or_else(PoisonError::into_inner);
        self.parts.extend(parts.into_iter().map(|bytes| Encoded {
            room: room.take(bytes.len()),
            bytes,
        }));
    }

    /// Runs `work` off the async threads while the uploads under way go on.
    async fn compute<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let work = self.task.context.compute.run(work);
        alongside(work, &mut self.uploads, &mut self.etags).await
    }

    /// Hands every part in hand to an upload of its own, a few at a time.
    async fn upload_parts(&mut self) {
        let task = self.task;
        let upload_id = match &self.upload_id {
            Some(upload_id) => upload_id.clone(),
            None => {
                let key = self.key.clone();
                let bucket = &task.context.bucket;
                let created = task.persist("multipart_create", || bucket.create_multipart(&key));
                let created = alongside(created, &mut self.uploads, &mut self.etags).await;
                task.open_uploads().push((key, created.clone()));
                self.upload_id.insert(created).clone()
            }
        };
        let budgeted = task.context.budget.limit() / PART_BUDGET_BYTES;
        let at_once = budgeted.clamp(PARTS_IN_FLIGHT_LEAST, PARTS_IN_FLIGHT);
        for part in std::mem::take(&mut self.parts) {
            self.drain_uploads(at_once - 1).await;
            let number = self.next_part;
            self.next_part += 1;
            let (key, upload_id) = (self.key.clone(), upload_id.clone());
            let Encoded { bytes, room } = part;
            self.uploads.push(
                async move {
                    let bucket = &task.context.bucket;
                    let etag = task
                        .persist("multipart_part", || async {
                            match bucket
                                .upload_part(&key, &upload_id, number, bytes.clone())
                                .await
                            {
                                Ok(etag) => Ok(Some(etag)),
                                Err(error) if error.no_such_upload() => Ok(None),
                                Err(error) => Err(error),
                            }
                        })
                        .await;
                    drop(room);
                    (number, etag)
                }
                .boxed(),
            );
        }
    }

    /// Waits until at most `left` part uploads are under way.
    async fn drain_uploads(&mut self, left: usize) {
        while self.uploads.len() > left {
            if let Some((number, etag)) = self.uploads.next().await {
                self.etags.insert(number, etag);
            }
        }
    }

    async fn complete(&mut self, size: u64) -> Result<(), Trouble> {
        let bucket = &self.task.context.bucket;
        let upload_id = self
            .upload_id
            .take()
            .expect("parts were uploaded under an id");
        let etags: Option<Vec<String>> = std::mem::take(&mut self.etags).into_values().collect();
        let Some(etags) = etags else {
            return Err(Trouble::Restart);
        };
        let mut backoff = self.task.context.jitter.backoff();
        loop {
            let complete = bucket.complete_multipart(&self.key, &upload_id, &etags);
            let error = match self.permit.fence.guard(complete).await {
                Some(Ok(())) => {
                    self.task.closed(&upload_id);
                    return Ok(());
                }
                Some(Err(error)) => error,
                None => overdue("multipart_complete", &self.key),
            };
            if let Some(suppressed) = sampled(&self.task.complete_log) {
                let queue = &self.task.queue;
                warn!(%queue, %error, suppressed, "an upload could not be completed; trying again");
            }
            // The answer may be all that was lost.
            let found = self.task.persist("head", || bucket.head(&self.key)).await;
            if found.is_some_and(|found| is_upload(&found, size, &etags)) {
                self.task.closed(&upload_id);
                return Ok(());
            }
            if error.no_such_upload() {
                return Err(Trouble::Restart);
            }
            tokio::time::sleep(backoff.next(error.retry_after())).await;
        }
    }

    /// Records that did not become what goes into an object.
    fn unencodable(&self, error: EncodeError) -> Trouble {
        match error {
            EncodeError::Damaged(error) => {
                warn!(
                    queue = %self.task.queue,
                    k = self.k,
                    %error,
                    "a block of records is not what the broker's description of it says; the window is \
                     read again, without descriptions"
                );
                Trouble::Restart
            }
            other => Trouble::End(End::Halted(Halt::Encode(other))),
        }
    }

    /// An object that does not hold what the redo found, or could not be read to its end.
    fn mismatch(&self, mismatch: Mismatch) -> Trouble {
        match mismatch {
            Mismatch::Bucket(error) => {
                let (queue, key) = (&self.task.queue, &self.key);
                warn!(%queue, %key, %error, "an object could not be read to its end");
                Trouble::Restart
            }
            Mismatch::Spool(error) => {
                warn!(
                    queue = %self.task.queue,
                    key = %self.key,
                    %error,
                    "an object that has to be read could not be kept in a temporary file; TMPDIR \
                     names where"
                );
                Trouble::Restart
            }
            Mismatch::Differs(detail) => Halt::ObjectDiffers {
                key: self.key.clone(),
                k: self.k,
                detail,
            }
            .into(),
        }
    }

    /// Whether the object found is the one that was built.
    async fn compare(&mut self, found: &ObjectInfo, built: &ObjectSummary) -> Result<(), Trouble> {
        if found.size != built.bytes {
            return Err(Trouble::Differs);
        }
        if found.etag.as_deref() == Some(hex::encode(built.md5).as_str()) {
            return Ok(());
        }
        let (task, key) = (self.task, &self.key);
        let digest = task.persist("get", || digest(task, key)).await;
        if digest == Some(built.sha256) {
            debug!(queue = %task.queue, %key, "the object is there already");
            return Ok(());
        }
        Err(Trouble::Differs)
    }
}

/// SHA-256 of the object `key`, if it is there.
async fn digest(task: &Task, key: &str) -> Result<Option<[u8; 32]>, BucketError> {
    let Some(mut reader) = task.context.bucket.get(key).await? else {
        return Ok(None);
    };
    let mut digest = Sha256::new();
    while let Some(piece) = reader.stream.try_next().await? {
        digest.update(&piece);
    }
    Ok(Some(digest.finalize().into()))
}

/// Whether `found` is the upload of parts with these ETags.
fn is_upload(found: &ObjectInfo, size: u64, etags: &[String]) -> bool {
    if found.size != size {
        return false;
    }
    let digests: Option<Vec<u8>> =
        etags
            .iter()
            .map(|etag| md5_of(etag))
            .try_fold(Vec::new(), |mut all, digest| {
                all.extend(digest?);
                Some(all)
            });
    match (&found.etag, digests) {
        (Some(etag), Some(digests)) if etag.contains('-') => {
            *etag == format!("{}-{}", hex::encode(Md5::digest(&digests)), etags.len())
        }
        // Encrypted objects and some gateways have ETags of another shape.
        _ => true,
    }
}

/// The MD5 that an ETag is, if it is one.
fn md5_of(etag: &str) -> Option<[u8; 16]> {
    let mut digest = [0; 16];
    hex::decode_to_slice(etag.trim_matches('"'), &mut digest).ok()?;
    Some(digest)
}

/// Awaits `work` while the uploads under way go on.
async fn alongside<T>(
    work: impl Future<Output = T>,
    uploads: &mut FuturesUnordered<PartUpload<'_>>,
    etags: &mut BTreeMap<u16, Option<String>>,
) -> T {
    let work = work.fuse();
    futures::pin_mut!(work);
    loop {
        select_biased! {
            result = work => return result,
            (number, etag) = uploads.select_next_some() => {
                etags.insert(number, etag);
            }
        }
    }
}
