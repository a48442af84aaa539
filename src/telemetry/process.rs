//! What the process uses, from Linux's /proc.

use std::fs;
use std::time::Duration;

/// What the process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessFigures {
    /// Processor time since its start, of all threads.
    pub(crate) cpu: Duration,
    /// Its threads.
    pub(crate) threads: u64,
    /// Virtual memory in bytes.
    pub(crate) virtual_memory: u64,
    /// Resident memory in bytes.
    pub(crate) resident: u64,
    /// When it was started, counted from the start of the system.
    pub(crate) started: Duration,
}

impl ProcessFigures {
    /// Reads them; `None` on systems without /proc.
    pub(crate) fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        let page = rustix::param::page_size() as u64;
        Self::parse(&stat, ticks, page)
    }

    /// Reads the line of proc_pid_stat(5).
    fn parse(stat: &str, ticks: u64, page: u64) -> Option<Self> {
        // The second field is the name in parentheses, which may have blanks and
        // parentheses of its own. The third is the first after it.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let time = |count: u64| Duration::from_millis(count * 1000 / ticks.max(1));
        Some(Self {
            cpu: time(field(14)? + field(15)?),
            threads: field(20)?,
            started: time(field(22)?),
            virtual_memory: field(23)?,
            resident: field(24)? * page,
        })
    }
}
