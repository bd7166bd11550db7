//! Proves a lake from the bucket alone: `queen-s3 verify`.
//!
//! Manifests and objects are read a few at a time and judged in the order of the windows.
//! [`window`] judges manifests, [`object`] downloads one object and [`scan`] judges its
//! records, [`ledger`] follows every partition's offsets from window to window, and [`listing`]
//! finds what no manifest names. Memory holds one small entry per partition, 16 bytes per object,
//! and the objects being read.

mod finding;
mod ledger;
mod listing;
mod object;
mod progress;
mod report;
mod scan;
mod store;
mod window;

use std::sync::Arc;

use futures::{StreamExt, stream};

use crate::bucket::BucketError;
use crate::lake::Layout;
use crate::lake::keys::LakeKeys;
use crate::lake::manifest::{Manifest, OffsetRange};
use crate::limits::{VERIFY_IN_FLIGHT, VERIFY_PROGRESS_EVERY};
use crate::time::Micros;

pub use self::finding::{Finding, Findings, Kind};
pub use self::progress::Progress;
pub use self::report::{Note, QueueReport, Report};
pub use self::store::Store;
pub use self::window::Lake;
pub(crate) use self::window::follows;

use self::ledger::{Ledger, Origin};
use self::listing::{Listed, Named};
use self::object::Checked;
use self::window::Tiling;

/// Checks the lake of `sink` under `prefix`: these queues (raw names), or every queue that the
/// bucket holds anything of.
///
/// # Errors
///
/// When the bucket could not be asked. Whatever is wrong with the lake is in the report.
pub async fn verify(
    store: &Store,
    prefix: &str,
    sink: &str,
    queues: Option<&[String]>,
    progress: &mut Progress,
) -> Result<Report, BucketError> {
    let queues: Vec<Listed> = match queues {
        Some(queues) => queues.iter().cloned().map(Listed::Queue).collect(),
        None => listing::queues(store, prefix, sink).await?,
    };
    let mut reports = Vec::new();
    for queue in queues {
        let report = match queue {
            Listed::Queue(queue) => {
                check_queue(store, &Lake::new(prefix, sink, &queue), progress).await?
            }
            Listed::Hashed(spelled) => unnamed_queue(spelled),
        };
        reports.push(report);
    }
    progress.end();
    Ok(Report::new(prefix, sink, reports))
}

/// The windows that have a manifest, ascending.
pub(crate) async fn listed_windows(
    store: &Store,
    keys: &LakeKeys,
) -> Result<Vec<u64>, BucketError> {
    listing::windows(store, keys, &mut Findings::default()).await
}

/// A queue whose keys only hash its name.
fn unnamed_queue(spelled: String) -> QueueReport {
    let text = "its name is hashed in keys, and no manifest tells it: check it with --queue NAME";
    QueueReport {
        queue: spelled,
        findings_total: 1,
        findings: vec![Finding::new(Kind::MissingManifest, text)],
        ..QueueReport::default()
    }
}

/// One step of a check, in the order of the windows: an object, or a window without any.
struct Step {
    k: u64,
    /// The window's manifest, or why there is none.
    manifest: Result<Arc<Manifest>, Box<Finding>>,
    /// The object's place in the manifest.
    at: Option<usize>,
}

impl Step {
    /// The steps of window `k`.
    fn of(k: u64, manifest: Result<Arc<Manifest>, Box<Finding>>) -> impl Iterator<Item = Self> {
        let objects = manifest
            .as_ref()
            .map_or(0, |manifest| manifest.objects.len());
        let none = (objects == 0).then_some(None);
        none.into_iter()
            .chain((0..objects).map(Some))
            .map(move |at| Self {
                k,
                manifest: manifest.clone(),
                at,
            })
    }

    fn begins(&self) -> bool {
        self.at.is_none_or(|at| at == 0)
    }

    fn ends(&self, manifest: &Manifest) -> bool {
        self.at.is_none_or(|at| at + 1 == manifest.objects.len())
    }
}

