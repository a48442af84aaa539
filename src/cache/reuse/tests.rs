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
    StoredFacts::of(
        status,
        &headers,
        &TargetList::default(),
        Heuristic::default(),
        noon(),
        noon(),
    )
}

fn directives(cache_control: &'static str) -> RequestDirectives {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static(cache_control),
    );
    RequestDirectives::of(&headers)
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
                                  | no-cache="a", max-age=60                               | 0    | Fresh           | §5.2.2.4, the fields were not stored
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
    let forbidding = StaleBounds::default();
    for [request, response, age, expected, section] in rows(table) {
        let stored = stored(response, age.parse().unwrap());
        let directives = directives(request);
        let found = may_reuse(&directives, &stored, noon(), Origin::Reachable, &forbidding);
        let case = format!("{request} | {response} aged {age}: {section}");
        assert_eq!(text(found), expected, "{case}");
    }
}

#[test]
fn reuse_while_the_origin_is_in_trouble() {
    let table = r#"
        request                    | response                              | age | origin       | result          | section
                                   | max-age=60                            | 0   | Failed       | Fresh           | §4.2
                                   | max-age=60, stale-if-error=10         | 70  | Failed       | IfError         | RFC 5861 §4
                                   | max-age=60, stale-if-error=10         | 71  | Failed       | stale           | RFC 5861 §4
                                   | max-age=60, stale-if-error=10         | 71  | Disconnected | stale           | the origin's bound, not the operator's
        stale-if-error=20          | max-age=60, stale-if-error=10         | 80  | Failed       | IfError         | RFC 5861 §4
        stale-if-error=5           | max-age=60, stale-if-error=10         | 66  | Failed       | stale           | RFC 5861 §4
        stale-if-error=5           | max-age=60                            | 65  | Failed       | IfError         | RFC 5861 §4
                                   | max-age=60                            | 61  | Failed       | stale           | §4.2.4, not permitted
                                   | max-age=60                            | 160 | Disconnected | IfError         | §4.2.4, disconnected
                                   | max-age=60                            | 161 | Disconnected | stale           | the operator's bound
                                   | max-age=60, must-revalidate           | 61  | Disconnected | stale           | §5.2.2.2
                                   | max-age=60, proxy-revalidate          | 61  | Disconnected | stale           | §5.2.2.8
                                   | s-maxage=60                           | 61  | Disconnected | stale           | §5.2.2.10
                                   | max-age=60, no-cache                  | 0   | Disconnected | stale           | §5.2.2.4
                                   | s-maxage=60, stale-if-error=10        | 61  | Failed       | stale           | §4.2.4
        no-cache                   | max-age=60                            | 61  | Disconnected | stale           | §5.2.1.4
        no-cache                   | max-age=60                            | 0   | Disconnected | request         | §5.2.1.4
        no-cache, stale-if-error=9 | max-age=60                            | 61  | Disconnected | IfError         | RFC 5861 §4, the client's bound
        max-age=99                 | max-age=60                            | 61  | Disconnected | stale           | §5.2.1.1
        only-if-cached             | max-age=60                            | 61  | Disconnected | IfError         | §5.2.1.7
                                   | max-age=60, stale-while-revalidate=10 | 61  | Failed       | WhileRevalidate | RFC 5861 §3
    "#;
    let bounds = StaleBounds {
        failed: Duration::ZERO,
        disconnected: Duration::from_secs(100),
    };
    for [request, response, age, origin, expected, section] in rows(table) {
        let stored = stored(response, age.parse().unwrap());
        let is = match origin {
            "Failed" => Origin::Failed,
            _ => Origin::Disconnected,
        };
        let found = may_reuse(&directives(request), &stored, noon(), is, &bounds);
        let case = format!("{request} | {response} aged {age} {origin}: {section}");
        assert_eq!(text(found), expected, "{case}");
    }
}

