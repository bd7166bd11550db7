//! The two forms in which records travel from the broker to the sink.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Context, Result};
use queen_dev::{Lake, Ledger, SinkOptions};
use queen_e2e::{events, settled};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::stack_with;

const OFFERED: &[u8] = b"application/vnd.queen.segments";
/// What a client asks for that knows of no segments, in as many bytes.
const MASKED: &[u8] = b"application/vnd.queen.nothing!";

/// A broker's address behind which nobody asks for segments, and how many calls would have.
async fn without_segments(broker: SocketAddr) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let masked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&masked);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, broker, Arc::clone(&count)));
        }
    });
    Ok((address, masked))
}

async fn relay(client: TcpStream, broker: SocketAddr, masked: Arc<AtomicUsize>) -> Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = TcpStream::connect(broker).await?.into_split();
    let answers = async { tokio::io::copy(&mut from_broker, &mut to_client).await };
    let requests = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            // A request's head comes in one piece: the client writes it in one.
            let length = from_client.read(&mut bytes).await?;
            if length == 0 {
                return to_broker.shutdown().await;
            }
            let piece = &mut bytes[..length];
            let offered = piece.windows(OFFERED.len()).position(|at| at == OFFERED);
            if let Some(at) = offered {
                piece[at..at + MASKED.len()].copy_from_slice(MASKED);
                masked.fetch_add(1, Relaxed);
            }
            to_broker.write_all(piece).await?;
        }
    };
    tokio::try_join!(answers, requests)?;
    Ok(())
}

/// Every line of a lake, in an order of its own.
fn lines(lake: &Lake) -> Result<Vec<Vec<u8>>> {
    let mut lines = Vec::new();
    for object in lake.objects("orders")? {
        let of_object = object.bytes.split_inclusive(|byte| *byte == b'\n');
        lines.extend(of_object.map(<[u8]>::to_vec));
    }
    lines.sort_unstable();
    Ok(lines)
}

#[tokio::test]
async fn the_lake_is_the_same_whether_records_come_as_segments_or_as_json() -> Result<()> {
    let stack = stack_with(&["orders"]).await?;
    let broker = stack.broker.url();
    let broker = broker.strip_prefix("http://").context("a loopback URL")?;
    let (address, masked) = without_segments(broker.parse()?).await?;
    let options = |name: &str| {
        let mut options = SinkOptions::new("orders").with("QUEEN_S3_COMPRESSION", "none");
        options.name = name.into();
        options.instance = name.into();
        options
    };
    let _segments = stack.sink(&options("segments"))?;
    let json = options("json").with("QUEEN_URL", format!("http://{address}"));
    let _json = stack.sink(&json)?;

    let client = stack.client();
    let pushed = client
        .push_all(events("orders", 0, 2_000, 20), |_| {})
        .await?;
    let log = Ledger::of(&pushed, "orders")?;
    let lakes = (stack.lake("segments"), stack.lake("json"));
    settled(&lakes.0, "orders", &log).await?;
    settled(&lakes.1, "orders", &log).await?;

    assert_eq!(lines(&lakes.0)?, lines(&lakes.1)?);
    let masked = masked.load(Relaxed);
    (masked > 0)
        .then_some(())
        .context("no call asked for segments")
}
