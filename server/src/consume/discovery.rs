//! Which queues a pop by namespace or task looks at: a page of them at a time, and the next pop goes on
//! where the last one was, so that each gets its turn however many have something.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::admission::Slot;
use crate::broker::Broker;
use crate::error::ApiError;
use crate::limits::{DISCOVERIES_REMEMBERED, DISCOVERY_SWEEP_QUEUES, POP_QUEUES};

/// Tenant, namespace and task.
type Key = (Uuid, Option<String>, Option<String>);

/// Where the pops of this process are, each by the last queue that was looked at.
#[derive(Debug, Default)]
pub struct Positions(Mutex<HashMap<Key, String>>);

impl Positions {
    fn get(&self, key: &Key) -> String {
        let positions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        positions.get(key).cloned().unwrap_or_default()
    }

    fn set(&self, key: &Key, last: &str) {
        let mut positions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgetting lets the next pops begin with the first queue.
        if positions.len() >= DISCOVERIES_REMEMBERED && !positions.contains_key(key) {
            positions.clear();
        }
        positions.insert(key.clone(), last.to_owned());
    }
}

/// One way through the queues, until all of them or as many as one pop may look at were seen.
#[derive(Debug)]
pub struct Sweep {
    key: Key,
    first: Option<String>,
    last: Option<String>,
    seen: i64,
    ended: bool,
}

impl Sweep {
    /// Through the queues of `tenant` with this namespace and task, where they are given.
    pub fn new(tenant: Uuid, namespace: Option<String>, task: Option<String>) -> Self {
        Self {
            key: (tenant, namespace, task),
            first: None,
            last: None,
            seen: 0,
            ended: false,
        }
    }

    /// Whether there is no further page in this sweep.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Begins anew where it is.
    pub fn restart(&mut self) {
        self.first = None;
        self.seen = 0;
        self.ended = false;
    }

    /// The next page.
    ///
    /// # Errors
    ///
    /// `503` or `500` from the database.
    pub async fn page(&mut self, broker: &Broker, slot: &Slot) -> Result<Vec<String>, ApiError> {
        const PAGE: &str = "
            SELECT b.name FROM (
                (SELECT q.name, 0 AS lap FROM queen.queues q
                 WHERE q.tenant = $1 AND q.name > $4
                   AND ($2::text IS NULL OR queen.effective(q.options) ->> 'namespace' = $2)
                   AND ($3::text IS NULL OR queen.effective(q.options) ->> 'task' = $3)
                 ORDER BY q.name LIMIT $5)
                UNION ALL
                (SELECT q.name, 1 AS lap FROM queen.queues q
                 WHERE q.tenant = $1 AND q.name <= $4
                   AND ($2::text IS NULL OR queen.effective(q.options) ->> 'namespace' = $2)
                   AND ($3::text IS NULL OR queen.effective(q.options) ->> 'task' = $3)
                 ORDER BY q.name LIMIT $5)
            ) b ORDER BY b.lap, b.name LIMIT $5";
        let (tenant, namespace, task) = &self.key;
        let after = match &self.last {
            Some(last) => last.clone(),
            None => broker.discoveries.get(&self.key),
        };
        let client = broker.database.client(slot.clone()).await?;
        let statement = client.prepare_cached(PAGE).await?;
        // One more than a page tells whether there are others.
        let limit = POP_QUEUES + 1;
        let rows = client
            .query(&statement, &[tenant, namespace, task, &after, &limit])
            .await?;
        drop(client);
        let mut names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        if (names.len() as i64) < limit {
            self.ended = true;
            return Ok(names);
        }
        names.pop();
        if let Some(first) = &self.first
            && let Some(at) = names.iter().position(|name| name == first)
        {
            self.ended = true;
            names.truncate(at);
        }
        self.seen += names.len() as i64;
        self.ended |= self.seen >= DISCOVERY_SWEEP_QUEUES;
        if self.first.is_none() {
            self.first = names.first().cloned();
        }
        if let Some(last) = names.last() {
            broker.discoveries.set(&self.key, last);
            self.last = Some(last.clone());
        }
        Ok(names)
    }
}
