//! Tables of `reuse`. Sections are of RFC 9111 where no other is named.

use http::{HeaderValue, header};
use proptest::option::weighted;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert_eq, prop_oneof, proptest};

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
        let found = may_reuse(&directives, &stored, Duration::ZERO, None);
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
        let found = may_reuse(&directives(request), &stored, Duration::ZERO, failed);
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
    let ages = [0, 70].map(|seconds| stored.age(Duration::from_secs(seconds)).as_secs());
    assert_eq!(ages, [10, 80], "§4.2.3");
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

/// Directives as plain values: how they are read is in `directives`.
fn any_directives() -> impl Strategy<Value = Directives> {
    let rarely = || prop_oneof![6 => Just(false), 1 => Just(true)];
    let span = || prop_oneof![0_u64..40, Just(1 << 16)].prop_map(Duration::from_secs);
    let said = (rarely(), rarely(), rarely());
    let max_stale = prop_oneof![span(), Just(Duration::MAX)];
    let times = (
        [0.3, 0.2, 0.2, 0.3, 0.3].map(|chance| weighted(chance, span())),
        weighted(0.3, max_stale),
    );
    (said, times).prop_map(|(said, (times, max_stale))| Directives {
        no_cache: said.0,
        must_revalidate: said.1,
        proxy_revalidate: said.2,
        max_age: times[0],
        min_fresh: times[1],
        s_maxage: times[2],
        stale_while_revalidate: times[3],
        stale_if_error: times[4],
        max_stale,
        ..Directives::default()
    })
}

/// The sentences that prohibit a kind of reuse of a response at noon.
fn prohibitions(
    kind: Reuse,
    request: &Directives,
    stored: &StoredFacts,
    failed: Option<Duration>,
) -> [(bool, &'static str); 12] {
    let (age, response) = (stored.age_on_arrival, &stored.directives);
    let (is_stale, error) = (age >= stored.lifetime, kind == Reuse::IfError);
    let staleness = age.saturating_sub(stored.lifetime);
    let within = |limit: Option<Duration>| limit.is_some_and(|limit| staleness <= limit);
    let left = stored.lifetime.saturating_sub(age);
    // The client's own bound is its consent.
    let refused = |by: bool| by && !(error && request.stale_if_error.is_some());
    let nothing_stale = request.max_age.is_some() && request.max_stale.is_none();
    let bound = request.stale_if_error.or(response.stale_if_error);
    let granted = failed.filter(|granted| !granted.is_zero());
    let forced =
        response.must_revalidate || response.proxy_revalidate || response.s_maxage.is_some();
    [
        (response.no_cache, "§5.2.2.4: not without validation"),
        (refused(request.no_cache), "§5.2.1.4: nor does the client"),
        (
            refused(request.max_age.is_some_and(|limit| age > limit)),
            "§5.2.1.1: older than the client accepts",
        ),
        (
            refused(request.min_fresh.is_some_and(|least| left < least)),
            "§5.2.1.3: less fresh than the client wants",
        ),
        (
            is_stale && refused(nothing_stale),
            "§5.2.1.1: the client wants nothing stale",
        ),
        (is_stale && forced, "§4.2.4: a directive prohibits it"),
        (
            is_stale == (kind == Reuse::Fresh) && !error,
            "§4: fresh or stale",
        ),
        (
            kind == Reuse::MaxStale && !within(request.max_stale),
            "§5.2.1.2: staler than the client accepts",
        ),
        (
            kind == Reuse::WhileRevalidate && !within(response.stale_while_revalidate),
            "RFC 5861 §3: out of the window",
        ),
        (error && failed.is_none(), "RFC 5861 §4: there is no error"),
        (error && stored.is_error, "§4.2.4: an error is no better"),
        (
            error && !within(bound.or(granted)),
            "§4.2.4: nothing permits so stale a response",
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    /// A response is reused in the best kind of reuse that no sentence prohibits.
    #[test]
    fn what_nothing_prohibits_is_reused_and_nothing_else(
        (request, directives) in (any_directives(), any_directives()),
        (lifetime, age) in (0_u64..40, 0_u64..120),
        is_error: bool,
        failed in weighted(0.6, prop_oneof![Just(0_u64), 0_u64..60]),
    ) {
        let stored = StoredFacts {
            is_error,
            directives,
            lifetime: Duration::from_secs(lifetime),
            age_on_arrival: Duration::from_secs(age),
        };
        let failed = failed.map(Duration::from_secs);
        let is_open = |kind: &Reuse| {
            let prohibitions = prohibitions(*kind, &request, &stored, failed);
            prohibitions.iter().all(|(prohibits, _)| !prohibits)
        };
        let kinds = [Reuse::Fresh, Reuse::MaxStale, Reuse::IfError, Reuse::WhileRevalidate];
        let best = kinds.into_iter().find(is_open);
        prop_assert_eq!(may_reuse(&request, &stored, Duration::ZERO, failed).ok(), best);
    }
}
