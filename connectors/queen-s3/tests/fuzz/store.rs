//! Answers of a store, byte for byte off the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use md5::{Digest, Md5};
use queen_s3::bucket::s3::{S3Bucket, S3Options, S3Timeouts};
use queen_s3::bucket::{Bucket, BucketError, BucketErrorKind, ObjectBody};
use queen_s3::config::{Secret, Sse};
use queen_s3::limits::RETRY_AFTER_MAX;
use queen_s3::observe::status::Status;
use tokio::runtime::Runtime;

use super::{Verdict, ensure};

/// In answers of the corpus too: a store may say it back.
const SECRET: &str = "the-s3cret-of-the-store";
const BODY: &[u8] = b"one\ntwo\n";
/// How long the store is waited for; it answers at once or never.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest word about one request.
const ERROR_BYTES: usize = 8_000;

/// A store that answers every request with the same bytes and hangs up.
struct Store {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    runtime: Runtime,
}

fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let answer = Arc::<Mutex<Vec<u8>>>::default();
        let said = Arc::clone(&answer);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let said = said.lock().expect("no panic holds it").clone();
                // A client that hangs up first has read what it wanted.
                let _ = serve(client, &said);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        Store {
            address,
            answer,
            runtime,
        }
    })
}

fn serve(client: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut request = BufReader::new(&client);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if request.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut request.take(length), &mut std::io::sink())?;
    (&client).write_all(answer)
}

fn bucket(address: SocketAddr) -> S3Bucket {
    S3Bucket::new(S3Options {
        endpoint: format!("http://{address}"),
        region: "us-east-1".into(),
        bucket: "my-lake".into(),
        access_key: Secret::new("the-key-id"),
        secret_key: Secret::new(SECRET),
        path_style: true,
        sse: Sse::Unset,
        status: Arc::new(Status::default()),
        mid_upload: None,
        timeouts: S3Timeouts {
            connect: PATIENCE,
            answer: PATIENCE,
            complete: PATIENCE,
            stall: PATIENCE,
        },
    })
}

/// Values of a header in the head of `answer`.
fn headers(answer: &[u8], name: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(answer);
    let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
    let named = lines.filter_map(|line| line.split_once(':'));
    named
        .filter(|(found, _)| found.trim().eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
        .collect()
}

/// The first line is the operation, the rest what the store answers to it.
pub fn taken_or_refused(input: &[u8]) -> Result<Verdict, String> {
    let end = input.iter().position(|byte| *byte == b'\n');
    let (operation, answer) = input.split_at(end.map_or(input.len(), |end| end + 1));
    let store = store();
    answer.clone_into(&mut store.answer.lock().expect("no panic holds it"));
    let bucket = bucket(store.address);
    let read = store.runtime.block_on(asked(&bucket, operation, answer));
    match read {
        Ok(Some(wrong)) => Err(wrong),
        Ok(None) => Ok(Verdict::Accepted),
        Err(None) => Ok(Verdict::Refused),
        Err(Some(error)) => refused(&error),
    }
}

/// Asks for `operation`: what is wrong with what was made of the answer, if anything; or the error.
async fn asked(
    bucket: &S3Bucket,
    operation: &[u8],
    answer: &[u8],
) -> Result<Option<String>, Option<BucketError>> {
    let length_is = |size: u64| {
        let told = headers(answer, "content-length");
        told.iter().any(|length| length.parse() == Ok(size))
    };
    match operation {
        b"head\n" => Ok(match bucket.head("k").await? {
            Some(info) if !length_is(info.size) => Some(format!("{info:?}")),
            _ => None,
        }),
        b"get\n" => {
            let Some(object) = bucket.get("k").await? else {
                return Ok(None);
            };
            let size = object.size;
            let pieces: Vec<Bytes> = object.stream.try_collect().await?;
            let content = pieces.concat();
            let sound = content.len() as u64 == size && length_is(size);
            Ok((!sound).then(|| format!("{} bytes of {size}", content.len())))
        }
        b"list\n" => {
            let page = bucket.list("queen/", Some("the-token")).await?;
            let sound = page.keys.is_sorted() && page.next.as_deref() != Some("the-token");
            Ok((!sound).then(|| format!("{page:?}")))
        }
        b"put\n" => {
            let md5: [u8; 16] = Md5::digest(BODY).into();
            let pieces = vec![Bytes::from_static(BODY)];
            bucket.put("k", ObjectBody { pieces, md5 }).await?;
            let sent = md5
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>();
            let other = headers(answer, "etag").into_iter().find(|etag| {
                let etag = etag.trim_matches('"');
                let is_md5 = etag.len() == 32 && etag.bytes().all(|b| b.is_ascii_hexdigit());
                is_md5 && !etag.eq_ignore_ascii_case(&sent)
            });
            // An object under the store's own key has an ETag of its own.
            let opaque = !headers(answer, "x-amz-server-side-encryption").is_empty();
            Ok(other.filter(|_| !opaque))
        }
        b"create\n" => {
            let id = bucket.create_multipart("k").await?;
            Ok(id.is_empty().then(|| "an upload without an id".into()))
        }
        b"part\n" => {
            let part = Bytes::from_static(BODY);
            let etag = bucket.upload_part("k", "u", 1, part).await?;
            Ok(etag.is_empty().then(|| "a part without an ETag".into()))
        }
        b"complete\n" => {
            let etags = ["\"a\"".to_owned(), "\"b\"".to_owned()];
            bucket.complete_multipart("k", "u", &etags).await?;
            // An answer that only looks like success: the error is in its body.
            let text = String::from_utf8_lossy(answer);
            let failed = text.contains("\r\n\r\n<Error>");
            Ok(failed.then(|| "an error was taken for success".into()))
        }
        b"delete\n" => Ok(bucket.delete("k").await.map(|()| None)?),
        _ => Err(None),
    }
}

fn refused(error: &BucketError) -> Result<Verdict, String> {
    let said = format!("{error} {error:?}");
    ensure(!said.contains(SECRET), || {
        format!("the secret is told: {said}")
    })?;
    ensure(said.len() <= ERROR_BYTES, || {
        format!("a long error: {said}")
    })?;
    let line = error.to_string();
    ensure(!line.chars().any(char::is_control), || {
        format!("not one line: {line:?}")
    })?;
    if let BucketErrorKind::Refused { retry_after, .. } = &error.kind {
        let patient = retry_after.is_none_or(|wait| wait <= RETRY_AFTER_MAX);
        ensure(patient, || format!("{retry_after:?}"))?;
    }
    Ok(Verdict::Refused)
}
