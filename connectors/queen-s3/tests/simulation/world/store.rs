//! The key/value store of the broker.

use std::collections::BTreeMap;

use queen_protocol::kv::{KvOpKind, KvOperation, KvReason, KvResult, KvRow};
use queen_s3::broker::KvAnswer;
use serde_json::Value;

#[derive(Clone, Debug)]
struct Row {
    value: Value,
    version: i64,
    expires: Option<i64>,
}

/// Rows by namespace and key; expired ones stay until somebody writes them.
#[derive(Clone, Debug, Default)]
pub struct Store {
    rows: BTreeMap<(String, String), Row>,
    version: i64,
}

impl Store {
    /// Removes a row, whatever it expects.
    pub fn remove(&mut self, key: &str) {
        self.rows.retain(|(_, found), _| found != key);
    }

    /// Brings the rows back that stood in `former`. No version comes again.
    pub fn restore(&mut self, former: &Self) {
        self.rows = former.rows.clone();
    }

    /// The live value of a key.
    pub fn value(&self, ns: &str, key: &str, now: i64) -> Option<&Value> {
        self.live(ns, key, now).map(|row| &row.value)
    }

    /// Carries out one batch at `now` (µs), all or nothing where a precondition is required.
    /// A request that the API refuses is the error's text.
    pub fn batch(&mut self, operations: &[KvOperation], now: i64) -> Result<KvAnswer, String> {
        for operation in operations {
            check(operation)?;
        }
        let version = self.version;
        let mut results = Vec::with_capacity(operations.len());
        let mut former = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let key = operation.key.as_ref().filter(|_| operation.op.is_write());
            if let Some(key) = key {
                let at = (operation.ns.clone(), key.clone());
                former.push((self.rows.get(&at).cloned(), at));
            }
            let mut result = self.operation(operation, now);
            result.index = index;
            if operation.required == Some(true) && result.applied == Some(false) {
                for (row, at) in former.into_iter().rev() {
                    match row {
                        Some(row) => self.rows.insert(at, row),
                        None => self.rows.remove(&at),
                    };
                }
                self.version = version;
                return Ok(KvAnswer::RolledBack(Some(index)));
            }
            results.push(result);
        }
        Ok(KvAnswer::Done(results))
    }

    fn live(&self, ns: &str, key: &str, now: i64) -> Option<&Row> {
        let row = self.rows.get(&(ns.to_owned(), key.to_owned()))?;
        row.expires
            .is_none_or(|expires| expires > now)
            .then_some(row)
    }

    fn operation(&mut self, operation: &KvOperation, now: i64) -> KvResult {
        let ns = &operation.ns;
        let key = operation.key.clone().unwrap_or_default();
        let mut result = KvResult {
            op: operation.op.as_str().to_owned(),
            key: Some(key.clone()),
            ..KvResult::default()
        };
        let row = self.live(ns, &key, now).cloned();
        match operation.op {
            KvOpKind::Get => {
                result.found = Some(row.is_some());
                result.version = row.as_ref().map(|row| row.version);
                result.value = row.map(|row| row.value);
            }
            KvOpKind::GetMany => {
                let keys = operation.keys.clone().unwrap_or_default();
                let (mut rows, mut missing) = (Vec::new(), Vec::new());
                for key in keys {
                    match self.live(ns, &key, now) {
                        Some(row) => rows.push(shown(&key, row)),
                        None => missing.push(key),
                    }
                }
                (result.rows, result.missing) = (Some(rows), Some(missing));
                result.truncated = Some(false);
            }
            KvOpKind::GetPrefix => {
                let prefix = operation.prefix.clone().unwrap_or_default();
                let keys = self
                    .rows
                    .keys()
                    .filter(|(space, key)| space == ns && key.starts_with(&prefix));
                let live = keys.filter_map(|(_, key)| Some((key, self.live(ns, key, now)?)));
                result.rows = Some(live.map(|(key, row)| shown(key, row)).collect());
                result.truncated = Some(false);
            }
            KvOpKind::Check | KvOpKind::Put | KvOpKind::PutIfAbsent | KvOpKind::Delete => {
                let absent = operation.op == KvOpKind::PutIfAbsent;
                if absent {
                    result.op = "put".to_owned();
                }
                let expect = if absent { Some(0) } else { operation.expect };
                let lost = match (expect, &row) {
                    (None, _) | (Some(0), None) => None,
                    (Some(0), Some(_)) => Some(KvReason::Exists),
                    (Some(_), None) => Some(KvReason::Absent),
                    (Some(expect), Some(row)) => {
                        (row.version != expect).then_some(KvReason::Version)
                    }
                };
                if let Some(reason) = lost {
                    result.applied = Some(false);
                    result.reason = Some(reason);
                    result.version = row.as_ref().map(|row| row.version);
                    result.value = row.map(|row| row.value);
                } else {
                    result.applied = Some(true);
                    self.write(operation, key, now, &mut result);
                }
            }
            KvOpKind::Incr => result.applied = Some(false),
        }
        result
    }

    fn write(&mut self, operation: &KvOperation, key: String, now: i64, result: &mut KvResult) {
        let at = (operation.ns.clone(), key);
        match operation.op {
            KvOpKind::Delete => {
                self.rows.remove(&at);
            }
            KvOpKind::Check => result.version = self.rows.get(&at).map(|row| row.version),
            _ => {
                self.version += 1;
                let value = operation.value.clone().unwrap_or_default();
                let expires = operation.ttl_seconds.map(|ttl| now + ttl * 1_000_000);
                result.version = Some(self.version);
                result.value = Some(value.clone());
                self.rows.insert(
                    at,
                    Row {
                        value,
                        version: self.version,
                        expires,
                    },
                );
            }
        }
    }
}

