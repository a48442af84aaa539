//! Tables of `storable`. Sections are of RFC 9111 where no other is named.

use http::HeaderValue;

use super::*;
use crate::cache::targeted::TargetList;
use crate::cache::tests_table::{fields, rows};

/// What becomes of a response: `stored`, or the name of a [`NotStored`].
fn judge(method: &str, request: &str, status: &str, response: &str) -> String {
    let (request, response) = (fields(request), fields(response));
    let judged = storable(&Exchange {
        method: &Method::from_bytes(method.as_bytes()).unwrap(),
        target: &Uri::from_static("http://example.org/a/b?c"),
        request: &request,
        directives: &RequestDirectives::of(&request),
        status: status.parse().unwrap(),
        response: &response,
        governing: &TargetList::default().governing(&response),
        received: SystemTime::UNIX_EPOCH,
        set_cookie: SetCookie::Explicit,
    });
    match judged {
        Ok(()) => "stored".to_owned(),
        Err(why) => format!("{why:?}"),
    }
}

#[test]
fn a_response_to_get_is_stored_unless_a_rule_forbids_it() {
    let table = r#"
        request                 | status | response                                                | result             | section
        content-length: 5       | 200    | cache-control: max-age=60                               | Content            | RFC 9110 §9.3.1
        content-length: 0       | 200    | cache-control: max-age=60                               | stored             | RFC 9110 §9.3.1
                                | 200    | cache-control: max-age=60                               | stored             | §3
                                | 200    |                                                         | stored             | §3, heuristically cacheable
                                | 404    |                                                         | stored             | §3, heuristically cacheable
                                | 201    |                                                         | NoExpiration       | §3
                                | 302    |                                                         | NoExpiration       | §3
                                | 503    |                                                         | NoExpiration       | §3
                                | 503    | cache-control: max-age=60                               | stored             | §3, max-age
                                | 599    | cache-control: max-age=60                               | stored             | §3, an unknown status code
                                | 599    | cache-control: s-maxage=1                               | stored             | §3, s-maxage
                                | 599    | cache-control: public                                   | stored             | §3, public
                                | 599    | expires: 0                                              | stored             | §3, Expires
                                | 599    | expires: 0 & cdn-cache-control: none                    | NoExpiration       | RFC 9213 §2.2
                                | 103    | cache-control: max-age=60                               | Interim            | §3
                                | 101    | cache-control: max-age=60                               | Interim            | §3
                                | 206    | cache-control: max-age=60                               | Partial            | §3.3
                                | 416    | cache-control: max-age=60                               | Partial            | RFC 9110 §15.5.17
                                | 304    | cache-control: max-age=60                               | Conditional        | §4.3.3
                                | 412    | cache-control: max-age=60                               | Conditional        | RFC 9110 §15.5.13
                                | 417    | cache-control: max-age=60                               | Conditional        | RFC 9110 §15.5.18
                                | 429    | cache-control: max-age=60                               | Status             | RFC 6585 §4
                                | 428    | cache-control: max-age=60                               | Status             | RFC 6585 §3
                                | 431    | cache-control: max-age=60                               | Status             | RFC 6585 §5
                                | 511    | cache-control: max-age=60                               | Status             | RFC 6585 §6
        cache-control: no-store | 200    | cache-control: max-age=60                               | RequestNoStore     | §5.2.1.5
        cache-control: no-cache | 200    | cache-control: max-age=60                               | stored             | §5.2.1.4
                                | 200    | cache-control: no-store, max-age=60                     | NoStore            | §5.2.2.5
                                | 200    | cache-control: no-store, must-understand                | stored             | §5.2.2.3
                                | 599    | cache-control: max-age=60, must-understand              | NotUnderstood      | §5.2.2.3
                                | 200    | cache-control: no-cache                                 | stored             | §5.2.2.4, stored and validated
                                | 200    | cache-control: private, max-age=60                      | Private            | §5.2.2.7
                                | 200    | cache-control: private="a", max-age=60                  | stored             | §5.2.2.7
                                | 200    | cache-control: max-age=60 & set-cookie: a=b             | stored             | §7.3
                                | 200    | cache-control: max-age=60 & content-range: x            | stored             | RFC 9110 §14.4
        range: bytes=0-1        | 200    | cache-control: max-age=60                               | stored             | RFC 9110 §14.2, the whole was sent
                                | 200    | vary: *                                                 | VariesOnEverything | §4.1
                                | 200    | vary: foo, *                                            | VariesOnEverything | §4.1
                                | 200    | vary: foo                                               | stored             | §4.1
        authorization: Basic x  | 200    | cache-control: max-age=60                               | Authorization      | §3.5
        authorization: Basic x  | 200    | expires: 0                                              | Authorization      | §3.5
        authorization: Basic x  | 200    | cache-control: public                                   | stored             | §3.5
        authorization: Basic x  | 200    | cache-control: s-maxage=60                              | stored             | §3.5
        authorization: Basic x  | 200    | cache-control: must-revalidate, max-age=60              | stored             | §3.5
        authorization: Basic x  | 200    | cache-control: proxy-revalidate, max-age=60             | Authorization      | §3.5, not among the three
                                | 200    | cache-control: no-store & cdn-cache-control: max-age=60 | stored             | RFC 9213 §2.2
                                | 200    | cache-control: max-age=60 & cdn-cache-control: no-store | NoStore            | RFC 9213 §2.2
    "#;
    for [request, status, response, expected, section] in rows(table) {
        let found = judge("GET", request, status, response);
        let case = format!("{request} | {status} | {response}: {section}");
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn a_response_to_post_is_stored_with_explicit_freshness() {
    let table = r#"
        method   | response                                             | result | section
        HEAD     | cache-control: max-age=60                            | Method | §4.3.5
        OPTIONS  | cache-control: max-age=60                            | Method | RFC 9110 §9.3.7
        PUT      | content-location: /a/b?c & cache-control: max-age=60 | Method | RFC 9110 §9.3.4
        M-SEARCH | cache-control: max-age=60                            | Method | §3
        get      | cache-control: max-age=60                            | Method | RFC 9110 §9.1, methods have case
        POST     | cache-control: max-age=60                            | Method | RFC 9110 §9.3.3
        POST     | content-location: /a/b?c & cache-control: max-age=60 | stored | RFC 9110 §9.3.3
        POST     | content-location: & expires: 0                       | stored | RFC 9110 §9.3.3, explicit
        POST     | content-location: /a/b?c                             | Method | RFC 9110 §9.3.3, no freshness
        POST     | content-location: /a & cache-control: max-age=60     | Method | RFC 9110 §9.3.3
        POST     | content-location: http://x/a/b?c & expires: 0        | Method | RFC 9110 §9.3.3
    "#;
    for [method, response, expected, section] in rows(table) {
        let found = judge(method, "", "200", response);
        assert_eq!(found, expected, "{method} | {response}: {section}");
    }
}

#[test]
fn hop_by_hop_and_named_fields_are_not_stored() {
    let table: &[(&str, &str, bool, &str)] = &[
        ("connection", "x-hop", false, "§3.1"),
        ("x-hop", "1", false, "§3.1"),
        ("keep-alive", "1", false, "§3.1"),
        ("proxy-authenticate", "1", false, "§3.1"),
        ("proxy-authentication-info", "1", false, "§3.1"),
        ("proxy-authorization", "1", false, "§3.1"),
        ("transfer-encoding", "1", false, "§3.1"),
        ("te", "1", false, "§3.1"),
        ("upgrade", "1", false, "§3.1"),
        ("trailer", "1", false, "§3.1, trailers are not kept"),
        ("a", "1", false, "§5.2.2.7"),
        ("b", "1", false, "§5.2.2.4"),
        ("c", "1", true, "§3.1"),
        ("set-cookie", "1", true, "§3.1"),
        ("content-range", "1", true, "§3.1"),
        (
            "cache-control",
            "private=\"a\", no-cache=\"b\"",
            true,
            "§3.1",
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
fn named_fields_are_for_the_client_whose_request_was_answered() {
    let table = r#"
        directives                         | fields                                   | withheld             | section
        max-age=60                         | a: 1 & set-cookie: c                     |                      | §3.1
        private                            | a: 1                                     |                      | §5.2.2.7, it is not stored at all
        private="a"                        | a: 1 & b: 2                              | a: 1                 | §5.2.2.7
        no-cache="A, Set-Cookie"           | a: 1 & set-cookie: c & set-cookie: d     | a: 1 & set-cookie: c & set-cookie: d | §5.2.2.4
        private="a", no-cache="a, b"       | a: 1 & b: 2 & c: 3                       | a: 1 & b: 2          | §5.2.2.4
        private="a, x-hop, te, trailer"    | connection: x-hop & x-hop: 1 & te: 1 & trailer: a |             | RFC 9110 §7.6.1
    "#;
    for [directives, received, expected, section] in rows(table) {
        let case = format!("{directives} | {received}: {section}");
        let (mut received, expected) = (fields(received), fields(expected));
        let directives = HeaderValue::from_static(directives);
        received.insert(header::CACHE_CONTROL, directives);
        let directives = ResponseDirectives::of(&received);
        let withheld = withheld_fields(&received, &directives);
        assert_eq!(withheld, expected, "{case}");
        let stored = stored_fields(&received, &directives);
        assert!(
            withheld.keys().all(|name| !stored.contains_key(name)),
            "{case}"
        );
    }
}

#[test]
fn set_cookie_follows_the_configured_rule() {
    let table = r#"
        fields                                                                          | explicit | never
        last-modified: EPOCH                                                            | refused  | refused
        etag: "one"                                                                     | refused  | refused
        cache-control: no-cache                                                         | refused  | refused
        cache-control: max-age=0                                                        | refused  | refused
        cache-control: public, max-age=0                                                | refused  | refused
        cache-control: max-age=60, s-maxage=0                                           | refused  | refused
        cache-control: max-age=60, no-cache                                             | refused  | refused
        expires: 0                                                                      | refused  | refused
        date: Thu, 01 Jan 1970 00:00:10 GMT & expires: Thu, 01 Jan 1970 00:00:10 GMT    | refused  | refused
        cache-control: max-age=60 & cdn-cache-control: none                             | refused  | refused
        cache-control: max-age=60                                                       | stored   | refused
        cache-control: max-age=0, s-maxage=60                                           | stored   | refused
        cache-control: public & last-modified: EPOCH                                    | stored   | refused
        cdn-cache-control: max-age=60                                                   | stored   | refused
        date: Thu, 01 Jan 1970 00:00:10 GMT & expires: Thu, 01 Jan 1970 00:00:11 GMT    | stored   | refused
        expires: Thu, 01 Jan 1970 00:00:11 GMT                                          | stored   | refused
        cache-control: private="set-cookie" & last-modified: EPOCH                      | stored   | stored
        cache-control: no-cache="set-cookie" & last-modified: EPOCH                     | stored   | stored
    "#;
    for [text, explicit, never] in rows(table) {
        let mut response = fields(&text.replace("EPOCH", "Thu, 01 Jan 1970 00:00:00 GMT"));
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
        for (rule, expected) in rules.into_iter().zip([explicit, never, "stored"]) {
            let expected = match expected {
                "stored" => Ok(()),
                _ => Err(NotStored::SetCookie),
            };
            assert_eq!(judged(&response, rule), expected, "{rule:?} {response:?}");
        }
    }
}
