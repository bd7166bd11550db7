//! The bucket over the S3 API, against a server that checks signatures and digests.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
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

/// A store over a folder.
struct Store {
    folder: TempDir,
    options: S3Options,
    task: JoinHandle<()>,
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
        let options = S3Options {
            endpoint: format!("http://{}", listener.local_addr().expect("it is bound")),
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
        };
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
            folder,
            options,
            task,
        }
    }

    fn bucket(&self) -> S3Bucket {
        S3Bucket::new(self.options.clone())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    fn counted(&self) -> Vec<(&'static str, u16, u64)> {
        self.options.status.s3_requests()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.task.abort();
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

#[tokio::test]
async fn an_object_of_pieces_comes_back_whole() {
    let store = Store::start().await;
    let bucket = store.bucket();
    let key = "queen/a/queue=or%20ders/dt=2026-09-04/hour=10/w-0000000001-1-2.jsonl";
    assert_eq!(content(&bucket, key).await, None);
    assert_eq!(bucket.head(key).await.expect("an answer"), None);

    bucket
        .put(key, body(&[b"one\n", b"", b"two\n"]))
        .await
        .expect("it is taken");

    assert_eq!(
        std::fs::read(store.path(key)).expect("a file"),
        b"one\ntwo\n"
    );
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

#[tokio::test]
async fn an_empty_object_is_an_object() {
    let store = Store::start().await;
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

#[tokio::test]
async fn every_request_is_counted_by_operation_and_status() {
    let store = Store::start().await;
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
    store.task.abort();
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
async fn parts_become_one_object() {
    let store = Store::start().await;
    let bucket = store.bucket();
    let first = Bytes::from(vec![b'1'; 5 * MIB]);
    let second = Bytes::from_static(b"2");
    let id = bucket.create_multipart("queen/m").await.expect("an id");
    // Parts may go up in any order.
    let two = bucket
        .upload_part("queen/m", &id, 2, second.clone())
        .await
        .expect("a part");
    let one = bucket
        .upload_part("queen/m", &id, 1, first.clone())
        .await
        .expect("a part");
    bucket
        .complete_multipart("queen/m", &id, &[one, two])
        .await
        .expect("it is complete");
    assert_eq!(
        content(&bucket, "queen/m").await,
        Some([first, second].concat())
    );
}

#[tokio::test]
async fn an_upload_that_was_given_up_is_gone() {
    let store = Store::start().await;
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

#[tokio::test]
async fn a_long_listing_comes_in_pages_of_sorted_keys() {
    let store = Store::start().await;
    let bucket = store.bucket();
    std::fs::create_dir_all(store.path("queen/l")).expect("a folder");
    for n in 0..1_005 {
        std::fs::write(store.path(&format!("queen/l/{n:04}")), b"x").expect("a file");
    }
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

#[tokio::test]
async fn the_hook_in_mid_upload_comes_once_with_the_key_and_at_half() {
    let mut store = Store::start().await;
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

#[tokio::test]
async fn a_probe_passes_on_an_empty_bucket_and_writes_nothing() {
    let store = Store::start().await;
    store.bucket().probe("queen").await.expect("it passes");
    assert_eq!(
        std::fs::read_dir(store.path("")).expect("a folder").count(),
        0
    );
    assert_eq!(store.counted(), [("head", 200, 1), ("head", 404, 1)]);
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
async fn a_part_of_full_size_goes_up() {
    let store = Store::start().await;
    let bucket = store.bucket();
    let part = Bytes::from(vec![b'p'; PART_BYTES]);
    let id = bucket.create_multipart("queen/big").await.expect("an id");
    let etag = bucket
        .upload_part("queen/big", &id, 1, part)
        .await
        .expect("a part");
    bucket
        .complete_multipart("queen/big", &id, &[etag])
        .await
        .expect("it is complete");
    let info = bucket
        .head("queen/big")
        .await
        .expect("an answer")
        .expect("it is there");
    assert_eq!(info.size, PART_BYTES as u64);
}
