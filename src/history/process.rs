//! The processor time and memory that the process uses, from Linux's /proc.

use std::fs;
use std::time::Duration;

/// What the process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessUse {
    /// Processor time since its start, of all threads.
    pub(super) cpu: Duration,
    /// Resident memory in bytes.
    pub(super) resident: u64,
}

impl ProcessUse {
    /// Reads it; `None` on systems without /proc.
    pub(super) fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        let page = rustix::param::page_size() as u64;
        parse(&stat, ticks, page)
    }
}

/// Reads the line of proc_pid_stat(5).
fn parse(stat: &str, ticks: u64, page: u64) -> Option<ProcessUse> {
    // The second field is the name in parentheses, which may have blanks and
    // parentheses of its own. The third is the first after it.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let spent = field(14)? + field(15)?;
    Some(ProcessUse {
        cpu: Duration::from_millis(spent * 1000 / ticks.max(1)),
        resident: field(24)? * page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_line_are_found_whatever_the_name_is() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 77 123456 321 18446744073709551615";
        let expected = ProcessUse {
            cpu: Duration::from_secs(3),
            resident: 321 * 4096,
        };
        for name in ["ordgate", "a b", "a) S 9 9 ("] {
            let line = format!("42 ({name}) {rest}\n");
            assert_eq!(parse(&line, 100, 4096), Some(expected), "{name}");
        }
        for line in ["", "42 (ordgate) S 1 2", "42 ordgate S 1"] {
            assert_eq!(parse(line, 100, 4096), None, "{line}");
        }
    }
}
