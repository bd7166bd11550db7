//! The bucket over the S3 API, against two servers that share no code: one over a folder, which
//! checks signatures and digests, and `moto`, which checks neither. What both must hold is a promise
//! below; each is a test of its own at the first, and all are one test at the second.

mod moto;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use md5::{Digest, Md5};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use queen_s3::bucket::s3::{MidUpload, ProbeError, S3Bucket, S3Options, S3Timeouts};
use queen_s3::bucket::{Bucket, BucketErrorKind, ObjectBody};
use queen_s3::config::{Secret, Sse};
use queen_s3::limits::{MIB, PART_BYTES};
use queen_s3::observe::status::Status;

const BUCKET: &str = "my-lake";

use self::moto::Moto;

/// A bucket at one of the servers.
struct Store {
    options: S3Options,
    server: Server,
}

enum Server {
    Folder {
        folder: TempDir,
        task: JoinHandle<()>,
    },
    Moto(Arc<Moto>),
}

fn options(endpoint: String) -> S3Options {
    S3Options {
        endpoint,
        region: "us-east-1".into(),
        bucket: BUCKET.into(),
        access_key: Secret::new("the-key-id"),
        secret_key: Secret::new("the-s3cret"),
        path_style: true,
        sse: Sse::Unset,
        status: Arc::new(Status::default()),
        mid_upload: None,
        timeouts: S3Timeouts {
            stall: Duration::from_secs(20),
            ..S3Timeouts::default()
        },
    }
}

impl Store {
    async fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let files = FileSystem::new(folder.path()).expect("a file system");
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single("the-key-id", "the-s3cret"));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = Builder::new(TokioExecutor::new());
                    // A connection that the client cuts is the client's business.
                    let _ = connection
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        });
        Self {
            options: options(format!("http://{address}")),
            server: Server::Folder { folder, task },
        }
    }

    /// A bucket `name` of its own at `moto`.
    async fn at(moto: &Arc<Moto>, name: &str) -> Self {
        let made = reqwest::Client::new()
            .put(format!("{}/{name}", moto.endpoint))
            .send();
        let made = made.await.expect("an answer");
        assert!(made.status().is_success(), "{made:?}");
        let mut options = options(moto.endpoint.clone());
        options.bucket = name.into();
        Self {
            options,
            server: Server::Moto(Arc::clone(moto)),
        }
    }

    fn bucket(&self) -> S3Bucket {
        S3Bucket::new(self.options.clone())
    }

    /// What is stored under `key`, seen without the S3 client.
    async fn stored(&self, key: &str) -> Vec<u8> {
        match &self.server {
            Server::Folder { folder, .. } => {
                std::fs::read(folder.path().join(BUCKET).join(key)).expect("a file")
            }
            Server::Moto(moto) => {
                let path = format!("{}/{key}", self.options.bucket).replace('%', "%25");
                // It lets nobody read without a name, and asks for no proof of it.
                let name = "AWS4-HMAC-SHA256 Credential=any/20260904/us-east-1/s3/aws4_request, \
                            SignedHeaders=host, Signature=none";
                let answer = reqwest::Client::new()
                    .get(format!("{}/{path}", moto.endpoint))
                    .header("authorization", name)
                    .send();
                let answer = answer.await.expect("an answer").error_for_status();
                let content = answer.expect("it is there").bytes().await;
                content.expect("a whole object").to_vec()
            }
        }
    }

    /// Stores so many small objects in a folder of keys.
    async fn store_many(&self, count: usize) {
        let bucket = self.bucket();
        match &self.server {
            Server::Folder { folder, .. } => {
                let folder = folder.path().join(BUCKET).join("queen/l");
                std::fs::create_dir_all(&folder).expect("a folder");
                for n in 0..count {
                    std::fs::write(folder.join(format!("{n:04}")), b"x").expect("a file");
                }
            }
            Server::Moto(_) => {
                let puts = (0..count).map(|n| {
                    let (bucket, key) = (&bucket, format!("queen/l/{n:04}"));
                    async move { bucket.put(&key, body(&[b"x"])).await }
                });
                let puts = futures::stream::iter(puts).buffer_unordered(8);
                puts.try_collect::<Vec<()>>().await.expect("they are taken");
            }
        }
    }

    fn counted(&self) -> Vec<(&'static str, u16, u64)> {
        self.options.status.s3_requests()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Server::Folder { task, .. } = &self.server {
            task.abort();
        }
    }
}

fn body(pieces: &[&[u8]]) -> ObjectBody {
    let pieces: Vec<Bytes> = pieces
        .iter()
        .map(|piece| Bytes::copy_from_slice(piece))
        .collect();
    let md5 = Md5::digest(pieces.concat()).into();
    ObjectBody { pieces, md5 }
}

