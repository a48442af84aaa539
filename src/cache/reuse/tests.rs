//! Tables of `reuse`. Sections are of RFC 9111 where no other is named.

use http::{HeaderValue, header};

use super::*;
use crate::cache::date;
use crate::cache::tests_table::rows;

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)
}

/// A response that arrived at noon.
fn stored(cache_control: &'static str, age: u64) -> StoredFacts {
    stored_with(StatusCode::OK, cache_control, age)
}

fn stored_with(status: StatusCode, cache_control: &'static str, age: u64) -> StoredFacts {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static(cache_control),
    );
    headers.insert(header::AGE, age.into());
    headers.insert(header::DATE, date::value(noon()));
    StoredFacts::of(status, &headers, noon(), noon())
}

fn directives(cache_control: &'static str) -> Directives {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static(cache_control),
    );
    Directives::of_request(&headers)
}

fn text(decided: Result<Reuse, Forward>) -> String {
    match decided {
        Ok(reuse) => format!("{reuse:?}"),
        Err(why) => why.as_str().to_owned(),
    }
}

#[test]
fn reuse_while_the_origin_is_reachable() {
    let table = r#"
        request                   | response                                               | age  | result          | section
                                  | max-age=60                                             | 0    | Fresh           | §4.2
                                  | max-age=60                                             | 59   | Fresh           | §4.2
                                  | max-age=60                                             | 60   | stale           | §4.2, the lifetime must exceed the age
                                  | max-age=0                                              | 0    | stale           | §4.2
                                  |                                                        | 0    | stale           | §4.2
                                  | no-cache, max-age=60                                   | 0    | stale           | §5.2.2.4
                                  | no-cache="a", max-age=60                               | 0    | stale           | §5.2.2.4
                                  | must-revalidate, max-age=60                            | 0    | Fresh           | §5.2.2.2
                                  | must-revalidate, max-age=60                            | 60   | stale           | §5.2.2.2
                                  | immutable, max-age=60                                  | 60   | stale           | RFC 8246 §2
        no-cache                  | max-age=60                                             | 0    | request         | §5.2.1.4
        no-cache                  | max-age=60                                             | 60   | stale           | §5.2.1.4
        no-store                  | max-age=60                                             | 0    | Fresh           | §5.2.1.5, says nothing of what is stored
        max-age=0                 | max-age=60                                             | 1    | request         | §5.2.1.1
        max-age=30                | max-age=60                                             | 30   | Fresh           | §5.2.1.1
        max-age=30                | max-age=60                                             | 31   | request         | §5.2.1.1
        min-fresh=30              | max-age=60                                             | 30   | Fresh           | §5.2.1.3
        min-fresh=30              | max-age=60                                             | 31   | request         | §5.2.1.3
        max-stale                 | max-age=60                                             | 9999 | MaxStale        | §5.2.1.2
        max-stale=10              | max-age=60                                             | 70   | MaxStale        | §5.2.1.2
        max-stale=10              | max-age=60                                             | 71   | stale           | §5.2.1.2
        max-stale=10, max-age=65  | max-age=60                                             | 66   | stale           | §5.2.1.1
        max-stale=10, max-age=65  | max-age=60                                             | 65   | MaxStale        | §5.2.1.1
        max-stale, min-fresh=1    | max-age=60                                             | 70   | stale           | §5.2.1.3
        max-stale, no-cache       | max-age=60                                             | 70   | stale           | §5.2.1.4
        max-stale                 | max-age=60, must-revalidate                            | 61   | stale           | §4.2.4
        max-stale                 | max-age=60, proxy-revalidate                           | 61   | stale           | §4.2.4
        max-stale                 | s-maxage=60                                            | 61   | stale           | §5.2.2.10
        max-stale                 | no-cache                                               | 0    | stale           | §5.2.2.4
        only-if-cached            | max-age=60                                             | 0    | Fresh           | §5.2.1.7
        only-if-cached, max-stale | max-age=60                                             | 61   | MaxStale        | §5.2.1.7
                                  | max-age=60, stale-while-revalidate=10                  | 70   | WhileRevalidate | RFC 5861 §3
                                  | max-age=60, stale-while-revalidate=10                  | 71   | stale           | RFC 5861 §3
                                  | max-age=60, stale-while-revalidate=x                   | 61   | stale           | RFC 5861 §3
                                  | s-maxage=60, stale-while-revalidate=10                 | 61   | stale           | §4.2.4
                                  | max-age=60, must-revalidate, stale-while-revalidate=10 | 61   | stale           | §4.2.4
        max-age=99                | max-age=60, stale-while-revalidate=10                  | 61   | stale           | §5.2.1.1, nothing stale
        no-cache                  | max-age=60, stale-while-revalidate=10                  | 61   | stale           | §5.2.1.4
                                  | max-age=60, stale-if-error=10                          | 61   | stale           | RFC 5861 §4, there is no error
    "#;
    for [request, response, age, expected, section] in rows(table) {
        let stored = stored(response, age.parse().unwrap());
        let directives = directives(request);
        let found = may_reuse(&directives, &stored, noon(), None);
        let case = format!("{request} | {response} aged {age}: {section}");
        assert_eq!(text(found), expected, "{case}");
    }
}

