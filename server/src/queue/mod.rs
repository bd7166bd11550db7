//! Queues: configuration, listing, deletion.

pub mod configure;
pub mod delete;
pub mod list;
pub mod options;
