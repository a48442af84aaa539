//! How the limit finds a cap, in a simulation of a server that accepts a number of
//! requests at once and rejects the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::{any, prop_assert, proptest};

use super::*;
use crate::upstream::endpoint::breaker::{self, Breaker, BreakerPermit, Change};
use crate::upstream::endpoint::send_order::SendOrder;
use crate::upstream::failure::RequestOutcome;

fn at(micros: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_micros(micros)
}

/// Which requests the server accepts.
#[derive(Clone, Copy, Debug)]
enum Accepts {
    /// This many at once.
    AtOnce(usize),
    /// This percentage, at random.
    Percent(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    end: u64,
    number: u64,
    begun: u64,
    in_flight: u32,
    is_accepted: bool,
    pass: usize,
}

/// A server, clients that send as often as limit and breaker allow, and a clock.
struct Simulation {
    concurrency: Concurrency,
    breaker: Breaker,
    order: SendOrder,
    accepts: Accepts,
    /// The duration of a response and of a rejection, in microseconds.
    base: u64,
    refusal: u64,
    random: fastrand::Rng,
    now: u64,
    sent: BinaryHeap<Reverse<Sent>>,
    passes: Vec<BreakerPermit>,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    answered: u64,
    rejected: u64,
    opened: u32,
}

impl Simulation {
    fn new(concurrency: Concurrency, accepts: Accepts, base: u64, refusal: u64) -> Self {
        Self {
            concurrency,
            breaker: Breaker::new(breaker::Settings::shipped(), 1),
            order: SendOrder::default(),
            accepts,
            base,
            refusal,
            random: fastrand::Rng::with_seed(7),
            now: 0,
            sent: BinaryHeap::new(),
            passes: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn send(&mut self, pass: BreakerPermit) {
        let accepted = self.sent.iter().filter(|Reverse(sent)| sent.is_accepted);
        let is_accepted = match self.accepts {
            Accepts::AtOnce(most) => accepted.count() < most,
            Accepts::Percent(percent) => self.random.u64(..100) < percent,
        };
        let takes = if is_accepted { self.base } else { self.refusal };
        // Some variation, so that not all end together.
        let takes = takes * (90 + self.random.u64(..20)) / 100;
        self.passes.push(pass);
        self.sent.push(Reverse(Sent {
            end: self.now + takes,
            number: self.order.send(),
            begun: self.now,
            in_flight: u32::try_from(self.sent.len()).unwrap() + 1,
            is_accepted,
            pass: self.passes.len() - 1,
        }));
    }

    fn end(&mut self, sent: Sent) {
        self.now = sent.end;
        let now = at(self.now);
        let outcome = if sent.is_accepted {
            self.order.answered(sent.number);
            let took = Duration::from_micros(sent.end - sent.begun);
            self.concurrency.record(took, sent.in_flight, now);
            self.seen.answered += 1;
            RequestOutcome::Success
        } else {
            self.seen.rejected += 1;
            let others = u32::try_from(self.sent.len()).unwrap();
            let is_excess = self.order.answers_others(sent.number, true)
                && self.concurrency.rejected(others, at(sent.begun), now);
            match is_excess {
                true => RequestOutcome::Unknown,
                false => RequestOutcome::Failure,
            }
        };
        self.order.end(sent.number);
        let change = self.breaker.end(self.passes[sent.pass], outcome, now);
        if matches!(change, Some(Change::Opened(_))) {
            self.seen.opened += 1;
        }
    }

    /// Runs for this many seconds with this many clients that always have a request.
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
            let accepts = Accepts::AtOnce(cap);
            let case = format!("{cap} {base} {refusal}");
            let mut simulation = Simulation::new(Concurrency::new(4, 32), accepts, base, refusal);
            let first = simulation.run(45, 100);
            let mut fixed = Simulation::new(Concurrency::new(4, 32), accepts, base, refusal);
            fixed.concurrency.bound(cap as u32, cap as u32);
            let best = fixed.run(45, 100);
            assert_eq!((best.rejected, best.opened), (0, 0), "{case}");
            assert_eq!(first.opened, 0, "{case} {first:?}");
            let share = first.answered as f64 / best.answered as f64;
            assert!(share > 0.9, "{case} {first:?} of {best:?}");
            assert!(first.rejected < 80, "{case} {first:?}");
            // Later the cap is met every 16 s.
            let later = simulation.run(64, 100);
            assert!(later.rejected <= 24, "{case} {later:?}");
            assert_eq!(later.opened, 0, "{case} {later:?}");
        }
    }
}

#[test]
fn a_cap_that_is_lifted_is_forgotten() {
    for (base, seconds) in [(10_000, 17), (100_000, 19), (1_000_000, 30)] {
        let mut simulation =
            Simulation::new(Concurrency::new(4, 32), Accepts::AtOnce(3), base, 300);
        simulation.run(120, 100);
        let limit = simulation.concurrency.limit();
        assert!((1..=4).contains(&limit), "{limit}");
        simulation.accepts = Accepts::AtOnce(1000);
        simulation.run(seconds, 100);
        assert_eq!(simulation.concurrency.limit(), 32, "{base}");
    }
}

#[test]
fn a_server_that_fails_all_or_half_opens_the_breaker() {
    // Of 32 requests sent at the same time, the first may not be the first to end.
    for (percent, most) in [(0, 80), (15, 400)] {
        let mut simulation = Simulation::new(
            Concurrency::new(4, 32),
            Accepts::Percent(percent),
            20_000,
            300,
        );
        let mut sent = 0;
        while simulation.seen.opened == 0 {
            let pass = simulation.breaker.admit(at(simulation.now), false).unwrap();
            simulation.send(pass);
            sent += 1;
            while simulation.sent.len() >= simulation.concurrency.limit() as usize {
                let Reverse(sent) = simulation.sent.pop().unwrap();
                simulation.end(sent);
            }
            assert!(sent < most, "{percent}");
        }
    }
}

#[test]
fn a_restart_leaves_the_limit_low_for_a_moment() {
    let mut simulation =
        Simulation::new(Concurrency::new(4, 32), Accepts::AtOnce(1000), 50_000, 300);
    simulation.run(10, 100);
    // All requests in flight are cut off.
    let mut all: Vec<_> = simulation.sent.drain().map(|Reverse(sent)| sent).collect();
    for sent in &mut all {
        (sent.end, sent.is_accepted) = (simulation.now + 1000, false);
    }
    all.sort_unstable();
    while let Some(sent) = all.pop() {
        simulation.end(sent);
    }
    simulation.run(3, 100);
    assert_eq!(simulation.concurrency.limit(), 32);
}

#[test]
fn one_rejection_among_many_responses_is_no_cap() {
    let mut concurrency = Concurrency::new(4, 32);
    for time in 1..1000 {
        concurrency.record(Duration::from_millis(20), 32, at(time * 1000));
        if time % 65 == 0 {
            assert!(concurrency.rejected(3, at(time * 1000), at(time * 1000 + 1)));
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
            let simulation = |concurrency| {
                Simulation::new(concurrency, Accepts::Percent(percent), base, refusal)
            };
            let mut adaptive = simulation(Concurrency::new(4, 32));
            let found = adaptive.run(120, workers);
            let best = simulation(Concurrency::new(32, 32)).run(120, workers);
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
        let mut simulation =
            Simulation::new(Concurrency::new(4, 32), Accepts::Percent(95), base, 300);
        simulation.run(30, 100);
        assert!(simulation.concurrency.no_cap.is_some());
        simulation.accepts = Accepts::AtOnce(4);
        let met = simulation.run(45, 100);
        let mut fixed = Simulation::new(Concurrency::new(4, 4), Accepts::AtOnce(4), base, 300);
        let best = fixed.run(45, 100);
        assert_eq!(met.opened, 0, "{base}: {met:?}");
        let share = met.answered as f64 / best.answered as f64;
        assert!(share > 0.9, "{base}: {met:?} of {best:?}");
    }
}

#[test]
fn a_limit_that_has_held_is_returned_to() {
    let mut concurrency = Concurrency::new(4, 32);
    assert!(concurrency.rejected(4, at(0), at(1)));
    concurrency.wanted(at(600_000));
    assert_eq!(concurrency.limit(), 5);
    // The fifth is rejected when some of the others have just been answered.
    assert!(concurrency.rejected(2, at(600_001), at(600_900)));
    assert_eq!(concurrency.limit(), 4);
    assert!(concurrency.rejected(1, at(600_002), at(600_950)));
    assert_eq!(concurrency.limit(), 4, "it was sent before");
    assert!(concurrency.rejected(2, at(700_000), at(700_900)));
    assert_eq!(concurrency.limit(), 2, "the server accepts fewer now");
}

#[test]
fn a_limit_that_cannot_fall_makes_rejections_failures() {
    let mut fixed = Concurrency::new(8, 8);
    assert!(!fixed.rejected(7, at(0), at(1)));
    assert_eq!(fixed.limit(), 8);
    let mut low = Concurrency::new(4, 32);
    assert!(low.rejected(0, at(0), at(1)));
    assert_eq!(low.limit(), 1, "a cap may be below the lower bound");
    assert!(low.rejected(5, at(1), at(2)), "it was sent before");
    assert!(!low.rejected(5, at(3), at(4)));
    low.bound(4, 32);
    assert_eq!(low.limit(), 4);
}

#[test]
fn a_slot_that_is_never_freed_does_not_keep_the_limit_low() {
    let mut concurrency = Concurrency::new(4, 32);
    assert!(concurrency.rejected(1, at(0), at(1)));
    for (millis, limit) in [(100, 1), (499, 1), (502, 2), (600, 2)] {
        concurrency.wanted(at(millis * 1000));
        assert_eq!(concurrency.limit(), limit, "{millis} ms");
    }
}

proptest! {
    /// The limit is at least one and at most its upper bound, and a rejection lowers it or
    /// is a failure.
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
                    if concurrency.rejected(crowd, at(sent), at(now)) {
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
