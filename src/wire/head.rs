//! The one check of a request's head, after hyper has parsed it: what another parser could
//! read differently is refused, and the connection closes.
//!
//! hyper itself refuses a malformed line, differing lengths, a transfer coding in HTTP/1.0,
//! and one that does not end in `chunked`; of a length and `chunked` it takes the coding and
//! closes. h2 refuses connection-specific fields, upper-case names, wrong pseudo-header
//! fields and a length that is not the body's. A fragment never comes here: hyper drops it.

use http::header::{CONNECTION, COOKIE, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use http_body::Body;

use crate::reason::Reason;

/// The most bytes of a request's target.
pub(crate) const MAX_TARGET_BYTES: usize = 8 << 10;

/// Checks a head (RFC 9112 §3.2 and §6.1, RFC 9113 §8.3.1). The bodies of requests with a
/// fault are not read.
#[inline]
pub(crate) fn check<B: Body>(request: &Request<B>) -> Result<(), Reason> {
    let (uri, fields) = (request.uri(), request.headers());
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if target > MAX_TARGET_BYTES {
        return Err(Reason::TargetTooLong);
    }
    check_host(request.version(), uri, fields)?;
    // With a transfer coding, hyper expects a body.
    if !request.body().is_end_stream() {
        check_coding(request.method(), fields)?;
    }
    // hyper puts something here for a request with Upgrade, and for no other. A request for
    // h2c is answered in HTTP/1.1: some clients offer it with ordinary requests.
    if !request.extensions().is_empty() && wants_upgrade(fields) {
        return Err(Reason::Upgrade);
    }
    Ok(())
}

fn check_host(version: Version, uri: &Uri, fields: &HeaderMap) -> Result<(), Reason> {
    let mut hosts = fields.get_all(HOST).iter();
    let host = hosts.next();
    let is_valid = |host: &HeaderValue| is_authority(host.as_bytes());
    if !host.is_none_or(is_valid) || hosts.next().is_some() {
        return Err(Reason::BadHost);
    }
    let authority = uri.authority().filter(|_| version == Version::HTTP_2);
    let is_one = match (authority, host) {
        (None, Some(_)) => true,
        (None, None) => version == Version::HTTP_10,
        (Some(authority), None) => is_authority(authority.as_str().as_bytes()),
        (Some(authority), Some(host)) => {
            let authority = authority.as_str().as_bytes();
            host.as_bytes().eq_ignore_ascii_case(authority)
        }
    };
    match is_one {
        true => Ok(()),
        false => Err(Reason::BadHost),
    }
}

fn check_coding(method: &Method, fields: &HeaderMap) -> Result<(), Reason> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    let is_for_method = !matches!(*method, Method::GET | Method::HEAD);
    match is_chunked && codings.next().is_none() && is_for_method {
        true => Ok(()),
        false => Err(Reason::MalformedFraming),
    }
}

/// Whether a request is for another protocol than `h2c`, on this connection.
fn wants_upgrade(fields: &HeaderMap) -> bool {
    let any = |name, is: fn(&str) -> bool| {
        let lines = fields.get_all(name).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut members = lines.flat_map(|line| line.split(',')).map(str::trim);
        members.any(|member| !member.is_empty() && is(member))
    };
    any(UPGRADE, |protocol| !protocol.eq_ignore_ascii_case("h2c"))
        && any(CONNECTION, |option| option.eq_ignore_ascii_case("upgrade"))
}

/// Gives a head the form that it has in HTTP/1.1 to an origin: a target in origin form, and
/// one Cookie field. A target that cannot have that form (of CONNECT, with userinfo, of
/// another scheme than http and https, without a leading slash) stays as it is; the gateway
/// refuses it. Host stays as well: nothing reads it, and the upstream gets its own.
pub(crate) fn normalize<B>(request: &mut Request<B>) {
    to_origin_form(request.uri_mut());
    if request.version() == Version::HTTP_2 {
        join_cookies(request.headers_mut());
    }
}

fn to_origin_form(uri: &mut Uri) {
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let path = uri.path_and_query();
    let has_slash = path.is_some_and(|path| path.as_str().starts_with(['/', '?']));
    let authority = uri.authority();
    if !is_http || !has_slash || authority.is_none_or(|name| name.as_str().contains('@')) {
        return;
    }
    if let Some(path) = std::mem::take(uri).into_parts().path_and_query {
        *uri = path.into();
    }
}

