//! The sink process.

fn main() {}
