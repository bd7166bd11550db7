//! Lakes as the sink writes them: its encoder, its keys, its manifests.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use queen_s3::encode::{ObjectEncoder, ObjectSpec, record_bytes};
use queen_s3::lake::keys::{LakeKeys, WindowBounds};
use queen_s3::lake::manifest::{Manifest, ManifestObject, OffsetRange};
use queen_s3::lake::{Align, Compression, Format, Layout, Shape};
use queen_s3::memory::MemoryBudget;
use queen_s3::record::{Batch, Chunk, Ids, RecordIndex};
use queen_s3::retry::Jitter;
use queen_s3::time::Micros;
use queen_s3::verify::{Finding, Kind, Progress, QueueReport, Report, Store, verify};

use crate::bucket::MemoryBucket;

pub const PREFIX: &str = "queen";
pub const SINK: &str = "default";
pub const LINEAGE: &str = "0e10d436";
/// 2026-09-04T10:00:00Z, where the lakes' times begin.
pub const EPOCH: i64 = 1_788_516_000_000_000;
pub const SECOND: i64 = Micros::PER_SECOND;
pub const SHAPE: Shape = Shape {
    format: Format::Jsonl,
    compression: Compression::Zstd,
    layout: Layout::Merged,
    align: Align::Hour,
};

/// Every format with every compression that it has.
pub const ENCODINGS: [(Format, Compression); 5] = [
    (Format::Jsonl, Compression::Zstd),
    (Format::Jsonl, Compression::Gzip),
    (Format::Jsonl, Compression::None),
    (Format::Parquet, Compression::Zstd),
    (Format::Parquet, Compression::Snappy),
];

/// A record: partition, offset, and seconds after [`EPOCH`].
pub type Record<'a> = (&'a str, i64, i64);

/// One queue's lake being made.
pub struct Lake {
    pub bucket: Arc<MemoryBucket>,
    pub keys: LakeKeys,
    pub queue: String,
    pub shape: Shape,
    pub k: u64,
    pub t_end: i64,
}

impl Lake {
    pub fn new() -> Self {
        Self::of("orders", SHAPE)
    }

    pub fn of(queue: &str, shape: Shape) -> Self {
        Self::beside(Arc::default(), queue, shape)
    }

    pub fn beside(bucket: Arc<MemoryBucket>, queue: &str, shape: Shape) -> Self {
        Self {
            bucket,
            keys: LakeKeys::new(PREFIX, SINK, queue),
            queue: queue.to_owned(),
            shape,
            k: 0,
            t_end: EPOCH,
        }
    }

