//! The key/value store: versioned values with an expiry, changed in atomic batches.

pub mod batch;
pub mod operation;
mod store;
pub mod sweep;
