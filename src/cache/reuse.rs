//! May a stored response answer this request now? (RFC 9111 §4, §4.2.4, §5.2.1; RFC 5861.)
//!
//! Called on every look-up of a `respect` route, and again when a forwarded request failed. Targets,
//! methods and `Vary` have been matched by then ([`applies`], [`super::vary`]); preconditions come
//! afterwards ([`super::validator`]). Nothing here allocates.
//!
//! The qualified form of the response's `no-cache` asks nothing here: the fields it names were never
//! stored ([`super::storable::stored_fields`]), which §5.2.2.4 accepts as their exclusion.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, StatusCode, header};

use super::{
    directives::{RequestDirectives, ResponseDirectives, Scope},
    freshness::{Aging, Heuristic, Lifetime},
    status::Forward,
    targeted::TargetList,
};

/// What must be known of a stored response to reuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFacts {
    directives: ResponseDirectives,
    lifetime: Lifetime,
    aging: Aging,
    invalidated: bool,
}

impl StoredFacts {
    /// Judges a response that has arrived, or been freshened, between these two times.
    #[must_use]
    pub fn of(
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
            directives: governing.directives,
            invalidated: false,
        }
    }

    /// The directives that govern it.
    #[must_use]
    pub fn directives(&self) -> &ResponseDirectives {
        &self.directives
    }

    /// How long it is fresh.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// From what its age is counted.
    #[must_use]
    pub fn aging(&self) -> Aging {
        self.aging
    }

    /// Whether it is fresh (§4.2): its lifetime exceeds its age.
    #[must_use]
    pub fn is_fresh(&self, now: SystemTime) -> bool {
        self.lifetime.duration > self.aging.current_age(now)
    }

    /// Seconds of freshness left, negative when it is stale: the `ttl` of `Cache-Status`.
    #[must_use]
    pub fn ttl(&self, now: SystemTime) -> i64 {
        let whole = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        whole(self.lifetime.duration).saturating_sub(whole(self.aging.current_age(now)))
    }

    /// Demands validation before any further use (§4.4).
    pub fn invalidate(&mut self) {
        self.invalidated = true;
    }

    /// Counts it as stale from now on (§4.3.5: a HEAD has shown another representation).
    pub fn make_stale(&mut self) {
        self.lifetime.duration = Duration::ZERO;
    }
}

/// What is known of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing speaks against asking it.
    Reachable,
    /// It answered with a server error (RFC 5861 §4: 500, 502, 503, 504).
    Failed,
    /// It cannot be asked, or did not answer (RFC 9111 §4.2.4: disconnected).
    Disconnected,
}

impl Origin {
    /// What an answer with this status code says of the origin (RFC 5861 §4).
    #[must_use]
    pub fn after(status: StatusCode) -> Self {
        if matches!(status.as_u16(), 500 | 502 | 503 | 504) {
            Self::Failed
        } else {
            Self::Reachable
        }
    }
}

/// How stale an answer may be when the origin is in trouble and no directive says it: the operator's
/// word, which §4.2.4 accepts as permission. Zero forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleBounds {
    /// When the origin answers with a server error.
    pub failed: Duration,
    /// When it does not answer.
    pub disconnected: Duration,
}

/// What to do with a request for which a stored response was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Reuse it: it is fresh.
    Fresh,
    /// Reuse it: the client accepts its staleness.
    MaxStale,
    /// Reuse it, and validate it meanwhile (RFC 5861 §3).
    StaleWhileRevalidate,
    /// Reuse it, because the origin is in trouble (RFC 5861 §4, RFC 9111 §4.2.4).
    StaleIfError,
    /// Do not reuse it before it has been validated; go forward for this reason.
    Validate(Forward),
    /// Answer 504: the client wants no forwarding (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// Whether a stored response to GET may answer this request; if not, why it goes forward.
///
/// # Errors
/// The reason: the method, for any but GET and HEAD, or content, which no cache key holds.
pub fn applies(method: &Method, request: &HeaderMap) -> Result<(), Forward> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Forward::Method);
    }
    if has_content(request) {
        Err(Forward::Bypass)
    } else {
        Ok(())
    }
}

