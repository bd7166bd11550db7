//! One line on standard error that says how far a check is, where somebody watches.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::Ordering::Relaxed;

use super::report::QueueReport;
use super::store::Store;
use crate::limits::MIB;
use crate::observe::one_line::OneLine;

/// A check's progress on a terminal.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    begun: bool,
}

impl Progress {
    /// Shown where standard error is a terminal.
    pub fn on_a_terminal() -> Self {
        Self {
            shown: stderr().is_terminal(),
            begun: false,
        }
    }

    /// Never shown.
    pub fn hidden() -> Self {
        Self {
            shown: false,
            begun: false,
        }
    }

    pub(super) fn is_shown(&self) -> bool {
        self.shown
    }

    pub(super) fn show(&mut self, store: &Store, report: &QueueReport, newest: u64, findings: u64) {
        self.begun = true;
        let QueueReport {
            queue,
            windows,
            records,
            ..
        } = report;
        let mib = store.progress.bytes.load(Relaxed) / MIB as u64;
        // Nothing is lost when a terminal does not take a line of progress.
        let _ = write!(
            stderr(),
            "\r\x1b[K{}: window {windows} of {newest}, {records} records, {mib} MiB read, \
             {findings} findings",
            OneLine(queue)
        );
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.begun) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
