//! The budget never exceeds a window, keeps a part for probes, and is not used up by a burst.

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
    (budget.limits, budget.probes) = (limits, probes);
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
fn ends_that_are_told_out_of_order_count_in_order() {
    let mut budget = budget(9, 2, 0);
    assert_eq!([0, 0].map(|at| take(&mut budget, at)), [Ok(()), Ok(())]);
    budget.end(Some(at(20)));
    budget.end(Some(at(0)));
    assert_eq!(take(&mut budget, 1010), Err(15));
    assert_eq!(take(&mut budget, 1025), Ok(()));
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
}

/// All is sent as soon as it may be, and counted by a clock that runs slower and ticks every
/// four milliseconds.
#[test]
fn the_windows_are_longer_by_what_clocks_differ() {
    let (mut budget, mut now, mut counted) = (budget(20, 4, 0), 0, Vec::new());
    while counted.len() < 200 {
        match take(&mut budget, now) {
            Err(wait) => now += u64::try_from(wait).unwrap(),
            Ok(()) => {
                budget.end(Some(at(now)));
                counted.push(now * 999_250 / 1_000_000 / 4 * 4);
            }
        }
    }
    for (most, span) in [(20, 60_000), (4, 1_000)] {
        let mut windows = counted.windows(most + 1);
        assert!(
            windows.all(|window| window[most] - window[0] >= span),
            "{span}"
        );
    }
}
