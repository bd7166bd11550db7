//! The broker against a real PostgreSQL, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod auth;
mod boot;
mod changed;
mod clock;
mod configure;
mod consume;
mod dedup;
mod disk;
mod embedded;
mod encryption;
mod fetch;
mod health;
mod http;
mod kv;
mod push;
mod retention;
mod safe_time;
mod sessions;
mod silence;
mod standby;
mod support;
mod tls;
mod wide;
mod wire;
