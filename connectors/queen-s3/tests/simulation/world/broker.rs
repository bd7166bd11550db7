//! The broker's HTTP API, as a process meets it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queen_protocol::kv::KvOperation;
use queen_s3::broker::{
    Broker, BrokerError, BrokerErrorKind, Changed, ChangedRequest, EntryError, FetchAnswer,
    FetchRequest, KvAnswer, ListedPartition,
};
use queen_s3::record::{decode_fetch, decode_segments};
use queen_s3::time::Micros;
use tokio::time::{Instant, sleep, timeout};

use super::bodies::{Answer, FetchLimits, Form, Named, fetch_answer};
use super::checker::Batch;
use super::network::{Failure, Link};
use super::scenario::{Answers, Lives};
use super::sight::Shown;
use super::visits::Situation;
use super::{State, World, writers};

#[async_trait]
impl Broker for Link {
    async fn fetch(&self, request: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        let mut asked: Vec<&str> = request
            .entries
            .iter()
            .map(|entry| &*entry.partition)
            .collect();
        asked.sort_unstable();
        asked.dedup();
        if asked.len() != request.entries.len() || asked.is_empty() || asked.len() > 1_024 {
            self.world
                .judge(Err(format!("a fetch asks for {:?}", request.entries)));
        }
        let pointed = |state: &mut State| state.checker.committed(&request.queue).is_some();
        if !self.world.with(pointed) {
            self.world.judge(Err(format!(
                "{} is read before its first pointer is there",
                request.queue
            )));
        }
        let what = format!(
            "fetch {} of {} +{}",
            brief(request),
            request.queue,
            request.max_wait_ms
        );
        let request_there = Arc::new(request.clone());
        let answer = self
            .call(
                &what,
                false,
                Arc::new(move |world| {
                    let request = Arc::clone(&request_there);
                    Box::pin(async move { answer_fetch(&world, &request).await })
                }),
            )
            .await
            .map_err(|failure| error("POST /api/v1/fetch", failure))?;
        let cut = self.world.with(|state| {
            let cut = !state.calm && state.dice.chance(self.world.scenario.error_rate / 4.0);
            let last = answer.body.len() as i64 - 1;
            cut.then(|| usize::try_from(state.dice.between(0, last)).unwrap_or(0))
        });
        if cut.is_some() {
            self.world.met(Situation::BodyCut);
        }
        // No body that is cut reads as a whole one: its last byte is what ends it.
        let cut = |body: Vec<u8>| {
            let body = Bytes::from(body);
            cut.map_or(body.clone(), |cut| body.slice(..cut))
        };
        let read = match answer.form {
            Form::Json => decode_fetch(request, cut(answer.body), &self.budget),
            Form::Segments | Form::Described => {
                decode_segments(request, cut(answer.body), &self.budget, &self.trust)
            }
        };
        if read.is_ok() && !answer.tells_lives {
            self.world.with(|state| {
                let sight = state.checker.sight(&self.process.name, &request.queue);
                for (entry, life) in request.entries.iter().zip(&answer.lives) {
                    life.iter()
                        .for_each(|life| sight.read_untold(&entry.partition, *life));
                }
            });
        }
        read.map_err(|source| BrokerError {
            operation: "POST /api/v1/fetch",
            url: URL.to_owned(),
            kind: BrokerErrorKind::Decode(source),
        })
    }

