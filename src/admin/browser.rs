//! Requests that a web page has sent. Of all pages only the dashboard may change
//! anything.
//!
//! The dashboard sends the field [`DASHBOARD_FIELD`]. A page of another origin cannot
//! send it: browsers would first ask by a preflight, which is never answered with
//! permission. The origin must also be the one that the request went to; `host` has
//! checked that this is not another site's name.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Response, StatusCode};

use super::response::problem;
use crate::wire::{Body, SEC_FETCH_SITE};

/// The field that the dashboard sends with a purge or reload, with the value `1`.
const DASHBOARD_FIELD: &str = "x-ordgate-admin";

/// The field by which a request shows that a web page other than the dashboard has
/// sent it.
pub(super) fn browser_sign(fields: &HeaderMap) -> Option<String> {
    let site = fields.get(SEC_FETCH_SITE);
    if let Some(site) = site.filter(|site| !["same-origin", "none"].iter().any(|own| site == own)) {
        return Some(format!(
            "sec-fetch-site: {}",
            site.as_bytes().escape_ascii()
        ));
    }
    let origin = fields.get(ORIGIN)?;
    if is_dashboard(fields) {
        return None;
    }
    Some(format!("origin: {}", origin.as_bytes().escape_ascii()))
}

/// Whether the dashboard has sent a request that has an origin.
fn is_dashboard(fields: &HeaderMap) -> bool {
    let only = |name: &str| {
        let mut lines = fields.get_all(name).iter();
        lines.next().filter(|_| lines.next().is_none())
    };
    let is_marked = only(DASHBOARD_FIELD).is_some_and(|value| value == "1");
    let own = only(HOST.as_str()).zip(only(ORIGIN.as_str()));
    let is_own = own.is_some_and(|(host, origin)| {
        let origin = origin.as_bytes();
        // A proxy in front may add TLS.
        let authority = origin.strip_prefix(b"http://");
        let authority = authority.or(origin.strip_prefix(b"https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_bytes()))
    });
    is_marked && is_own
}

/// Refuses such a request. `what` is what it wanted to do, and `other` another
/// way to do it.
pub(super) fn refuse_browser(what: &str, sign: &str, other: &str) -> Response<Body> {
    let detail = format!(
        "A page in a browser must not {what}, and this request carries {sign}; use the dashboard (at / here), {other}, or a client that sends neither origin nor a sec-fetch-site other than same-origin or none"
    );
    problem(StatusCode::FORBIDDEN, &detail, None)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_the_dashboard_of_this_origin_is_no_foreign_page() {
        let own = "http://127.0.0.1:9090";
        let marked = (DASHBOARD_FIELD, "1");
        // the fields beside host, whether the request is accepted
        let rows: &[(&[(&str, &str)], bool)] = &[
            (&[], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[marked, ("origin", own)], true),
            (
                &[marked, ("origin", own), ("sec-fetch-site", "same-origin")],
                true,
            ),
            (&[marked, ("origin", "https://127.0.0.1:9090")], true),
            (&[marked], true),
            (&[("origin", own)], false),
            (&[("origin", own), ("sec-fetch-site", "same-origin")], false),
            (&[(DASHBOARD_FIELD, "0"), ("origin", own)], false),
            (&[marked, marked, ("origin", own)], false),
            (&[marked, ("origin", "null")], false),
            (&[marked, ("origin", "http://127.0.0.1:9091")], false),
            (&[marked, ("origin", "http://127.0.0.1")], false),
            (&[marked, ("origin", "http://evil.example")], false),
            (&[marked, ("origin", "ftp://127.0.0.1:9090")], false),
            (&[marked, ("origin", own), ("origin", own)], false),
            (&[marked, ("origin", own), ("host", "x")], false),
            (
                &[marked, ("origin", own), ("sec-fetch-site", "same-site")],
                false,
            ),
            (
                &[marked, ("origin", own), ("sec-fetch-site", "cross-site")],
                false,
            ),
            (&[marked, ("sec-fetch-site", "cross-site")], false),
        ];
        for (rest, accepted) in rows {
            let mut fields = HeaderMap::new();
            fields.append(HOST, HeaderValue::from_static("127.0.0.1:9090"));
            for (name, value) in *rest {
                let name = HeaderName::from_static(name);
                fields.append(name, HeaderValue::from_static(value));
            }
            assert_eq!(browser_sign(&fields).is_none(), *accepted, "{rest:?}");
        }
    }
}
