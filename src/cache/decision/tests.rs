//! Tables of the decision. Sections without a document are RFC 9111's.

use http::header::{AGE, CACHE_CONTROL, CONTENT_LENGTH, DATE, IF_MATCH};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use proptest::prelude::{prop_assert_eq, proptest};

use super::*;
use crate::cache::date;
use crate::cache::freshness::Heuristic;
use crate::cache::reuse::applies;
use crate::cache::targeted::TargetList;
use crate::cache::validator::for_the_origin;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A route that grants 5 s of staleness while a response is revalidated, and 60 s
/// if the upstream fails.
fn policy(mode: Mode) -> Policy {
    Policy {
        mode,
        stale_while_revalidate: seconds(5),
        stale_if_error: seconds(60),
        ..Policy::default()
    }
}

/// A decision in a few words; `+` where the stored response goes with a fetch.
fn words(decision: Decision<()>) -> String {
    match decision {
        Decision::Serve { reuse, .. } => format!("{reuse:?}"),
        Decision::Fetch { why, stored } => {
            let stored = stored.map_or("", |()| "+");
            format!("{}{stored}", why.as_str())
        }
        Decision::OnlyIfCached => "504".to_owned(),
    }
}

fn judged((): &()) -> Basis<'_> {
    panic!("nothing is judged")
}

#[test]
fn routes_in_mode_chain_or_override_decide_by_freshness() {
    let fresh = Freshness::Fresh { ttl: seconds(1) };
    let revalidated = Freshness::BecameFinal { ttl: seconds(1) };
    let stale = |by| Freshness::Stale { by };
    let almost = |n| seconds(n) - Duration::from_nanos(1);
    // freshness, decision, decision where it is of another block
    let rows = [
        (fresh, "Fresh", "uri-miss"),
        (revalidated, "Fresh", "uri-miss"),
        (stale(seconds(0)), "WhileRevalidate", "uri-miss"),
        (stale(almost(5)), "WhileRevalidate", "uri-miss"),
        (stale(seconds(5)), "stale+", "stale"),
        (stale(almost(60)), "stale+", "stale"),
        (stale(seconds(60)), "uri-miss", "uri-miss"),
        (stale(Duration::MAX), "uri-miss", "uri-miss"),
    ];
    for mode in [Mode::Chain, Mode::Override] {
        let decided = |freshness, is_answer| {
            let basis = Basis::Route {
                freshness,
                is_answer,
            };
            let ignored = &RequestFacts::IGNORED;
            words(decide(&policy(mode), ignored, || Ok(()), |()| basis))
        };
        for (freshness, answer, other) in rows {
            assert_eq!(decided(freshness, true), answer, "{mode:?} {freshness:?}");
            assert_eq!(decided(freshness, false), other, "{mode:?} {freshness:?}");
        }
    }
}

#[test]
fn a_route_that_grants_no_staleness_serves_nothing_stale() {
    let policy = Policy {
        mode: Mode::Override,
        ..Policy::default()
    };
    let basis = Basis::Route {
        freshness: Freshness::Stale { by: seconds(0) },
        is_answer: true,
    };
    let decision = decide(&policy, &RequestFacts::IGNORED, || Ok(()), |()| basis);
    assert_eq!(words(decision), "uri-miss");
}

#[test]
fn a_route_in_mode_off_bypasses_the_store() {
    let ignored = &RequestFacts::IGNORED;
    let looked_up = || panic!("nothing is looked up");
    let decision = decide(&policy(Mode::Off), ignored, looked_up, judged);
    assert_eq!(words(decision), "bypass", "RFC 9211 §2.2");
}

#[test]
fn what_is_not_stored_is_fetched() {
    for why in [Forward::UriMiss, Forward::VaryMiss] {
        let ignored = &RequestFacts::IGNORED;
        let decision = decide(&policy(Mode::Chain), ignored, || Err(why), judged);
        assert_eq!(words(decision), why.as_str());
    }
}

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + seconds(2_000_000_000)
}