fn shown(key: &str, row: &Row) -> KvRow {
    KvRow {
        key: key.to_owned(),
        value: Some(row.value.clone()),
        version: row.version,
        expires_at: None,
        updated_at: None,
    }
}

fn check(operation: &KvOperation) -> Result<(), String> {
    let named = operation.key.is_some() || operation.keys.is_some() || operation.prefix.is_some();
    if !named {
        return Err("an operation names no key".to_owned());
    }
    if matches!(operation.op, KvOpKind::Put | KvOpKind::PutIfAbsent) {
        let ttl = operation.ttl_seconds.is_some_and(|ttl| ttl > 0);
        if ttl == (operation.forever == Some(true)) {
            return Err("a write states its expiry not exactly once".to_owned());
        }
        if operation.value.is_none() {
            return Err("a write has no value".to_owned());
        }
    }
    if operation.op == KvOpKind::PutIfAbsent && operation.expect.is_some_and(|expect| expect != 0) {
        return Err("putIfAbsent expects a version".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use queen_protocol::kv::Expiry;

    use super::*;

    fn put(key: &str, expiry: Expiry) -> KvOperation {
        KvOperation::put("n", key, Value::Null, expiry).expect("an expiry of the wire")
    }

    fn versions(answer: Result<KvAnswer, String>) -> Vec<Option<i64>> {
        match answer {
            Ok(KvAnswer::Done(results)) => results.iter().map(|result| result.version).collect(),
            other => panic!("not carried out: {other:?}"),
        }
    }

    #[test]
    fn a_lost_required_precondition_rolls_the_whole_batch_back() {
        let mut store = Store::default();
        let first = store.batch(&[put("a", Expiry::Forever)], 0);
        assert_eq!(versions(first), [Some(1)]);
        let lost = [
            put("b", Expiry::Forever),
            put("a", Expiry::Forever).expect(9).required(),
        ];
        assert!(matches!(
            store.batch(&lost, 0),
            Ok(KvAnswer::RolledBack(Some(1)))
        ));
        assert!(store.value("n", "b", 0).is_none());
    }

    #[test]
    fn expecting_nothing_wins_over_an_expired_row_and_no_version_comes_again() {
        let mut store = Store::default();
        versions(store.batch(&[put("a", Expiry::seconds(1))], 0));
        assert!(store.value("n", "a", 999_999).is_some());
        assert!(store.value("n", "a", 1_000_000).is_none());
        let again = [put("a", Expiry::seconds(1)).expect(0).required()];
        assert_eq!(versions(store.batch(&again, 1_000_000)), [Some(2)]);
    }

    #[test]
    fn a_write_without_an_expiry_is_refused() {
        let bare = KvOperation {
            forever: None,
            ..put("a", Expiry::Forever)
        };
        assert!(Store::default().batch(&[bare], 0).is_err());
    }
}
