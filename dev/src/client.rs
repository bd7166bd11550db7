//! A client of the broker's HTTP API for pushing events and reading whole logs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use queen_protocol::partitions::{ChangedEntry, ChangedRequest, ChangedResponse};
use queen_protocol::{
    ConfigureRequest, FetchEntry, FetchRequest, KvOperation, KvRequest, PushResult, PushStatus,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::check::Ledger;
use crate::limits::{CALL_LIMIT, DISCOVERY_PAGE, FETCH_PARTITIONS, PUSH_BATCH, PUSH_CONCURRENCY};

/// One message to push. The payload is JSON text and goes out byte for byte.
#[derive(Debug, Clone)]
pub struct Event {
    /// The queue.
    pub queue: String,
    /// The partition in it.
    pub partition: String,
    /// The client's transaction id.
    pub transaction_id: String,
    /// The message body, valid JSON.
    pub payload: Arc<str>,
}

/// Where the broker put an event.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// The event.
    pub event: Event,
    /// Its absolute offset in its partition.
    pub offset: i64,
}

/// A client of one broker.
#[derive(Debug, Clone)]
pub struct BrokerClient {
    url: String,
    http: reqwest::Client,
}

#[derive(Serialize)]
struct PushBody<'a> {
    items: Vec<PushItem<'a>>,
}

/// `queen_protocol::PushItem` with a borrowed payload: its parsed value would not keep the bytes.
#[derive(Serialize)]
struct PushItem<'a> {
    queue: &'a str,
    partition: &'a str,
    #[serde(rename = "transactionId")]
    transaction_id: &'a str,
    payload: &'a RawValue,
}

/// `queen_protocol::FetchResponse` with payloads as they came.
#[derive(Deserialize)]
struct RawFetch {
    entries: Vec<RawEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    partition: String,
    records: Vec<RawRecord>,
    high_watermark: i64,
    log_start_offset: i64,
    error: Option<String>,
}

#[derive(Deserialize)]
struct RawRecord {
    offset: i64,
    payload: Box<RawValue>,
}

impl BrokerClient {
    /// A client of the broker at `url`.
    pub fn new(url: &str) -> Result<Self> {
        Self::impatient(url, CALL_LIMIT)
    }

