//! The budget never exceeds a window, and a request leaves its reserve.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

fn budget(per_minute: u32, per_second: u32) -> Budget {
    Budget::new(Rates::of(per_minute, per_second))
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

/// Takes a request, without its entry.
fn take(budget: &mut Budget, now: Moment, reserve: Reserve) -> Result<(), Duration> {
    budget.take(now, reserve).map(drop)
}

#[test]
fn both_the_minute_and_the_second_limit() {
    let mut budget = budget(3, 2);
    assert_eq!(take(&mut budget, at(0), Reserve::Nothing), Ok(()));
    assert_eq!(take(&mut budget, at(0), Reserve::Nothing), Ok(()));
    assert_eq!(
        take(&mut budget, at(0), Reserve::Nothing),
        Err(Duration::from_millis(1005)),
        "the earliest possible end"
    );
    budget.end(at(100));
    budget.end(at(200));
    assert_eq!(
        take(&mut budget, at(300), Reserve::Nothing),
        Err(Duration::from_millis(805))
    );
    assert_eq!(take(&mut budget, at(1105), Reserve::Nothing), Ok(()));
    assert_eq!(budget.remaining(at(1105)), Some(0));
    assert_eq!(
        take(&mut budget, at(1205), Reserve::Nothing),
        Err(Duration::from_millis(58_945))
    );
    budget.end(at(1300));
    assert_eq!(take(&mut budget, at(60_150), Reserve::Nothing), Ok(()));
}

#[test]
fn a_request_given_up_counts_longer() {
    let mut budget = budget(2, 1);
    assert_eq!(take(&mut budget, at(0), Reserve::Nothing), Ok(()));
    budget.give_up(at(100));
    assert!(budget.take(at(2104), Reserve::Nothing).is_err());
    assert_eq!(take(&mut budget, at(2105), Reserve::Nothing), Ok(()));
    budget.end(at(2105));
    assert_eq!(budget.remaining(at(61_149)), Some(0));
    assert_eq!(budget.remaining(at(61_150)), Some(1));
}

#[test]
fn requests_stay_counted_when_the_rates_change() {
    let mut budget = budget(4, 10);
    for millis in [0, 10, 20, 30] {
        assert_eq!(take(&mut budget, at(millis), Reserve::Nothing), Ok(()));
        budget.end(at(millis));
    }
    budget.set_limits(Rates::of(2, 10).into());
    let wait = Duration::from_millis(60_050 + 20 - 40);
    assert_eq!(take(&mut budget, at(40), Reserve::Nothing), Err(wait));
    budget.set_limits(Rates::of(5, 10).into());
    assert_eq!(take(&mut budget, at(40), Reserve::Nothing), Ok(()));
    assert_eq!(budget.remaining(at(40)), Some(0));
}

#[test]
fn a_later_limit_counts_earlier_requests() {
    for (sent, limit, at_once, later) in [
        (100, 300, 200, 280),
        (100, 50, 0, 30),
        // Beyond the remembered ends, the others count as the last of them.
        (2_000, 3_000, 1_000, 2_980),
        (2_000, 1_000, 0, 980),
    ] {
        let mut budget = budget(0, 0);
        for nth in 0..sent {
            let millis = if nth < sent - 20 { 0 } else { 10_000 };
            assert_eq!(take(&mut budget, at(millis), Reserve::Half), Ok(()));
            budget.end(at(millis));
            assert_eq!(budget.remaining(at(millis)), None);
        }
        budget.set_limits(Rates::of(limit, 0).into());
        assert_eq!(
            budget.remaining(at(10_000)),
            Some(at_once),
            "{sent} {limit}"
        );
        assert_eq!(budget.remaining(at(60_050)), Some(later), "{sent} {limit}");
        assert_eq!(budget.remaining(at(70_050)), Some(limit as usize));
        budget.set_limits(Rates::of(0, 0).into());
        assert_eq!(budget.wait(at(70_050), Reserve::Half), None);
    }
}

/// A regression: more than a thousand requests of an earlier process took any limit.
#[test]
fn earlier_requests_count_one_by_one() {
    let earlier = EarlierSpending {
        ended: vec![(at(0), 2_000)],
        ..EarlierSpending::default()
    };
    let mut budget = Budget::after(Rates::UNLIMITED, &earlier, at(10));
    budget.set_limits(Rates::of(5_000, 0).into());
    assert_eq!(budget.remaining(at(10)), Some(3_000));
    budget.set_limits(Rates::of(1_000, 0).into());
    assert_eq!(budget.remaining(at(10)), Some(0));
}

/// How many requests are taken in each of `spans` spans of ten seconds, where one
/// is attempted every 20 ms.
fn taken(budget: &mut Budget, reserve: Reserve, from: u64, spans: usize) -> Vec<usize> {
    let tries = |span: u64| {
        let times = (0..500).map(move |nth| from + span * 10_000 + nth * 20);
        let takes = times.filter(|now| {
            let is_taken = budget.take(at(*now), reserve).is_ok();
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
fn three_fifths_of_a_minute_are_sent_at_once_and_the_rest_is_paced() {
    let mut budget = budget(500, 1000);
    let first = taken(&mut budget, Reserve::Nothing, 0, 6);
    assert_eq!(first, [500, 0, 0, 0, 0, 0], "probes are not paced");
    for (reserve, all) in [
        (Reserve::Probes(24), 475),
        (Reserve::ProbesAndLightClients(24), 425),
    ] {
        let mut budget = self::budget(500, 1000);
        let spans = taken(&mut budget, reserve, 0, 30);
        let first: usize = spans[..6].iter().sum();
        assert!((all - 5..=all).contains(&first), "{spans:?}");
        // The first span includes the burst of 301.
        let even = (all - 301) / 6;
        assert!((301..301 + even).contains(&spans[0]), "{spans:?}");
        assert!(
            spans[1..].iter().all(|taken| *taken >= even - 2),
            "{spans:?}"
        );
        // When the burst leaves the window, a part of it recurs, smaller each time.
        let most = 200;
        assert!(spans[1..].iter().all(|taken| *taken <= most), "{spans:?}");
        let last: usize = spans[24..].iter().sum();
        assert!(last >= all * 97 / 100, "{spans:?}");
    }
}

#[test]
fn the_reserve_is_left_for_light_clients() {
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
    /// Whatever the arrivals, the wait is exact: a request can be taken after it,
    /// and none before.
    #[test]
    fn a_paced_wait_is_exact(
        gaps in proptest::collection::vec((0_u64..2_000, proptest::bool::ANY), 1..200),
        most in 1_u32..60,
    ) {
        let mut budget = budget(most, 1000);
        let mut now = at(0);
        for (gap, is_light) in gaps {
            now = now + Duration::from_millis(gap);
            let reserve = match is_light {
                true => Reserve::Probes(0),
                false => Reserve::ProbesAndLightClients(0),
            };
            let Err(wait) = budget.take(now, reserve) else {
                budget.end(now);
                continue;
            };
            prop_assert!(!wait.is_zero() && wait <= Duration::from_millis(60_050), "{wait:?}");
            let then = now + wait;
            prop_assert!(budget.wait(then.before(Duration::from_nanos(1)), reserve).is_some());
            prop_assert_eq!(budget.wait(then, reserve), None);
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
        let mut budget = budget(per_minute, per_second);
        let mut now = 0;
        let mut in_flight: Vec<u64> = Vec::new();
        let mut reached = Vec::new();
        for (pause, takes, share) in steps {
            now += pause;
            in_flight.sort_unstable();
            while in_flight.first().is_some_and(|end| *end <= now) {
                budget.end(at(in_flight.remove(0)));
            }
            if budget.take(at(now), Reserve::Nothing).is_ok() {
                in_flight.push(now + takes);
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

    /// The wait is sufficient where nothing else happens.
    #[test]
    fn waits_are_sufficient(sent in 1_u32..30, gap in 0_u64..500) {
        let mut budget = budget(10, 3);
        let mut now = 0;
        for _ in 0..sent {
            match budget.take(at(now), Reserve::Nothing) {
                Ok(_entry) => budget.end(at(now)),
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

/// How many requests are taken within some seconds, where there is always a next
/// one and each takes `latency` milliseconds.
fn sent_within(budget: &mut Budget, reserve: Reserve, latency: u64, seconds: (u64, u64)) -> usize {
    let micros = |micros: u64| Moment::from_nanos(1 << 50) + Duration::from_micros(micros);
    let (mut now, mut sent, mut in_flight) = (0, 0, VecDeque::new());
    while now < seconds.1 * 1_000_000 {
        while let Some(end) = in_flight.pop_front_if(|end| *end <= now) {
            budget.end(micros(end));
        }
        match budget.take(micros(now), reserve) {
            Ok(_entry) => {
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
    let reserved = |reserve: Reserve| (reserve.of_minute(500) as f64, reserve.of_second(20) as f64);
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
        let percent = |sent: usize, whole: u32| sent as f64 / f64::from(whole) * 100.0;
        // Of 20 a second.
        let mut second = budget(0, 20);
        let used = percent(
            sent_within(&mut second, Reserve::Nothing, latency, (10, 210)),
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
        // Of 500 a minute and 20 a second, less the reserve.
        for (reserve, figure) in [
            (Reserve::Nothing, Some(of_both)),
            (Reserve::Probes(24), None),
            (Reserve::ProbesAndLightClients(24), None),
        ] {
            let mut budget = budget(500, 20);
            let used = percent(sent_within(&mut budget, reserve, latency, (120, 420)), 2500);
            let (minute, second) = reserved(reserve);
            let by_minute = (500.0 - minute) / (60.0 + seconds);
            let by_second = (20.0 - second) / (1.0 + seconds);
            let most = by_minute.min(by_second) * 60.0 / 5.0;
            assert!(used >= most * 0.99, "{latency} {reserve:?} {used} {most}");
            if let Some(figure) = figure {
                assert!((used - f64::from(figure)).abs() < 1.0, "{latency} {used}");
            }
        }
    }
}
