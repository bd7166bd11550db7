//! The broker of the Queen message queue: an HTTP message log whose only state is PostgreSQL.

pub mod admission;
pub mod auth;
pub mod broker;
pub mod config;
pub mod consume;
pub mod database;
pub mod embedded;
pub mod error;
pub mod http;
pub mod kv;
pub mod limits;
pub mod log;
pub mod logging;
pub mod metrics;
pub mod name;
pub mod queue;
pub mod retention;
pub mod session;
pub mod timestamp;
mod tls;
