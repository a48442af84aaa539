//! That no window ever takes more than it may, and what a request leaves for others.

use std::num::NonZeroU32;

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

/// 0 for any number.
fn rates(per_minute: u32, per_second: u32) -> Rates {
    let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
    Rates {
        per_minute: rate(per_minute),
        per_second: rate(per_second),
    }
}

fn budget(per_minute: u32, per_second: u32) -> Budget {
    Budget::new(rates(per_minute, per_second))
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

#[test]
fn a_minute_and_a_second() {
    let mut budget = budget(3, 2);
    assert_eq!(budget.take(at(0), Reserve::Nothing), Ok(()));
    assert_eq!(budget.take(at(0), Reserve::Nothing), Ok(()));
    assert_eq!(
        budget.take(at(0), Reserve::Nothing),
        Err(Duration::from_millis(1005)),
        "however soon one of them ends"
    );
    budget.end(at(100));
    budget.end(at(200));
    assert_eq!(
        budget.take(at(300), Reserve::Nothing),
        Err(Duration::from_millis(805))
    );
    assert_eq!(budget.take(at(1105), Reserve::Nothing), Ok(()));
    assert_eq!(budget.remaining(at(1105)), Some(0));
    assert_eq!(
        budget.take(at(1205), Reserve::Nothing),
        Err(Duration::from_millis(58_945))
    );
    budget.end(at(1300));
    assert_eq!(budget.take(at(60_150), Reserve::Nothing), Ok(()));
}

#[test]
fn what_is_given_up_counts_for_longer() {
    let mut budget = budget(2, 1);
    assert_eq!(budget.take(at(0), Reserve::Nothing), Ok(()));
    budget.give_up(at(100));
    assert!(budget.take(at(2104), Reserve::Nothing).is_err());
    assert!(!budget.has_in_flight());
    assert_eq!(budget.take(at(2105), Reserve::Nothing), Ok(()));
    budget.end(at(2105));
    assert_eq!(budget.remaining(at(61_149)), Some(0));
    assert_eq!(budget.remaining(at(61_150)), Some(1));
}

#[test]
fn what_is_spent_stays_spent_when_the_bounds_change() {
    let mut budget = budget(4, 10);
    for millis in [0, 10, 20, 30] {
        assert_eq!(budget.take(at(millis), Reserve::Nothing), Ok(()));
        budget.end(at(millis));
    }
    budget.set_rates(rates(2, 10));
    let wait = Duration::from_millis(60_050 + 20 - 40);
    assert_eq!(budget.take(at(40), Reserve::Nothing), Err(wait));
    budget.set_rates(rates(5, 10));
    assert_eq!(budget.take(at(40), Reserve::Nothing), Ok(()));
    assert_eq!(budget.remaining(at(40)), Some(0));
}

#[test]
fn a_limit_that_comes_late_counts_what_was_sent_before() {
    for (sent, limit, left_at_once, left_later) in [
        (100, 300, 200, 280),
        (100, 50, 0, 30),
        // Of more than are remembered, the others count as the first of these.
        (2_000, 3_000, 0, 2_980),
        (2_000, 1_000, 0, 980),
    ] {
        let mut budget = budget(0, 0);
        for nth in 0..sent {
            let millis = if nth < sent - 20 { 0 } else { 10_000 };
            assert_eq!(budget.take(at(millis), Reserve::Half), Ok(()));
            budget.end(at(millis));
            assert_eq!(budget.remaining(at(millis)), None);
        }
        let kept = budget.minute.ended.len().max(budget.second.ended.len());
        assert!(kept <= REMEMBERED, "{kept}");
        budget.set_rates(rates(limit, 0));
        assert_eq!(
            budget.remaining(at(10_000)),
            Some(left_at_once),
            "{sent} {limit}"
        );
        assert_eq!(
            budget.remaining(at(60_050)),
            Some(left_later),
            "{sent} {limit}"
        );
        assert_eq!(budget.remaining(at(70_050)), Some(limit as usize));
        budget.set_rates(rates(0, 0));
        assert_eq!(budget.wait(at(70_050), Reserve::Half), None);
    }
}

/// How many go in each of so many spans of ten seconds, where one is wished
/// for every 20 ms that leaves this share.
fn taken(budget: &mut Budget, keep: Reserve, from: u64, spans: usize) -> Vec<usize> {
    let tries = |span: u64| {
        let times = (0..500).map(move |nth| from + span * 10_000 + nth * 20);
        let takes = times.filter(|now| {
            let is_taken = budget.take(at(*now), keep).is_ok();
            if is_taken {
                budget.end(at(*now));
            }
            is_taken
        });
        takes.count()
    };
    (0..spans as u64).map(tries).collect()
}

#[test]
fn three_fifths_of_a_minute_go_at_once_and_the_rest_is_spread() {
    let mut budget = budget(500, 1000);
    let first = taken(&mut budget, Reserve::Nothing, 0, 6);
    assert_eq!(first, [500, 0, 0, 0, 0, 0], "probes are not paced");
    for (keep, all) in [
        (Reserve::Probes(24), 475),
        (Reserve::ProbesAndLightClients(24), 425),
    ] {
        let mut budget = self::budget(500, 1000);
        let spans = taken(&mut budget, keep, 0, 30);
        let first: usize = spans[..6].iter().sum();
        assert!((all - 5..=all).contains(&first), "{spans:?}");
        // The first has the burst with it, of 301.
        let even = (all - 301) / 6;
        assert!((301..301 + even).contains(&spans[0]), "{spans:?}");
        assert!(
            spans[1..].iter().all(|taken| *taken >= even - 2),
            "{spans:?}"
        );
        // As the burst leaves the window a part of it comes back, which is
        // smaller each time.
        let most = 200;
        assert!(spans[1..].iter().all(|taken| *taken <= most), "{spans:?}");
        let last: usize = spans[24..].iter().sum();
        assert!(last >= all * 97 / 100, "{spans:?}");
    }
}

#[test]
fn the_reserve_is_there_whatever_others_take() {
    let mut budget = budget(500, 1000);
    let mut light = 0;
    for span in 0..180 {
        for nth in 0..50 {
            if budget
                .take(
                    at(span * 1000 + nth * 20),
                    Reserve::ProbesAndLightClients(24),
                )
                .is_ok()
            {
                budget.end(at(span * 1000 + nth * 20));
            }
        }
        let now = at(span * 1000 + 999);
        if budget.take(now, Reserve::Probes(24)).is_ok() {
            budget.end(now);
            light += 1;
        }
    }
    assert_eq!(light, 180);
}

proptest! {
    /// However requests come, the wait that is told is exact: one is let
    /// through after that time, and none before it.
    #[test]
    fn a_paced_wait_is_exact(
        gaps in proptest::collection::vec((0_u64..2_000, proptest::bool::ANY), 1..200),
        most in 1_u32..60,
    ) {
        let mut budget = budget(most, 1000);
        let mut now = at(0);
        for (gap, is_light) in gaps {
            now = now + Duration::from_millis(gap);
            let keep = match is_light {
                true => Reserve::Probes(0),
                false => Reserve::ProbesAndLightClients(0),
            };
            let Err(wait) = budget.take(now, keep) else {
                budget.end(now);
                continue;
            };
            prop_assert!(!wait.is_zero() && wait <= Duration::from_millis(60_050), "{wait:?}");
            let then = now + wait;
            prop_assert!(budget.wait(then.before(Duration::from_nanos(1)), keep).is_some());
            prop_assert_eq!(budget.wait(then, keep), None);
            now = then;
        }
    }

    /// Requests arrive at random, take random times, and reach the upstream
    /// at a random moment of that time: no window there holds too many, by a clock
    /// that runs slower or faster and that ticks every few milliseconds.
    #[test]
    fn no_window_of_the_upstream_is_exceeded(
        steps in proptest::collection::vec((0_u64..400, 0_u64..3000, 0_u64..=100), 1..400),
        (millionths, tick) in (999_250_u64..=1_000_750, 1_u64..=4),
    ) {
        let (per_minute, per_second) = (20, 4);
        let mut budget = budget(per_minute, per_second);
        let mut now = 0;
        let mut under_way: Vec<u64> = Vec::new();
        let mut reached = Vec::new();
        for (pause, takes, share) in steps {
            now += pause;
            under_way.sort_unstable();
            while under_way.first().is_some_and(|end| *end <= now) {
                budget.end(at(under_way.remove(0)));
            }
            if budget.take(at(now), Reserve::Nothing).is_ok() {
                under_way.push(now + takes);
                let at = (now + takes * share / 100) * millionths / 1_000_000;
                reached.push(at / tick * tick);
            }
        }
        reached.sort_unstable();
        for (most, span) in [(per_minute as usize, 60_000), (per_second as usize, 1_000)] {
            for window in reached.windows(most + 1) {
                prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
            }
        }
    }

    /// The wait that is told is enough where nothing else happens.
    #[test]
    fn waits_are_true(sent in 1_u32..30, gap in 0_u64..500) {
        let mut budget = budget(10, 3);
        let mut now = 0;
        for _ in 0..sent {
            match budget.take(at(now), Reserve::Nothing) {
                Ok(()) => budget.end(at(now)),
                Err(wait) => {
                    now += u64::try_from(wait.as_millis()).unwrap();
                    prop_assert!(budget.take(at(now), Reserve::Nothing).is_ok());
                    budget.end(at(now));
                }
            }
            now += gap;
        }
    }
}

/// How many requests go in so many seconds, where there is always a next one and
/// each is answered after the same time.
fn gone(budget: &mut Budget, keep: Reserve, latency: u64, seconds: (u64, u64)) -> usize {
    let micros = |micros: u64| Moment::from_nanos(1 << 50) + Duration::from_micros(micros);
    let (mut now, mut gone, mut under_way) = (0, 0, VecDeque::new());
    while now < seconds.1 * 1_000_000 {
        while let Some(end) = under_way.pop_front_if(|end| *end <= now) {
            budget.end(micros(end));
        }
        match budget.take(micros(now), keep) {
            Ok(()) => {
                under_way.push_back(now + latency * 1000);
                gone += usize::from(now >= seconds.0 * 1_000_000);
            }
            Err(wait) => {
                let wait = u64::try_from(wait.as_nanos().div_ceil(1000)).unwrap();
                let end = under_way.front().copied().unwrap_or(u64::MAX);
                now = end.min(now + wait);
            }
        }
    }
    gone
}

/// The share of the budget that can be used, in percent. The figures are those of
/// the README.
#[test]
fn what_can_be_used_falls_with_the_time_that_answers_take() {
    let kept = |keep: Reserve| (keep.of_minute(500) as f64, keep.of_second(20) as f64);
    for (latency, of_second, of_both) in [
        (5, 99, 100),
        (50, 95, 100),
        (105, 90, 100),
        (250, 80, 100),
        (500, 66, 100),
        (1000, 50, 100),
        (2000, 33, 80),
        (5000, 17, 40),
    ] {
        let seconds = latency as f64 / 1000.0;
        let percent = |gone: usize, whole: u32| gone as f64 / f64::from(whole) * 100.0;
        // Of 20 a second.
        let mut second = budget(0, 20);
        let used = percent(
            gone(&mut second, Reserve::Nothing, latency, (10, 210)),
            4000,
        );
        let most = 100.0 / (1.0 + seconds);
        assert!(
            used <= most + 0.5 && used >= most * 0.99,
            "{latency} {used} {most}"
        );
        assert!(
            (used - f64::from(of_second)).abs() < 1.0,
            "{latency} {used}"
        );
        // Of 500 a minute and 20 a second, less what is kept for others.
        for (keep, figure) in [
            (Reserve::Nothing, Some(of_both)),
            (Reserve::Probes(24), None),
            (Reserve::ProbesAndLightClients(24), None),
        ] {
            let mut budget = budget(500, 20);
            let used = percent(gone(&mut budget, keep, latency, (120, 420)), 2500);
            let (minute, second) = kept(keep);
            let by_minute = (500.0 - minute) / (60.0 + seconds);
            let by_second = (20.0 - second) / (1.0 + seconds);
            let most = by_minute.min(by_second) * 60.0 / 5.0;
            assert!(used >= most * 0.99, "{latency} {keep:?} {used} {most}");
            if let Some(figure) = figure {
                assert!((used - f64::from(figure)).abs() < 1.0, "{latency} {used}");
            }
        }
    }
}
