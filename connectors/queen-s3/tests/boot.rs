//! The process from outside: exit codes, what it prints, and that no secret is in it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use bytes::Bytes;
use futures::stream::pending;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

const TOKEN: &str = "the-token-hunter2";
const SECRET_KEY: &str = "the-secret-key-hunter2";
const ACCESS_KEY: &str = "AKIAEXAMPLE";
/// Bound on everything that is waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// The sink with this environment and nothing else in it.
struct Sink(BTreeMap<String, String>);

impl Sink {
    fn bare() -> Self {
        Self(BTreeMap::new())
    }

    /// Complete, with nothing at either end.
    fn new() -> Self {
        let nowhere = format!("http://127.0.0.1:{}", unused_port());
        Self::bare()
            .with("QUEEN_URL", &nowhere)
            .with("QUEEN_TOKEN", TOKEN)
            .with("QUEEN_S3_QUEUES", "orders")
            .with("QUEEN_S3_ENDPOINT", &nowhere)
            .with("QUEEN_S3_REGION", "us-east-1")
            .with("QUEEN_S3_BUCKET", "my-lake")
            .with("QUEEN_S3_PATH_STYLE", "true")
            .with("QUEEN_S3_ACCESS_KEY", ACCESS_KEY)
            .with("QUEEN_S3_SECRET_KEY", SECRET_KEY)
            .with("QUEEN_S3_INSTANCE", "sink-0")
            .with("QUEEN_S3_LISTEN", "127.0.0.1:0")
            .with("RUST_LOG", "trace")
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs it to its end: the exit code, standard output and standard error.
    async fn ends(&self, arguments: &[&str]) -> (i32, String, String) {
        Running::new(self, arguments).ends().await
    }
}

/// A running sink. It is killed when this is dropped.
struct Running {
    child: Child,
    stderr: String,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Running {
    fn new(sink: &Sink, arguments: &[&str]) -> Self {
        Self::of(
            Command::new(env!("CARGO_BIN_EXE_queen-s3")).args(arguments),
            sink,
        )
    }

    fn of(command: &mut Command, sink: &Sink) -> Self {
        let mut child = command
            .env_clear()
            .envs(&sink.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (sender, lines) = mpsc::unbounded_channel();
        spawn_blocking(move || {
            let lines = stderr.lines().map_while(Result::ok);
            lines
                .map_while(|line| sender.send(line).ok())
                .for_each(drop);
        });
        Self {
            child,
            stderr: String::new(),
            lines,
        }
    }

    async fn next_line(&mut self) -> Option<String> {
        let line = timeout(LIMIT, self.lines.recv())
            .await
            .expect("it prints a line or ends")?;
        self.stderr.push_str(&line);
        self.stderr.push('\n');
        Some(line)
    }

    /// The next line of standard error that holds `text`.
    async fn line(&mut self, text: &str) -> String {
        while let Some(line) = self.next_line().await {
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?} in:\n{}", self.stderr)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process has an id");
        kill_process(pid, signal).expect("it takes signals");
    }

    /// Waits for its end: the exit code, standard output and standard error. No secret is in
    /// either.
    async fn ends(mut self) -> (i32, String, String) {
        while self.next_line().await.is_some() {}
        // Standard error is closed, so the process is at its end.
        let mut stdout = String::new();
        self.child
            .stdout
            .take()
            .expect("piped")
            .read_to_string(&mut stdout)
            .expect("UTF-8");
        let code = self
            .child
            .wait()
            .expect("it is ours")
            .code()
            .expect("an exit code");
        let stderr = std::mem::take(&mut self.stderr);
        assert!(
            !format!("{stdout}{stderr}")
                .to_lowercase()
                .contains("hunter2"),
            "{stderr}"
        );
        (code, stdout, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended already is no failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unused_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A server that answers every request with `answer`, and its base URL.
async fn server<F>(answer: F) -> String
where
    F: Fn(Method, Uri) -> Response + Clone + Send + Sync + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address: SocketAddr = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router(answer)).await });
    format!("http://{address}")
}

fn router<F>(answer: F) -> Router
where
    F: Fn(Method, Uri) -> Response + Clone + Send + Sync + 'static,
{
    Router::new().fallback(move |method: Method, uri: Uri| {
        let response = answer(method, uri);
        async move { response }
    })
}

/// Folder of an authority, another one, and the certificate of `localhost` that the first has signed.
const TLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");

/// Connections to `localhost` over TLS.
struct Secured {
    listener: tokio::net::TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = self.listener.accept().await.expect("a connection");
            // Who does not trust the certificate goes away.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// As [`server`], over TLS.
async fn secured<F>(answer: F) -> String
where
    F: Fn(Method, Uri) -> Response + Clone + Send + Sync + 'static,
{
    let certificate = CertificateDer::from_pem_file(format!("{TLS}/server.pem"));
    let key = PrivateKeyDer::from_pem_file(format!("{TLS}/server.key")).expect("a key");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.expect("a certificate")], key)
        .expect("they belong together");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let secured = Secured {
        listener,
        acceptor: TlsAcceptor::from(Arc::new(config)),
    };
    tokio::spawn(async move { axum::serve(secured, router(answer)).await });
    format!("https://localhost:{port}")
}