async fn check_queue(
    store: &Store,
    lake: &Lake,
    progress: &mut Progress,
) -> Result<QueueReport, BucketError> {
    let mut check = Check::new(lake);
    let windows = listing::windows(store, &lake.keys, &mut check.findings).await?;
    let newest = windows.last().copied().unwrap_or_default();
    check.missing(&windows);
    let mut steps = stream::iter(windows.clone())
        .map(|k| async move {
            let bytes = store.sidecar(&lake.keys.manifest(k)).await?;
            let manifest = match &bytes {
                Some(bytes) => lake.manifest(k, bytes).map(Arc::new),
                None => Err(missing(lake, k, k)),
            };
            Ok::<_, BucketError>((k, manifest))
        })
        .buffered(VERIFY_IN_FLIGHT)
        .flat_map(|read| match read {
            Ok((k, manifest)) => stream::iter(Step::of(k, manifest).map(Ok)).boxed(),
            Err(error) => stream::once(async move { Err(error) }).boxed(),
        })
        .map(|step: Result<Step, BucketError>| async move {
            let step = step?;
            let checked = match (&step.manifest, step.at) {
                (Ok(manifest), Some(at)) => Some(object::check(store, manifest, at).await?),
                _ => None,
            };
            Ok::<_, BucketError>((step, checked))
        })
        .buffered(VERIFY_IN_FLIGHT)
        .boxed();
    let mut tick = tokio::time::interval(VERIFY_PROGRESS_EVERY);
    loop {
        let step = tokio::select! {
            biased;
            _ = tick.tick(), if progress.is_shown() => {
                progress.show(store, &check.report, newest, check.findings.total());
                continue;
            }
            step = steps.next() => step,
        };
        let Some((step, checked)) = step.transpose()? else {
            break;
        };
        check.step(step, checked);
    }
    drop(steps);
    listing::foreign(
        store,
        lake,
        &windows,
        &check.unread,
        &check.named,
        &mut check.findings,
        &mut check.report.notes,
    )
    .await?;
    Ok(check.finish())
}

fn missing(lake: &Lake, from: u64, to: u64) -> Box<Finding> {
    let text = match from == to {
        true => format!("window {from} has no manifest, though later ones do"),
        false => format!("windows {from} to {to} have no manifest, though later ones do"),
    };
    Box::new(Finding::new(Kind::MissingManifest, text).of(from, &lake.keys.manifest(from)))
}

/// A check of one queue under way.
struct Check<'a> {
    lake: &'a Lake,
    report: QueueReport,
    findings: Findings,
    tiling: Tiling,
    ledger: Ledger,
    named: Named,
    /// Windows below the newest whose manifest was not read: first and last.
    unread: Vec<(u64, u64)>,
    last: u64,
    window: Totals,
}

/// What the objects of the present window hold.
#[derive(Default)]
struct Totals {
    partitions: u64,
    min_ts: Option<Micros>,
    max_ts: Option<Micros>,
    /// Whether every object was what its manifest says, and sorted.
    whole: bool,
}

impl<'a> Check<'a> {
    fn new(lake: &'a Lake) -> Self {
        Self {
            lake,
            report: QueueReport {
                queue: lake.queue.clone(),
                ..QueueReport::default()
            },
            findings: Findings::default(),
            tiling: Tiling::default(),
            ledger: Ledger::default(),
            named: Named::default(),
            unread: Vec::new(),
            last: 0,
            window: Totals::default(),
        }
    }

    /// Notes the windows that the listing leaves out.
    fn missing(&mut self, windows: &[u64]) {
        let mut expected = 1;
        for k in windows {
            if *k > expected {
                self.findings.push(*missing(self.lake, expected, k - 1));
                self.unread.push((expected, k - 1));
            }
            expected = k + 1;
        }
        if windows.is_empty() {
            self.report.notes.push(Note {
                window: None,
                key: None,
                text: "the lake holds no window of this queue".to_owned(),
            });
        }
    }

