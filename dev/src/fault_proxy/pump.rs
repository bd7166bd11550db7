//! Bytes between a client and what serves it, with faults.

use std::future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Link, Silence, count};

/// Bytes that go through at once: a piece.
const PIECE: usize = 16 * 1024;

/// Pumps both ways until one side has ended, or a fault ends the connection.
pub(super) async fn run(mut client: TcpStream, server: impl AsyncRead + AsyncWrite, link: &Link) {
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = tokio::io::split(server);
        tokio::try_join!(
            one_way(from_client, to_server, link),
            one_way(from_server, to_client, link)
        )
    };
    if ended.is_err() {
        cut(&client);
    }
}

/// Lets the client see a reset instead of an end once its connection is dropped.
pub(super) fn cut(client: &TcpStream) {
    // A connection that is gone already needs none.
    let _ = client.set_zero_linger();
}

/// Pumps one direction to its end and passes the end on.
///
/// # Errors
///
/// When the connection has to be reset: by a fault, or because a side broke off.
async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    link: &Link,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        suffer(length, link).await?;
        to.write_all(&piece[..length]).await?;
        to.flush().await?;
    }
}

/// What a piece of `length` bytes goes through.
async fn suffer(length: usize, link: &Link) -> io::Result<()> {
    let faults = link.faults();
    if faults.silence != Silence::None {
        count(&link.silenced);
        return fall_silent(faults.silence, link).await;
    }
    if link.draw(faults.resets) {
        count(&link.reset);
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let jitter = u64::try_from(faults.jitter.as_millis()).unwrap_or(u64::MAX);
    let mut wait = faults.latency;
    if jitter > 0 {
        wait += Duration::from_millis(link.dice(|dice| dice.u64(0..=jitter)));
    }
    if !wait.is_zero() {
        count(&link.delayed);
    }
    if let Some(rate) = faults.bytes_per_second.filter(|rate| *rate > 0) {
        count(&link.narrowed);
        wait += Duration::from_secs_f64(length as f64 / f64::from(rate));
    }
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

/// Holds a piece back for good, or until the silence is over and the connection is to be reset.
async fn fall_silent(silence: Silence, link: &Link) -> io::Result<()> {
    if silence == Silence::Lasting {
        return future::pending().await;
    }
    let mut faults = link.faults.subscribe();
    // The sender lives as long as the link.
    let _ = faults
        .wait_for(|faults| faults.silence == Silence::None)
        .await;
    Err(io::ErrorKind::ConnectionReset.into())
}
