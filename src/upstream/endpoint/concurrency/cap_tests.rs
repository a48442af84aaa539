//! How the limit finds a cap, with a server that is played: it takes so many
//! requests at once, and turns the others away.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use proptest::prelude::{any, prop_assert, proptest};

use super::*;
use crate::upstream::client::chance::Chance;
use crate::upstream::endpoint::breaker::{self, Breaker, BreakerPermit, Change, RequestOutcome};
use crate::upstream::endpoint::under_way::UnderWay;

fn at(micros: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_micros(micros)
}

/// As proxy.toml has it.
fn breaker() -> Breaker {
    let number = |n| NonZeroU32::new(n).unwrap();
    let settings = breaker::Settings {
        enabled: true,
        failures: number(10),
        share: number(80),
        window: Duration::from_secs(30),
        pause: Duration::from_secs(1),
        max_pause: Duration::from_secs(60),
    };
    Breaker::new(settings, 1)
}

/// Whom the server turns away.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// Those beyond so many.
    AtOnce(usize),
    /// So many in a hundred, by chance.
    Percent(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    end: u64,
    number: u64,
    begun: u64,
    in_flight: u32,
    is_taken: bool,
    pass: usize,
}

/// A server, those who ask it as often as limit and breaker allow, and a clock.
struct World {
    concurrency: Concurrency,
    breaker: Breaker,
    under_way: UnderWay,
    takes: Takes,
    /// How long an answer takes and how long it takes to be turned away, in
    /// microseconds.
    base: u64,
    refusal: u64,
    chance: Chance,
    now: u64,
    sent: BinaryHeap<Reverse<Sent>>,
    passes: Vec<BreakerPermit>,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    answered: u64,
    turned_away: u64,
    opened: u32,
}

