//! Looking for what a window that is redone was made of: discovery before it is read, and once more
//! after, because a fetch answer does not say which life of a partition it is of.

use std::collections::BTreeSet;

use super::doubtful::Doubtful;
use super::log_stream::{Reborn, first_read};
use super::session::Probing;
use super::{End, Standing, Task};
use crate::broker::Name;
use crate::lake::Layout;
use crate::lake::documents::Intent;
use crate::lake::manifest::OffsetRange;
use crate::time::Micros;
use crate::window::{Engine, Unread};

/// What discovery has told of the window so far. It outlives the tries at it: what one try learns
/// of a partition is what the next one can call lost when that partition is gone.
pub(super) struct Survey<'a> {
    task: &'a Task,
    engine: Engine,
    /// In the per-partition layout.
    doubtful: Option<Doubtful>,
    /// Ranges that are known to be deleted.
    lost: Vec<OffsetRange>,
    /// Whether a try met another log than was discovered before it.
    changed: bool,
}

/// What discovery tells of a window.
pub(super) struct Found {
    /// Every partition that can hold a record of it, with a position at or shortly before its
    /// first one; by name (bytes).
    pub(super) partitions: Vec<Unread>,
    /// Ranges that are known to be deleted.
    pub(super) lost: Vec<OffsetRange>,
    /// Partitions that may have an object although no record of theirs is found, in the
    /// per-partition layout.
    pub(super) doubtful: BTreeSet<Name>,
}

impl<'a> Survey<'a> {
    /// A survey for the window of `intent`, the one after `standing`.
    pub(super) async fn begin(task: &'a Task, standing: &Standing, intent: &Intent) -> Self {
        let engine = task.engine(standing).await;
        let each = intent.layout == Layout::PerPartition;
        Self {
            task,
            doubtful: each.then(|| Doubtful::new(engine.checkpoint())),
            engine,
            lost: Vec::new(),
            changed: false,
        }
    }

    /// Looks for the partitions of the window that ends at `end` and holds the `late` records.
    pub(super) async fn discover(
        &mut self,
        end: Micros,
        late: &[OffsetRange],
    ) -> Result<Found, End> {
        // A pass that asks for what moved lately does not name where records came late, and tells
        // nothing of what is gone.
        let full = self.doubtful.is_some() || !late.is_empty() || self.changed;
        let mut backoff = self.task.context.jitter.backoff();
        loop {
            self.task
                .whole_pass(&mut self.engine, full, self.doubtful.as_mut())
                .await?;
            if self.engine.safe_time().is_some_and(|safe| safe >= end) {
                break;
            }
            // The broker's safeTime may fall between calls; the window is final above it only.
            tokio::time::sleep(backoff.next(None)).await;
        }
        let mut probing = Probing::new(&self.task.context.jitter);
        while self.engine.wants_probes() {
            self.task
                .probe(&mut self.engine, &mut probing, self.doubtful.as_mut())
                .await?;
        }
        self.note_lost();
        let doubtful = self.doubtful.as_ref().map(Doubtful::partitions);
        Ok(Found {
            partitions: self.engine.unread_partitions(),
            lost: self.lost.clone(),
            doubtful: doubtful.unwrap_or_default(),
        })
    }

    /// Whether what was read of `partitions` since they were discovered, with the `late` records, is
    /// of the lives in which they were. A later life lies above the window: to read on in it looks
    /// as if the window held no more.
    pub(super) async fn lived_on(
        &mut self,
        partitions: &[Unread],
        late: &[OffsetRange],
    ) -> Result<bool, End> {
        let is_read = |unread: &&Unread| first_read(unread, late).is_some();
        if !partitions.iter().any(|unread| is_read(&unread)) {
            return Ok(true);
        }
        // Whatever is made again is written to.
        self.task.whole_pass(&mut self.engine, false, None).await?;
        let mut read = partitions.iter().filter(is_read);
        Ok(read.all(|unread| self.engine.lives_on(unread)))
    }

    /// Takes in that the log that was read is not the one that was discovered.
    pub(super) fn changed(&mut self, reborn: Option<Reborn>) {
        self.changed = true;
        if let Some(reborn) = reborn {
            let (former, log_start) = (&reborn.former, reborn.log_start);
            self.engine.lives_anew(former, log_start, reborn.end);
        }
        self.note_lost();
    }

    fn note_lost(&mut self) {
        self.lost.extend(self.engine.take_lost());
    }
}
