//! A key that is out of service: why, for how long, and who sees whether it
//! works again. Pure: `now` is an argument.
//!
//! A spent quota comes back after days, at an hour that nobody knows. So the
//! key rests for a while, and then one request at a time tries it.
//!
//! Deliberately absent: a key that has been used too often in this minute; it
//! merely cools (`upstream::keys`).

use std::time::Duration;

use super::reported::MOST_WAIT;
use crate::clock::Moment;

/// How soon a key is tried again where a trial ended without telling anything.
const UNSETTLED: Duration = Duration::from_secs(60);

/// Why a key rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A quota of a day or a month is spent.
    QuotaSpent,
}

/// A key's rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Why.
    pub why: Why,
    until: Moment,
    /// Whether a request is trying it.
    tried: bool,
}

impl Rest {
    /// A rest for so long, since its quota is spent.
    pub fn quota_spent(lasts: Duration, now: Moment) -> Self {
        Self {
            why: Why::QuotaSpent,
            until: now + lasts.min(MOST_WAIT),
            tried: false,
        }
    }

    /// How long nobody may try the key.
    pub fn left(&self, now: Moment) -> Duration {
        self.until.since(now)
    }

    /// Whether a request is trying the key.
    pub fn is_tried(&self) -> bool {
        self.tried
    }

    /// Whether a request may try the key.
    pub fn is_over(&self, now: Moment) -> bool {
        !self.tried && self.left(now).is_zero()
    }

    /// A request tries the key.
    pub fn begin_trial(&mut self) {
        self.tried = true;
    }

    /// A trial has ended, and has told nothing of the key.
    pub fn unsettled(&mut self, now: Moment) {
        self.tried = false;
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
        let mut rest = Rest::quota_spent(Duration::from_secs(1 << 30), at(0));
        assert_eq!(rest.left(at(0)), MOST_WAIT);
        assert!(!rest.is_over(at(3599)));
        assert!(rest.is_over(at(3600)));
        rest.begin_trial();
        assert!(rest.is_tried() && !rest.is_over(at(3601)));
        rest.unsettled(at(3610));
        assert!(!rest.is_tried() && !rest.is_over(at(3669)));
        assert!(rest.is_over(at(3670)));
    }
}
