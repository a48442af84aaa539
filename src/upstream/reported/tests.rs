//! Limits and waits that are parsed, the bounds on them, and what is in force.

use http::HeaderName;
use proptest::option;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, proptest};

use super::*;
use crate::clock::Moment;
use crate::shared::permits::Limits;
use crate::upstream::budget::Budget;

/// Friday, 20 November 2026, 16:00 GMT, and a fifth of a second.
pub(crate) fn wall() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_190_400_200)
}

/// Header fields, written as `name: value | name: value`.
pub(crate) fn fields(text: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for field in text.split(" | ").filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once(": ").unwrap();
        let name = HeaderName::try_from(name).unwrap();
        fields.append(name, value.parse().unwrap());
    }
    fields
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

fn limit(remaining: u64, seconds: u64) -> ReportedLimit {
    ReportedLimit {
        remaining,
        valid_for: Duration::from_secs(seconds),
    }
}

#[test]
fn which_limits_are_reported() {
    // fields, and for each limit the requests left and the seconds until its end
    let rows: &[(&str, &[(u64, u64)])] = &[
        ("", &[]),
        (
            "ratelimit-limit: 100, 100;w=60 | ratelimit-remaining: 9 | ratelimit-reset: 30",
            &[(9, 30)],
        ),
        (
            "x-ratelimit-remaining: 9 | x-ratelimit-reset: 30",
            &[(9, 30)],
        ),
        // Unix time, a window that has ended, and an end in another unit.
        (
            "x-ratelimit-remaining: 9 | x-ratelimit-reset: 1795190431",
            &[(9, 31)],
        ),
        (
            "ratelimit-remaining: 9 | ratelimit-reset: 1795190300",
            &[(9, 1)],
        ),
        (
            "ratelimit-remaining: 9 | ratelimit-reset: 1795190431123",
            &[(9, 3600)],
        ),
        // Without an end.
        ("ratelimit-remaining: 9", &[]),
        ("ratelimit-remaining: 0", &[(0, 1)]),
        // A quota that is spent.
        (
            "ratelimit-remaining: 0 | ratelimit-reset: 90000",
            &[(0, 3600)],
        ),
        // Values that cannot be parsed.
        ("ratelimit-remaining: -1 | ratelimit-reset: 30", &[]),
        ("ratelimit-remaining: 9 | ratelimit-reset: soon", &[]),
        (
            "ratelimit-remaining: 99999999999999999999999 | ratelimit-reset: 30",
            &[(u64::MAX, 30)],
        ),
        (
            "ratelimit-remaining: 9 | ratelimit-remaining: 3 | ratelimit-reset: 5 | ratelimit-reset: 7",
            &[(3, 7)],
        ),
        (
            "ratelimit: \"burst\";r=9;t=1, \"day\";r=0, \"week\";r=9",
            &[(9, 1), (0, 1)],
        ),
        (
            "ratelimit: \"a\";r=1;t=2;pk=:c2hhMjU2: | ratelimit: b;r=3;t=4",
            &[(1, 2), (3, 4)],
        ),
        ("ratelimit: limit=100, remaining=50, reset=5", &[]),
        ("ratelimit: \"a\";r=many;t=2, b", &[]),
        ("ratelimit: \"a\";r=1;t=2, &", &[]),
        ("ratelimit: 5", &[]),
        ("ratelimit: (\"a\");r=1", &[]),
    ];
    for (text, expected) in rows {
        let expected: Vec<_> = expected
            .iter()
            .map(|(left, end)| limit(*left, *end))
            .collect();
        assert_eq!(read(&fields(text), wall()), expected, "{text}");
    }
}

