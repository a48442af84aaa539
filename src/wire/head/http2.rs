//! The head of a request in HTTP/2: the ambiguities that h2 lets through, and the
//! form that it has in HTTP/1.1.
//!
//! h2 itself refuses connection-specific fields, upper-case names, wrong
//! pseudo-header fields and a wrong content-length (RFC 9113 §8.1.1, §8.2, §8.3). It
//! accepts a host that differs from `:authority`, several hosts, several lengths, userinfo,
//! whitespace around a value, and a path that does not begin with a slash. A fragment in
//! `:path`, which HTTP/1.1 refuses, cannot be seen here: h2 has dropped it, so neither
//! the cache key, nor the upstream, nor a log has it.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Uri};

use super::framing::{content_length, is_authority};
use super::{HeadBounds, HeadFault};

/// Checks a head, and gives it the form that it has in HTTP/1.1: a target in origin
/// form, and one Cookie field. Host is not added, since nothing reads it: the upstream
/// gets its own. A target that cannot have that form (of CONNECT, with userinfo, of
/// another scheme than http and https, or without a leading slash) stays as it is; the
/// gateway refuses it.
pub(crate) fn normalize<B>(request: &mut Request<B>, bounds: HeadBounds) -> Result<(), HeadFault> {
    let (uri, fields) = (request.uri(), request.headers());
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if target > bounds.target {
        return Err(HeadFault::TargetTooLong);
    }
    let (mut host, mut length, mut cookies) = (None, None, 0);
    for (name, value) in fields {
        // RFC 9113 §8.2.1.
        if has_blank_around(value) {
            return Err(HeadFault::BadFieldLine);
        }
        cookies += usize::from(name == COOKIE);
        if name == HOST && (host.replace(value).is_some() || !is_authority(value.as_bytes())) {
            return Err(HeadFault::HostInvalid);
        }
        if name == CONTENT_LENGTH
            && (length.replace(value).is_some() || content_length(value.as_bytes()).is_none())
        {
            return Err(HeadFault::BadContentLength);
        }
    }
    // Browsers split Cookie into many fields (RFC 9113 §8.2.3): they count as one.
    if fields.len() - cookies.saturating_sub(1) > bounds.fields {
        return Err(HeadFault::HeadTooLarge);
    }
    match (uri.authority(), host) {
        (None, None) => return Err(HeadFault::HostMissing),
        (None, Some(_)) => {}
        (Some(authority), _) if authority.as_str().contains('@') => return Ok(()),
        (Some(authority), None) if !is_authority(authority.as_str().as_bytes()) => {
            return Err(HeadFault::HostInvalid);
        }
        (Some(authority), Some(host)) if !is_same(authority, host, uri.scheme()) => {
            return Err(HeadFault::AuthorityMismatch);
        }
        (Some(_), _) => {}
    }
    if cookies > 1 {
        join_cookies(request.headers_mut());
    }
    to_origin_form(request.uri_mut());
    Ok(())
}

fn has_blank_around(value: &HeaderValue) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let value = value.as_bytes();
    is_blank(value.first()) || is_blank(value.last())
}

/// Whether Host names the same as `:authority` (RFC 9113 §8.3.1). Names are
/// compared as RFC 3986 §6.2.2.1 and §6.2.3 say: without regard to case, and
/// without the default port.
fn is_same(authority: &Authority, host: &HeaderValue, scheme: Option<&Scheme>) -> bool {
    let default: &[u8] = match scheme.map(Scheme::as_str) {
        Some("http") => b":80",
        Some("https") => b":443",
        _ => b"",
    };
    fn name<'a>(of: &'a [u8], default: &[u8]) -> &'a [u8] {
        let name = of.strip_suffix(default).unwrap_or(of);
        name.strip_suffix(b":").unwrap_or(name)
    }
    let authority = name(authority.as_str().as_bytes(), default);
    name(host.as_bytes(), default).eq_ignore_ascii_case(authority)
}

/// Joins the fields into which a client has split Cookie (RFC 9113 §8.2.3).
fn join_cookies(fields: &mut HeaderMap) {
    let mut crumbs = fields.get_all(COOKIE).iter();
    let mut whole = crumbs
        .next()
        .map_or(&b""[..], |crumb| crumb.as_bytes())
        .to_vec();
    for crumb in crumbs {
        whole.extend_from_slice(b"; ");
        whole.extend_from_slice(crumb.as_bytes());
    }
    if let Ok(mut whole) = HeaderValue::from_maybe_shared(bytes::Bytes::from(whole)) {
        whole.set_sensitive(true);
        fields.insert(COOKIE, whole);
    }
}

fn to_origin_form(uri: &mut Uri) {
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let path = uri.path_and_query();
    let has_slash = path.is_some_and(|path| path.as_str().starts_with('/'));
    if uri.authority().is_none() || !is_http || !has_slash {
        return;
    }
    if let Some(path) = std::mem::take(uri).into_parts().path_and_query {
        *uri = Uri::from(path);
    }
}