async fn content(bucket: &S3Bucket, key: &str) -> Option<Vec<u8>> {
    let object = bucket.get(key).await.expect("an answer")?;
    let chunks: Vec<Bytes> = object.stream.try_collect().await.expect("a whole object");
    let content = chunks.concat();
    assert_eq!(content.len() as u64, object.size);
    Some(content)
}

async fn pieces_come_back_whole(store: Store) {
    let bucket = store.bucket();
    let key = "queen/a/queue=or%20ders/dt=2026-09-04/hour=10/w-0000000001-1-2.jsonl";
    assert_eq!(content(&bucket, key).await, None);
    assert_eq!(bucket.head(key).await.expect("an answer"), None);

    bucket
        .put(key, body(&[b"one\n", b"", b"two\n"]))
        .await
        .expect("it is taken");

    assert_eq!(store.stored(key).await, b"one\ntwo\n");
    assert_eq!(
        content(&bucket, key).await.as_deref(),
        Some(&b"one\ntwo\n"[..])
    );
    let info = bucket
        .head(key)
        .await
        .expect("an answer")
        .expect("it is there");
    assert_eq!(info.size, 8);
    bucket.delete(key).await.expect("it is deleted");
    bucket.delete(key).await.expect("deleting again is fine");
    assert_eq!(content(&bucket, key).await, None);
}

async fn empty_objects(store: Store) {
    let bucket = store.bucket();
    bucket
        .put("queen/empty", body(&[]))
        .await
        .expect("it is taken");
    assert_eq!(
        content(&bucket, "queen/empty").await.as_deref(),
        Some(&b""[..])
    );
}

async fn requests_are_counted(store: Store) {
    let bucket = store.bucket();
    bucket.put("a", body(&[b"x"])).await.expect("it is taken");
    bucket.head("b").await.expect("an answer");
    bucket.list("", None).await.expect("an answer");
    bucket.delete("a").await.expect("it is deleted");
    assert_eq!(
        store.counted(),
        [
            ("delete", 204, 1),
            ("head", 404, 1),
            ("list", 200, 1),
            ("put", 200, 1)
        ]
    );
}

async fn given_up_uploads_are_gone(store: Store) {
    let bucket = store.bucket();
    let id = bucket.create_multipart("queen/m").await.expect("an id");
    bucket
        .upload_part("queen/m", &id, 1, Bytes::from_static(b"1"))
        .await
        .expect("a part");
    bucket
        .abort_multipart("queen/m", &id)
        .await
        .expect("it is given up");
    let error = bucket
        .complete_multipart("queen/m", &id, &["\"x\"".into()])
        .await;
    assert!(error.is_err());
    assert_eq!(content(&bucket, "queen/m").await, None);
}

async fn listings_come_in_pages(store: Store) {
    let bucket = store.bucket();
    store.store_many(1_005).await;
    let first = bucket.list("queen/l/", None).await.expect("a page");
    let next = first.next.clone().expect("there is more");
    let second = bucket.list("queen/l/", Some(&next)).await.expect("a page");
    assert_eq!(
        (first.keys.len(), second.keys.len(), second.next),
        (1_000, 5, None)
    );
    assert!(first.keys.is_sorted());
    assert_eq!(second.keys[0], "queen/l/1000");
}

async fn the_hook_comes_once(mut store: Store) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    store.options.mid_upload = Some({
        let calls = Arc::clone(&calls);
        let hook: MidUpload = Arc::new(move |key: &str| {
            calls
                .lock()
                .expect("no panic holds it")
                .push(key.to_owned());
        });
        hook
    });
    let bucket = store.bucket();
    let content_sent = vec![b'x'; 3 * MIB];
    bucket
        .put("queen/half", body(&[&content_sent]))
        .await
        .expect("it is taken");
    assert_eq!(content(&bucket, "queen/half").await, Some(content_sent));
    let id = bucket.create_multipart("queen/m").await.expect("an id");
    for number in [1, 2] {
        bucket
            .upload_part("queen/m", &id, number, Bytes::from_static(b"x"))
            .await
            .expect("a part");
    }
    assert_eq!(
        *calls.lock().expect("no panic holds it"),
        ["queen/half", "queen/m"]
    );
}

async fn probes_pass(store: Store) {
    store.bucket().probe("queen").await.expect("it passes");
    let all = store.bucket().list("", None).await.expect("a page");
    assert_eq!(all.keys, [""; 0]);
    let counted = store.counted();
    let heads: Vec<_> = counted.iter().filter(|(op, ..)| *op == "head").collect();
    assert_eq!(heads, [&("head", 200, 1), &("head", 404, 1)]);
}

/// Whether a completion came to pass, as the sink finds out: where the answer does not read, by a
/// look at the object.
async fn completed(store: &Store, key: &str, id: &str, etags: &[String], size: u64) -> bool {
    let bucket = store.bucket();
    match bucket.complete_multipart(key, id, etags).await {
        Ok(()) => true,
        Err(error) => {
            assert!(
                matches!(error.kind, BucketErrorKind::Transport(_)),
                "{error}"
            );
            let info = bucket.head(key).await.expect("an answer");
            info.expect("it is there").size == size
        }
    }
}

