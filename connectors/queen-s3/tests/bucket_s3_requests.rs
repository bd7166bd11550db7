//! Every request that the sink makes of the S3 API: its form, its headers, and that it is counted.

use std::future::IntoFuture;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use md5::{Digest, Md5};
use tokio::net::TcpListener;

use queen_s3::bucket::s3::{S3Bucket, S3Options, S3Timeouts};
use queen_s3::bucket::{Bucket, BucketError, ObjectBody};
use queen_s3::config::{Secret, Sse};
use queen_s3::observe::status::Status;

type Seen = Arc<Mutex<Vec<(String, HeaderMap)>>>;

#[derive(Clone)]
struct Store {
    seen: Seen,
    /// `None`: as a store answers that has everything.
    answer: Option<fn() -> Response>,
}

/// What a request is, by the verb of a policy that allows it.
fn verb(request: &str) -> &'static str {
    let (method, uri) = request.split_once(' ').expect("a method and a URI");
    let of_upload = uri.contains("uploadId=");
    match method {
        "GET" if uri.starts_with("/my-lake/?") => "s3:ListBucket",
        "GET" | "HEAD" => "s3:GetObject",
        "DELETE" if of_upload => "s3:AbortMultipartUpload",
        "DELETE" => "s3:DeleteObject",
        "PUT" | "POST" => "s3:PutObject",
        other => panic!("{other} is no method of the policy"),
    }
}

async fn handle(State(store): State<Store>, parts: Parts, _: Bytes) -> Response {
    let Parts {
        method,
        uri,
        headers,
        ..
    } = parts;
    let answer = store.answer.map_or_else(|| ample(&method, &uri), |f| f());
    let mut seen = store.seen.lock().expect("no holder panics");
    seen.push((format!("{method} {uri}"), headers));
    answer
}

