//! A child process that is always signalled, waited for and reaped in the right order.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A running child and the thread that keeps it.
///
/// The kernel's parent-death signal goes out when the *thread* that started a child ends, not the
/// process. So a thread of its own starts the child and stays until the child has ended. Dropping
/// the handle leaves the child running.
#[derive(Debug)]
pub struct KeptChild {
    pid: Pid,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Shared {
    /// A panic elsewhere leaves this plain value intact, so a poisoned lock is still good.
    fn ended(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptChild {
    /// Starts `command` in a process group of its own: Ctrl-C in a terminal reaches the caller,
    /// which then stops its children in its own order.
    ///
    /// # Errors
    ///
    /// The system's answer to the start of the thread or the child.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        let shared = Arc::new(Shared::default());
        let (started, start) = mpsc::channel();
        let keeper = Arc::clone(&shared);
        thread::Builder::new()
            .name("kept-child".into())
            .spawn(move || {
                match command.spawn() {
                    Ok(child) => {
                        let pid = Pid::from_child(&child);
                        // The receiver waits for exactly this message and cannot be gone.
                        let _ = started.send(Ok(pid));
                        keep(child, pid, &keeper);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })?;
        let pid = start.recv().map_err(io::Error::other)??;
        Ok(Self { pid, shared })
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends `signal` unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        let ended = self.shared.ended();
        if ended.is_none() {
            // Held lock: the process is not reaped yet, so the id is still its own. The only
            // failure left is a process that has just ended, which is what a signal is for.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits until the process has ended, at most `limit`; `None` when it still runs.
    pub fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let (ended, _) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.ended(), limit, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

/// Waits for the child and publishes its end. Looking first and reaping under the lock means
/// that nobody signals a process id that already belongs to another process.
fn keep(mut child: Child, pid: Pid, shared: &Shared) {
    while let Err(rustix::io::Errno::INTR) = waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    ) {}
    let mut ended = shared.ended();
    // Waiting for a child of our own cannot fail; whatever it says, the process is gone.
    *ended = Some(child.wait().unwrap_or_default());
    shared.changed.notify_all();
}
