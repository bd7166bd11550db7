//! The supervisor of an embedded sink: started again whenever it ends, stopped with the broker.
//!
//! The sink is a process, so that what goes wrong in it stays in it. It is a client like any other:
//! it comes in over the broker's listener and through its authentication.

mod child;
mod output;
pub mod settings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::limits::{SINK_BACKOFF_MAX, SINK_BACKOFF_MIN, SINK_HEALTHY_AFTER};
use child::GroupChild;
use settings::EmbeddedConfig;

/// The broker's own secrets: the sink has no use for them, so it is not given them.
const STRIPPED: [&str; 4] = [
    "PG_PASSWORD",
    "JWT_SECRET",
    "QUEEN_ENCRYPTION_KEY",
    "QUEEN_SYNC_SECRET",
];

/// What the sink is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its process is being made.
    Starting,
    /// Its process runs.
    Running,
    /// It has ended and will be started again.
    Backoff,
    /// It was told to stop.
    Stopping,
    /// It has stopped with the broker.
    Stopped,
}

#[derive(Debug)]
struct Now {
    phase: Phase,
    pid: Option<i32>,
    since: Option<Instant>,
    starts: u64,
    last_exit: Option<String>,
    backoff: Duration,
}

/// What `/status` shows of the sink.
#[derive(Debug)]
pub struct SinkState(Mutex<Now>);

/// The `s3` block of `/status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SinkStatus {
    mode: &'static str,
    phase: Phase,
    /// Of the running process.
    pid: Option<i32>,
    /// Starts after the first.
    restarts: u64,
    /// How the last process ended, once one has.
    last_exit: Option<String>,
    /// Age of the running process.
    uptime_ms: u64,
    /// The pause that is being waited for, 0 when none is.
    backoff_ms: u64,
}

impl Default for SinkState {
    fn default() -> Self {
        Self(Mutex::new(Now {
            phase: Phase::Starting,
            pid: None,
            since: None,
            starts: 0,
            last_exit: None,
            backoff: Duration::ZERO,
        }))
    }
}

impl SinkState {
    fn now(&self) -> MutexGuard<'_, Now> {
        // Every change is one assignment after another; none can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block for `/status`.
    pub fn status(&self) -> SinkStatus {
        let now = self.now();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        SinkStatus {
            mode: "embedded",
            phase: now.phase,
            pid: now.pid,
            restarts: now.starts.saturating_sub(1),
            last_exit: now.last_exit.clone(),
            uptime_ms: now.since.map_or(0, |since| millis(since.elapsed())),
            backoff_ms: millis(now.backoff),
        }
    }

    fn started(&self, pid: i32) {
        let mut now = self.now();
        now.phase = Phase::Running;
        now.pid = Some(pid);
        now.since = Some(Instant::now());
        now.backoff = Duration::ZERO;
    }

    fn ended(&self, phase: Phase, exit: Option<String>, backoff: Duration) {
        let mut now = self.now();
        now.phase = phase;
        now.pid = None;
        now.since = None;
        now.last_exit = exit.or(now.last_exit.take());
        now.backoff = backoff;
    }
}

/// A supervised sink. Dropping it kills the sink.
#[derive(Debug)]
pub struct EmbeddedSink {
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<()>,
}

impl EmbeddedSink {
    /// Supervises a sink that reaches Queen at the listener bound to `address`, unless the
    /// configuration names another place.
    pub fn start(config: EmbeddedConfig, address: SocketAddr, state: Arc<SinkState>) -> Self {
        let stop = CancellationToken::new();
        let supervisor = Supervisor {
            url: config
                .queen_url
                .clone()
                .unwrap_or_else(|| loopback_url(address)),
            config,
            state,
            stop: stop.clone(),
        };
        Self {
            stop,
            supervisor: AbortOnDropHandle::new(tokio::spawn(supervisor.run())),
        }
    }

    /// Stops the sink: SIGTERM, and SIGKILL after the grace.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "the supervisor of the embedded sink ended");
        }
    }
}

/// Where a process of this machine reaches a listener bound to `address`.
fn loopback_url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

/// The URL without the user and password that it may hold.
fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

struct Supervisor {
    config: EmbeddedConfig,
    url: String,
    state: Arc<SinkState>,
    stop: CancellationToken,
}

