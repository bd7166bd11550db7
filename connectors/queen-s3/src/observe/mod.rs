//! What the operator sees: the boot line, logs, metrics and health.

pub mod boot_line;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod one_line;
pub mod sampled;
pub mod server;
pub mod status;
