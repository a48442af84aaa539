//! Requests that a web page has sent. None of them may change anything.

use http::header::ORIGIN;
use http::{HeaderMap, Response, StatusCode};

use super::response::problem;
use crate::wire::{Body, SEC_FETCH_SITE};

/// The field by which a request shows that a web page has sent it.
pub(super) fn browser_sign(fields: &HeaderMap) -> Option<String> {
    let site = fields.get(SEC_FETCH_SITE);
    if let Some(site) = site.filter(|site| !["same-origin", "none"].iter().any(|own| site == own)) {
        return Some(format!(
            "sec-fetch-site: {}",
            site.as_bytes().escape_ascii()
        ));
    }
    // Also one of the same origin: any name may resolve to this address.
    let origin = fields.get(ORIGIN)?;
    Some(format!("origin: {}", origin.as_bytes().escape_ascii()))
}

/// Refuses such a request. `what` is what it wanted to do, and `other` another
/// way to do it.
pub(super) fn refuse_browser(what: &str, sign: &str, other: &str) -> Response<Body> {
    let detail = format!(
        "A page in a browser must not {what}, and this request carries {sign}; use {other}, or a client that sends neither origin nor a sec-fetch-site other than same-origin or none"
    );
    problem(StatusCode::FORBIDDEN, &detail, None)
}
