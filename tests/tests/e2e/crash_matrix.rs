//! Deaths in every shape of a lake: what is written afterwards is, byte for byte, what a sink
//! writes that nothing happened to.
//!
//! Windows here close at their size and never at their age, so every sink over one log closes the
//! same ones: an undisturbed lake says which bytes the disturbed ones must hold.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use queen_dev::{Event, Sink, SinkOptions, Stack, StoreKind, WAIT, eventually, verify};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use crate::stack_at;

/// A queue whose log fills a few small windows, and one whose log fills a large one.
const SMALL_LOG: &str = "clicks";
const LARGE_LOG: &str = "orders";

const POINTS: [&str; 5] = [
    "after_intent",
    "mid_upload",
    "after_upload",
    "before_commit",
    "after_commit",
];

/// Pushes that make each log. All have the same length, so that the size target cuts between them.
const SMALL_PUSHES: usize = 10;
const LARGE_PUSHES: usize = 27;
/// Records of a push in the large partition, and the length of their payloads.
const LARGE: usize = 4;
const LARGE_BYTES: usize = 80 * 1024;
/// Records of a push in small partitions, and how many of those there are.
const SMALL: usize = 3;
const SMALL_PARTITIONS: usize = 7;

/// How often a pointer is looked at: often enough, and little beside what the sinks do.
const LOOK: Duration = Duration::from_millis(300);
/// Sinks at work at the same time.
const AT_ONCE: usize = 8;
const SEED: u64 = 20_260_905;
const KILLS: usize = 3;
/// Until when after its start a sink is killed: a redo waits two TTLs before it begins.
const LATEST_KILL_MS: u64 = 10_000;

/// How a sink writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    format: &'static str,
    layout: &'static str,
    multipart: bool,
}

impl Shape {
    fn all() -> impl Iterator<Item = Self> {
        ["jsonl", "parquet"].into_iter().flat_map(|format| {
            ["merged", "per-partition"]
                .into_iter()
                .flat_map(move |layout| {
                    [false, true].into_iter().map(move |multipart| Self {
                        format,
                        layout,
                        multipart,
                    })
                })
        })
    }

    /// Half of all: any two of format, layout and kind of upload meet in each of their values.
    fn half() -> impl Iterator<Item = Self> {
        let odd = |shape: &Self| {
            (shape.format == "parquet") ^ (shape.layout == "per-partition") ^ shape.multipart
        };
        Self::all().filter(odd)
    }

    /// A sink's name, short: the S3 server makes a file's name out of a key that goes up in parts.
    fn name(self, death: &str) -> String {
        let upload = if self.multipart { 'p' } else { 's' };
        format!("{}{}{upload}-{death}", &self.format[..1], &self.layout[..1])
    }

    fn queue(self) -> &'static str {
        if self.multipart { LARGE_LOG } else { SMALL_LOG }
    }

    /// Windows that the log fills: small ones, or one whose large object goes up in parts.
    fn windows(self) -> u64 {
        if self.multipart { 1 } else { 3 }
    }

    fn sink(self, name: &str) -> SinkOptions {
        let (target, threshold) = if self.multipart { (8, 5) } else { (1, 64) };
        let mut options = SinkOptions::new(self.queue())
            .with("QUEEN_S3_FORMAT", self.format)
            .with("QUEEN_S3_LAYOUT", self.layout)
            .with("QUEEN_S3_TARGET_MB", target)
            .with("QUEEN_S3_MULTIPART_THRESHOLD_MB", threshold)
            .with("QUEEN_S3_MAX_WINDOW_MS", 86_400_000)
            .with("QUEEN_S3_ALIGN", "none")
            .with("QUEEN_S3_CHECKPOINT_EVERY", 2)
            .with("QUEEN_S3_DISCOVERY_INTERVAL_MS", 500)
            .with("QUEEN_S3_LEASE_TTL_MS", 4_000);
        options.name = name.into();
        options.instance = name.into();
        options
    }
}

/// A lake, without what differs between sinks and between moments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Picture {
    /// Bytes by key below the sink's root.
    objects: BTreeMap<String, Vec<u8>>,
    manifests: Vec<Value>,
}

impl Picture {
    fn of(stack: &Stack, shape: Shape, sink: &str) -> Result<Self> {
        let lake = stack.lake(sink);
        let root = format!("{}/{sink}/", Stack::PREFIX);
        let below = |key: &str| key.strip_prefix(&root).map(str::to_owned);
        let mut picture = Self::default();
        for object in lake.objects(shape.queue())? {
            let key = below(&object.key).context("an object outside of its lake")?;
            picture.objects.insert(key, object.bytes);
        }
        for mut manifest in lake.manifests(shape.queue())? {
            let fields = manifest.as_object_mut().context("no manifest")?;
            for of_this_lake in ["sink", "lineage", "committedAt"] {
                fields.remove(of_this_lake);
            }
            for object in fields["objects"].as_array_mut().context("no objects")? {
                let key = object["key"].as_str().and_then(below);
                object["key"] = key.context("a manifest names an object elsewhere")?.into();
            }
            picture.manifests.push(manifest);
        }
        Ok(picture)
    }