impl World {
    fn new(concurrency: Concurrency, takes: Takes, base: u64, refusal: u64) -> Self {
        Self {
            concurrency,
            breaker: breaker(),
            under_way: UnderWay::default(),
            takes,
            base,
            refusal,
            chance: Chance::new(7),
            now: 0,
            sent: BinaryHeap::new(),
            passes: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn send(&mut self, pass: BreakerPermit) {
        let taken = self.sent.iter().filter(|Reverse(sent)| sent.is_taken);
        let is_taken = match self.takes {
            Takes::AtOnce(most) => taken.count() < most,
            Takes::Percent(percent) => self.chance.draw() % 100 < percent,
        };
        let takes = if is_taken { self.base } else { self.refusal };
        // A little of chance, so that not all end together.
        let takes = takes * (90 + self.chance.draw() % 20) / 100;
        self.passes.push(pass);
        self.sent.push(Reverse(Sent {
            end: self.now + takes,
            number: self.under_way.send(),
            begun: self.now,
            in_flight: u32::try_from(self.sent.len()).unwrap() + 1,
            is_taken,
            pass: self.passes.len() - 1,
        }));
    }

    fn end(&mut self, sent: Sent) {
        self.now = sent.end;
        let now = at(self.now);
        let health = if sent.is_taken {
            self.under_way.answered(sent.number);
            let took = Duration::from_micros(sent.end - sent.begun);
            self.concurrency.record(took, sent.in_flight, now);
            self.seen.answered += 1;
            RequestOutcome::Well
        } else {
            self.seen.turned_away += 1;
            let others = u32::try_from(self.sent.len()).unwrap();
            let is_excess = self.under_way.answers_others(sent.number, true)
                && self.concurrency.turned_away(others, at(sent.begun), now);
            match is_excess {
                true => RequestOutcome::Unknown,
                false => RequestOutcome::Failed,
            }
        };
        self.under_way.end(sent.number);
        let change = self.breaker.end(self.passes[sent.pass], health, now);
        if matches!(change, Some(Change::Opened(_))) {
            self.seen.opened += 1;
        }
    }

    /// Lets so many seconds go by in which so many always want to ask, and says
    /// what came of it.
    fn run(&mut self, seconds: u64, workers: usize) -> Seen {
        let until = self.now + seconds * 1_000_000;
        self.seen = Seen::default();
        while self.now < until {
            if self.sent.len() < workers {
                self.concurrency.wanted(at(self.now));
            }
            while self.sent.len() < workers.min(self.concurrency.limit() as usize) {
                let Ok(pass) = self.breaker.admit(at(self.now), false) else {
                    break;
                };
                self.send(pass);
            }
            match self.sent.pop() {
                Some(Reverse(sent)) => self.end(sent),
                None => self.now += 10_000,
            }
        }
        self.seen
    }
}

#[test]
fn a_cap_costs_little_and_never_opens_the_breaker() {
    for cap in [1, 2, 4, 5, 13, 30] {
        for (base, refusal) in [
            (100_000, 300),
            (100_000, 100_000),
            (10_000, 300),
            (2_000_000, 1_000),
        ] {
            let takes = Takes::AtOnce(cap);
            let case = format!("{cap} {base} {refusal}");
            let mut world = World::new(Concurrency::new(4, 32), takes, base, refusal);
            let first = world.run(45, 100);
            let mut fixed = World::new(Concurrency::new(4, 32), takes, base, refusal);
            fixed.concurrency.bound(cap as u32, cap as u32);
            let best = fixed.run(45, 100);
            assert_eq!((best.turned_away, best.opened), (0, 0), "{case}");
            assert_eq!(first.opened, 0, "{case} {first:?}");
            let share = first.answered as f64 / best.answered as f64;
            assert!(share > 0.9, "{case} {first:?} of {best:?}");
            assert!(first.turned_away < 80, "{case} {first:?}");
            // Later on it is met every 16 s.
            let later = world.run(64, 100);
            assert!(later.turned_away <= 24, "{case} {later:?}");
            assert_eq!(later.opened, 0, "{case} {later:?}");
        }
    }
}

#[test]
fn a_cap_that_is_lifted_is_forgotten() {
    for (base, seconds) in [(10_000, 17), (100_000, 19), (1_000_000, 30)] {
        let mut world = World::new(Concurrency::new(4, 32), Takes::AtOnce(3), base, 300);
        world.run(120, 100);
        let limit = world.concurrency.limit();
        assert!((1..=4).contains(&limit), "{limit}");
        world.takes = Takes::AtOnce(1000);
        world.run(seconds, 100);
        assert_eq!(world.concurrency.limit(), 32, "{base}");
    }
}

#[test]
fn a_server_that_fails_all_or_half_opens_the_breaker() {
    // Of 32 that are under way, those that were sent at the same time may come
    // back before the first of them.
    for (percent, most) in [(0, 80), (15, 400)] {
        let mut world = World::new(
            Concurrency::new(4, 32),
            Takes::Percent(percent),
            20_000,
            300,
        );
        let mut sent = 0;
        while world.seen.opened == 0 {
            let pass = world.breaker.admit(at(world.now), false).unwrap();
            world.send(pass);
            sent += 1;
            while world.sent.len() >= world.concurrency.limit() as usize {
                let Reverse(sent) = world.sent.pop().unwrap();
                world.end(sent);
            }
            assert!(sent < most, "{percent}");
        }
    }
}

#[test]
fn a_restart_leaves_the_limit_low_for_a_moment() {
    let mut world = World::new(Concurrency::new(4, 32), Takes::AtOnce(1000), 50_000, 300);
    world.run(10, 100);
    // All that is under way is cut off.
    let mut all: Vec<_> = world.sent.drain().map(|Reverse(sent)| sent).collect();
    for sent in &mut all {
        (sent.end, sent.is_taken) = (world.now + 1000, false);
    }
    all.sort_unstable();
    while let Some(sent) = all.pop() {
        world.end(sent);
    }
    world.run(3, 100);
    assert_eq!(world.concurrency.limit(), 32);
}

#[test]
fn one_among_many_answers_is_none_of_a_cap() {
    let mut concurrency = Concurrency::new(4, 32);
    for time in 1..1000 {
        concurrency.record(Duration::from_millis(20), 32, at(time * 1000));
        if time % 65 == 0 {
            assert!(concurrency.turned_away(3, at(time * 1000), at(time * 1000 + 1)));
        }
        assert_eq!(concurrency.limit(), 32);
    }
}

/// A regression: one failure in twenty left a sixteenth of the throughput.
#[test]
fn a_server_that_fails_at_random_keeps_its_limit() {
    for (percent, least) in [(99, 0.95), (98, 0.95), (95, 0.9), (90, 0.9), (80, 0.6)] {
        for (base, refusal, workers) in [
            (100_000, 300, 30),
            (100_000, 50_000, 30),
            (1_000_000, 300, 30),
            (1_000_000, 500_000, 8),
        ] {
            let world =
                |concurrency| World::new(concurrency, Takes::Percent(percent), base, refusal);
            let mut adaptive = world(Concurrency::new(4, 32));
            let found = adaptive.run(120, workers);
            let best = world(Concurrency::new(32, 32)).run(120, workers);
            let share = found.answered as f64 / best.answered as f64;
            assert!(
                share > least,
                "{percent} {base} {refusal}: {found:?} of {best:?}"
            );
            assert_eq!(found.opened, 0, "{percent} {base} {refusal}");
        }
    }
}

#[test]
fn a_cap_that_comes_after_random_failures_is_found() {
    for base in [20_000, 100_000] {
        let mut world = World::new(Concurrency::new(4, 32), Takes::Percent(95), base, 300);
        world.run(30, 100);
        assert!(world.concurrency.no_cap.is_some());
        world.takes = Takes::AtOnce(4);
        let met = world.run(45, 100);
        let mut fixed = World::new(Concurrency::new(4, 4), Takes::AtOnce(4), base, 300);
        let best = fixed.run(45, 100);
        assert_eq!(met.opened, 0, "{base}: {met:?}");
        let share = met.answered as f64 / best.answered as f64;
        assert!(share > 0.9, "{base}: {met:?} of {best:?}");
    }
}

#[test]
fn a_limit_that_has_held_is_returned_to() {
    let mut concurrency = Concurrency::new(4, 32);
    assert!(concurrency.turned_away(4, at(0), at(1)));
    concurrency.wanted(at(600_000));
    assert_eq!(concurrency.limit(), 5);
    // The fifth is turned away when some of the others have just been answered.
    assert!(concurrency.turned_away(2, at(600_001), at(600_900)));
    assert_eq!(concurrency.limit(), 4);
    assert!(concurrency.turned_away(1, at(600_002), at(600_950)));
    assert_eq!(concurrency.limit(), 4, "it was sent before");
    assert!(concurrency.turned_away(2, at(700_000), at(700_900)));
    assert_eq!(concurrency.limit(), 2, "it takes fewer by now");
}

#[test]
fn a_fixed_limit_and_the_lowest_are_no_remedy() {
    let mut fixed = Concurrency::new(8, 8);
    assert!(!fixed.turned_away(7, at(0), at(1)));
    assert_eq!(fixed.limit(), 8);
    let mut low = Concurrency::new(4, 32);
    assert!(low.turned_away(0, at(0), at(1)));
    assert_eq!(low.limit(), 1, "a cap may be below the least");
    assert!(low.turned_away(5, at(1), at(2)), "it was sent before");
    assert!(!low.turned_away(5, at(3), at(4)));
    low.bound(4, 32);
    assert_eq!(low.limit(), 4);
}

#[test]
fn a_place_that_is_never_given_back_does_not_keep_the_limit_low() {
    let mut concurrency = Concurrency::new(4, 32);
    assert!(concurrency.turned_away(1, at(0), at(1)));
    for (millis, limit) in [(100, 1), (499, 1), (502, 2), (600, 2)] {
        concurrency.wanted(at(millis * 1000));
        assert_eq!(concurrency.limit(), limit, "{millis} ms");
    }
}

proptest! {
    /// Whatever happens, the limit is one at the least and within its most, and
    /// beside what a cap takes the least holds.
    #[test]
    fn it_stays_within_bounds(
        most in 2_u32..64,
        steps in proptest::collection::vec((0_u64..3_000, any::<u8>(), 0_u32..70), 1..300),
    ) {
        let mut concurrency = Concurrency::new(2, most);
        let mut now = 10_000_000;
        for (pause, what, crowd) in steps {
            now += pause * 1000;
            let before = concurrency.limit();
            match what % 4 {
                0 => {
                    let sent = now.saturating_sub(u64::from(what) * 10_000);
                    if concurrency.turned_away(crowd, at(sent), at(now)) {
                        prop_assert!(concurrency.limit() <= before);
                    } else {
                        let has_no_cap = concurrency.no_cap.is_some();
                        prop_assert!(before == 1 || most == 2 || has_no_cap);
                    }
                }
                1 => concurrency.overloaded(at(now)),
                _ => concurrency.record(Duration::from_millis(u64::from(what)), crowd, at(now)),
            }
            prop_assert!((1..=most).contains(&concurrency.limit()), "{concurrency:?}");
        }
    }
}
