//! Applies a batch: all of it in one transaction, each operation seeing those before it.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::error::ApiError;
use crate::kv::operation::{Action, Expiry, Operation};
use crate::kv::store::{self, Name, PageQuery, PageRow, Row};
use crate::session::{Session, Transaction};
use crate::timestamp::Timestamp;

/// Why a write did not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// Must not exist, and does.
    Exists,
    /// Must exist, and does not.
    Absent,
    /// Has another version.
    Version,
    /// The sum would leave its bounds.
    Limit,
    /// Not an integer.
    Type,
}

/// What one operation came to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpResult {
    index: usize,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<ResultRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResultRow {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
    version: i64,
    expires_at: Option<Timestamp>,
    updated_at: Timestamp,
}

/// What a batch came to.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// Every operation ran; some may not have applied.
    Applied {
        /// One per operation, in order.
        results: Vec<OpResult>,
    },
    /// A required precondition was lost, and nothing was written.
    #[serde(rename_all = "camelCase")]
    RolledBack {
        /// Always false.
        ok: bool,
        /// Always `kv_precondition`.
        reason: &'static str,
        /// Which operation lost.
        failed_index: usize,
        /// Why it lost.
        #[serde(skip_serializing_if = "Option::is_none")]
        kv_reason: Option<Reason>,
        /// The version that won.
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<i64>,
        /// The value that won.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<RawValue>>,
    },
}

impl Outcome {
    /// The outcome of a batch of one operation: its result alone, or the roll-back.
    pub fn single(mut self) -> Result<OpResult, Self> {
        match &mut self {
            Self::Applied { results } => match results.pop() {
                Some(result) => Ok(result),
                None => Err(self),
            },
            Self::RolledBack { .. } => Err(self),
        }
    }

    fn rolled_back(lost: OpResult) -> Self {
        Self::RolledBack {
            ok: false,
            reason: "kv_precondition",
            failed_index: lost.index,
            kv_reason: lost.reason,
            version: lost.version,
            value: lost.value,
        }
    }
}

/// Applies `operations` for `tenant`.
///
/// # Errors
///
/// `503` or `500` from the database: nothing is written, unless the connection was lost after the
/// commit was sent.
pub async fn apply(
    client: &mut Session,
    tenant: Uuid,
    operations: &[Operation],
) -> Result<Outcome, ApiError> {
    if operations.is_empty() {
        return Ok(Outcome::Applied {
            results: Vec::new(),
        });
    }
    let writes = operations.iter().any(|operation| operation.action.writes());
    // What follows the locks must see what their former holders committed; reads must see one state.
    let modes = if writes {
        "ISOLATION LEVEL READ COMMITTED, READ WRITE"
    } else {
        "ISOLATION LEVEL REPEATABLE READ, READ ONLY"
    };
    let tx = client.transaction(modes).await?;
    let outcome = run(&tx, tenant, operations, writes).await;
    if matches!(outcome, Ok(Outcome::Applied { .. })) {
        tx.commit().await?;
    } else {
        // Nothing is written, whatever becomes of this.
        let _ = tx.rollback().await;
    }
    outcome
}

async fn run(
    tx: &Transaction<'_>,
    tenant: Uuid,
    operations: &[Operation],
    writes: bool,
) -> Result<Outcome, ApiError> {
    let mut names: Vec<Name> = operations
        .iter()
        .flat_map(|operation| {
            operation
                .action
                .keys()
                .iter()
                .map(|key| (operation.ns.clone(), key.clone()))
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    if writes {
        store::lock(tx, tenant, &names).await?;
    }
    let versions = operations
        .iter()
        .filter(|operation| operation.action.takes_version())
        .count();
    let (now, versions) = store::clock_and_versions(tx, versions).await?;
    let loaded = if names.is_empty() {
        Vec::new()
    } else {
        store::load(tx, tenant, &names).await?
    };
    let mut batch = Batch {
        tx,
        tenant,
        now,
        versions: versions.into_iter(),
        live: loaded
            .into_iter()
            .filter(|(_, row)| row.expires_at.is_none_or(|end| end > now))
            .collect(),
        dirty: HashMap::new(),
    };
    let mut results = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        let mut result = batch.run(operation).await?;
        result.index = index;
        result.op = operation.action.name();
        if operation.required && result.applied == Some(false) {
            return Ok(Outcome::rolled_back(result));
        }
        results.push(result);
    }
    batch.flush().await?;
    Ok(Outcome::Applied { results })
}

struct Batch<'a> {
    tx: &'a Transaction<'a>,
    tenant: Uuid,
    now: Timestamp,
    versions: std::vec::IntoIter<i64>,
    /// The named keys that exist, as the operations so far leave them.
    live: HashMap<Name, Row>,
    /// Keys that differ from the database. The flag says whether the key exists.
    dirty: HashMap<Name, bool>,
}

