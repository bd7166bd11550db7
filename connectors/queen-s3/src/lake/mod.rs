//! Keys and documents of the lake. The only place that spells either.

pub mod checkpoint;
pub mod documents;
pub mod keys;
pub mod manifest;
mod shape;

pub(crate) use shape::spelled;
pub use shape::{Align, Compression, Format, Layout, Shape};

/// Whether `key`, a key of a lake under `prefix`, names a manifest or a checkpoint rather than
/// data.
pub fn is_sidecar(prefix: &str, key: &str) -> bool {
    key.strip_prefix(prefix)
        .is_some_and(|rest| rest.starts_with("/_queen/"))
}
