//! Whether a stored response may answer a request now, in mode `respect` (RFC 9111 §4, §4.2.4,
//! §5.2.1; RFC 5861).
//!
//! Called by [`super::decision`] for each request, and again when the upstream has failed. The target,
//! the method and `Vary` match already ([`applies`], [`super::vary`]); preconditions are evaluated
//! afterwards ([`super::validator`]). Nothing here allocates.
//!
//! The qualified form of the response's `no-cache` has no effect here: the fields that it names are
//! not stored ([`super::storable::stored_fields`]), which §5.2.2.4 accepts.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, StatusCode, header};

use super::{
    directives::{RequestDirectives, ResponseDirectives, Scope},
    freshness::{Aging, Heuristic, Lifetime},
    outcome::Forward,
    targeted::TargetList,
};

/// What of a stored response decides whether it may be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredFacts {
    /// Whether it is itself a server error.
    is_error: bool,
    directives: ResponseDirectives,
    lifetime: Lifetime,
    aging: Aging,
}

impl StoredFacts {
    /// Reads a response that was requested, or freshened, at `request_time` and arrived at
    /// `response_time`.
    #[must_use]
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        targets: &TargetList,
        heuristic: Heuristic,
        request_time: SystemTime,
        response_time: SystemTime,
    ) -> Self {
        let governing = targets.governing(headers);
        Self {
            lifetime: Lifetime::of(status, headers, &governing, response_time, heuristic),
            aging: Aging::of(headers, request_time, response_time),
            is_error: status.is_server_error(),
            directives: governing.directives,
        }
    }

    /// The cache directives that govern it.
    #[must_use]
    pub(crate) fn directives(&self) -> &ResponseDirectives {
        &self.directives
    }

    /// How long it is fresh.
    #[must_use]
    pub(crate) fn lifetime(&self) -> Duration {
        self.lifetime.duration
    }

    /// Its current age (§4.2.3).
    #[must_use]
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        self.aging.current_age(now)
    }

    /// Makes it stale from now on (§4.3.5: a response to HEAD describes another representation).
    pub(crate) fn make_stale(&mut self) {
        self.lifetime.duration = Duration::ZERO;
    }
}

/// What is known of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No failure is known.
    Reachable,
    /// It answered with a server error (RFC 5861 §4: 500, 502, 503, 504).
    Failed,
    /// It cannot be reached, or did not answer (RFC 9111 §4.2.4: disconnected).
    Disconnected,
}

impl Origin {
    /// The state of an origin that answered with this status code (RFC 5861 §4).
    #[must_use]
    pub(crate) fn after(status: StatusCode) -> Self {
        if matches!(status.as_u16(), 500 | 502 | 503 | 504) {
            Self::Failed
        } else {
            Self::Reachable
        }
    }
}

/// How stale a response may be when the origin is in trouble and no directive sets a bound: the route's
/// `stale_if_error`, which §4.2.4 accepts as permission. Zero forbids it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleBounds {
    /// When the origin answers with a server error.
    pub(crate) failed: Duration,
    /// When it does not answer.
    pub(crate) disconnected: Duration,
}

/// Why a stored response may answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// It is fresh.
    Fresh,
    /// The client accepts its staleness (RFC 9111 §5.2.1.2).
    MaxStale,
    /// It may be served while it is validated (RFC 5861 §3).
    WhileRevalidate,
    /// The origin is in trouble (RFC 5861 §4, RFC 9111 §4.2.4).
    IfError,
}

/// Whether a stored response to GET may answer this request at all.
///
/// # Errors
/// Why not: its method is neither GET nor HEAD, or it has content, which is not part of the cache key.
pub(crate) fn applies(method: &Method, request: &HeaderMap) -> Result<(), Forward> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Forward::Method);
    }
    if has_content(request) {
        Err(Forward::Bypass)
    } else {
        Ok(())
    }
}

/// Whether a request announces content. Content of a GET has no defined meaning (RFC 9110 §9.3.1), but
/// an origin may answer differently because of it.
#[must_use]
pub(crate) fn has_content(request: &HeaderMap) -> bool {
    request.contains_key(header::TRANSFER_ENCODING)
        || request
            .get(header::CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}

/// Whether the selected stored response may answer the request now.
///
/// # Errors
/// Why it may not before it has been validated.
pub(crate) fn may_reuse(
    request: &RequestDirectives,
    stored: &StoredFacts,
    now: SystemTime,
    origin: Origin,
    bounds: &StaleBounds,
) -> Result<Reuse, Forward> {
    let age = stored.aging.current_age(now);
    let lifetime = stored.lifetime.duration;
    // §4: no-cache demands successful validation even of a fresh response; so does an invalidation
    // (§4.4).
    if stored.directives.no_cache == Scope::Whole {
        return Err(Forward::Stale);
    }
    let is_fresh = lifetime > age;
    if is_fresh && accepts(request, age, lifetime) {
        return Ok(Reuse::Fresh);
    }
    let staleness = age.saturating_sub(lifetime);
    let why = match is_fresh {
        true => Forward::Request,
        false => Forward::Stale,
    };
    stale(request, stored, age, staleness, origin, bounds).ok_or(why)
}

/// Whether the client accepts a response of this age and lifetime, staleness aside.
fn accepts(request: &RequestDirectives, age: Duration, lifetime: Duration) -> bool {
    // §5.2.1.4, §5.2.1.1 and §5.2.1.3.
    !request.no_cache
        && request.max_age.is_none_or(|limit| age <= limit.duration())
        && request
            .min_fresh
            .is_none_or(|left| lifetime.saturating_sub(age) >= left.duration())
}

/// The permissions to answer without validation (§4.2.4). It is called for fresh responses too, with a
/// staleness of zero, where the request demands a fresher one.
fn stale(
    request: &RequestDirectives,
    stored: &StoredFacts,
    age: Duration,
    staleness: Duration,
    origin: Origin,
    bounds: &StaleBounds,
) -> Option<Reuse> {
    let directives = &stored.directives;
    let lifetime = stored.lifetime.duration;
    let is_stale = lifetime <= age;
    // An explicit directive of the response overrides every permission.
    if is_stale && directives.forbid_stale() {
        return None;
    }
    let is_accepted = accepts(request, age, lifetime);
    // §5.2.1.1: max-age without max-stale excludes stale responses.
    let wants_fresh = request.max_age.is_some() && request.max_stale.is_none();
    if is_stale
        && is_accepted
        && request
            .max_stale
            .is_some_and(|limit| limit.accepts(staleness))
    {
        return Some(Reuse::MaxStale);
    }
    let granted = match origin {
        // A stored error is no better answer than the failure, whose reason is current.
        _ if stored.is_error => None,
        Origin::Reachable => None,
        Origin::Failed => Some(bounds.failed),
        Origin::Disconnected => Some(bounds.disconnected),
    };
    if let Some(granted) = granted {
        let limit = match (request.stale_if_error, directives.stale_if_error) {
            // The client's own bound is also its consent.
            (Some(limit), _) => Some(limit.duration()),
            (None, Some(limit)) => Some(limit.duration()),
            (None, None) => (granted > Duration::ZERO).then_some(granted),
        };
        let consents = request.stale_if_error.is_some() || (is_accepted && !wants_fresh);
        if consents && limit.is_some_and(|limit| staleness <= limit) {
            return Some(Reuse::IfError);
        }
    }
    let window = directives
        .stale_while_revalidate
        .is_some_and(|limit| staleness <= limit.duration());
    (is_stale && is_accepted && !wants_fresh && window).then_some(Reuse::WhileRevalidate)
}

#[cfg(test)]
mod tests;
