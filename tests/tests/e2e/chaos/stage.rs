//! The parts, the links between them, and what keeps processes running.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_dev::{
    Broker, BrokerClient, BrokerOptions, FaultCounts, FaultProxy, Faults, Lake, Logs,
    PostgresOptions, PrivatePostgres, S3Server, Signal, Sink, Stack, Store, StoreKind, WAIT,
    eventually,
};

use super::plan::What;

pub const QUEUES: [&str; 3] = ["orders", "clicks", "mails"];
pub const NODES: usize = 2;
pub const SINKS: usize = 3;
/// Each node to the database, the producers to each node, each sink to a node, each to its store.
pub const LINKS: usize = NODES + NODES + SINKS + SINKS;

/// Whether a link is between a node and the database.
pub fn is_database_link(link: usize) -> bool {
    link < NODES
}

/// Sink name, instance, queues. The first two are one sink, and share a queue.
const CASTS: [(&str, &str, &str); SINKS] = [
    ("east", "east-0", "orders,clicks"),
    ("east", "east-1", "clicks,mails"),
    ("west", "west-0", "*"),
];

/// Where the objects of each sink name are.
fn store_of(sink: &str) -> StoreKind {
    match sink {
        "east" => StoreKind::S3s,
        _ => StoreKind::Moto,
    }
}

/// Objects above this go up in parts: the least that the sink takes.
const THRESHOLD_MB: &str = "5";
/// In bytes.
pub const THRESHOLD_BYTES: u64 = 5 << 20;
/// The queue whose objects are as large as that: its records are not compressed.
pub const LARGE: &str = "mails";

/// What one instance has that the others have not.
fn own_variables(instance: &str) -> &'static [(&'static str, &'static str)] {
    match instance {
        // It alone has the large queue.
        "east-1" => &[
            ("QUEEN_S3_COMPRESSION", "none"),
            ("QUEEN_S3_MULTIPART_THRESHOLD_MB", THRESHOLD_MB),
        ],
        "west-0" => &[
            ("QUEEN_S3_LAYOUT", "per-partition"),
            ("QUEEN_S3_FORMAT", "parquet"),
        ],
        _ => &[],
    }
}

/// The exit code of a sink that got SIGTERM again while it drained: 128 and the signal.
const DRAIN_CUT_SHORT: i32 = 128 + 15;
/// After which pause a process that has ended is started again.
const REVIVAL: Duration = Duration::from_millis(700);

pub struct Stage {
    dir: PathBuf,
    sinks: Vec<SinkPart>,
    nodes: Vec<NodePart>,
    links: Vec<Link>,
    /// One of each kind.
    stores: Vec<(StoreKind, Store)>,
    postgres: PrivatePostgres,
    /// How often the database was back after a restart, and after a kill.
    restarts: u32,
    kills: u32,
}

struct Link {
    name: String,
    proxy: FaultProxy,
}

struct SinkPart {
    sink: Sink,
    variables: Vec<(String, String)>,
    end: Ending,
}

struct NodePart {
    broker: Broker,
    end: Ending,
}

/// What is known of how a process ended.
#[derive(Default)]
struct Ending {
    /// A signal was sent, so that it may end at once and well.
    signalled: bool,
    /// When it is started again.
    revival: Option<Instant>,
    starts: u32,
}

impl Ending {
    /// Whether the process, whose status this is, is to be started again now.
    ///
    /// # Errors
    ///
    /// When it ended in a way that nothing done to it explains.
    fn due(&mut self, status: Option<ExitStatus>, at_boot: i32) -> Result<bool> {
        let Some(status) = status else {
            return Ok(false);
        };
        let Some(revival) = self.revival else {
            let explained = match status.code() {
                // A signal, and only this program sends any.
                None => self.signalled,
                // It drained; or a second signal came meanwhile, which ends it at once.
                Some(0 | DRAIN_CUT_SHORT) => self.signalled,
                Some(code) => code == at_boot,
            };
            ensure!(explained, "it ended with {status}");
            self.revival = Some(Instant::now() + REVIVAL);
            return Ok(false);
        };
        Ok(Instant::now() >= revival)
    }

    fn started(&mut self) {
        self.signalled = false;
        self.revival = None;
        self.starts += 1;
    }
}

