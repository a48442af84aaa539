//! The budget never exceeds a window, keeps a part for probes, and is not run out of.

use std::collections::VecDeque;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

fn budget(per_minute: usize, per_second: usize, probes: u32) -> Budget {
    let mut budget = Budget::default();
    set(&mut budget, per_minute, per_second, probes);
    budget
}

/// Sets the limits; 0 for none.
fn set(budget: &mut Budget, per_minute: usize, per_second: usize, probes: u32) {
    let limit = |limit: usize| Some(limit as u32).filter(|limit| *limit > 0);
    let limits = Limits {
        per_minute: limit(per_minute),
        per_second: limit(per_second),
    };
    budget.set_limits(limits, probes);
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

fn take(budget: &mut Budget, millis: u64) -> Result<(), u128> {
    let taken = budget.take(at(millis), true);
    taken.map(drop).map_err(|wait| wait.as_millis())
}

#[test]
fn both_the_minute_and_the_second_limit() {
    let mut budget = budget(3, 2, 0);
    assert_eq!(take(&mut budget, 0), Ok(()));
    assert_eq!(take(&mut budget, 0), Ok(()));
    assert_eq!(take(&mut budget, 0), Err(1005), "the earliest possible end");
    budget.end(Some(at(100)));
    budget.end(Some(at(200)));
    assert_eq!(take(&mut budget, 300), Err(805));
    assert_eq!(take(&mut budget, 1105), Ok(()));
    assert_eq!(budget.remaining(at(1105)), Some(0));
    assert_eq!(take(&mut budget, 1205), Err(58_945));
    budget.end(Some(at(1300)));
    assert_eq!(take(&mut budget, 60_150), Ok(()));
}

#[test]
fn a_request_that_was_never_sent_counts_no_more() {
    let mut budget = budget(1, 1, 0);
    assert_eq!(take(&mut budget, 0), Ok(()));
    assert_eq!(take(&mut budget, 10), Err(60_050));
    budget.end(None);
    assert_eq!(take(&mut budget, 10), Ok(()));
    budget.end(Some(at(20)));
    assert_eq!(take(&mut budget, 30), Err(60_040));
}

#[test]
fn what_an_earlier_process_has_spent_counts() {
    let mut budget = budget(0, 0, 0);
    budget.count_earlier(&[at(500), at(0)], at(0));
    set(&mut budget, 2, 2, 0);
    assert_eq!(take(&mut budget, 600), Err(59_450));
    assert_eq!(take(&mut budget, 60_050), Ok(()));
    let mut unknown = self::budget(2, 2, 0);
    unknown.count_earlier(&[], at(60_550));
    assert_eq!(take(&mut unknown, 600), Err(59_950));
    assert_eq!(unknown.remaining(at(600)), Some(0));
    assert_eq!(take(&mut unknown, 60_550), Ok(()));
}

#[test]
fn a_limit_that_is_new_waits_until_what_was_sent_without_one_has_left() {
    let mut budget = budget(0, 0, 0);
    assert_eq!(take(&mut budget, 0), Ok(()));
    budget.end(Some(at(0)));
    assert_eq!((budget.wait(at(0), true), budget.ended.len()), (None, 0));
    set(&mut budget, 9, 9, 0);
    assert_eq!(take(&mut budget, 0), Err(60_050));
    assert_eq!(budget.remaining(at(60_050)), Some(9));
}

#[test]
fn a_part_is_kept_for_probes_and_shown() {
    for (limit, probes, kept) in [
        (500, 24, 25),
        (500, 60, 60),
        (500, 400, 125),
        (30, 12, 7),
        (30, 0, 0),
    ] {
        let mut budget = budget(limit, 0, probes);
        assert_eq!(budget.kept_of_minute(), kept, "{limit} {probes}");
        let (mut clients, mut now) = (0, 0);
        while budget.remaining(at(now)) > Some(kept) {
            match budget.take(at(now), false) {
                Ok(_) => clients += 1,
                Err(wait) => now += u64::try_from(wait.as_millis()).unwrap() + 1,
            }
        }
        assert_eq!(clients, limit - kept);
        assert!(budget.take(at(now), false).is_err());
        let probes = (0..).take_while(|_| budget.take(at(now), true).is_ok());
        assert_eq!(probes.count(), kept);
    }
    let mut second = budget(0, 3, 1);
    assert!(second.take(at(0), false).is_ok() && second.take(at(0), false).is_ok());
    assert!(second.take(at(0), false).is_err());
    assert!(second.take(at(0), true).is_ok(), "one of a second");
}

/// How many requests are taken in each of `spans` spans of ten seconds, where one
/// is attempted every 20 ms.
fn taken(budget: &mut Budget, is_probe: bool, spans: u64) -> Vec<usize> {
    let tries = |span: u64| {
        let times = (0..500).map(move |nth| span * 10_000 + nth * 20);
        let takes = times.filter(|now| {
            let is_taken = budget.take(at(*now), is_probe).is_ok();
            if is_taken {
                budget.end(Some(at(*now)));
            }
            is_taken
        });
        takes.count()
    };
    (0..spans).map(tries).collect()
}

#[test]
fn three_fifths_of_a_minute_are_sent_at_once_and_the_rest_is_paced() {
    let mut probes = budget(500, 1000, 24);
    assert_eq!(taken(&mut probes, true, 6), [500, 0, 0, 0, 0, 0]);
    let mut clients = budget(500, 1000, 24);
    let spans = taken(&mut clients, false, 30);
    let first: usize = spans[..6].iter().sum();
    assert!((470..=475).contains(&first), "{spans:?}");
    // The first span includes the burst of 301.
    let even = (475 - 301) / 6;
    assert!((301..301 + even).contains(&spans[0]), "{spans:?}");
    // When the burst leaves the window, a part of it recurs, smaller each time.
    let paced = even - 2..=200;
    assert!(
        spans[1..].iter().all(|taken| paced.contains(taken)),
        "{spans:?}"
    );
    let last: usize = spans[24..].iter().sum();
    assert!(last >= 475 * 97 / 100, "{spans:?}");
}

proptest! {
    /// Whatever the arrivals, the wait is exact: a request can be taken after it,
    /// and none before.
    #[test]
    fn a_wait_is_exact(
        gaps in proptest::collection::vec((0_u64..2_000, any::<bool>()), 1..200),
        most in 1_usize..60,
    ) {
        let mut budget = budget(most, 1000, 0);
        let mut now = at(0);
        for (gap, is_probe) in gaps {
            now = now + Duration::from_millis(gap);
            let Err(wait) = budget.take(now, is_probe) else {
                budget.end(Some(now));
                continue;
            };
            prop_assert!(!wait.is_zero() && wait <= Duration::from_millis(60_050), "{wait:?}");
            let then = now + wait;
            prop_assert!(budget.wait(then.before(Duration::from_nanos(1)), is_probe).is_some());
            prop_assert_eq!(budget.wait(then, is_probe), None);
            now = then;
        }
    }

    /// Requests arrive at random, take random times, and reach the upstream at a
    /// random moment in between. No window there exceeds the limit, by a clock that
    /// runs slower or faster and ticks every few milliseconds.
    #[test]
    fn no_window_of_the_upstream_is_exceeded(
        steps in proptest::collection::vec((0_u64..400, 0_u64..3000, 0_u64..=100), 1..400),
        (millionths, tick) in (999_250_u64..=1_000_750, 1_u64..=4),
    ) {
        let (per_minute, per_second) = (20, 4);
        let mut budget = budget(per_minute, per_second, 0);
        let mut now = 0;
        let mut in_flight: Vec<u64> = Vec::new();
        let mut reached = Vec::new();
        for (pause, takes, share) in steps {
            now += pause;
            in_flight.sort_unstable();
            while in_flight.first().is_some_and(|end| *end <= now) {
                budget.end(Some(at(in_flight.remove(0))));
            }
            if budget.take(at(now), true).is_ok() {
                in_flight.push(now + takes);
                let at = (now + takes * share / 100) * millionths / 1_000_000;
                reached.push(at / tick * tick);
            }
        }
        reached.sort_unstable();
        for (most, span) in [(per_minute, 60_000), (per_second, 1_000)] {
            for window in reached.windows(most + 1) {
                prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
            }
        }
    }
}

/// How many requests are taken within some seconds, where there is always a next
/// one and each takes `latency` milliseconds.
fn sent_within(budget: &mut Budget, latency: u64, seconds: (u64, u64)) -> usize {
    let micros = |micros: u64| Moment::from_nanos(1 << 50) + Duration::from_micros(micros);
    let (mut now, mut sent, mut in_flight) = (0, 0, VecDeque::new());
    while now < seconds.1 * 1_000_000 {
        while let Some(end) = in_flight.pop_front_if(|end| *end <= now) {
            budget.end(Some(micros(end)));
        }
        match budget.take(micros(now), false) {
            Ok(_) => {
                in_flight.push_back(now + latency * 1000);
                sent += usize::from(now >= seconds.0 * 1_000_000);
            }
            Err(wait) => {
                let wait = u64::try_from(wait.as_nanos().div_ceil(1000)).unwrap();
                let end = in_flight.front().copied().unwrap_or(u64::MAX);
                now = end.min(now + wait);
            }
        }
    }
    sent
}

/// The usable share of the budget, in percent. docs/caching.md has these figures.
#[test]
fn usable_share_of_the_budget_by_latency() {
    for (latency, of_second, of_both) in [
        (5, 99, 100),
        (50, 95, 100),
        (105, 90, 100),
        (250, 80, 100),
        (500, 66, 100),
        (1000, 50, 98),
        (2000, 33, 80),
        (5000, 17, 40),
    ] {
        let used = |mut budget: Budget, seconds, of: f64| {
            sent_within(&mut budget, latency, seconds) as f64 / of * 100.0
        };
        let second = used(budget(0, 20, 0), (10, 210), 4000.0);
        assert!(
            (second - f64::from(of_second)).abs() < 1.0,
            "{latency} {second}"
        );
        let both = used(budget(500, 20, 0), (120, 420), 2500.0);
        assert!((both - f64::from(of_both)).abs() < 1.5, "{latency} {both}");
        let beside_probes = used(budget(500, 20, 24), (120, 420), 2500.0);
        assert!(beside_probes >= both * 0.93, "{latency} {beside_probes}");
    }
}
