//! Queues: configuration and listing.

pub mod configure;
pub mod list;
pub mod options;
