//! Where requests go, seen by a connector that answers in the store's place.

use std::sync::Mutex;

use aws_sdk_s3::config::http::HttpRequest;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse as Answer;

use super::*;
use crate::config::Secret;

const UPLOAD: &str =
    "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
const LISTING: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";

/// Answers every request and keeps method and URI.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl HttpConnector for Seen {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let line = format!("{} {}", request.method(), request.uri());
        let body = match &line {
            line if line.contains("?uploads") => UPLOAD,
            line if line.contains("list-type=2") => LISTING,
            _ => "",
        };
        self.0.lock().expect("no holder panics").push(line);
        let status = 200.try_into().expect("a status");
        HttpConnectorFuture::ready(Ok(Answer::new(status, SdkBody::from(body))))
    }
}

/// The requests of one look, one upload, one listing and one multipart upload.
async fn requests(endpoint: &str, bucket: &str, path_style: bool) -> Vec<String> {
    let seen = Seen::default();
    let mut store = S3Bucket::new(S3Options {
        endpoint: endpoint.into(),
        region: "eu-central-1".into(),
        bucket: bucket.into(),
        access_key: Secret::new("the-key-id"),
        secret_key: Secret::new("the-s3cret"),
        path_style,
        sse: Sse::Unset,
        status: Arc::default(),
        mid_upload: None,
        timeouts: S3Timeouts::default(),
    });
    let connector = SharedHttpConnector::new(seen.clone());
    let client = http_client_fn(move |_, _| connector.clone());
    let config = store.client.config().to_builder().http_client(client);
    store.client = Client::from_conf(config.build());
    let body = ObjectBody {
        pieces: vec![Bytes::from_static(b"x")],
        md5: Md5::digest(b"x").into(),
    };
    store.put("queen/k", body).await.expect("it is taken");
    store.probe("queen").await.expect_err("no length is told");
    store.list("queen/", None).await.expect("a page");
    store.create_multipart("queen/k").await.expect("an id");
    let mut seen = seen.0.lock().expect("no holder panics");
    std::mem::take(&mut *seen)
}

#[tokio::test]
async fn the_bucket_is_a_label_of_the_host_by_default() {
    let host = "http://my-lake.s3.example:9000";
    assert_eq!(
        requests("http://s3.example:9000", "my-lake", false).await,
        [
            format!("PUT {host}/queen/k?x-id=PutObject"),
            format!("HEAD {host}/queen/"),
            format!("GET {host}/?list-type=2&prefix=queen%2F"),
            format!("POST {host}/queen/k?uploads"),
        ]
    );
    let aws = requests("https://s3.eu-central-1.amazonaws.com", "my-lake", false).await;
    let host = "https://my-lake.s3.eu-central-1.amazonaws.com";
    assert_eq!(aws[0], format!("PUT {host}/queen/k?x-id=PutObject"));
}

#[tokio::test]
async fn the_bucket_is_the_first_segment_of_the_path_where_that_is_asked_for() {
    let root = "http://s3.example:9000/my-lake";
    assert_eq!(
        requests("http://s3.example:9000", "my-lake", true).await,
        [
            format!("PUT {root}/queen/k?x-id=PutObject"),
            format!("HEAD {root}/queen/"),
            format!("GET {root}/?list-type=2&prefix=queen%2F"),
            format!("POST {root}/queen/k?uploads"),
        ]
    );
}

#[tokio::test]
async fn a_bucket_that_is_no_label_and_a_host_that_is_an_address_leave_only_the_path() {
    for (endpoint, bucket) in [
        ("http://127.0.0.1:9000", "my-lake"),
        ("http://s3.example:9000", "My_Lake"),
    ] {
        let seen = requests(endpoint, bucket, false).await;
        assert_eq!(
            seen[0],
            format!("PUT {endpoint}/{bucket}/queen/k?x-id=PutObject")
        );
    }
}