async fn parts_are_put_together(store: Store) {
    let bucket = store.bucket();
    let (first, second) = (vec![b'1'; PART_BYTES], b"2".to_vec());
    let id = bucket.create_multipart("queen/m").await.expect("an id");
    let mut etags = Vec::new();
    for (number, part) in [(2, &second), (1, &first)] {
        let etag = bucket.upload_part("queen/m", &id, number, part.clone().into());
        etags.insert(0, etag.await.expect("a part"));
    }
    let size = (first.len() + second.len()) as u64;
    assert!(completed(&store, "queen/m", &id, &etags, size).await);
    let whole = content(&bucket, "queen/m").await;
    assert!(whole == Some([first, second].concat()));
}

/// A server that takes any digest is found out by the ETag that it answers.
async fn other_bytes_are_found_out(store: Store) {
    let bad = ObjectBody {
        md5: [7; 16],
        ..body(&[b"x"])
    };
    let error = store.bucket().put("a", bad).await.expect_err("refused");
    let found_out = match &error.kind {
        BucketErrorKind::Integrity(_) => true,
        BucketErrorKind::Refused { code, .. } => code == "BadDigest",
        _ => false,
    };
    assert!(found_out, "{error}");
}

#[tokio::test]
async fn an_object_of_pieces_comes_back_whole() {
    pieces_come_back_whole(Store::start().await).await;
}

#[tokio::test]
async fn an_empty_object_is_an_object() {
    empty_objects(Store::start().await).await;
}

#[tokio::test]
async fn every_request_is_counted_by_operation_and_status() {
    requests_are_counted(Store::start().await).await;
}

#[tokio::test]
async fn an_upload_that_was_given_up_is_gone() {
    given_up_uploads_are_gone(Store::start().await).await;
}

#[tokio::test]
async fn a_long_listing_comes_in_pages_of_sorted_keys() {
    listings_come_in_pages(Store::start().await).await;
}

#[tokio::test]
async fn the_hook_in_mid_upload_comes_once_with_the_key_and_at_half() {
    the_hook_comes_once(Store::start().await).await;
}

#[tokio::test]
async fn a_probe_passes_on_an_empty_bucket_and_writes_nothing() {
    probes_pass(Store::start().await).await;
}

#[tokio::test]
async fn a_digest_that_does_not_fit_is_refused_by_the_store() {
    let store = Store::start().await;
    let bad = ObjectBody {
        md5: [7; 16],
        ..body(&[b"x"])
    };
    let error = store.bucket().put("a", bad).await.expect_err("refused");
    let BucketErrorKind::Refused {
        status: 400, code, ..
    } = &error.kind
    else {
        panic!("{error}");
    };
    assert_eq!(code, "BadDigest");
}

#[tokio::test]
async fn a_probe_tells_a_missing_bucket_from_a_wrong_secret_and_from_nobody_there() {
    let mut store = Store::start().await;
    store.options.bucket = "other-lake".into();
    let error = store.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::MissingBucket { .. }), "{error}");
    assert!(error.to_string().contains("other-lake"), "{error}");

    store.options.bucket = BUCKET.into();
    store.options.secret_key = Secret::new("another-s3cret");
    let error = store.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::Refused(_)), "{error}");
    assert!(error.to_string().contains("QUEEN_S3_SECRET_KEY"), "{error}");
    assert!(
        !format!("{error} {error:?}").contains("s3cret"),
        "{error:?}"
    );

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    store.options.endpoint = format!("http://{}", closed.local_addr().expect("it is bound"));
    drop(closed);
    let error = store.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::Unreachable(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("QUEEN_S3_ENDPOINT") && text.contains("refused"),
        "{text}"
    );
    assert!(store.counted().contains(&("head", 0, 1)));
}

#[tokio::test]
async fn another_server_keeps_every_promise() {
    let moto = Arc::new(Moto::start());
    let at = async |name: &str| Store::at(&moto, name).await;
    pieces_come_back_whole(at("pieces").await).await;
    empty_objects(at("empty").await).await;
    requests_are_counted(at("counted").await).await;
    given_up_uploads_are_gone(at("given-up").await).await;
    listings_come_in_pages(at("listing").await).await;
    the_hook_comes_once(at("hook").await).await;
    probes_pass(at("probe").await).await;
    parts_are_put_together(at("parts").await).await;
    other_bytes_are_found_out(at("digest").await).await;
    let mut missing = at("there").await;
    missing.options.bucket = "not-there".into();
    let error = missing.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::MissingBucket { .. }), "{error}");
}

#[tokio::test]
async fn parts_become_one_object() {
    parts_are_put_together(Store::start().await).await;
}
