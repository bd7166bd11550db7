//! Records for the encoders' tests.

use std::sync::Arc;

use ::parquet::file::properties::WriterProperties;

use super::{ObjectSpec, parquet};
use crate::lake::{Compression, Format};
use crate::limits::PART_BYTES;
use crate::memory::MemoryBudget;
use crate::record::{Batch, Chunk, Ids, RecordIndex};
use crate::time::Micros;

/// A batch of records given as offset, `ts` in µs, escaped transaction id, and payload.
pub(crate) fn batch<T: AsRef<str>>(records: &[(i64, i64, T, T)]) -> Arc<Batch> {
    let mut body = Vec::new();
    let mut put = |text: &str| {
        let start = body.len() as u32;
        body.extend_from_slice(text.as_bytes());
        (start, text.len() as u32)
    };
    let index = records
        .iter()
        .map(|(offset, ts, transaction_id, payload)| {
            let (transaction_id_start, transaction_id_len) = put(transaction_id.as_ref());
            let (payload_start, payload_len) = put(payload.as_ref());
            RecordIndex {
                offset: *offset,
                ts: Micros(*ts),
                transaction_id_start,
                transaction_id_len,
                payload_start,
                payload_len,
            }
        })
        .collect();
    Batch::new(body.into(), index, Ids::Escaped, &MemoryBudget::new(0))
}

/// The records of `batch` in chunks of at most `records`.
pub(crate) fn chunks(batch: &Arc<Batch>, records: usize) -> Vec<Chunk> {
    let all = batch.records() as usize;
    (0..all)
        .step_by(records)
        .map(|start| Chunk {
            batch: Arc::clone(batch),
            range: start as u32..all.min(start + records) as u32,
        })
        .collect()
}

/// A Parquet object.
pub(super) fn parquet_spec(compression: Compression) -> ObjectSpec {
    ObjectSpec {
        format: Format::Parquet,
        compression,
        queue: "orders".to_owned(),
        record_bytes: 0,
        workers: 1,
        part_bytes: PART_BYTES,
    }
}

/// How the columns of a Parquet object are written.
pub(super) fn properties(compression: Compression) -> Arc<WriterProperties> {
    let properties = parquet::properties(&parquet_spec(compression));
    Arc::new(properties.expect("a level that zstd has"))
}
