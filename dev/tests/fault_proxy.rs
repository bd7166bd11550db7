//! The proxy that faults are made with: each does what its name says, and nothing else.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use queen_dev::{FaultProxy, Faults, Silence, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(20);
/// Longer than loopback takes, on a busy machine.
const QUIET: Duration = Duration::from_millis(300);

/// A server that answers a request with its body, and counts.
async fn echo() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&served);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| async {
                    // A body that breaks off is its sender's affair.
                    let body = request.into_body().collect().await;
                    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                    count.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::new(body)))
                });
                let serve = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                let _ = serve.await;
            });
        }
    });
    Ok((address, served))
}

async fn http() -> Result<(FaultProxy, Arc<AtomicUsize>)> {
    let (address, served) = echo().await?;
    Ok((FaultProxy::http(address, 1).await?, served))
}

async fn post(proxy: &FaultProxy, body: Vec<u8>) -> Result<(u16, Vec<u8>)> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(LIMIT)
        .build()?;
    let answer = client.post(proxy.url()).body(body).send().await?;
    Ok((answer.status().as_u16(), answer.bytes().await?.to_vec()))
}

fn always(faults: impl FnOnce(&mut Faults)) -> Faults {
    let mut all = Faults::default();
    faults(&mut all);
    all
}

#[tokio::test]
async fn without_faults_requests_and_answers_come_through_whole() -> Result<()> {
    let (proxy, served) = http().await?;
    let body: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    assert!(post(&proxy, body.clone()).await? == (200, body));
    assert_eq!(served.load(Ordering::Relaxed), 1);
    assert_eq!(proxy.counts(), Default::default());
    Ok(())
}

#[tokio::test]
async fn a_request_is_refused_before_or_after_the_server_has_acted() -> Result<()> {
    let (proxy, served) = http().await?;
    proxy.set(always(|faults| faults.refused_before = 1_000));
    let (status, _) = post(&proxy, b"x".to_vec()).await?;
    assert!([429, 500, 503].contains(&status), "{status}");
    assert_eq!(served.load(Ordering::Relaxed), 0);
    proxy.set(always(|faults| faults.refused_after = 1_000));
    let (status, said) = post(&proxy, b"x".to_vec()).await?;
    assert!([429, 500, 503].contains(&status), "{status}");
    assert_ne!(said, b"x");
    assert_eq!(served.load(Ordering::Relaxed), 1);
    let counts = proxy.counts();
    assert_eq!((counts.refused_before, counts.refused_after), (1, 1));
    proxy.set(Faults::default());
    assert_eq!(post(&proxy, b"x".to_vec()).await?, (200, b"x".to_vec()));
    Ok(())
}

#[tokio::test]
async fn latency_and_bandwidth_make_an_exchange_slow() -> Result<()> {
    let (proxy, _) = http().await?;
    for (faults, met) in [
        (always(|faults| faults.latency = QUIET), [true, false]),
        (
            always(|faults| faults.bytes_per_second = Some(100_000)),
            [false, true],
        ),
    ] {
        let before = proxy.counts();
        proxy.set(faults);
        let begin = Instant::now();
        assert_eq!(post(&proxy, vec![b'x'; 30_000]).await?.0, 200);
        assert!(begin.elapsed() >= QUIET, "{faults:?}");
        let after = proxy.counts();
        let counted = [
            after.delayed > before.delayed,
            after.narrowed > before.narrowed,
        ];
        assert_eq!(counted, met, "{faults:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reset_breaks_the_exchange_off() -> Result<()> {
    let (proxy, served) = http().await?;
    proxy.set(always(|faults| faults.resets = 1_000));
    assert!(post(&proxy, b"x".to_vec()).await.is_err());
    assert_eq!(served.load(Ordering::Relaxed), 0);
    assert!(proxy.counts().reset > 0);
    Ok(())
}

/// A connection through a proxy of plain TCP, with an echo at its end.
async fn connection() -> Result<(FaultProxy, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = FaultProxy::tcp(listener.local_addr()?, 1).await?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (mut from, mut to) = socket.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
        }
    });
    let mut client = TcpStream::connect(proxy.address()).await?;
    client.write_all(b"a").await?;
    assert_eq!(client.read_u8().await?, b'a');
    Ok((proxy, client))
}

#[tokio::test]
async fn a_connection_that_fell_silent_stays_open_and_says_nothing_more() -> Result<()> {
    let (proxy, mut client) = connection().await?;
    proxy.set(always(|faults| faults.silence = Silence::Lasting));
    client.write_all(b"b").await?;
    let silenced = async || Ok((proxy.counts().silenced == 1).then_some(()));
    eventually(LIMIT, silenced).await?;
    proxy.set(Faults::default());
    let answer = tokio::time::timeout(QUIET, client.read_u8()).await;
    assert!(answer.is_err(), "{answer:?}");
    // A new connection knows nothing of it.
    let mut other = TcpStream::connect(proxy.address()).await?;
    other.write_all(b"c").await?;
    assert_eq!(other.read_u8().await?, b'c');
    Ok(())
}

#[tokio::test]
async fn a_silence_that_passes_ends_with_a_reset() -> Result<()> {
    let (proxy, mut client) = connection().await?;
    proxy.set(always(|faults| faults.silence = Silence::Passing));
    client.write_all(b"b").await?;
    let silenced = async || Ok((proxy.counts().silenced == 1).then_some(()));
    eventually(LIMIT, silenced).await?;
    proxy.set(Faults::default());
    let answer = tokio::time::timeout(LIMIT, client.read_u8()).await?;
    let error = answer.expect_err("no answer comes");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    Ok(())
}
