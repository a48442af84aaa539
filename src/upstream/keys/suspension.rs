//! The suspension of a key: its reason (a quarantine, because the upstream refused the
//! key, or a spent quota), its end, and the trial after it. Pure: `now` is an argument.
//!
//! A long-term quota is renewed after days, at an unknown hour; a refused key works
//! again when its owner has acted. So the key is unused for a while, and then a single
//! request at a time tries it.
//!
//! Deliberately absent: the cooldown after a 429 (`KeyState::cooldown_until`).

use std::time::Duration;

use http::StatusCode;

use crate::clock::Moment;
use crate::upstream::admission::limit_report::MAX_WAIT;

/// The time to the next trial after one without a result.
const NEXT_TRIAL: Duration = Duration::from_secs(60);
/// The first quarantine of a refused key; each further refusal doubles it.
const QUARANTINE: Duration = Duration::from_secs(60);

/// Why a key is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspensionReason {
    /// A quota of a day or a month is exhausted.
    QuotaSpent,
    /// The upstream has refused the key with this status (quarantine).
    Refused(StatusCode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspension {
    /// Why the key is suspended.
    pub(crate) reason: SuspensionReason,
    /// The length of this suspension.
    length: Duration,
    until: Moment,
    /// The number of the request that tries the key.
    trial: Option<u64>,
}

impl Suspension {
    /// The quota is exhausted for this time, or an hour if that is shorter.
    pub(crate) fn quota_spent(lasts: Duration, now: Moment) -> Self {
        Self::new(SuspensionReason::QuotaSpent, lasts.min(MAX_WAIT), now)
    }

    /// The quota is exhausted until a moment, as an earlier process has known it.
    pub(crate) fn quota_spent_until(until: Moment) -> Self {
        Self::new(SuspensionReason::QuotaSpent, Duration::ZERO, until)
    }

    /// A quarantine that begins here because another replica has found the key refused. A
    /// trial is due at once.
    pub(crate) fn refused_elsewhere(status: StatusCode, now: Moment) -> Self {
        Self {
            until: now,
            ..Self::refused(status, now)
        }
    }

    /// When a trial may begin after the quota was exhausted; `None` for a refused key.
    pub(crate) fn quota_ends(&self) -> Option<Moment> {
        match self.reason {
            SuspensionReason::QuotaSpent => Some(self.until),
            SuspensionReason::Refused(_) => None,
        }
    }

    /// The first quarantine of a refused key.
    pub(crate) fn refused(status: StatusCode, now: Moment) -> Self {
        Self::new(SuspensionReason::Refused(status), QUARANTINE, now)
    }

    fn new(why: SuspensionReason, length: Duration, now: Moment) -> Self {
        Self {
            reason: why,
            length,
            until: now + length,
            trial: None,
        }
    }

    /// The suspension after a trial was refused: twice as long, up to an hour.
    #[must_use]
    pub(crate) fn refused_again(self, status: StatusCode, now: Moment) -> Self {
        match self.reason {
            SuspensionReason::Refused(_) => {
                let length = self.length.saturating_mul(2).min(MAX_WAIT);
                Self::new(SuspensionReason::Refused(status), length, now)
            }
            SuspensionReason::QuotaSpent => Self::refused(status, now),
        }
    }

    /// The time until a trial may begin.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.until.since(now)
    }

    pub(crate) fn is_in_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether the request of this number is the trial. The trial of an earlier
    /// suspension may still be in flight.
    pub(crate) fn is_trial(&self, number: u64) -> bool {
        self.trial == Some(number)
    }

    /// Whether a trial may begin.
    pub(crate) fn is_trial_due(&self, now: Moment) -> bool {
        self.trial.is_none() && self.remaining(now).is_zero()
    }

    pub(crate) fn begin_trial(&mut self, number: u64) {
        self.trial = Some(number);
    }

    /// The trial has ended without a result.
    pub(crate) fn end_trial_without_result(&mut self, now: Moment) {
        self.trial = None;
        self.until = now + NEXT_TRIAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn one_request_tries_a_key_after_its_quota_was_spent() {
        let mut suspension = Suspension::quota_spent(Duration::from_secs(1 << 30), at(0));
        assert_eq!(suspension.remaining(at(0)), MAX_WAIT);
        assert!(!suspension.is_trial_due(at(3599)));
        assert!(suspension.is_trial_due(at(3600)));
        suspension.begin_trial(7);
        assert!(suspension.is_trial(7) && !suspension.is_trial(6));
        assert!(suspension.is_in_trial() && !suspension.is_trial_due(at(3601)));
        suspension.end_trial_without_result(at(3610));
        assert!(!suspension.is_in_trial() && !suspension.is_trial_due(at(3669)));
        assert!(suspension.is_trial_due(at(3670)));
    }

    #[test]
    fn each_refused_trial_doubles_the_quarantine() {
        let (unauthorized, forbidden) = (StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
        let mut suspension = Suspension::refused(unauthorized, at(0));
        let mut now = 0;
        for length in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(suspension.remaining(at(now)), Duration::from_secs(length));
            now += length;
            assert!(suspension.is_trial_due(at(now)) && !suspension.is_trial_due(at(now - 1)));
            suspension.begin_trial(1);
            suspension = suspension.refused_again(forbidden, at(now));
        }
        assert_eq!(suspension.reason, SuspensionReason::Refused(forbidden));
        // A trial without a result does not lengthen it.
        suspension.end_trial_without_result(at(now));
        assert!(suspension.is_trial_due(at(now + 60)));
        let suspension = Suspension::quota_spent(MAX_WAIT, at(0)).refused_again(forbidden, at(5));
        assert_eq!(suspension, Suspension::refused(forbidden, at(5)));
    }
}
