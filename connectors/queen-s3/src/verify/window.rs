//! Manifests: each by itself, and each against the one before it.

use std::collections::HashSet;

use super::finding::{Finding, Findings, Kind};
use crate::lake::Layout;
use crate::lake::keys::LakeKeys;
use crate::lake::manifest::Manifest;
use crate::time::Micros;

/// Whose lake it is.
#[derive(Clone, Debug)]
pub struct Lake {
    /// The sink's raw name.
    pub sink: String,
    /// The queue's raw name.
    pub queue: String,
    /// Its keys.
    pub keys: LakeKeys,
}

/// Where the windows have come to.
#[derive(Debug, Default)]
pub struct Tiling {
    /// Number and end of the last window whose manifest was read.
    last: Option<(u64, i64)>,
    /// The lineage of the first.
    pub lineage: Option<String>,
    /// Another lineage, reported already.
    foreign: Option<String>,
}

impl Lake {
    /// The lake under `prefix` of `sink` for `queue`, both raw.
    pub fn new(prefix: &str, sink: &str, queue: &str) -> Self {
        Self {
            sink: sink.to_owned(),
            queue: queue.to_owned(),
            keys: LakeKeys::new(prefix, sink, queue),
        }
    }

    /// Reads the manifest of window `k`; the error is a finding.
    pub fn manifest(&self, k: u64, bytes: &[u8]) -> Result<Manifest, Box<Finding>> {
        let key = self.keys.manifest(k);
        let refuse = |text: String| Box::new(Finding::new(Kind::BadManifest, text).of(k, &key));
        let manifest: Manifest = serde_json::from_slice(bytes)
            .map_err(|error| refuse(format!("it does not read: {error}")))?;
        let same = manifest.k == k && manifest.sink == self.sink && manifest.queue == self.queue;
        if !same {
            return Err(refuse(format!(
                "it says that it is of window {} of the queue {:?} of the sink {:?}",
                manifest.k, manifest.queue, manifest.sink
            )));
        }
        Ok(manifest)
    }

    /// Checks what a manifest says by itself.
    pub fn check(&self, manifest: &Manifest, findings: &mut Findings) {
        let key = self.keys.manifest(manifest.k);
        let mut find = |kind, key: &str, text: String| {
            findings.push(Finding::new(kind, text).of(manifest.k, key));
        };
        let (start, end) = (Micros(manifest.t_start), Micros(manifest.t_end));
        if start >= end {
            let text = format!("tStart {start} is not below tEnd {end}");
            find(Kind::Tiling, &key, text);
        }
        let bucket_end = manifest.align.bucket_end(start);
        if end > bucket_end {
            let align = manifest.align;
            let text = format!("tEnd {end} is past {bucket_end}, the end of tStart's {align}");
            find(Kind::Alignment, &key, text);
        }
        for range in manifest.lost.iter().chain(&manifest.late) {
            if range.count() == 0 || range.from < 0 {
                let text = format!(
                    "the range {} to {} of partition {:?} holds nothing",
                    range.from, range.to, range.partition
                );
                find(Kind::BadManifest, &key, text);
            }
        }
        if manifest.layout == Layout::Merged && manifest.objects.len() > 1 {
            let count = manifest.objects.len();
            let text = format!("it names {count} objects where the merged layout has one");
            find(Kind::BadManifest, &key, text);
        }
        let mut named = HashSet::new();
        for object in &manifest.objects {
            let partition = object.partition.as_deref();
            let expected = self
                .keys
                .data(manifest.bounds(), manifest.shape(), partition);
            if (manifest.layout == Layout::PerPartition) != partition.is_some() {
                let text = format!(
                    "its manifest names {} partition for it, in the {} layout",
                    if partition.is_some() { "a" } else { "no" },
                    manifest.layout
                );
                find(Kind::BadManifest, &object.key, text);
            } else if object.key != expected {
                let text = format!("its window's bounds and shape spell {expected}");
                find(Kind::Name, &object.key, text);
            }
            if !named.insert(&object.key) {
                let text = "its manifest names it twice".to_owned();
                find(Kind::BadManifest, &object.key, text);
            }
        }
        let sums = [
            (
                "records",
                manifest.records,
                manifest.objects.iter().map(|o| o.records).sum::<u64>(),
            ),
            (
                "bytes",
                manifest.bytes,
                manifest.objects.iter().map(|o| o.bytes).sum(),
            ),
        ];
        for (what, total, sum) in sums {
            if total != sum {
                let text = format!("its total of {what} is {total}, its objects have {sum}");
                find(Kind::Count, &key, text);
            }
        }
    }
}

impl Tiling {
    /// Checks a manifest against the one before it.
    pub fn follow(&mut self, lake: &Lake, manifest: &Manifest, findings: &mut Findings) {
        let key = lake.keys.manifest(manifest.k);
        let mut find = |kind, text: String| {
            findings.push(Finding::new(kind, text).of(manifest.k, &key));
        };
        let (start, prev) = (Micros(manifest.t_start), Micros(manifest.prev_t_end));
        if start < prev {
            let text = format!("tStart {start} is below prevTEnd {prev}");
            find(Kind::Tiling, text);
        }
        if let Some((k, former)) = self.last
            && manifest.prev_t_end < former
        {
            let former = Micros(former);
            let text = format!("prevTEnd {prev} is below {former}, the tEnd of window {k}");
            find(Kind::Tiling, text);
        }
        self.last = Some((manifest.k, manifest.t_end));
        self.check_lineage(&manifest.lineage, &mut find);
    }

    fn check_lineage(&mut self, lineage: &str, find: &mut impl FnMut(Kind, String)) {
        // Other implementations write none.
        if lineage.is_empty() {
            return;
        }
        let ours = self.lineage.get_or_insert_with(|| lineage.to_owned());
        if ours == lineage {
            self.foreign = None;
        } else if self.foreign.as_deref() != Some(lineage) {
            let text = format!("its lineage is {lineage}, that of the windows before is {ours}");
            find(Kind::Lineage, text);
            self.foreign = Some(lineage.to_owned());
        }
    }

    /// End of the last window.
    pub fn end(&self) -> Option<i64> {
        self.last.map(|(_, end)| end)
    }
}

/// Whether `manifest` may follow `former`: next number, same lake, moving forward.
pub fn follows(former: &Manifest, manifest: &Manifest) -> Result<(), String> {
    let mut findings = Findings::default();
    let lake = Lake::new("", &manifest.sink, &manifest.queue);
    let mut tiling = Tiling::default();
    tiling.follow(&lake, former, &mut Findings::default());
    tiling.follow(&lake, manifest, &mut findings);
    match findings.into_kept().into_iter().next() {
        Some(finding) => Err(finding.text),
        None => Ok(()),
    }
}