#[cfg(test)]
mod tests {
    use http::uri::Parts;

    use super::*;

    const BOUNDS: HeadBounds = HeadBounds {
        head: 1000,
        target: 20,
        fields: 5,
    };

    /// A request as h2 makes it.
    fn request(authority: &str, path: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut parts = Parts::default();
        parts.path_and_query = Some(path.parse().unwrap());
        if !authority.is_empty() {
            parts.authority = Some(authority.parse().unwrap());
            parts.scheme = Some(Scheme::HTTP);
        }
        let mut request = Request::builder().uri(Uri::from_parts(parts).unwrap());
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn heads_that_two_could_read_differently_are_refused() {
        use HeadFault::{
            AuthorityMismatch, BadContentLength, BadFieldLine, HeadTooLarge, HostInvalid,
            HostMissing, TargetTooLong,
        };
        const MANY: &[(&str, &str)] = &[("a", "1"); 6];
        type Row = (
            &'static str,
            &'static str,
            &'static [(&'static str, &'static str)],
            Result<(), HeadFault>,
        );
        const LENGTHS: &[(&str, &str)] = &[("content-length", "3"); 2];
        let rows: [Row; 24] = [
            ("a", "/", &[], Ok(())),
            ("", "/", &[("host", "a")], Ok(())),
            ("", "/", &[], Err(HostMissing)),
            ("a", "/", &[("host", "a")], Ok(())),
            ("a", "/", &[("host", "A")], Ok(())),
            ("a:80", "/", &[("host", "a")], Ok(())),
            ("a", "/", &[("host", "a:80")], Ok(())),
            ("a", "/", &[("host", "a:443")], Err(AuthorityMismatch)),
            ("a:8080", "/", &[("host", "a")], Err(AuthorityMismatch)),
            ("a", "/", &[("host", "b")], Err(AuthorityMismatch)),
            ("a", "/", &[("host", "")], Err(AuthorityMismatch)),
            ("a", "/", &[("host", "a"), ("host", "a")], Err(HostInvalid)),
            ("a", "/", &[("host", "u@a")], Err(HostInvalid)),
            ("", "/", &[("host", "a/b")], Err(HostInvalid)),
            ("a", "/", &[("x", " 1")], Err(BadFieldLine)),
            ("a", "/", &[("x", "1\t")], Err(BadFieldLine)),
            ("a", "/", &[("x", "1 2"), ("y", "")], Ok(())),
            ("a", "/", MANY, Err(HeadTooLarge)),
            ("a", "/", &[("content-length", "3")], Ok(())),
            ("a", "/", LENGTHS, Err(BadContentLength)),
            (
                "a",
                "/",
                &[("content-length", "3, 3")],
                Err(BadContentLength),
            ),
            ("a", "/", &[("content-length", "")], Err(BadContentLength)),
            ("a", "/2345678901234567890", &[], Ok(())),
            ("a", "/23456789012345678901", &[], Err(TargetTooLong)),
        ];
        for (authority, path, fields, expected) in rows {
            let mut request = request(authority, path, fields);
            let result = normalize(&mut request, BOUNDS);
            assert_eq!(result, expected, "{authority} {path} {fields:?}");
            if expected.is_ok() {
                assert_eq!(request.uri(), path);
                assert!(request.uri().authority().is_none());
            }
        }
    }

    #[test]
    fn targets_without_an_origin_form_stay() {
        for (authority, path) in [("u@a", "/"), ("a", "*")] {
            let mut request = request(authority, path, &[]);
            assert_eq!(normalize(&mut request, BOUNDS), Ok(()));
            let target = request.uri();
            assert!(target.authority().is_some(), "{authority} {path}");
        }
        let mut connect = Request::connect("a:80").body(()).unwrap();
        assert_eq!(normalize(&mut connect, BOUNDS), Ok(()));
        assert!(connect.uri().authority().is_some());
    }

    #[test]
    fn cookie_crumbs_are_joined() {
        let crumbs = [("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")];
        let mut request = request("a", "/", &crumbs);
        assert_eq!(normalize(&mut request, BOUNDS), Ok(()));
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn cookie_crumbs_count_as_one_field() {
        let rows = [
            (4, 20, Ok(())),
            (5, 20, Err(HeadFault::HeadTooLarge)),
            (5, 1, Err(HeadFault::HeadTooLarge)),
            (5, 0, Ok(())),
            (6, 0, Err(HeadFault::HeadTooLarge)),
        ];
        for (others, crumbs, expected) in rows {
            let mut fields = vec![("a", "1"); others];
            fields.extend(vec![("cookie", "b=2"); crumbs]);
            let mut request = request("a", "/", &fields);
            let result = normalize(&mut request, BOUNDS);
            assert_eq!(result, expected, "{others} and {crumbs}");
        }
    }
}
