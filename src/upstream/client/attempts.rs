//! Whether and where a failed request is sent again. Pure.
//!
//! GET is safe to repeat (RFC 9110 §9.2.2), but that is useful only if the cause may
//! have gone: a connection that ended, a server that is being restarted. A server
//! that is slow, or has failed with this request, is not sent it again; another
//! endpoint is.
//!
//! Deliberately absent: the share of retries among all requests (`retry_budget`),
//! and pauses (`retry`).

use crate::upstream::{Failure, TimedOut, Unreachable};

/// The attempts of one request so far. Endpoints are given by their indexes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    /// The endpoints at which it has failed.
    tried: Vec<usize>,
    /// The endpoint of the next attempt; `None` for the selected one.
    next: Option<usize>,
    /// How often it was repeated after a failure.
    repeats: u32,
    /// How many keys the present endpoint has refused.
    refused_keys: usize,
    /// Whether it is sent to no other endpoint.
    is_pinned: bool,
}

/// The next attempt of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAttempt {
    /// With another key, at once.
    OtherKey,
    /// At this endpoint, at once.
    OtherEndpoint(usize),
    /// At the selected endpoint, after a pause; the number counts earlier repeats.
    Repeat(u32),
}

/// What an attempt after a failure could be useful with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retryable {
    /// Nothing: the failure is ordgate's own, or about the target.
    Never,
    /// Another key, or another host.
    OtherKey,
    /// Another endpoint.
    OtherEndpoint,
    /// Another endpoint, or the same again.
    Anywhere,
}

impl Attempts {
    /// Those of a request that is sent to this endpoint alone.
    pub(crate) fn only(at: usize) -> Self {
        Self {
            next: Some(at),
            is_pinned: true,
            ..Self::default()
        }
    }

    /// The endpoint of the next attempt; `None` for the selected one.
    pub(crate) fn next_endpoint(&self) -> Option<usize> {
        self.next
    }

    /// Takes in a failure at an endpoint, and decides on the next attempt. `other`
    /// returns an endpoint that is not among those tried; `keys` is the number of
    /// keys, `limit` that of repeats.
    pub(crate) fn fail(
        &mut self,
        failure: &Failure,
        at: usize,
        other: impl FnOnce(&[usize]) -> Option<usize>,
        keys: usize,
        limit: u32,
    ) -> Option<NextAttempt> {
        let retryable = failure.retryable();
        if retryable == Retryable::OtherKey && self.refused_keys + 1 < keys {
            self.refused_keys += 1;
            return Some(NextAttempt::OtherKey);
        }
        if self.is_pinned {
            return None;
        }
        if !self.tried.contains(&at) {
            self.tried.push(at);
        }
        if retryable != Retryable::Never
            && let Some(other) = other(&self.tried)
        {
            self.next = Some(other);
            self.refused_keys = 0;
            return Some(NextAttempt::OtherEndpoint(other));
        }
        if retryable == Retryable::Anywhere && self.repeats < limit {
            self.next = None;
            self.repeats += 1;
            return Some(NextAttempt::Repeat(self.repeats - 1));
        }
        None
    }
}

impl Failure {
    /// Whether each endpoint of the same host would fail in the same way.
    pub(crate) fn is_of_host(&self) -> bool {
        self.retryable() == Retryable::OtherKey
    }

    fn retryable(&self) -> Retryable {
        match self {
            Self::KeyRefused(_) | Self::Throttled { .. } => Retryable::OtherKey,
            Self::Terminated
            | Self::Incomplete
            | Self::Unreachable(
                Unreachable::Refused
                | Unreachable::Name
                | Unreachable::NoRoute
                | Unreachable::Other,
            ) => Retryable::Anywhere,
            Self::ServerError {
                status,
                retry_after: None,
            } if matches!(status.as_u16(), 502..=504) => Retryable::Anywhere,
            Self::ServerError { .. }
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
            | Self::Retired => Retryable::OtherEndpoint,
            Self::UnexpectedStatus(status) if !status.is_client_error() => Retryable::OtherEndpoint,
            Self::UnexpectedStatus(_)
            | Self::TargetRefused(_)
            // Another endpoint may have the route; but an endpoint without it must not
            // be hidden behind the others.
            | Self::NoSuchRoute { .. }
            | Self::TimedOut(TimedOut::Whole)
            | Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::TooLarge
            | Self::KeyEchoed
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => Retryable::Never,
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
    fn each_failure_has_its_next_attempt() {
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
        let not_found = Failure::UnexpectedStatus(StatusCode::MISDIRECTED_REQUEST);
        let here = Some(NextAttempt::Repeat(0));
        let there = Some(NextAttempt::OtherEndpoint(1));
        // With one endpoint and one key; with two endpoints; with two keys.
        let rows = [
            (Failure::Terminated, [here, there, here]),
            (Failure::Incomplete, [here, there, here]),
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
            let one = Attempts::default().fail(&failure, 0, |_| None, 1, 2);
            let two = Attempts::default().fail(&failure, 0, |_| Some(1), 1, 2);
            let keys = Attempts::default().fail(&failure, 0, |_| None, 2, 2);
            assert_eq!([one, two, keys], expected, "{failure:?}");
        }
    }

    #[test]
    fn attempts_come_to_an_end() {
        let other = |tried: &[usize]| (0..2).find(|at| !tried.contains(at));
        let mut attempts = Attempts::default();
        let mut at = 0;
        let mut made = Vec::new();
        while let Some(next) = attempts.fail(&Failure::Terminated, at, other, 3, 2) {
            at = attempts.next_endpoint().unwrap_or(0);
            made.push(next);
        }
        let expected = [
            NextAttempt::OtherEndpoint(1),
            NextAttempt::Repeat(0),
            NextAttempt::Repeat(1),
        ];
        assert_eq!(made, expected);
        let mut attempts = Attempts::default();
        let refused = Failure::KeyRefused(StatusCode::UNAUTHORIZED);
        let mut at = 0;
        let made = std::iter::from_fn(|| {
            let next = attempts.fail(&refused, at, other, 3, 2);
            at = attempts.next_endpoint().unwrap_or(0);
            next
        });
        let key = NextAttempt::OtherKey;
        let expected = [key, key, NextAttempt::OtherEndpoint(1), key, key];
        assert_eq!(made.collect::<Vec<_>>(), expected);
    }
}
