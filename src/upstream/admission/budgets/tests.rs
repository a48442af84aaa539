//! How several upstreams share one budget.

use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, proptest};

use super::*;
use crate::clock::Clock;
use crate::upstream::Rates;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::reserve::Reserve;
use crate::upstream::admission::shared_budget::{BudgetDemand, BudgetWait};

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
}

/// 0 stands for any number.
fn demand(per_minute: u32, per_second: u32) -> BudgetDemand {
    BudgetDemand {
        rates: Rates::of(per_minute, per_second),
        probes: 0,
    }
}

fn owner(name: &str) -> BudgetOwner {
    BudgetOwner::Key(HeaderValue::from_str(name).unwrap())
}

/// The handles of some upstreams that share a key.
fn sharing(upstreams: usize, demand: BudgetDemand) -> Vec<Arc<BudgetHandle>> {
    let (budgets, queue) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let handle = |_| {
        let handle = budgets.handle(&owner("a-key"), &queue, at(0));
        handle.join(demand);
        handle
    };
    (0..upstreams).map(handle).collect()
}

/// How many requests an upstream can take at once.
fn taken(handle: &BudgetHandle, now: Moment) -> usize {
    let takes = std::iter::from_fn(|| handle.take(now, Reserve::Nothing).ok());
    takes.take(10_000).count()
}

#[test]
fn replicas_name_a_budget_alike_and_show_nothing_of_the_key() {
    let name = owner("s3cret").shared_name("ordgate");
    // HMAC-SHA256 with the key, of each text after its length; the first 16 bytes.
    assert_eq!(name, "b68c9a9d3d853c7e27a1e3ece699f311");
    assert_ne!(name, owner("s3cret").shared_name("other"));
    assert_ne!(name, owner("s3cret2").shared_name("ordgate"));
    let server = BudgetOwner::Server("s3cret".into());
    assert_ne!(name, server.shared_name("ordgate"));
    let other = BudgetOwner::Server("other".into());
    assert_ne!(server.shared_name("ordgate"), other.shared_name("ordgate"));
}

#[test]
fn a_replica_without_a_state_directory_waits_a_window_out() {
    let clock = Clock::manual();
    let replicas = Replicas {
        count: 2.try_into().unwrap(),
        floor_percent: 100,
    };
    let budgets = Budgets::unknown_before(clock.now(), "it is so").shared(replicas, clock.clone());
    let queue = AdmissionQueue::new(10, clock.clone());
    let handle = budgets.handle(&owner("a-key"), &queue, clock.now());
    handle.join(demand(60, 8));
    assert_eq!(taken(&handle, clock.now()), 0);
    let unknown = budgets.unknown_spending(clock.now());
    assert_eq!(unknown, Some((LONGEST_WAIT, "it is so")));
    clock.advance(LONGEST_WAIT);
    assert_eq!(budgets.unknown_spending(clock.now()), None);
    assert_eq!(taken(&handle, clock.now()), 4, "half of 8");
    // A key that a reload adds is as old as the process.
    let added = budgets.handle(&owner("other"), &queue, clock.now());
    added.join(demand(60, 8));
    assert_eq!(taken(&added, clock.now()), 4);
    assert_eq!(budgets.all_named("ordgate").len(), 2);
}

#[test]
fn without_a_key_the_budget_belongs_to_host_and_port() {
    for (url, expected) in [
        ("http://127.0.0.1:3999/runes", "127.0.0.1:3999"),
        ("http://API.example", "api.example:80"),
        ("https://api.example/", "api.example:443"),
        ("http://api.example:443", "api.example:443"),
        ("http://[::1]:3999", "[::1]:3999"),
    ] {
        let owner = BudgetOwner::server(&url.parse().unwrap());
        assert_eq!(owner, BudgetOwner::Server(expected.into()), "{url}");
    }
    let shown = format!("{:?}", owner("s3cret"));
    assert_eq!(shown, "a key [redacted]");
}

#[test]
fn hanging_upstreams_leave_a_quarter_of_each_second() {
    for (upstreams, per_second, expected) in [
        (1, 20, &[20][..]),
        (2, 20, &[15, 5]),
        (2, 4, &[3, 1]),
        (2, 3, &[2, 1]),
        (2, 2, &[1, 1]),
        // With a limit below the number of upstreams, some get nothing.
        (2, 1, &[1, 0]),
        (3, 20, &[7, 7, 6]),
        (3, 3, &[1, 1, 1]),
        (4, 20, &[5, 5, 5, 5]),
        (9, 20, &[1, 1, 1, 1, 1, 1, 1, 1, 1]),
        // Unlimited.
        (2, 0, &[10_000, 10_000]),
    ] {
        let handles = sharing(upstreams, demand(0, per_second));
        let found: Vec<_> = handles.iter().map(|handle| taken(handle, at(0))).collect();
        assert_eq!(
            found, expected,
            "{upstreams} upstreams, {per_second} a second"
        );
    }
}

