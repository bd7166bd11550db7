//! What a run is like: how much of everything can go wrong, drawn once from its seed.

use std::time::Duration;

use queen_s3::lake::{Align, Compression, Format, Layout};

use super::dice::Dice;

/// The nature of one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The broker's clock at the start, µs since the epoch.
    pub epoch: i64,
    /// How long faults go on.
    pub chaos: Duration,
    /// Names of the queues.
    pub queues: Vec<String>,
    /// Whether each queue is created only after the sinks have started.
    pub queues_appear_late: bool,
    /// Partitions that a push may go to, per queue.
    pub partitions: i64,
    /// Longest pause between two pushes, ms.
    pub push_pause_ms: i64,
    /// Most records of one push to one partition.
    pub push_records: i64,
    /// Length of what pads a long payload, bytes.
    pub pad: usize,
    /// Probability that a transaction stays open for long.
    pub long_transaction: f64,
    /// Probability that a transaction's session is hidden from the broker's role.
    pub masked: f64,
    /// Whether listings carry the id of a partition's life.
    pub ids: bool,
    /// Age at which segments are deleted.
    pub retention: Option<Duration>,
    /// Whether partitions are deleted, and made again under their name.
    pub partition_deletes: bool,
    /// Whether partitions are deleted more often, whatever a lake has of them, and mostly made again at
    /// once, while sinks lag: what every answer tells of lives is all that tells them apart.
    pub restless: bool,
    /// Whether queues are deleted, and made again under their name.
    pub queue_deletes: bool,
    /// Probability that a segment's `ts` lies below what the broker had promised.
    pub promise_breaks: f64,
    /// Whether the broker's clock steps back.
    pub clock_steps_back: bool,
    /// Longest jump of the broker's clock ahead, µs.
    pub clock_jump: i64,
    /// How far `lastWriteAt` may stay behind a segment's `ts`, µs.
    pub write_at_lag: i64,
    /// Most partitions on a discovery page.
    pub page: usize,
    /// Most records of one entry of a fetch.
    pub fetch_records: usize,
    /// Most records of one fetch call.
    pub call_records: usize,
    /// Whether every process is killed now and then, and the key/value store comes back older,
    /// without a queue's documents, or beside a foreign manifest.
    pub disasters: bool,
    /// Length of the parts that large objects go up in.
    pub part_bytes: usize,
    /// Whether the bucket forgets uploads that are under way, as a lifecycle rule does.
    pub uploads_expire: bool,
    /// How the broker answers fetches.
    pub answers: Answers,
    /// Which of these answers tell the life of a partition that they are of.
    pub lives: Lives,
    /// Longest jump of a sink's wall clock, either way, ms.
    pub wall_jump_ms: i64,
    /// Whether lease rows vanish from the key/value store.
    pub leases_vanish: bool,
    /// Whether checkpoints are lost or damaged.
    pub checkpoints_suffer: bool,
    /// What the bucket says for ETags.
    pub etags: ETags,
    /// Sink processes.
    pub instances: usize,
    /// Probability that a call fails.
    pub error_rate: f64,
    /// Probability that a call takes long.
    pub slow_rate: f64,
    /// Longest time that a slow call takes, ms.
    pub slow_ms: i64,
    /// Probability that a call crashes its process.
    pub crash_rate: f64,
    /// Longest time between two troubles of a process (crash, pause, stop), if there are any.
    pub trouble: Option<Duration>,
    /// Longest pause of a process.
    pub pause: Duration,
    /// Whether a process that starts again has another instance name.
    pub renames: bool,
    /// TTL of leases, seconds.
    pub lease_ttl_s: i64,
    /// Bytes of the sinks' buffer budget.
    pub memory: usize,
    /// Where a queue starts.
    pub earliest: bool,
}

/// How a broker answers fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// As JSON.
    Json,
    /// In compressed segments.
    Segments,
    /// In compressed segments whose blocks are described.
    Described,
    /// Any of them, from call to call: behind one address stand brokers of two versions.
    Mixed,
}

/// Which answers to fetches tell of which life of a partition they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    /// All of them.
    All,
    /// Any, from call to call: behind one address stand brokers of two versions.
    Some,
    /// None of them.
    None,
    /// All of them name one, which no listing knows.
    Foreign,
}

/// What a bucket says for ETags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ETags {
    /// The MD5, and that of the parts' MD5s with their number.
    Plain,
    /// Something else, as for encrypted objects.
    Opaque,
    /// None at all.
    Missing,
}