    fn step(&mut self, step: Step, checked: Option<Checked>) {
        let (begins, k) = (step.begins(), step.k);
        let manifest = match &step.manifest {
            Ok(manifest) => Ok(&**manifest),
            Err(finding) => Err(&**finding),
        };
        if begins {
            self.begin(manifest, k);
        }
        let Ok(manifest) = manifest else {
            return;
        };
        if let (Some(at), Some(checked)) = (step.at, checked) {
            self.object(manifest, at, checked);
        }
        if step.ends(manifest) {
            self.end(manifest);
        }
    }

    fn begin(&mut self, manifest: Result<&Manifest, &Finding>, k: u64) {
        if k != self.last + 1 {
            self.ledger.doubt_all();
        }
        self.last = k;
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(finding) => {
                self.findings.push(finding.clone());
                self.unread.push((k, k));
                self.ledger.doubt_all();
                return;
            }
        };
        self.lake.check(manifest, &mut self.findings);
        self.tiling.follow(self.lake, manifest, &mut self.findings);
        for range in &manifest.lost {
            self.ledger.lose(&range.partition, range.from, range.to);
        }
        let count = |ranges: &[OffsetRange]| ranges.iter().map(OffsetRange::count).sum::<u64>();
        let report = &mut self.report;
        report.windows += 1;
        report.lost += count(&manifest.lost);
        report.late += count(&manifest.late);
        report.from.get_or_insert(manifest.prev_t_end);
        self.window = Totals {
            whole: true,
            ..Totals::default()
        };
    }

    fn object(&mut self, manifest: &Manifest, at: usize, checked: Checked) {
        let object = &manifest.objects[at];
        self.named.insert(&object.key);
        let report = &mut self.report;
        report.objects += u64::from(checked.bytes > 0);
        report.records += checked.records;
        report.bytes += checked.bytes;
        let totals = &mut self.window;
        totals.partitions += checked.partitions;
        totals.min_ts = [totals.min_ts, checked.min_ts].into_iter().flatten().min();
        totals.max_ts = totals.max_ts.max(checked.max_ts);
        totals.whole &= checked.findings.total() == 0;
        self.findings.merge(checked.findings);
        let origin = Origin {
            k: manifest.k,
            key: object.key.as_str().into(),
        };
        for (partition, run) in checked.runs.iter() {
            if let Some(finding) = self.ledger.take(&origin, partition, run) {
                self.findings.push(finding);
            }
        }
        self.ledger.overflow(&mut self.findings);
        if !checked.whole {
            match (manifest.layout, &object.partition) {
                (Layout::PerPartition, Some(partition)) => self.ledger.doubt(partition),
                _ => self.ledger.doubt_all(),
            }
        }
    }

    fn end(&mut self, manifest: &Manifest) {
        let Totals {
            partitions,
            min_ts,
            max_ts,
            whole,
        } = std::mem::take(&mut self.window);
        // What is wrong with an object has been said.
        if !whole {
            return;
        }
        let key = self.lake.keys.manifest(manifest.k);
        if partitions != manifest.partitions {
            let named = manifest.partitions;
            let text = format!("it says {named} partitions, its objects hold {partitions}");
            self.findings
                .push(Finding::new(Kind::Count, text).of(manifest.k, &key));
        }
        let instants = (min_ts.map(|ts| ts.0), max_ts.map(|ts| ts.0));
        if instants != (manifest.min_ts, manifest.max_ts) {
            let text = format!(
                "its minTs and maxTs are {:?} and {:?}, those of its records {:?} and {:?}",
                manifest.min_ts, manifest.max_ts, instants.0, instants.1
            );
            self.findings
                .push(Finding::new(Kind::BadManifest, text).of(manifest.k, &key));
        }
    }

    fn finish(mut self) -> QueueReport {
        self.ledger.report(&mut self.findings);
        let mut report = self.report;
        report.partitions = self.ledger.partitions();
        report.t_end = self.tiling.end();
        report.lineage = self.tiling.lineage;
        report.findings_total = self.findings.total();
        report.findings = self.findings.into_kept();
        report
    }
}
