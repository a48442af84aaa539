//! How the limit moves, in a simulation of a server whose response times grow with the
//! requests in flight beyond its capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

fn at(micros: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_micros(micros)
}

/// Records responses of `took` milliseconds, one every 10 ms, with `in_flight` requests
/// in flight. Returns the time of the last one, in microseconds.
fn answers(concurrency: &mut Concurrency, from: u64, times: u64, took: u64, crowd: u32) -> u64 {
    for time in 1..=times {
        let now = at(from + time * 10_000);
        concurrency.record(Duration::from_millis(took), crowd, now);
    }
    from + times * 10_000
}

/// How a server distributes its capacity.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Response times grow with the requests in flight.
    Shared,
    /// Requests are processed in their order, `capacity` at a time.
    Queue,
}

/// A server, clients that send as often as the limit allows, and a clock.
struct Simulation {
    concurrency: Concurrency,
    kind: Kind,
    /// In microseconds.
    base: u64,
    capacity: usize,
    /// The random variation of response times: up to this percentage more.
    noise: u64,
    random: fastrand::Rng,
    now: u64,
    /// For each request in flight: its end, its beginning, and the requests in flight then.
    in_flight: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// For `Queue`: when each worker is free.
    free: Vec<u64>,
}

/// The limits and responses of a run.
#[derive(Clone, Copy, Debug)]
struct Seen {
    least: u32,
    mean: f64,
    most: u32,
    answered: u64,
}

impl Simulation {
    fn new(concurrency: Concurrency, kind: Kind, base: u64, capacity: usize) -> Self {
        Self {
            concurrency,
            kind,
            base,
            capacity,
            noise: 0,
            random: fastrand::Rng::with_seed(1),
            now: 0,
            in_flight: BinaryHeap::new(),
            free: Vec::new(),
        }
    }

    fn send(&mut self) {
        let crowd = self.in_flight.len() + 1;
        let base = self.base * (100 + self.random.u64(..=self.noise)) / 100;
        let end = match self.kind {
            Kind::Shared => {
                let slower = (crowd as f64 / self.capacity as f64).max(1.0);
                self.now + (base as f64 * slower) as u64
            }
            Kind::Queue => {
                self.free.resize(self.capacity, 0);
                let now = self.now;
                let next = self.free.iter_mut().min().unwrap();
                *next = now.max(*next) + base;
                *next
            }
        };
        let one = (end, self.now, u32::try_from(crowd).unwrap());
        self.in_flight.push(Reverse(one));
    }