/// What is decided on a route in mode `respect`, where a response of this age and
/// `cache-control` is stored; or none.
fn respect(
    request: &[(http::HeaderName, &'static str)],
    stored: Option<(&'static str, u64)>,
) -> String {
    let fields: HeaderMap = request
        .iter()
        .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
        .collect();
    let directives = RequestDirectives::of(&fields);
    let request = RequestFacts {
        not_reusable: applies(&Method::GET, &fields).err(),
        directives: &directives,
        for_the_origin: for_the_origin(&fields),
        origin: Origin::Reachable,
    };
    let facts = |(control, age): (&'static str, u64)| {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(control));
        headers.insert(AGE, age.into());
        headers.insert(DATE, date::value(noon()));
        let (targets, heuristic) = (TargetList::default(), Heuristic::default());
        StoredFacts::of(
            StatusCode::OK,
            &headers,
            &targets,
            heuristic,
            noon(),
            noon(),
        )
    };
    let stored = stored.map(facts).ok_or(Forward::VaryMiss);
    let policy = policy(Mode::Respect);
    let decision = decide(
        &policy,
        &request,
        || stored,
        |facts| Basis::Origin { facts, now: noon() },
    );
    words(match decision {
        Decision::Serve { reuse, .. } => Decision::Serve { stored: (), reuse },
        Decision::Fetch { why, stored } => Decision::Fetch {
            why,
            stored: stored.map(drop),
        },
        Decision::OnlyIfCached => Decision::OnlyIfCached,
    })
}

#[test]
fn routes_in_mode_respect_decide_by_the_fields() {
    let minute = |age| Some(("max-age=60", age));
    let revalidated = |age| Some(("max-age=60, stale-while-revalidate=10", age));
    // the request's cache-control, what is stored, decision, section
    let rows = [
        ("", None, "vary-miss", "RFC 9211 §2.2"),
        ("", minute(59), "Fresh", "§4.2"),
        ("", minute(60), "stale+", "§4.2"),
        ("", Some(("no-cache, max-age=60", 0)), "stale+", "§5.2.2.4"),
        ("no-cache", minute(0), "request+", "§5.2.1.4"),
        ("max-age=30", minute(31), "request+", "§5.2.1.1"),
        ("min-fresh=30", minute(31), "request+", "§5.2.1.3"),
        ("max-stale=10", minute(70), "MaxStale", "§5.2.1.2"),
        ("max-stale=10", minute(71), "stale+", "§5.2.1.2"),
        ("", revalidated(70), "WhileRevalidate", "RFC 5861 §3"),
        ("", revalidated(71), "stale+", "RFC 5861 §3"),
        ("stale-if-error=99", minute(61), "stale+", "RFC 5861 §4"),
        ("only-if-cached", None, "504", "§5.2.1.7"),
        ("only-if-cached", minute(0), "Fresh", "§5.2.1.7"),
        ("only-if-cached", minute(60), "504", "§5.2.1.7"),
        ("only-if-cached", Some(("no-cache", 0)), "504", "§5.2.1.7"),
        ("only-if-cached, no-cache", minute(0), "504", "§5.2.1.7"),
        (
            "only-if-cached, max-stale",
            minute(61),
            "MaxStale",
            "§5.2.1.7",
        ),
    ];
    for (control, stored, expected, section) in rows {
        let decided = respect(&[(CACHE_CONTROL, control)], stored);
        assert_eq!(decided, expected, "{control:?} {stored:?}: {section}");
    }
}

#[test]
fn content_and_preconditions_for_the_origin_are_forwarded() {
    let fresh = Some(("max-age=60", 0));
    let only = (CACHE_CONTROL, "only-if-cached");
    let rows = [
        (
            vec![(CONTENT_LENGTH, "5")],
            fresh,
            "bypass",
            "RFC 9110 §9.3.1",
        ),
        (
            vec![(CONTENT_LENGTH, "0")],
            fresh,
            "Fresh",
            "RFC 9110 §9.3.1",
        ),
        (vec![(IF_MATCH, "\"e\"")], fresh, "request", "§4.3.2"),
        (vec![(IF_MATCH, "\"e\"")], None, "vary-miss", "§4.3.2"),
        (vec![(IF_MATCH, "\"e\""), only], fresh, "504", "§5.2.1.7"),
    ];
    for (fields, stored, expected, section) in rows {
        assert_eq!(respect(&fields, stored), expected, "{fields:?}: {section}");
    }
}

#[test]
fn freshness_ends_when_the_lifetime_has_passed() {
    let received = Moment::from_nanos(1_000_000_000_000);
    let rows = [
        (10, 0, Freshness::Fresh { ttl: seconds(10) }),
        (10, 9, Freshness::Fresh { ttl: seconds(1) }),
        // §4.2: fresh while the lifetime is greater than the age.
        (10, 10, Freshness::Stale { by: seconds(0) }),
        (10, 25, Freshness::Stale { by: seconds(15) }),
        (0, 0, Freshness::Stale { by: seconds(0) }),
    ];
    for (lifetime, age, expected) in rows {
        let now = received + seconds(age);
        let freshness = freshness_by_time(received, seconds(lifetime), now);
        assert_eq!(freshness, expected, "{lifetime} s at {age} s");
    }
}

proptest! {
    /// A stale response does not become fresh again, and age and freshness add up
    /// to the lifetime.
    #[test]
    fn age_and_freshness_agree(received in 0_u64..1 << 60, lifetime in 0_u64..1 << 50, age in 0_u64..1 << 50) {
        let (received, lifetime) = (Moment::from_nanos(received), Duration::from_nanos(lifetime));
        let age = Duration::from_nanos(age);
        match freshness_by_time(received, lifetime, received + age) {
            Freshness::Fresh { ttl } => prop_assert_eq!(ttl + age, lifetime),
            Freshness::Stale { by } => prop_assert_eq!(lifetime + by, age),
            Freshness::BecameFinal { .. } => panic!("time alone makes nothing final"),
        }
    }
}
