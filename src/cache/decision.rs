//! What to do with a request: answer it from memory, ask the upstream, or
//! refuse it.
//!
//! The functions here are pure. Every request goes through one of them, and so does
//! `/explain`, which therefore reports what the gateway does.
//!
//! Not here: how a stored response is found, and how fresh it is. A route in
//! mode `chain` or `override` has its freshness from the chain or from the
//! route's times ([`Cache::judge`](super::Cache::judge)). In mode `respect` the
//! response's and the request's own fields decide ([`super::reuse`]).

use std::time::Duration;

use super::outcome::Forward;
use super::policy::Policy;
use super::reuse::Reuse;
use crate::chain::Freshness;

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
    /// To ask the upstream, since nothing stored is of use.
    pub(crate) const fn fetch(why: Forward) -> Self {
        Self::Fetch { why, stored: None }
    }
}

/// Modes `chain` and `override`: decides by how fresh the stored response is. `is_answer`
/// says whether it is of the requested block: a reorg may have separated the height it is
/// stored under from the hash in the request.
#[inline]
pub(crate) fn by_freshness<S>(
    policy: &Policy,
    stored: S,
    freshness: Freshness,
    is_answer: bool,
) -> Decision<S> {
    let (reuse, by) = match freshness {
        Freshness::Fresh { .. } | Freshness::BecameFinal { .. } => (Reuse::Fresh, Duration::ZERO),
        Freshness::Stale { by } => (Reuse::WhileRevalidate, by),
    };
    // RFC 5861: while the seconds that the route grants last.
    if reuse == Reuse::Fresh || by < policy.stale_while_revalidate {
        return match is_answer {
            true => Decision::Serve { stored, reuse },
            false => Decision::fetch(Forward::UriMiss),
        };
    }
    if by < policy.stale_if_error {
        let stored = is_answer.then_some(stored);
        let why = Forward::Stale;
        return Decision::Fetch { why, stored };
    }
    // Such a response has no further use, as if it were not stored.
    Decision::fetch(Forward::UriMiss)
}

/// Mode `respect`: decides by what the fields say of the selected stored response, or why
/// there is none.
pub(crate) fn by_fields<S>(
    selected: Result<S, Forward>,
    reuse: impl FnOnce(&S) -> Result<Reuse, Forward>,
    is_only_if_cached: bool,
) -> Decision<S> {
    let (why, stored) = match selected.map(|stored| (reuse(&stored), stored)) {
        Ok((Ok(reuse), stored)) => return Decision::Serve { stored, reuse },
        Ok((Err(why), stored)) => (why, Some(stored)),
        Err(why) => (why, None),
    };
    match is_only_if_cached {
        true => Decision::OnlyIfCached,
        false => Decision::Fetch { why, stored },
    }
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
