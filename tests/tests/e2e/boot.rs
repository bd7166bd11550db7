//! How the sink starts and ends: its four exit codes, its boot line, and its silence on secrets.

use std::net::TcpListener;

use anyhow::{Context, Result};
use queen_dev::{Ledger, Signal, Sink, SinkOptions, WAIT};
use queen_e2e::{one_partition, settled};

use crate::stack_with;

/// A sink with the variables of the operator page's example, which no broker answers.
fn alone(folder: &tempfile::TempDir, changes: &[(&str, &str)]) -> Result<Sink> {
    let mut variables = vec![
        ("QUEEN_URL", "http://localhost:1"),
        ("QUEEN_TOKEN", "a-token-of-your-own"),
        ("QUEEN_S3_QUEUES", "orders,clicks"),
        ("QUEEN_S3_ENDPOINT", "https://s3.eu-central-1.amazonaws.com"),
        ("QUEEN_S3_REGION", "eu-central-1"),
        ("QUEEN_S3_BUCKET", "my-lake"),
        ("QUEEN_S3_ACCESS_KEY", "AKIAEXAMPLE"),
        ("QUEEN_S3_SECRET_KEY", "a-secret-of-your-own"),
        ("QUEEN_S3_SSE", "AES256"),
        ("QUEEN_S3_INSTANCE", "sink-0"),
        ("QUEEN_S3_LISTEN", "127.0.0.1:0"),
    ];
    for change in changes {
        variables.retain(|(name, _)| *name != change.0);
        variables.push(*change);
    }
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Sink::start(
        variables.into_iter().map(owned).collect(),
        folder.path(),
        "sink",
    )
}

/// The exit code and everything written by a sink that ends by itself.
async fn outcome(sink: &Sink) -> Result<(i32, String)> {
    let status = sink.ended(WAIT).await?;
    Ok((
        status.code().context("the sink was killed")?,
        sink.logs().text()?,
    ))
}

#[tokio::test]
async fn every_mistake_of_a_configuration_is_told_at_once_with_exit_code_2() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mistakes = [
        ("QUEEN_S3_BUCKET", "  "),
        ("QUEEN_S3_FORMAT", "avro"),
        ("QUEEN_S3_TARGET_MB", "0"),
        ("QUEEN_S3_ENDPOINT", "http://localhost:9000/path"),
        ("QUEEN_S3_PARTITIONS", "orders:0..1023"),
        ("QUEEN_S3_SINK", "../lake"),
    ];
    let (code, text) = outcome(&alone(&folder, &mistakes)?).await?;
    assert_eq!(code, 2, "{text}");
    for (name, _) in mistakes {
        assert!(text.contains(name), "{name} is not named:\n{text}");
    }
    for accepted in ["jsonl", "parquet", "5120", "QUEEN_S3_PREFIX", "safeTime"] {
        assert!(
            text.contains(accepted),
            "{accepted} is not offered:\n{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_health_port_that_is_taken_ends_with_exit_code_1() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let listen = taken.local_addr()?.to_string();
    let (code, text) = outcome(&alone(&folder, &[("QUEEN_S3_LISTEN", &listen)])?).await?;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("QUEEN_S3_LISTEN"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_broker_that_does_not_answer_at_boot_ends_with_exit_code_3() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (code, text) = outcome(&alone(&folder, &[])?).await?;
    assert_eq!(code, 3, "{text}");
    for part in ["cannot reach Queen", "QUEEN_URL", "http://localhost:1"] {
        assert!(text.contains(part), "no word of {part}:\n{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bucket_that_refuses_the_key_or_is_not_there_ends_with_exit_code_3() -> Result<()> {
    let stack = stack_with(&["orders"]).await?;
    let wrong = [
        ("QUEEN_S3_SECRET_KEY", "another-secret"),
        ("QUEEN_S3_BUCKET", "no-such-bucket"),
        ("QUEEN_S3_ENDPOINT", "http://127.0.0.1:1"),
    ];
    for (number, (name, value)) in wrong.into_iter().enumerate() {
        let mut options = SinkOptions::new("orders").with(name, value);
        options.instance = format!("wrong-{number}");
        let (code, text) = outcome(&stack.sink(&options)?).await?;
        assert_eq!(code, 3, "with a wrong {name}:\n{text}");
        assert!(text.contains(name), "{name} is not named:\n{text}");
        assert!(
            !text.contains("another-secret"),
            "the secret is told:\n{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_the_sink_with_exit_code_0() -> Result<()> {
    let stack = stack_with(&["orders"]).await?;
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let mut options = SinkOptions::new("orders");
        options.instance = format!("sink-{number}");
        let sink = stack.sink(&options)?;
        sink.port().await?;
        sink.signal(signal);
        let (code, text) = outcome(&sink).await?;
        assert_eq!(code, 0, "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn the_boot_line_is_the_operator_pages() -> Result<()> {
    let stack = stack_with(&["orders", "clicks"]).await?;
    let mut options = SinkOptions::new("orders,clicks").with("QUEEN_TOKEN", "a-token-of-your-own");
    for unset in [
        "QUEEN_S3_START",
        "QUEEN_S3_MAX_WINDOW_MS",
        "QUEEN_S3_DISCOVERY_INTERVAL_MS",
        "QUEEN_S3_SAFE_GUARD_MS",
        "QUEEN_S3_LEASE_TTL_MS",
    ] {
        options = options.with(unset, "");
    }
    let sink = stack.sink(&options)?;
    let said = |line: &str| line.contains("sink=default");
    let line = sink.logs().wait_for(0, WAIT, said).await?;
    let expected = format!(
        "queen-s3 1.5.0 sink=default instance=sink-0 queues=orders,clicks partitions=discovery \
         queen={} token=<set> s3={} bucket=lake prefix=queen region=us-east-1 \
         addressing=path-style sse=<unset> format=jsonl compression=zstd layout=merged align=hour \
         target_mb=128 max_window_ms=300000 start=latest checkpoint_every=20 memory_mb=1024 \
         fetch_concurrency=4 discovery_interval_ms=2000 safe_guard_ms=5000 lease_ttl_ms=30000 \
         multipart_threshold_mb=64 listen=127.0.0.1:0 crash_at=never",
        stack.broker.url(),
        stack.s3.endpoint()
    );
    assert!(line.ends_with(&expected), "{line}\nis not\n{expected}");
    Ok(())
}

#[tokio::test]
async fn neither_logs_nor_metrics_nor_health_tell_a_secret() -> Result<()> {
    let stack = stack_with(&["orders"]).await?;
    let options = SinkOptions::new("orders")
        .with("QUEEN_TOKEN", "token-that-nobody-may-read")
        .with("RUST_LOG", "trace");
    let sink = stack.sink(&options)?;
    // Before the flood of trace lines carries the one with the port away.
    sink.port().await?;
    let pushed = stack.client().push(one_partition("orders", 0, 20)).await?;
    settled(
        &stack.lake("default"),
        "orders",
        &Ledger::of(&pushed, "orders")?,
    )
    .await?;
    let (metrics, health) = (sink.metrics().await?, sink.health().await?);
    sink.signal(Signal::TERM);
    let (_, log) = outcome(&sink).await?;
    for text in [log.as_str(), metrics.text(), health.1.as_str()] {
        for secret in ["token-that-nobody-may-read", stack.s3.secret_key()] {
            assert!(!text.contains(secret), "{secret} is told");
        }
    }
    Ok(())
}
