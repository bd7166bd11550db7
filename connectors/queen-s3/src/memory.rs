//! The buffer budget across every queue that this process owns (`QUEEN_S3_MEMORY_MB`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that buffered records hold: response bodies and their indexes, from the moment
/// a body arrives until its last record is encoded or dropped.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
        })
    }

    /// The budget, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes held now; may pass the limit, because an answer's size is known only once it is here.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until the returned hold is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Hold {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Hold {
            budget: Arc::clone(self),
            bytes,
        }
    }
}

/// Bytes counted against a [`MemoryBudget`] for as long as this lives.
#[derive(Debug)]
pub struct Hold {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl Hold {
    /// Bytes counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_for_as_long_as_their_hold_lives() {
        let budget = MemoryBudget::new(100);
        let hold = budget.hold(60);
        let other = budget.hold(70);
        assert_eq!(budget.used(), 130);
        drop(hold);
        assert_eq!(budget.used(), other.bytes());
        drop(other);
        assert_eq!(budget.used(), 0);
    }
}
