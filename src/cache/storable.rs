//! Whether a shared cache may store a response (RFC 9111 §3).
//!
//! Applied when the header section of an answer has arrived, before
//! [`super::hop`] removes any field. Each clause cites its section. The caller
//! discards incomplete bodies (§3.3: this cache stores complete responses
//! only).

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    directives::{RequestDirectives, ResponseDirectives, Scope},
    freshness::{Heuristic, Lifetime, LifetimeSource, heuristically_cacheable},
    hop,
    invalidate::{named_target, path_and_query},
    reuse::has_content,
    targeted::Governing,
    vary::Nominated,
};

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NotStored {
    /// Responses to this method are not stored (§3).
    Method,
    /// The request was a GET with content, which is part of no cache key (RFC
    /// 9110 §9.3.1).
    Content,
    /// The status code is not final (§3).
    Interim,
    /// `must-understand`, and the status code is not understood (§3, §5.2.2.3).
    NotUnderstood,
    /// 206, or another answer to a range request (§3, §3.3).
    Partial,
    /// The answer depends on a precondition or expectation of this request:
    /// 304, 412, 417.
    Conditional,
    /// The definition of the status code forbids it (RFC 6585).
    Status,
    /// `no-store` of the request (§5.2.1.5).
    RequestNoStore,
    /// `no-store` of the response (§3, §5.2.2.5).
    NoStore,
    /// `private` without a list of fields (§3, §5.2.2.7).
    Private,
    /// The request was authorized, and no directive allows sharing the response
    /// (§3, §3.5).
    Authorization,
    /// The response has neither explicit nor heuristic freshness (§3).
    NoExpiration,
    /// `Vary: *`: no request would match (§4.1).
    VariesOnEverything,
    /// The response has `Set-Cookie` and does not say that it is for all
    /// clients (§7.3).
    SetCookie,
}

/// Which responses with `Set-Cookie` are stored. A stored cookie is sent to
/// every client (§7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SetCookie {
    /// All, without the field: no client receives it.
    Dropped,
    /// Those with explicit freshness or `public`; not those with heuristic
    /// freshness.
    #[default]
    Explicit,
    /// None.
    Never,
}

/// A request and its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    /// The request's method.
    pub(crate) method: &'a Method,
    /// The request's target URI, with scheme and authority.
    pub(crate) target: &'a Uri,
    /// The request's fields, as the origin received them.
    pub(crate) request: &'a HeaderMap,
    /// The request's directives.
    pub(crate) directives: &'a RequestDirectives,
    /// The answer's status code.
    pub(crate) status: StatusCode,
    /// The answer's fields.
    pub(crate) response: &'a HeaderMap,
    /// The directives that govern the answer.
    pub(crate) governing: &'a Governing,
    /// When the answer was received.
    pub(crate) received: SystemTime,
    /// How `Set-Cookie` is treated.
    pub(crate) set_cookie: SetCookie,
}

/// Whether the response may be stored, for later GET and HEAD requests for the
/// same target.
///
/// # Errors
///
/// The first reason against it, in the order of the RFC.
pub(crate) fn storable(exchange: &Exchange<'_>) -> Result<(), NotStored> {
    let directives = &exchange.governing.directives;
    let explicit = explicit_expiration(exchange);
    // §3: the request method is understood by the cache.
    method(exchange, explicit)?;
    // §3: the response status code is final; if it is 206 or 304, or if
    // must-understand is present, the cache understands it.
    status(exchange.status, directives)?;
    // §5.2.1.5: a cache must not store any part of a response to a request with no-store.
    refuse_if(exchange.directives.no_store, NotStored::RequestNoStore)?;
    // §3: no-store is not present in the response. §5.2.2.3: must-understand
    // overrides it for a cache that understands the status code, which is known
    // at this point.
    refuse_if(
        directives.no_store && !directives.must_understand,
        NotStored::NoStore,
    )?;
    // §3: private is not present, or allows storing a modified response.
    refuse_if(directives.private == Scope::Whole, NotStored::Private)?;
    // §3, §3.5: Authorization is not present, or a directive explicitly allows shared caching.
    let shared = directives.must_revalidate || directives.public || directives.s_maxage.is_some();
    let authorized = exchange.request.contains_key(header::AUTHORIZATION);
    refuse_if(authorized && !shared, NotStored::Authorization)?;
    // §3: public, Expires, max-age, s-maxage, or a heuristically cacheable status code.
    let lasting = explicit || directives.public || heuristically_cacheable(exchange.status);
    refuse_if(!lasting, NotStored::NoExpiration)?;
    // §4.1: a stored response with `Vary: *` always fails to match.
    let everything = Nominated::of(exchange.response) == Nominated::Everything;
    refuse_if(everything, NotStored::VariesOnEverything)?;
    // §7.3 makes responses with Set-Cookie cacheable unless the server says
    // otherwise. Many servers do not, so ordgate requires them to say that they
    // are.
    let sets_cookie = exchange.response.contains_key(header::SET_COOKIE)
        && !named_fields(directives).any(|name| *name == header::SET_COOKIE);
    let given = match exchange.set_cookie {
        SetCookie::Dropped => true,
        SetCookie::Explicit => is_for_everyone(
            exchange.status,
            exchange.response,
            exchange.governing,
            exchange.received,
        ),
        SetCookie::Never => false,
    };
    refuse_if(sets_cookie && !given, NotStored::SetCookie)
}

