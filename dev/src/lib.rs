//! Starts the real parts on loopback: a private PostgreSQL cluster, an S3 server over a folder,
//! the broker and the sink. The demo, the end-to-end tests and the benchmarks stand on it.
//!
//! Every part is a handle. Dropping it stops the part, also when a test panics; on Linux the
//! kernel stops the processes when the program itself is killed. Every port is a free one, so
//! stacks run side by side.

mod binaries;
mod broker;
mod bucket_copy;
mod check;
mod client;
pub mod events;
mod fault_proxy;
mod lake;
mod limits;
mod logs;
mod moto;
mod parquet;
pub mod payloads;
mod process;
mod s3;
mod sink;
mod stack;
mod store;

pub use binaries::{broker_binary, python, sink_binary};
pub use broker::{Broker, BrokerOptions};
pub use check::{Ledger, Verdict, check};
pub use client::{BrokerClient, Event, Pushed};
pub use fault_proxy::{FaultCounts, FaultProxy, Faults, Silence};
pub use lake::{Lake, LakeObject, LakeRecord, encode_name};
pub use limits::WAIT;
pub use logs::Logs;
pub use moto::Moto;
pub use private_postgres::{Options as PostgresOptions, PrivatePostgres, Signal};
pub use process::{Process, eventually};
pub use s3::S3Server;
pub use sink::{Metrics, Sink, SinkOptions, verify};
pub use stack::{Stack, StackOptions};
pub use store::{Store, StoreKind};
