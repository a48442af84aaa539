//! The cooldown of a key that is out of service: its reason, its end, and the trial
//! after it. Pure: `now` is an argument.
//!
//! A long-term quota is renewed after days, at an unknown hour; a refused key works
//! again when its owner has acted. So the key is unused for a while, and then a single
//! request at a time tries it.
//!
//! Deliberately absent: the short pause after a 429 (`KeyState::throttled_until`).

use std::time::Duration;

use http::StatusCode;

use crate::clock::Moment;
use crate::upstream::admission::limit_report::MAX_WAIT;

/// The time to the next trial after one without a result.
const NEXT_TRIAL: Duration = Duration::from_secs(60);
/// The first quarantine of a refused key; each further refusal doubles it.
const QUARANTINE: Duration = Duration::from_secs(60);

/// Why a key is out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CooldownReason {
    /// A quota of a day or a month is exhausted.
    QuotaSpent,
    /// The upstream has refused the key with this status (quarantine).
    Refused(StatusCode),
}

/// The cooldown of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cooldown {
    /// Why the key is out of service.
    pub(crate) reason: CooldownReason,
    /// The length of this cooldown.
    pause: Duration,
    until: Moment,
    /// The number of the request that tries the key.
    trial: Option<u64>,
}

impl Cooldown {
    /// The quota is exhausted for this time, or an hour if that is shorter.
    pub(crate) fn quota_spent(lasts: Duration, now: Moment) -> Self {
        Self::new(CooldownReason::QuotaSpent, lasts.min(MAX_WAIT), now)
    }

    /// The first quarantine of a refused key.
    pub(crate) fn refused(status: StatusCode, now: Moment) -> Self {
        Self::new(CooldownReason::Refused(status), QUARANTINE, now)
    }

    fn new(why: CooldownReason, pause: Duration, now: Moment) -> Self {
        Self {
            reason: why,
            pause,
            until: now + pause,
            trial: None,
        }
    }

    /// The cooldown after a trial was refused: twice as long, up to an hour.
    #[must_use]
    pub(crate) fn refused_again(self, status: StatusCode, now: Moment) -> Self {
        match self.reason {
            CooldownReason::Refused(_) => {
                let pause = self.pause.saturating_mul(2).min(MAX_WAIT);
                Self::new(CooldownReason::Refused(status), pause, now)
            }
            CooldownReason::QuotaSpent => Self::refused(status, now),
        }
    }

    /// The time until a trial may begin.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.until.since(now)
    }

    /// Whether a trial is in flight.
    pub(crate) fn is_in_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether the request of this number is the trial. The trial of an earlier
    /// cooldown may still be in flight.
    pub(crate) fn is_trial(&self, number: u64) -> bool {
        self.trial == Some(number)
    }

    /// Whether a trial may begin.
    pub(crate) fn is_trial_due(&self, now: Moment) -> bool {
        self.trial.is_none() && self.remaining(now).is_zero()
    }

    /// The request of this number is the trial.
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
        let mut cooldown = Cooldown::quota_spent(Duration::from_secs(1 << 30), at(0));
        assert_eq!(cooldown.remaining(at(0)), MAX_WAIT);
        assert!(!cooldown.is_trial_due(at(3599)));
        assert!(cooldown.is_trial_due(at(3600)));
        cooldown.begin_trial(7);
        assert!(cooldown.is_trial(7) && !cooldown.is_trial(6));
        assert!(cooldown.is_in_trial() && !cooldown.is_trial_due(at(3601)));
        cooldown.end_trial_without_result(at(3610));
        assert!(!cooldown.is_in_trial() && !cooldown.is_trial_due(at(3669)));
        assert!(cooldown.is_trial_due(at(3670)));
    }

    #[test]
    fn each_refused_trial_doubles_the_quarantine() {
        let (unauthorized, forbidden) = (StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
        let mut cooldown = Cooldown::refused(unauthorized, at(0));
        let mut now = 0;
        for pause in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(cooldown.remaining(at(now)), Duration::from_secs(pause));
            now += pause;
            assert!(cooldown.is_trial_due(at(now)) && !cooldown.is_trial_due(at(now - 1)));
            cooldown.begin_trial(1);
            cooldown = cooldown.refused_again(forbidden, at(now));
        }
        assert_eq!(cooldown.reason, CooldownReason::Refused(forbidden));
        // A trial without a result does not lengthen it.
        cooldown.end_trial_without_result(at(now));
        assert!(cooldown.is_trial_due(at(now + 60)));
        let cooldown = Cooldown::quota_spent(MAX_WAIT, at(0)).refused_again(forbidden, at(5));
        assert_eq!(cooldown, Cooldown::refused(forbidden, at(5)));
    }
}
