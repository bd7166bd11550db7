//! Reading: which partitions to fetch next, with how much at a time, and what the answers say.

use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tracing::{info, warn};

use super::sizing::{Brought, Kind, Sizing};
use super::{Event, Session};
use crate::broker::{BrokerError, FetchAnswer, FetchEntry, FetchRequest};
use crate::lake::Compression;
use crate::limits::{
    ENCODED_PART, ENTRY_RETRY, FETCH_CALL_BYTES, FETCH_CALL_LEAST_BYTES, FETCH_LEAST_ENTRIES,
    QUEUE_ROOM_BYTES,
};
use crate::observe::sampled::Sampled;
use crate::queue::doubtful::Doubtful;
use crate::queue::{End, Task};
use crate::record::Chunk;
use crate::retry::{Backoff, Jitter};
use crate::window::{Engine, Press, ReadRequest, ReadResult};

/// What an answer counts for in how closely records are packed.
const PACKING_WEIGHT: f64 = 0.2;

/// What `answer` brought, but for its entries.
fn brought_by(answer: &FetchAnswer) -> Brought {
    let all = Chunk::whole(&answer.batch);
    let more = answer.entries.iter().any(|entry| {
        let last = all.part(entry.records.clone()).last();
        last.is_some_and(|last| last.offset + 1 < entry.high_watermark)
    });
    Brought {
        // What is compressed counts as what it becomes: the next answer may come open.
        rendered: answer.batch.held_bytes().max(all.text_bytes()),
        records: !all.range.is_empty(),
        more,
        ..Brought::default()
    }
}

/// A fetch call under way.
pub(super) struct Call {
    reads: Vec<ReadRequest>,
    /// Stored bytes asked for.
    stored: f64,
    /// Rendered bytes aimed at.
    room: usize,
}

/// The fetch calls of a session.
pub(super) struct Reading {
    /// Those under way.
    calls: usize,
    /// Rendered bytes that they aim at.
    pub(super) reserved: usize,
    sizing: Sizing,
    /// Bytes of records in one that their compressed form takes in memory, about; 1 where they are not
    /// compressed.
    packing: f64,
    /// Whether the last answer brought nothing.
    barren: bool,
    backoff: Backoff,
    /// How long the broker asked to wait with the last failure.
    asked: Option<Duration>,
    log: Sampled,
    doubt_log: Sampled,
}

impl Reading {
    /// Nothing is read yet.
    pub(super) fn new(jitter: &Jitter) -> Self {
        Self {
            calls: 0,
            reserved: 0,
            sizing: Sizing::new(),
            packing: 1.0,
            barren: false,
            backoff: jitter.backoff(),
            asked: None,
            log: Sampled::default(),
            doubt_log: Sampled::default(),
        }
    }
}

/// The state of a search for reading positions.
pub(in crate::queue) struct Probing {
    sizing: Sizing,
    backoff: Backoff,
    log: Sampled,
}

impl Probing {
    /// A search at its beginning.
    pub(in crate::queue) fn new(jitter: &Jitter) -> Self {
        Self {
            sizing: Sizing::new(),
            backoff: jitter.backoff(),
            log: Sampled::default(),
        }
    }
}

impl Task {
    /// One fetch call, counted.
    pub(in crate::queue) async fn fetch(
        &self,
        request: &FetchRequest,
    ) -> Result<FetchAnswer, BrokerError> {
        let answer = self.context.broker.fetch(request).await;
        let counter = match &answer {
            Ok(_) => &self.status.fetches_ok,
            Err(_) => &self.status.fetches_failed,
        };
        counter.fetch_add(1, Relaxed);
        answer
    }

    /// One call of probes for the positions that `engine` still looks for. A call that brings
    /// nothing is followed by a pause. `doubtful` hears of a pass that this takes.
    pub(in crate::queue) async fn probe(
        &self,
        engine: &mut Engine,
        probing: &mut Probing,
        doubtful: Option<&mut Doubtful>,
    ) -> Result<(), End> {
        let room = probing.sizing.aim(self.call_bytes());
        let probes = engine.next_probes(probing.sizing.entries(room, Kind::Probes));
        if probes.is_empty() {
            // What is left contradicts the last pass.
            tokio::time::sleep(probing.backoff.next(None)).await;
            return self.whole_pass(engine, true, doubtful).await;
        }
        let bytes = probing.sizing.probe_bytes();
        let request = self.fetch_request(&probes, bytes, bytes);
        let mut progress = false;
        let mut asked = None;
        match self.fetch(&request).await {
            Ok(answer) => {
                let mut brought = brought_by(&answer);
                brought.probes.asked = probes.len();
                for (read, entry) in probes.iter().zip(&answer.entries) {
                    match engine.read(read, &answer.batch, entry) {
                        ReadResult::Progress => progress = true,
                        ReadResult::Nothing => brought.probes.starved += 1,
                        ReadResult::Suspect(why) => self.doubt(&mut probing.log, read, &why),
                        ReadResult::Error(error) => self.doubt(&mut probing.log, read, &error),
                    }
                    engine.unread(read);
                }
                let stored = f64::from(bytes) * probes.len() as f64;
                probing.sizing.learn(stored, &brought);
            }
            Err(error) => {
                probes.iter().for_each(|read| engine.unread(read));
                asked = error.retry_after();
                if let Some(suppressed) = probing.log.failure() {
                    warn!(queue = %self.queue, %error, suppressed, "fetching failed; trying again");
                }
            }
        }
        if progress {
            probing.backoff.reset();
        } else {
            tokio::time::sleep(probing.backoff.next(asked)).await;
        }
        Ok(())
    }

