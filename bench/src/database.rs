//! The database behind a stack, for data that would take too long to push.

use anyhow::{Context, Result};
use queen_dev::Stack;
use tokio_postgres::{Client, NoTls};

/// A session of the database.
pub async fn connect(stack: &Stack) -> Result<Client> {
    let (client, connection) = tokio_postgres::Config::new()
        .host(stack.postgres.host())
        .port(stack.postgres.port())
        .user(stack.postgres.user())
        .password(stack.postgres.password())
        .dbname(stack.postgres.database())
        .connect(NoTls)
        .await
        .context("connect to PostgreSQL")?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("the database session ended: {error}");
        }
    });
    Ok(client)
}

/// Gives `queue`, which has one partition with one record, `count` more partitions like it.
pub async fn multiply_partition(client: &Client, queue: &str, count: usize) -> Result<()> {
    const PARTITIONS: &str = "
        INSERT INTO queen.partitions (queue_id, name, next_offset, last_ts, last_write_at)
        SELECT p.queue_id, 'idle-' || lpad(n::text, 7, '0'), p.next_offset, p.last_ts,
               p.last_write_at
        FROM queen.queues q
        JOIN queen.partitions p ON p.queue_id = q.id
        CROSS JOIN generate_series(1, $2::bigint) AS n
        WHERE q.name = $1";
    const SEGMENTS: &str = "
        INSERT INTO queen.segments
        SELECT p.id, s.base_offset, s.ts, s.payload_bytes, s.raw_bytes, s.records, s.block
        FROM queen.queues q
        JOIN queen.partitions p ON p.queue_id = q.id
        CROSS JOIN (
            SELECT s.* FROM queen.segments s
            JOIN queen.partitions p ON p.id = s.partition_id
            JOIN queen.queues q ON q.id = p.queue_id
            WHERE q.name = $1
        ) s
        WHERE q.name = $1 AND p.name LIKE 'idle-%'";
    client
        .execute(PARTITIONS, &[&queue, &i64::try_from(count)?])
        .await?;
    client.execute(SEGMENTS, &[&queue]).await?;
    client
        .batch_execute("VACUUM (ANALYZE) queen.partitions, queen.segments")
        .await?;
    Ok(())
}
