//! The head of a request: faults that the listener found, and the forms of the
//! target (RFC 9112 §3.2).

use http::header::HOST;
use http::{HeaderValue, Request, Uri};

use super::Session;
use crate::refusal::Refusal;
use crate::wire::head::is_replacement;

/// Refuses a head that the listener found at fault, and a target that is not in
/// origin form (RFC 9112 §3.2.1).
#[inline]
pub(super) fn check_head<B>(session: &Session, request: &Request<B>) -> Result<(), Refusal> {
    let uri = request.uri();
    if is_replacement(request.method(), uri)
        && let Some(fault) = session.activity.fault()
    {
        return Err(Refusal::Head(fault));
    }
    match uri.authority().is_none() && uri.path().starts_with('/') {
        true => Ok(()),
        false => Err(Refusal::TargetForm),
    }
}

/// Rewrites a target in absolute form, as clients of a forward proxy send it, to
/// origin form. Its authority replaces
/// Host. A target with userinfo, or of another scheme than http and https, stays
/// as it is; the gateway refuses it.
#[cold]
pub(super) fn to_origin_form<B>(request: &mut Request<B>) {
    let uri = request.uri();
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let (Some(authority), Some(path)) = (uri.authority(), uri.path_and_query()) else {
        return;
    };
    if !is_http || authority.as_str().contains('@') {
        return;
    }
    // An empty path is written as `/`.
    let (Ok(target), Ok(host)) = (
        Uri::try_from(path.to_string()),
        HeaderValue::from_str(authority.as_str()),
    ) else {
        return;
    };
    *request.uri_mut() = target;
    request.headers_mut().insert(HOST, host);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_form_becomes_origin_form_and_its_authority_host() {
        // target, target afterwards, Host afterwards
        let rows = [
            ("http://a.example/b?c=d", "/b?c=d", "a.example"),
            ("https://a.example:8443/b", "/b", "a.example:8443"),
            ("http://a.example", "/", "a.example"),
            ("http://a.example?c=d", "/?c=d", "a.example"),
            ("http://[::1]:80/b", "/b", "[::1]:80"),
            ("http://u@a.example/b", "http://u@a.example/b", "old"),
            ("ftp://a.example/b", "ftp://a.example/b", "old"),
            ("a.example:80", "a.example:80", "old"),
        ];
        for (target, expected, host) in rows {
            let request = Request::builder().uri(target).header(HOST, "old");
            let mut request = request.body(()).unwrap();
            to_origin_form(&mut request);
            assert_eq!(request.uri(), expected, "{target}");
            assert_eq!(request.headers()[HOST], host, "{target}");
        }
    }
}
