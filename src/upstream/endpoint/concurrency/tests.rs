//! How the limit moves, with a server that is played: its latency grows with
//! what is under way beyond its capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::upstream::client::chance::Chance;

fn at(micros: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_micros(micros)
}

/// Answers of so many milliseconds, one each hundredth of a second, that were
/// sent with so many under way; answers when the last came, in microseconds.
fn answers(concurrency: &mut Concurrency, from: u64, times: u64, took: u64, crowd: u32) -> u64 {
    for time in 1..=times {
        let now = at(from + time * 10_000);
        concurrency.record(Duration::from_millis(took), crowd, now);
    }
    from + times * 10_000
}

/// How a server shares itself out.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// What is sent takes the longer, the more are under way.
    Shared,
    /// As many as it can at a time, in the order in which they came.
    Queue,
}

/// A server, those who ask it as often as the limit allows, and a clock.
struct World {
    concurrency: Concurrency,
    kind: Kind,
    /// In microseconds.
    base: u64,
    capacity: usize,
    /// What chance makes of a time, in percent: up to so much more.
    noise: u64,
    chance: Chance,
    now: u64,
    /// When each that is under way ends, began, and how many there were.
    under_way: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// When each server of a queue is free.
    free: Vec<u64>,
}

/// What was seen of the limit, and how many were answered.
#[derive(Clone, Copy, Debug)]
struct Seen {
    least: u32,
    mean: f64,
    most: u32,
    answered: u64,
}

impl World {
    fn new(concurrency: Concurrency, kind: Kind, base: u64, capacity: usize) -> Self {
        Self {
            concurrency,
            kind,
            base,
            capacity,
            noise: 0,
            chance: Chance::new(1),
            now: 0,
            under_way: BinaryHeap::new(),
            free: Vec::new(),
        }
    }

    fn send(&mut self) {
        let in_flight = self.under_way.len() + 1;
        let base = self.base * (100 + self.chance.draw() % (self.noise + 1)) / 100;
        let end = match self.kind {
            Kind::Shared => {
                let crowd = (in_flight as f64 / self.capacity as f64).max(1.0);
                self.now + (base as f64 * crowd) as u64
            }
            Kind::Queue => {
                self.free.resize(self.capacity, 0);
                let now = self.now;
                let next = self.free.iter_mut().min().unwrap();
                *next = now.max(*next) + base;
                *next
            }
        };
        let one = (end, self.now, u32::try_from(in_flight).unwrap());
        self.under_way.push(Reverse(one));
    }

    /// Lets so many seconds go by in which so many always want to ask.
    fn run(&mut self, seconds: u64, workers: usize) -> Seen {
        let until = self.now + seconds * 1_000_000;
        let (mut least, mut most, mut answered) = (u32::MAX, 0, 0);
        let (mut sum, mut from) = (0.0, self.now);
        loop {
            while self.under_way.len() < workers.min(self.concurrency.limit() as usize) {
                self.send();
            }
            let Some(Reverse((end, _, _))) = self.under_way.peek() else {
                break;
            };
            if *end > until {
                break;
            }
            let Some(Reverse((end, begun, in_flight))) = self.under_way.pop() else {
                break;
            };
            self.now = end;
            let limit = self.concurrency.limit();
            sum += f64::from(limit) * (end - from) as f64;
            from = end;
            let took = Duration::from_micros(end - begun);
            self.concurrency.record(took, in_flight, at(end));
            let limit = self.concurrency.limit();
            (least, most) = (least.min(limit), most.max(limit));
            answered += 1;
        }
        let limit = self.concurrency.limit();
        sum += f64::from(limit) * (until - from) as f64;
        self.now = until;
        Seen {
            least: least.min(limit),
            mean: sum / (seconds * 1_000_000) as f64,
            most: most.max(limit),
            answered,
        }
    }
}

#[test]
fn bounds_hold_whatever_they_are() {
    for (least, most, limits) in [
        (1, 64, (1, 64)),
        (0, 0, (1, 1)),
        (8, 8, (8, 8)),
        (9, 8, (8, 8)),
        (2, u32::MAX, (2, u32::MAX)),
    ] {
        let mut concurrency = Concurrency::new(least, most);
        assert_eq!(concurrency.limit(), limits.1, "begins at most");
        for second in 0..200 {
            concurrency.overloaded(at(second * 1_000_000));
        }
        assert_eq!(concurrency.limit(), limits.0, "{least} to {most}");
    }
}

