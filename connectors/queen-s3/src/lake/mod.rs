//! Keys and documents of the lake. The only place that spells either.

pub mod checkpoint;
pub mod documents;
pub mod keys;
pub mod manifest;
mod shape;

pub(crate) use shape::spelled;
pub use shape::{Align, Compression, Format, Layout, Shape};
