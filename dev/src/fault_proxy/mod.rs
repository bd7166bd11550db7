//! A proxy between two parts that does to their traffic what networks and gateways do.
//!
//! Every connection goes through a pump that can delay it, narrow it, cut it with a reset or leave
//! it open without a word. A proxy of HTTP also parses the requests, and can refuse one before the
//! server has seen it or after the server has acted on it.

mod http;
mod pump;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What is done to the traffic of a proxy. The default is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// What each piece of traffic waits, in either direction.
    pub latency: Duration,
    /// What it waits at most beyond that, drawn for each piece.
    pub jitter: Duration,
    /// Bytes a second in each direction of a connection.
    pub bytes_per_second: Option<u32>,
    /// Of a thousand pieces, how many are answered with a reset of their connection.
    pub resets: u16,
    /// Connections that are used meanwhile fall silent and stay open.
    pub silence: Silence,
    /// Of a thousand requests, how many are refused before the server sees them.
    pub refused_before: u16,
    /// Of a thousand requests, how many are refused after the server has answered them.
    pub refused_after: u16,
}

/// How long a connection that fell silent stays so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Silence {
    /// None falls silent.
    #[default]
    None,
    /// Until the faults are taken away; then it is reset.
    Passing,
    /// For good: neither side is ever told.
    Lasting,
}

/// How often each fault met traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Pieces that waited for latency.
    pub delayed: u64,
    /// Pieces that waited for bandwidth.
    pub narrowed: u64,
    /// Connections reset.
    pub reset: u64,
    /// Connections that fell silent.
    pub silenced: u64,
    /// Requests refused before the server saw them.
    pub refused_before: u64,
    /// Requests refused after the server had answered.
    pub refused_after: u64,
}

/// A proxy on a loopback port of its own. Dropping it cuts its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    link: Arc<Link>,
    task: JoinHandle<()>,
}

/// What the connections of a proxy share.
#[derive(Debug)]
struct Link {
    upstream: SocketAddr,
    faults: watch::Sender<Faults>,
    dice: Mutex<Rng>,
    delayed: AtomicU64,
    narrowed: AtomicU64,
    reset: AtomicU64,
    silenced: AtomicU64,
    refused_before: AtomicU64,
    refused_after: AtomicU64,
}

impl Link {
    fn faults(&self) -> Faults {
        *self.faults.borrow()
    }

    /// Whether a thing that happens to so many of a thousand happens now.
    fn draw(&self, of_a_thousand: u16) -> bool {
        of_a_thousand > 0 && self.dice(|dice| dice.u16(0..1_000)) < of_a_thousand
    }

    /// A die cannot be left half cast, so a poisoned lock is still good.
    fn dice<T>(&self, cast: impl FnOnce(&mut Rng) -> T) -> T {
        cast(&mut self.dice.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl FaultProxy {
    /// A proxy of connections to `upstream`, whatever they speak. Its dice begin with `seed`.
    pub async fn tcp(upstream: SocketAddr, seed: u64) -> Result<Self> {
        Self::start(upstream, seed, false).await
    }

    /// A proxy of HTTP/1 requests to `upstream`.
    pub async fn http(upstream: SocketAddr, seed: u64) -> Result<Self> {
        Self::start(upstream, seed, true).await
    }

    async fn start(upstream: SocketAddr, seed: u64, http: bool) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for a fault proxy")?;
        let address = listener.local_addr()?;
        let link = Arc::new(Link {
            upstream,
            faults: watch::Sender::new(Faults::default()),
            dice: Mutex::new(Rng::with_seed(seed)),
            delayed: AtomicU64::new(0),
            narrowed: AtomicU64::new(0),
            reset: AtomicU64::new(0),
            silenced: AtomicU64::new(0),
            refused_before: AtomicU64::new(0),
            refused_after: AtomicU64::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&link), http));
        Ok(Self {
            address,
            link,
            task,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Does `faults` from now on, and no others.
    pub fn set(&self, faults: Faults) {
        self.link.faults.send_replace(faults);
    }

    /// How often each fault met traffic so far.
    pub fn counts(&self) -> FaultCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FaultCounts {
            delayed: read(&self.link.delayed),
            narrowed: read(&self.link.narrowed),
            reset: read(&self.link.reset),
            silenced: read(&self.link.silenced),
            refused_before: read(&self.link.refused_before),
            refused_after: read(&self.link.refused_after),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts until cancelled. The connections are tasks of the set and end with it.
async fn serve(listener: TcpListener, link: Arc<Link>, http: bool) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A connection that is gone before it is accepted is its client's affair.
                let Ok((client, _)) = accepted else { continue };
                let link = Arc::clone(&link);
                connections.spawn(async move {
                    if http {
                        http::relay(client, link).await;
                    } else {
                        relay(client, link).await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Pumps bytes between `client` and a connection of its own to the server.
async fn relay(client: TcpStream, link: Arc<Link>) {
    match TcpStream::connect(link.upstream).await {
        Ok(server) => pump::run(client, server, &link).await,
        // Nobody listens behind the proxy: the client learns it as it would without one.
        Err(_) => pump::cut(&client),
    }
}