/// The answer of a store that has everything it is asked for.
fn ample(method: &Method, uri: &Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    let xml = match *method {
        Method::POST if query == "uploads" => {
            "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        }
        Method::POST => {
            "<CompleteMultipartUploadResult><ETag>\"a-1\"</ETag></CompleteMultipartUploadResult>"
        }
        Method::GET if query.contains("list-type=2") => {
            "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        }
        Method::DELETE => return StatusCode::NO_CONTENT.into_response(),
        _ => "x",
    };
    let mut response = xml.into_response();
    let etag = HeaderValue::from_static("\"opaque\"");
    response.headers_mut().insert("etag", etag);
    response
}

/// A bucket in a store that answers so, and what it was asked.
async fn store(sse: Sse, answer: Option<fn() -> Response>) -> (S3Bucket, Seen, Arc<Status>) {
    let seen = Seen::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
    let state = Store {
        seen: Arc::clone(&seen),
        answer,
    };
    let app = Router::new().fallback(handle).with_state(state);
    tokio::spawn(axum::serve(listener, app).into_future());
    let (bucket, status) = bucket(endpoint, sse);
    (bucket, seen, status)
}

fn bucket(endpoint: String, sse: Sse) -> (S3Bucket, Arc<Status>) {
    let status = Arc::new(Status::default());
    let bucket = S3Bucket::new(S3Options {
        endpoint,
        region: "us-east-1".into(),
        bucket: "my-lake".into(),
        access_key: Secret::new("the-key-id"),
        secret_key: Secret::new("the-s3cret"),
        path_style: true,
        sse,
        status: Arc::clone(&status),
        mid_upload: None,
        timeouts: S3Timeouts::default(),
    });
    (bucket, status)
}

/// Does each of the bucket's operations once, whatever comes of them.
async fn each_operation(bucket: &S3Bucket) -> Vec<Result<(), BucketError>> {
    let body = ObjectBody {
        pieces: vec![Bytes::from_static(b"x")],
        md5: Md5::digest(b"x").into(),
    };
    let etags = ["\"1\"".to_owned()];
    vec![
        bucket.put("queen/k", body).await,
        bucket.get("queen/k").await.map(drop),
        bucket.head("queen/k").await.map(drop),
        bucket.list("queen/", None).await.map(drop),
        bucket.delete("queen/k").await,
        bucket.create_multipart("queen/k").await.map(drop),
        bucket
            .upload_part("queen/k", "u", 1, Bytes::from_static(b"x"))
            .await
            .map(drop),
        bucket.complete_multipart("queen/k", "u", &etags).await,
        bucket.abort_multipart("queen/k", "u").await,
    ]
}

/// The operations as the metrics name them, by name.
const OPERATIONS: [&str; 9] = [
    "delete",
    "get",
    "head",
    "list",
    "multipart_abort",
    "multipart_complete",
    "multipart_create",
    "multipart_part",
    "put",
];

#[tokio::test]
async fn no_request_has_a_condition_or_needs_more_than_the_five_verbs_of_the_policy() {
    let (bucket, seen, _) = store(Sse::Unset, None).await;
    for outcome in each_operation(&bucket).await {
        outcome.expect("the store has everything");
    }
    bucket.probe("queen").await.expect("it passes");
    let seen = seen.lock().expect("no holder panics");
    let requests: Vec<&str> = seen.iter().map(|(request, _)| request.as_str()).collect();
    assert_eq!(
        requests,
        [
            "PUT /my-lake/queen/k?x-id=PutObject",
            "GET /my-lake/queen/k?x-id=GetObject",
            "HEAD /my-lake/queen/k",
            "GET /my-lake/?list-type=2&prefix=queen%2F",
            "DELETE /my-lake/queen/k?x-id=DeleteObject",
            "POST /my-lake/queen/k?uploads",
            "PUT /my-lake/queen/k?x-id=UploadPart&partNumber=1&uploadId=u",
            "POST /my-lake/queen/k?uploadId=u",
            "DELETE /my-lake/queen/k?x-id=AbortMultipartUpload&uploadId=u",
            "HEAD /my-lake/queen/",
        ]
    );
    let mut verbs: Vec<&str> = requests.iter().map(|request| verb(request)).collect();
    verbs.sort_unstable();
    verbs.dedup();
    assert_eq!(
        verbs,
        [
            "s3:AbortMultipartUpload",
            "s3:DeleteObject",
            "s3:GetObject",
            "s3:ListBucket",
            "s3:PutObject",
        ]
    );
    for (request, headers) in &*seen {
        let names: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
        let conditional = names.iter().any(|name| name.starts_with("if-"));
        assert!(!conditional, "{request}: {names:?}");
    }
}

#[tokio::test]
async fn encryption_is_asked_for_where_an_object_begins_and_nowhere_else() {
    let key = || Some("1234abcd".to_owned());
    for (sse, algorithm, key_id) in [
        (Sse::Unset, None, None),
        (Sse::Aes256, Some("AES256"), None),
        (Sse::AwsKms { key_id: None }, Some("aws:kms"), None),
        (Sse::AwsKms { key_id: key() }, Some("aws:kms"), key()),
    ] {
        let (bucket, seen, _) = store(sse, None).await;
        for outcome in each_operation(&bucket).await {
            outcome.expect("the store has everything");
        }
        for (request, headers) in &*seen.lock().expect("no holder panics") {
            let begins = request.contains("PutObject") || request.ends_with("?uploads");
            let header = |name: &str| Some(headers.get(name)?.to_str().expect("text").to_owned());
            assert_eq!(
                (
                    header("x-amz-server-side-encryption"),
                    header("x-amz-server-side-encryption-aws-kms-key-id"),
                ),
                match begins {
                    true => (algorithm.map(str::to_owned), key_id.clone()),
                    false => (None, None),
                },
                "{request}"
            );
        }
    }
}

#[tokio::test]
async fn every_operation_counts_each_request_with_its_status_and_0_without_an_answer() {
    let (ample, _, status) = store(Sse::Unset, None).await;
    for outcome in each_operation(&ample).await {
        outcome.expect("the store has everything");
    }
    let counted = status.s3_requests();
    let fine = |op: &str| match op {
        "delete" | "multipart_abort" => 204,
        _ => 200,
    };
    assert_eq!(counted, OPERATIONS.map(|op| (op, fine(op), 1)));

    let (busy, seen, status) = store(Sse::Unset, Some(slow_down)).await;
    for outcome in each_operation(&busy).await {
        let error = outcome.expect_err("the store is busy");
        assert!(error.to_string().contains("HTTP 503"), "{error}");
        assert_eq!(error.retry_after(), None, "it did not say how long");
    }
    assert_eq!(status.s3_requests(), OPERATIONS.map(|op| (op, 503, 1)));
    let requests = seen.lock().expect("no holder panics").len();
    assert_eq!(requests, OPERATIONS.len(), "none is tried again in here");

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", closed.local_addr().expect("it is bound"));
    drop(closed);
    let (nobody, status) = bucket(endpoint, Sse::Unset);
    for outcome in each_operation(&nobody).await {
        outcome.expect_err("nobody is there");
    }
    assert_eq!(status.s3_requests(), OPERATIONS.map(|op| (op, 0, 1)));
}

fn slow_down() -> Response {
    let body = "<Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>";
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

fn elsewhere(status: StatusCode) -> Response {
    let mut response = status.into_response();
    let headers = response.headers_mut();
    let home = HeaderValue::from_static("eu-central-1");
    headers.insert("x-amz-bucket-region", home);
    // Followed, it would end the test.
    let location = HeaderValue::from_static("http://127.0.0.1:1/");
    headers.insert("location", location);
    response
}

#[tokio::test]
async fn a_redirect_to_another_region_is_not_followed_and_names_the_region() {
    let permanent: fn() -> Response = || elsewhere(StatusCode::MOVED_PERMANENTLY);
    let temporary: fn() -> Response = || elsewhere(StatusCode::TEMPORARY_REDIRECT);
    for (answer, code) in [(permanent, 301), (temporary, 307)] {
        let (bucket, seen, status) = store(Sse::Unset, Some(answer)).await;
        for outcome in each_operation(&bucket).await {
            let text = outcome.expect_err("it is elsewhere").to_string();
            let said = "the bucket my-lake is in region eu-central-1: set QUEEN_S3_REGION to it, \
                        and QUEEN_S3_ENDPOINT to that region's endpoint";
            assert!(text.contains(said), "{text}");
        }
        assert_eq!(status.s3_requests(), OPERATIONS.map(|op| (op, code, 1)));
        let error = bucket.probe("queen").await.expect_err("it is elsewhere");
        assert!(error.to_string().contains("eu-central-1"), "{error}");
        assert!(!seen.lock().expect("no holder panics").is_empty());
    }
}

#[tokio::test]
async fn a_wish_to_wait_is_kept_in_seconds_and_as_a_date() {
    fn asking(value: &str) -> Response {
        let mut response = slow_down();
        let value = HeaderValue::from_str(value).expect("a value");
        response.headers_mut().insert("retry-after", value);
        response
    }
    let seconds: fn() -> Response = || asking("7");
    let past: fn() -> Response = || asking("Wed, 21 Oct 2015 07:28:00 GMT");
    let nonsense: fn() -> Response = || asking("soon");
    for (answer, wait) in [
        (seconds, Some(Duration::from_secs(7))),
        (past, Some(Duration::ZERO)),
        (nonsense, None),
    ] {
        let (bucket, _, _) = store(Sse::Unset, Some(answer)).await;
        let error = bucket.list("queen/", None).await.expect_err("it is busy");
        assert_eq!(error.retry_after(), wait);
    }
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().expect("no holder panics");
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_etag_that_integrity_is_not_defined_over_is_told_at_debug_and_is_no_failure() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("queen_s3=debug")
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let opaque: fn() -> Response = || {
        let completed = "<CompleteMultipartUploadResult><ETag>&quot;opaque&quot;</ETag>\
                         </CompleteMultipartUploadResult>";
        let mut response = completed.into_response();
        let etag = HeaderValue::from_static("\"opaque\"");
        response.headers_mut().insert("etag", etag);
        response
    };
    let (bucket, _, _) = store(Sse::Unset, Some(opaque)).await;
    let body = ObjectBody {
        pieces: vec![Bytes::from_static(b"x")],
        md5: Md5::digest(b"x").into(),
    };
    bucket.put("queen/k", body).await.expect("it is taken");
    let etags = ["\"1\"".to_owned()];
    let completed = bucket.complete_multipart("queen/k", "u", &etags).await;
    completed.expect("it is taken");
    let bytes = log.0.lock().expect("no holder panics");
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let [put, complete] = lines[..] else {
        panic!("{text}");
    };
    for (line, said) in [(put, "no MD5"), (complete, "no count of parts")] {
        assert!(line.contains("DEBUG") && line.contains(said), "{line}");
    }
}