/// Regression: where only the minute was limited, an upstream that was down held
/// all of it meanwhile.
#[test]
fn hanging_upstreams_leave_a_quarter_of_each_minute() {
    for (upstreams, per_minute, per_second, expected) in [
        (1, 30, 0, &[30][..]),
        (2, 30, 0, &[22, 8]),
        (2, 30, 60, &[22, 8]),
        (2, 500, 20, &[15, 5]),
        (3, 30, 0, &[11, 11, 8]),
        (2, 1, 0, &[1, 0]),
    ] {
        let handles = sharing(upstreams, demand(per_minute, per_second));
        let found: Vec<_> = handles.iter().map(|handle| taken(handle, at(0))).collect();
        assert_eq!(
            found, expected,
            "{upstreams}: {per_minute} a minute, {per_second} a second"
        );
    }
}

#[test]
fn a_hanging_upstream_waits_for_its_own_requests() {
    let handles = sharing(2, demand(500, 4));
    let [hangs, answers] = &handles[..] else {
        panic!("there are two");
    };
    let first = hangs.take(at(0), Reserve::Nothing).unwrap();
    for _ in 0..2 {
        hangs.take(at(0), Reserve::Nothing).unwrap();
    }
    let wait = |handle: &BudgetHandle, now| handle.wait(at(now), Reserve::Nothing);
    assert_eq!(wait(hangs, 5_000), Some(BudgetWait::UntilRequestEnds));
    let quick = answers.take(at(5_000), Reserve::Nothing).unwrap();
    answers.end(quick, at(5_100));
    assert_eq!(
        wait(answers, 5_100),
        Some(BudgetWait::For(Duration::from_millis(1_005)))
    );
    // A request that is given up, or answered late, counts for a second's window
    // more.
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
fn the_share_grows_when_other_upstreams_leave() {
    let mut handles = sharing(3, demand(500, 20));
    assert_eq!(taken(&handles[0], at(0)), 7);
    assert_eq!(handles[0].max_per_second(), Some(7));
    // An upstream that left counts until its requests have ended.
    let late = handles[1].take(at(0), Reserve::Nothing).unwrap();
    handles[1].leave();
    assert_eq!(taken(&handles[0], at(0)), 0);
    handles[1].end(late, at(100));
    assert_eq!(taken(&handles[0], at(100)), 8);
    handles.truncate(1);
    assert_eq!(taken(&handles[0], at(100)), 4);
    assert_eq!(handles[0].max_per_second(), Some(20));
}

#[test]
fn the_strictest_rates_apply() {
    let handles = sharing(2, demand(0, 0));
    assert_eq!(handles[0].remaining(at(0)), None);
    handles[1].join(demand(30, 0));
    assert_eq!(handles[0].remaining(at(0)), Some(30));
    handles[0].join(demand(50, 2));
    assert_eq!(handles[1].per_minute(), Some(30));
    assert_eq!(taken(&handles[0], at(0)), 1);
    // The last rates apply to requests still sent.
    handles[1].leave();
    assert_eq!(handles[1].per_minute(), Some(50));
    handles[0].leave();
    assert_eq!(handles[0].per_minute(), Some(50));
}

#[test]
fn the_reserve_covers_the_probes_of_all_upstreams() {
    let handles = sharing(2, demand(100, 0));
    for (handle, probes) in handles.iter().zip([4, 6]) {
        handle.set_probes(probes);
    }
    let mut now = 0;
    let mut count = 0;
    while now < 59_000 {
        if let Ok(entry) = handles[0].take(at(now), Reserve::Probes(0)) {
            handles[0].end(entry, at(now));
            count += 1;
        }
        now += 10;
    }
    assert_eq!((count, handles[1].remaining(at(now))), (90, Some(10)));
}

#[test]
fn a_budget_outlives_its_last_handle_by_an_hour() {
    let (budgets, queue) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let join = |name: &str, millis| {
        let handle = budgets.handle(&owner(name), &queue, at(millis));
        handle.join(demand(20, 0));
        handle
    };
    let hour = 3_600_000;
    let first = join("first", 0);
    taken(&first, at(0));
    drop(first);
    // The first of these calls records that the budget is unused.
    for (millis, name, left) in [
        (1, "second", 20),
        (hour, "first", 0),
        (hour + 1, "third", 20),
    ] {
        assert_eq!(
            join(name, millis).remaining(at(millis)),
            Some(left),
            "{name}"
        );
    }
    // The first has requests in flight, so it is never forgotten.
    join("fourth", 9 * hour);
    assert_eq!(join("first", 9 * hour).remaining(at(9 * hour)), Some(0));
    join("fourth", 20 * hour);
    join("fourth", 21 * hour);
    assert_eq!(budgets.len(), 2, "the others are forgotten");
}

#[test]
fn the_number_of_unused_budgets_is_bounded() {
    let (budgets, queue) = (Budgets::new(), AdmissionQueue::new(10, Clock::manual()));
    let join = |name: usize, millis| {
        let handle = budgets.handle(&owner(&name.to_string()), &queue, at(millis));
        handle.join(demand(20, 0));
        handle
    };
    for name in 0..MAX_BUDGETS + 50 {
        let handle = join(name, name as u64);
        if name < 10 {
            let entry = handle.take(at(name as u64), Reserve::Nothing).unwrap();
            handle.end(entry, at(name as u64));
        }
    }
    assert_eq!(budgets.len(), MAX_BUDGETS);
    for (name, left) in [(0, 19), (9, 19), (MAX_BUDGETS, 20)] {
        assert_eq!(join(name, 2_000).remaining(at(2_000)), Some(left), "{name}");
    }
}

proptest! {
    /// An upstream that answers can send within a second, however many others
    /// hang: they take as much as they can, and are given up or answered late at
    /// any moment.
    #[test]
    fn an_upstream_that_answers_is_not_starved(
        upstreams in 2_usize..6,
        more in 0_u32..30,
        steps in vec((0_usize..5, 0_u64..400, any::<bool>(), 0_u64..300), 50..300),
    ) {
        let per_second = u32::try_from(upstreams).unwrap() + more;
        let handles = sharing(upstreams, demand(0, per_second));
        let (answers, hanging) = handles.split_last().unwrap();
        let mut hung: Vec<Vec<BudgetEntry>> = hanging.iter().map(|_| Vec::new()).collect();
        let mut now = 0;
        // When the answering upstream tried, and when its request ends.
        let (mut tried_at, mut in_flight) = (0, None);
        for (one, pause, is_given_up, takes) in steps {
            let then = now + pause;
            while now < then {
                now += 10;
                for (handle, hung) in hanging.iter().zip(&mut hung) {
                    while let Ok(entry) = handle.take(at(now), Reserve::Nothing) {
                        hung.push(entry);
                    }
                }
                match in_flight {
                    Some((entry, end)) if end <= now => {
                        answers.end(entry, at(now));
                        (tried_at, in_flight) = (now, None);
                    }
                    Some(_) => {}
                    None => match answers.take(at(now), Reserve::Probes(0)) {
                        Ok(entry) => in_flight = Some((entry, now + takes)),
                        Err(wait) => prop_assert!(
                            now - tried_at <= 1_005,
                            "{wait:?} after {} ms",
                            now - tried_at
                        ),
                    },
                }
            }
            let one = one % hanging.len();
            // A hanging request has taken at least a second.
            let hangs = |entry: &BudgetEntry| at(now).since(entry.taken_at()) >= Duration::from_secs(1);
            if let Some(place) = hung[one].iter().position(hangs) {
                let entry = hung[one].remove(place);
                match is_given_up {
                    true => hanging[one].give_up(at(now)),
                    false => hanging[one].end(entry, at(now)),
                }
            }
        }
    }
}

/// The digest of a name is computed once, since cooldowns and reports need all of them.
#[test]
fn the_name_of_a_budget_is_computed_once_for_each_prefix() {
    let (clock, budgets) = (Clock::manual(), Budgets::new());
    let queue = AdmissionQueue::new(1, clock.clone());
    let _handle = budgets.handle(&owner("s3cret"), &queue, clock.now());
    let name = |prefix| budgets.all_named(prefix)[0].0.clone();
    let (first, again, other) = (name("ordgate"), name("ordgate"), name("other"));
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(*first, *owner("s3cret").shared_name("ordgate"));
    assert_eq!(*other, *owner("s3cret").shared_name("other"));
    assert_eq!(name("ordgate"), first);
}
