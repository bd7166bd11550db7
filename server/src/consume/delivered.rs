//! What a pop that settles at delivery settles: what it has rendered, and not before.

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::UNREADABLE_PAUSE;

/// How far a pop that settles at delivery has rendered, partition by partition.
pub struct Delivered {
    partitions: Vec<i64>,
    ends: Vec<i64>,
    pauses: Vec<i32>,
}

/// What became of it.
pub enum Settled {
    /// All that there was.
    All,
    /// There is more to take.
    More,
    /// The lease did not hold long enough: nothing was settled.
    Lost,
}

impl Delivered {
    /// Segments, each with its partition and the end of what was taken of it; those of a partition
    /// follow one another.
    pub fn of(segments: impl Iterator<Item = (i64, i64)>) -> Self {
        let (mut partitions, mut ends) = (Vec::new(), Vec::new());
        for (partition, end) in segments {
            if partitions.last() == Some(&partition) {
                ends.pop();
            } else {
                partitions.push(partition);
            }
            ends.push(end);
        }
        Self {
            pauses: vec![0; partitions.len()],
            partitions,
            ends,
        }
    }

    /// What of a partition lies at or behind `upto` cannot be read.
    pub fn end_at(&mut self, partition: i64, upto: i64) {
        if let Some(at) = self.partitions.iter().position(|id| *id == partition) {
            self.ends[at] = upto;
            self.pauses[at] = UNREADABLE_PAUSE.as_millis() as i32;
        }
    }

    /// Settles it, and gives the lease back.
    ///
    /// # Errors
    ///
    /// `503` or `500` from the database: whether it is settled is not known then.
    pub async fn settle(
        &self,
        broker: &Broker,
        slot: &Slot,
        lease: Uuid,
        group: i64,
    ) -> Result<Settled, ApiError> {
        const SETTLE: &str = "SELECT queen.settle_delivered($1, $2, $3, $4, $5)";
        let client = broker.database.client(slot.clone()).await?;
        let statement = client.prepare_cached(SETTLE).await?;
        let Self {
            partitions,
            ends,
            pauses,
        } = self;
        let outcome = client
            .query_one(&statement, &[&lease, &group, partitions, ends, pauses])
            .await;
        match outcome {
            Ok(row) if row.get(0) => Ok(Settled::More),
            Ok(_) => Ok(Settled::All),
            Err(error)
                if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
                    || error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) =>
            {
                Ok(Settled::Lost)
            }
            Err(error) => Err(error.into()),
        }
    }
}
