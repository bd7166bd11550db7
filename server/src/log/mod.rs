//! The log: partitions of records at absolute offsets, stored as compressed segments.

pub mod changed;
pub mod codec;
pub mod complaints;
pub mod cursor;
pub mod fetch;
pub mod frame;
mod missing;
pub mod peers;
pub mod push;
pub mod recent;
pub mod render;
pub mod repeats;
pub mod safe_time;
pub mod seal;
pub mod store;
pub mod transfer;
pub mod waiters;
