//! Tables of `storable`: each row cites its section.

use http::{HeaderValue, header::HeaderName};

use super::*;
use crate::cache::targeted::TargetList;

type Fields = &'static [(&'static str, &'static str)];

fn headers(fields: Fields) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
}

fn judge(method: &str, request: Fields, status: u16, response: Fields) -> Result<(), NotStored> {
    let (request, response) = (headers(request), headers(response));
    storable(&Exchange {
        method: &Method::from_bytes(method.as_bytes()).unwrap(),
        target: &Uri::from_static("http://example.org/a/b?c"),
        request: &request,
        directives: &RequestDirectives::of(&request),
        status: StatusCode::from_u16(status).unwrap(),
        response: &response,
        governing: &TargetList::default().governing(&response),
        received: SystemTime::UNIX_EPOCH,
        set_cookie: SetCookie::Explicit,
    })
}

const FRESH: Fields = &[("cache-control", "max-age=60")];
const CREDENTIALS: Fields = &[("authorization", "Basic x")];

#[test]
fn a_response_to_get_is_stored_unless_a_rule_forbids_it() {
    type Row = (Fields, u16, Fields, Result<(), NotStored>, &'static str);
    let table: &[Row] = &[
        (
            &[("content-length", "5")],
            200,
            FRESH,
            Err(NotStored::Content),
            "RFC 9110 §9.3.1",
        ),
        (
            &[("content-length", "0")],
            200,
            FRESH,
            Ok(()),
            "RFC 9110 §9.3.1",
        ),
        (&[], 200, FRESH, Ok(()), "RFC 9111 §3"),
        (
            &[],
            200,
            &[],
            Ok(()),
            "RFC 9111 §3, heuristically cacheable",
        ),
        (
            &[],
            404,
            &[],
            Ok(()),
            "RFC 9111 §3, heuristically cacheable",
        ),
        (&[], 201, &[], Err(NotStored::NoExpiration), "RFC 9111 §3"),
        (&[], 302, &[], Err(NotStored::NoExpiration), "RFC 9111 §3"),
        (&[], 503, &[], Err(NotStored::NoExpiration), "RFC 9111 §3"),
        (&[], 503, FRESH, Ok(()), "RFC 9111 §3, max-age"),
        (
            &[],
            599,
            FRESH,
            Ok(()),
            "RFC 9111 §3, an unknown status code",
        ),
        (
            &[],
            599,
            &[("cache-control", "s-maxage=1")],
            Ok(()),
            "RFC 9111 §3, s-maxage",
        ),
        (
            &[],
            599,
            &[("cache-control", "public")],
            Ok(()),
            "RFC 9111 §3, public",
        ),
        (
            &[],
            599,
            &[("expires", "0")],
            Ok(()),
            "RFC 9111 §3, Expires",
        ),
        (
            &[],
            599,
            &[("expires", "0"), ("cdn-cache-control", "none")],
            Err(NotStored::NoExpiration),
            "RFC 9213 §2.2",
        ),
        (&[], 103, FRESH, Err(NotStored::Interim), "RFC 9111 §3"),
        (&[], 101, FRESH, Err(NotStored::Interim), "RFC 9111 §3"),
        (&[], 206, FRESH, Err(NotStored::Partial), "RFC 9111 §3.3"),
        (
            &[],
            416,
            FRESH,
            Err(NotStored::Partial),
            "RFC 9110 §15.5.17",
        ),
        (
            &[],
            304,
            FRESH,
            Err(NotStored::Conditional),
            "RFC 9111 §4.3.3",
        ),
        (
            &[],
            412,
            FRESH,
            Err(NotStored::Conditional),
            "RFC 9110 §15.5.13",
        ),
        (
            &[],
            417,
            FRESH,
            Err(NotStored::Conditional),
            "RFC 9110 §15.5.18",
        ),
        (&[], 429, FRESH, Err(NotStored::Status), "RFC 6585 §4"),
        (&[], 428, FRESH, Err(NotStored::Status), "RFC 6585 §3"),
        (&[], 431, FRESH, Err(NotStored::Status), "RFC 6585 §5"),
        (&[], 511, FRESH, Err(NotStored::Status), "RFC 6585 §6"),
        (
            &[("cache-control", "no-store")],
            200,
            FRESH,
            Err(NotStored::RequestNoStore),
            "RFC 9111 §5.2.1.5",
        ),
        (
            &[("cache-control", "no-cache")],
            200,
            FRESH,
            Ok(()),
            "RFC 9111 §5.2.1.4",
        ),
        (
            &[],
            200,
            &[("cache-control", "no-store, max-age=60")],
            Err(NotStored::NoStore),
            "RFC 9111 §5.2.2.5",
        ),
        (
            &[],
            200,
            &[("cache-control", "no-store, must-understand")],
            Ok(()),
            "RFC 9111 §5.2.2.3",
        ),
        (
            &[],
            599,
            &[("cache-control", "max-age=60, must-understand")],
            Err(NotStored::NotUnderstood),
            "RFC 9111 §5.2.2.3",
        ),
        (
            &[],
            200,
            &[("cache-control", "no-cache")],
            Ok(()),
            "RFC 9111 §5.2.2.4, stored and validated",
        ),
        (
            &[],
            200,
            &[("cache-control", "private, max-age=60")],
            Err(NotStored::Private),
            "RFC 9111 §5.2.2.7",
        ),
        (
            &[],
            200,
            &[("cache-control", "private=\"a\", max-age=60")],
            Ok(()),
            "RFC 9111 §5.2.2.7",
        ),
        (
            &[],
            200,
            &[("cache-control", "max-age=60"), ("set-cookie", "a=b")],
            Ok(()),
            "RFC 9111 §7.3",
        ),
        (
            &[],
            200,
            &[("cache-control", "max-age=60"), ("content-range", "x")],
            Ok(()),
            "RFC 9110 §14.4",
        ),
        (
            &[("range", "bytes=0-1")],
            200,
            FRESH,
            Ok(()),
            "RFC 9110 §14.2, the whole was sent",
        ),
        (
            &[],
            200,
            &[("vary", "*")],
            Err(NotStored::VariesOnEverything),
            "RFC 9111 §4.1",
        ),
        (
            &[],
            200,
            &[("vary", "foo, *")],
            Err(NotStored::VariesOnEverything),
            "RFC 9111 §4.1",
        ),
        (&[], 200, &[("vary", "foo")], Ok(()), "RFC 9111 §4.1"),
        (
            CREDENTIALS,
            200,
            FRESH,
            Err(NotStored::Authorization),
            "RFC 9111 §3.5",
        ),
        (
            CREDENTIALS,
            200,
            &[("expires", "0")],
            Err(NotStored::Authorization),
            "RFC 9111 §3.5",
        ),
        (
            CREDENTIALS,
            200,
            &[("cache-control", "public")],
            Ok(()),
            "RFC 9111 §3.5",
        ),
        (
            CREDENTIALS,
            200,
            &[("cache-control", "s-maxage=60")],
            Ok(()),
            "RFC 9111 §3.5",
        ),
        (
            CREDENTIALS,
            200,
            &[("cache-control", "must-revalidate, max-age=60")],
            Ok(()),
            "RFC 9111 §3.5",
        ),
        (
            CREDENTIALS,
            200,
            &[("cache-control", "proxy-revalidate, max-age=60")],
            Err(NotStored::Authorization),
            "RFC 9111 §3.5, not among the three",
        ),
        (
            &[],
            200,
            &[
                ("cache-control", "no-store"),
                ("cdn-cache-control", "max-age=60"),
            ],
            Ok(()),
            "RFC 9213 §2.2",
        ),
        (
            &[],
            200,
            &[
                ("cache-control", "max-age=60"),
                ("cdn-cache-control", "no-store"),
            ],
            Err(NotStored::NoStore),
            "RFC 9213 §2.2",
        ),
    ];
    for (row, (request, status, response, expected, section)) in table.iter().enumerate() {
        assert_eq!(
            judge("GET", request, *status, response),
            *expected,
            "row {row}: {section}"
        );
    }
}

#[test]
fn a_response_to_post_is_stored_with_explicit_freshness() {
    let no = Err(NotStored::Method);
    let itself: Fields = &[
        ("content-location", "/a/b?c"),
        ("cache-control", "max-age=60"),
    ];
    let table: &[(&str, Fields, Result<(), NotStored>, &str)] = &[
        ("HEAD", FRESH, no, "RFC 9111 §4.3.5"),
        ("OPTIONS", FRESH, no, "RFC 9110 §9.3.7"),
        ("PUT", itself, no, "RFC 9110 §9.3.4"),
        ("M-SEARCH", FRESH, no, "RFC 9111 §3"),
        ("get", FRESH, no, "RFC 9110 §9.1, methods have case"),
        ("POST", FRESH, no, "RFC 9110 §9.3.3"),
        ("POST", itself, Ok(()), "RFC 9110 §9.3.3"),
        (
            "POST",
            &[("content-location", ""), ("expires", "0")],
            Ok(()),
            "RFC 9110 §9.3.3, explicit",
        ),
        (
            "POST",
            &[("content-location", "/a/b?c")],
            no,
            "RFC 9110 §9.3.3, no freshness",
        ),
        (
            "POST",
            &[("content-location", "/a"), ("cache-control", "max-age=60")],
            no,
            "RFC 9110 §9.3.3",
        ),
        (
            "POST",
            &[("content-location", "http://x/a/b?c"), ("expires", "0")],
            no,
            "RFC 9110 §9.3.3",
        ),
    ];
    for (row, (method, response, expected, section)) in table.iter().enumerate() {
        assert_eq!(
            judge(method, &[], 200, response),
            *expected,
            "row {row}: {section}"
        );
    }
}

#[test]
fn hop_by_hop_and_named_fields_are_not_stored() {
    let table: &[(&str, &str, bool, &str)] = &[
        ("connection", "x-hop", false, "RFC 9111 §3.1"),
        ("x-hop", "1", false, "RFC 9111 §3.1"),
        ("keep-alive", "1", false, "RFC 9111 §3.1"),
        ("proxy-authenticate", "1", false, "RFC 9111 §3.1"),
        ("proxy-authentication-info", "1", false, "RFC 9111 §3.1"),
        ("proxy-authorization", "1", false, "RFC 9111 §3.1"),
        ("transfer-encoding", "1", false, "RFC 9111 §3.1"),
        ("te", "1", false, "RFC 9111 §3.1"),
        ("upgrade", "1", false, "RFC 9111 §3.1"),
        (
            "trailer",
            "1",
            false,
            "RFC 9111 §3.1, trailers are not kept",
        ),
        ("a", "1", false, "RFC 9111 §5.2.2.7"),
        ("b", "1", false, "RFC 9111 §5.2.2.4"),
        ("c", "1", true, "RFC 9111 §3.1"),
        ("set-cookie", "1", true, "RFC 9111 §3.1"),
        ("content-range", "1", true, "RFC 9111 §3.1"),
        (
            "cache-control",
            "private=\"a\", no-cache=\"b\"",
            true,
            "RFC 9111 §3.1",
        ),
        ("cdn-cache-control", "max-age=1", true, "RFC 9213 §2.2"),
    ];
    let mut response = HeaderMap::new();
    for (name, value, ..) in table {
        response.append(*name, HeaderValue::from_static(value));
    }
    let stored = stored_fields(&response, &ResponseDirectives::of(&response));
    for (name, _, kept, section) in table {
        assert_eq!(stored.contains_key(*name), *kept, "{name}: {section}");
    }
}

#[test]
fn set_cookie_follows_the_configured_rule() {
    const GIVEN: [Result<(), NotStored>; 2] = [Ok(()), Err(NotStored::SetCookie)];
    const STORED: [Result<(), NotStored>; 2] = [Ok(()); 2];
    const REFUSED: [Result<(), NotStored>; 2] = [Err(NotStored::SetCookie); 2];
    let date = ("date", "Thu, 01 Jan 1970 00:00:10 GMT");
    let modified = ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT");
    for (fields, [explicit, never]) in [
        (vec![modified], REFUSED),
        (vec![("etag", "\"one\"")], REFUSED),
        (vec![("cache-control", "no-cache")], REFUSED),
        (vec![("cache-control", "max-age=0")], REFUSED),
        (vec![("cache-control", "public, max-age=0")], REFUSED),
        (vec![("cache-control", "max-age=60, s-maxage=0")], REFUSED),
        (vec![("cache-control", "max-age=60, no-cache")], REFUSED),
        (vec![("expires", "0")], REFUSED),
        (
            vec![date, ("expires", "Thu, 01 Jan 1970 00:00:10 GMT")],
            REFUSED,
        ),
        (
            vec![
                ("cache-control", "max-age=60"),
                ("cdn-cache-control", "none"),
            ],
            REFUSED,
        ),
        (vec![("cache-control", "max-age=60")], GIVEN),
        (vec![("cache-control", "max-age=0, s-maxage=60")], GIVEN),
        (vec![("cache-control", "public"), modified], GIVEN),
        (vec![("cdn-cache-control", "max-age=60")], GIVEN),
        (
            vec![date, ("expires", "Thu, 01 Jan 1970 00:00:11 GMT")],
            GIVEN,
        ),
        (vec![("expires", "Thu, 01 Jan 1970 00:00:11 GMT")], GIVEN),
        // The cookie itself is not stored.
        (
            vec![("cache-control", "private=\"set-cookie\""), modified],
            STORED,
        ),
        (
            vec![("cache-control", "no-cache=\"set-cookie\""), modified],
            STORED,
        ),
    ] {
        let mut response = HeaderMap::new();
        for (name, value) in fields {
            response.append(name, HeaderValue::from_static(value));
        }
        let judged = |response: &HeaderMap, set_cookie| {
            storable(&Exchange {
                method: &Method::GET,
                target: &Uri::from_static("http://example.org/a"),
                request: &HeaderMap::new(),
                directives: &RequestDirectives::default(),
                status: StatusCode::OK,
                response,
                governing: &TargetList::default().governing(response),
                received: SystemTime::UNIX_EPOCH,
                set_cookie,
            })
        };
        let rules = [SetCookie::Explicit, SetCookie::Never, SetCookie::Dropped];
        for rule in rules {
            assert_eq!(judged(&response, rule), Ok(()), "{response:?}");
        }
        response.append(header::SET_COOKIE, HeaderValue::from_static("a=b"));
        for (rule, expected) in rules.into_iter().zip([explicit, never, Ok(())]) {
            assert_eq!(judged(&response, rule), expected, "{rule:?} {response:?}");
        }
    }
}
