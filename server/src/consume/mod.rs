//! Consumers: pop, ack and nack, leases, dead letters, groups.
//!
//! A group has one cursor per partition: everything below it is settled. A pop takes records from
//! there under a lease and moves nothing; an ack moves the cursor. What of it is decided is decided
//! in [`verdict`], without input or output; the database only checks that the cursor still stands
//! where it stood, and moves it. `docs/broker.md` says what a consumer may rely on.

pub mod ack;
pub mod ack_request;
mod dead;
pub mod dead_letters;
mod delivered;
pub mod discovery;
pub mod groups;
pub mod ids;
pub mod lease;
pub mod pop;
pub mod request;
mod segments;
mod take;
mod verdict;

/// The group of those who name none: all of them share the work of a queue.
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";
