//! Bounds how often a message is logged that a client can cause at will.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::Moment;

/// Bounds a message to one line in an interval.
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