impl Batch<'_> {
    async fn run(&mut self, operation: &Operation) -> Result<OpResult, ApiError> {
        let name = |key: &String| (operation.ns.clone(), key.clone());
        Ok(match &operation.action {
            Action::Get { key } => match self.live.get(&name(key)) {
                None => OpResult {
                    found: Some(false),
                    key: Some(key.clone()),
                    ..OpResult::default()
                },
                Some(row) => OpResult {
                    found: Some(true),
                    key: Some(key.clone()),
                    value: Some(raw(&row.value)?),
                    version: Some(row.version),
                    expires_at: row.expires_at,
                    updated_at: Some(row.updated_at),
                    ..OpResult::default()
                },
            },
            Action::GetMany { keys } => {
                let mut rows = Vec::with_capacity(keys.len());
                let mut missing = Vec::new();
                for key in keys {
                    match self.live.get(&name(key)) {
                        None => missing.push(key.clone()),
                        Some(row) => rows.push(ResultRow {
                            key: key.clone(),
                            value: Some(raw(&row.value)?),
                            version: row.version,
                            expires_at: row.expires_at,
                            updated_at: row.updated_at,
                        }),
                    }
                }
                OpResult {
                    rows: Some(rows),
                    missing: Some(missing),
                    truncated: Some(false),
                    ..OpResult::default()
                }
            }
            Action::GetPrefix {
                prefix,
                after,
                limit,
                keys_only,
            } => {
                // A page is read from the table, so what this batch wrote must be there.
                self.flush().await?;
                let query = PageQuery {
                    ns: &operation.ns,
                    prefix,
                    after: after.as_deref().unwrap_or(""),
                    limit: *limit,
                    keys_only: *keys_only,
                };
                let (page, more) = store::page(self.tx, self.tenant, self.now, query).await?;
                let next_after = if more {
                    page.last().map(|row| row.key.clone())
                } else {
                    None
                };
                let rows: Result<Vec<_>, ApiError> = page.into_iter().map(page_row).collect();
                OpResult {
                    rows: Some(rows?),
                    truncated: Some(more),
                    next_after,
                    ..OpResult::default()
                }
            }
            Action::Put {
                key,
                value,
                expect,
                expiry,
            } => {
                let name = name(key);
                match self.lost(&name, *expect) {
                    Some(reason) => self.not_applied(&name, reason)?,
                    None => {
                        let expires_at = self.expires_at(*expiry);
                        self.put(name, value.clone(), expires_at)?
                    }
                }
            }
            Action::Delete { key, expect } => {
                let name = name(key);
                let lost = match (self.lost(&name, *expect), self.live.contains_key(&name)) {
                    (Some(reason), _) => Some(reason),
                    (None, false) if *expect != Some(0) => Some(Reason::Absent),
                    (None, _) => None,
                };
                match lost {
                    Some(reason) => self.not_applied(&name, reason)?,
                    None => {
                        if self.live.remove(&name).is_some() {
                            self.dirty.insert(name, false);
                        }
                        OpResult {
                            applied: Some(true),
                            key: Some(key.clone()),
                            ..OpResult::default()
                        }
                    }
                }
            }
            Action::Check { key, expect } => {
                let name = name(key);
                match self.lost(&name, Some(*expect)) {
                    Some(reason) => self.not_applied(&name, reason)?,
                    None => OpResult {
                        applied: Some(true),
                        key: Some(key.clone()),
                        version: Some(*expect),
                        ..OpResult::default()
                    },
                }
            }
            Action::Incr {
                key,
                delta,
                min,
                max,
                expiry,
            } => self.incr(name(key), *delta, *min, *max, *expiry)?,
        })
    }

    fn incr(
        &mut self,
        name: Name,
        delta: i64,
        min: Option<i64>,
        max: Option<i64>,
        expiry: Expiry,
    ) -> Result<OpResult, ApiError> {
        let (current, expires_at) = match self.live.get(&name) {
            // A live counter keeps its end, or a window under load would never close.
            Some(row) => (row.value.parse::<i128>().ok(), row.expires_at),
            None => (Some(0), self.expires_at(expiry)),
        };
        let Some(current) = current else {
            return self.not_applied(&name, Reason::Type);
        };
        let sum = current.checked_add(i128::from(delta)).filter(|sum| {
            min.is_none_or(|min| *sum >= i128::from(min))
                && max.is_none_or(|max| *sum <= i128::from(max))
        });
        let Some(sum) = sum else {
            let mut lost = self.not_applied(&name, Reason::Limit)?;
            if lost.value.is_none() {
                lost.value = Some(raw("0")?);
            }
            return Ok(lost);
        };
        let value = sum.to_string();
        let mut result = self.put(name, value.clone(), expires_at)?;
        result.value = Some(raw(&value)?);
        Ok(result)
    }

    /// Why a precondition does not hold.
    fn lost(&self, name: &Name, expect: Option<i64>) -> Option<Reason> {
        match (expect, self.live.get(name)) {
            (None, _) | (Some(0), None) => None,
            (Some(0), Some(_)) => Some(Reason::Exists),
            (Some(_), None) => Some(Reason::Absent),
            (Some(version), Some(row)) => (row.version != version).then_some(Reason::Version),
        }
    }

    fn not_applied(&self, name: &Name, reason: Reason) -> Result<OpResult, ApiError> {
        let winner = self.live.get(name);
        Ok(OpResult {
            applied: Some(false),
            reason: Some(reason),
            key: Some(name.1.clone()),
            value: winner.map(|row| raw(&row.value)).transpose()?,
            version: winner.map(|row| row.version),
            ..OpResult::default()
        })
    }

    fn put(
        &mut self,
        name: Name,
        value: String,
        expires_at: Option<Timestamp>,
    ) -> Result<OpResult, ApiError> {
        let Some(version) = self.versions.next() else {
            unreachable!("a version was taken for every operation that writes a value");
        };
        let row = Row {
            value,
            version,
            expires_at,
            updated_at: self.now,
        };
        let result = OpResult {
            applied: Some(true),
            key: Some(name.1.clone()),
            version: Some(version),
            expires_at,
            updated_at: Some(self.now),
            ..OpResult::default()
        };
        self.dirty.insert(name.clone(), true);
        self.live.insert(name, row);
        Ok(result)
    }

    fn expires_at(&self, expiry: Expiry) -> Option<Timestamp> {
        match expiry {
            Expiry::Forever => None,
            Expiry::Seconds(seconds) => Some(self.now.plus_seconds(seconds)),
        }
    }

    async fn flush(&mut self) -> Result<(), ApiError> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut puts = Vec::new();
        let mut deletes = Vec::new();
        for (name, exists) in &dirty {
            match self.live.get(name) {
                Some(row) if *exists => puts.push((name, row)),
                _ => deletes.push(name),
            }
        }
        store::write(self.tx, self.tenant, &puts, &deletes).await
    }
}

fn page_row(row: PageRow) -> Result<ResultRow, ApiError> {
    Ok(ResultRow {
        value: row.value.as_deref().map(raw).transpose()?,
        key: row.key,
        version: row.version,
        expires_at: row.expires_at,
        updated_at: row.updated_at,
    })
}

fn raw(value: &str) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(value.to_owned())
        .map_err(|error| ApiError::Internal(format!("a stored value is not JSON: {error}")))
}