    async fn changed(&self, request: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        let what = match request {
            Some(request) => format!(
                "changed {} since {:?} after {:?}",
                request.queue,
                request.since.map(|since| since.0),
                request.after
            ),
            None => "changed".to_owned(),
        };
        let request = request.cloned();
        let asked = request.clone();
        let answer = self
            .call(
                &what,
                false,
                Arc::new(move |world| {
                    let request = request.clone();
                    Box::pin(async move { answer_changed(&world, request.as_ref()).await })
                }),
            )
            .await;
        let answer = answer.map(|(answer, shown)| {
            // A look at whether the queue is there asks for one line and reads nothing in it.
            let pass = asked.as_ref().filter(|request| request.limit > 1);
            if let Some(request) = pass {
                self.world.with(|state| {
                    let sight = state.checker.sight(&self.process.name, &request.queue);
                    shown.iter().for_each(|shown| sight.shown(shown));
                });
            }
            answer
        });
        if let Ok(answer) = &answer {
            self.world.note(format_args!(
                "  safe {} {:?}",
                answer.safe_time.0,
                answer
                    .partitions
                    .iter()
                    .map(|found| format!(
                        "{}:{}..{}",
                        found.name, found.log_start, found.last_offset
                    ))
                    .collect::<Vec<_>>()
            ));
        }
        answer.map_err(|failure| error("POST /api/v1/partitions/changed", failure))
    }

    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        let sent = self.world.elapsed();
        let what = kv_brief(operations);
        let operations: Arc<[KvOperation]> = operations.into();
        let process = Arc::clone(&self.process);
        let answer = self
            .call(
                &what,
                false,
                Arc::new(move |world| {
                    let operations = Arc::clone(&operations);
                    let process = Arc::clone(&process);
                    Box::pin(async move {
                        let now = world.broker_now();
                        let who = &process.name;
                        let (answer, verdict) = world.with(|state| {
                            let answer = state.store.batch(&operations, now);
                            if let Ok(KvAnswer::RolledBack(_)) = &answer {
                                state.checker.fence_lost(&operations);
                            }
                            let applied = matches!(answer, Ok(KvAnswer::Done(_)));
                            let verdict = if let (true, Ok(KvAnswer::Done(results))) =
                                (applied, &answer)
                            {
                                let batch = Batch {
                                    operations: &operations,
                                    results,
                                    who,
                                };
                                state
                                    .checker
                                    .store_written(&batch, &mut state.log, &state.objects)
                            } else {
                                Ok(Vec::new())
                            };
                            (answer, verdict)
                        });
                        match verdict {
                            Ok(leases) => {
                                for queue in leases {
                                    process.lease_applied(&queue, sent);
                                }
                            }
                            Err(broken) => world.judge(Err(broken)),
                        }
                        answer
                    })
                }),
            )
            .await
            .map_err(|failure| error("POST /api/v1/kv", failure))?;
        self.world
            .note(format_args!("  {}", kv_answer_brief(&answer)));
        answer.map_err(|refused| {
            self.world
                .judge(Err(format!("the key/value API refuses a batch: {refused}")));
            error("POST /api/v1/kv", Failure::Status(400, None))
        })
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        self.call(
            "queues",
            false,
            Arc::new(|world: Arc<World>| {
                Box::pin(async move {
                    world.with(|state| {
                        let queues = state.log.queues.iter();
                        let living = queues.filter(|(_, queue)| !queue.gone);
                        living.map(|(name, _)| name.clone()).collect()
                    })
                })
            }),
        )
        .await
        .map_err(|failure| error("GET /api/v1/resources/queues", failure))
    }
}

const URL: &str = "http://broker:6632";

fn error(operation: &'static str, failure: Failure) -> BrokerError {
    let kind = match failure {
        Failure::Transport(text) => BrokerErrorKind::Transport(text.to_owned()),
        Failure::Status(code, retry_after) => BrokerErrorKind::Status {
            code,
            excerpt: "simulated".to_owned(),
            retry_after,
        },
        Failure::Checksum => BrokerErrorKind::Malformed("simulated".to_owned()),
    };
    BrokerError {
        operation,
        url: URL.to_owned(),
        kind,
    }
}

/// Longest time, ms, that an answer takes where partitions are restless: what is not read when a life ends
/// can be in the next window only if the sink is further behind than windows are.
const LAG_MS: i64 = 80;

async fn answer_fetch(world: &World, request: &FetchRequest) -> Answer {
    writers::delete_as_it_is_read(world, request);
    let lag = world.with(|state| match world.scenario.restless && !state.calm {
        true => state.dice.millis(0, LAG_MS),
        false => Duration::ZERO,
    });
    sleep(lag).await;
    let wait = Duration::from_millis(u64::from(request.max_wait_ms.min(30_000)));
    let until = Instant::now() + wait;
    loop {
        let written = world.written.notified();
        let (answer, settled) = world.with(|state| {
            let (scenario, dice) = (&world.scenario, &mut state.dice);
            let form = match scenario.answers {
                Answers::Json => Form::Json,
                Answers::Segments => Form::Segments,
                Answers::Described => Form::Described,
                Answers::Mixed => dice.pick(&[Form::Described, Form::Segments, Form::Json]),
            };
            let named = match scenario.lives {
                Lives::All => Named::Lives,
                Lives::Some if dice.chance(0.5) => Named::Lives,
                Lives::Some | Lives::None => Named::Nothing,
                Lives::Foreign => Named::Foreign(dice.bits()),
            };
            let limits = FetchLimits {
                entry_records: world.scenario.fetch_records,
                // Without ids the sink looks at the record before the one it wants.
                least: if scenario.ids { 1 } else { 2 },
                call_records: world.scenario.call_records,
                extra: dice.chance(0.3),
                damaged: !state.calm && dice.chance(scenario.error_rate / 10.0),
            };
            let (answer, settled) = fetch_answer(&state.log, request, limits, (form, named));
            if settled {
                state.checker.visits.met(match form {
                    Form::Json => Situation::Lines,
                    Form::Segments => Situation::Segments,
                    Form::Described => Situation::Described,
                });
                match named {
                    Named::Lives => {}
                    Named::Nothing => state.checker.visits.met(Situation::LivesUntold),
                    Named::Foreign(_) => state.checker.visits.met(Situation::ForeignLives),
                }
                if answer.damaged {
                    state.checker.visits.met(Situation::Unreadable);
                }
            }
            (answer, settled)
        });
        if settled || Instant::now() >= until {
            return answer;
        }
        // Running out of time answers what is there.
        let _ = timeout(until - Instant::now(), written).await;
    }
}

