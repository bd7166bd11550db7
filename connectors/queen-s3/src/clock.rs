//! The sink's own clocks. Windows are decided on the broker's clock; these two only time leases
//! and stamp documents.

use std::time::Duration;

/// What the sink may ask of its own machine's clocks.
pub trait Clock: Send + Sync {
    /// Time since boot, running through suspension (`CLOCK_BOOTTIME`), so that a lease is never
    /// thought fresher than it is. Never steps back.
    fn boottime(&self) -> Duration;

    /// Wall-clock milliseconds since the Unix epoch, for documents and lag, and for how old a pointer is that a start finds.
    fn wall_ms(&self) -> i64;
}

/// The machine's clocks.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boottime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }

    fn wall_ms(&self) -> i64 {
        jiff::Timestamp::now().as_millisecond()
    }
}