/// Whether a response says itself that several clients may receive it: by
/// explicit freshness or by `public`. One that must always be validated is
/// validated for each client.
#[must_use]
pub(crate) fn is_for_everyone(
    status: StatusCode,
    response: &HeaderMap,
    governing: &Governing,
    received: SystemTime,
) -> bool {
    let lifetime = Lifetime::of(status, response, governing, received, Heuristic::default());
    let lasts = match lifetime.source {
        LifetimeSource::SMaxage | LifetimeSource::MaxAge | LifetimeSource::Expires => {
            !lifetime.duration.is_zero()
        }
        LifetimeSource::Heuristic | LifetimeSource::Nothing => governing.directives.public,
    };
    lasts && governing.directives.no_cache != Scope::Whole
}

fn refuse_if(condition: bool, refusal: NotStored) -> Result<(), NotStored> {
    if condition { Err(refusal) } else { Ok(()) }
}

fn explicit_expiration(exchange: &Exchange<'_>) -> bool {
    let Governing {
        directives,
        targeted,
    } = exchange.governing;
    directives.max_age.is_some()
        || directives.s_maxage.is_some()
        || (!targeted && exchange.response.contains_key(header::EXPIRES))
}

/// HEAD is understood, but has no content to store: it freshens
/// ([`super::freshen`]).
fn method(exchange: &Exchange<'_>, explicit: bool) -> Result<(), NotStored> {
    match *exchange.method {
        Method::GET => refuse_if(has_content(exchange.request), NotStored::Content),
        // RFC 9110 §9.3.3: POST is cacheable with explicit freshness and a Content-Location that is the
        // target itself.
        Method::POST => {
            let named = named_target(
                exchange.target,
                exchange.response,
                &header::CONTENT_LOCATION,
            );
            let itself = named.is_some_and(|named| named == path_and_query(exchange.target));
            refuse_if(
                !(explicit && itself && exchange.status.is_success()),
                NotStored::Method,
            )
        }
        _ => Err(NotStored::Method),
    }
}

fn status(status: StatusCode, directives: &ResponseDirectives) -> Result<(), NotStored> {
    match status.as_u16() {
        100..=199 => Err(NotStored::Interim),
        // A stored 416 would answer requests without a range.
        206 | 416 => Err(NotStored::Partial),
        304 | 412 | 417 => Err(NotStored::Conditional),
        // RFC 6585 §3 to §6: these must not be stored by a cache.
        428 | 429 | 431 | 511 => Err(NotStored::Status),
        _ => refuse_if(
            directives.must_understand && !understood(status),
            NotStored::NotUnderstood,
        ),
    }
}

/// The status codes whose caching requirements this cache implements (RFC 9110
/// §15).
fn understood(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200..=205 | 300..=303 | 305 | 307 | 308 | 400..=411 | 413..=415 | 421 | 422 | 426 | 451 | 500..=505
    )
}

/// The fields of a response that are stored (§3.1): all, except hop-by-hop and
/// proxy fields, the fields that `private` and `no-cache` name, and `Trailer`,
/// because trailers are not stored.
#[must_use]
pub(crate) fn stored_fields(response: &HeaderMap, directives: &ResponseDirectives) -> HeaderMap {
    let mut stored = response.clone();
    hop::strip(&mut stored);
    stored.remove(header::TRAILER);
    for name in named_fields(directives) {
        stored.remove(name);
    }
    stored
}

/// The fields of an answer that are not stored because `private` or `no-cache`
/// names them. They are for the client whose request it answers, and for no other
/// (§5.2.2.4, §5.2.2.7).
#[must_use]
pub(crate) fn withheld_fields(received: &HeaderMap, directives: &ResponseDirectives) -> HeaderMap {
    let mut withheld = HeaderMap::new();
    for name in named_fields(directives) {
        let is_passed_on = *name != header::TRAILER && !hop::ends_here(name, received);
        // Both directives may name it.
        if is_passed_on && !withheld.contains_key(name) {
            let values = received.get_all(name).iter().cloned();
            withheld.extend(values.map(|value| (name.clone(), value)));
        }
    }
    withheld
}

fn named_fields(directives: &ResponseDirectives) -> impl Iterator<Item = &HeaderName> {
    let (private, no_cache) = (&directives.private, &directives.no_cache);
    private.fields().iter().chain(no_cache.fields())
}

#[cfg(test)]
mod tests;