impl Stage {
    pub async fn build(dir: &Path, seed: u64) -> Result<Self> {
        let logs = dir.join("logs");
        std::fs::create_dir_all(&logs)?;
        let postgres =
            tokio::task::block_in_place(|| PrivatePostgres::start(PostgresOptions::throwaway()))?;
        let mut stores = Vec::new();
        for kind in StoreKind::ALL {
            let root = dir.join(kind.to_string());
            let store = Store::start(kind, &root, &logs, Stack::BUCKET).await?;
            stores.push((kind, store));
        }
        let mut links: Vec<Link> = Vec::with_capacity(LINKS);

        let database = SocketAddr::new(postgres.host().parse()?, postgres.port());
        let mut nodes = Vec::with_capacity(NODES);
        for node in 0..NODES {
            let proxy = FaultProxy::tcp(database, seed + links.len() as u64).await?;
            let folder = logs.join(format!("node-{node}"));
            std::fs::create_dir_all(&folder)?;
            let options = BrokerOptions {
                variables: vec![("PG_PORT".into(), proxy.address().port().to_string())],
            };
            links.push(Link {
                name: format!("node-{node} to database"),
                proxy,
            });
            let broker = Broker::start(options, &postgres, &folder).await?;
            let end = Ending::default();
            nodes.push(NodePart { broker, end });
        }
        let mut http = async |name: String, upstream: SocketAddr| -> Result<String> {
            let proxy = FaultProxy::http(upstream, seed + links.len() as u64).await?;
            let url = proxy.url();
            links.push(Link { name, proxy });
            Ok(url)
        };
        for (number, node) in nodes.iter().enumerate() {
            http(format!("producers to node-{number}"), node.broker.address()).await?;
        }
        let mut queens = Vec::new();
        for (number, (_, instance, _)) in CASTS.iter().enumerate() {
            let node = number % NODES;
            let name = format!("{instance} to node-{node}");
            queens.push(http(name, nodes[node].broker.address()).await?);
        }
        let mut buckets = Vec::new();
        for (name, instance, _) in CASTS {
            let address = find(&stores, name)?.address();
            buckets.push(http(format!("{instance} to its store"), address).await?);
        }

        for queue in QUEUES {
            nodes[0].broker.client().configure(queue).await?;
        }
        let mut sinks = Vec::with_capacity(SINKS);
        for (number, (name, instance, queues)) in CASTS.into_iter().enumerate() {
            let store = find(&stores, name)?;
            let mut variables: Vec<(String, String)> = [
                ("QUEEN_URL", queens[number].as_str()),
                ("QUEEN_S3_SINK", name),
                ("QUEEN_S3_INSTANCE", instance),
                ("QUEEN_S3_QUEUES", queues),
                ("QUEEN_S3_ENDPOINT", buckets[number].as_str()),
                ("QUEEN_S3_REGION", S3Server::REGION),
                ("QUEEN_S3_BUCKET", Stack::BUCKET),
                ("QUEEN_S3_PREFIX", Stack::PREFIX),
                ("QUEEN_S3_ACCESS_KEY", store.access_key()),
                ("QUEEN_S3_SECRET_KEY", store.secret_key()),
                ("QUEEN_S3_PATH_STYLE", "true"),
                ("QUEEN_S3_MAX_WINDOW_MS", "1500"),
                ("QUEEN_S3_CHECKPOINT_EVERY", "3"),
                ("QUEEN_S3_DISCOVERY_INTERVAL_MS", "300"),
                ("QUEEN_S3_SAFE_GUARD_MS", "0"),
                ("QUEEN_S3_LEASE_TTL_MS", "3000"),
                ("QUEEN_S3_LISTEN", "127.0.0.1:0"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            for (name, value) in own_variables(instance) {
                variables.push(((*name).into(), (*value).into()));
            }
            sinks.push(SinkPart {
                sink: Sink::start(variables.clone(), &logs, instance)?,
                variables,
                end: Ending::default(),
            });
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            sinks,
            nodes,
            links,
            stores,
            postgres,
            restarts: 0,
            kills: 0,
        })
    }

    /// Sinks by name, with their queues.
    pub fn lakes() -> [(&'static str, &'static [&'static str]); 2] {
        [("east", &QUEUES), ("west", &QUEUES)]
    }

    /// Waits until each sink name has a commit pointer of each of its queues: from then on every
    /// record is to be mirrored.
    pub async fn claimed(&self) -> Result<()> {
        for (sink, queues) in Self::lakes() {
            for queue in queues {
                eventually(WAIT, async || self.pointer(sink, queue).await)
                    .await
                    .with_context(|| format!("{sink} does not claim {queue}"))?;
            }
        }
        Ok(())
    }

    /// A client of a node that no fault is between.
    pub fn client(&self) -> &BrokerClient {
        self.nodes[0].broker.client()
    }

    /// The end of what `sink` has committed of `queue`, µs.
    pub async fn pointer(&self, sink: &str, queue: &str) -> Result<Option<i64>> {
        let key = format!("s3:{sink}:{queue}:committed");
        let found = self.client().kv_get("queen-s3", &key).await?;
        Ok(found.and_then(|pointer| pointer["tEnd"].as_i64()))
    }

    /// Where producers reach the nodes.
    pub fn node_urls(&self) -> impl Iterator<Item = String> {
        let links = &self.links[NODES..2 * NODES];
        links.iter().map(|link| link.proxy.url())
    }

    pub fn perform(&mut self, what: What) -> Result<()> {
        match what {
            What::Link(link, faults) => self.links[link].proxy.set(faults),
            What::KillSink(number) => self.signal_sink(number, Signal::KILL),
            What::StopSink(number) => self.signal_sink(number, Signal::TERM),
            What::KillNode(number) => {
                let node = &mut self.nodes[number];
                node.end.signalled = true;
                node.broker.signal(Signal::KILL);
            }
            What::RestartDatabase | What::KillDatabase => {
                let kill = what == What::KillDatabase;
                tokio::task::block_in_place(|| {
                    if kill {
                        self.postgres.kill();
                    }
                    self.postgres.restart().context("restart the database")
                })?;
                self.kills += u32::from(kill);
                self.restarts += u32::from(!kill);
            }
        }
        Ok(())
    }

    fn signal_sink(&mut self, number: usize, signal: Signal) {
        let part = &mut self.sinks[number];
        part.end.signalled = true;
        part.sink.signal(signal);
    }

    /// Ends every fault. Connections that were silenced for good stay so.
    pub fn calm(&self) {
        for link in &self.links {
            link.proxy.set(Faults::default());
        }
    }

    /// Starts what has ended again, each after a pause.
    ///
    /// # Errors
    ///
    /// When a process ended in a way that nothing done to it explains.
    pub fn revive(&mut self) -> Result<()> {
        // Codes of those that find their counterparts away at boot.
        const SINK_AT_BOOT: i32 = 3;
        const NODE_AT_BOOT: i32 = 1;
        for part in &mut self.sinks {
            let due = part.end.due(part.sink.status(), SINK_AT_BOOT);
            if due.with_context(|| told("a sink", part.sink.logs()))? {
                part.sink.start_again(&[])?;
                part.end.started();
            }
        }
        for part in &mut self.nodes {
            let due = part.end.due(part.broker.status(), NODE_AT_BOOT);
            if due.with_context(|| told("a node", part.broker.logs()))? {
                part.broker.launch_again()?;
                part.end.started();
            }
        }
        Ok(())
    }

    /// The instances, and the logs of all processes.
    pub fn logs(&self) -> impl Iterator<Item = &Logs> {
        let sinks = self.sinks.iter().map(|part| part.sink.logs());
        sinks.chain(self.nodes.iter().map(|part| part.broker.logs()))
    }

    /// The variables of every instance, with its name.
    pub fn instances(&self) -> impl Iterator<Item = (&'static str, &[(String, String)])> {
        let parts = CASTS.iter().zip(&self.sinks);
        parts.map(|((_, instance, _), part)| (*instance, part.variables.as_slice()))
    }

    /// The folder of everything.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The lake of `sink`.
    pub fn lake(&self, sink: &str) -> Result<Lake> {
        Ok(find(&self.stores, sink)?.lake(Stack::PREFIX, sink))
    }

    /// What the parts went through.
    pub fn story(&self) -> String {
        let mut text = String::new();
        for (part, (_, instance, _)) in self.sinks.iter().zip(CASTS) {
            let _ = writeln!(text, "{instance}: started again {} times", part.end.starts);
        }
        for (number, part) in self.nodes.iter().enumerate() {
            let _ = writeln!(
                text,
                "node-{number}: started again {} times",
                part.end.starts
            );
        }
        let _ = writeln!(
            text,
            "the database: restarted {} times, killed {} times",
            self.restarts, self.kills
        );
        for link in &self.links {
            let _ = writeln!(text, "{}: {:?}", link.name, link.proxy.counts());
        }
        text
    }

    /// Checks that the run was what it says: each kind of fault met something, and every process
    /// was started again, the database after a restart and after a kill.
    pub fn every_fault_met_traffic(&self) -> Result<()> {
        let met = |field: fn(FaultCounts) -> u64| {
            let all = self.links.iter().map(|link| field(link.proxy.counts()));
            all.sum::<u64>() > 0
        };
        let all = met(|counts| counts.delayed)
            && met(|counts| counts.narrowed)
            && met(|counts| counts.reset)
            && met(|counts| counts.silenced)
            && met(|counts| counts.refused_before)
            && met(|counts| counts.refused_after)
            && self.sinks.iter().all(|part| part.end.starts > 0)
            && self.nodes.iter().all(|part| part.end.starts > 0)
            && self.restarts > 0
            && self.kills > 0;
        ensure!(all, "not every fault met anything:\n{}", self.story());
        Ok(())
    }
}

/// The store of `sink`.
fn find<'a>(stores: &'a [(StoreKind, Store)], sink: &str) -> Result<&'a Store> {
    let found = stores.iter().find(|(kind, _)| *kind == store_of(sink));
    Ok(&found.context("no such store")?.1)
}

fn told(what: &str, logs: &Logs) -> String {
    format!("{what} ({}):{}", logs.path().display(), logs.tail())
}
