//! A budget that replicas share.

use std::num::NonZeroU32;

use super::*;
use crate::upstream::admission::allowance::{self, BudgetUse, Grant, Replicas};
use crate::upstream::admission::limit_report::LimitWindow;
use crate::upstream::admission::restrictions::{COOLDOWNS, CooldownLeft, HostName};

struct Replica {
    budget: Arc<SharedBudget>,
    handle: Arc<BudgetHandle>,
    queue: Arc<AdmissionQueue>,
    clock: Clock,
}

impl Replica {
    /// One of two replicas, of a key with 40 requests a minute and 8 a second. Half of
    /// that is divided among them.
    fn start() -> Self {
        let clock = Clock::manual();
        let replicas = Replicas {
            count: NonZeroU32::new(2).unwrap(),
            floor_percent: 50,
        };
        let sharing = Sharing {
            replicas,
            clock: clock.clone(),
            has_cooldowns: Arc::default(),
        };
        let earlier = EarlierSpending::default();
        let budget = SharedBudget::new(None, &earlier, Some(&sharing), clock.now());
        let queue = AdmissionQueue::new(10, clock.clone());
        let handle = budget.handle(&queue);
        handle.join(BudgetDemand {
            rates: Rates::of(40, 8),
            probes: 0,
        });
        Self {
            budget,
            handle,
            queue,
            clock,
        }
    }

    fn take(&self) -> Result<BudgetEntry, BudgetWait> {
        self.handle.take(self.clock.now(), Reserve::Nothing)
    }

    /// Takes and answers requests as long as there is budget.
    fn exhaust(&self) -> usize {
        let takes = std::iter::from_fn(|| {
            let entry = self.take().ok()?;
            self.handle.end(entry, self.clock.now());
            Some(())
        });
        takes.count()
    }

