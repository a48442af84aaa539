//! What to do with a request: answer it from memory, ask the upstream, or
//! refuse it.
//!
//! [`decide`] is pure. Every request goes through it, on routes of all modes,
//! and so does `/explain`, which therefore reports what the gateway does.
//!
//! Not here: how a stored response is found, and how fresh it is. A route in
//! mode `chain` or `override` has its freshness from the chain or from the
//! route's times ([`Cache::judge`](super::Cache::judge)). In mode `respect` the
//! response's and the request's own fields decide ([`super::reuse`]).

use std::time::{Duration, SystemTime};

use super::directives::RequestDirectives;
use super::outcome::Forward;
use super::policy::{Mode, Policy};
use super::reuse::{Origin, Reuse, StaleBounds, StoredFacts, may_reuse};
use crate::chain::Freshness;
use crate::clock::Moment;

/// What to do with a request. `S` is the stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<S> {
    /// Answer with a stored response.
    Serve {
        /// The response.
        stored: S,
        /// Why it may answer.
        reuse: Reuse,
    },
    /// Ask the upstream.
    Fetch {
        /// Why memory does not answer.
        why: Forward,
        /// A stored response that is worth validating, or that may answer where
        /// the upstream fails.
        stored: Option<S>,
    },
    /// Answer 504: nothing stored may answer, and the client forbids asking the
    /// upstream (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

impl<S> Decision<S> {
    const fn fetch(why: Forward) -> Self {
        Self::Fetch { why, stored: None }
    }
}

/// What of a request takes part in the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFacts<'r> {
    /// Why no stored response may answer it, whatever is stored
    /// ([`applies`](super::reuse::applies)).
    pub(crate) not_reusable: Option<Forward>,
    /// Its cache directives.
    pub(crate) directives: &'r RequestDirectives,
    /// Whether it has preconditions that only the origin evaluates (RFC 9111
    /// §4.3.2).
    pub(crate) for_the_origin: bool,
    /// What is known of the origin.
    pub(crate) origin: Origin,
}

impl RequestFacts<'static> {
    /// A request on a route in mode `chain`, `override` or `off`: its fields do
    /// not take part.
    pub(crate) const IGNORED: Self = Self {
        not_reusable: None,
        directives: &RequestDirectives {
            no_cache: false,
            no_store: false,
            no_transform: false,
            only_if_cached: false,
            max_age: None,
            min_fresh: None,
            max_stale: None,
            stale_if_error: None,
        },
        for_the_origin: false,
        origin: Origin::Reachable,
    };
}

/// By what a stored response is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Basis<'s> {
    /// Modes `chain` and `override`.
    Route {
        /// How fresh it is now.
        freshness: Freshness,
        /// Whether it is of the requested block: a reorg may have separated the
        /// height it is stored under from the hash in the request.
        is_answer: bool,
    },
    /// Mode `respect`.
    Origin {
        /// What the origin's fields say.
        facts: &'s StoredFacts,
        /// The time of the request.
        now: SystemTime,
    },
}

/// Decides what to do with a request. `select` returns the stored response that
/// matches it, or why there is none; it is not called where none may answer.
/// `basis` returns what decides whether that response may answer.
#[inline]
pub(crate) fn decide<S>(
    policy: &Policy,
    request: &RequestFacts<'_>,
    select: impl FnOnce() -> Result<S, Forward>,
    basis: impl FnOnce(&S) -> Basis<'_>,
) -> Decision<S> {
    if policy.mode == Mode::Off {
        return Decision::fetch(Forward::Bypass);
    }
    if let Some(why) = request.not_reusable {
        return Decision::fetch(why);
    }
    let (why, stored) = match select() {
        Err(why) => (why, None),
        Ok(_) if request.for_the_origin => (Forward::Request, None),
        Ok(stored) => match basis(&stored) {
            Basis::Route {
                freshness,
                is_answer,
            } => match by_route(policy, freshness, is_answer) {
                Ok(reuse) => return Decision::Serve { stored, reuse },
                Err((why, may_stand_in)) => (why, may_stand_in.then_some(stored)),
            },
            Basis::Origin { facts, now } => {
                let bounds = stale_bounds(policy);
                match may_reuse(request.directives, facts, now, request.origin, &bounds) {
                    Ok(reuse) => return Decision::Serve { stored, reuse },
                    Err(why) => (why, Some(stored)),
                }
            }
        },
    };
    match request.directives.only_if_cached {
        true => Decision::OnlyIfCached,
        false => Decision::Fetch { why, stored },
    }
}

/// Modes `chain` and `override`. The error says why the upstream is asked, and
/// whether the stored response may answer if that fails.
#[inline]
fn by_route(
    policy: &Policy,
    freshness: Freshness,
    is_answer: bool,
) -> Result<Reuse, (Forward, bool)> {
    let (reuse, by) = match freshness {
        Freshness::Fresh { .. } | Freshness::BecameFinal { .. } => (Reuse::Fresh, Duration::ZERO),
        Freshness::Stale { by } => (Reuse::WhileRevalidate, by),
    };
    // RFC 5861: while the seconds that the route grants last.
    if reuse == Reuse::Fresh || by < policy.stale_while_revalidate {
        return match is_answer {
            true => Ok(reuse),
            false => Err((Forward::UriMiss, false)),
        };
    }
    match by < policy.stale_if_error {
        true => Err((Forward::Stale, is_answer)),
        // Such a response has no further use, as if it were not stored.
        false => Err((Forward::UriMiss, false)),
    }
}

/// How stale a response may be on a route in mode `respect` whose origin is in
/// trouble.
pub(crate) const fn stale_bounds(policy: &Policy) -> StaleBounds {
    StaleBounds {
        failed: policy.stale_if_error,
        disconnected: policy.stale_if_error,
    }
}

/// The freshness of a response that was received at a moment, by its lifetime
/// alone. Its age is the time since then: RFC 9111 §4.2.3 with an `age` of zero,
/// since in mode `override` the lifetime counts from the receipt.
#[inline]
pub(crate) fn freshness_by_time(received: Moment, lifetime: Duration, now: Moment) -> Freshness {
    freshness_by_age(now.since(received), lifetime)
}

/// The freshness of a response of this age and lifetime (RFC 9111 §4.2).
#[inline]
pub(crate) fn freshness_by_age(age: Duration, lifetime: Duration) -> Freshness {
    match lifetime.checked_sub(age) {
        Some(ttl) if !ttl.is_zero() => Freshness::Fresh { ttl },
        _ => Freshness::Stale {
            by: age.saturating_sub(lifetime),
        },
    }
}

#[cfg(test)]
mod tests;