/// Joins the fields into which a client has split Cookie (RFC 9113 §8.2.3).
fn join_cookies(fields: &mut HeaderMap) {
    let mut crumbs = fields.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) else {
        return;
    };
    let all = [first, second].into_iter().chain(crumbs);
    let all: Vec<_> = all.map(HeaderValue::as_bytes).collect();
    if let Ok(mut whole) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        whole.set_sensitive(true);
        fields.insert(COOKIE, whole);
    }
}

/// Approximates RFC 3986 §3.2.2 with a port: no userinfo, path or whitespace. An empty value
/// is allowed (RFC 9112 §3.2).
#[inline]
fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|byte| AUTHORITY[usize::from(*byte)])
}

/// The characters of a host with a port, as a table with one lookup for each byte.
static AUTHORITY: [bool; 256] = {
    let mut class = [false; 256];
    let mut byte = 0;
    while byte < 128_u8 {
        let is_sign = matches!(byte, b'.' | b'-' | b':' | b'[' | b']' | b'_' | b'%' | b'~');
        class[byte as usize] = byte.is_ascii_alphanumeric() || is_sign;
        byte += 1;
    }
    class
};

#[cfg(test)]
mod tests {
    use http::uri::{Parts, Scheme};
    use http_body_util::{Empty, Full};

    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    fn head(version: Version, uri: Uri, fields: Fields<'_>) -> Request<Empty<&'static [u8]>> {
        let mut request = Request::builder().uri(uri).version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(Empty::new()).unwrap()
    }

    /// A target as h2 makes it.
    fn of_http2(authority: &str, path: &str) -> Uri {
        let mut parts = Parts::default();
        parts.path_and_query = Some(path.parse().unwrap());
        if !authority.is_empty() {
            parts.authority = Some(authority.parse().unwrap());
            parts.scheme = Some(Scheme::HTTP);
        }
        Uri::from_parts(parts).unwrap()
    }

    #[test]
    fn which_hosts_are_refused() {
        let rows: [(Version, &str, Fields<'_>, _); 18] = [
            (Version::HTTP_11, "", &[("host", "a.example:80")], true),
            (Version::HTTP_11, "", &[("host", "[::1]:80")], true),
            (Version::HTTP_11, "", &[("host", "")], true),
            (Version::HTTP_11, "", &[], false),
            (Version::HTTP_10, "", &[], true),
            (Version::HTTP_11, "", &[("host", "a"), ("host", "a")], false),
            (Version::HTTP_10, "", &[("host", "a"), ("host", "b")], false),
            (Version::HTTP_11, "", &[("host", "u@a")], false),
            (Version::HTTP_11, "", &[("host", "a/b")], false),
            (Version::HTTP_11, "", &[("host", "a b")], false),
            (Version::HTTP_2, "", &[], false),
            (Version::HTTP_2, "", &[("host", "a")], true),
            (Version::HTTP_2, "a", &[], true),
            (Version::HTTP_2, "u@a", &[], false),
            (Version::HTTP_2, "a:81", &[("host", "A:81")], true),
            (Version::HTTP_2, "a", &[("host", "b")], false),
            (Version::HTTP_2, "a", &[("host", "a:443")], false),
            (Version::HTTP_2, "a", &[("host", "a"), ("host", "a")], false),
        ];
        for (version, authority, fields, expected) in rows {
            let request = head(version, of_http2(authority, "/"), fields);
            assert_eq!(
                check(&request).is_ok(),
                expected,
                "{version:?} {authority} {fields:?}"
            );
        }
    }

    #[test]
    fn which_codings_and_targets_are_refused() {
        for (method, codings, is_accepted) in [
            ("POST", &[][..], true),
            ("POST", &["chunked"][..], true),
            ("POST", &["Chunked"][..], true),
            ("POST", &["gzip, chunked"][..], false),
            ("POST", &["chunked", "chunked"][..], false),
            ("GET", &[][..], true),
            ("GET", &["chunked"][..], false),
            ("HEAD", &["chunked"][..], false),
        ] {
            let mut request = Request::builder().method(method).header(HOST, "a");
            for coding in codings {
                request = request.header(TRANSFER_ENCODING, *coding);
            }
            let request = request.body(Full::new(&b"x"[..])).unwrap();
            let expected = is_accepted.then_some(()).ok_or(Reason::MalformedFraming);
            assert_eq!(check(&request), expected, "{method} {codings:?}");
        }
        for (length, expected) in [
            (MAX_TARGET_BYTES, Ok(())),
            (MAX_TARGET_BYTES + 1, Err(Reason::TargetTooLong)),
        ] {
            let target = format!("/{}", "x".repeat(length - 1)).parse().unwrap();
            let request = head(Version::HTTP_11, target, &[("host", "a")]);
            assert_eq!(check(&request), expected, "{length}");
        }
    }
}
