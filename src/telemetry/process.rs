//! What the process uses, from Linux's /proc.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

/// Processor time since the start, resident memory, and file descriptors, by the names that all
/// Prometheus clients use; `None` on systems without /proc.
pub(crate) fn figures() -> Option<Value> {
    let process = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field of proc_pid_stat(5) is the name in parentheses, which may have
    // blanks and parentheses of its own. The third is the first after it.
    let (_, rest) = process.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(json!({
        "cpu_seconds": (field(14)? + field(15)?) as f64 / clock_ticks_per_second() as f64,
        "resident_memory_bytes": field(24)? * page_size() as u64,
        // One of them is of this directory.
        "open_fds": open.saturating_sub(1),
        "max_fds": getrlimit(Resource::Nofile).current,
    }))
}
