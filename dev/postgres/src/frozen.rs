//! A server that is stopped and has not ended: it keeps its connections and answers nothing.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;

/// The processes of a stopped server. They go on when it is dropped.
#[derive(Debug)]
#[must_use = "the server goes on when this is dropped"]
pub struct Frozen(Vec<Pid>);

impl Frozen {
    /// Stops the server, where it runs, and every process of its own.
    pub(crate) fn of(postmaster: Option<Pid>) -> Result<Self, Error> {
        let mut frozen = Self(Vec::new());
        let Some(postmaster) = postmaster else {
            return Ok(frozen);
        };
        // First: it makes no further process then.
        frozen.stop(postmaster);
        let processes = Path::new("/proc");
        for entry in fs::read_dir(processes).map_err(Error::io("read /proc"))? {
            let name = entry.map_err(Error::io("read /proc"))?.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // The process may have ended meanwhile.
            let stat = fs::read_to_string(processes.join(name).join("stat")).unwrap_or_default();
            if parent(&stat) == Some(postmaster.as_raw_nonzero().get())
                && let Some(process) = Pid::from_raw(process)
            {
                frozen.stop(process);
            }
        }
        Ok(frozen)
    }

    fn stop(&mut self, process: Pid) {
        if kill_process(process, Signal::STOP).is_ok() {
            self.0.push(process);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for process in self.0.iter().rev() {
            // One that has ended needs no waking.
            let _ = kill_process(*process, Signal::CONT);
        }
    }
}

/// The parent in a line of `/proc/*/stat`: the second field after the name, which ends with the last bracket.
fn parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parent;

    #[test]
    fn a_parent_is_read_whatever_the_name_of_the_process() {
        assert_eq!(parent("7 (postgres: a) b) S 3 7 7"), Some(3));
        assert_eq!(parent(""), None);
    }
}
