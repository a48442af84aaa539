//! What the process uses, from Linux's /proc.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// What the process uses, by the names that all Prometheus clients use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ProcessFigures {
    /// Processor time since its start, of all threads.
    pub(crate) cpu_seconds: f64,
    /// Resident memory.
    pub(crate) resident_memory_bytes: u64,
    /// Its open file descriptors.
    pub(crate) open_fds: usize,
    /// The most that it may open; `None` without a limit.
    pub(crate) max_fds: Option<u64>,
}

impl ProcessFigures {
    /// Reads them; `None` on systems without /proc.
    pub(crate) fn read() -> Option<Self> {
        let process = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field of proc_pid_stat(5) is the name in parentheses, which may have
        // blanks and parentheses of its own. The third is the first after it.
        let (_, rest) = process.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks as f64,
            resident_memory_bytes: field(24)? * rustix::param::page_size() as u64,
            // One of them is of this directory.
            open_fds: fs::read_dir("/proc/self/fd")
                .ok()?
                .count()
                .saturating_sub(1),
            max_fds: getrlimit(Resource::Nofile).current,
        })
    }
}
