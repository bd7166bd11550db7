//! One object, downloaded, hashed and read in one pass.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::TryStreamExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::finding::{Finding, Findings, Kind};
use super::scan::{Runs, Scan, Scanned};
use super::store::Store;
use crate::bucket::{BucketError, ObjectReader};
use crate::compute::Compute;
use crate::decode::{Arriving, Columns, Lines, ReadError, Rows};
use crate::lake::Format;
use crate::lake::manifest::{Manifest, ManifestObject};
use crate::limits::VERIFY_PIECES;
use crate::time::Micros;

/// What came of one object.
#[derive(Debug, Default)]
pub struct Checked {
    /// Its records, as far as they were read; none where its bytes are not those written.
    pub records: u64,
    /// Its length.
    pub bytes: u64,
    /// Its partitions, when its records are sorted.
    pub partitions: u64,
    /// Least `ts`.
    pub min_ts: Option<Micros>,
    /// Greatest `ts`.
    pub max_ts: Option<Micros>,
    /// The offsets that it holds.
    pub runs: Runs,
    /// Whether all of it was read and is what its manifest says.
    pub whole: bool,
    /// What is wrong with it.
    pub findings: Findings,
}

/// Checks the object number `at` of `manifest`.
///
/// # Errors
///
/// When the bucket could not be asked.
pub async fn check(
    store: &Store,
    manifest: &Arc<Manifest>,
    at: usize,
) -> Result<Checked, BucketError> {
    let object = &manifest.objects[at];
    let read = store
        .ask(|bucket| async move {
            match bucket.get(&object.key).await? {
                Some(reader) => download(store, reader, manifest, at).await.map(Some),
                None => Ok(None),
            }
        })
        .await?;
    let mut checked = Checked::default();
    let mut find = |kind, text: String| {
        let finding = Finding::new(kind, text).of(manifest.k, &object.key);
        checked.findings.push(finding);
    };
    let Some(content) = read else {
        find(
            Kind::MissingObject,
            format!("the object is not there; it had {} records", object.records),
        );
        return Ok(checked);
    };
    let Content {
        bytes,
        sha256,
        scanned,
        error,
    } = content;
    let unread = error.map(|error| {
        format!(
            "it does not read after {} records: {error}",
            scanned.records
        )
    });
    let damage = if bytes != object.bytes {
        let named = object.bytes;
        let text = format!("it has {bytes} bytes where its manifest says {named}");
        Some((Kind::Size, text))
    } else if !is_as_written(object, bytes, &sha256) {
        let (sha256, named) = (hex::encode(sha256), &object.sha256);
        let text = format!("its SHA-256 is {sha256} where its manifest says {named}");
        Some((Kind::Sha256, text))
    } else {
        None
    };
    checked.bytes = bytes;
    if let Some((kind, text)) = damage {
        // Records of other bytes than were written prove nothing.
        find(
            kind,
            [Some(text), unread]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
        );
        return Ok(checked);
    }
    match unread {
        Some(text) => find(Kind::Unreadable, text),
        None if scanned.records != object.records => find(
            Kind::Count,
            format!(
                "it has {} records where its manifest says {}",
                scanned.records, object.records
            ),
        ),
        None => check_offsets(object, &scanned, &mut find),
    }
    checked.whole = checked.findings.total() == 0;
    checked.findings.merge(scanned.findings);
    Ok(Checked {
        records: scanned.records,
        partitions: scanned.partitions,
        min_ts: scanned.min_ts,
        max_ts: scanned.max_ts,
        runs: scanned.runs,
        ..checked
    })
}

fn check_offsets(object: &ManifestObject, scanned: &Scanned, find: &mut impl FnMut(Kind, String)) {
    let (Some(first), Some(last)) = (object.first_offset, object.last_offset) else {
        return;
    };
    let ends = scanned.runs.ends();
    if ends != Some((first, last)) {
        let text = match ends {
            Some((from, to)) => format!(
                "its offsets go from {from} to {to} where its manifest says {first} to {last}"
            ),
            None => format!("it holds no record where its manifest says {first} to {last}"),
        };
        find(Kind::BadManifest, text);
    }
}

/// An object's content, read to its end.
struct Content {
    bytes: u64,
    sha256: [u8; 32],
    scanned: Scanned,
    error: Option<ReadError>,
}

/// Downloads an object while another thread hashes and reads it.
async fn download(
    store: &Store,
    mut reader: ObjectReader,
    manifest: &Arc<Manifest>,
    at: usize,
) -> Result<Content, BucketError> {
    let (pieces, arriving) = channel(VERIFY_PIECES);
    let owned = Arc::clone(manifest);
    let scanning = Compute::Offloaded.run(move || scan(&owned, at, arriving));
    let feeding = async {
        let fed = feed(store, &mut reader, &pieces).await;
        drop(pieces);
        fed
    };
    let (fed, content) = futures::join!(feeding, scanning);
    fed.map(|()| content)
}

async fn feed(
    store: &Store,
    reader: &mut ObjectReader,
    pieces: &Sender<Bytes>,
) -> Result<(), BucketError> {
    while let Some(piece) = reader.stream.try_next().await? {
        store.progress.bytes.fetch_add(piece.len() as u64, Relaxed);
        if pieces.send(piece).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn scan(manifest: &Manifest, at: usize, arriving: Receiver<Bytes>) -> Content {
    let object = &manifest.objects[at];
    let mut input = Arriving::new(arriving, true);
    let mut scan = Scan::new(manifest, object);
    let ended = match manifest.format {
        Format::Jsonl => scan_lines(manifest, &mut input, &mut scan),
        Format::Parquet => spool(&mut input).map_err(Into::into).and_then(|file| {
            // Other bytes than were written are not worth reading.
            match is_as_written(object, input.arrived(), &input.sha256()) {
                true => scan_rows(file, &mut scan),
                false => Ok(()),
            }
        }),
    };
    // The hash is of everything, whatever the records are.
    let drained = io::copy(&mut input, &mut io::sink());
    Content {
        bytes: input.arrived(),
        sha256: input.sha256(),
        scanned: scan.finish(),
        error: ended.and(drained.map(drop).map_err(Into::into)).err(),
    }
}

fn scan_lines(
    manifest: &Manifest,
    input: &mut Arriving,
    scan: &mut Scan<'_>,
) -> Result<(), ReadError> {
    let mut lines = Lines::new(manifest.compression, input)?;
    while let Some(found) = lines.next_record()? {
        scan.see(found.seen);
    }
    Ok(())
}

fn scan_rows(file: File, scan: &mut Scan<'_>) -> Result<(), ReadError> {
    let mut rows = Rows::new(file, Columns::Identity)?;
    while let Some(found) = rows.next_record()? {
        scan.see(found.seen);
    }
    Ok(())
}

/// Writes what arrives into a file without a name, gone when it is closed.
fn spool(input: &mut impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(input, &mut file)?;
    Ok(file)
}

fn is_as_written(object: &ManifestObject, bytes: u64, sha256: &[u8; 32]) -> bool {
    bytes == object.bytes && hex::encode(sha256).eq_ignore_ascii_case(&object.sha256)
}
