//! Whether a stored response may answer a request now, in mode `respect` (RFC 9111 §4, §4.2.4,
//! §5.2.1; RFC 5861).
//!
//! Called for each request, and again when the upstream has failed. The target,
//! the method and `Vary` match already ([`applies`], [`super::vary`]); preconditions are evaluated
//! afterwards ([`super::validator`]). Nothing here allocates.

use std::time::{Duration, SystemTime};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};

use super::directives::Directives;
use super::freshness::{age_on_arrival, lifetime};
use super::outcome::Forward;

/// What of a stored response decides whether it may be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredFacts {
    /// Whether it is itself a server error.
    is_error: bool,
    directives: Directives,
    /// How long it is fresh; zero makes it stale.
    pub(crate) lifetime: Duration,
    age_on_arrival: Duration,
}

impl StoredFacts {
    /// Reads a response that was requested, or freshened, at `request_time` and arrived at
    /// `response_time`.
    #[must_use]
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        request_time: SystemTime,
        response_time: SystemTime,
    ) -> Self {
        let directives = Directives::governing(headers);
        Self {
            lifetime: lifetime(status, headers, &directives, response_time),
            age_on_arrival: age_on_arrival(headers, request_time, response_time),
            is_error: status.is_server_error(),
            directives,
        }
    }

    /// Whether other requests may use it without a validation of their own.
    #[must_use]
    pub(crate) fn is_shareable(&self) -> bool {
        !self.lifetime.is_zero() && !self.directives.no_cache
    }

    /// Its current age (§4.2.3): the time since it was generated or validated by its origin.
    /// `resident_time` is the time since it arrived.
    #[must_use]
    pub(crate) fn age(&self, resident_time: Duration) -> Duration {
        self.age_on_arrival.saturating_add(resident_time)
    }
}

/// Whether an answer with this status means that the origin has failed, so that a stale
/// response may take its place (RFC 5861 §4).
#[must_use]
pub(crate) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
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
        return Err(Forward::Bypass);
    }
    Ok(())
}

/// Whether a request announces content. Content of a GET has no defined meaning (RFC 9110 §9.3.1), but
/// an origin may answer differently because of it.
#[must_use]
pub(crate) fn has_content(request: &HeaderMap) -> bool {
    let length = request.get(CONTENT_LENGTH);
    request.contains_key(TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// Whether the selected stored response, which arrived so long ago, may answer the request.
/// `failed` is the route's `stale_if_error` where the origin has failed: how stale the response
/// may be if no directive sets a bound, which §4.2.4 accepts as permission. Zero forbids it.
///
/// # Errors
/// Why it may not before it has been validated.
pub(crate) fn may_reuse(
    request: &Directives,
    stored: &StoredFacts,
    resident_time: Duration,
    failed: Option<Duration>,
) -> Result<Reuse, Forward> {
    let age = stored.age(resident_time);
    let (lifetime, directives) = (stored.lifetime, &stored.directives);
    // §4: no-cache demands successful validation even of a fresh response.
    if directives.no_cache {
        return Err(Forward::Stale);
    }
    let is_fresh = lifetime > age;
    // §5.2.1.4, §5.2.1.1 and §5.2.1.3.
    let is_accepted = !request.no_cache
        && request.max_age.is_none_or(|limit| age <= limit)
        && (request.min_fresh).is_none_or(|left| lifetime.saturating_sub(age) >= left);
    if is_fresh && is_accepted {
        return Ok(Reuse::Fresh);
    }
    // What follows are the permissions to answer without validation (§4.2.4). An explicit
    // directive of the response overrides each of them.
    if !is_fresh && directives.forbid_stale() {
        return Err(Forward::Stale);
    }
    let staleness = age.saturating_sub(lifetime);
    let is_within = |limit: Option<Duration>| limit.is_some_and(|limit| staleness <= limit);
    // §5.2.1.1: max-age without max-stale excludes stale responses.
    let accepts_stale = is_accepted && (request.max_age.is_none() || request.max_stale.is_some());
    if !is_fresh && is_accepted && is_within(request.max_stale) {
        return Ok(Reuse::MaxStale);
    }
    // A stored error is no better answer than the failure, whose reason is current.
    if let Some(granted) = failed.filter(|_| !stored.is_error) {
        let granted = Some(granted).filter(|granted| !granted.is_zero());
        // The client's own bound is also its consent.
        let consents = request.stale_if_error.is_some() || accepts_stale;
        let limit = request.stale_if_error.or(directives.stale_if_error);
        if consents && is_within(limit.or(granted)) {
            return Ok(Reuse::IfError);
        }
    }
    if !is_fresh && accepts_stale && is_within(directives.stale_while_revalidate) {
        return Ok(Reuse::WhileRevalidate);
    }
    Err(if is_fresh {
        Forward::Request
    } else {
        Forward::Stale
    })
}

#[cfg(test)]
mod tests;