async fn answer_changed(world: &World, request: Option<&ChangedRequest>) -> (Changed, Vec<Shown>) {
    let now = world.broker_now();
    let (safe, degraded, gap) = world.with(|state| {
        let (safe, degraded) = state.log.safe_time(now);
        if degraded {
            state.checker.visits.met(Situation::Degraded);
        }
        let slow = !state.calm && state.dice.chance(0.05);
        (
            safe,
            degraded,
            if slow {
                state.dice.millis(0, 3_000)
            } else {
                state.dice.millis(0, 3)
            },
        )
    });
    sleep(gap).await;
    let mut answer = Changed {
        safe_time: Micros(safe),
        degraded,
        partitions: Vec::new(),
        next: None,
        error: None,
    };
    let mut shown = Vec::new();
    let Some(request) = request else {
        return (answer, shown);
    };
    let limit = (request.limit as usize)
        .clamp(1, 1_000)
        .min(world.scenario.page);
    world.with(|state| {
        let queue = &*request.queue;
        if state.log.living(queue).is_none() {
            answer.error = Some(EntryError::UnknownQueue);
            return;
        }
        let Some((after, listed)) = page(state, request, limit) else {
            answer.error = Some(EntryError::BadCursor);
            return;
        };
        answer.next = after;
        answer.partitions = listed;
        shown = answer.partitions.iter().filter_map(shown_by).collect();
        if !world.scenario.ids {
            answer.partitions.iter_mut().for_each(|line| line.id = None);
        }
    });
    (answer, shown)
}

fn shown_by(line: &ListedPartition) -> Option<Shown> {
    Some(Shown {
        name: line.name.clone(),
        life: line.id?.as_u128(),
        log_start: line.log_start,
        end: line.last_offset + 1,
    })
}

/// A page and the cursor of the next one; `None` for a cursor that is none of this mode.
fn page(
    state: &super::State,
    request: &ChangedRequest,
    limit: usize,
) -> Option<(Option<String>, Vec<ListedPartition>)> {
    let queue = &*request.queue;
    let (listed, next) = if let Some(since) = request.since {
        let after = match request.after.as_deref() {
            Some(cursor) => {
                let (at, name) = cursor.strip_prefix("w|")?.split_once('|')?;
                Some((at.parse().ok()?, name))
            }
            None => None,
        };
        let (listed, last) = state.log.list_since(queue, since.0, after, limit);
        (listed, last.map(|(at, name)| format!("w|{at}|{name}")))
    } else {
        let after = match request.after.as_deref() {
            Some(cursor) => Some(cursor.strip_prefix("n|")?),
            None => None,
        };
        let listed = state.log.list_all(queue, after, limit);
        let last = listed.last().map(|line| format!("n|{}", line.name));
        (listed, last)
    };
    let next = next.filter(|_| listed.len() == limit);
    let lines = listed.into_iter().map(|line| ListedPartition {
        name: line.name,
        id: Some(line.id),
        last_offset: line.last_offset,
        log_start: line.log_start,
        last_write_at: Some(Micros(line.last_write_at)),
    });
    Some((next, lines.collect()))
}

fn brief(request: &FetchRequest) -> String {
    let entries: Vec<String> = request
        .entries
        .iter()
        .map(|entry| format!("{}@{}", entry.partition, entry.offset))
        .collect();
    entries.join(" ")
}

fn kv_brief(operations: &[KvOperation]) -> String {
    let mut text = String::from("kv");
    for operation in operations {
        text.push_str(&format!(
            " {} {}",
            operation.op.as_str(),
            operation
                .key
                .as_deref()
                .or(operation.prefix.as_deref())
                .unwrap_or("many")
        ));
        if let Some(expect) = operation.expect {
            text.push_str(&format!("@{expect}"));
        }
        if let Some(value) = &operation.value {
            for field in ["k", "tStart", "tEnd"] {
                if let Some(value) = value.get(field) {
                    text.push_str(&format!(" {field}={value}"));
                }
            }
        }
    }
    text
}

fn kv_answer_brief(answer: &Result<KvAnswer, String>) -> String {
    match answer {
        Ok(KvAnswer::Done(results)) => results
            .iter()
            .map(|result| format!("{:?}@{:?}", result.applied.or(result.found), result.version))
            .collect::<Vec<_>>()
            .join(" "),
        other => format!("{other:?}"),
    }
}
