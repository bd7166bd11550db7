//! The broker process.

fn main() {}
