//! Faults of the disk. After one, it is not used for a while, so that a disk that is full
//! or broken costs no request time. Reading and writing pause separately: from a full
//! disk, responses are still read.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use crate::clock::Clock;

/// How long the tier pauses after a fault.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct DiskHealth {
    clock: Clock,
    /// What it is about, for the log.
    what: &'static str,
    /// Until when the tier pauses, in nanoseconds.
    paused_until: AtomicU64,
    /// Whether the last use failed.
    is_failing: AtomicBool,
}

impl DiskHealth {
    pub(super) fn new(what: &'static str, clock: Clock) -> Self {
        Self {
            clock,
            what,
            paused_until: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Whether the tier may be used now.
    pub(super) fn is_good(&self) -> bool {
        let until = self.paused_until.load(Relaxed);
        until == 0 || until <= self.clock.now().nanos()
    }

    /// Whether the last use failed, even if the next one is due.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// A use failed: the tier pauses.
    pub(super) fn fail(&self, what: &str, error: &dyn fmt::Display) {
        let until = self.clock.now() + PAUSE;
        self.paused_until.store(until.nanos(), Relaxed);
        if !self.is_failing.swap(true, Relaxed) {
            tracing::warn!(
                %error,
                "{what}: the next attempts are {} s apart, until one succeeds",
                PAUSE.as_secs()
            );
        }
    }

    /// A use succeeded.
    pub(super) fn succeed(&self) {
        if self.is_failing.load(Relaxed) && self.is_failing.swap(false, Relaxed) {
            self.paused_until.store(0, Relaxed);
            tracing::info!("the disk can be used again: {}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_pauses_the_tier_until_a_use_succeeds() {
        let clock = Clock::manual();
        let health = DiskHealth::new("writing", clock.clone());
        assert!(health.is_good() && !health.is_failing());
        health.fail("writing failed", &"no space");
        assert!(!health.is_good() && health.is_failing());
        clock.advance(PAUSE);
        assert!(health.is_good() && health.is_failing(), "it is tried again");
        health.fail("writing failed", &"no space");
        assert!(!health.is_good());
        clock.advance(PAUSE);
        health.succeed();
        assert!(health.is_good() && !health.is_failing());
    }
}
