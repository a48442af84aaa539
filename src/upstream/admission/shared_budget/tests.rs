//! What several upstreams may send out of one budget.

use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, proptest};

use super::*;
use crate::clock::Clock;
use crate::upstream::Rate;

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

/// 0 for any number.
fn terms(per_minute: u32, per_second: u32) -> BudgetDemand {
    let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
    BudgetDemand {
        rates: Rates {
            per_minute: rate(per_minute),
            per_second: rate(per_second),
        },
        probes: 0,
    }
}

fn payer(name: &str) -> BudgetOwner {
    BudgetOwner::Key(HeaderValue::from_str(name).unwrap())
}

/// Upstreams that have a key, so many of them.
fn sharing(upstreams: usize, terms: BudgetDemand) -> Vec<Arc<BudgetHandle>> {
    let (budgets, line) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let holder = |_| {
        let holder = budgets.handle(&payer("a-key"), &line, at(0));
        holder.join(terms);
        holder
    };
    (0..upstreams).map(holder).collect()
}

/// How many requests an upstream can take at a moment.
fn taken(holder: &BudgetHandle, now: Moment) -> usize {
    let takes = std::iter::from_fn(|| holder.take(now, Reserve::Nothing).ok());
    takes.take(10_000).count()
}

#[test]
fn whose_budget_a_server_without_a_key_is() {
    for (url, expected) in [
        ("http://127.0.0.1:3999/runes", "127.0.0.1:3999"),
        ("http://API.example", "api.example:80"),
        ("https://api.example/", "api.example:443"),
        ("http://api.example:443", "api.example:443"),
        ("http://[::1]:3999", "[::1]:3999"),
    ] {
        let payer = BudgetOwner::server(&url.parse().unwrap());
        assert_eq!(payer, BudgetOwner::Server(expected.into()), "{url}");
    }
    let shown = format!("{:?}", payer("s3cret"));
    assert_eq!(shown, "a key [redacted]");
}

#[test]
fn how_much_of_a_second_hanging_upstreams_leave() {
    for (upstreams, per_second, expected) in [
        (1, 20, &[20][..]),
        (2, 20, &[15, 5]),
        (2, 4, &[3, 1]),
        (2, 3, &[2, 1]),
        (2, 2, &[1, 1]),
        // With fewer than there are upstreams, some get nothing beside others.
        (2, 1, &[1, 0]),
        (3, 20, &[7, 7, 6]),
        (3, 3, &[1, 1, 1]),
        (4, 20, &[5, 5, 5, 5]),
        (9, 20, &[1, 1, 1, 1, 1, 1, 1, 1, 1]),
        // Any number.
        (2, 0, &[10_000, 10_000]),
    ] {
        let holders = sharing(upstreams, terms(0, per_second));
        let found: Vec<_> = holders.iter().map(|holder| taken(holder, at(0))).collect();
        assert_eq!(
            found, expected,
            "{upstreams} upstreams, {per_second} a second"
        );
    }
}

/// A regression: where the minute alone was limited, an upstream that did not run
/// held all of it for as long as that lasted.
#[test]
fn how_much_of_a_minute_hanging_upstreams_leave() {
    for (upstreams, per_minute, per_second, expected) in [
        (1, 30, 0, &[30][..]),
        (2, 30, 0, &[22, 8]),
        (2, 30, 60, &[22, 8]),
        (2, 500, 20, &[15, 5]),
        (3, 30, 0, &[11, 11, 8]),
        (2, 1, 0, &[1, 0]),
    ] {
        let holders = sharing(upstreams, terms(per_minute, per_second));
        let found: Vec<_> = holders.iter().map(|holder| taken(holder, at(0))).collect();
        assert_eq!(
            found, expected,
            "{upstreams}: {per_minute} a minute, {per_second} a second"
        );
    }
}

#[test]
fn an_upstream_that_hangs_waits_for_its_own() {
    let holders = sharing(2, terms(500, 4));
    let [hangs, answers] = &holders[..] else {
        panic!("there are two");
    };
    let first = hangs.take(at(0), Reserve::Nothing).unwrap();
    for _ in 0..2 {
        hangs.take(at(0), Reserve::Nothing).unwrap();
    }
    let wait = |holder: &BudgetHandle, now| holder.wait(at(now), Reserve::Nothing);
    assert_eq!(wait(hangs, 5_000), Some(BudgetWait::UntilRequestEnds));
    let quick = answers.take(at(5_000), Reserve::Nothing).unwrap();
    answers.end(quick, at(5_100));
    assert_eq!(
        wait(answers, 5_100),
        Some(BudgetWait::For(Duration::from_millis(1_005)))
    );
    // One that is given up, or comes late, counts for as long as it may be in
    // the second's window.
    hangs.give_up(at(6_000));
    assert_eq!(
        wait(hangs, 6_500),
        Some(BudgetWait::For(Duration::from_millis(1_505)))
    );
    assert_eq!(wait(answers, 6_500), None);
    assert!(hangs.take(at(8_005), Reserve::Nothing).is_ok());
    hangs.end(first, at(9_000));
    assert!(hangs.take(at(11_004), Reserve::Nothing).is_err());
    assert!(hangs.take(at(11_005), Reserve::Nothing).is_ok());
}

