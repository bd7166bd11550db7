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
mod sharing;
mod transfer;

use anyhow::{Context, Result};
use queen_dev::{Stack, StackOptions, StoreKind};

/// A stack with the queues made.
async fn stack_with(queues: &[&str]) -> Result<Stack> {
    stack_at(StoreKind::default(), queues).await
}

/// Runs `test` at each S3 server, on a stack of its own with the queues made.
async fn at_each_store(queues: &[&str], test: impl AsyncFn(Stack) -> Result<()>) -> Result<()> {
    for store in StoreKind::ALL {
        // For a panic, which says where but not at which.
        eprintln!("at {store}");
        let stack = stack_at(store, queues).await?;
        test(stack).await.with_context(|| format!("at {store}"))?;
    }
    Ok(())
}

async fn stack_at(store: StoreKind, queues: &[&str]) -> Result<Stack> {
    let options = StackOptions {
        store,
        ..StackOptions::default()
    };
    let stack = Stack::start(options).await?;
    for queue in queues {
        stack.client().configure(queue).await?;
    }
    Ok(stack)
}
