//! The buffer budget across every queue that this process owns (`QUEEN_S3_MEMORY_MB`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::limits::{FETCH_CALL_LEAST_BYTES, SPARE_BUFFER_LEAST_BYTES};

/// Counts the bytes that buffered records hold: response bodies and their indexes, from the moment
/// a body arrives until its last record is encoded or dropped.
///
/// Buffers that were given back are lent again while anything is held: memory that comes fresh from
/// the system costs more to touch for the first time than to fill. They fit into the budget with
/// what is held, and are given up when nothing is.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
    /// Of that, what is kept free for bytes to come.
    reserved: AtomicUsize,
    spare: Mutex<Vec<Vec<u8>>>,
    freed: Notify,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            spare: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// The budget, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes held by records now.
    pub fn buffered(&self) -> usize {
        self.used().saturating_sub(self.reserved())
    }

    /// Bytes kept free for what is to come, and claimed for what is encoded.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Bytes held or reserved now; may pass the limit, because an answer's size is known only once it
    /// is here.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Waits until what was given back leaves room for a fetch call. One of those who wait is told; it
    /// offers what it does not take to the next one.
    pub async fn room(&self) {
        self.freed.notified().await;
    }

    /// Tells one of those who wait for room, if there is some.
    pub fn offer_room(&self) {
        if self.used() + FETCH_CALL_LEAST_BYTES <= self.limit {
            self.freed.notify_one();
        }
    }

    /// An empty buffer for `length` bytes, which is not counted by itself.
    pub fn buffer(&self, length: usize) -> Vec<u8> {
        if length < SPARE_BUFFER_LEAST_BYTES {
            return Vec::with_capacity(length);
        }
        let mut spare = self.spare();
        let fits = |buffer: &Vec<u8>| {
            let capacity = buffer.capacity();
            capacity >= length && capacity - length <= length / 8
        };
        if let Some(at) = spare.iter().position(fits) {
            return spare.swap_remove(at);
        }
        self.make_room(&mut spare, length);
        drop(spare);
        Vec::with_capacity(length)
    }

    /// `buffer` as shared bytes, whose memory is lent again after the last of them is dropped.
    pub fn share(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < SPARE_BUFFER_LEAST_BYTES {
            return Bytes::from(buffer);
        }
        let budget = Arc::clone(self);
        Bytes::from_owner(Lent { buffer, budget })
    }

    /// Gives buffers up that do not fit beside what is used and `length` more.
    fn make_room(&self, spare: &mut Vec<Vec<u8>>, length: usize) {
        while self.used() + capacities(spare) + length > self.limit && spare.pop().is_some() {}
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare();
        if self.used() > 0 && self.used() + capacities(&spare) + buffer.capacity() <= self.limit {
            spare.push(buffer);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `bytes` free for what is to come, if they and `more` are.
    pub fn reserve(self: &Arc<Self>, bytes: usize, more: usize) -> Option<Reservation> {
        let fits = |used: usize| {
            let taken = used.checked_add(bytes)?;
            (taken.checked_add(more)? <= self.limit).then_some(taken)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .ok()?;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let budget = Arc::clone(self);
        Some(Reservation(Hold { budget, bytes }))
    }

    /// Counts `bytes` that are in use whether they fit or not, and are no buffered records.
    pub fn claim(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let claimed = Reservation(self.hold(bytes));
        self.make_room(&mut self.spare(), 0);
        claimed
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

/// Room in a [`MemoryBudget`] for as long as this lives.
#[derive(Debug)]
pub struct Reservation(Hold);

impl Reservation {
    /// Room for `bytes`, out of this one as far as it goes, and claimed beyond.
    pub fn take(&mut self, bytes: usize) -> Self {
        let within = bytes.min(self.0.bytes);
        let mut taken = self.0.budget.claim(bytes - within);
        self.0.bytes -= within;
        taken.0.bytes += within;
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let bytes = self.0.bytes;
        self.0.budget.reserved.fetch_sub(bytes, Ordering::Relaxed);
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
        let before = self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.bytes > 0 {
            self.budget.offer_room();
        }
        if before == self.bytes {
            self.budget.spare().clear();
        }
    }
}

fn capacities(buffers: &[Vec<u8>]) -> usize {
    buffers.iter().map(Vec::capacity).sum()
}

/// A buffer that goes back to its budget.
struct Lent {
    buffer: Vec<u8>,
    budget: Arc<MemoryBudget>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.budget.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MIB;

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

    #[test]
    fn room_is_reserved_where_there_is_some_or_claimed_and_is_not_buffered() {
        let budget = MemoryBudget::new(100);
        let hold = budget.hold(30);
        assert!(budget.reserve(50, 21).is_none());
        let mut room = budget.reserve(50, 20).expect("it fits");
        assert_eq!((budget.used(), budget.buffered()), (80, 30));
        assert!(budget.reserve(21, 0).is_none());
        let part = room.take(40);
        assert_eq!(budget.used(), 80, "it is out of what was reserved");
        let last = room.take(25);
        assert_eq!((budget.used(), budget.buffered()), (95, 30), "15 more");
        drop(part);
        drop(room);
        assert_eq!((budget.used(), budget.buffered()), (55, 30));
        drop(last);
        assert_eq!((budget.used(), budget.buffered()), (30, 30));
        let claimed = budget.claim(200);
        assert_eq!((budget.used(), budget.buffered()), (230, 30));
        drop(claimed);
        assert_eq!((budget.used(), budget.buffered()), (30, 30));
        drop(hold);
        assert_eq!((budget.used(), budget.buffered()), (0, 0));
    }

    #[test]
    fn a_buffer_is_lent_again_while_anything_is_held() {
        let budget = MemoryBudget::new(16 * MIB);
        let hold = budget.hold(MIB);
        let mut buffer = budget.buffer(4 * MIB);
        buffer.push(1);
        let shared = budget.share(buffer);
        let part = shared.slice(..1);
        drop(shared);
        assert!(budget.spare().is_empty());
        drop(part);
        let spare = |budget: &MemoryBudget| capacities(&budget.spare());
        assert_eq!(spare(&budget), 4 * MIB);

        assert_eq!(
            budget.buffer(3 * MIB).capacity(),
            3 * MIB,
            "too much of it would be idle"
        );
        let again = budget.buffer(4 * MIB - 1);
        assert_eq!((again.len(), again.capacity()), (0, 4 * MIB));
        assert_eq!(spare(&budget), 0);
        drop(budget.share(again));
        assert_eq!(spare(&budget), 4 * MIB);
        drop(hold);
        assert_eq!(spare(&budget), 0);
    }

    #[test]
    fn spare_buffers_fit_into_the_budget_with_what_is_held() {
        let budget = MemoryBudget::new(16 * MIB);
        let _hold = budget.hold(8 * MIB);
        let buffers = [5, 2, 7, 6].map(|length| budget.buffer(length * MIB));
        for buffer in buffers {
            drop(budget.share(buffer));
            assert!(budget.used() + capacities(&budget.spare()) <= budget.limit());
        }
        assert_eq!(capacities(&budget.spare()), 7 * MIB);
        let claimed = budget.claim(2 * MIB);
        assert_eq!(capacities(&budget.spare()), 5 * MIB);
        drop(claimed);
        drop(budget.buffer(8 * MIB));
        assert_eq!(capacities(&budget.spare()), 0, "they make room for another");
        assert_eq!(budget.buffer(10).capacity(), 10, "small ones are not kept");
    }
}