/// A stored error has no use as a substitute for another. What it may do without a
/// failure of the origin, it may do with one.
#[test]
fn a_stored_server_error_is_not_served_in_place_of_a_failure() {
    let table = r#"
        status | request           | response                              | age | origin       | result          | section
        404    |                   | max-age=60                            | 61  | Disconnected | IfError         | §4.2.4
        499    |                   | max-age=60, stale-if-error=10         | 61  | Failed       | IfError         | RFC 5861 §4
        500    |                   | max-age=60                            | 61  | Disconnected | stale           | §4.2.4
        503    |                   | max-age=60                            | 61  | Failed       | stale           | RFC 5861 §4
        503    |                   | max-age=60, stale-if-error=10         | 61  | Failed       | stale           | RFC 5861 §4
        599    | stale-if-error=10 | max-age=60                            | 61  | Disconnected | stale           | RFC 5861 §4
        503    | no-cache          | max-age=60                            | 0   | Disconnected | request         | §5.2.1.4
        503    |                   | max-age=60                            | 0   | Disconnected | Fresh           | §4.2
        503    | max-stale         | max-age=60                            | 61  | Disconnected | MaxStale        | §5.2.1.2
        503    |                   | max-age=60, stale-while-revalidate=10 | 61  | Failed       | WhileRevalidate | RFC 5861 §3
    "#;
    let bounds = StaleBounds {
        failed: Duration::from_secs(100),
        disconnected: Duration::from_secs(100),
    };
    for [status, request, response, age, origin, expected, section] in rows(table) {
        let stored = stored_with(status.parse().unwrap(), response, age.parse().unwrap());
        let is = match origin {
            "Failed" => Origin::Failed,
            _ => Origin::Disconnected,
        };
        let found = may_reuse(&directives(request), &stored, noon(), is, &bounds);
        let case = format!("{status} {request} | {response} aged {age} {origin}: {section}");
        assert_eq!(text(found), expected, "{case}");
    }
}

#[test]
fn only_get_and_head_without_content_are_answered_from_memory() {
    let mut request = HeaderMap::new();
    request.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    assert_eq!(applies(&Method::GET, &request), Ok(()), "§4");
    assert_eq!(applies(&Method::HEAD, &request), Ok(()), "RFC 9110 §9.3.2");
    assert_eq!(applies(&Method::POST, &request), Err(Forward::Method), "§4");
    request.insert(header::CONTENT_LENGTH, HeaderValue::from_static("5"));
    assert_eq!(
        applies(&Method::GET, &request),
        Err(Forward::Bypass),
        "RFC 9110 §9.3.1"
    );
}

#[test]
fn a_response_made_stale_must_be_validated() {
    let bounds = StaleBounds {
        failed: Duration::MAX,
        disconnected: Duration::MAX,
    };
    let decision = |stored: &StoredFacts, origin| {
        may_reuse(
            &RequestDirectives::default(),
            stored,
            noon(),
            origin,
            &bounds,
        )
    };
    let mut response = stored("max-age=60", 0);
    response.make_stale();
    assert_eq!(
        decision(&response, Origin::Reachable),
        Err(Forward::Stale),
        "§4.3.5"
    );
    assert_eq!(
        decision(&response, Origin::Disconnected),
        Ok(Reuse::IfError),
        "§4.2.4"
    );
}

#[test]
fn a_response_ages() {
    let stored = stored("max-age=60", 10);
    let later = noon() + Duration::from_secs(70);
    let seconds = [stored.age(noon()), stored.age(later), stored.lifetime()];
    assert_eq!(seconds.map(|time| time.as_secs()), [10, 80, 60], "§4.2.3");
}

#[test]
fn errors_of_the_origin() {
    for (status, origin) in [
        (500, Origin::Failed),
        (502, Origin::Failed),
        (503, Origin::Failed),
        (504, Origin::Failed),
        (501, Origin::Reachable),
        (404, Origin::Reachable),
    ] {
        assert_eq!(
            Origin::after(StatusCode::from_u16(status).unwrap()),
            origin,
            "RFC 5861 §4"
        );
    }
}
