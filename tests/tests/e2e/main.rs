//! End-to-end tests. Each starts a stack of its own and leaves nothing running.

mod boot;
mod broker;
mod chaos;
mod clients;
mod commands;
mod crash;
mod crash_matrix;
mod demo;
mod embedded;
mod faults;
mod main_job;
mod outage;
mod payloads;
mod second_store;
mod sharing;
mod transfer;

use anyhow::Result;
use queen_dev::{Stack, StackOptions};

/// A stack with the queues made.
async fn stack_with(queues: &[&str]) -> Result<Stack> {
    let stack = Stack::start(StackOptions::default()).await?;
    for queue in queues {
        stack.client().configure(queue).await?;
    }
    Ok(stack)
}