    /// Says, now and then, that a partition cannot be read as it should.
    fn doubt(&self, log: &mut Sampled, read: &ReadRequest, why: &dyn Display) {
        if let Some(suppressed) = log.failure() {
            let (queue, partition, offset) = (&self.queue, &read.name, read.offset);
            warn!(%queue, %partition, offset, %why, suppressed, "a partition cannot be read here");
        }
    }

    /// Rendered bytes that a fetch call aims at while memory is no matter.
    pub(in crate::queue) fn call_bytes(&self) -> usize {
        let share = self.context.budget.limit() / (self.settings().fetch_concurrency + 1);
        share.clamp(FETCH_CALL_LEAST_BYTES, FETCH_CALL_BYTES)
    }

    /// Bytes of the memory budget that reading has to do without.
    pub(in crate::queue) fn taken(&self) -> usize {
        let budget = &self.context.budget;
        // What is encoded without being compressed takes as much as its records, until it is up.
        let headroom = match self.settings().shape.compression {
            Compression::None => budget.limit() / ENCODED_PART,
            _ => 0,
        };
        budget.used() + headroom.saturating_sub(budget.reserved())
    }

    fn fetch_request(
        &self,
        reads: &[ReadRequest],
        max_bytes: u32,
        probe_bytes: u32,
    ) -> FetchRequest {
        let entries = reads
            .iter()
            .map(|read| FetchEntry {
                partition: read.name.clone(),
                offset: read.offset,
                max_bytes: if read.probe { probe_bytes } else { max_bytes },
            })
            .collect();
        FetchRequest {
            queue: self.queue.clone(),
            entries,
            max_wait_ms: 0,
        }
    }
}

