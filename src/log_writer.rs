//! Writes log lines on threads of their own, so that a standard error or standard output
//! that blocks, such as a pipe that nobody reads, delays no request. Lines that do not fit
//! in the queue are dropped and counted.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::clock::Moment;
use crate::sync::lock;

/// The most lines that wait for one destination.
const MAX_LINES: usize = 4096;

/// Where lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error: the log.
    StandardError,
    /// Standard output: the access log in Apache's format.
    StandardOutput,
}

/// The writer of a destination, and what flushes it when it is dropped.
struct Started {
    writer: NonBlocking,
    guard: Mutex<Option<WorkerGuard>>,
}

/// The process has one of each.
static WRITERS: [OnceLock<Started>; 2] = [OnceLock::new(), OnceLock::new()];

impl Destination {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::StandardError, Self::StandardOutput];

    /// Its name in metrics and `/status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StandardError => "stderr",
            Self::StandardOutput => "stdout",
        }
    }

    /// Its writer, which takes a whole line with each call, and never waits. It is started
    /// when it is first used.
    pub fn writer(self) -> NonBlocking {
        let started = WRITERS[self as usize].get_or_init(|| {
            let builder = NonBlockingBuilder::default()
                .buffered_lines_limit(MAX_LINES)
                .thread_name(self.name());
            let file = match self {
                Self::StandardError => io::stderr().as_fd().try_clone_to_owned(),
                Self::StandardOutput => io::stdout().as_fd().try_clone_to_owned(),
            };
            // Not through the standard library's handle: whoever else prints would wait for
            // its lock.
            let (writer, guard) = match file {
                Ok(file) => builder.finish(File::from(file)),
                Err(_closed) => builder.finish(io::sink()),
            };
            let guard = Mutex::new(Some(guard));
            Started { writer, guard }
        });
        started.writer.clone()
    }

    /// The lines that were dropped since the start.
    pub fn dropped(self) -> u64 {
        let started = WRITERS[self as usize].get();
        started.map_or(0, |started| {
            started.writer.error_counter().dropped_lines() as u64
        })
    }
}

/// Waits until all lines are written, a second at most for each destination. It must be the
/// last use of the log: later lines are lost.
pub fn flush() {
    for started in WRITERS.iter().filter_map(OnceLock::get) {
        drop(lock(&started.guard).take());
    }
}

/// Bounds a message that clients can cause to one line in an interval.
#[derive(Debug, Default)]
pub struct LogInterval(AtomicU64);

impl LogInterval {
    /// The usual interval.
    pub const MINUTE: Duration = Duration::from_mins(1);

    /// Whether to log it now: the first time, and when the last line is at least an
    /// interval ago.
    pub fn is_due(&self, interval: Duration, now: Moment) -> bool {
        let before = self.0.load(Relaxed);
        let is_due = before == 0 || now.since(Moment::from_nanos(before)) >= interval;
        is_due
            && self
                .0
                .compare_exchange(before, now.nanos(), Relaxed, Relaxed)
                .is_ok()
    }
}
