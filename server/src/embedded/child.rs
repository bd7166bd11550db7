//! The sink's process: started in a group of its own, killed with the broker, reaped in order.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::{oneshot, watch};

/// A running process and the thread that keeps it. Dropping it kills the whole process group.
///
/// The kernel's parent-death signal goes out when the *thread* that started a child ends, so a
/// thread of its own starts the child and stays until the child has ended.
#[derive(Debug)]
pub struct GroupChild {
    pid: Pid,
    reaped: Arc<Mutex<bool>>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl GroupChild {
    /// Starts `command` in a process group of its own.
    ///
    /// # Errors
    ///
    /// The system's answer to the start of the thread or the process.
    pub async fn spawn(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        dies_with_this_process(&mut command);
        let reaped = Arc::new(Mutex::new(false));
        let (started, start) = oneshot::channel();
        let (end, ended) = watch::channel(None);
        let keeper = Arc::clone(&reaped);
        std::thread::Builder::new()
            .name("sink-keeper".into())
            .spawn(move || keep(command, started, &end, &keeper))?;
        let pid = start.await.map_err(io::Error::other)??;
        Ok(Self { pid, reaped, ended })
    }

    /// The process id, which is the group's too.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends `signal` to the whole group unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        signal_group(self.pid, &self.reaped, signal);
    }

    /// Completes when the process has ended; the rest of its group is killed then.
    pub async fn ended(&mut self) -> ExitStatus {
        match self.ended.wait_for(Option::is_some).await {
            Ok(status) => status.unwrap_or_default(),
            // The keeper sends before it ends; without it nothing is left to wait for.
            Err(_) => ExitStatus::default(),
        }
    }
}

impl Drop for GroupChild {
    fn drop(&mut self) {
        // The keeper reaps it.
        self.signal(Signal::KILL);
    }
}

fn lock(reaped: &Mutex<bool>) -> MutexGuard<'_, bool> {
    // A panic elsewhere leaves a plain flag intact.
    reaped.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal_group(pid: Pid, reaped: &Mutex<bool>, signal: Signal) {
    let reaped = lock(reaped);
    if !*reaped {
        // Not reaped under this lock, so the id is still its own; a group that has just ended
        // is what a signal is for.
        let _ = kill_process_group(pid, signal);
    }
}

fn keep(
    mut command: Command,
    started: oneshot::Sender<io::Result<Pid>>,
    end: &watch::Sender<Option<ExitStatus>>,
    reaped: &Mutex<bool>,
) {
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            // Who asked may have gone meanwhile; then nobody wants to know.
            let _ = started.send(Err(error));
            return;
        }
    };
    // Its pipes: while this side holds their writing ends, the reader sees no end.
    drop(command);
    let pid = Pid::from_child(&child);
    if started.send(Ok(pid)).is_err() {
        signal_group(pid, reaped, Signal::KILL);
    }
    let status = reap(child, pid, reaped);
    end.send_replace(Some(status));
}

/// Waits for the child, kills what is left of its group, and reaps it: until then the id is not
/// given to another process.
fn reap(mut child: Child, pid: Pid, reaped: &Mutex<bool>) -> ExitStatus {
    while let Err(rustix::io::Errno::INTR) = waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    ) {}
    let mut reaped = lock(reaped);
    let _ = kill_process_group(pid, Signal::KILL);
    *reaped = true;
    // Waiting for a child of our own cannot fail; whatever it says, the process is gone.
    child.wait().unwrap_or_default()
}

/// Asks the kernel to kill the child when this process ends, whatever it ends of.
#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "the death signal can only be set between fork and exec"
)]
fn dies_with_this_process(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes two
    // system calls through rustix, which allocates nothing and takes no lock for them; an
    // `io::Error` made of an error number allocates nothing either; and nothing is borrowed from
    // this process but the number `parent`, which is copied.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // A parent that died before the call above sends no signal.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

/// Other systems have no such signal: a broker killed with SIGKILL leaves the sink running.
#[cfg(not(target_os = "linux"))]
fn dies_with_this_process(_: &mut Command) {}