    /// Checks that this is `whole`, or a part of it.
    fn is_part_of(&self, whole: &Self) -> Result<()> {
        for (key, bytes) in &self.objects {
            let expected = whole.objects.get(key);
            let expected = expected.with_context(|| format!("an undisturbed sink has no {key}"))?;
            ensure!(bytes == expected, "{key} has other bytes than undisturbed");
        }
        for (manifest, expected) in self.manifests.iter().zip(&whole.manifests) {
            ensure!(
                manifest == expected,
                "the manifest {manifest} is undisturbed {expected}"
            );
        }
        ensure!(
            self.manifests.len() <= whole.manifests.len(),
            "there are more windows than undisturbed"
        );
        Ok(())
    }

    /// The keys of the first window's objects.
    fn first_window(&self) -> impl Iterator<Item = &str> {
        let objects = self.manifests.first().and_then(|m| m["objects"].as_array());
        let objects = objects.into_iter().flatten();
        objects.filter_map(|object| object["key"].as_str())
    }
}

/// Pushes the log, one call after the other.
async fn fill(stack: &Stack, queue: &str, pushes: usize) -> Result<()> {
    let mut dice = Rng::with_seed(SEED);
    let mut number = 0;
    let mut event = |partition: String, length: usize| {
        number += 1;
        let text: String = std::iter::repeat_with(|| dice.alphanumeric())
            .take(length)
            .collect();
        Event {
            queue: queue.into(),
            partition,
            transaction_id: format!("record-{number:05}"),
            payload: Arc::from(format!(r#"{{"text":"{text}"}}"#)),
        }
    };
    for push in 0..pushes {
        let mut events = Vec::with_capacity(LARGE + SMALL);
        for _ in 0..LARGE {
            events.push(event("large".into(), LARGE_BYTES));
        }
        for record in 0..SMALL {
            let partition = (push * SMALL + record) % SMALL_PARTITIONS;
            events.push(event(format!("small/{partition} é"), 200));
        }
        stack.client().push(events).await?;
    }
    Ok(())
}

/// A document of a sink, null where there is none. A broker that is busy is asked again.
async fn document(stack: &Stack, shape: Shape, sink: &str, document: &str) -> Result<Value> {
    let key = format!("s3:{sink}:{}:{document}", shape.queue());
    let found = eventually(WAIT, async || {
        Ok(stack.client().kv_get("queen-s3", &key).await.ok())
    });
    Ok(found.await?.unwrap_or_default())
}

/// Waits until `sink` has committed every window.
async fn committed(stack: &Stack, shape: Shape, name: &str, sink: &Sink) -> Result<()> {
    let begin = Instant::now();
    while document(stack, shape, name, "committed").await?["k"] != shape.windows() {
        if begin.elapsed() > WAIT {
            bail!("not every window is committed:{}", sink.logs().tail());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Waits until `sink` has committed every window, ends it and takes the picture of its lake, which
/// `queen-s3 verify` finds whole.
async fn finished(
    stack: &Stack,
    shape: Shape,
    options: &SinkOptions,
    sink: Sink,
) -> Result<Picture> {
    let name = &options.name;
    committed(stack, shape, name, &sink).await?;
    drop(sink);
    let mut variables = stack.variables(options);
    variables.retain(|(variable, _)| variable != "QUEEN_S3_CRASH_AT");
    let logs = stack.dir().join("logs");
    verify(&variables, &logs, &format!("{name}-verify")).await?;
    Picture::of(stack, shape, name)
}

/// What must be there of the first window when a sink has died at `point`.
async fn check_death(
    stack: &Stack,
    sink: &str,
    point: &str,
    shape: Shape,
    undisturbed: &Picture,
) -> Result<()> {
    let found = Picture::of(stack, shape, sink)?;
    found.is_part_of(undisturbed)?;
    let intent = document(stack, shape, sink, "intent").await?;
    let first = &undisturbed.manifests[0];
    for field in ["k", "tStart", "tEnd"] {
        ensure!(
            intent[field] == first[field],
            "{field} of the intent {intent} is undisturbed {}",
            first[field]
        );
    }
    let all = undisturbed.first_window().count();
    let visible = found.objects.len();
    let up_to = match point {
        "after_intent" => 0..=0,
        // Objects of other partitions go up at the same time, and any of them may be there.
        "mid_upload" if shape.layout == "per-partition" => 0..=all - 1,
        "mid_upload" => 0..=0,
        _ => all..=all,
    };
    ensure!(up_to.contains(&visible), "{visible} objects are visible");
    let manifests = usize::from(matches!(point, "before_commit" | "after_commit"));
    ensure!(
        found.manifests.len() == manifests,
        "{} manifests are there",
        found.manifests.len()
    );
    let pointer = document(stack, shape, sink, "committed").await?;
    let committed = u64::from(point == "after_commit");
    ensure!(pointer["k"] == committed, "the pointer is {pointer}");
    Ok(())
}

async fn dies_at(stack: &Stack, shape: Shape, point: &str, undisturbed: &Picture) -> Result<()> {
    let name = shape.name(point);
    let options = shape.sink(&name).with("QUEEN_S3_CRASH_AT", point);
    let mut sink = stack.sink(&options)?;
    let status = sink.ended(WAIT).await?;
    let tail = sink.logs().tail();
    ensure!(status.code().is_none(), "it ended with {status}:{tail}");
    check_death(stack, &name, point, shape, undisturbed).await?;
    sink.start_again(&[("QUEEN_S3_CRASH_AT", "never")])?;
    let found = finished(stack, shape, &options, sink).await?;
    found.is_part_of(undisturbed)?;
    ensure!(found == *undisturbed, "objects of the lake are missing");
    Ok(())
}

async fn is_killed(stack: &Stack, shape: Shape, seed: u64, undisturbed: &Picture) -> Result<()> {
    let mut dice = Rng::with_seed(seed);
    let name = shape.name("kills");
    let options = shape.sink(&name);
    let mut sink = stack.sink(&options)?;
    for _ in 0..KILLS {
        // The moment is the point: it may fall anywhere.
        tokio::time::sleep(Duration::from_millis(dice.u64(0..LATEST_KILL_MS))).await;
        sink.kill();
        Picture::of(stack, shape, &name)?.is_part_of(undisturbed)?;
        sink.start_again(&[])?;
    }
    let found = finished(stack, shape, &options, sink).await?;
    found.is_part_of(undisturbed)?;
    ensure!(found == *undisturbed, "objects of the lake are missing");
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Death {
    At(&'static str),
    Kills(u64),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_at_any_point_a_lake_of_any_shape_is_as_if_nothing_had_happened() -> Result<()>
{
    let shapes = Shape::all().collect();
    LocalSet::new()
        .run_until(matrix(StoreKind::S3s, shapes))
        .await
}

/// At the other S3 server, in half of the shapes. That is enough: a server sees requests, and what
/// they are depends on how an object goes up, on how many a window has, and little on their format.
/// Each death meets both uploads of both formats there, and both uploads of both layouts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_at_any_point_a_lake_at_moto_is_as_if_nothing_had_happened() -> Result<()> {
    let shapes = Shape::half().collect();
    LocalSet::new()
        .run_until(matrix(StoreKind::Moto, shapes))
        .await
}

async fn matrix(store: StoreKind, shapes: Vec<Shape>) -> Result<()> {
    let stack = Rc::new(stack_at(store, &[SMALL_LOG, LARGE_LOG]).await?);
    fill(&stack, SMALL_LOG, SMALL_PUSHES).await?;
    fill(&stack, LARGE_LOG, LARGE_PUSHES).await?;

    let mut references = JoinSet::new();
    for shape in shapes.iter().copied() {
        let stack = Rc::clone(&stack);
        references.spawn_local(async move {
            let options = shape.sink(&shape.name("none"));
            let sink = stack.sink(&options)?;
            committed(&stack, shape, &options.name, &sink).await?;
            let label = ("op", "multipart_complete");
            let uploads = sink.metrics().await?;
            let uploads = uploads.get("queen_s3_s3_requests_total", Some(label));
            ensure!(
                uploads.is_some() == shape.multipart,
                "{uploads:?} uploads in parts"
            );
            let picture = finished(&stack, shape, &options, sink)
                .await
                .with_context(|| format!("undisturbed {shape:?}"))?;
            anyhow::Ok((shape, Rc::new(picture)))
        });
    }
    let mut undisturbed = BTreeMap::new();
    for reference in references.join_all().await {
        let (shape, picture) = reference?;
        undisturbed.insert(shape, picture);
    }

    let deaths = POINTS
        .map(Death::At)
        .into_iter()
        .chain([Death::Kills(SEED)]);
    let at_once = Rc::new(Semaphore::new(AT_ONCE));
    let mut cases = JoinSet::new();
    for death in deaths {
        for (number, shape) in (0..).zip(shapes.iter().copied()) {
            let (stack, at_once) = (Rc::clone(&stack), Rc::clone(&at_once));
            let undisturbed = Rc::clone(&undisturbed[&shape]);
            cases.spawn_local(async move {
                let _turn = at_once.acquire().await?;
                let outcome = match death {
                    Death::At(point) => dies_at(&stack, shape, point, &undisturbed).await,
                    Death::Kills(seed) => {
                        is_killed(&stack, shape, seed + number, &undisturbed).await
                    }
                };
                outcome.with_context(|| format!("{shape:?} {death:?}"))
            });
        }
    }
    let failures: Vec<String> = cases
        .join_all()
        .await
        .into_iter()
        .filter_map(|case| case.err().map(|error| format!("{error:#}")))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}