/// Whether a request announces content. In a GET it has no meaning that a cache could know
/// (RFC 9110 §9.3.1), yet an origin may let it change its answer.
#[must_use]
pub fn has_content(request: &HeaderMap) -> bool {
    request.contains_key(header::TRANSFER_ENCODING)
        || request
            .get(header::CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}

/// What to do where no stored response can be chosen, for [`Forward::UriMiss`] and its like.
#[must_use]
pub fn absent(request: &RequestDirectives, reason: Forward) -> Decision {
    if request.only_if_cached {
        Decision::OnlyIfCached
    } else {
        Decision::Validate(reason)
    }
}

/// What to do with the chosen stored response.
#[must_use]
pub fn decide(
    request: &RequestDirectives,
    stored: &StoredFacts,
    now: SystemTime,
    origin: Origin,
    bounds: &StaleBounds,
) -> Decision {
    let age = stored.aging.current_age(now);
    let lifetime = stored.lifetime.duration;
    // §4: no-cache wants successful validation, fresh or not, and so does what §4.4 invalidated.
    if stored.directives.no_cache == Scope::Whole || stored.invalidated {
        return absent(request, Forward::Stale);
    }
    if lifetime > age && accepts(request, age, lifetime) {
        return Decision::Fresh;
    }
    let staleness = age.saturating_sub(lifetime);
    if let Some(decision) = stale(request, stored, age, staleness, origin, bounds) {
        return decision;
    }
    absent(
        request,
        if lifetime > age {
            Forward::Request
        } else {
            Forward::Stale
        },
    )
}

/// Whether the client is content with a response of this age and lifetime, staleness apart.
fn accepts(request: &RequestDirectives, age: Duration, lifetime: Duration) -> bool {
    // §5.2.1.4, §5.2.1.1 and §5.2.1.3.
    !request.no_cache
        && request.max_age.is_none_or(|limit| age <= limit.duration())
        && request
            .min_fresh
            .is_none_or(|left| lifetime.saturating_sub(age) >= left.duration())
}

/// §4.2.4: the permissions to answer without validation nonetheless. A fresh response of which the
/// request wants more comes here too, with no staleness.
fn stale(
    request: &RequestDirectives,
    stored: &StoredFacts,
    age: Duration,
    staleness: Duration,
    origin: Origin,
    bounds: &StaleBounds,
) -> Option<Decision> {
    let directives = &stored.directives;
    let lifetime = stored.lifetime.duration;
    let is_stale = lifetime <= age;
    // An explicit directive of the response outweighs every permission.
    if is_stale && directives.forbid_stale() {
        return None;
    }
    let content = accepts(request, age, lifetime);
    // §5.2.1.1: with max-age and no max-stale the client wants nothing stale.
    let wants_fresh = request.max_age.is_some() && request.max_stale.is_none();
    if is_stale
        && content
        && request
            .max_stale
            .is_some_and(|limit| limit.accepts(staleness))
    {
        return Some(Decision::MaxStale);
    }
    let unasked = match origin {
        Origin::Reachable => None,
        Origin::Failed => Some(bounds.failed),
        Origin::Disconnected => Some(bounds.disconnected),
    };
    if let Some(unasked) = unasked {
        let limit = match (request.stale_if_error, directives.stale_if_error) {
            // The client's own word for the case of an error is also its consent.
            (Some(limit), _) => Some(limit.duration()),
            (None, Some(limit)) => Some(limit.duration()),
            (None, None) => (unasked > Duration::ZERO).then_some(unasked),
        };
        let consents = request.stale_if_error.is_some() || (content && !wants_fresh);
        if consents && limit.is_some_and(|limit| staleness <= limit) {
            return Some(Decision::StaleIfError);
        }
    }
    let window = directives
        .stale_while_revalidate
        .is_some_and(|limit| staleness <= limit.duration());
    (is_stale && content && !wants_fresh && window).then_some(Decision::StaleWhileRevalidate)
}

#[cfg(test)]
mod tests;
