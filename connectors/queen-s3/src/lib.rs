//! The S3 sink of the Queen message queue: reads a queue's whole log through Queen's HTTP API and
//! writes it into an object store as a lake of open files, exactly once.
//!
//! The parts, from the outside in: [`config`] and [`observe`] face the operator, [`broker`] and
//! [`bucket`] are the only places with a socket, [`queue`] drives one queue with the pure engine
//! in [`window`], [`ownership`] keeps its lease and documents, [`record`], [`encode`] and [`decode`]
//! carry the bytes, and [`lake`] is the only place that spells a key or a document. [`verify`] proves a lake
//! from the bucket alone, [`adopt`] gives one its commit pointer back.

pub mod adopt;
pub mod allocator;
pub mod broker;
pub mod bucket;
pub mod clock;
pub mod command;
pub mod compute;
pub mod config;
pub mod decode;
pub mod encode;
pub mod gaps;
pub mod lake;
pub mod limits;
pub mod memory;
pub mod observe;
pub mod ownership;
pub mod queue;
pub mod record;
pub mod retry;
pub mod signals;
pub mod sink;
pub mod time;
pub mod verify;
pub mod window;

mod pace;
mod wire;
