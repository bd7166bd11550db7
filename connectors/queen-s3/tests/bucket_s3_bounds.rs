//! The bucket over the S3 API, against a store whose answers are too long or too slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{TryStreamExt, stream};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use queen_s3::bucket::s3::{S3Bucket, S3Options, S3Timeouts};
use queen_s3::bucket::{Bucket, BucketError, BucketErrorKind, ObjectBody};
use queen_s3::config::{Secret, Sse};
use queen_s3::limits::STORE_ANSWER_BYTES;
use queen_s3::observe::status::Status;

/// What connections hold that nobody has read, and more.
const ON_THE_WAY: usize = 16 << 20;

/// A store that gives every request this answer.
struct Store {
    bucket: S3Bucket,
    task: JoinHandle<()>,
}

impl Store {
    async fn answering(
        limit: Duration,
        answer: impl Fn() -> Response + Clone + Send + Sync + 'static,
    ) -> Self {
        let app = Router::new().fallback(move || {
            let answer = answer();
            async move { answer }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let bucket = S3Bucket::new(S3Options {
            endpoint: format!("http://{}", listener.local_addr().expect("it is bound")),
            region: "us-east-1".into(),
            bucket: "my-lake".into(),
            access_key: Secret::new("the-key-id"),
            secret_key: Secret::new("the-secret"),
            path_style: true,
            sse: Sse::Unset,
            status: Arc::new(Status::default()),
            mid_upload: None,
            timeouts: S3Timeouts {
                connect: limit,
                answer: limit,
                complete: limit,
                stall: limit,
            },
        });
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serve");
        });
        Self { bucket, task }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer that goes on for far longer than any may be, and counts what was taken of it.
fn endless(status: u16, begin: &'static str, taken: &Arc<AtomicUsize>) -> Response {
    let (taken, mut left) = (Arc::clone(taken), STORE_ANSWER_BYTES + 4 * ON_THE_WAY);
    let mut begin = Some(Bytes::from_static(begin.as_bytes()));
    let chunk = Bytes::from(vec![b' '; 64 << 10]);
    let body = stream::poll_fn(move |_| {
        let chunk = begin.take().unwrap_or_else(|| chunk.clone());
        if left < chunk.len() {
            return std::task::Poll::Pending;
        }
        left -= chunk.len();
        taken.fetch_add(chunk.len(), Relaxed);
        std::task::Poll::Ready(Some(Ok::<_, std::io::Error>(chunk)))
    });
    Response::builder()
        .status(status)
        .header("content-type", "application/xml")
        .body(Body::from_stream(body))
        .expect("a response")
}

fn content() -> ObjectBody {
    ObjectBody {
        pieces: vec![Bytes::from_static(b"x")],
        md5: [0; 16],
    }
}

#[tokio::test]
async fn an_answer_without_an_end_ends_with_its_limit() {
    const LISTING: &str = "<ListBucketResult>";
    const ERROR: &str = "<Error><Code>SlowDown</Code>";
    let limit = Duration::from_secs(10);
    for (status, begin) in [(200, LISTING), (200, ""), (503, ERROR), (403, "")] {
        let taken = Arc::new(AtomicUsize::new(0));
        let store = Store::answering(limit, {
            let taken = Arc::clone(&taken);
            move || endless(status, begin, &taken)
        })
        .await;
        let bucket = &store.bucket;
        let errors: [Option<BucketError>; 6] = [
            bucket.list("a", None).await.err(),
            bucket.put("a", content()).await.err(),
            bucket.delete("a").await.err(),
            bucket.create_multipart("a").await.err(),
            bucket
                .complete_multipart("a", "u", &["\"1\"".into()])
                .await
                .err(),
            match status {
                200 => None,
                _ => bucket.get("a").await.err(),
            },
        ];
        // A refusal of `get` by 403 is settled by one listing more.
        let requests = errors.iter().flatten().count() + usize::from(status == 403);
        for error in errors.iter().flatten() {
            match &error.kind {
                BucketErrorKind::Refused { status: said, .. } => assert_eq!(*said, status),
                BucketErrorKind::Transport(text) => {
                    assert!(status == 200 && text.contains("limit exceeded"), "{text}");
                }
                BucketErrorKind::Integrity(text) => panic!("{text}"),
            }
        }
        assert!(requests >= 5, "{status}: {errors:?}");
        let taken = taken.load(Relaxed);
        assert!(
            taken < requests * (STORE_ANSWER_BYTES + ON_THE_WAY),
            "{status}: {taken} bytes of {requests} answers"
        );
    }
}

/// An object of so many pieces, each of which comes after a pause.
fn paced(pieces: usize, piece: &'static [u8], pause: Duration) -> Response {
    let body = stream::unfold(0, move |sent| async move {
        sleep(pause).await;
        (sent < pieces).then_some((Ok::<_, std::io::Error>(piece), sent + 1))
    });
    Response::builder()
        .header("content-length", pieces * piece.len())
        .body(Body::from_stream(body))
        .expect("a response")
}

async fn read(store: &Store) -> Result<usize, BucketError> {
    let object = store.bucket.get("a").await?.expect("it is there");
    let pieces: Vec<_> = object.stream.try_collect().await?;
    Ok(pieces.iter().map(Bytes::len).sum())
}

#[tokio::test]
async fn an_object_that_drips_is_given_up() {
    let limit = Duration::from_secs(2);
    let store = Store::answering(limit, || paced(200, b"x", Duration::from_millis(50))).await;
    let error = read(&store).await.expect_err("it would take ten seconds");
    assert!(
        error.to_string().contains("bytes of it came a second"),
        "{error}"
    );
}

#[tokio::test]
async fn an_object_that_takes_longer_than_any_piece_may_comes_whole() {
    static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
    let limit = Duration::from_secs(2);
    let store = Store::answering(limit, || paced(50, &PIECE, Duration::from_millis(60))).await;
    let read = read(&store).await.expect("it comes at a good pace");
    assert_eq!(read, 50 * PIECE.len());
}
