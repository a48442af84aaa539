//! The refusals (401 and 403) of a key. Pure: `now` is an argument.
//!
//! A refusal concerns either the target, which clients choose, or the key. A *key
//! check* decides: one request at a time, with the same key, to the status path of the
//! target's tip. If that is refused too, the key goes into quarantine; otherwise the
//! target is what was refused.
//!
//! Without a status path, or where it does not return a status, a key counts as
//! refused after [`TARGETS`] different targets were refused and none was answered in
//! between.
//!
//! Invariant: after the first few, a client that repeats a refused request causes at
//! most one key check a minute per key.

use std::time::Duration;

use crate::clock::Moment;

/// Without a status path, this many different refused targets refuse the key.
const TARGETS: usize = 3;
/// The first pause after a key check that did not refuse the key; each further one
/// doubles it.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// After this time without a key check the pauses start from the first again.
const QUIET: Duration = Duration::from_mins(5);

/// The result of a key check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyCheckResult {
    /// The status path refuses the key.
    Refused,
    /// The status path accepts the key.
    Accepted,
    /// The status path does not return a status.
    NoStatus,
    /// The upstream failed, or did not answer in time.
    Unclear,
    /// The check was not sent: no budget or no endpoint was available.
    NotSent,
}

/// The refusals of one key at one host.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Hashes of the refused targets.
    targets: Vec<u64>,
    /// Consecutive key checks that did not refuse the key.
    consecutive: u32,
    last: Moment,
    /// No key check before then.
    next: Moment,
    /// Whether the last key check found no status.
    has_no_status: bool,
}

impl Refusals {
    /// Whether a key check may be sent.
    pub(crate) fn may_check(&self, now: Moment) -> bool {
        self.next <= now
    }

    /// Whether refused targets count against the key, because no status path decides.
    pub(crate) fn has_no_status(&self) -> bool {
        self.has_no_status
    }

    pub(crate) fn record_check(&mut self, result: KeyCheckResult, now: Moment) {
        match result {
            KeyCheckResult::NotSent => return,
            KeyCheckResult::Refused => {
                *self = Self::default();
                return;
            }
            KeyCheckResult::Accepted | KeyCheckResult::NoStatus | KeyCheckResult::Unclear => {}
        }
        self.has_no_status = result == KeyCheckResult::NoStatus;
        if now.since(self.last) > QUIET {
            self.consecutive = 0;
        }
        let pause = PAUSE.saturating_mul(2_u32.saturating_pow(self.consecutive));
        self.next = now + pause.min(MAX_PAUSE);
        self.consecutive = self.consecutive.saturating_add(1);
        self.last = now;
    }

    /// Counts a refused target; returns whether the key counts as refused.
    pub(crate) fn count_target(&mut self, target: u64) -> bool {
        if !self.targets.contains(&target) {
            self.targets.push(target);
        }
        let enough = self.targets.len() >= TARGETS;
        if enough {
            self.targets.clear();
        }
        enough
    }

    /// Records that the key was accepted for some target.
    pub(crate) fn record_acceptance(&mut self) {
        self.targets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    /// The moments of key checks where a target is refused each second.
    fn checks(refusals: &mut Refusals, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let due = seconds.filter(|second| {
            let may = refusals.may_check(at(*second));
            if may {
                refusals.record_check(KeyCheckResult::Accepted, at(*second));
            }
            may
        });
        due.collect()
    }

    #[test]
    fn key_checks_that_accept_the_key_become_rare() {
        let mut refusals = Refusals::default();
        let sent = checks(&mut refusals, 0..300);
        assert_eq!(sent, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        // After a quiet time the pauses start again.
        assert_eq!(checks(&mut refusals, 600..604), [600, 601, 603]);
    }

    #[test]
    fn when_the_next_key_check_may_follow() {
        for (result, may_at_once) in [
            (KeyCheckResult::Refused, true),
            (KeyCheckResult::Accepted, false),
            (KeyCheckResult::NoStatus, false),
            (KeyCheckResult::Unclear, false),
            (KeyCheckResult::NotSent, true),
        ] {
            let mut refusals = Refusals::default();
            refusals.record_check(result, at(0));
            assert_eq!(refusals.may_check(at(0)), may_at_once, "{result:?}");
            assert!(refusals.may_check(at(1)), "{result:?}");
            let expected = result == KeyCheckResult::NoStatus;
            assert_eq!(refusals.has_no_status(), expected, "{result:?}");
        }
    }

    #[test]
    fn three_different_refused_targets_refuse_the_key() {
        let mut refusals = Refusals::default();
        for target in [1, 1, 2, 1, 2] {
            assert!(
                !refusals.count_target(target),
                "repeated targets do not count"
            );
        }
        refusals.record_acceptance();
        for target in [3, 4] {
            assert!(
                !refusals.count_target(target),
                "one was accepted in between"
            );
        }
        assert!(refusals.count_target(5));
        assert!(!refusals.count_target(6), "the count starts again");
    }
}
