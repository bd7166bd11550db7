//! What a check finds: where it is, what is wrong, and what to do about it.

use serde::Serialize;

use crate::lake::spelled;
use crate::limits::VERIFY_FINDINGS;

spelled! {
    /// What is wrong.
    Kind {
        /// A window below the newest one has no manifest.
        MissingManifest = "missing-manifest",
        /// A manifest does not read, or contradicts its key, its objects or itself.
        BadManifest = "bad-manifest",
        /// A window overlaps the one before it, or ends before it starts.
        Tiling = "tiling",
        /// A window reaches past the Hive bucket of its start.
        Alignment = "alignment",
        /// A manifest belongs to another lake.
        Lineage = "lineage",
        /// An object has another name than its window's bounds and shape spell.
        Name = "name",
        /// A manifest names an object that is not there.
        MissingObject = "missing-object",
        /// An object has another length than its manifest says.
        Size = "size",
        /// An object has other bytes than its manifest says.
        Sha256 = "sha256",
        /// An object cannot be decompressed or its records do not read.
        Unreadable = "unreadable",
        /// An object or window holds another number of records than its manifest says.
        Count = "count",
        /// Records are not sorted.
        Order = "order",
        /// A record's `ts` is outside its window, and no `late` range names it.
        Outside = "outside",
        /// Offsets are neither in the lake nor in a `lost` range.
        Gap = "gap",
        /// A record is in the lake twice.
        Duplicate = "duplicate",
        /// An object that no manifest names.
        ForeignObject = "foreign-object",
        /// A key among the manifests that is none.
        ForeignSidecar = "foreign-sidecar",
    }
}

impl Kind {
    /// What an operator can do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::MissingManifest => {
                "restore the manifest from an older version or a copy of the bucket; the window's \
                 objects were not checked"
            }
            Self::BadManifest => {
                "restore the manifest from an older version or a copy of the bucket, and see who \
                 else may write there"
            }
            Self::Tiling | Self::Lineage => {
                "two sinks may have written here: compare the manifests' lineage and writer, stop \
                 one sink, and give it another QUEEN_S3_SINK or QUEEN_S3_PREFIX"
            }
            Self::Alignment | Self::Name => {
                "readers that prune by dt and hour may miss it: see which writer the manifest \
                 names, and restore the object under the key its window has"
            }
            Self::MissingObject => {
                "restore the object from an older version or a copy of the bucket, and look for \
                 lifecycle rules or people that delete there"
            }
            Self::Size | Self::Sha256 | Self::Unreadable => {
                "restore the object from an older version or a copy of the bucket: it has changed \
                 since it was written"
            }
            Self::Count => {
                "compare the object's sha256: if it is right the manifest is wrong, and the sink \
                 that wrote it is to be reported; if not, restore the object"
            }
            Self::Order => {
                "compare the object's sha256: if it is right, report the sink that the manifest's \
                 writer names; if not, restore the object"
            }
            Self::Outside | Self::Duplicate => {
                "readers get the record at another time or twice: find the writer in the manifest, \
                 and drop duplicates on (partition, offset, ts) until it is mended"
            }
            Self::Gap => {
                "read these offsets from the queue if retention still holds them, and report the \
                 sink that the manifest's writer names"
            }
            Self::ForeignObject => {
                "readers take it for part of the lake: move it away, and see who else may write \
                 there"
            }
            Self::ForeignSidecar => "move it away, and see who else may write there",
        }
    }
}

/// One thing that is wrong with a lake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// The window, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The object's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The partition's raw name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The first offset concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// What is wrong, in words.
    pub text: String,
    /// What to do.
    pub advice: &'static str,
}

impl Finding {
    /// A finding about the whole queue.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self {
            kind,
            window: None,
            key: None,
            partition: None,
            offset: None,
            text: text.into(),
            advice: kind.advice(),
        }
    }

    /// The finding, at `key` of window `k`.
    pub fn of(mut self, k: u64, key: &str) -> Self {
        self.window = Some(k);
        self.key = Some(key.to_owned());
        self
    }

    /// The finding, at a key of no window.
    pub fn at_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// The finding, at a record.
    pub fn at(mut self, partition: &str, offset: i64) -> Self {
        self.partition = Some(partition.to_owned());
        self.offset = Some(offset);
        self
    }
}

/// Findings, of which only so many are kept.
#[derive(Debug)]
pub struct Findings {
    kept: Vec<Finding>,
    total: u64,
    limit: usize,
}

impl Default for Findings {
    fn default() -> Self {
        Self::at_most(VERIFY_FINDINGS)
    }
}

impl Findings {
    /// None yet, and at most `limit` that will be kept.
    pub fn at_most(limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            total: 0,
            limit,
        }
    }

    /// Counts a finding, and keeps it while there is room.
    pub fn push(&mut self, finding: Finding) {
        self.total += 1;
        if self.kept.len() < self.limit {
            self.kept.push(finding);
        }
    }

    /// Takes over what `other` found.
    pub fn merge(&mut self, other: Self) {
        let unkept = other.total - other.kept.len() as u64;
        other
            .kept
            .into_iter()
            .for_each(|finding| self.push(finding));
        self.total += unkept;
    }

    /// How many there are, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Those that were kept, by window.
    pub fn into_kept(mut self) -> Vec<Finding> {
        self.kept
            .sort_by_key(|finding| finding.window.unwrap_or(u64::MAX));
        self.kept
    }
}
