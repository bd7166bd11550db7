//! The accept loop: connections, bounded in number and in what a slow client can hold.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::paced::Paced;
use crate::config::HttpConfig;
use crate::limits::{ACCEPT_PAUSE, CONNECTION_BUFFER_BYTES};

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Everybody.
    Open,
    /// Clients on this machine.
    Loopback,
}

/// Serves `listener` until `stop`, then closes idle connections and finishes the requests of the
/// others. Dropping the future cuts all of them.
pub async fn serve(
    listener: TcpListener,
    door: Door,
    router: Router,
    config: HttpConfig,
    open: Gauge,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(config.connections));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(config.idle)
        .max_buf_size(CONNECTION_BUFFER_BYTES);
    loop {
        let next = async {
            // Only closing the semaphore fails, and nobody does.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, accept(&listener, door).await)
        };
        let (place, stream) = tokio::select! {
            next = next => next,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        let io = TokioIo::new(Paced::new(stream, config.write_step));
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(protocol.serve_connection(io, service));
        let open = Counted::new(open.clone());
        connections.spawn(async move {
            if let Err(error) = connection.await {
                // What goes wrong on a connection is its client's affair.
                tracing::debug!(%error, "a connection ended");
            }
            drop((place, open));
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// A connection in the gauge of open ones.
struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

async fn accept(listener: &TcpListener, door: Door) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) if door == Door::Open || is_local(&stream, peer) => {
                // Answers go out in few large writes: waiting to fill a packet only adds latency.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                return stream;
            }
            Ok(_) => {}
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted; trying again in a moment");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

fn is_local(stream: &TcpStream, peer: SocketAddr) -> bool {
    let own = stream.local_addr().is_ok_and(|own| own.ip() == peer.ip());
    own || peer.ip().to_canonical().is_loopback()
}
