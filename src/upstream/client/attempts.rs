//! Whether a request that has failed is sent again, where, and after what
//! pause. Pure but for what it is told.
//!
//! GET is safe to repeat (RFC 9110 §9.2.2), yet of use only where the cause may
//! have gone: a connection that ended, a server that is just being restarted.
//! A server that is slow or has failed at this request is not helped by another
//! one; where there is a second endpoint, that one is asked. What the server says
//! it has not processed is no failure: it goes again, whatever the method, a
//! bounded number of times (RFC 9113 §8.7).
//!
//! Deliberately absent: how many of all requests may be repeats
//! (`upstream::retry`), and the budget, which each of them is paid from.

use crate::upstream::{Failure, TimedOut, Unreachable};

/// How often a request is sent again that the server has not processed.
const MOST_UNPROCESSED: u32 = 5;

/// What has come of a request so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    /// Where it has been.
    been: Vec<usize>,
    /// Where it goes next, if that is said.
    next: Option<usize>,
    /// How often it was sent again to where it had been.
    repeats: u32,
    /// How often it was sent again since the server had not processed it.
    unprocessed: u32,
    /// How often a key was of no use.
    keys: usize,
    /// Whether it goes nowhere else.
    is_bound: bool,
}

/// How a request goes on that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAttempt {
    /// With another key, at once.
    OtherKey,
    /// At this endpoint, at once.
    Elsewhere(usize),
    /// Where it was, after a pause; so often it has been sent again before.
    Here(u32),
    /// Where it was, since the server has not processed it; so often it has been
    /// sent again before for that.
    Unprocessed(u32),
}

/// What another attempt could be good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing: it is ours, or about what was asked.
    None,
    /// Another key, or another host.
    OtherKey,
    /// Another endpoint.
    OtherEndpoint,
    /// Another endpoint, or the same again.
    Repeat,
}

impl Course {
    /// One that goes to this endpoint alone.
    pub(crate) fn only(at: usize) -> Self {
        Self {
            next: Some(at),
            is_bound: true,
            ..Self::default()
        }
    }

    /// Where it goes next, if that is said.
    pub(crate) fn next(&self) -> Option<usize> {
        self.next
    }

    /// Whether it counts as a failure if the server does not process it this time.
    pub(crate) fn is_last_resend(&self) -> bool {
        self.unprocessed >= MOST_UNPROCESSED
    }

    /// It has failed so at an endpoint. `another` knows a further endpoint that
    /// it has not been to; `keys` and `most` bound how often it goes on.
    pub(crate) fn fail(
        &mut self,
        failure: &Failure,
        at: usize,
        another: impl FnOnce(&[usize]) -> Option<usize>,
        keys: usize,
        most: u32,
    ) -> Option<NextAttempt> {
        if *failure == Failure::NotProcessed && !self.is_last_resend() {
            self.next = Some(at);
            self.unprocessed += 1;
            return Some(NextAttempt::Unprocessed(self.unprocessed - 1));
        }
        let remedy = failure.remedy();
        if remedy == Remedy::OtherKey && self.keys + 1 < keys {
            self.keys += 1;
            return Some(NextAttempt::OtherKey);
        }
        if self.is_bound {
            return None;
        }
        if !self.been.contains(&at) {
            self.been.push(at);
        }
        if remedy != Remedy::None
            && let Some(another) = another(&self.been)
        {
            self.next = Some(another);
            self.keys = 0;
            return Some(NextAttempt::Elsewhere(another));
        }
        if remedy == Remedy::Repeat && self.repeats < most {
            self.next = None;
            self.repeats += 1;
            return Some(NextAttempt::Here(self.repeats - 1));
        }
        None
    }
}

impl Failure {
    /// Whether each endpoint of the same host would fail so.
    pub(crate) fn is_of_host(&self) -> bool {
        self.remedy() == Remedy::OtherKey
    }