#[test]
fn what_others_leave_is_there_when_they_are_gone() {
    let mut holders = sharing(3, terms(500, 20));
    assert_eq!(taken(&holders[0], at(0)), 7);
    assert_eq!(holders[0].max_per_second(), Some(7));
    // One that is gone counts for as long as its requests do.
    let late = holders[1].take(at(0), Reserve::Nothing).unwrap();
    holders[1].leave();
    assert_eq!(taken(&holders[0], at(0)), 0);
    holders[1].end(late, at(100));
    assert_eq!(taken(&holders[0], at(100)), 8);
    holders.truncate(1);
    assert_eq!(taken(&holders[0], at(100)), 4);
    assert_eq!(holders[0].max_per_second(), Some(20));
}

#[test]
fn the_stricter_rates_hold() {
    let holders = sharing(2, terms(0, 0));
    assert_eq!(holders[0].remaining(at(0)), None);
    holders[1].join(terms(30, 0));
    assert_eq!(holders[0].remaining(at(0)), Some(30));
    holders[0].join(terms(50, 2));
    assert_eq!(holders[1].per_minute(), Some(30));
    assert_eq!(taken(&holders[0], at(0)), 1);
    // The last rates hold for what is sent yet.
    holders[1].leave();
    assert_eq!(holders[1].per_minute(), Some(50));
    holders[0].leave();
    assert_eq!(holders[0].per_minute(), Some(50));
}

#[test]
fn the_probes_of_all_upstreams_have_a_share() {
    let holders = sharing(2, terms(100, 0));
    for (holder, probes) in holders.iter().zip([4, 6]) {
        holder.set_probes(probes);
    }
    let mut now = 0;
    let mut count = 0;
    while now < 59_000 {
        if let Ok(counted) = holders[0].take(at(now), Reserve::Probes(0)) {
            holders[0].end(counted, at(now));
            count += 1;
        }
        now += 10;
    }
    assert_eq!((count, holders[1].remaining(at(now))), (90, Some(10)));
}

#[test]
fn a_budget_outlives_its_holders_by_an_hour() {
    let (budgets, line) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let hold = |name: &str, millis| {
        let holder = budgets.handle(&payer(name), &line, at(millis));
        holder.join(terms(20, 0));
        holder
    };
    let hour = 3_600_000;
    let first = hold("first", 0);
    taken(&first, at(0));
    drop(first);
    // The first of these takes note that it is released.
    for (millis, name, left) in [
        (1, "second", 20),
        (hour, "first", 0),
        (hour + 1, "third", 20),
    ] {
        assert_eq!(
            hold(name, millis).remaining(at(millis)),
            Some(left),
            "{name}"
        );
    }
    // The first has a request under way, so that it is never forgotten.
    hold("fourth", 9 * hour);
    assert_eq!(hold("first", 9 * hour).remaining(at(9 * hour)), Some(0));
    hold("fourth", 20 * hour);
    hold("fourth", 21 * hour);
    assert_eq!(budgets.len(), 2, "the others are forgotten");
}

#[test]
fn there_are_no_more_budgets_than_so_many() {
    let (budgets, line) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let hold = |name: usize, millis| {
        let holder = budgets.handle(&payer(&name.to_string()), &line, at(millis));
        holder.join(terms(20, 0));
        holder
    };
    for name in 0..MOST + 50 {
        let holder = hold(name, name as u64);
        if name < 10 {
            let counted = holder.take(at(name as u64), Reserve::Nothing).unwrap();
            holder.end(counted, at(name as u64));
        }
    }
    assert_eq!(budgets.len(), MOST);
    for (name, left) in [(0, 19), (9, 19), (MOST, 20)] {
        assert_eq!(hold(name, 2_000).remaining(at(2_000)), Some(left), "{name}");
    }
}

proptest! {
    /// An upstream that answers gets its turn within a second, however many
    /// others hang beside it: they take as much as they can get, and give up, or
    /// are answered late, at any moment.
    #[test]
    fn an_upstream_that_answers_is_not_starved(
        upstreams in 2_usize..6,
        more in 0_u32..30,
        steps in vec((0_usize..5, 0_u64..400, any::<bool>(), 0_u64..300), 50..300),
    ) {
        let per_second = u32::try_from(upstreams).unwrap() + more;
        let holders = sharing(upstreams, terms(0, per_second));
        let (answers, hanging) = holders.split_last().unwrap();
        let mut hung: Vec<Vec<Counted>> = hanging.iter().map(|_| Vec::new()).collect();
        let mut now = 0;
        // When the one that answers asked, and when it is answered.
        let (mut asked, mut under_way) = (0, None);
        for (one, pause, is_given_up, takes) in steps {
            let then = now + pause;
            while now < then {
                now += 10;
                for (holder, hung) in hanging.iter().zip(&mut hung) {
                    while let Ok(counted) = holder.take(at(now), Reserve::Nothing) {
                        hung.push(counted);
                    }
                }
                match under_way {
                    Some((counted, end)) if end <= now => {
                        answers.end(counted, at(now));
                        (asked, under_way) = (now, None);
                    }
                    Some(_) => {}
                    None => match answers.take(at(now), Reserve::Probes(0)) {
                        Ok(counted) => under_way = Some((counted, now + takes)),
                        Err(wait) => prop_assert!(
                            now - asked <= 1_005,
                            "{wait:?} after {} ms",
                            now - asked
                        ),
                    },
                }
            }
            let one = one % hanging.len();
            // One that hangs has done so for a second at the least.
            let hangs = |counted: &Counted| at(now).since(counted.at) >= Duration::from_secs(1);
            if let Some(place) = hung[one].iter().position(hangs) {
                let counted = hung[one].remove(place);
                match is_given_up {
                    true => hanging[one].give_up(at(now)),
                    false => hanging[one].end(counted, at(now)),
                }
            }
        }
    }
}
