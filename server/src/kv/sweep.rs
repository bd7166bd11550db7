//! Deletes expired rows. They read as absent already; this gives their room back.

use std::sync::Arc;

use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{KV_SWEEP_EVERY, KV_SWEEP_ROWS};

/// Sweeps in small steps until the broker stops.
pub async fn run(broker: Arc<Broker>) {
    tokio::select! {
        () = sweeps(&broker) => {}
        () = broker.stopping.cancelled() => {}
    }
}

async fn sweeps(broker: &Broker) {
    loop {
        tokio::time::sleep(KV_SWEEP_EVERY).await;
        loop {
            match sweep(broker).await {
                Ok(rows) if rows == KV_SWEEP_ROWS as u64 => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "expired keys could not be swept");
                    break;
                }
            }
        }
    }
}

async fn sweep(broker: &Broker) -> Result<u64, ApiError> {
    // Rows that a batch holds are left for the next sweep.
    const SWEEP: &str = "
        DELETE FROM queen.kv k USING (
            SELECT tenant, ns, key FROM queen.kv
            WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) e
        WHERE k.tenant = e.tenant AND k.ns = e.ns AND k.key = e.key
          AND k.expires_at <= clock_timestamp()";
    let client = broker.background().await?;
    let statement = client.prepare_cached(SWEEP).await?;
    Ok(client.execute(&statement, &[&KV_SWEEP_ROWS]).await?)
}