    /// What another attempt could be good for.
    pub(crate) fn remedy(&self) -> Remedy {
        match self {
            Self::KeyRefused(_) | Self::Throttled { .. } => Remedy::OtherKey,
            Self::Terminated
            | Self::NotProcessed
            | Self::Incomplete
            | Self::Excess {
                retry_after: None, ..
            }
            | Self::Unreachable(
                Unreachable::Refused
                | Unreachable::Name
                | Unreachable::NoRoute
                | Unreachable::Other,
            ) => Remedy::Repeat,
            Self::ServerError {
                status,
                retry_after: None,
            } if matches!(status.as_u16(), 502..=504) => Remedy::Repeat,
            Self::ServerError { .. }
            | Self::Excess { .. }
            | Self::Unreachable(
                Unreachable::Tls
                | Unreachable::Alert
                | Unreachable::ClientCertificate
                | Unreachable::Certificate,
            )
            | Self::TimedOut(TimedOut::Connect | TimedOut::FirstByte | TimedOut::Body)
            | Self::Protocol
            | Self::NotJson
            | Self::Redirect(_)
            | Self::Retired => Remedy::OtherEndpoint,
            Self::UnexpectedStatus(status) if !status.is_client_error() => Remedy::OtherEndpoint,
            Self::UnexpectedStatus(_)
            | Self::TargetRefused(_)
            // Another endpoint may well have it; but one that has not is to be
            // seen, and not hidden behind the others.
            | Self::NoSuchRoute { .. }
            | Self::TimedOut(TimedOut::Whole)
            | Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::TooLarge
            | Self::KeyEchoed
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => Remedy::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    fn server_error(status: u16, retry_after: Option<u64>) -> Failure {
        Failure::ServerError {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn what_is_sent_again_and_where() {
        let refused = Failure::Unreachable(Unreachable::Refused);
        let slow = Failure::TimedOut(TimedOut::FirstByte);
        let stalled = Failure::TimedOut(TimedOut::Body);
        let throttled = Failure::Throttled {
            retry_after: Duration::from_secs(3),
        };
        let forbidden = Failure::KeyRefused(StatusCode::FORBIDDEN);
        let forbidden_target = Failure::TargetRefused(StatusCode::FORBIDDEN);
        let no_such_route = Failure::NoSuchRoute {
            endpoint: "http://a".into(),
        };
        let excess = |status, retry_after: Option<u64>| Failure::Excess {
            status,
            retry_after: retry_after.map(Duration::from_secs),
        };
        let unavailable = Some(StatusCode::SERVICE_UNAVAILABLE);
        let not_found = Failure::UnexpectedStatus(StatusCode::MISDIRECTED_REQUEST);
        let here = Some(NextAttempt::Here(0));
        let unprocessed = Some(NextAttempt::Unprocessed(0));
        let there = Some(NextAttempt::Elsewhere(1));
        // With one endpoint and one key; with two endpoints; with two keys.
        let rows = [
            (Failure::Terminated, [here, there, here]),
            (Failure::Incomplete, [here, there, here]),
            (excess(None, None), [here, there, here]),
            (excess(unavailable, None), [here, there, here]),
            (excess(unavailable, Some(9)), [None, there, None]),
            (Failure::NotProcessed, [unprocessed; 3]),
            (refused, [here, there, here]),
            (server_error(502, None), [here, there, here]),
            (server_error(503, None), [here, there, here]),
            (server_error(503, Some(9)), [None, there, None]),
            (server_error(500, None), [None, there, None]),
            (slow, [None, there, None]),
            (stalled, [None, there, None]),
            (Failure::Protocol, [None, there, None]),
            (Failure::Retired, [None, there, None]),
            (Failure::TooLarge, [None, None, None]),
            (not_found, [None, None, None]),
            (throttled, [None, there, Some(NextAttempt::OtherKey)]),
            (forbidden, [None, there, Some(NextAttempt::OtherKey)]),
            (forbidden_target, [None, None, None]),
            (no_such_route, [None, None, None]),
        ];
        for (failure, expected) in rows {
            let one = Course::default().fail(&failure, 0, |_| None, 1, 2);
            let two = Course::default().fail(&failure, 0, |_| Some(1), 1, 2);
            let keys = Course::default().fail(&failure, 0, |_| None, 2, 2);
            assert_eq!([one, two, keys], expected, "{failure:?}");
        }
    }

    #[test]
    fn it_comes_to_an_end() {
        let another = |been: &[usize]| (0..2).find(|at| !been.contains(at));
        let mut course = Course::default();
        let mut at = 0;
        let mut ways = Vec::new();
        while let Some(again) = course.fail(&Failure::Terminated, at, another, 3, 2) {
            at = course.next().unwrap_or(0);
            ways.push(again);
        }
        let expected = [
            NextAttempt::Elsewhere(1),
            NextAttempt::Here(0),
            NextAttempt::Here(1),
        ];
        assert_eq!(ways, expected);
        let mut course = Course::default();
        let refused = Failure::KeyRefused(StatusCode::UNAUTHORIZED);
        let mut at = 0;
        let ways = std::iter::from_fn(|| {
            let again = course.fail(&refused, at, another, 3, 2);
            at = course.next().unwrap_or(0);
            again
        });
        let key = NextAttempt::OtherKey;
        let expected = [key, key, NextAttempt::Elsewhere(1), key, key];
        assert_eq!(ways.collect::<Vec<_>>(), expected);
        let mut course = Course::only(1);
        for before in 0..MOST_UNPROCESSED {
            let again = course.fail(&Failure::NotProcessed, 1, another, 3, 2);
            assert_eq!(again, Some(NextAttempt::Unprocessed(before)));
            assert_eq!(course.next(), Some(1));
        }
        assert!(course.is_last_resend());
        let again = course.fail(&Failure::NotProcessed, 1, another, 3, 2);
        assert_eq!(again, None, "it is bound to this one");
    }
}
