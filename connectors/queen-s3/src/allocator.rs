//! What the C library's allocator is told of how this process uses memory: buffers of megabytes that
//! come and go, beside small things that stay.

use std::sync::Arc;

use tokio::task;
use tokio::time::interval;
use tracing::debug;

use crate::encode::compressors;
use crate::limits::{IDLE_MEMORY_EVERY, IDLE_MEMORY_LEAST_BYTES, LITTLE_MEMORY_BYTES};
use crate::memory::MemoryBudget;

/// Allocations from this many bytes on are given back to the system when they are freed. Left alone,
/// the library raises the bound to the largest one freed, and what is freed of parts and answers then
/// stays, in a heap of each thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const RETURNED_BYTES: libc::c_int = 4 << 20;
/// The same where little memory is to be taken.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LITTLE_RETURNED_BYTES: libc::c_int = 256 << 10;
/// Bytes that are free at the end of a heap and stay there, where it is not. Left alone, the library keeps
/// next to nothing, and what encoding frees and takes again, thousands of times, comes fresh from the
/// system each time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: libc::c_int = 16 << 20;
/// Heaps between which threads share out: with little memory, and otherwise. Each keeps what its buffers
/// left behind.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: (libc::c_int, libc::c_int) = (2, 4);

/// Sets the allocator up for a memory budget of so many bytes: with a small one it takes little memory
/// rather than little time. To be called before there are threads.
pub fn set_up(budget_bytes: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "the library has no safe way to set parameters")]
    // SAFETY: `mallopt` takes two numbers and sets parameters of the allocator under its own lock.
    unsafe {
        // They fail for unknown parameters and values out of bounds only; memory is then used as if
        // nothing had been asked for.
        if budget_bytes < LITTLE_MEMORY_BYTES {
            libc::mallopt(libc::M_ARENA_MAX, HEAPS.0);
            libc::mallopt(libc::M_MMAP_THRESHOLD, LITTLE_RETURNED_BYTES);
        } else {
            libc::mallopt(libc::M_ARENA_MAX, HEAPS.1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = budget_bytes;
}

/// Gives memory that is free back to the system, wherever it lies.
fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code, reason = "the library has no safe way to ask for it")]
    // SAFETY: `malloc_trim` takes a number and changes what is free only, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives memory back whenever the buffers have been nearly empty for a while after they were not; never
/// ends. While records come, what is free is used again, and costs less than what comes fresh from the
/// system.
pub async fn tend(budget: Arc<MemoryBudget>) {
    let mut idle = Idle::default();
    let mut ticks = interval(IDLE_MEMORY_EVERY);
    loop {
        ticks.tick().await;
        if !idle.begins(budget.used()) {
            continue;
        }
        compressors::give_up();
        if task::spawn_blocking(give_back).await.is_ok() {
            debug!("memory of empty buffers was given back to the system");
        }
    }
}

/// When buffers that were filled have emptied.
#[derive(Debug, Default)]
struct Idle {
    /// Most bytes seen since memory was given back last.
    peak: usize,
    /// Whether they were nearly empty when they were looked at last.
    empty: bool,
}

impl Idle {
    /// Takes in that the buffers hold `used` bytes: whether memory is to be given back now.
    fn begins(&mut self, used: usize) -> bool {
        self.peak = self.peak.max(used);
        let empty = self.peak >= IDLE_MEMORY_LEAST_BYTES && used <= self.peak / 8;
        let begins = empty && self.empty;
        self.empty = empty && !begins;
        if begins {
            self.peak = used;
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MIB;

    fn looks(used: &[usize]) -> Vec<bool> {
        let mut idle = Idle::default();
        used.iter().map(|mib| idle.begins(mib * MIB)).collect()
    }

    #[test]
    fn memory_is_given_back_once_when_buffers_stay_empty() {
        let used = [0, 0, 200, 10, 10, 10, 0, 0];
        let given = [false, false, false, false, true, false, false, false];
        assert_eq!(looks(&used), given);
    }

    #[test]
    fn buffers_that_fill_again_at_once_keep_their_memory() {
        assert!(!looks(&[200, 10, 150, 0, 200, 60, 60, 60]).contains(&true));
    }

    #[test]
    fn a_little_is_not_worth_it() {
        assert!(!looks(&[30, 0, 0, 0]).contains(&true));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_is_free_between_what_is_not_goes_back_to_the_system() {
        fn resident() -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
            let pages = statm.split(' ').nth(1).expect("resident pages");
            pages.parse::<usize>().expect("a number") * 4_096
        }
        // Too small to be returned by themselves, and every thousandth one stays.
        let mut blocks: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 4_000]).collect();
        let full = resident();
        let mut place = 0;
        blocks.retain(|_| {
            place += 1;
            place % 1_000 == 0
        });
        give_back();
        let left = resident();
        assert!(left + 100 * MIB < full, "{left} of {full} bytes are left");
        assert_eq!(blocks.len(), 40);
    }
}