    /// Runs for this many seconds with this many clients that always have a request.
    fn run(&mut self, seconds: u64, workers: usize) -> Seen {
        let until = self.now + seconds * 1_000_000;
        let (mut least, mut most, mut answered) = (u32::MAX, 0, 0);
        let (mut sum, mut from) = (0.0, self.now);
        loop {
            while self.in_flight.len() < workers.min(self.concurrency.limit() as usize) {
                self.send();
            }
            let Some(Reverse((end, _, _))) = self.in_flight.peek() else {
                break;
            };
            if *end > until {
                break;
            }
            let Some(Reverse((end, begun, in_flight))) = self.in_flight.pop() else {
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
fn the_limit_is_within_any_bounds() {
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
fn a_reload_keeps_the_limit_within_new_bounds() {
    let mut concurrency = Concurrency::new(4, 64);
    concurrency.bound(4, 100);
    assert_eq!(concurrency.limit(), 100, "nothing has lowered it");
    concurrency.bound(4, 50);
    assert_eq!(concurrency.limit(), 50);
    concurrency.overloaded(at(0));
    assert_eq!(concurrency.limit(), 35);
    concurrency.bound(4, 100);
    assert_eq!(concurrency.limit(), 35, "it is kept");
    concurrency.bound(40, 100);
    assert_eq!(concurrency.limit(), 40);
    concurrency.bound(7, 7);
    assert_eq!(concurrency.limit(), 7);
}

#[test]
fn simultaneous_failures_count_once() {
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
    // With response times of a second, an effect is visible after two seconds.
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
fn requests_sent_before_a_change_do_not_count() {
    let mut concurrency = Concurrency::new(1, 64);
    let now = answers(&mut concurrency, 0, 100, 10, 64);
    let now = answers(&mut concurrency, now, 30, 1000, 64);
    assert_eq!(concurrency.limit(), 32);
    // All of these were in flight when it fell.
    let now = answers(&mut concurrency, now, 90, 1000, 64);
    assert_eq!(concurrency.limit(), 32);
    answers(&mut concurrency, now, 60, 500, 32);
    assert_eq!(concurrency.limit(), 16);
}

#[test]
fn a_few_slow_responses_are_no_overload() {
    let mut concurrency = Concurrency::new(1, 64);
    for time in 0..10_000 {
        let took = if time % 10 < 3 { 3000 } else { 30 };
        concurrency.record(Duration::from_millis(took), 64, at(time * 5000));
    }
    assert_eq!(concurrency.limit(), 64);
}

#[test]
fn the_limit_converges_to_the_capacity() {
    for kind in [Kind::Shared, Kind::Queue] {
        for (base, noise) in [(5_000, 0), (20_000, 50), (100_000, 0), (100_000, 100)] {
            for quiet_before in [false, true] {
                let mut simulation = Simulation::new(Concurrency::new(1, 64), kind, base, 4);
                simulation.noise = noise;
                if quiet_before {
                    simulation.run(30, 2);
                    assert_eq!(simulation.concurrency.limit(), 64);
                }
                simulation.run(40, 200);
                let seen = simulation.run(60, 200);
                let case = format!("{kind:?} {base} {noise} {quiet_before}: {seen:?}");
                assert!((3.9..=12.0).contains(&seen.mean), "{case}");
                assert!(seen.most <= 16, "{case}");
                // Little throughput is lost.
                let mean = base as f64 * (1.0 + noise as f64 / 200.0);
                let whole = 60e6 * 4.0 / mean;
                assert!(seen.answered as f64 > whole * 0.88, "{case} of {whole}");
            }
        }
    }
}

#[test]
fn the_limit_recovers_after_an_overload() {
    for kind in [Kind::Shared, Kind::Queue] {
        let mut simulation = Simulation::new(Concurrency::new(1, 64), kind, 50_000, 4);
        simulation.run(60, 200);
        simulation.capacity = 40;
        simulation.run(30, 200);
        let seen = simulation.run(30, 200);
        assert!(seen.mean >= 36.0, "{kind:?} {seen:?}");
        assert!(
            seen.answered as f64 > 30.0 * 40.0 / 0.05 * 0.88,
            "{kind:?} {seen:?}"
        );
    }
}

#[test]
fn a_change_to_slower_responses_is_accepted() {
    for times in [3, 5, 20] {
        let mut simulation = Simulation::new(Concurrency::new(1, 64), Kind::Shared, 20_000, 64);
        assert_eq!(simulation.run(30, 200).least, 64);
        simulation.base *= times;
        let seen = simulation.run(60, 200);
        assert!(seen.least >= 16, "{times}: {seen:?}");
        assert!(simulation.run(10, 200).least >= 60, "{times}");
    }
}

#[test]
fn little_load_is_not_starved() {
    // Three are always in flight; then every response takes ten times as long.
    let mut concurrency = Concurrency::new(1, 64);
    let now = answers(&mut concurrency, 0, 1000, 20, 3);
    assert_eq!(concurrency.limit(), 64, "and it did not rise");
    let now = answers(&mut concurrency, now, 3000, 200, 3);
    assert_eq!(concurrency.limit(), 6);
    let reference = concurrency.reference().unwrap();
    assert!(reference > Duration::from_millis(100), "{reference:?}");
    // That is accepted by now: the limit rises as soon as it is used.
    answers(&mut concurrency, now, 6000, 200, 6);
    assert!(concurrency.limit() > 6);
}

#[test]
fn a_limit_held_back_by_client_shares_counts_as_used() {
    for (held_back, rises) in [(true, true), (false, false)] {
        let mut concurrency = Concurrency::new(1, 64);
        concurrency.overloaded(at(0));
        let low = concurrency.limit();
        // Half of it is in flight, which is the share of one client.
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
    /// The limit is within its bounds for any responses.
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

    /// A limit that is not used does not rise.
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

    /// Equal response times, or times that vary at random by half, do not lower the limit,
    /// whatever the number of requests in flight.
    #[test]
    fn even_answers_do_not_lower_it(
        base in 1_u64..2_000_000,
        noise in 0_u64..=50,
        seed in any::<u64>(),
        most in 2_u32..300,
    ) {
        let mut concurrency = Concurrency::new(1, most);
        let mut random = fastrand::Rng::with_seed(seed);
        for time in 0..2000 {
            let took = base * (100 + random.u64(..=noise)) / 100;
            let crowd = random.u32(1..=most);
            concurrency.record(Duration::from_micros(took), crowd, at(time * 7000));
            prop_assert_eq!(concurrency.limit(), most);
        }
    }
}