/// How one process is configured; drawn anew for each start.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Format of new windows.
    pub format: Format,
    /// Their compression.
    pub compression: Compression,
    /// Their layout.
    pub layout: Layout,
    /// Their alignment.
    pub align: Align,
    /// Size target, bytes.
    pub target: u64,
    /// Age limit of a window.
    pub max_window: Duration,
    /// `QUEEN_S3_SAFE_GUARD_MS`.
    pub guard: Duration,
    /// Windows between checkpoints.
    pub checkpoint_every: u64,
    /// Fetch calls in flight.
    pub fetch_concurrency: usize,
    /// Pause between discovery passes.
    pub discovery_interval: Duration,
    /// Largest object that goes up in one request.
    pub multipart_threshold: u64,
}

/// 2026-03-01T00:00:00Z, µs: runs start shortly before an hour or this day ends.
const DAY: i64 = 1_772_323_200_000_000;
const MINUTE: i64 = 60_000_000;
const HOUR_MS: i64 = 3_600_000;

impl Scenario {
    /// Draws a scenario. Which answers tell lives, and what only those bear, falls from `own`
    /// dice: histories in which it does not matter do not follow from it.
    pub fn draw(dice: &mut Dice, own: &mut Dice) -> Self {
        let lives = own.pick(&[Lives::All, Lives::All, Lives::All, Lives::Some, Lives::None]);
        let restless = lives == Lives::All && own.chance(0.7);
        let lives = match lives {
            Lives::None if own.chance(0.5) => Lives::Foreign,
            lives => lives,
        };
        let hour = dice.pick(&[60, 660, 1_440]);
        let epoch = DAY + hour * MINUTE - dice.between(MINUTE / 2, 6 * MINUTE);
        let calm_network = dice.chance(0.25);
        let deletes = dice.chance(0.4);
        let retention = (deletes && dice.chance(0.7)).then(|| {
            let shortest = dice.pick(&[6_000, 20_000]);
            dice.millis(shortest, 120_000)
        });
        let ids = dice.chance(0.7);
        let partition_deletes = deletes && dice.chance(0.6);
        let queue_deletes = deletes && dice.chance(0.25);
        let lease_ttl_s = dice.pick(&[1, 2, 5, 10, 30]);
        let trouble = dice.chance(0.75).then(|| dice.millis(10_000, 90_000));
        // A write that ends later than the lease that began it is only harmless while nothing
        // has been deleted meanwhile: the lake's documented limit.
        let slow_ms = if deletes { lease_ttl_s * 900 } else { 60_000 };
        let pause = if deletes {
            Duration::from_millis(u64::try_from(lease_ttl_s * 900).unwrap_or_default())
        } else {
            Duration::from_secs(120)
        };
        let queues = if dice.chance(0.3) {
            vec!["orders", "a/b c~é"]
        } else {
            vec!["orders"]
        };
        let few = dice.chance(0.5);
        // Records so long that the buffer budget is spent.
        let heavy = dice.chance(0.12);
        // The instant that a late record belongs to may pass the budget only where none is lost.
        let promise_breaks = if !heavy && dice.chance(0.15) {
            dice.pick(&[0.02, 0.2])
        } else {
            0.0
        };
        // Without ids it is the promise that tells a life from the former one.
        let lives_tell = ids || promise_breaks == 0.0;
        let restless = restless && ids && deletes;
        // A sink that lags has something left to read when a life ends.
        let few_records = restless.then(|| own.pick(&[2, 5]));
        // A fetch looks at the record before the one it wants, so it must bring two.
        let fetch_records: &[i64] = if ids {
            &[1, 3, 20, 10_000]
        } else {
            &[2, 3, 20, 10_000]
        };
        Self {
            epoch,
            chaos: dice.millis(40_000, 150_000),
            queues: queues.into_iter().map(str::to_owned).collect(),
            queues_appear_late: dice.chance(0.15),
            partitions: if few {
                dice.between(1, 4)
            } else {
                dice.between(5, 40)
            },
            push_pause_ms: if heavy {
                1_000
            } else {
                let drawn = dice.pick(&[200, 400, 2_000, 10_000]);
                if restless { 200 } else { drawn }
            },
            push_records: if heavy {
                5
            } else {
                let drawn = dice.pick(&[1, 5, 30]);
                if restless { 30 } else { drawn }
            },
            pad: if heavy { 60_000 } else { 400 },
            long_transaction: if heavy {
                0.2
            } else {
                dice.pick(&[0.0, 0.01, 0.1])
            },
            masked: dice.pick(&[0.0, 0.0, 0.02, 0.3]),
            ids,
            retention,
            partition_deletes: restless || partition_deletes && lives_tell,
            restless,
            queue_deletes: queue_deletes && lives_tell,
            promise_breaks,
            clock_steps_back: dice.chance(0.2),
            clock_jump: dice.pick(&[0, 0, 0, 20_000_000, 200_000_000]),
            write_at_lag: dice.between(1_000_000, 1_900_000),
            page: if dice.chance(0.5) {
                1_000
            } else {
                usize::try_from(dice.between(1, 7)).unwrap_or(1)
            },
            fetch_records: usize::try_from(dice.pick(fetch_records)).unwrap_or(2),
            call_records: {
                let drawn = dice.pick(&[2, 10, 100, 100_000, 100_000]);
                usize::try_from(few_records.unwrap_or(drawn)).unwrap_or(1)
            },
            disasters: dice.chance(0.2),
            // A part is a call of its own: not so small that they are all that a run makes.
            part_bytes: if heavy {
                50_000
            } else {
                usize::try_from(dice.pick(&[400, 3_000, 20_000])).unwrap_or(1)
            },
            uploads_expire: dice.chance(0.3),
            answers: dice.pick(&[
                Answers::Json,
                Answers::Segments,
                Answers::Described,
                Answers::Mixed,
            ]),
            lives: if ids { lives } else { Lives::None },
            wall_jump_ms: dice.pick(&[0, 60_000, 6 * HOUR_MS]),
            // A lease that goes while its owner puts an object lets two write the same one.
            leases_vanish: !deletes && dice.chance(0.3),
            checkpoints_suffer: dice.chance(0.3),
            etags: dice.pick(&[ETags::Plain, ETags::Plain, ETags::Opaque, ETags::Missing]),
            instances: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
            error_rate: if calm_network {
                0.0
            } else {
                dice.pick(&[0.005, 0.03, 0.15])
            },
            slow_rate: if calm_network {
                0.0
            } else {
                dice.pick(&[0.0, 0.01, 0.05])
            },
            slow_ms,
            crash_rate: if trouble.is_some() {
                dice.pick(&[0.0, 0.001, 0.01])
            } else {
                0.0
            },
            trouble,
            pause,
            renames: dice.chance(0.3),
            lease_ttl_s,
            memory: if heavy {
                1 << 20
            } else if promise_breaks > 0.0 {
                64 << 20
            } else {
                usize::try_from(dice.pick(&[20_000, 200_000, 64 << 20, 64 << 20])).unwrap_or(1)
            },
            earliest: dice.chance(0.5),
        }
    }
}

