//! What is measured, one file a scenario.

pub mod backlog;
pub mod broker;
pub mod latency;
pub mod memory;
pub mod queues;
pub mod steady;
pub mod wide;
