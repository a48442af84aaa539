//! A key that is out of service: why, for how long, and who sees whether it
//! works again. Pure: `now` is an argument.
//!
//! A spent quota comes back after days, at an hour that nobody knows; a key that
//! was refused comes back when its owner has seen to it. So the key rests for a
//! while, and then one request at a time tries it.
//!
//! Deliberately absent: a key that has been used too often in this minute; it
//! merely cools (`upstream::keys`).

use std::time::Duration;

use http::StatusCode;

use crate::clock::Moment;
use crate::upstream::admission::limit_report::MAX_WAIT;

/// How soon a key is tried again where a trial ended without telling anything.
const UNSETTLED: Duration = Duration::from_secs(60);
/// How long a key rests that was refused, at first; each refusal more doubles
/// it.
const REFUSED: Duration = Duration::from_secs(60);

/// Why a key rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CooldownReason {
    /// A quota of a day or a month is spent.
    QuotaSpent,
    /// The upstream has refused it, with this status.
    Refused(StatusCode),
}

/// A key's rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cooldown {
    /// Why.
    pub(crate) reason: CooldownReason,
    /// The pause that is under way, or was the last.
    pause: Duration,
    until: Moment,
    /// The number of the request that is trying it.
    trial: Option<u64>,
}

impl Cooldown {
    /// A rest for so long, since its quota is spent.
    pub(crate) fn quota_spent(lasts: Duration, now: Moment) -> Self {
        Self::new(CooldownReason::QuotaSpent, lasts.min(MAX_WAIT), now)
    }

    /// A quarantine, since the key was refused.
    pub(crate) fn refused(status: StatusCode, now: Moment) -> Self {
        Self::new(CooldownReason::Refused(status), REFUSED, now)
    }

    fn new(why: CooldownReason, pause: Duration, now: Moment) -> Self {
        Self {
            reason: why,
            pause,
            until: now + pause,
            trial: None,
        }
    }

    /// The key was refused when it was tried.
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

    /// How long nobody may try the key.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.until.since(now)
    }

    /// Whether a request is trying the key.
    pub(crate) fn is_in_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether the request of this number is trying the key. Another may have
    /// tried it in a rest before this one, and be under way yet.
    pub(crate) fn is_trial(&self, number: u64) -> bool {
        self.trial == Some(number)
    }

    /// Whether a request may try the key.
    pub(crate) fn is_trial_due(&self, now: Moment) -> bool {
        self.trial.is_none() && self.remaining(now).is_zero()
    }

    /// The request of this number tries the key.
    pub(crate) fn begin_trial(&mut self, number: u64) {
        self.trial = Some(number);
    }

    /// A trial has ended, and has told nothing of the key.
    pub(crate) fn end_trial_without_result(&mut self, now: Moment) {
        self.trial = None;
        self.until = now + UNSETTLED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn one_request_tries_a_key_whose_quota_was_spent() {
        let mut rest = Cooldown::quota_spent(Duration::from_secs(1 << 30), at(0));
        assert_eq!(rest.remaining(at(0)), MAX_WAIT);
        assert!(!rest.is_trial_due(at(3599)));
        assert!(rest.is_trial_due(at(3600)));
        rest.begin_trial(7);
        assert!(rest.is_trial(7) && !rest.is_trial(6));
        assert!(rest.is_in_trial() && !rest.is_trial_due(at(3601)));
        rest.end_trial_without_result(at(3610));
        assert!(!rest.is_in_trial() && !rest.is_trial_due(at(3669)));
        assert!(rest.is_trial_due(at(3670)));
    }

    #[test]
    fn a_key_that_is_refused_rests_longer_and_longer() {
        let (unauthorized, forbidden) = (StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
        let mut rest = Cooldown::refused(unauthorized, at(0));
        let mut now = 0;
        for pause in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(rest.remaining(at(now)), Duration::from_secs(pause));
            now += pause;
            assert!(rest.is_trial_due(at(now)) && !rest.is_trial_due(at(now - 1)));
            rest.begin_trial(1);
            rest = rest.refused_again(forbidden, at(now));
        }
        assert_eq!(rest.reason, CooldownReason::Refused(forbidden));
        // A trial that tells nothing lengthens nothing.
        rest.end_trial_without_result(at(now));
        assert!(rest.is_trial_due(at(now + 60)));
        let rest = Cooldown::quota_spent(MAX_WAIT, at(0)).refused_again(forbidden, at(5));
        assert_eq!(rest, Cooldown::refused(forbidden, at(5)));
    }
}