    /// A client of the broker at `url` that gives a call up after `limit`.
    pub fn impatient(url: &str, limit: Duration) -> Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(limit)
            .no_proxy()
            .build()?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            http,
        })
    }

    /// Whether `GET /health` answers with success.
    pub async fn is_healthy(&self) -> bool {
        let call = self
            .http
            .get(format!("{}/health", self.url))
            .timeout(Duration::from_secs(2));
        call.send()
            .await
            .is_ok_and(|answer| answer.status().is_success())
    }

    /// The broker's metrics, as text.
    pub async fn metrics(&self) -> Result<String> {
        let answer = self
            .http
            .get(format!("{}/metrics", self.url))
            .send()
            .await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// Makes `queue`, or leaves it as it is.
    pub async fn configure(&self, queue: &str) -> Result<()> {
        let request = ConfigureRequest::new(queue);
        let _: serde_json::Value = self.post("/api/v1/configure", &request).await?;
        Ok(())
    }

    /// Pushes `events` in order, in one call, and gives their offsets.
    ///
    /// # Errors
    ///
    /// When the broker refuses the call or does not hold every event afterwards.
    pub async fn push(&self, events: Vec<Event>) -> Result<Vec<Pushed>> {
        let mut items = Vec::with_capacity(events.len());
        for event in &events {
            items.push(PushItem {
                queue: &event.queue,
                partition: &event.partition,
                transaction_id: &event.transaction_id,
                payload: serde_json::from_str(&event.payload).context("a payload is not JSON")?,
            });
        }
        let results: Vec<PushResult> = self.post("/api/v1/push", &PushBody { items }).await?;
        ensure!(
            results.len() == events.len(),
            "{} answers to {}",
            results.len(),
            events.len()
        );
        let place = |(event, result): (Event, PushResult)| match (result.status, result.offset) {
            // A duplicate is a retry whose first answer was lost: the event is at that offset.
            (PushStatus::Queued | PushStatus::Duplicate, Some(offset)) => {
                Ok(Pushed { event, offset })
            }
            (status, offset) => bail!(
                "{}/{} {} was answered {status:?}, offset {offset:?}",
                event.queue,
                event.partition,
                event.transaction_id
            ),
        };
        events.into_iter().zip(results).map(place).collect()
    }

    /// Pushes any number of events in several calls at once. A partition belongs to one sequence
    /// of calls, so its events keep their order. `on_pushed` hears how many each call added.
    pub async fn push_all(
        &self,
        events: impl IntoIterator<Item = Event>,
        on_pushed: impl Fn(usize),
    ) -> Result<Vec<Pushed>> {
        let mut groups: Vec<Vec<Event>> = vec![Vec::new(); PUSH_CONCURRENCY];
        for event in events {
            let mut hasher = DefaultHasher::new();
            event.partition.hash(&mut hasher);
            // The rest of a division by a small number fits.
            let group = (hasher.finish() % PUSH_CONCURRENCY as u64) as usize;
            groups[group].push(event);
        }
        let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for group in groups {
            let (client, report) = (self.clone(), report.clone());
            tasks.spawn(async move {
                let mut pushed = Vec::with_capacity(group.len());
                for batch in group.chunks(PUSH_BATCH) {
                    pushed.extend(client.push(batch.to_vec()).await?);
                    // Nobody listening means that another group has failed; that error counts.
                    let _ = report.send(batch.len());
                }
                anyhow::Ok(pushed)
            });
        }
        drop(report);
        while let Some(count) = reports.recv().await {
            on_pushed(count);
        }
        let mut all = Vec::new();
        while let Some(pushed) = tasks.join_next().await {
            all.extend(pushed??);
        }
        Ok(all)
    }

    /// Reads the whole log of `queue`, from each partition's log start to its watermark.
    pub async fn read_log(&self, queue: &str) -> Result<Ledger> {
        let names = self.partitions(queue).await?;
        let mut ledger = Ledger::default();
        for group in names.chunks(FETCH_PARTITIONS) {
            let mut open: BTreeMap<String, i64> = group.iter().cloned().map(|n| (n, 0)).collect();
            while !open.is_empty() {
                self.read_some(queue, &mut open, &mut ledger).await?;
            }
        }
        Ok(ledger)
    }

    /// The names of every partition of `queue`.
    pub async fn partitions(&self, queue: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut after = None;
        loop {
            let mut entry = ChangedEntry::new(queue).limit(DISCOVERY_PAGE);
            entry.after = after;
            let answer = self.changed(ChangedRequest::new(vec![entry])).await?;
            let page = answer
                .entries
                .into_iter()
                .next()
                .context("no entry in the answer")?;
            if let Some(error) = page.error {
                bail!("partitions of {queue}: {error}");
            }
            names.extend(page.partitions.into_iter().map(|partition| partition.name));
            after = page.next;
            if after.is_none() {
                names.sort_unstable();
                names.dedup();
                return Ok(names);
            }
        }
    }

    /// One `POST /api/v1/partitions/changed`.
    pub async fn changed(&self, request: ChangedRequest) -> Result<ChangedResponse> {
        self.post("/api/v1/partitions/changed", &request).await
    }

    /// The value of a key, `None` when it is not there.
    pub async fn kv_get(&self, ns: &str, key: &str) -> Result<Option<serde_json::Value>> {
        let request = KvRequest::new(vec![KvOperation::get(ns, key)]);
        let answer: serde_json::Value = self.post("/api/v1/kv", &request).await?;
        let result = &answer["results"][0];
        Ok((result["found"] == true).then(|| result["value"].clone()))
    }

    /// Deletes a key/value document, whoever wrote it.
    pub async fn kv_delete(&self, ns: &str, key: &str) -> Result<()> {
        let request = KvRequest::new(vec![KvOperation::delete(ns, key)]);
        let answer: serde_json::Value = self.post("/api/v1/kv", &request).await?;
        let applied = answer["results"][0]["applied"] == true;
        ensure!(applied, "{key} was not deleted: {answer}");
        Ok(())
    }

    /// One fetch over the open partitions; those read to their watermark are closed.
    async fn read_some(
        &self,
        queue: &str,
        open: &mut BTreeMap<String, i64>,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let entries = open
            .iter()
            .map(|(name, offset)| FetchEntry::new(queue, *offset).partition(name.clone()))
            .collect();
        let answer: RawFetch = self
            .post("/api/v1/fetch", &FetchRequest::new(entries))
            .await?;
        for entry in answer.entries {
            let next = match (entry.error.as_deref(), entry.records.last()) {
                (Some("OFFSET_OUT_OF_RANGE"), _) => entry.log_start_offset,
                (Some(error), _) => bail!("fetch {queue}/{}: {error}", entry.partition),
                (None, Some(last)) => last.offset + 1,
                (None, None) => open.get(&entry.partition).copied().unwrap_or_default(),
            };
            for record in entry.records {
                let payload = Arc::from(record.payload.get());
                ledger.insert(&entry.partition, record.offset, payload)?;
            }
            if next >= entry.high_watermark {
                open.remove(&entry.partition);
            } else {
                open.insert(entry.partition, next);
            }
        }
        Ok(())
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let call = self.http.post(format!("{}{path}", self.url)).json(body);
        let answer = call.send().await.with_context(|| format!("POST {path}"))?;
        let status = answer.status();
        let bytes = answer
            .bytes()
            .await
            .with_context(|| format!("read the answer to {path}"))?;
        ensure!(
            status.is_success(),
            "POST {path} was answered {status}: {}",
            String::from_utf8_lossy(&bytes)
        );
        serde_json::from_slice(&bytes).with_context(|| {
            format!(
                "decode the answer to POST {path}: {}",
                String::from_utf8_lossy(&bytes)
            )
        })
    }
}
