//! A private PostgreSQL cluster: made, started and stopped by the program that needs it.
//!
//! The cluster lives in a folder of its own, listens on a unix socket in a folder that only its
//! owner can enter and on a free loopback port behind a generated password, and ends with the
//! program that started it. PostgreSQL refuses to run as root, so a root program runs it as the
//! system user `postgres`.
//!
//! Every call blocks, dropping the handle included: from tokio, wrap them in
//! `tokio::task::spawn_blocking`.
//!
//! The cluster ends when the handle is dropped (a panic included) and, on Linux, when the program
//! is killed: the kernel then signals the server. Elsewhere a killed program leaves the server
//! running, and the next start in the same folder says so.

mod account;
mod cluster;
mod error;
mod frozen;
mod kept_child;
mod limits;
mod programs;
mod small_disk;

pub use cluster::{Options, PrivatePostgres};
pub use error::Error;
pub use frozen::Frozen;
pub use kept_child::KeptChild;
pub use rustix::process::Signal;
