//! What the sink is for: the log of a queue, exactly once, in objects that readers read.

use anyhow::Result;
use queen_dev::{Ledger, SinkOptions, WAIT, eventually};
use queen_e2e::{count_with_duckdb, events, one_partition, settled};

use crate::at_each_store;

#[tokio::test]
async fn what_is_pushed_over_http_is_read_by_duckdb_exactly_once() -> Result<()> {
    at_each_store(&["orders", "clicks"], async |stack| {
        let sink = stack.sink(&SinkOptions::new("orders,clicks"))?;
        let lake = stack.lake("default");
        for round in 0..3 {
            for (queue, partitions) in [("orders", 40), ("clicks", 300)] {
                stack
                    .client()
                    .push_all(events(queue, round, 1_500, partitions), |_| {})
                    .await?;
            }
        }
        for (queue, partitions) in [("orders", 40), ("clicks", 300)] {
            let log = stack.client().read_log(queue).await?;
            assert_eq!(log.len(), 4_500);
            settled(&lake, queue, &log).await?;
            assert_eq!(
                count_with_duckdb(&lake.glob(queue))?,
                (4_500, 4_500, partitions)
            );
            let written =
                async || Ok((sink.metrics().await?.records_written(queue) == 4_500).then_some(()));
            eventually(WAIT, written).await?;
        }
        assert_eq!(sink.health().await?.0, 200);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn payload_bytes_reach_the_lake_as_they_were_pushed() -> Result<()> {
    at_each_store(&["raw"], async |stack| {
        let _sink = stack.sink(&SinkOptions::new("raw"))?;
        let pushed = stack.client().push(events("raw", 0, 100, 7)).await?;
        settled(&stack.lake("default"), "raw", &Ledger::of(&pushed, "raw")?).await
    })
    .await
}

#[tokio::test]
async fn each_compression_holds_the_same_records_side_by_side_under_its_sinks_name() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        let mut sinks = Vec::new();
        for compression in ["zstd", "gzip", "none"] {
            let mut options = SinkOptions::new("orders").with("QUEEN_S3_COMPRESSION", compression);
            options.name = compression.into();
            options.instance = format!("sink-{compression}");
            sinks.push(stack.sink(&options)?);
        }
        let pushed = stack
            .client()
            .push_all(events("orders", 0, 1_000, 20), |_| {})
            .await?;
        let log = Ledger::of(&pushed, "orders")?;
        for (name, extension) in [
            ("zstd", ".jsonl.zst"),
            ("gzip", ".jsonl.gz"),
            ("none", ".jsonl"),
        ] {
            let lake = stack.lake(name);
            settled(&lake, "orders", &log).await?;
            assert!(
                lake.objects("orders")?
                    .iter()
                    .all(|object| object.key.ends_with(extension))
            );
            assert_eq!(count_with_duckdb(&lake.glob("orders"))?, (1_000, 1_000, 20));
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_queue_made_after_boot_is_mirrored_from_its_first_record() -> Result<()> {
    at_each_store(&["orders"], async |stack| {
        // `latest` would lose the first records of a queue that was there before; this one was not.
        let options = SinkOptions::new("orders,later").with("QUEEN_S3_START", "latest");
        let sink = stack.sink(&options)?;
        sink.port().await?;
        let pointer = "s3:default:orders:committed";
        let committed = async || stack.client().kv_get("queen-s3", pointer).await;
        eventually(WAIT, committed).await?;
        stack.client().configure("later").await?;
        let pushed = stack.client().push(one_partition("later", 0, 50)).await?;
        settled(
            &stack.lake("default"),
            "later",
            &Ledger::of(&pushed, "later")?,
        )
        .await
    })
    .await
}
