//! A key/value store in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use queen_protocol::kv::{KvOpKind, KvOperation, KvResult};
use serde_json::{Value, json};

use queen_s3::broker::{
    Broker, BrokerError, BrokerErrorKind, Changed, ChangedRequest, FetchAnswer, FetchRequest,
    KvAnswer,
};

use crate::bucket::locked;

/// The key/value store of a broker that can nothing else. Nothing expires.
#[derive(Default)]
pub struct MemoryQueen {
    rows: Mutex<BTreeMap<String, (Value, i64)>>,
    versions: Mutex<i64>,
    batches: Mutex<u32>,
    /// Written when this many batches have come, by somebody else.
    meanwhile: Mutex<Option<(u32, String, Value)>>,
}

impl MemoryQueen {
    pub fn set(&self, key: &str, value: Value) {
        let version = self.next_version();
        locked(&self.rows).insert(key.to_owned(), (value, version));
    }

    pub fn value(&self, key: &str) -> Option<Value> {
        locked(&self.rows).get(key).map(|(value, _)| value.clone())
    }

    /// Somebody else writes `key` just before batch number `batch`, from 1.
    pub fn set_before(&self, batch: u32, key: &str, value: Value) {
        *locked(&self.meanwhile) = Some((batch, key.to_owned(), value));
    }

    fn next_version(&self) -> i64 {
        let mut versions = locked(&self.versions);
        *versions += 1;
        *versions
    }

    fn apply(&self, rows: &mut BTreeMap<String, (Value, i64)>, operation: &KvOperation) -> Value {
        let key = operation.key.clone().unwrap_or_default();
        let current = rows.get(&key).cloned();
        let version = current.as_ref().map_or(0, |(_, version)| *version);
        let expected = match operation.op {
            KvOpKind::PutIfAbsent => Some(0),
            _ => operation.expect,
        };
        let met = expected.is_none_or(|expected| expected == version);
        match operation.op {
            KvOpKind::Put | KvOpKind::PutIfAbsent if met => {
                let version = self.next_version();
                let value = operation.value.clone().unwrap_or_default();
                rows.insert(key.clone(), (value, version));
                json!({"op": "put", "key": key, "applied": true, "version": version})
            }
            KvOpKind::Delete if met => {
                let applied = rows.remove(&key).is_some();
                json!({"op": "delete", "key": key, "applied": applied})
            }
            KvOpKind::Put | KvOpKind::PutIfAbsent | KvOpKind::Delete => {
                json!({"op": operation.op, "key": key, "applied": false, "reason": "version"})
            }
            KvOpKind::Get => match current {
                Some((value, version)) => {
                    json!({"op": "get", "key": key, "found": true, "value": value, "version": version})
                }
                None => json!({"op": "get", "key": key, "found": false}),
            },
            other => panic!("the sink does not use {other:?}"),
        }
    }
}

#[async_trait]
impl Broker for MemoryQueen {
    async fn kv(&self, operations: &[KvOperation]) -> Result<KvAnswer, BrokerError> {
        *locked(&self.batches) += 1;
        let batch = *locked(&self.batches);
        let foreign = locked(&self.meanwhile).take_if(|(at, ..)| *at == batch);
        if let Some((_, key, value)) = foreign {
            self.set(&key, value);
        }
        let mut rows = locked(&self.rows);
        let before = rows.clone();
        let mut results: Vec<KvResult> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            let result = self.apply(&mut rows, operation);
            let result: KvResult = serde_json::from_value(result).expect("a result");
            if operation.required == Some(true) && result.applied == Some(false) {
                *rows = before;
                return Ok(KvAnswer::RolledBack(Some(at)));
            }
            results.push(result);
        }
        Ok(KvAnswer::Done(results))
    }

    async fn fetch(&self, _: &FetchRequest) -> Result<FetchAnswer, BrokerError> {
        Err(unasked())
    }

    async fn changed(&self, _: Option<&ChangedRequest>) -> Result<Changed, BrokerError> {
        Err(unasked())
    }

    async fn queues(&self) -> Result<Vec<String>, BrokerError> {
        Err(unasked())
    }
}

fn unasked() -> BrokerError {
    BrokerError {
        operation: "anything but key/value batches",
        url: String::new(),
        kind: BrokerErrorKind::Transport("not asked of this store".to_owned()),
    }
}
