//! Metrics of the process, by the names that all Prometheus clients use. They are read from
//! /proc when `/metrics` is requested; where there is none, they are absent.

use std::fmt;
use std::fs;

use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::{Metrics, one};

/// The figures of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessFigures {
    cpu_seconds: f64,
    threads: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
    /// Since the system has started.
    started_seconds: f64,
}

impl ProcessFigures {
    /// Those in the text of /proc/PID/stat (proc_pid_stat(5)).
    fn read(stat: &str, ticks: f64, page: f64) -> Option<Self> {
        // The name of the program may have blanks and brackets in it.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        // The first of them is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            threads: field(20)?,
            started_seconds: field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page,
        })
    }
}

/// When the system has started, in seconds since 1970, by the text of /proc/stat.
fn boot_time(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line?.trim().parse().ok()
}

/// How many descriptors are open.
fn open_descriptors() -> Option<f64> {
    // One of them is of this directory.
    Some(
        fs::read_dir("/proc/self/fd")
            .ok()?
            .count()
            .saturating_sub(1) as f64,
    )
}

pub(super) fn encode(to: &mut Metrics<'_>) -> fmt::Result {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let (ticks, page) = (clock_ticks_per_second() as f64, page_size() as f64);
    let Some(figures) = ProcessFigures::read(&stat, ticks, page) else {
        return Ok(());
    };
    to.family(
        "process_cpu_seconds",
        "CPU time used, in user and system mode, in seconds",
        MetricType::Counter,
        [(Vec::new(), ConstCounter::new(figures.cpu_seconds))],
    )?;
    to.gauge("process_threads", "Threads", one(figures.threads))?;
    to.gauge(
        "process_resident_memory_bytes",
        "Resident memory",
        one(figures.resident_bytes),
    )?;
    to.gauge(
        "process_virtual_memory_bytes",
        "Virtual memory",
        one(figures.virtual_bytes),
    )?;
    if let Some(open) = open_descriptors() {
        to.gauge("process_open_fds", "Open file descriptors", one(open))?;
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        to.gauge(
            "process_max_fds",
            "The most file descriptors that may be open",
            one(most as f64),
        )?;
    }
    let booted = fs::read_to_string("/proc/stat").unwrap_or_default();
    match boot_time(&booted) {
        Some(booted) => to.gauge(
            "process_start_time_seconds",
            "When the process was started, in seconds since 1970",
            one(booted + figures.started_seconds),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_whatever_the_program_is_called() {
        let fields = "S 1 2 3 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 7 0 12345 9000000 321 18446744073709551615";
        let expected = ProcessFigures {
            cpu_seconds: 4.0,
            threads: 7.0,
            virtual_bytes: 9_000_000.0,
            resident_bytes: 321.0 * 4096.0,
            started_seconds: 123.45,
        };
        for name in ["ordgate", "a) S 9 (b", ")", ""] {
            let stat = format!("17 ({name}) {fields}");
            let read = ProcessFigures::read(&stat, 100.0, 4096.0);
            assert_eq!(read, Some(expected), "{name}");
        }
        for stat in ["", "17", "17 (ordgate)", "17 (ordgate) S 1 2 x"] {
            assert_eq!(ProcessFigures::read(stat, 100.0, 4096.0), None, "{stat}");
        }
        assert_eq!(
            boot_time("cpu 1 2\nbtime 1700000000\n"),
            Some(1_700_000_000.0)
        );
        assert_eq!(boot_time("cpu 1 2\n"), None);
    }
}
