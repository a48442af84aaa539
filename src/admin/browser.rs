//! Requests that a web page has sent. Of all pages only the dashboard may change
//! anything.
//!
//! The dashboard sends the field [`DASHBOARD_FIELD`]. A page of another origin cannot
//! send it: browsers would first ask by a preflight, which is never answered with
//! permission. The origin must also be the one that the request went to; `host` has
//! checked that this is not another site's name.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::wire::SEC_FETCH_SITE;

/// The field that the dashboard sends with a purge or reload, with the value `1`.
const DASHBOARD_FIELD: HeaderName = HeaderName::from_static("x-ordgate-admin");

/// Whether a request shows that a web page other than the dashboard has sent it.
pub(super) fn is_foreign_page(fields: &HeaderMap) -> bool {
    let get = |name| fields.get(name).map(HeaderValue::as_bytes);
    let is_own_site = matches!(get(SEC_FETCH_SITE), None | Some(b"same-origin" | b"none"));
    let is_own_origin = get(ORIGIN).is_none_or(|origin| {
        // A proxy in front may add TLS.
        let authority = origin.strip_prefix(b"http://");
        let authority = authority.or(origin.strip_prefix(b"https://"));
        let is_host = authority.zip(get(HOST));
        is_host.is_some_and(|(own, host)| own.eq_ignore_ascii_case(host))
            && get(DASHBOARD_FIELD) == Some(b"1")
    });
    !(is_own_site && is_own_origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dashboard_of_this_origin_is_no_foreign_page() {
        let own = "http://127.0.0.1:9090";
        let marked = ("x-ordgate-admin", "1");
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
            (&[("x-ordgate-admin", "0"), ("origin", own)], false),
            (&[marked, ("origin", "null")], false),
            (&[marked, ("origin", "http://127.0.0.1:9091")], false),
            (&[marked, ("origin", "http://127.0.0.1")], false),
            (&[marked, ("origin", "http://evil.example")], false),
            (&[marked, ("origin", "ftp://127.0.0.1:9090")], false),
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
            assert_eq!(is_foreign_page(&fields), !accepted, "{rest:?}");
        }
    }
}
