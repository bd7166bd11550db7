//! Looking for what a window that is redone was made of: discovery before it is read, and once more
//! after, because not every broker's fetch answers say which life of a partition they are of.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::absence::Absence;
use super::doubtful::Doubtful;
use super::log_stream::Reborn;
use super::session::Probing;
use super::{End, Standing, Task};
use crate::broker::Name;
use crate::gaps::subtract;
use crate::lake::Layout;
use crate::lake::documents::Intent;
use crate::lake::manifest::OffsetRange;
use crate::time::Micros;
use crate::window::{Engine, Left, Remembered, Unread};

/// What discovery has told of the window so far. It outlives the tries at it: what one try learns
/// of a partition is what the next one can call lost when that partition is gone.
pub(super) struct Survey<'a> {
    task: &'a Task,
    engine: Engine,
    /// In the per-partition layout.
    doubtful: Option<Doubtful>,
    /// Ranges that are known to be deleted.
    lost: Vec<OffsetRange>,
    /// The same of lives that have no record of the window.
    later_lost: Vec<OffsetRange>,
    /// Whether partitions of the window were found, or known before.
    begun: bool,
    /// Answers, one after the other, that the queue is gone.
    absent: Option<Absence>,
    /// Whether it is, for good.
    gone: bool,
    /// Whether a try met another log than was discovered before it.
    changed: bool,
    /// Whether the process stops.
    stop: &'a CancellationToken,
}

/// What discovery tells of a window.
pub(super) struct Found {
    /// Every partition that has something to read and can hold a record of it, with a position at or
    /// shortly before its first one; by name (bytes).
    pub(super) partitions: Vec<Unread>,
    /// Ranges that are known to be deleted.
    pub(super) lost: Vec<OffsetRange>,
    /// The same of lives that have no record of the window.
    pub(super) later_lost: Vec<OffsetRange>,
    /// Partitions that may have an object although no record of theirs is found, in the
    /// per-partition layout.
    pub(super) doubtful: BTreeSet<Name>,
}

impl<'a> Survey<'a> {
    /// A survey for the window of `intent`, the one after `standing`, which had these records before, by
    /// a session that `left` something.
    pub(super) async fn begin(
        task: &'a Task,
        standing: &Standing,
        intent: &Intent,
        (window, left): (Remembered, Left),
        stop: &'a CancellationToken,
    ) -> Self {
        let engine = task.engine(standing, window, left).await;
        let begun = engine.is_expecting();
        let each = intent.layout == Layout::PerPartition;
        Self {
            task,
            doubtful: each.then(|| Doubtful::new(&engine.checkpoint())),
            engine,
            lost: Vec::new(),
            later_lost: Vec::new(),
            begun,
            absent: None,
            gone: false,
            changed: false,
            stop,
        }
    }

    /// Looks for the partitions of the window that ends at `end` and holds the `late` records. A
    /// queue that goes once they were found takes nothing with it that is known of them.
    pub(super) async fn discover(
        &mut self,
        end: Micros,
        late: &[OffsetRange],
    ) -> Result<Found, End> {
        // A pass that asks for what moved lately does not name where records came late, and tells
        // nothing of what is gone.
        let full = self.doubtful.is_some() || !late.is_empty() || self.changed;
        while !self.gone {
            match self.look(end, full).await {
                Ok(()) => break,
                Err(End::Absent(safe_time)) if self.begun => {
                    let interval = self.task.settings().discovery_interval;
                    let absence = Absence::answered(self.absent, interval);
                    if absence.is_certain() {
                        self.engine.queue_gone(safe_time);
                        self.gone = true;
                        break;
                    }
                    self.absent = Some(absence);
                    tokio::select! {
                        biased;
                        // What the queue is, the next start learns as well.
                        () = self.stop.cancelled() => return Err(End::Drained),
                        () = tokio::time::sleep(interval) => {}
                    }
                }
                Err(end) => return Err(end),
            }
        }
        // A life that begins from now on has no record of the window.
        self.engine.mark_lives();
        self.begun = true;
        self.note_lost();
        let doubtful = self.doubtful.as_ref().map(Doubtful::partitions);
        Ok(Found {
            partitions: self.engine.unread_partitions(late),
            lost: self.lost.clone(),
            later_lost: self.later_lost.clone(),
            doubtful: doubtful.unwrap_or_default(),
        })
    }

    /// Passes until the window is final, and every position is certain.
    async fn look(&mut self, end: Micros, full: bool) -> Result<(), End> {
        let mut backoff = self.task.context.jitter.backoff();
        loop {
            self.task
                .whole_pass(&mut self.engine, full, self.doubtful.as_mut())
                .await?;
            self.absent = None;
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
        Ok(())
    }

    /// Takes in where records below the window were seen to end: they are in earlier ones.
    pub(super) fn is_written(&mut self, below: &[(&Unread, i64)]) {
        for (unread, offset) in below {
            self.engine.is_written(unread, *offset);
        }
    }

    /// What is left when the window is written, which was read up to these offsets.
    pub(super) fn left(mut self, read: &[(&Unread, i64)]) -> Left {
        self.is_written(read);
        let mut left = self.engine.left([]);
        if !left.gone.is_empty() {
            // What the window has may have been found deleted since.
            let within = read.iter().filter(|(unread, end)| unread.position < *end);
            let within: Vec<OffsetRange> = within
                .map(|(unread, end)| OffsetRange {
                    partition: unread.partition.to_string(),
                    from: unread.position,
                    to: end - 1,
                })
                .collect();
            left.gone = subtract(left.gone, &within);
        }
        left
    }

    /// Whether what was read of `partitions` since they were discovered is of the lives in which
    /// they were. A later life lies above the window: to read on in it looks as if the window held
    /// no more.
    pub(super) async fn lived_on(&mut self, partitions: &[Unread]) -> Result<bool, End> {
        if partitions.is_empty() || self.gone {
            return Ok(true);
        }
        // Whatever is made again is written to.
        match self.task.whole_pass(&mut self.engine, false, None).await {
            Ok(()) => self.absent = None,
            Err(End::Absent(_)) => return Ok(false),
            Err(end) => return Err(end),
        }
        let mut lived_on = true;
        for unread in partitions {
            if !self.engine.lives_on(unread) {
                lived_on = false;
                self.engine.ended_early(unread);
            }
        }
        Ok(lived_on)
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
        self.later_lost.extend(self.engine.take_later_lost());
    }
}
