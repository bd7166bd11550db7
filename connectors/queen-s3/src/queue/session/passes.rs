//! Discovery: one pass after the other, a page at a time.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Event, Session};
use crate::broker::{BrokerError, Changed, ChangedRequest, EntryError};
use crate::limits::{CHANGED_PAGE, FULL_PASS_EVERY, PASS_PAUSE_LEAST};
use crate::observe::sampled::Sampled;
use crate::queue::absence::Absence;
use crate::queue::doubtful::Doubtful;
use crate::queue::{End, Task};
use crate::retry::{Backoff, Jitter};
use crate::time::Micros;
use crate::window::Engine;

/// The pass under way, between its pages.
struct NextPage {
    since: Option<Micros>,
    after: Option<String>,
}

/// The passes of a session.
pub(super) struct Discovery {
    pass: Option<NextPage>,
    page_out: bool,
    /// When the next pass begins, unless the last one was complete.
    next_pass: Instant,
    /// The end of the last pass, if that one was complete.
    passed: Option<Instant>,
    backoff: Backoff,
    log: Sampled,
}

impl Discovery {
    /// The first pass may begin.
    pub(super) fn due(jitter: &Jitter) -> Self {
        Self {
            pass: None,
            page_out: false,
            next_pass: Instant::now(),
            passed: None,
            backoff: jitter.backoff(),
            log: Sampled::default(),
        }
    }

    /// Whether no pass is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pass.is_none()
    }
}

impl Task {
    /// One discovery page, its `safeTime` noted.
    pub(in crate::queue) async fn changed(
        &self,
        request: &ChangedRequest,
    ) -> Result<Changed, BrokerError> {
        let answer = self.context.broker.changed(Some(request)).await?;
        let now = self.context.clock.boottime();
        self.context.status.set_safe_time(answer.safe_time, now);
        Ok(answer)
    }

    /// A whole pass, one page after the other, tried until it is complete. `doubtful` takes note of
    /// what a full one lists.
    pub(in crate::queue) async fn whole_pass(
        &self,
        engine: &mut Engine,
        full: bool,
        mut doubtful: Option<&mut Doubtful>,
    ) -> Result<(), End> {
        let _asking = self.context.status.asking();
        let mut backoff = self.context.jitter.backoff();
        let mut refused = self.context.jitter.backoff();
        let mut sampled = Sampled::default();
        'pass: loop {
            let since = engine.begin_pass(full).since;
            if let Some(doubtful) = &mut doubtful {
                doubtful.begin_pass();
            }
            let mut after = None;
            loop {
                engine.page_asked();
                let request = self.page_request(since, after.clone());
                let answer = match self.changed(&request).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        if let Some(suppressed) = sampled.failure() {
                            let queue = &self.queue;
                            warn!(%queue, %error, suppressed, "discovery failed; trying again");
                        }
                        // The page again, not the pass: of many pages one may always fail.
                        tokio::time::sleep(backoff.next(error.retry_after())).await;
                        continue;
                    }
                };
                match answer.error {
                    Some(EntryError::UnknownQueue) => return Err(End::Absent(answer.safe_time)),
                    Some(_) => {
                        tokio::time::sleep(refused.next(None)).await;
                        continue 'pass;
                    }
                    None => {
                        self.is_there();
                        engine.page(answer.safe_time, &answer.partitions);
                    }
                }
                backoff.reset();
                if let Some(doubtful) = &mut doubtful {
                    answer
                        .partitions
                        .iter()
                        .for_each(|one| doubtful.listed(one));
                }
                after = answer.next;
                if after.is_none() {
                    engine.end_pass();
                    return Ok(());
                }
            }
        }
    }

    /// Whether every partition is to be listed now; the next time is then put off.
    fn full_pass_due(&self, now: Instant) -> bool {
        let mut next = self
            .next_full_pass
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = now >= *next;
        if due {
            *next = now + FULL_PASS_EVERY;
        }
        due
    }

    /// Logs a change of the broker's sight, once for the process.
    fn note_degraded(&self, degraded: bool) {
        match self.context.status.change_degraded(degraded) {
            Some(true) => warn!(
                "the broker's safeTime is degraded: it cannot see every database session, and \
                 windows close later; GRANT pg_read_all_stats to the broker's role"
            ),
            Some(false) => info!("the broker's safeTime is whole again"),
            None => {}
        }
    }

    fn page_request(&self, since: Option<Micros>, after: Option<String>) -> ChangedRequest {
        ChangedRequest {
            queue: self.queue.clone(),
            since,
            after,
            limit: CHANGED_PAGE,
        }
    }
}

