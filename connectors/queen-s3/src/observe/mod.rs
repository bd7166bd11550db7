//! What the operator sees: the boot line, logs, metrics and health.

pub mod sampled;
pub mod status;