#[test]
fn a_reported_limit_is_in_force_until_its_end() {
    let mut limits = ReportedLimits::default();
    assert_eq!(limits.wait(at(0), 1), None);
    limits.apply(limit(2, 30), 0, at(0));
    assert_eq!(limits.remaining(at(0)), Some(2));
    limits.take();
    limits.take();
    assert_eq!(limits.wait(at(10_000), 0), Some(Duration::from_secs(20)));
    // Nothing that is reported later loosens it.
    limits.apply(limit(400, 19), 0, at(11_000));
    limits.apply(limit(400, 60), 0, at(11_000));
    assert_eq!(limits.remaining(at(11_000)), Some(0));
    assert_eq!(limits.remaining(at(30_000)), Some(400));
    assert_eq!(limits.remaining(at(71_000)), None);
    // Of very many, the strictest count.
    for nth in 0..1000 {
        limits.apply(limit(1000 - nth, 2000 - nth), 0, at(71_000));
    }
    assert_eq!(
        (limits.0.len(), limits.remaining(at(71_000))),
        (MOST, Some(1))
    );
}

#[test]
fn requests_that_the_report_may_not_have_counted_are_subtracted() {
    for (reported, seconds, left) in [(10, 30, 6), (3, 60, 0), (3, 1, 3)] {
        let mut limits = ReportedLimits::default();
        limits.apply(limit(reported, seconds), 4, at(0));
        assert_eq!(
            limits.remaining(at(0)),
            Some(left),
            "{reported} in {seconds} s"
        );
    }
}

#[test]
fn a_throttled_key_waits_for_its_spent_windows() {
    for (text, seconds) in [
        ("", 1),
        ("retry-after: soon", 1),
        ("retry-after: 20", 20),
        ("retry-after: Fri, 20 Nov 2026 16:00:31 GMT", 31),
        ("retry-after: 86400", 3600),
        ("ratelimit-remaining: 5 | ratelimit-reset: 30", 1),
        ("retry-after: 20 | ratelimit: \"day\";r=0;t=86400", 3600),
        (
            "retry-after: 20 | ratelimit-remaining: 0 | ratelimit-reset: 50",
            50,
        ),
    ] {
        let wait = wait_after_429(&fields(text), wall());
        assert_eq!(wait, Duration::from_secs(seconds), "{text}");
    }
}

/// Header fields that report limits, with valid and invalid values.
fn any_fields() -> impl Strategy<Value = HeaderMap> {
    const NAMES: [&str; 7] = [
        "retry-after",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "date",
        "ratelimit",
    ];
    let value = "[0-9]{0,24}|[ -~]{0,12}|[0-9]{1,9}[.][0-9]{1,9}\
                 |\"[a-c]\";r=[0-9]{1,15};t=[0-9]{1,15}|(Fri|Sun), [0-3][0-9] Nov [0-9]{4} 16:00:00 GMT";
    let fields = proptest::collection::vec((0..NAMES.len(), value), 0..12);
    fields.prop_map(|fields| {
        let mut headers = HeaderMap::new();
        for (at, value) in fields {
            headers.append(HeaderName::from_static(NAMES[at]), value.parse().unwrap());
        }
        headers
    })
}

proptest! {
    // Strings of many kinds are slow to generate.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A report never permits a request that would be denied without it, and each wait is at
    /// most an hour.
    #[test]
    fn reports_only_make_the_budget_stricter(
        steps in proptest::collection::vec(
            (0_u64..2000, any::<bool>(), option::of(any_fields())),
            1..40,
        ),
    ) {
        let limits = Limits {
            per_minute: Some(20),
            per_second: Some(3),
        };
        let (mut with_reports, mut without) = (Budget::default(), Budget::default());
        for budget in [&mut with_reports, &mut without] {
            (budget.limits, budget.probes) = (limits, 2);
        }
        let mut now = Moment::from_nanos(1 << 50);
        for (pause, is_probe, report) in steps {
            now = now + Duration::from_millis(pause);
            if with_reports.take(now, is_probe).is_err() {
                continue;
            }
            prop_assert!(without.take(now, is_probe).is_ok());
            if let Some(fields) = report {
                let read = read(&fields, wall());
                with_reports.apply_report(&read, now);
                let waits = read.iter().map(|limit| limit.valid_for);
                for wait in waits.chain([wait_after_429(&fields, wall())]) {
                    prop_assert!((MIN_WAIT..=MAX_WAIT).contains(&wait), "{wait:?}");
                }
            }
            with_reports.end(Some(now));
            without.end(Some(now));
        }
    }
}
