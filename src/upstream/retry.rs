//! Whether and where a request that has failed is sent again.
//!
//! GET is safe to repeat (RFC 9110 §9.2.2), but that is useful only if the cause may have
//! gone: a connection that ended, a server that is being restarted. A server that is slow,
//! or has failed with this request, is not sent it again; another base URL is, each once.
//! At the same one a request is repeated once, within a budget of retries: a server that
//! fails under its load gets only a little more of it, and a rare failure is nearly always
//! retried (Google's "Site Reliability Engineering", chapter 21).

use std::time::Duration;

use super::Place;
use super::failure::{Failure, Retry};
use crate::clock::Moment;

/// The longest pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// So many retries are allowed when there are few requests,
const RESERVE: f64 = 3.0;
/// and again after this time.
const RESTORED: Duration = Duration::from_secs(10);
/// Beside them, one for so many requests.
const REQUESTS: f64 = 5.0;

/// The attempts of one request so far. Endpoints are given by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Tried {
    /// The endpoints at which it has failed.
    endpoints: Vec<usize>,
    place: Place,
    /// Whether it was repeated.
    is_repeated: bool,
    /// How many keys the present endpoint has refused.
    refused_keys: usize,
}

/// The next attempt of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextAttempt {
    /// At once.
    Now,
    /// After a pause, at the selected endpoint, if the budget of retries allows it.
    Repeat,
}

impl Tried {
    /// Those of a request that is sent to this endpoint alone.
    pub(super) fn only(at: usize) -> Self {
        Self {
            place: Place::Only(at),
            ..Self::default()
        }
    }

    /// Where the next attempt goes.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Takes in a failure at an endpoint, and decides on the next attempt. `other` returns an
    /// endpoint that is not among those tried; `keys` is the number of keys.
    pub(super) fn fail(
        &mut self,
        failure: &Failure,
        at: usize,
        other: impl FnOnce(&[usize]) -> Option<usize>,
        keys: usize,
    ) -> Option<NextAttempt> {
        let retry = failure.retry();
        if retry == Retry::OtherKey && self.refused_keys + 1 < keys {
            self.refused_keys += 1;
            return Some(NextAttempt::Now);
        }
        if retry == Retry::Never || matches!(self.place, Place::Only(_)) {
            return None;
        }
        if !self.endpoints.contains(&at) {
            self.endpoints.push(at);
        }
        if let Some(other) = other(&self.endpoints) {
            (self.place, self.refused_keys) = (Place::Other(other), 0);
            return Some(NextAttempt::Now);
        }
        let repeats = retry == Retry::Anywhere && !self.is_repeated;
        repeats.then(|| {
            (self.place, self.is_repeated) = (Place::Selected, true);
            NextAttempt::Repeat
        })
    }
}

/// How many requests are repeated.
#[derive(Clone, Debug)]
pub(super) struct RetryBudget {
    left: f64,
    at: Moment,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            left: RESERVE,
            at: Moment::default(),
        }
    }
}

impl RetryBudget {
    /// Counts the first attempt of a request.
    pub(super) fn deposit(&mut self) {
        self.left = (self.left + 1.0 / REQUESTS).min(RESERVE * 10.0);
    }

    /// Takes a retry; `false` if none is left.
    pub(super) fn withdraw(&mut self, now: Moment) -> bool {
        let restored = now.since(self.at).as_secs_f64() / RESTORED.as_secs_f64() * RESERVE;
        self.at = now;
        if self.left < RESERVE {
            self.left = (self.left + restored).min(RESERVE);
        }
        let is_left = self.left >= 1.0;
        self.left -= f64::from(u8::from(is_left));
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
    use http::StatusCode;

    use super::*;
    use crate::reason::Reason;

    #[test]
    fn what_is_tried_next() {
        let of = Failure::new;
        let server_error = |status| Failure::status(Reason::ServerError, status);
        let (now, repeat) = (Some(NextAttempt::Now), Some(NextAttempt::Repeat));
        // the failures in turn, endpoints, keys: what follows each
        for (failures, endpoints, keys, expected) in [
            (
                vec![of(Reason::ConnectionClosed); 2],
                1,
                1,
                vec![repeat, None],
            ),
            (
                vec![of(Reason::ConnectionRefused); 4],
                3,
                1,
                vec![now, now, repeat, None],
            ),
            (vec![of(Reason::UpstreamTimeout); 2], 2, 1, vec![now, None]),
            (vec![of(Reason::Throttled); 3], 1, 3, vec![now, now, None]),
            (
                vec![of(Reason::KeyRefused); 4],
                2,
                2,
                vec![now, now, now, None],
            ),
            (
                vec![server_error(StatusCode::BAD_GATEWAY); 2],
                1,
                1,
                vec![repeat, None],
            ),
            (
                vec![server_error(StatusCode::INTERNAL_SERVER_ERROR)],
                1,
                1,
                vec![None],
            ),
            (vec![of(Reason::AnswerTooLarge)], 2, 2, vec![None]),
            (vec![of(Reason::OverBudget)], 2, 2, vec![None]),
        ] {
            let mut tried = Tried::default();
            let mut at = 0;
            let found = failures.iter().map(|failure| {
                let other = |tried: &[usize]| (0..endpoints).find(|at| !tried.contains(at));
                let next = tried.fail(failure, at, other, keys);
                at = match tried.place() {
                    Place::Other(other) => other,
                    Place::Selected | Place::Only(_) => 0,
                };
                next
            });
            assert_eq!(found.collect::<Vec<_>>(), expected, "{failures:?}");
        }
        let mut only = Tried::only(1);
        let failure = of(Reason::ConnectionRefused);
        assert_eq!(only.fail(&failure, 1, |_| Some(0), 1), None);
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests_and_a_reserve() {
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let mut budget = RetryBudget::default();
        let mut retries = |requests: u32, now| {
            (0..requests).for_each(|_| budget.deposit());
            (0..1000).take_while(|_| budget.withdraw(now)).count()
        };
        assert_eq!(retries(0, at(0)), 3);
        assert_eq!(retries(0, at(0)), 0);
        assert_eq!(retries(51, at(0)), 10);
        assert_eq!(retries(0, at(10)), 3, "the reserve");
        assert_eq!(retries(0, at(1000)), 3);
        assert_eq!(retries(100_000, at(1000)), 30);
    }
}
