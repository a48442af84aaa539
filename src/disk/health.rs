//! Faults of the disk. After one, it is not used for a while, so that a disk that is full
//! or broken costs no request time. Reading, writing, and the purge log with the other
//! small files pause separately: from a full disk, responses are still read.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// The longest pause after a fault.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct DiskHealth {
    clock: Clock,
    /// What it is about, for the log.
    what: &'static str,
    /// The pause after the first fault; each later one is twice as long.
    first_pause: Duration,
    /// Until when it pauses, in nanoseconds.
    paused_until: AtomicU64,
    /// The pause after the last use, in milliseconds; 0 if that succeeded.
    pause: AtomicU64,
}

impl DiskHealth {
    pub(super) fn new(what: &'static str, first_pause: Duration, clock: Clock) -> Self {
        Self {
            clock,
            what,
            first_pause,
            paused_until: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }

    /// Whether it may be used now.
    pub(super) fn is_good(&self) -> bool {
        let until = self.paused_until.load(Relaxed);
        until == 0 || until <= self.clock.now().nanos()
    }

    /// A use failed: it pauses. A pause that still runs is not made longer, so that
    /// frequent uses do not keep it from being tried again.
    pub(super) fn fail(&self, what: &str, error: &dyn fmt::Display) {
        let (now, until) = (self.clock.now(), self.paused_until.load(Relaxed));
        let before = self.pause.load(Relaxed);
        let longer = Duration::from_millis(before.saturating_mul(2));
        let pause = longer.clamp(self.first_pause, MAX_PAUSE);
        let next = (now + pause).nanos();
        let is_first = Moment::from_nanos(until) <= now
            && (self.paused_until)
                .compare_exchange(until, next, Relaxed, Relaxed)
                .is_ok();
        if !is_first {
            return;
        }
        let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.pause.store(millis, Relaxed);
        if before == 0 {
            tracing::warn!(
                %error,
                "{what}: it is tried again at most {} s later, until it succeeds",
                MAX_PAUSE.as_secs()
            );
        }
    }

    /// A use succeeded.
    pub(super) fn succeed(&self) {
        if self.pause.load(Relaxed) > 0 && self.pause.swap(0, Relaxed) > 0 {
            self.paused_until.store(0, Relaxed);
            tracing::info!("the disk can be used again: {}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_pauses_it_until_a_use_succeeds() {
        let clock = Clock::manual();
        let health = DiskHealth::new("writing", MAX_PAUSE, clock.clone());
        assert!(health.is_good());
        health.fail("writing failed", &"no space");
        assert!(!health.is_good());
        clock.advance(MAX_PAUSE);
        assert!(health.is_good(), "it is tried again");
        health.fail("writing failed", &"no space");
        assert!(!health.is_good());
        health.succeed();
        assert!(health.is_good());
    }

    #[test]
    fn a_pause_is_not_made_longer_while_it_runs() {
        let clock = Clock::manual();
        let first = Duration::from_secs(1);
        let health = DiskHealth::new("purges", first, clock.clone());
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            health.fail("it failed", &"no space");
            for _ in 1..seconds {
                clock.advance(first);
                assert!(!health.is_good(), "of {seconds} s");
                health.fail("it failed", &"no space");
            }
            clock.advance(first);
            assert!(health.is_good(), "after {seconds} s");
        }
        health.succeed();
        health.fail("it failed", &"no space");
        clock.advance(first);
        assert!(health.is_good(), "it begins anew");
    }
}
