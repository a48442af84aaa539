//! Invalidation by unsafe methods (RFC 9111 §4.4).
//!
//! Returns the targets, as path and query on the origin of the request, whose
//! stored responses must be validated before reuse.

use http::header::{CONTENT_LOCATION, HeaderName, LOCATION};
use http::{HeaderMap, Method, StatusCode, Uri};
use url::{Position, Url};

use super::list::only;

/// Whether a method is known to be safe (RFC 9110 §9.2.1, and the IANA registry
/// for WebDAV's). An unknown method is not.
#[must_use]
pub(crate) fn is_safe(method: &Method) -> bool {
    method.is_safe() || matches!(method.as_str(), "PROPFIND" | "REPORT" | "SEARCH")
}

/// The path and query of every target to invalidate, the request's own first.
/// Empty for a safe method or an error.
#[must_use]
pub(crate) fn targets(
    method: &Method,
    target: &Uri,
    status: StatusCode,
    response: &HeaderMap,
) -> Vec<String> {
    // §4.4: a non-error response is one with a 2xx or 3xx status code.
    if is_safe(method) || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    let own = target.path_and_query().map_or("/", |own| own.as_str());
    let mut found = vec![own.to_owned()];
    if let Ok(base) = Url::parse(&target.to_string()) {
        let named = [LOCATION, CONTENT_LOCATION].map(|name| named_target(&base, response, &name));
        found.extend(named.into_iter().flatten());
    }
    found
}

/// The target in `Location` or `Content-Location`, if it has the origin of the
/// request's target. Targets of other origins must not be invalidated (§4.4).
fn named_target(base: &Url, response: &HeaderMap, name: &HeaderName) -> Option<String> {
    let reference = std::str::from_utf8(only(response, name)?).ok()?;
    let named = base.join(reference).ok()?;
    // RFC 9110 §4.2.4: userinfo is an error, so an authority with it names no origin.
    let is_own = named.origin() == base.origin() && !named.authority().contains('@');
    is_own.then(|| named[Position::BeforePath..Position::AfterQuery].to_owned())
}

#[cfg(test)]
mod tests;