impl Session<'_> {
    // Discovery.

    pub(super) fn discover(&mut self) {
        if self.discovery.page_out {
            return;
        }
        let now = Instant::now();
        let pass = match self.discovery.pass.take() {
            Some(pass) => pass,
            None if now < self.next_pass() => return,
            None => {
                let full = self.task.full_pass_due(now);
                NextPage {
                    since: self.engine.begin_pass(full).since,
                    after: None,
                }
            }
        };
        self.engine.page_asked();
        self.discovery.page_out = true;
        let task = self.task;
        let request = task.page_request(pass.since, pass.after);
        self.discovery.pass = Some(NextPage {
            since: pass.since,
            after: None,
        });
        self.start(async move { Event::Page(task.changed(&request).await) });
    }

    pub(super) fn page(&mut self, answer: Result<Changed, BrokerError>) {
        self.discovery.page_out = false;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(suppressed) = self.discovery.log.failure() {
                    let queue = &self.task.queue;
                    warn!(%queue, %error, suppressed, "discovery failed; trying again");
                }
                let pause = self.discovery.backoff.next(error.retry_after());
                self.doubt_absence();
                self.give_pass_up(pause);
                return;
            }
        };
        if self.gone.is_some() {
            // A queue that is back by now is another one: it is begun anew, from what is committed.
            self.queue_gone(answer.safe_time);
            return;
        }
        match &answer.error {
            None => {}
            Some(EntryError::UnknownQueue) => {
                self.queue_gone(answer.safe_time);
                return;
            }
            Some(error) => {
                if let Some(suppressed) = self.discovery.log.failure() {
                    let queue = &self.task.queue;
                    warn!(%queue, %error, suppressed, "a discovery page was refused; trying again");
                }
                let pause = self.discovery.backoff.next(None);
                self.doubt_absence();
                self.give_pass_up(pause);
                return;
            }
        }
        self.discovery.log.success();
        self.discovery.backoff.reset();
        self.doubt_absence();
        self.task.is_there();
        self.task.note_degraded(answer.degraded);
        self.engine.page(answer.safe_time, &answer.partitions);
        if let (Some(after), Some(pass)) = (answer.next, &mut self.discovery.pass) {
            pass.after = Some(after);
            return;
        }
        self.discovery.pass = None;
        if let Some(summary) = self.engine.end_pass() {
            self.task.status.discovered.store(summary.listed, Relaxed);
        }
        self.discovery.passed = Some(Instant::now());
    }

    /// When the next pass begins.
    pub(super) fn next_pass(&self) -> Instant {
        match self.discovery.passed {
            Some(passed) => passed + self.pass_pause(),
            None => self.discovery.next_pass,
        }
    }

    /// How long after a complete pass the next one begins. Windows close, and the pointer of an idle
    /// queue moves, at what a pass has shown: an interval that is longer than a window's age must not
    /// make windows as old as itself.
    fn pass_pause(&self) -> Duration {
        let settings = self.task.settings();
        let age = settings.max_window;
        // The broker's clock may have gone on a little less than this one.
        let slack = age / 100;
        let patience = match self.engine.closes_in() {
            // What keeps a window open beyond its age is not asked about all the time.
            Some(us) => (Duration::from_micros(us.unsigned_abs()) + slack).max(age / 10),
            None => age + slack,
        };
        settings
            .discovery_interval
            .min(patience.max(PASS_PAUSE_LEAST))
    }

    /// Notes an answer that the queue is gone. Its partitions have ended only when later answers
    /// agree.
    fn queue_gone(&mut self, safe_time: Micros) {
        let interval = self.task.settings().discovery_interval;
        let absence = Absence::answered(self.absent, interval);
        if self.gone.is_some() || absence.is_certain() {
            self.engine.queue_gone(safe_time);
            self.gone = Some(safe_time);
        } else {
            self.engine.abandon_pass();
        }
        self.absent = Some(absence);
        self.discovery.pass = None;
        self.pass_after(interval);
    }

    /// An answer came that does not say that the queue is gone.
    fn doubt_absence(&mut self) {
        self.absent = None;
    }

    fn give_pass_up(&mut self, pause: Duration) {
        self.engine.abandon_pass();
        self.discovery.pass = None;
        self.pass_after(pause);
    }

    fn pass_after(&mut self, pause: Duration) {
        self.discovery.passed = None;
        self.discovery.next_pass = Instant::now() + pause;
    }
}
