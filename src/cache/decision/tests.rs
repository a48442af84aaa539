//! Tables of the decision. Sections without a document are RFC 9111's.

use std::time::SystemTime;

use http::header::{AGE, CACHE_CONTROL, DATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use proptest::prelude::{prop_assert_eq, proptest};

use super::*;
use crate::cache::date;
use crate::cache::directives::Directives;
use crate::cache::policy::Mode;
use crate::cache::reuse::{StoredFacts, may_reuse};

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A decision in a few words; `+` where the stored response goes with a fetch.
fn words<S>(decision: Decision<S>) -> String {
    match decision {
        Decision::Serve { reuse, .. } => format!("{reuse:?}"),
        Decision::Fetch { why, stored } => {
            let stored = stored.map_or("", |_| "+");
            format!("{}{stored}", why.as_str())
        }
        Decision::OnlyIfCached => "504".to_owned(),
    }
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
    let policy = Policy {
        mode: Mode::Chain,
        stale_while_revalidate: seconds(5),
        stale_if_error: seconds(60),
        ..Policy::default()
    };
    for (freshness, answer, other) in rows {
        let decided = |is_answer| words(by_freshness(&policy, (), freshness, is_answer));
        assert_eq!(decided(true), answer, "{freshness:?}");
        assert_eq!(decided(false), other, "{freshness:?}");
    }
    let grants_nothing = Policy::default();
    let decision = by_freshness(&grants_nothing, (), stale(seconds(0)), true);
    assert_eq!(words(decision), "uri-miss");
}

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + seconds(2_000_000_000)
}

/// What is decided on a route in mode `respect`, where a response of this age and
/// `cache-control` is stored; or none.
fn respect(control: &'static str, stored: Option<(&'static str, u64)>) -> String {
    let control = HeaderValue::from_static(control);
    let directives = Directives::of_request(&HeaderMap::from_iter([(CACHE_CONTROL, control)]));
    let facts = |(control, age): (&'static str, u64)| {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(control));
        headers.insert(AGE, age.into());
        headers.insert(DATE, date::value(noon()));
        StoredFacts::of(StatusCode::OK, &headers, noon(), noon())
    };
    let stored = stored.map(facts).ok_or(Forward::VaryMiss);
    let reuse = |facts: &StoredFacts| may_reuse(&directives, facts, noon(), None);
    words(by_fields(stored, reuse, directives.only_if_cached))
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
        let decided = respect(control, stored);
        assert_eq!(decided, expected, "{control:?} {stored:?}: {section}");
    }
}

#[test]
fn freshness_ends_when_the_lifetime_has_passed() {
    let rows = [
        (10, 0, Freshness::Fresh { ttl: seconds(10) }),
        (10, 9, Freshness::Fresh { ttl: seconds(1) }),
        // §4.2: fresh while the lifetime is greater than the age.
        (10, 10, Freshness::Stale { by: seconds(0) }),
        (10, 25, Freshness::Stale { by: seconds(15) }),
        (0, 0, Freshness::Stale { by: seconds(0) }),
    ];
    for (lifetime, age, expected) in rows {
        let freshness = freshness_by_age(seconds(age), seconds(lifetime));
        assert_eq!(freshness, expected, "{lifetime} s at {age} s");
    }
}

proptest! {
    /// A stale response does not become fresh again, and age and freshness add up
    /// to the lifetime.
    #[test]
    fn age_and_freshness_agree(lifetime in 0_u64..1 << 50, age in 0_u64..1 << 50) {
        let (lifetime, age) = (Duration::from_nanos(lifetime), Duration::from_nanos(age));
        match freshness_by_age(age, lifetime) {
            Freshness::Fresh { ttl } => prop_assert_eq!(ttl + age, lifetime),
            Freshness::Stale { by } => prop_assert_eq!(lifetime + by, age),
            Freshness::BecameFinal { .. } => panic!("time alone makes nothing final"),
        }
    }
}
