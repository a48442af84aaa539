//! When the breaker opens, closes and lets trials pass.

use proptest::prelude::{Just, any, prop_assert, prop_oneof, proptest};

use super::*;
use crate::upstream::failure::RequestOutcome::{Failure, Success, Unknown};

fn settings() -> Settings {
    let number = |n| NonZeroU32::new(n).unwrap();
    Settings {
        failures: number(3),
        share: number(50),
        window: Duration::from_secs(10),
        ..Settings::shipped()
    }
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

/// Admits a request and reports its outcome.
fn one(breaker: &mut Breaker, millis: u64, outcome: RequestOutcome) -> Option<Change> {
    let pass = breaker.admit(at(millis)).unwrap();
    breaker.end(pass, outcome, at(millis))
}

fn opened(change: Option<Change>) -> Duration {
    match change {
        Some(Change::Opened(pause) | Change::Reopened(pause)) => pause,
        Some(Change::Closed) | None => panic!("{change:?}"),
    }
}

#[test]
fn failures_in_a_row_open_the_breaker() {
    let mut breaker = Breaker::new(settings(), 1);
    for _ in 0..5 {
        assert_eq!(one(&mut breaker, 0, Failure), None);
        assert_eq!(one(&mut breaker, 20_000, Failure), None);
        assert_eq!(one(&mut breaker, 40_000, Success), None);
    }
    one(&mut breaker, 60_000, Failure);
    one(&mut breaker, 80_000, Failure);
    // An unknown outcome neither counts nor resets the count.
    one(&mut breaker, 80_000, Unknown);
    let pause = opened(one(&mut breaker, 100_000, Failure));
    assert!((1000..=1250).contains(&pause.as_millis()), "{pause:?}");
    assert_eq!(breaker.state(at(100_000)), BreakerState::Open(pause));
    assert_eq!(breaker.admit(at(100_000)), Err(pause));
}

#[test]
fn a_share_of_failures_opens_the_breaker() {
    let mut breaker = Breaker::new(settings(), 1);
    // Five requests are too few; the sixth makes half of them failures.
    for (millis, outcome) in [
        (0, Success),
        (100, Failure),
        (200, Success),
        (300, Failure),
        (400, Success),
        (500, Failure),
    ] {
        let change = one(&mut breaker, millis, outcome);
        assert_eq!(change.is_some(), millis == 500, "{millis}");
    }
    let mut breaker = Breaker::new(settings(), 1);
    // After ten seconds outcomes are forgotten.
    for millis in [0, 12_000, 24_000, 36_000, 48_000] {
        for outcome in [Failure, Success, Failure, Success] {
            assert_eq!(one(&mut breaker, millis, outcome), None);
        }
    }
}

#[test]
fn the_breaker_closes_step_by_step() {
    let mut breaker = Breaker::new(settings(), 1);
    for _ in 0..3 {
        one(&mut breaker, 0, Failure);
    }
    assert_eq!(breaker.state(at(2000)), BreakerState::HalfOpen);
    let first = breaker.admit(at(2000)).unwrap();
    assert_eq!(breaker.admit(at(2000)), Err(MOMENTARY));
    assert_eq!(breaker.end(first, Success, at(2000)), None);
    // After one, three at once; after two, five.
    let passes = [(); 3].map(|()| breaker.admit(at(2000)).unwrap());
    assert!(breaker.admit(at(2000)).is_err());
    assert_eq!(breaker.end(passes[0], Success, at(2000)), None);
    let more = [(); 3].map(|()| breaker.admit(at(2000)).unwrap());
    assert!(breaker.admit(at(2000)).is_err());
    let closed = breaker.end(passes[1], Success, at(2000));
    assert_eq!(closed, Some(Change::Closed));
    assert_eq!(breaker.state(at(2000)), BreakerState::Closed);
    // Outcomes of requests sent before do not count.
    for pass in more {
        assert_eq!(breaker.end(pass, Failure, at(2000)), None);
    }
    // The next pause is as short as the first.
    one(&mut breaker, 2000, Failure);
    one(&mut breaker, 2000, Failure);
    let pause = opened(one(&mut breaker, 2000, Failure));
    assert!(pause < Duration::from_millis(1300));
}

#[test]
fn a_failed_trial_lengthens_the_pause() {
    let mut breaker = Breaker::new(settings(), 1);
    for _ in 0..2 {
        one(&mut breaker, 0, Failure);
    }
    let mut pause = opened(one(&mut breaker, 0, Failure));
    let mut now = 0;
    for at_least in [2, 4, 8, 16, 32, 60, 60, 60] {
        now += u64::try_from(pause.as_millis()).unwrap() + 1;
        // A trial that is not sent leaves its place to the next.
        assert_eq!(one(&mut breaker, now, Unknown), None);
        pause = opened(one(&mut breaker, now, Failure));
        assert!(pause >= Duration::from_secs(at_least), "{pause:?}");
        assert!(pause <= Duration::from_secs(60));
    }
}

/// A breaker whose first pause has just ended, and when that is.
fn half_open(settings: Settings) -> (Breaker, u64) {
    let mut breaker = Breaker::new(settings, 1);
    let pause = loop {
        if let Some(change) = one(&mut breaker, 0, Failure) {
            break opened(Some(change));
        }
    };
    let now = u64::try_from(pause.as_millis()).unwrap() + 1;
    (breaker, now)
}

#[test]
fn trials_are_judged_by_the_rule_that_opens_the_breaker() {
    // Three failures in a row, or half of six trials.
    for (outcomes, expected) in [
        ("-", "longer"),
        ("+++", "closed"),
        ("+-++", "closed"),
        ("+--++", "closed"),
        ("+-+-+", "closed"),
        ("+--+--", "as long"),
        // Half of six, but a success does not open it.
        ("+--+-+", "half-open"),
        ("+--+-+-", "as long"),
        ("+--+-++", "closed"),
        ("++---", "as long"),
        ("+---", "as long"),
        ("+--+", "half-open"),
        ("++-", "half-open"),
        ("?+?-", "half-open"),
        ("?-", "longer"),
    ] {
        let (mut breaker, now) = half_open(settings());
        let mut last = "half-open";
        for outcome in outcomes.chars() {
            assert_eq!(last, "half-open", "{outcomes}");
            let outcome = match outcome {
                '+' => Success,
                '-' => Failure,
                _ => Unknown,
            };
            last = match one(&mut breaker, now, outcome) {
                None => "half-open",
                Some(Change::Closed) => "closed",
                Some(Change::Reopened(pause)) if pause >= Duration::from_secs(2) => "longer",
                Some(Change::Reopened(_)) => "as long",
                Some(Change::Opened(_)) => "opened",
            };
        }
        assert_eq!(last, expected, "{outcomes}");
    }
}

/// How many of 6,000 requests, ten milliseconds apart, are answered after three seconds
/// without an answer, by a server that fails this percentage of them.
fn answered_after_an_outage(failing: u32, seed: u64) -> (u32, u32) {
    let mut breaker = Breaker::new(Settings::shipped(), seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut answered, mut sent) = (0, 0);
    for step in 0..6_300 {
        let now = at(step * 10);
        let Ok(permit) = breaker.admit(now) else {
            continue;
        };
        let is_up = step >= 300;
        let succeeds = is_up && random.u32(..100) >= failing;
        answered += u32::from(succeeds);
        sent += u32::from(is_up);
        let outcome = if succeeds { Success } else { Failure };
        breaker.end(permit, outcome, now);
    }
    (answered, sent)
}

#[test]
fn a_server_that_answers_most_requests_is_used_again_after_an_outage() {
    for failing in [0, 10, 25, 40] {
        let answered = (0..50).map(|seed| answered_after_an_outage(failing, seed).0);
        let (sum, all): (u32, u32) = (answered.sum(), (100 - failing) * 60 * 50);
        // Now and then several first trials fail, and each time the pause doubles.
        assert!(sum > all * 4 / 5, "{failing} % fail: {sum} of {all}");
    }
}

#[test]
fn a_server_that_is_down_gets_few_requests() {
    for seed in 0..50 {
        let (answered, sent) = answered_after_an_outage(100, seed);
        // One after each pause, and those double.
        assert_eq!(answered, 0);
        assert!(sent <= 7, "{sent}");
    }
    // One in twenty succeeds: at most twice ten trials follow each success.
    for seed in 0..50 {
        let (_, sent) = answered_after_an_outage(95, seed);
        assert!(sent <= 200, "{sent}");
    }
}

#[test]
fn a_disabled_breaker_never_opens() {
    let off = Settings {
        enabled: false,
        ..settings()
    };
    let mut breaker = Breaker::new(off, 1);
    for _ in 0..100 {
        assert_eq!(one(&mut breaker, 0, Failure), None);
    }
}

#[test]
fn pauses_differ_by_seed() {
    let pause = |seed| {
        let mut breaker = Breaker::new(settings(), seed);
        breaker.open(at(0))
    };
    let pauses: std::collections::BTreeSet<_> = (0..50).map(pause).collect();
    assert!(pauses.len() > 20, "{pauses:?}");
}

proptest! {
    /// An open breaker lets nothing pass, a half-open one lets one trial pass at a
    /// time until one succeeds, and it never blocks for good.
    #[test]
    fn no_request_passes_an_open_breaker(
        seed in any::<u64>(),
        steps in proptest::collection::vec(
            (
                0_u64..3000,
                prop_oneof![
                    Just(Success), Just(Failure), Just(Failure),
                    Just(Unknown),
                ],
                0_usize..6,
                any::<bool>(),
            ),
            1..200,
        ),
    ) {
        let mut breaker = Breaker::new(settings(), seed);
        let mut in_flight = Vec::new();
        let (mut now, mut open_until) = (0, 0);
        for (pause, outcome, which, begins) in steps {
            now += pause;
            if begins || in_flight.is_empty() {
                match breaker.admit(at(now)) {
                    Ok(pass) => {
                        prop_assert!(now >= open_until, "{breaker:?}");
                        in_flight.push(pass);
                    }
                    Err(wait) => prop_assert!(
                        !wait.is_zero() && wait <= Duration::from_secs(60)
                            && breaker.state(at(now)) != BreakerState::Closed
                    ),
                }
            } else {
                let pass = in_flight.swap_remove(which % in_flight.len());
                if let Some(Change::Opened(pause) | Change::Reopened(pause)) =
                    breaker.end(pass, outcome, at(now))
                {
                    prop_assert!(pause >= Duration::from_secs(1));
                    prop_assert!(pause <= Duration::from_secs(60));
                    open_until = now + u64::try_from(pause.as_millis()).unwrap();
                }
            }
        }
        // In the end all are given up, and the endpoint answers again.
        for pass in in_flight {
            breaker.end(pass, Unknown, at(now));
        }
        for step in 0..10 {
            let later = at(now + 61_000 + step);
            let pass = breaker.admit(later);
            prop_assert!(pass.is_ok(), "{breaker:?}");
            breaker.end(pass.unwrap(), Success, later);
        }
        prop_assert!(breaker.state(at(now + 62_000)) == BreakerState::Closed, "{breaker:?}");
    }
}
