//! The bytes that requests and answers in flight hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Overload;

/// A count of bytes with a limit.
///
/// A request is refused while the limit is reached; what was admitted may exceed it, since an
/// answer whose work is done must not be thrown away. Lanes bound by how much.
#[derive(Debug, Clone)]
pub struct Memory {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Held {
    held: Arc<AtomicUsize>,
    bytes: usize,
}

impl Memory {
    /// With nothing held.
    pub fn new(limit: usize) -> Self {
        Self {
            held: Arc::default(),
            limit,
        }
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether anything is left.
    ///
    /// # Errors
    ///
    /// [`Overload::Memory`].
    pub fn check(&self) -> Result<(), Overload> {
        if self.held() < self.limit {
            Ok(())
        } else {
            Err(Overload::Memory)
        }
    }

    /// Counts `bytes`, whatever is left.
    pub fn hold(&self, bytes: usize) -> Held {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Held {
            held: Arc::clone(&self.held),
            bytes,
        }
    }

    /// Counts `more` bytes with `held`, if they are left.
    ///
    /// # Errors
    ///
    /// [`Overload::Memory`]: nothing more is counted.
    pub fn extend(&self, held: &mut Held, more: usize) -> Result<(), Overload> {
        let add = |now: usize| {
            now.checked_add(more)
                .filter(|together| *together <= self.limit)
        };
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| Overload::Memory)?;
        held.bytes += more;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_counts_no_longer() {
        let memory = Memory::new(100);
        let mut body = memory.hold(0);
        assert_eq!(memory.extend(&mut body, 60), Ok(()));
        assert_eq!(memory.extend(&mut body, 41), Err(Overload::Memory));
        let answer = memory.hold(200);
        assert_eq!(memory.held(), 260);
        assert_eq!(memory.check(), Err(Overload::Memory));
        drop((body, answer));
        assert_eq!((memory.held(), memory.check()), (0, Ok(())));
    }
}
