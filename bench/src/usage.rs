//! CPU time and memory of processes, as Linux counts them.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// User and system time of the process `pid`, without its children.
pub fn cpu(pid: i32) -> Result<Duration> {
    let stat = Stat::read(pid)?;
    Ok(ticks(stat.own))
}

/// User and system time of `pid`, of the children it has waited for, and of its live children.
pub fn cpu_of_family(pid: i32) -> Result<Duration> {
    let parent = Stat::read(pid)?;
    let mut total = parent.own + parent.waited;
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that ends between the two looks is in its parent's count by the next one.
        if let Ok(stat) = Stat::read(child)
            && stat.parent == pid
        {
            total += stat.own + stat.waited;
        }
    }
    Ok(ticks(total))
}

/// User and system time of this process.
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// The most memory that `pid` has had resident, in bytes.
pub fn peak_resident(pid: i32) -> Result<u64> {
    memory(pid, "VmHWM")
}

/// The memory that `pid` has resident now, in bytes.
pub fn resident(pid: i32) -> Result<u64> {
    memory(pid, "VmRSS")
}

fn memory(pid: i32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let fields: HashMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .collect();
    let kib: u64 = fields
        .get(field)
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .and_then(|value| value.parse().ok())
        .with_context(|| format!("{path} has no {field}"))?;
    Ok(kib * 1024)
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// What `/proc/<pid>/stat` says of a process; times in clock ticks.
struct Stat {
    parent: i32,
    own: u64,
    waited: u64,
}

impl Stat {
    fn read(pid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Self::parse(&text).with_context(|| format!("{path} has another shape"))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name, in brackets, may hold anything. After it: state, parent, and from the eleventh
        // field on user and system time, own and of children waited for.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let time = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: time(11)? + time(12)?,
            waited: time(13)? + time(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn times_are_found_behind_a_name_with_brackets_and_blanks() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 1 2 3 4 5 60 40 7 8 20 0 1 0 9 10";
        let stat = Stat::parse(text).expect("it has the shape of a process");
        assert_eq!((stat.parent, stat.own, stat.waited), (3, 100, 15));
    }
}
