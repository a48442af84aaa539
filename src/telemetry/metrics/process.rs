//! Metrics of the process, by the names that all Prometheus clients use. They are read from
//! /proc when `/metrics` is requested; where there is none, they are absent.

use std::fmt;
use std::fs;

use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rustix::process::{Resource, getrlimit};

use super::{Metrics, one};
use crate::telemetry::process::ProcessFigures;

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
    let Some(figures) = ProcessFigures::read() else {
        return Ok(());
    };
    to.family(
        "process_cpu_seconds",
        "CPU time used, in user and system mode, in seconds",
        MetricType::Counter,
        [(Vec::new(), ConstCounter::new(figures.cpu.as_secs_f64()))],
    )?;
    to.gauge("process_threads", "Threads", one(figures.threads as f64))?;
    to.gauge(
        "process_resident_memory_bytes",
        "Resident memory",
        one(figures.resident as f64),
    )?;
    to.gauge(
        "process_virtual_memory_bytes",
        "Virtual memory",
        one(figures.virtual_memory as f64),
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
            one(booted + figures.started.as_secs_f64()),
        ),
        None => Ok(()),
    }
}
