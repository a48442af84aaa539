//! What 401 and 403 say of a key. Pure: `now` is an argument.
//!
//! A refusal may be about the target, which clients choose, or about the key.
//! The status path of the target's tip decides: one request at a time asks it
//! with the same key, a *key check*. A key that is refused there as well goes
//! into quarantine; otherwise the target is what was refused.
//!
//! Where there is no status path, or it answers with nothing that a status
//! would be, a key counts as refused once [`TARGETS`] different targets were
//! refused and none was answered in between.
//!
//! Invariant: a client that goes on asking for what is refused causes one key
//! check a minute for each key, after the first few.

use std::time::Duration;

use crate::clock::Moment;

/// So many different targets count against a key where no status path does.
const TARGETS: usize = 3;
/// How soon after a key check that did not count against the key the next may
/// follow, at first; each one more doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// No pause is longer.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// After so long without a key check the pauses begin anew.
const QUIET: Duration = Duration::from_mins(5);

/// What a key check has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyCheckResult {
    /// The status path refuses the key.
    Refused,
    /// The status path accepts the key.
    Accepted,
    /// There is no status at the status path.
    NoStatus,
    /// Nothing: the upstream failed, or did not answer in time.
    Unclear,
    /// Nothing: it was not sent, for want of budget or of an endpoint.
    NotSent,
}

/// What refusals say of one key.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The targets that count against the key, as hashes.
    targets: Vec<u64>,
    /// Key checks in a row that did not count against the key.
    consecutive: u32,
    last: Moment,
    /// No key check before then.
    next: Moment,
    /// Whether the last one found no status.
    has_no_status: bool,
}

impl Refusals {
    /// Whether a key check may be sent.
    pub(crate) fn may_check(&self, now: Moment) -> bool {
        self.next <= now
    }

    /// Whether targets count against the key, since no status path decides.
    pub(crate) fn has_no_status(&self) -> bool {
        self.has_no_status
    }

    /// A key check has ended.
    pub(crate) fn record_check(&mut self, verdict: KeyCheckResult, now: Moment) {
        match verdict {
            KeyCheckResult::NotSent => return,
            KeyCheckResult::Refused => {
                *self = Self::default();
                return;
            }
            KeyCheckResult::Accepted | KeyCheckResult::NoStatus | KeyCheckResult::Unclear => {}
        }
        self.has_no_status = verdict == KeyCheckResult::NoStatus;
        if now.since(self.last) > QUIET {
            self.consecutive = 0;
        }
        let pause = PAUSE.saturating_mul(2_u32.saturating_pow(self.consecutive));
        self.next = now + pause.min(MOST_PAUSE);
        self.consecutive = self.consecutive.saturating_add(1);
        self.last = now;
    }

    /// Counts a target against the key; answers whether that is enough.
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

    /// The key has been accepted for some target.
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

    /// The moments at which key checks are sent where each second something is
    /// refused.
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
    fn key_checks_become_seldom_while_they_accept_the_key() {
        let mut refusals = Refusals::default();
        let sent = checks(&mut refusals, 0..300);
        assert_eq!(sent, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        // After a quiet time the first follow each other closely again.
        assert_eq!(checks(&mut refusals, 600..604), [600, 601, 603]);
    }

    #[test]
    fn what_a_verdict_does_to_the_next_key_check() {
        for (verdict, may_at_once) in [
            (KeyCheckResult::Refused, true),
            (KeyCheckResult::Accepted, false),
            (KeyCheckResult::NoStatus, false),
            (KeyCheckResult::Unclear, false),
            (KeyCheckResult::NotSent, true),
        ] {
            let mut refusals = Refusals::default();
            refusals.record_check(verdict, at(0));
            assert_eq!(refusals.may_check(at(0)), may_at_once, "{verdict:?}");
            assert!(refusals.may_check(at(1)), "{verdict:?}");
            let expected = verdict == KeyCheckResult::NoStatus;
            assert_eq!(refusals.has_no_status(), expected, "{verdict:?}");
        }
    }

    #[test]
    fn different_targets_in_a_row_speak_against_a_key() {
        let mut refusals = Refusals::default();
        for target in [1, 1, 2, 1, 2] {
            assert!(
                !refusals.count_target(target),
                "the same ones say nothing new"
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
        assert!(!refusals.count_target(6), "it begins anew");
    }
}