#[test]
fn reuse_while_the_origin_has_failed() {
    // `route`: its `stale_if_error`. A stored error has no use as a substitute for another.
    let table = r#"
        status | request                    | response                              | age | route | result          | section
        200    |                            | max-age=60                            | 0   | 0     | Fresh           | §4.2
        200    |                            | max-age=60, stale-if-error=10         | 70  | 0     | IfError         | RFC 5861 §4
        200    |                            | max-age=60, stale-if-error=10         | 71  | 0     | stale           | RFC 5861 §4
        200    |                            | max-age=60, stale-if-error=10         | 71  | 100   | stale           | the origin's bound, not the operator's
        200    | stale-if-error=20          | max-age=60, stale-if-error=10         | 80  | 0     | IfError         | RFC 5861 §4
        200    | stale-if-error=5           | max-age=60, stale-if-error=10         | 66  | 0     | stale           | RFC 5861 §4
        200    | stale-if-error=5           | max-age=60                            | 65  | 0     | IfError         | RFC 5861 §4
        200    |                            | max-age=60                            | 61  | 0     | stale           | §4.2.4, not permitted
        200    |                            | max-age=60                            | 160 | 100   | IfError         | §4.2.4
        200    |                            | max-age=60                            | 161 | 100   | stale           | the operator's bound
        200    |                            | max-age=60, must-revalidate           | 61  | 100   | stale           | §5.2.2.2
        200    |                            | max-age=60, proxy-revalidate          | 61  | 100   | stale           | §5.2.2.8
        200    |                            | s-maxage=60                           | 61  | 100   | stale           | §5.2.2.10
        200    |                            | max-age=60, no-cache                  | 0   | 100   | stale           | §5.2.2.4
        200    |                            | s-maxage=60, stale-if-error=10        | 61  | 0     | stale           | §4.2.4
        200    | no-cache                   | max-age=60                            | 61  | 100   | stale           | §5.2.1.4
        200    | no-cache                   | max-age=60                            | 0   | 100   | request         | §5.2.1.4
        200    | no-cache, stale-if-error=9 | max-age=60                            | 61  | 100   | IfError         | RFC 5861 §4, the client's bound
        200    | max-age=99                 | max-age=60                            | 61  | 100   | stale           | §5.2.1.1
        200    | only-if-cached             | max-age=60                            | 61  | 100   | IfError         | §5.2.1.7
        200    |                            | max-age=60, stale-while-revalidate=10 | 61  | 0     | WhileRevalidate | RFC 5861 §3
        404    |                            | max-age=60                            | 61  | 100   | IfError         | §4.2.4
        500    |                            | max-age=60                            | 61  | 100   | stale           | §4.2.4
        503    |                            | max-age=60, stale-if-error=10         | 61  | 100   | stale           | RFC 5861 §4
        599    | stale-if-error=10          | max-age=60                            | 61  | 100   | stale           | RFC 5861 §4
        503    | no-cache                   | max-age=60                            | 0   | 100   | request         | §5.2.1.4
        503    |                            | max-age=60                            | 0   | 100   | Fresh           | §4.2
        503    | max-stale                  | max-age=60                            | 61  | 100   | MaxStale        | §5.2.1.2
        503    |                            | max-age=60, stale-while-revalidate=10 | 61  | 100   | WhileRevalidate | RFC 5861 §3
    "#;
    for [status, request, response, age, route, expected, section] in rows(table) {
        let stored = stored_with(status.parse().unwrap(), response, age.parse().unwrap());
        let failed = Some(Duration::from_secs(route.parse().unwrap()));
        let found = may_reuse(&directives(request), &stored, noon(), failed);
        let case = format!("{status} {request} | {response} aged {age}, {route}: {section}");
        assert_eq!(text(found), expected, "{case}");
    }
}

#[test]
fn only_get_and_head_without_content_are_answered_from_memory() {
    let mut request = HeaderMap::new();
    request.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    assert_eq!(applies(&Method::GET, &request), Ok(()), "§4");
    assert_eq!(applies(&Method::HEAD, &request), Ok(()), "RFC 9110 §9.3.2");
    assert_eq!(applies(&Method::POST, &request), Err(Forward::Method), "§4");
    request.insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
    assert_eq!(
        applies(&Method::GET, &request),
        Err(Forward::Bypass),
        "RFC 9110 §9.3.1"
    );
}

#[test]
fn a_response_ages() {
    let stored = stored("max-age=60", 10);
    let later = noon() + Duration::from_secs(70);
    let earlier = noon() - Duration::from_secs(700);
    let ages = [noon(), later, earlier].map(|now| stored.age(now).as_secs());
    assert_eq!(ages, [10, 80, 10], "§4.2.3, also if the clock went back");
}

#[test]
fn server_errors_that_are_failures() {
    for (status, expected) in [
        (500, true),
        (502, true),
        (503, true),
        (504, true),
        (501, false),
        (404, false),
    ] {
        let found = is_failure(StatusCode::from_u16(status).unwrap());
        assert_eq!(found, expected, "{status}: RFC 5861 §4");
    }
}