#[test]
fn a_reload_takes_the_limit_along() {
    let mut concurrency = Concurrency::new(4, 64);
    concurrency.bound(4, 100);
    assert_eq!(concurrency.limit(), 100, "nothing has lowered it");
    concurrency.bound(4, 50);
    assert_eq!(concurrency.limit(), 50);
    concurrency.overloaded(at(0));
    assert_eq!(concurrency.limit(), 35);
    concurrency.bound(4, 100);
    assert_eq!(concurrency.limit(), 35, "what is learned stays");
    concurrency.bound(40, 100);
    assert_eq!(concurrency.limit(), 40);
    concurrency.bound(7, 7);
    assert_eq!(concurrency.limit(), 7);
}

#[test]
fn what_fails_together_counts_once() {
    let mut concurrency = Concurrency::new(1, 100);
    for (millis, limit) in [
        (0, 70),
        (10, 70),
        (249, 70),
        (250, 49),
        (300, 49),
        (500, 34),
    ] {
        concurrency.overloaded(at(millis * 1000));
        assert_eq!(concurrency.limit(), limit, "{millis} ms");
    }
    // Where answers take a second, so does it take two to see what has helped.
    let mut concurrency = Concurrency::new(1, 100);
    let now = answers(&mut concurrency, 0, 100, 1000, 1);
    for (millis, limit) in [(0, 70), (1900, 70), (2100, 49)] {
        concurrency.overloaded(at(now + millis * 1000));
        assert_eq!(concurrency.limit(), limit, "{millis} ms");
    }
}

#[test]
fn a_window_has_ten_answers_and_a_quarter_of_a_second() {
    let limit_after = |count: u64, apart: u64| {
        let mut concurrency = Concurrency::new(1, 64);
        // The window before has just ended.
        let now = answers(&mut concurrency, 0, 26, 10, 64);
        for time in 1..=count {
            let now = at(now + 1_000_000 + time * apart * 1000);
            concurrency.record(Duration::from_millis(100), 64, now);
        }
        concurrency.limit()
    };
    for (count, apart, limit) in [(9, 100, 64), (10, 100, 32), (200, 1, 64), (251, 1, 32)] {
        assert_eq!(
            limit_after(count, apart),
            limit,
            "{count}, {apart} ms apart"
        );
    }
}

#[test]
fn what_was_sent_before_a_change_does_not_count() {
    let mut concurrency = Concurrency::new(1, 64);
    let now = answers(&mut concurrency, 0, 100, 10, 64);
    let now = answers(&mut concurrency, now, 30, 1000, 64);
    assert_eq!(concurrency.limit(), 32);
    // All of these were on their way when it fell.
    let now = answers(&mut concurrency, now, 90, 1000, 64);
    assert_eq!(concurrency.limit(), 32);
    answers(&mut concurrency, now, 60, 500, 32);
    assert_eq!(concurrency.limit(), 16);
}

#[test]
fn a_few_that_take_long_are_no_overload() {
    let mut concurrency = Concurrency::new(1, 64);
    for time in 0..10_000 {
        let took = if time % 10 < 3 { 3000 } else { 30 };
        concurrency.record(Duration::from_millis(took), 64, at(time * 5000));
    }
    assert_eq!(concurrency.limit(), 64);
}

#[test]
fn it_comes_to_what_the_server_can_do() {
    for kind in [Kind::Shared, Kind::Queue] {
        for (base, noise) in [(5_000, 0), (20_000, 50), (100_000, 0), (100_000, 100)] {
            for quiet_before in [false, true] {
                let mut world = World::new(Concurrency::new(1, 64), kind, base, 4);
                world.noise = noise;
                if quiet_before {
                    world.run(30, 2);
                    assert_eq!(world.concurrency.limit(), 64);
                }
                world.run(40, 200);
                let seen = world.run(60, 200);
                let case = format!("{kind:?} {base} {noise} {quiet_before}: {seen:?}");
                assert!((3.9..=12.0).contains(&seen.mean), "{case}");
                assert!(seen.most <= 16, "{case}");
                // And hardly anything of what it can do is lost.
                let mean = base as f64 * (1.0 + noise as f64 / 200.0);
                let whole = 60e6 * 4.0 / mean;
                assert!(seen.answered as f64 > whole * 0.88, "{case} of {whole}");
            }
        }
    }
}

#[test]
fn it_recovers_when_the_overload_is_over() {
    for kind in [Kind::Shared, Kind::Queue] {
        let mut world = World::new(Concurrency::new(1, 64), kind, 50_000, 4);
        world.run(60, 200);
        world.capacity = 40;
        world.run(30, 200);
        let seen = world.run(30, 200);
        assert!(seen.mean >= 36.0, "{kind:?} {seen:?}");
        assert!(
            seen.answered as f64 > 30.0 * 40.0 / 0.05 * 0.88,
            "{kind:?} {seen:?}"
        );
    }
}

