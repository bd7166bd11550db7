//! What the bucket lists: queues, manifests, and objects that no manifest names.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use sha2::{Digest, Sha256};

use super::finding::{Finding, Findings, Kind};
use super::report::Note;
use super::store::Store;
use super::window::Lake;
use crate::bucket::BucketError;
use crate::lake::keys::{LakeKeys, decode_name, encode_name, sink_directories};
use crate::lake::manifest::Manifest;

/// A queue that a listing shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// With its raw name.
    Queue(String),
    /// With a name that keys only hash, and no manifest that tells it.
    Hashed(String),
}

/// Every queue of `sink` that the bucket holds anything of.
pub async fn queues(store: &Store, prefix: &str, sink: &str) -> Result<Vec<Listed>, BucketError> {
    let mut spelled = BTreeSet::new();
    let mut manifests = Vec::new();
    for directory in sink_directories(prefix, sink) {
        store
            .list(&directory, |key| {
                let rest = key.strip_prefix(&directory).unwrap_or_default();
                let Some((name, rest)) = rest.split_once('/') else {
                    return;
                };
                if !spelled.contains(name) {
                    spelled.insert(name.to_owned());
                }
                if name.contains('~')
                    && rest.starts_with("windows/")
                    && manifests.last().is_none_or(|(last, _)| last != name)
                {
                    manifests.push((name.to_owned(), key.to_owned()));
                }
            })
            .await?;
    }
    let mut queues = Vec::new();
    for name in spelled {
        let raw = match decode_name(&name) {
            Some(raw) => Some(raw),
            None => match manifests.iter().find(|(spelled, _)| *spelled == name) {
                Some((_, key)) => told(store, key, &name).await?,
                None => None,
            },
        };
        queues.push(raw.map_or(Listed::Hashed(name), Listed::Queue));
    }
    Ok(queues)
}

/// The raw name of the queue spelled `name`, which the manifest `key` tells.
async fn told(store: &Store, key: &str, name: &str) -> Result<Option<String>, BucketError> {
    let manifest = store.sidecar(key).await?;
    let manifest: Option<Manifest> = manifest.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(manifest
        .map(|manifest| manifest.queue)
        .filter(|queue| encode_name(queue) == name))
}

/// The windows that have a manifest, ascending; keys among them that are none become findings.
pub async fn windows(
    store: &Store,
    keys: &LakeKeys,
    findings: &mut Findings,
) -> Result<Vec<u64>, BucketError> {
    let mut windows = Vec::new();
    store
        .list(&keys.manifests(), |key| {
            match keys.manifest_k(key).filter(|k| *k > 0) {
                Some(k) => windows.push(k),
                None => findings
                    .push(Finding::new(Kind::ForeignSidecar, "it names no window").at_key(key)),
            }
        })
        .await?;
    windows.sort_unstable();
    windows.dedup();
    Ok(windows)
}

/// The data keys that manifests name, 16 bytes each.
#[derive(Debug, Default)]
pub struct Named(HashSet<[u8; 16]>);

impl Named {
    /// Notes a key.
    pub fn insert(&mut self, key: &str) {
        self.0.insert(fingerprint(key));
    }
}

fn fingerprint(key: &str) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&Sha256::digest(key)[..16]);
    half
}

/// Finds the data objects that no manifest names.
///
/// `windows` were checked, `unread` of them could not be. A sink may have gone on meanwhile: what
/// it committed since is younger than the check, and one window more may be in flight.
pub async fn foreign(
    store: &Store,
    lake: &Lake,
    windows: &[u64],
    unread: &[(u64, u64)],
    named: &Named,
    findings: &mut Findings,
    notes: &mut Vec<Note>,
) -> Result<(), BucketError> {
    let newest = windows.last().copied().unwrap_or_default();
    // The first key of each window, and how many more it has.
    let mut younger: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    store
        .list(&lake.keys.data_directory(), |key| {
            if named.0.contains(&fingerprint(key)) {
                return;
            }
            match lake.keys.data_k(key) {
                Some(k) if k > newest => {
                    let (_, keys) = younger.entry(k).or_insert_with(|| (key.to_owned(), 0));
                    *keys += 1;
                }
                Some(k) if unread.iter().any(|(from, to)| (*from..=*to).contains(&k)) => {}
                k => findings.push(unnamed(k, key)),
            }
        })
        .await?;
    if younger.is_empty() {
        return Ok(());
    }
    // Listed after the objects: each of theirs but one was committed by now.
    let now = windows_now(store, lake).await?;
    for (k, (key, keys)) in younger {
        if k > now.saturating_add(1) {
            let text = format!(
                "{keys} objects are of window {k}, which no manifest names and which is not in \
                 flight"
            );
            findings.push(Finding::new(Kind::ForeignObject, text).of(k, &key));
            continue;
        }
        let text = if k <= now {
            "was committed after this check began, and is not part of it"
        } else {
            "is in flight: its objects are there before its manifest"
        };
        notes.push(Note {
            window: Some(k),
            key: Some(key),
            text: format!("window {k} {text}"),
        });
    }
    Ok(())
}

async fn windows_now(store: &Store, lake: &Lake) -> Result<u64, BucketError> {
    let windows = windows(store, &lake.keys, &mut Findings::default()).await?;
    Ok(windows.last().copied().unwrap_or_default())
}

fn unnamed(k: Option<u64>, key: &str) -> Finding {
    match k {
        Some(k) => {
            let text = format!("the manifest of window {k} does not name it");
            Finding::new(Kind::ForeignObject, text).of(k, key)
        }
        None => Finding::new(Kind::ForeignObject, "it is no object of a window").at_key(key),
    }
}