impl Scenario {
    /// How far a life of a partition begins at least above the former one's end, µs. Where no id
    /// tells them apart, `lastWriteAt`, in whole seconds, must do so.
    pub fn lives_apart(&self) -> i64 {
        if self.ids { 1 } else { 1_000_000 }
    }
}

impl Configuration {
    /// Draws a configuration.
    pub fn draw(dice: &mut Dice) -> Self {
        let longest = dice.pick(&[2_000, 10_000, 30_000]);
        let max_window = dice.millis(500, longest);
        let format = dice.pick(&[Format::Jsonl, Format::Jsonl, Format::Parquet]);
        let compressions: &[Compression] = match format {
            Format::Jsonl => &[Compression::Zstd, Compression::Gzip, Compression::None],
            Format::Parquet => &[Compression::Zstd, Compression::Snappy],
        };
        Self {
            format,
            compression: dice.pick(compressions),
            layout: dice.pick(&[Layout::Merged, Layout::Merged, Layout::PerPartition]),
            align: dice.pick(Align::ALL),
            target: u64::try_from(dice.pick(&[2_000, 20_000, 1 << 20])).unwrap_or(1),
            max_window,
            guard: Duration::from_millis(
                u64::try_from(dice.pick(&[0, 0, 200, 5_000])).unwrap_or(0),
            ),
            checkpoint_every: u64::try_from(dice.pick(&[1, 3, 20])).unwrap_or(1),
            fetch_concurrency: usize::try_from(dice.between(1, 4)).unwrap_or(1),
            discovery_interval: dice.millis(100, 2_000),
            multipart_threshold: u64::try_from(dice.pick(&[500, 2_000, 64 << 20, 64 << 20]))
                .unwrap_or(1),
        }
    }
}