impl Supervisor {
    async fn run(self) {
        let mut backoff = Backoff::new();
        while !self.stop.is_cancelled() {
            let begun = Instant::now();
            let Some(exit) = self.run_once().await else {
                break;
            };
            let pause = backoff.after(begun.elapsed());
            self.state.ended(Phase::Backoff, Some(exit.clone()), pause);
            tracing::warn!(
                exit,
                backoff_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "the embedded sink ended; it is started again"
            );
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.state.ended(Phase::Stopped, None, Duration::ZERO);
    }

    /// How the sink ended by itself; `None` when it was stopped.
    async fn run_once(&self) -> Option<String> {
        {
            let mut now = self.state.now();
            now.phase = Phase::Starting;
            now.starts += 1;
            now.backoff = Duration::ZERO;
        }
        let (mut child, forwarder) = match self.spawn().await {
            Ok(started) => started,
            Err(error) => return Some(format!("cannot start: {error}")),
        };
        // Told before it is shown: who sees it run finds this line.
        tracing::info!(
            target: output::TARGET,
            pid = child.pid(),
            bin = %self.config.program.display(),
            queen_url = %shown(&self.url),
            queen_url_from = if self.config.queen_url.is_some() {
                "QUEEN_URL (explicit)"
            } else {
                "loopback (bound listener)"
            },
            "queen-s3 sink started (embedded)"
        );
        self.state.started(child.pid());
        let ended = tokio::select! {
            status = child.ended() => Some(status),
            () = self.stop.cancelled() => None,
        };
        let outcome = match ended {
            Some(status) => Some(describe(status)),
            None => {
                self.end(&mut child).await;
                None
            }
        };
        if timeout(output::LAST_LINES, forwarder).await.is_err() {
            tracing::debug!("the embedded sink has ended and something still holds its output");
        }
        outcome
    }

    async fn end(&self, child: &mut GroupChild) {
        self.state.now().phase = Phase::Stopping;
        child.signal(Signal::TERM);
        let status = match timeout(self.config.grace, child.ended()).await {
            Ok(status) => status,
            Err(_) => {
                tracing::warn!(
                    grace_ms = u64::try_from(self.config.grace.as_millis()).unwrap_or(u64::MAX),
                    "the embedded sink did not stop within QUEEN_S3_SHUTDOWN_GRACE_MS; killing it"
                );
                child.signal(Signal::KILL);
                child.ended().await
            }
        };
        let exit = describe(status);
        tracing::info!(target: output::TARGET, exit, "the embedded sink has stopped");
        self.state.ended(Phase::Stopped, Some(exit), Duration::ZERO);
    }

    async fn spawn(&self) -> std::io::Result<(GroupChild, AbortOnDropHandle<()>)> {
        // One pipe for both streams keeps the lines in the order in which they were written.
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new(&self.config.program);
        command
            .env("QUEEN_URL", &self.url)
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(writer.try_clone()?))
            .stderr(OwnedFd::from(writer));
        for secret in STRIPPED {
            command.env_remove(secret);
        }
        let output = pipe::Receiver::from_owned_fd(reader.into())?;
        let child = GroupChild::spawn(command).await?;
        let forwarder = tokio::spawn(output::forward(output));
        Ok((child, AbortOnDropHandle::new(forwarder)))
    }
}

/// How a process ended, in a word and a number.
fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;

    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".into(),
    }
}

/// Pauses between starts: doubling, and from the least again after a long healthy run.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self {
            next: SINK_BACKOFF_MIN,
        }
    }

    fn after(&mut self, uptime: Duration) -> Duration {
        if uptime >= SINK_HEALTHY_AFTER {
            self.next = SINK_BACKOFF_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(SINK_BACKOFF_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_ceiling_and_a_healthy_hour_resets_them() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u64> = (0..7)
            .map(|_| backoff.after(Duration::from_secs(59 * 60)).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.after(Duration::from_secs(3_600)).as_secs(), 1);
        assert_eq!(backoff.after(Duration::ZERO).as_secs(), 2);
    }

    #[test]
    fn the_loopback_follows_the_address_that_was_bound() {
        for (bound, url) in [
            ("0.0.0.0:6632", "http://127.0.0.1:6632"),
            ("[::]:7000", "http://[::1]:7000"),
            ("127.0.0.1:41234", "http://127.0.0.1:41234"),
            ("10.1.2.3:80", "http://10.1.2.3:80"),
        ] {
            assert_eq!(loopback_url(bound.parse().expect(bound)), url);
        }
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        assert_eq!(shown("http://u:p@proxy:1/a@b"), "http://proxy:1/a@b");
        assert_eq!(shown("http://proxy:1/a@b"), "http://proxy:1/a@b");
        assert_eq!(shown("proxy"), "proxy");
    }
}