impl Session<'_> {
    // Reading.

    pub(super) fn read(&mut self) {
        if self.writing.committing && self.engine.is_full() {
            // The next window is here: more would only take memory until this one is committed.
            return;
        }
        let most = self.task.settings().fetch_concurrency;
        while self.engine.has_ready() && self.reading.calls < most {
            let known = self.reading.sizing.is_known(self.task.call_bytes());
            if self.reading.calls > 0 && !known {
                return;
            }
            let Some(room) = self.room().or_else(|| self.make_room()) else {
                self.short = true;
                return;
            };
            let room = self.reading.sizing.aim(room);
            let reads = self.engine.next_reads(self.entries(room));
            let max_bytes = self.reading.sizing.read_bytes(room, reads.len());
            let probe_bytes = self.reading.sizing.probe_bytes();
            let request = self.task.fetch_request(&reads, max_bytes, probe_bytes);
            let asked = request
                .entries
                .iter()
                .map(|entry| f64::from(entry.max_bytes));
            let call = Call {
                stored: asked.sum(),
                reads,
                room,
            };
            self.reading.calls += 1;
            self.reading.reserved += room;
            // After a failure, or when a call brought nothing, the next one waits.
            let pause = if self.reading.log.is_failing() || self.reading.barren {
                self.reading.backoff.next(self.reading.asked.take())
            } else {
                Duration::ZERO
            };
            let task = self.task;
            self.start(async move {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                let answer = task.fetch(&request).await;
                Event::Fetched(call, answer)
            });
        }
    }

    /// Memory that what is buffered takes, about.
    pub(super) fn buffered(&self) -> u64 {
        self.memory_of(self.engine.buffered_bytes())
    }

    /// Memory that so many bytes of records take, about.
    pub(super) fn memory_of(&self, record_bytes: u64) -> u64 {
        (record_bytes as f64 / self.reading.packing) as u64
    }

    /// Partitions to fetch in the next call: an even share of those that are ready, so that every
    /// call that may be under way has some, and no more than the call's bytes are enough for.
    fn entries(&self, room: usize) -> usize {
        let slots = self.task.settings().fetch_concurrency - self.reading.calls;
        let share = self.engine.ready().div_ceil(slots).max(FETCH_LEAST_ENTRIES);
        let kind = if self.engine.is_seeking() {
            Kind::Both
        } else {
            Kind::Reads
        };
        share.min(self.reading.sizing.entries(room, kind))
    }

    /// Bytes of the memory budget that one more fetch call would find taken.
    fn taken(&self) -> usize {
        self.task.taken() + self.reading.reserved
    }

    /// Rendered bytes that one more fetch call may aim at, if there is room for it.
    fn room(&self) -> Option<usize> {
        let call = self.task.call_bytes();
        let limit = self.task.context.budget.limit();
        let free = limit.saturating_sub(self.taken());
        if free >= call {
            return Some(call);
        }
        if self.reading.calls > 0 {
            return None;
        }
        if free >= FETCH_CALL_LEAST_BYTES {
            return Some(free);
        }
        // Room for one small fetch is every queue's.
        let small = self.buffered() < QUEUE_ROOM_BYTES;
        (small && !self.writing.committing).then_some(FETCH_CALL_LEAST_BYTES)
    }

    /// Where there is no room and nothing is under way, the largest buffer makes some: by closing a
    /// window, by giving up what can be read again, or by a window that does not go through memory.
    /// Answers what a fetch call may aim at now.
    fn make_room(&mut self) -> Option<usize> {
        if self.reading.calls > 0 || self.writing.committing || self.press() == Press::None {
            return None;
        }
        self.close(Press::Memory);
        if self.writing.committing {
            return None;
        }
        let budget = &self.task.context.budget;
        let call = self.task.call_bytes();
        // Nothing can be closed before the partition with the lowest frontier is read on: the
        // records furthest ahead make room for that.
        // What others have on its way up is no reason to drop more than one call takes, or than is too
        // much by itself.
        let own = (self.buffered() as usize + call).saturating_sub(budget.limit());
        let over = (self.taken() + call).saturating_sub(budget.limit());
        let over = (over.min(call.max(own)) as f64 * self.reading.packing) as u64;
        if self.engine.shed(over, budget) >= over {
            return Some(FETCH_CALL_LEAST_BYTES);
        }
        // The earliest instant is all that is left.
        let alone = self.buffered() > budget.limit() as u64 / 2;
        // What would be given up for that may still be there: the next page tells.
        let waits = self.engine.waits_for_lives();
        if alone && budget.buffered() > budget.limit() && (waits || self.stream_oversized()) {
            return None;
        }
        Some(FETCH_CALL_LEAST_BYTES)
    }

    pub(super) fn fetched(&mut self, call: &Call, answer: Result<FetchAnswer, BrokerError>) {
        self.reading.calls -= 1;
        self.reading.reserved -= call.room;
        let queue = &self.task.queue;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                call.reads.iter().for_each(|read| self.engine.unread(read));
                self.reading.asked = error.retry_after();
                if let Some(suppressed) = self.reading.log.failure() {
                    warn!(%queue, %error, suppressed, "fetching failed; trying again");
                }
                return;
            }
        };
        if self.reading.log.success() {
            info!(%queue, "fetching works again");
        }
        let mut held = Vec::new();
        let mut brought = brought_by(&answer);
        self.reading.barren = true;
        for (read, entry) in call.reads.iter().zip(&answer.entries) {
            let entries = if read.probe {
                &mut brought.probes
            } else {
                &mut brought.reads
            };
            entries.asked += 1;
            match self.engine.read(read, &answer.batch, entry) {
                ReadResult::Progress => self.reading.barren = false,
                ReadResult::Nothing => entries.starved += 1,
                ReadResult::Suspect(why) => {
                    self.task.doubt(&mut self.reading.doubt_log, read, &why)
                }
                ReadResult::Error(error) => {
                    self.task.doubt(&mut self.reading.doubt_log, read, &error);
                    held.push(read.clone());
                }
            }
        }
        self.reading.sizing.learn(call.stored, &brought);
        if brought.records {
            let taken = answer.batch.held_bytes().max(1);
            let packing = (brought.rendered as f64 / taken as f64).max(1.0);
            self.reading.packing += (packing - self.reading.packing) * PACKING_WEIGHT;
        }
        if !self.reading.barren {
            self.reading.backoff.reset();
        }
        if !held.is_empty() {
            let pause = self.task.context.jitter.backoff().next(Some(ENTRY_RETRY));
            self.start(async move {
                tokio::time::sleep(pause).await;
                Event::Released(held)
            });
        }
    }
}
