//! Whether a shared cache may store a response (RFC 9111 §3).
//!
//! Applied when the header section of an answer has arrived, before
//! [`super::hop`] removes any field. Each clause cites its section. The caller stores only
//! responses to GET, and discards incomplete bodies (§3.3: this cache stores complete
//! responses only).

use std::time::SystemTime;

use http::header::{AUTHORIZATION, SET_COOKIE, TRAILER};
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::directives::Directives;
use super::freshness::{explicit_lifetime, heuristically_cacheable};
use super::hop;
use super::reuse::has_content;
use super::vary::nominated;

/// Which responses with `Set-Cookie` are stored. A stored cookie is sent to
/// every client (§7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SetCookie {
    /// All, without the field: no client receives it. Only for typed routes, which drop it.
    #[serde(skip)]
    Dropped,
    /// Those with explicit freshness or `public`; not those with heuristic
    /// freshness.
    #[default]
    Explicit,
    /// None.
    Never,
}

impl SetCookie {
    /// Whether it is what is done unless something else is configured.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether an answer to a GET may be stored, for later GET and HEAD requests for the same
/// target. `request` are the request's fields, as the origin received them.
#[must_use]
pub(crate) fn storable(
    request: &HeaderMap,
    (status, response): (StatusCode, &HeaderMap),
    received: SystemTime,
    set_cookie: SetCookie,
) -> bool {
    let directives = &Directives::governing(response);
    let is_explicit = explicit_lifetime(response, directives, received).is_some();
    // §3.5: a directive allows sharing the answer to an authorized request.
    let is_shared =
        directives.must_revalidate || directives.public || directives.s_maxage.is_some();
    // RFC 9110 §9.3.1: content of a GET is part of no cache key.
    !has_content(request)
        // §3: the status code is final, and understood if must-understand is present.
        && may_store_status(status)
        && (!directives.must_understand || status.canonical_reason().is_some())
        // §5.2.1.5: a cache must not store any part of a response to a request with no-store.
        && !Directives::of_request(request).no_store
        // §3, §5.2.2.3: no-store is absent, or overridden by a must-understand that is met.
        && (!directives.no_store || directives.must_understand)
        // §3: private is absent.
        && !directives.private
        // §3, §3.5.
        && (is_shared || !request.contains_key(AUTHORIZATION))
        // §3: public, Expires, max-age, s-maxage, or a heuristically cacheable status code.
        && (is_explicit || directives.public || heuristically_cacheable(status))
        // §4.1: a stored response with `Vary: *` always fails to match.
        && nominated(response).is_some()
        // §7.3 makes responses with Set-Cookie cacheable unless the server says otherwise.
        // Many servers do not, so ordgate requires them to say that they are.
        && match set_cookie {
            _ if !response.contains_key(SET_COOKIE) => true,
            SetCookie::Dropped => true,
            SetCookie::Explicit => is_for_everyone(response, directives, received),
            SetCookie::Never => false,
        }
}

/// Whether a response says itself that several clients may receive it: by
/// explicit freshness or by `public`. One that must always be validated is
/// validated for each client.
#[must_use]
pub(crate) fn is_for_everyone(
    response: &HeaderMap,
    directives: &Directives,
    received: SystemTime,
) -> bool {
    let lasts = match explicit_lifetime(response, directives, received) {
        Some(lifetime) => !lifetime.is_zero(),
        None => directives.public,
    };
    lasts && !directives.no_cache
}

/// Whether the definition of a status code allows storing answers of it.
fn may_store_status(status: StatusCode) -> bool {
    // §3: not final. §3.3: partial; a stored 416 would answer requests without a range. 304, 412
    // and 417 depend on a precondition or expectation of this request. RFC 6585 §3 to §6.
    let never = matches!(
        status.as_u16(),
        100..=199 | 206 | 416 | 304 | 412 | 417 | 428 | 429 | 431 | 511
    );
    !never
}

/// The fields of a response that are stored (§3.1): all, except hop-by-hop and
/// proxy fields, and `Trailer`, because trailers are not stored.
#[must_use]
pub(crate) fn stored_fields(response: &HeaderMap) -> HeaderMap {
    let mut stored = response.clone();
    hop::strip(&mut stored);
    stored.remove(TRAILER);
    stored
}

#[cfg(test)]
mod tests;
