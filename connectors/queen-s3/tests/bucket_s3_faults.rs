//! The bucket over the S3 API, against a store that misbehaves as a test says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use md5::{Digest, Md5};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use queen_s3::bucket::s3::{ProbeError, S3Bucket, S3Options, S3Timeouts};
use queen_s3::bucket::{Bucket, BucketError, BucketErrorKind, ObjectBody};
use queen_s3::config::{Secret, Sse};
use queen_s3::observe::status::Status;

const SECRET: &str = "the-s3cret";
const SHORT: Duration = Duration::from_millis(300);

/// What to do with one request.
enum Do {
    Answer(Response),
    /// Take the body at this pace per chunk, then answer.
    Slowly(Duration, Response),
    /// Never read the body, never answer.
    Nothing,
}

#[derive(Clone, Default)]
struct Script {
    plan: Arc<Mutex<VecDeque<Do>>>,
    seen: Arc<Mutex<Vec<Parts>>>,
    received: Arc<AtomicUsize>,
}

/// A store that does one step of its script per request and keeps what it was asked.
struct Store {
    script: Script,
    options: S3Options,
    task: JoinHandle<()>,
}

impl Store {
    async fn doing(plan: impl IntoIterator<Item = Do>) -> Self {
        let script = Script {
            plan: Arc::new(Mutex::new(plan.into_iter().collect())),
            ..Script::default()
        };
        let app = Router::new().fallback(handle).with_state(script.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let options = S3Options {
            endpoint: format!("http://{}", listener.local_addr().expect("it is bound")),
            region: "us-east-1".into(),
            bucket: "my-lake".into(),
            access_key: Secret::new("the-key-id"),
            secret_key: Secret::new(SECRET),
            path_style: true,
            sse: Sse::Unset,
            status: Arc::new(Status::default()),
            mid_upload: None,
            timeouts: S3Timeouts {
                connect: SHORT,
                answer: SHORT,
                complete: SHORT,
                stall: SHORT,
            },
        };
        let task = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serve");
        });
        Self {
            script,
            options,
            task,
        }
    }

    async fn answering(answers: impl IntoIterator<Item = Response>) -> Self {
        Self::doing(answers.into_iter().map(Do::Answer)).await
    }

    fn bucket(&self) -> S3Bucket {
        S3Bucket::new(self.options.clone())
    }

    /// The requests seen, as method and path with query.
    fn requests(&self) -> Vec<String> {
        let seen = self.script.seen.lock().expect("no panic holds it");
        seen.iter()
            .map(|parts| format!("{} {}", parts.method, parts.uri))
            .collect()
    }

    fn header(&self, name: &str) -> Option<String> {
        let seen = self.script.seen.lock().expect("no panic holds it");
        let parts = seen.last().expect("a request");
        parts
            .headers
            .get(name)
            .map(|value| value.to_str().expect("text").to_owned())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(State(script): State<Script>, request: Request) -> Response {
    let step = script.plan.lock().expect("no panic holds it").pop_front();
    let (pace, answer) = match step.expect("the script foresees the request") {
        Do::Answer(answer) => (Duration::ZERO, answer),
        Do::Slowly(pace, answer) => (pace, answer),
        Do::Nothing => std::future::pending().await,
    };
    let (parts, body) = request.into_parts();
    let mut body = body.into_data_stream();
    while let Some(chunk) = body.try_next().await.expect("a whole body") {
        script.received.fetch_add(chunk.len(), Relaxed);
        tokio::time::sleep(pace).await;
    }
    script.seen.lock().expect("no panic holds it").push(parts);
    answer
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response
        .body(Body::from(body.to_owned()))
        .expect("a response")
}

fn refusal(status: u16, code: &str, message: &str) -> Response {
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    answer(status, &[("content-type", "application/xml")], &body)
}

fn listing(key: Option<&str>) -> Response {
    let contents = key
        .map(|key| format!("<Contents><Key>{key}</Key></Contents>"))
        .unwrap_or_default();
    let body =
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>");
    answer(200, &[("content-type", "application/xml")], &body)
}

fn body(content: &'static [u8]) -> ObjectBody {
    ObjectBody {
        pieces: vec![Bytes::from_static(content)],
        md5: Md5::digest(content).into(),
    }
}

fn refused(error: &BucketError) -> (u16, &str) {
    match &error.kind {
        BucketErrorKind::Refused { status, code, .. } => (*status, code),
        other => panic!("not a refusal: {other}"),
    }
}

/// The MD5 of `x`.
const MD5_OF_X: &str = "9dd4e461268c8034f5c8564e155c67a6";

#[tokio::test]
async fn an_upload_is_signed_and_tied_to_its_body_by_its_digest() {
    let store = Store::answering([answer(200, &[("etag", &format!("\"{MD5_OF_X}\""))], "")]).await;
    store
        .bucket()
        .put("a/b%2Ec", body(b"x"))
        .await
        .expect("it is taken");
    assert_eq!(store.requests(), ["PUT /my-lake/a/b%252Ec?x-id=PutObject"]);
    assert_eq!(
        store.header("content-md5").as_deref(),
        Some("ndTkYSaMgDT1yFZOFVxnpg==")
    );
    assert_eq!(store.header("content-length").as_deref(), Some("1"));
    assert_eq!(
        store.header("x-amz-content-sha256").as_deref(),
        Some("UNSIGNED-PAYLOAD")
    );
    let signed = store.header("authorization").expect("a signature");
    assert!(signed.contains("content-md5"), "{signed}");
    for absent in [
        "x-amz-server-side-encryption",
        "transfer-encoding",
        "x-amz-checksum-crc32",
    ] {
        assert_eq!(store.header(absent), None);
    }
}

#[tokio::test]
async fn encryption_is_asked_for_with_every_upload() {
    let created = "<InitiateMultipartUploadResult><UploadId>u1</UploadId>\
                   </InitiateMultipartUploadResult>";
    let mut store = Store::answering([
        answer(200, &[("etag", "\"00000000000000000000000000000000\"")], ""),
        answer(200, &[], created),
    ])
    .await;
    store.options.sse = Sse::AwsKms {
        key_id: Some("key-1".into()),
    };
    let bucket = store.bucket();
    let asked = || {
        (
            store.header("x-amz-server-side-encryption"),
            store.header("x-amz-server-side-encryption-aws-kms-key-id"),
        )
    };
    // Under KMS an ETag tells nothing, though it looks like a digest.
    bucket.put("a", body(b"x")).await.expect("it is taken");
    assert_eq!(asked(), (Some("aws:kms".into()), Some("key-1".into())));
    assert_eq!(bucket.create_multipart("a").await.expect("an id"), "u1");
    assert_eq!(asked(), (Some("aws:kms".into()), Some("key-1".into())));
}

#[tokio::test]
async fn an_etag_that_is_another_digest_means_that_other_bytes_are_there() {
    let wrong = "\"00000000000000000000000000000000\"";
    let store = Store::answering([
        answer(200, &[("etag", wrong)], ""),
        answer(200, &[("etag", "\"opaque\"")], ""),
        answer(200, &[], ""),
        answer(
            200,
            &[("etag", wrong), ("x-amz-server-side-encryption", "aws:kms")],
            "",
        ),
    ])
    .await;
    let bucket = store.bucket();
    let error = bucket.put("a", body(b"x")).await.expect_err("other bytes");
    assert!(
        matches!(error.kind, BucketErrorKind::Integrity(_)),
        "{error}"
    );
    for _ in ["opaque", "none", "the bucket's own KMS key"] {
        bucket
            .put("a", body(b"x"))
            .await
            .expect("not a digest, not compared");
    }
}

#[tokio::test]
async fn a_completed_upload_is_checked_by_its_count_of_parts() {
    let complete = |etag: &str| {
        let body = format!(
            "<CompleteMultipartUploadResult><ETag>\"{etag}\"</ETag></CompleteMultipartUploadResult>"
        );
        answer(200, &[], &body)
    };
    let store =
        Store::answering([complete("abc-2"), complete("abc-3"), complete("no suffix")]).await;
    let bucket = store.bucket();
    let etags = ["\"1\"".to_owned(), "\"2\"".to_owned()];
    bucket
        .complete_multipart("a", "u", &etags)
        .await
        .expect("two parts");
    let error = bucket
        .complete_multipart("a", "u", &etags)
        .await
        .expect_err("three parts");
    assert!(
        matches!(error.kind, BucketErrorKind::Integrity(_)),
        "{error}"
    );
    bucket
        .complete_multipart("a", "u", &etags)
        .await
        .expect("no count, not compared");
}

#[tokio::test]
async fn a_completion_answered_200_with_an_error_inside_is_an_error() {
    let store = Store::answering([refusal(200, "InternalError", "try again")]).await;
    let error = store
        .bucket()
        .complete_multipart("a", "u", &["\"1\"".into()])
        .await;
    let error = error.expect_err("an error");
    assert_eq!(refused(&error), (200, "InternalError"));
    assert_eq!(
        store.options.status.s3_requests(),
        [("multipart_complete", 200, 1)]
    );
}

#[tokio::test]
async fn an_upload_that_is_gone_is_told_apart() {
    let store = Store::answering([refusal(404, "NoSuchUpload", "gone")]).await;
    let error = store
        .bucket()
        .complete_multipart("a", "u", &["\"1\"".into()])
        .await;
    assert!(error.expect_err("gone").no_such_upload());
}

#[tokio::test]
async fn a_busy_store_is_asked_once_and_its_wish_to_wait_is_kept() {
    let slow = || {
        let mut slow = refusal(503, "SlowDown", "Please reduce your request rate.");
        slow.headers_mut()
            .insert("retry-after", "9".parse().expect("a value"));
        slow
    };
    let store = Store::answering([slow(), slow()]).await;
    let bucket = store.bucket();
    let error = bucket.put("a", body(b"x")).await.expect_err("refused");
    assert_eq!(refused(&error), (503, "SlowDown"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(9)));
    let error = bucket.list("a", None).await.expect_err("refused");
    assert_eq!(refused(&error), (503, "SlowDown"));
    assert_eq!(store.requests().len(), 2);
    assert_eq!(
        store.options.status.s3_requests(),
        [("list", 503, 1), ("put", 503, 1)]
    );
}

#[tokio::test]
async fn a_denied_look_at_a_key_is_settled_by_one_listing() {
    let denied = || answer(403, &[], "");
    let store = Store::answering([
        denied(),
        listing(Some("queen/k10")),
        refusal(403, "AccessDenied", "Access Denied"),
        listing(None),
        denied(),
        listing(Some("queen/k")),
        denied(),
        refusal(403, "AccessDenied", "Access Denied"),
    ])
    .await;
    let bucket = store.bucket();
    assert_eq!(bucket.head("queen/k").await.expect("absent"), None);
    assert!(bucket.get("queen/k").await.expect("absent").is_none());
    let there = bucket
        .head("queen/k")
        .await
        .expect_err("there, but not for us");
    assert!(there.to_string().contains("s3:GetObject"), "{there}");
    bucket
        .head("queen/k")
        .await
        .expect_err("nothing may be seen");
    assert_eq!(
        store.requests()[1],
        "GET /my-lake/?list-type=2&max-keys=1&prefix=queen%2Fk"
    );
    assert_eq!(store.requests().len(), 8);
}

#[tokio::test]
async fn a_missing_bucket_is_not_a_missing_key() {
    let store = Store::answering([refusal(404, "NoSuchBucket", "no bucket")]).await;
    let error = store.bucket().get("queen/k").await.err().expect("refused");
    assert_eq!(refused(&error), (404, "NoSuchBucket"));
    assert!(error.to_string().contains("QUEEN_S3_BUCKET"), "{error}");
}

#[tokio::test]
async fn a_refusal_says_which_variable_to_look_at() {
    let mut elsewhere = refusal(301, "PermanentRedirect", "use the specified endpoint");
    let home = "eu-central-1".parse().expect("a value");
    elsewhere.headers_mut().insert("x-amz-bucket-region", home);
    let echo = format!("no: {SECRET}");
    for (refusal, said) in [
        (elsewhere, "is in region eu-central-1: set QUEEN_S3_REGION"),
        (
            refusal(400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"),
            "'eu-west-1'",
        ),
        (refusal(403, "RequestTimeTooSkewed", "skewed"), "clock"),
        (
            refusal(403, "InvalidAccessKeyId", "unknown"),
            "QUEEN_S3_ACCESS_KEY",
        ),
        (
            refusal(403, "SignatureDoesNotMatch", &echo),
            "QUEEN_S3_SECRET_KEY",
        ),
        (
            refusal(400, "ExpiredToken", "expired"),
            "QUEEN_S3_ACCESS_KEY",
        ),
        (
            refusal(403, "AccessDenied", "Access Denied"),
            "s3:PutObject",
        ),
    ] {
        let store = Store::answering([refusal]).await;
        let error = store
            .bucket()
            .put("a", body(b"x"))
            .await
            .expect_err("refused");
        let text = format!("{error} {error:?}");
        assert!(text.contains(said), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[tokio::test]
async fn a_probe_passes_where_the_policy_limits_the_listing_by_prefix() {
    let store = Store::answering([answer(403, &[], ""), listing(None)]).await;
    store.bucket().probe("queen").await.expect("it passes");
    assert_eq!(
        store.requests(),
        [
            "HEAD /my-lake/queen/",
            "GET /my-lake/?list-type=2&max-keys=1&prefix=queen%2F",
        ]
    );
    let store = Store::answering([answer(404, &[], ""), answer(403, &[], "")]).await;
    store.bucket().probe("queen").await.expect("it passes");
}

#[tokio::test]
async fn a_probe_asks_the_listing_why_it_was_denied() {
    let store = Store::answering([
        answer(400, &[], ""),
        refusal(400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"),
    ])
    .await;
    let error = store.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::Refused(_)), "{error}");
    assert!(error.to_string().contains("eu-west-1"), "{error}");

    let store = Store::answering([answer(503, &[], "")]).await;
    let error = store.bucket().probe("queen").await.expect_err("it fails");
    assert!(matches!(error, ProbeError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn an_object_that_breaks_off_is_not_a_whole_one() {
    let promised = |body: Body| {
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert("content-length", "8".parse().expect("a value"));
        response
    };
    let half = || stream::once(async { Ok("half") });
    // The pause lets the server flush the half before it cuts the connection.
    let cut = stream::once(async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    });
    let cut = promised(Body::from_stream(half().chain(cut)));
    let still = stream::pending::<Result<&str, std::io::Error>>();
    let still = promised(Body::from_stream(half().chain(still)));
    for response in [cut, still] {
        let store = Store::answering([response]).await;
        let object = store
            .bucket()
            .get("a")
            .await
            .expect("an answer")
            .expect("it is there");
        assert_eq!(object.size, 8);
        let error = object
            .stream
            .try_collect::<Vec<_>>()
            .await
            .expect_err("half an object");
        assert!(
            matches!(error.kind, BucketErrorKind::Transport(_)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_slow_upload_goes_through_and_one_that_stands_still_ends() {
    let content: &'static [u8] = Box::leak(vec![b'x'; 16 << 20].into_boxed_slice());
    let ok = answer(200, &[], "");
    let store = Store::doing([Do::Slowly(Duration::from_millis(20), ok), Do::Nothing]).await;
    let bucket = store.bucket();

    let begin = Instant::now();
    bucket.put("a", body(content)).await.expect("it moves");
    assert!(
        begin.elapsed() > 2 * SHORT,
        "the test's pace shows nothing: {:?}",
        begin.elapsed()
    );

    let error = bucket
        .put("a", body(content))
        .await
        .expect_err("it stands still");
    assert!(
        matches!(error.kind, BucketErrorKind::Transport(_)),
        "{error}"
    );
    assert_eq!(
        store.options.status.s3_requests(),
        [("put", 0, 1), ("put", 200, 1)]
    );
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_given_up() {
    let store = Store::doing([Do::Nothing]).await;
    let error = store.bucket().head("a").await.expect_err("no answer");
    assert!(
        error.to_string().contains("did not answer within 300 ms"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn half_of_a_single_put_has_reached_the_store_when_the_hook_is_called() {
    let content: &'static [u8] = Box::leak(vec![b'x'; 3 << 20].into_boxed_slice());
    let half = content.len() / 2;
    let mut store = Store::answering([answer(200, &[], "")]).await;
    let (received, seen) = (
        Arc::clone(&store.script.received),
        Arc::new(Mutex::new(None)),
    );
    store.options.mid_upload = Some({
        let seen = Arc::clone(&seen);
        Arc::new(move |_: &str| {
            // The process would end here; what the kernel has taken still arrives. The store runs
            // on the same threads and must not wait behind this one.
            tokio::task::block_in_place(|| {
                let begin = Instant::now();
                while received.load(Relaxed) < half && begin.elapsed() < Duration::from_secs(10) {
                    std::thread::yield_now();
                }
            });
            *seen.lock().expect("no panic holds it") = Some(received.load(Relaxed));
        })
    });
    store.options.timeouts.stall = Duration::from_secs(20);
    let bucket = store.bucket();
    tokio::spawn(async move { bucket.put("a", body(content)).await })
        .await
        .expect("no panic")
        .expect("it is taken");
    assert_eq!(*seen.lock().expect("no panic holds it"), Some(half));
}

#[tokio::test]
async fn a_completion_whose_answer_does_not_read_has_an_unknown_outcome() {
    for body in ["<CompleteMultipartUploadResponse/>", "", "<html>"] {
        let store = Store::answering([answer(200, &[], body)]).await;
        let error = store
            .bucket()
            .complete_multipart("a", "u", &["\"1\"".into()])
            .await;
        let error = error.expect_err("nobody knows");
        assert!(
            matches!(error.kind, BucketErrorKind::Transport(_)),
            "{body}: {error}"
        );
    }
}