    fn grant(&self, per_minute: usize, per_second: usize, lasts: u64) -> BudgetUse {
        let grant = |in_use: &BudgetUse, since_boot| {
            let grant = Grant {
                per_minute,
                per_second,
                until: since_boot + Duration::from_secs(lasts),
            };
            (grant, *in_use)
        };
        self.budget.update_grant(self.clock.now(), grant).unwrap()
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

#[test]
fn a_replica_has_its_floor_and_what_it_was_granted_until_the_lease_ends() {
    let replica = Replica::start();
    assert_eq!(replica.exhaust(), 2, "a quarter of 8 a second");
    replica.grant(6, 3, 3);
    assert_eq!(replica.exhaust(), 3);
    replica.pass(2_999);
    assert_eq!(
        replica.exhaust(),
        5,
        "those of the first second count no more"
    );
    assert_eq!(replica.handle.per_minute(), Some(16));
    replica.pass(1);
    // Nobody has looked since: the lease has ended all the same.
    assert_eq!(replica.handle.per_minute(), Some(10));
    assert!(replica.take().is_err());
    replica.pass(2_000);
    assert_eq!(
        replica.exhaust(),
        0,
        "ten count against the minute, which is the floor"
    );
    replica.grant(6, 3, 3);
    assert_eq!(replica.exhaust(), 5);
    // Lowering applies at once.
    replica.grant(0, 0, 3);
    assert_eq!(replica.handle.remaining(replica.clock.now()), Some(0));
}

/// A request that is denied does not wait, so that the queue does not show that more could
/// be used.
#[test]
fn a_keeper_sees_which_window_was_short_in_the_last_ten_seconds() {
    let short = |replica: &Replica| {
        let short = replica.grant(0, 0, 3).short;
        [short.minute, short.second]
    };
    let replica = Replica::start();
    assert_eq!(short(&replica), [false; 2]);
    assert_eq!(replica.exhaust(), 2);
    assert_eq!(short(&replica), [false, true]);
    assert!(replica.budget.is_short());
    replica.pass(9_999);
    assert_eq!(short(&replica), [false, true]);
    replica.pass(1);
    assert_eq!(short(&replica), [false; 2]);
    assert!(!replica.budget.is_short());
    for _ in 0..4 {
        assert_eq!(replica.exhaust(), 2);
        replica.pass(2_000);
    }
    replica.pass(10_000);
    assert_eq!(short(&replica), [false; 2]);
    // Half of the minute is used: that is all for a request ahead of clients.
    let now = replica.clock.now();
    assert!(replica.handle.take(now, Reserve::Half).is_err());
    assert_eq!(short(&replica), [false; 2]);
    assert_eq!(replica.exhaust(), 0);
    assert_eq!(short(&replica), [true, false], "ten were taken");
}

#[test]
fn a_keeper_sees_what_counts_when_it_changes_the_grant() {
    let replica = Replica::start();
    let entry = replica.take().unwrap();
    replica.pass(500);
    let second = replica.take().unwrap();
    replica.handle.end(entry, replica.clock.now());
    let in_use = replica.grant(1, 1, 3);
    let (minute, floor, reserve) = (Limits::of(40, 8), Limits::of(10, 2), Limits::of(20, 4));
    assert_eq!(
        (in_use.total, in_use.floor, in_use.reserve),
        (minute, floor, reserve)
    );
    let counted = |minute, second| allowance::WindowCounts { minute, second };
    assert_eq!(in_use.counted, counted(2, 2), "one is in flight");
    assert_eq!((in_use.busiest_second, in_use.waiting), (2, 0));
    replica.pass(30_000);
    assert_eq!(replica.grant(1, 1, 3).counted, counted(2, 1));
    replica.handle.give_up(replica.clock.now());
    replica.pass(999);
    assert_eq!(
        replica.grant(1, 1, 3).counted,
        counted(2, 1),
        "it may still arrive"
    );
    replica.pass(1_006);
    assert_eq!(replica.grant(1, 1, 3).counted, counted(2, 0));
    replica.pass(60_000);
    assert_eq!(replica.grant(1, 1, 3).counted, counted(0, 0));
    assert_eq!(second.number(), 2);
}

#[test]
fn other_rates_keep_the_parts() {
    let replica = Replica::start();
    replica.grant(6, 3, 3);
    replica.handle.join(BudgetDemand {
        rates: Rates::of(80, 0),
        probes: 0,
    });
    assert_eq!(replica.handle.per_minute(), Some(26));
    let allowance = replica.handle.allowance().unwrap();
    assert_eq!(allowance.floor.per_second, None, "any number");
    assert_eq!(allowance.granted.per_minute, 6);
    replica.pass(3_000);
    assert_eq!(replica.handle.per_minute(), Some(20));
}

#[test]
fn a_reported_limit_is_that_of_all_replicas() {
    let replica = Replica::start();
    replica.grant(10, 6, 3);
    let report = |window, remaining, seconds| ReportedLimit {
        window,
        remaining,
        valid_for: Duration::from_secs(seconds),
        end_is_known: true,
    };
    // Half of the minute is this replica's, and all of the second.
    let entry = replica.take().unwrap();
    let now = replica.clock.now();
    let minute = report(LimitWindow::Minute, 9, 30);
    replica.handle.apply_report(&[minute], entry, now);
    assert_eq!(replica.handle.remaining(now), Some(4));
    let second = report(LimitWindow::Second, 3, 1);
    replica.handle.apply_report(&[second], entry, now);
    assert_eq!(replica.handle.remaining(now), Some(3));
}

/// What is granted now does not say how much of an hour or a day is this replica's.
#[test]
fn of_a_long_limit_each_replica_has_the_same_part() {
    for (window, expected) in [
        (LimitWindow::Second, 40),
        (LimitWindow::Minute, 30),
        (LimitWindow::Hour, 20),
        (LimitWindow::Day, 20),
        (LimitWindow::Month, 20),
        (LimitWindow::Unnamed, 20),
    ] {
        let replica = Replica::start();
        replica.grant(20, 6, 3);
        let limit = ReportedLimit {
            window,
            remaining: 40,
            valid_for: Duration::from_secs(30),
            end_is_known: true,
        };
        let part = replica.budget.state().part_of(limit);
        assert_eq!(part.remaining, expected, "{window:?}");
    }
}

#[test]
fn lowered_rates_lower_what_was_granted() {
    let replica = Replica::start();
    replica.grant(30, 6, 3);
    assert_eq!(replica.handle.per_minute(), Some(40));
    for (rates, limits) in [
        (Rates::of(12, 3), (12, 3)),
        (Rates::of(20, 8), (20, 8)),
        (Rates::of(400, 80), (130, 26)),
    ] {
        replica.handle.join(BudgetDemand { rates, probes: 0 });
        let state = replica.budget.state();
        let found = (state.budget.per_minute(), state.budget.per_second());
        assert_eq!(found, (Some(limits.0), Some(limits.1)), "{rates:?}");
    }
}

#[test]
fn a_permit_grows_old_by_the_clock_that_is_never_suspended() {
    let replica = Replica::start();
    let entry = replica.take().unwrap();
    replica.pass(2_000);
    assert!(replica.handle.is_current(entry, Duration::ZERO));
    replica.pass(1);
    assert!(!replica.handle.is_current(entry, Duration::ZERO));
    assert!(replica.handle.is_current(entry, Duration::from_millis(1)));
    // Without other replicas, nobody else was granted it.
    let (earlier, now) = (EarlierSpending::default(), replica.clock.now());
    let alone = SharedBudget::new(None, &earlier, None, now).handle(&replica.queue);
    let entry = alone.take(now, Reserve::Nothing).unwrap();
    replica.pass(600_000);
    assert!(alone.is_current(entry, Duration::ZERO));
    assert_eq!(alone.allowance(), None);
}

/// Each record takes the place of a purge in the journal: short cooldowns are not
/// announced, nor those that are hardly longer than is known, nor those of too many hosts.
#[test]
fn a_cooldown_is_announced_if_it_is_long_enough_and_news() {
    let replica = Replica::start();
    let millis = Duration::from_millis;
    let of = |host: u8, left| CooldownLeft {
        host: HostName([host; 16]),
        cooldown: left,
        quota: None,
        refused: None,
    };
    let announced = |host, left| {
        let now = replica.clock.now();
        replica.handle.announce_cooldown(of(host, left), now);
        let taken = replica.budget.take_cooldowns(now);
        taken.iter().map(|left| left.cooldown).max()
    };
    for (host, left, is_news) in [
        (1, 4_999, false),
        (1, 5_000, true),
        // As long, and longer by what does not count.
        (1, 5_000, false),
        (1, 10_000, false),
        (1, 10_001, true),
        (2, 4_999, false),
        (2, 5_000, true),
        (1, 15_001, false),
        (1, 15_002, true),
    ] {
        let left = millis(left);
        assert_eq!(announced(host, left), is_news.then_some(left), "{left:?}");
    }
    // What is known ends.
    replica.clock.advance(millis(20_000));
    assert_eq!(announced(1, millis(5_000)), Some(millis(5_000)));
    let now = replica.clock.now();
    for host in 0..=u8::MAX {
        replica
            .handle
            .announce_cooldown(of(host, millis(9_000)), now);
    }
    assert_eq!(replica.budget.take_cooldowns(now).len(), COOLDOWNS);
}