const SAFE_TIME: &str =
    r#"{"safeTime":"2026-09-04T10:03:41.918204Z","safeTimeDegraded":false,"entries":[]}"#;

/// A Queen that answers `safeTime` and nothing else.
async fn queen() -> String {
    server(only_safe_time).await
}

fn only_safe_time(_: Method, uri: Uri) -> Response {
    match uri.path() {
        "/api/v1/partitions/changed" => SAFE_TIME.into_response(),
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

#[tokio::test]
async fn without_a_configuration_it_exits_2_and_names_every_required_variable() {
    let (code, stdout, stderr) = Sink::bare().ends(&[]).await;
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    for variable in [
        "QUEEN_S3_QUEUES",
        "QUEEN_S3_ENDPOINT",
        "QUEEN_S3_REGION",
        "QUEEN_S3_BUCKET",
        "QUEEN_S3_ACCESS_KEY",
        "QUEEN_S3_SECRET_KEY",
    ] {
        let line = format!("queen-s3: {variable}: is required and unset; accepted: ");
        assert!(
            stderr.lines().any(|printed| printed.starts_with(&line)),
            "{variable}: {stderr}"
        );
    }
}

#[tokio::test]
async fn a_value_that_does_not_parse_exits_2_with_the_value_and_what_is_accepted() {
    let sink = Sink::new()
        .with("QUEEN_S3_TARGET_MB", "128MB")
        .with("QUEEN_TOKEN", "two hunter2");
    let (code, _, stderr) = sink.ends(&[]).await;
    assert_eq!(code, 2, "{stderr}");
    let line = "QUEEN_S3_TARGET_MB: \"128MB\" is refused; accepted: a whole number from 1 to 5120";
    assert!(stderr.contains(line), "{stderr}");
    assert!(
        stderr.contains("QUEEN_TOKEN: the value (secret, not shown) is refused"),
        "{stderr}"
    );
}

#[tokio::test]
async fn an_unknown_argument_exits_2() {
    let (code, stdout, stderr) = Sink::new().ends(&["--bucket", "x"]).await;
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("--help"), "{stderr}");
}

#[tokio::test]
async fn help_prints_every_variable_and_version_prints_the_version() {
    let (code, stdout, _) = Sink::bare().ends(&["--help"]).await;
    assert_eq!(code, 0);
    for variable in queen_s3::config::VARIABLES {
        assert!(stdout.contains(variable.name), "{}", variable.name);
    }
    let (code, stdout, _) = Sink::bare().ends(&["--version"]).await;
    assert_eq!(
        (code, stdout),
        (0, format!("queen-s3 {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[tokio::test]
async fn a_taken_port_exits_1_and_names_the_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let (code, stdout, stderr) = Sink::new()
        .with("QUEEN_S3_LISTEN", &address)
        .ends(&[])
        .await;
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(
        stderr.contains(&format!("cannot listen on {address} (QUEEN_S3_LISTEN)")),
        "{stderr}"
    );
}

#[tokio::test]
async fn an_unreachable_queen_exits_3_and_says_what_to_check() {
    let (code, stdout, stderr) = Sink::new().ends(&[]).await;
    assert_eq!((code, stdout.as_str()), (3, ""), "{stderr}");
    assert!(
        stderr.contains("cannot reach Queen at http://127.0.0.1:"),
        "{stderr}"
    );
    assert!(stderr.contains("check QUEEN_URL"), "{stderr}");
}

#[tokio::test]
async fn an_error_that_the_log_filter_hides_is_printed_all_the_same() {
    let (code, _, stderr) = Sink::new().with("RUST_LOG", "off").ends(&[]).await;
    assert_eq!(code, 3, "{stderr}");
    assert!(
        stderr.starts_with("queen-s3: cannot reach Queen at "),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_refused_token_exits_3_and_names_the_scopes() {
    let queen = server(|_, _| StatusCode::UNAUTHORIZED.into_response()).await;
    let (code, _, stderr) = Sink::new().with("QUEEN_URL", &queen).ends(&[]).await;
    assert_eq!(code, 3, "{stderr}");
    assert!(
        stderr.contains("check QUEEN_TOKEN, which is set"),
        "{stderr}"
    );
    assert!(
        stderr.contains("consume") && stderr.contains("read-write"),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_star_without_the_read_scope_exits_3_before_the_bucket_is_touched() {
    let queen = server(|_, uri| match uri.path() {
        "/api/v1/partitions/changed" => SAFE_TIME.into_response(),
        _ => StatusCode::FORBIDDEN.into_response(),
    })
    .await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let bucket = server(move |_, _| {
        counted.fetch_add(1, Relaxed);
        StatusCode::NOT_FOUND.into_response()
    })
    .await;
    let sink = Sink::new()
        .with("QUEEN_URL", &queen)
        .with("QUEEN_S3_ENDPOINT", &bucket)
        .with("QUEEN_S3_QUEUES", "*");
    let (code, _, stderr) = sink.ends(&[]).await;
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("cannot reach Queen at "), "{stderr}");
    assert!(stderr.contains("the read scope"), "{stderr}");
    assert_eq!(requests.load(Relaxed), 0);
}

#[tokio::test]
async fn a_bucket_that_refuses_or_does_not_answer_exits_3_and_says_what_to_check() {
    let refusing = server(|_, _| StatusCode::FORBIDDEN.into_response()).await;
    let missing = server(|_, _| StatusCode::NOT_FOUND.into_response()).await;
    let nowhere = format!("http://127.0.0.1:{}", unused_port());
    for (endpoint, advice) in [
        (refusing, "QUEEN_S3_SECRET_KEY"),
        (missing, "QUEEN_S3_BUCKET"),
        (nowhere, "QUEEN_S3_ENDPOINT"),
    ] {
        let sink = Sink::new().with("QUEEN_URL", &queen().await);
        let (code, _, stderr) = sink.with("QUEEN_S3_ENDPOINT", &endpoint).ends(&[]).await;
        assert_eq!(code, 3, "{stderr}");
        let line = format!("cannot use the bucket my-lake at {endpoint}");
        assert!(
            stderr.contains(&line) && stderr.contains(advice),
            "{stderr}"
        );
    }
}

/// A bucket that exists and is empty.
async fn empty_bucket() -> String {
    server(nothing_in_it).await
}

fn nothing_in_it(method: Method, uri: Uri) -> Response {
    let is_bucket = uri.path().trim_matches('/') == "my-lake";
    if method == Method::HEAD && is_bucket {
        StatusCode::OK.into_response()
    } else {
        StatusCode::NOT_FOUND.into_response()
    }
}

#[tokio::test]
async fn a_private_authority_is_trusted_by_either_variable_at_queen_and_at_the_bucket() {
    let sink = Sink::new()
        .with("QUEEN_URL", &secured(only_safe_time).await)
        .with("QUEEN_S3_ENDPOINT", &secured(nothing_in_it).await)
        .with("RUST_LOG", "");
    for (variable, path) in [
        ("SSL_CERT_FILE", "authority.pem"),
        ("SSL_CERT_DIR", "authorities"),
    ] {
        let trusting = Sink(sink.0.clone()).with(variable, &format!("{TLS}/{path}"));
        let mut started = Running::new(&trusting, &[]);
        started.line("partitions=discovery").await;
        started.signal(Signal::TERM);
        let (code, _, stderr) = started.ends().await;
        assert_eq!(code, 0, "{variable}: {stderr}");
    }
}

#[tokio::test]
async fn a_certificate_of_an_authority_that_is_not_trusted_exits_3_and_says_so() {
    let other = format!("{TLS}/another-authority.pem");
    let sink = Sink::new()
        .with("SSL_CERT_FILE", &other)
        .with("RUST_LOG", "");
    let (queen, bucket) = (secured(only_safe_time).await, secured(nothing_in_it).await);
    for (sink, place) in [
        (
            Sink(sink.0.clone()).with("QUEEN_URL", &queen),
            "cannot reach Queen at https://localhost:",
        ),
        (
            Sink(sink.0.clone())
                .with("QUEEN_URL", &self::queen().await)
                .with("QUEEN_S3_ENDPOINT", &bucket),
            "cannot use the bucket my-lake at https://localhost:",
        ),
    ] {
        let (code, _, stderr) = sink.ends(&[]).await;
        assert_eq!(code, 3, "{stderr}");
        let says = stderr.contains(place) && stderr.contains("UnknownIssuer");
        assert!(says, "{stderr}");
    }
}

/// A proxy that lets nothing through, its URL, and how often it was connected to.
async fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Relaxed);
        }
    });
    (format!("http://{address}"), connections)
}

#[tokio::test]
async fn no_proxy_of_the_environment_is_asked_for_anything() {
    let (proxy, connections) = proxy().await;
    let sink = Sink::new()
        .with("SSL_CERT_FILE", &format!("{TLS}/authority.pem"))
        .with("HTTP_PROXY", &proxy)
        .with("HTTPS_PROXY", &proxy)
        .with("ALL_PROXY", &proxy)
        .with("http_proxy", &proxy)
        .with("https_proxy", &proxy)
        .with("all_proxy", &proxy);
    for (queen, endpoint) in [
        (queen().await, empty_bucket().await),
        (secured(only_safe_time).await, secured(nothing_in_it).await),
    ] {
        let sink = Sink(sink.0.clone())
            .with("QUEEN_URL", &queen)
            .with("QUEEN_S3_ENDPOINT", &endpoint);
        let mut started = Running::new(&sink, &[]);
        started.line("partitions=discovery").await;
        started.signal(Signal::TERM);
        let (code, _, stderr) = started.ends().await;
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(connections.load(Relaxed), 0, "{stderr}");
    }
}

async fn booted(filter: &str) -> Running {
    let sink = Sink::new()
        .with("QUEEN_URL", &queen().await)
        .with("QUEEN_S3_ENDPOINT", &empty_bucket().await)
        .with("RUST_LOG", filter);
    let mut started = Running::new(&sink, &[]);
    started.line("listening on 127.0.0.1:").await;
    let line = started.line("partitions=discovery").await;
    assert!(line.contains("queen-s3 1."), "{line}");
    assert!(
        line.contains(" token=<set> ") && line.ends_with(" crash_at=never"),
        "{line}"
    );
    started
}

#[tokio::test]
async fn it_says_where_it_listens_then_prints_the_boot_line_and_a_signal_drains_it() {
    for (signal, filter) in [(Signal::TERM, "trace"), (Signal::INT, "")] {
        let started = booted(filter).await;
        started.signal(signal);
        let (code, stdout, stderr) = started.ends().await;
        assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn as_many_files_may_be_open_as_the_system_allows() {
    let sink = Sink::new()
        .with("QUEEN_URL", &queen().await)
        .with("QUEEN_S3_ENDPOINT", &empty_bucket().await)
        .with("RUST_LOG", "");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", r#"ulimit -Sn 200 && exec "$0""#]);
    shell.arg(env!("CARGO_BIN_EXE_queen-s3"));
    let mut running = Running::of(&mut shell, &sink);
    running.line("partitions=discovery").await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", running.child.id()));
    let limits = limits.expect("it runs");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let words: Vec<_> = line.expect("a limit").split_whitespace().collect();
    assert_eq!(words[0], words[1], "soft and hard");
}

#[tokio::test]
async fn a_json_log_is_one_object_a_line() {
    let sink = Sink::new()
        .with("QUEEN_S3_LOG_FORMAT", "json")
        .with("RUST_LOG", "info");
    let (code, _, stderr) = sink.ends(&[]).await;
    assert_eq!(code, 3);
    for line in stderr.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value["message"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn no_name_of_a_queue_writes_a_line_of_its_own_into_the_log() {
    let queen = server(|_, uri| match uri.path() {
        "/api/v1/resources/queues" => {
            r#"{"queues":[{"name":"a\n2026 ERROR forged\u001b[2J"}]}"#.into_response()
        }
        _ => only_safe_time(Method::POST, uri),
    })
    .await;
    let sink = Sink::new()
        .with("QUEEN_URL", &queen)
        .with("QUEEN_S3_QUEUES", "*")
        .with("QUEEN_S3_ENDPOINT", &empty_bucket().await)
        .with("RUST_LOG", "queen_s3=trace");
    let mut running = Running::new(&sink, &[]);
    let line = running.line("forged").await;
    assert!(line.contains(r"a\n2026 ERROR forged\u{1b}[2J"), "{line}");
    running.signal(Signal::TERM);
    let (_, _, stderr) = running.ends().await;
    let forged = stderr.contains('\x1b') || stderr.contains("\n2026 ERROR");
    assert!(!forged, "{stderr}");
}

/// A Queen that grants the first lease and never finishes another key/value answer.
async fn stalling_queen() -> String {
    let batches = Arc::new(AtomicUsize::new(0));
    server(move |_, uri| match uri.path() {
        "/api/v1/partitions/changed" => SAFE_TIME.into_response(),
        "/api/v1/kv" if batches.fetch_add(1, Relaxed) == 0 => r#"{"results":[
            {"op":"put","applied":true,"version":1},
            {"op":"get","found":false},
            {"op":"get","found":false},
            {"op":"get","found":false}]}"#
            .into_response(),
        _ => Body::from_stream(pending::<Result<Bytes, Infallible>>()).into_response(),
    })
    .await
}

#[tokio::test]
async fn a_second_signal_ends_a_drain_at_once_with_128_plus_its_number() {
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let sink = Sink::new()
            .with("QUEEN_URL", &stalling_queen().await)
            .with("QUEEN_S3_ENDPOINT", &empty_bucket().await)
            .with("RUST_LOG", "");
        let mut running = Running::new(&sink, &[]);
        running.line("queue claimed").await;
        running.signal(Signal::TERM);
        running.line("a second one ends at once").await;
        running.signal(signal);
        let (code, _, stderr) = running.ends().await;
        assert_eq!(code, expected, "{stderr}");
    }
}