    /// Commits the window from the last one's end to `end`, in seconds, of these records.
    pub fn window(&mut self, end: i64, records: &[Record<'_>]) -> Manifest {
        self.window_with(end, records, |_| {})
    }

    /// Commits a window whose manifest `edit` changes.
    pub fn window_with(
        &mut self,
        end: i64,
        records: &[Record<'_>],
        edit: impl FnOnce(&mut Manifest),
    ) -> Manifest {
        let mut manifest = self.build(end, records);
        edit(&mut manifest);
        self.put_manifest(&manifest);
        manifest
    }

    /// Uploads a window's objects, and answers the manifest that would commit it.
    pub fn build(&mut self, end: i64, records: &[Record<'_>]) -> Manifest {
        self.k += 1;
        let (prev_t_end, t_end) = (self.t_end, EPOCH + end * SECOND);
        let t_start = prev_t_end.max(self.shape.align.bucket_start(Micros(t_end - 1)).0);
        self.t_end = t_end;
        let bounds = WindowBounds {
            k: self.k,
            t_start: Micros(t_start),
            t_end: Micros(t_end),
        };
        let objects: Vec<ManifestObject> = match self.shape.layout {
            _ if records.is_empty() => Vec::new(),
            Layout::Merged => vec![self.object(bounds, None, records)],
            Layout::PerPartition => records
                .chunk_by(|a, b| a.0 == b.0)
                .map(|records| self.object(bounds, Some(records[0].0), records))
                .collect(),
        };
        let instants = records.iter().map(|(_, _, ts)| EPOCH + ts * SECOND);
        Manifest {
            sink: SINK.to_owned(),
            queue: self.queue.clone(),
            lineage: LINEAGE.to_owned(),
            writer: "queen-s3/test jsonl".to_owned(),
            k: self.k,
            t_start,
            t_end,
            prev_t_end,
            format: self.shape.format,
            compression: self.shape.compression,
            layout: self.shape.layout,
            align: self.shape.align,
            records: objects.iter().map(|object| object.records).sum(),
            bytes: objects.iter().map(|object| object.bytes).sum(),
            objects,
            partitions: records.iter().map(|r| r.0).collect::<BTreeSet<_>>().len() as u64,
            min_ts: instants.clone().min(),
            max_ts: instants.max(),
            lost: Vec::new(),
            late: Vec::new(),
            committed_at: "2026-09-04T12:00:00.000000Z".to_owned(),
        }
    }

    pub fn put_manifest(&self, manifest: &Manifest) {
        let bytes = serde_json::to_vec(manifest).expect("it renders");
        self.bucket.insert(&self.keys.manifest(manifest.k), bytes);
    }

    fn object(
        &self,
        bounds: WindowBounds,
        partition: Option<&str>,
        records: &[Record<'_>],
    ) -> ManifestObject {
        let key = self.keys.data(bounds, self.shape, partition);
        let (content, sha256) = self.encode(records);
        let object = ManifestObject {
            key: key.clone(),
            bytes: content.len() as u64,
            records: records.len() as u64,
            sha256,
            partition: partition.map(str::to_owned),
            first_offset: partition.map(|_| records[0].1),
            last_offset: partition.map(|_| records[records.len() - 1].1),
        };
        self.bucket.insert(&key, content);
        object
    }

    fn encode(&self, records: &[Record<'_>]) -> (Bytes, String) {
        let chunks: Vec<(&str, Chunk)> = records
            .iter()
            .map(|(partition, offset, ts)| (*partition, chunk(*offset, EPOCH + ts * SECOND)))
            .collect();
        let spec = ObjectSpec {
            format: self.shape.format,
            compression: self.shape.compression,
            queue: self.queue.clone(),
            record_bytes: chunks
                .iter()
                .map(|(partition, chunk)| record_bytes(partition, chunk))
                .sum(),
            workers: 1,
            part_bytes: queen_s3::limits::PART_BYTES,
        };
        let mut encoder = ObjectEncoder::new(&spec).expect("an encoder");
        for (partition, chunk) in &chunks {
            encoder.push(partition, chunk).expect("it is encoded");
        }
        let (parts, summary) = encoder.finish().expect("it ends");
        (parts.concat().into(), hex::encode(summary.sha256))
    }

    pub async fn check(&self) -> QueueReport {
        let queues = [self.queue.clone()];
        let mut report = check(&self.bucket, Some(&queues)).await;
        assert_eq!(report.ok, report.findings == 0);
        report.queues.pop().expect("one queue")
    }

    /// What a check finds, as kind, window, and partition with offset.
    pub async fn found(&self) -> Vec<(Kind, Option<u64>, Option<(String, i64)>)> {
        let report = self.check().await;
        assert_eq!(report.findings_total, report.findings.len() as u64);
        report
            .findings
            .into_iter()
            .map(|finding| {
                let Finding {
                    kind,
                    window,
                    partition,
                    offset,
                    ..
                } = finding;
                (kind, window, partition.zip(offset))
            })
            .collect()
    }
}

fn chunk(offset: i64, ts: i64) -> Chunk {
    let (transaction_id, payload) = (format!("t-{offset}"), format!(r#"{{"n": {offset}.0}}"#));
    let index = RecordIndex {
        offset,
        ts: Micros(ts),
        transaction_id_start: 0,
        transaction_id_len: transaction_id.len() as u32,
        payload_start: transaction_id.len() as u32,
        payload_len: payload.len() as u32,
    };
    let body = format!("{transaction_id}{payload}").into();
    Chunk::whole(&Batch::new(
        body,
        vec![index],
        Ids::Escaped,
        &MemoryBudget::new(0),
    ))
}

pub fn store(bucket: &Arc<MemoryBucket>) -> Store {
    Store::new(bucket.clone(), Jitter::new(7))
}

pub async fn check(bucket: &Arc<MemoryBucket>, queues: Option<&[String]>) -> Report {
    verify(
        &store(bucket),
        PREFIX,
        SINK,
        queues,
        &mut Progress::hidden(),
    )
    .await
    .expect("the bucket answers")
}

pub fn range(partition: &str, from: i64, to: i64) -> OffsetRange {
    OffsetRange {
        partition: partition.to_owned(),
        from,
        to,
    }
}

pub fn at(partition: &str, offset: i64) -> Option<(String, i64)> {
    Some((partition.to_owned(), offset))
}
