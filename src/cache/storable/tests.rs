//! Tables of `storable`. Sections are of RFC 9111 where no other is named.

use super::*;
use crate::cache::tests_table::{fields, rows};

fn is_stored(request: &str, status: &str, response: &str, set_cookie: SetCookie) -> bool {
    let (request, response) = (fields(request), fields(response));
    let answer = (status.parse().unwrap(), &response);
    storable(&request, answer, SystemTime::UNIX_EPOCH, set_cookie)
}

#[test]
fn a_response_to_get_is_stored_unless_a_rule_forbids_it() {
    let table = r#"
        request                 | status | response                                                | stored | section
        content-length: 5       | 200    | cache-control: max-age=60                               | no     | RFC 9110 §9.3.1
        content-length: 0       | 200    | cache-control: max-age=60                               | yes    | RFC 9110 §9.3.1
                                | 200    | cache-control: max-age=60                               | yes    | §3
                                | 200    |                                                         | yes    | §3, heuristically cacheable
                                | 404    |                                                         | yes    | §3, heuristically cacheable
                                | 201    |                                                         | no     | §3
                                | 302    |                                                         | no     | §3
                                | 503    |                                                         | no     | §3
                                | 503    | cache-control: max-age=60                               | yes    | §3, max-age
                                | 599    | cache-control: max-age=60                               | yes    | §3, an unknown status code
                                | 599    | cache-control: s-maxage=1                               | yes    | §3, s-maxage
                                | 599    | cache-control: public                                   | yes    | §3, public
                                | 599    | expires: 0                                              | yes    | §3, Expires
                                | 599    | expires: 0 & cdn-cache-control: none                    | no     | RFC 9213 §2.2
                                | 103    | cache-control: max-age=60                               | no     | §3
                                | 101    | cache-control: max-age=60                               | no     | §3
                                | 206    | cache-control: max-age=60                               | no     | §3.3
                                | 416    | cache-control: max-age=60                               | no     | RFC 9110 §15.5.17
                                | 304    | cache-control: max-age=60                               | no     | §4.3.3
                                | 412    | cache-control: max-age=60                               | no     | RFC 9110 §15.5.13
                                | 417    | cache-control: max-age=60                               | no     | RFC 9110 §15.5.18
                                | 429    | cache-control: max-age=60                               | no     | RFC 6585 §4
                                | 428    | cache-control: max-age=60                               | no     | RFC 6585 §3
                                | 431    | cache-control: max-age=60                               | no     | RFC 6585 §5
                                | 511    | cache-control: max-age=60                               | no     | RFC 6585 §6
        cache-control: no-store | 200    | cache-control: max-age=60                               | no     | §5.2.1.5
        cache-control: no-cache | 200    | cache-control: max-age=60                               | yes    | §5.2.1.4
                                | 200    | cache-control: no-store, max-age=60                     | no     | §5.2.2.5
                                | 200    | cache-control: no-store, must-understand                | yes    | §5.2.2.3
                                | 599    | cache-control: max-age=60, must-understand              | no     | §5.2.2.3
                                | 200    | cache-control: no-cache                                 | yes    | §5.2.2.4, stored and validated
                                | 200    | cache-control: private, max-age=60                      | no     | §5.2.2.7
                                | 200    | cache-control: private="a", max-age=60                  | no     | §5.2.2.7
                                | 200    | cache-control: max-age=60 & set-cookie: a=b             | yes    | §7.3
                                | 200    | cache-control: max-age=60 & content-range: x            | yes    | RFC 9110 §14.4
        range: bytes=0-1        | 200    | cache-control: max-age=60                               | yes    | RFC 9110 §14.2, the whole was sent
                                | 200    | vary: *                                                 | no     | §4.1
                                | 200    | vary: foo, *                                            | no     | §4.1
                                | 200    | vary: foo                                               | yes    | §4.1
        authorization: Basic x  | 200    | cache-control: max-age=60                               | no     | §3.5
        authorization: Basic x  | 200    | expires: 0                                              | no     | §3.5
        authorization: Basic x  | 200    | cache-control: public                                   | yes    | §3.5
        authorization: Basic x  | 200    | cache-control: s-maxage=60                              | yes    | §3.5
        authorization: Basic x  | 200    | cache-control: must-revalidate, max-age=60              | yes    | §3.5
        authorization: Basic x  | 200    | cache-control: proxy-revalidate, max-age=60             | no     | §3.5, not among the three
                                | 200    | cache-control: no-store & cdn-cache-control: max-age=60 | yes    | RFC 9213 §2.2
                                | 200    | cache-control: max-age=60 & cdn-cache-control: no-store | no     | RFC 9213 §2.2
    "#;
    for [request, status, response, expected, section] in rows(table) {
        let found = is_stored(request, status, response, SetCookie::Explicit);
        let case = format!("{request} | {status} | {response}: {section}");
        assert_eq!(found, expected == "yes", "{case}");
    }
}

#[test]
fn hop_by_hop_fields_and_trailer_are_not_stored() {
    let response = "connection: x-hop & x-hop: 1 & te: 1 & trailer: a & set-cookie: c & a: 1";
    let stored = stored_fields(&fields(response));
    assert_eq!(stored, fields("set-cookie: c & a: 1"), "§3.1");
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
        cache-control: max-age=60, no-cache="set-cookie"                                | refused  | refused
    "#;
    for [text, explicit, never] in rows(table) {
        let without = text.replace("EPOCH", "Thu, 01 Jan 1970 00:00:00 GMT");
        let with = format!("{without} & set-cookie: a=b");
        let rules = [SetCookie::Explicit, SetCookie::Never, SetCookie::Dropped];
        for (rule, expected) in rules.into_iter().zip([explicit, never, "stored"]) {
            let case = format!("{rule:?} {text}");
            assert!(is_stored("", "200", &without, rule), "{case}");
            let found = is_stored("", "200", &with, rule);
            assert_eq!(found, expected == "stored", "{case}");
        }
    }
}
