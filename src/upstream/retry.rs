//! Whether and where a request that has failed is sent again, once.
//!
//! GET is safe to repeat (RFC 9110 §9.2.2), but that is useful only if the cause may have
//! gone: a connection that ended, a server that is being restarted. A server that is slow,
//! or has failed with this request, is not sent it again; another base URL is, and another
//! key is used where one was refused. At the same one a request is repeated within a budget of
//! retries: a server that fails under its load gets only a little more of it, and a rare
//! failure is nearly always retried (Google's "Site Reliability Engineering", chapter 21).

use std::time::Duration;

use super::failure::Retry;

/// The longest pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// So many retries are allowed at first, and at most ten times as many later.
const RESERVE: f64 = 3.0;
/// One more for so many requests.
const REQUESTS: f64 = 5.0;

/// The next attempt of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextAttempt {
    /// At once, with another key.
    OtherKey,
    /// At once, at another endpoint.
    Elsewhere(usize),
    /// After a pause, in the same way.
    Repeat,
}

impl NextAttempt {
    /// The attempt after a failure, where there are so many keys, and perhaps another usable
    /// endpoint.
    pub(super) fn after(retry: Retry, keys: usize, other: Option<usize>) -> Option<Self> {
        match (retry, other) {
            (Retry::Never, _) => None,
            (Retry::OtherKey, _) if keys > 1 => Some(Self::OtherKey),
            (_, Some(other)) => Some(Self::Elsewhere(other)),
            (Retry::Anywhere, None) => Some(Self::Repeat),
            (Retry::OtherKey | Retry::Elsewhere, None) => None,
        }
    }
}

/// How many requests may still be repeated.
#[derive(Debug)]
pub(super) struct RetryBudget(f64);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(RESERVE)
    }
}

impl RetryBudget {
    /// Counts the first attempt of a request.
    pub(super) fn deposit(&mut self) {
        self.0 = (self.0 + 1.0 / REQUESTS).min(RESERVE * 10.0);
    }

    /// Takes a retry; `false` if none is left.
    pub(super) fn withdraw(&mut self) -> bool {
        let is_left = self.0 >= 1.0;
        self.0 -= f64::from(u8::from(is_left));
        is_left
    }
}

/// The pause before a request is repeated: a random one, so that requests that failed
/// together do not return together.
pub(super) fn pause() -> Duration {
    PAUSE.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_next() {
        use NextAttempt::{Elsewhere, OtherKey, Repeat};
        for (retry, keys, other, expected) in [
            (Retry::Never, 2, Some(1), None),
            (Retry::OtherKey, 2, Some(1), Some(OtherKey)),
            (Retry::OtherKey, 1, Some(1), Some(Elsewhere(1))),
            (Retry::OtherKey, 1, None, None),
            (Retry::Elsewhere, 2, Some(1), Some(Elsewhere(1))),
            (Retry::Elsewhere, 2, None, None),
            (Retry::Anywhere, 1, Some(1), Some(Elsewhere(1))),
            (Retry::Anywhere, 1, None, Some(Repeat)),
        ] {
            assert_eq!(
                NextAttempt::after(retry, keys, other),
                expected,
                "{retry:?} {other:?}"
            );
        }
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_and_a_reserve() {
        let mut budget = RetryBudget::default();
        let mut retries = |requests: u32| {
            (0..requests).for_each(|_| budget.deposit());
            (0..1000).take_while(|_| budget.withdraw()).count()
        };
        assert_eq!(retries(0), 3);
        assert_eq!(retries(0), 0);
        assert_eq!(retries(51), 10);
        assert_eq!(retries(100_000), 30);
    }
}