#[test]
fn other_work_that_takes_longer_is_accepted() {
    for times in [3, 5, 20] {
        let mut world = World::new(Concurrency::new(1, 64), Kind::Shared, 20_000, 64);
        assert_eq!(world.run(30, 200).least, 64);
        world.base *= times;
        let seen = world.run(60, 200);
        assert!(seen.least >= 16, "{times}: {seen:?}");
        assert!(world.run(10, 200).least >= 60, "{times}");
    }
}

#[test]
fn little_load_is_not_starved() {
    // Three are under way all the time; then everything takes ten times as long.
    let mut concurrency = Concurrency::new(1, 64);
    let now = answers(&mut concurrency, 0, 1000, 20, 3);
    assert_eq!(concurrency.limit(), 64, "and it did not rise");
    let now = answers(&mut concurrency, now, 3000, 200, 3);
    assert_eq!(concurrency.limit(), 6);
    let reference = concurrency.reference().unwrap();
    assert!(reference > Duration::from_millis(100), "{reference:?}");
    // It is accepted by now, so that more may be sent as soon as they come.
    answers(&mut concurrency, now, 6000, 200, 6);
    assert!(concurrency.limit() > 6);
}

#[test]
fn what_is_held_back_counts_as_used() {
    for (held_back, rises) in [(true, true), (false, false)] {
        let mut concurrency = Concurrency::new(1, 64);
        concurrency.overloaded(at(0));
        let low = concurrency.limit();
        // Half of it is under way: more than that one client may not hold.
        for time in 1..200 {
            if held_back {
                concurrency.held_back();
            }
            let now = at(5_000_000 + time * 10_000);
            concurrency.record(Duration::from_millis(20), low / 2, now);
        }
        assert_eq!(concurrency.limit() > low, rises, "{concurrency:?}");
    }
}

proptest! {
    /// Whatever is recorded, the limit is within its bounds.
    #[test]
    fn it_stays_within_bounds(
        least in 0_u32..20,
        most in 0_u32..200,
        steps in proptest::collection::vec(
            (0_u64..200, 0_u64..100_000, 0_u32..250, 0_u32..40), 1..60,
        ),
    ) {
        let mut concurrency = Concurrency::new(least, most);
        let bounds = least.clamp(1, most.max(1))..=most.max(1);
        let mut now = 0;
        for (pause, took, crowd, times) in steps {
            if times == 0 {
                concurrency.overloaded(at(now));
            }
            for _ in 0..times {
                now += pause * 1000;
                let took = Duration::from_millis(took * u64::from(crowd) / 100);
                concurrency.record(took, crowd, at(now));
                prop_assert!(bounds.contains(&concurrency.limit()), "{concurrency:?}");
            }
        }
    }

    /// What is not used does not rise.
    #[test]
    fn it_does_not_rise_unused(
        took in proptest::collection::vec(1_u64..1000, 100..600),
        crowd in 1_u32..18,
    ) {
        let mut concurrency = Concurrency::new(1, 64);
        for second in 0..3 {
            concurrency.overloaded(at(second * 2_500_000));
        }
        prop_assert_eq!(concurrency.limit(), 21);
        let mut before = 21;
        for (time, took) in took.into_iter().enumerate() {
            let now = at(20_000_000 + time as u64 * 20_000);
            concurrency.record(Duration::from_millis(took), crowd, now);
            let limit = concurrency.limit();
            prop_assert!(limit <= before && limit >= (crowd * 2).min(21), "{limit}");
            before = limit;
        }
    }

    /// Answers that all take equally long, or half as long again by chance, do
    /// not lower it, however many are under way.
    #[test]
    fn even_answers_do_not_lower_it(
        base in 1_u64..2_000_000,
        noise in 0_u64..=50,
        seed in any::<u64>(),
        most in 2_u32..300,
    ) {
        let mut concurrency = Concurrency::new(1, most);
        let mut chance = Chance::new(seed);
        for time in 0..2000 {
            let took = base * (100 + chance.draw() % (noise + 1)) / 100;
            let crowd = 1 + (chance.draw() % u64::from(most)) as u32;
            concurrency.record(Duration::from_micros(took), crowd, at(time * 7000));
            prop_assert_eq!(concurrency.limit(), most);
        }
    }
}
