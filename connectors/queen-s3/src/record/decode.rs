//! Reads a fetch answer without copying its records.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::broker::{FetchAnswer, FetchRequest};
use crate::memory::MemoryBudget;

/// Why a fetch answer does not read.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// It is no JSON of the fetch answer's shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It reads, but contradicts its request or itself.
    #[error("{0}")]
    Contradiction(String),
}

/// Reads the answer `body` to `request`.
///
/// Fails when it is not aligned with the request, when offsets do not rise, or `ts` falls.
pub fn decode_fetch(
    request: &FetchRequest,
    body: Bytes,
    budget: &Arc<MemoryBudget>,
) -> Result<FetchAnswer, DecodeError> {
    let _ = (request, body, budget);
    unimplemented!()
}
