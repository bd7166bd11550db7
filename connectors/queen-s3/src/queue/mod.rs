//! One queue's task: drives the engine, reads, writes windows, commits.
