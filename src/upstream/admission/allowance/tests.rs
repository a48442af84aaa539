//! Floors, grants and parts of reported limits.

use proptest::prelude::{prop_assert, proptest};

use super::*;

fn replicas(count: u32, floor_percent: u8) -> Replicas {
    Replicas {
        count: NonZeroU32::new(count).unwrap(),
        floor_percent,
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_floor_is_the_same_part_for_each_replica_rounded_down() {
    let table = [
        // (replicas, percent, total) -> floor
        (1, 100, (500, 20), (500, 20)),
        (2, 100, (500, 20), (250, 10)),
        (3, 100, (500, 20), (166, 6)),
        (3, 50, (500, 20), (83, 3)),
        (21, 100, (500, 20), (23, 0)),
        (4, 0, (500, 20), (0, 0)),
    ];
    for (count, percent, (minute, second), floor) in table {
        let found = replicas(count, percent).floor(Limits::of(minute, second));
        assert_eq!(found, Limits::of(floor.0, floor.1), "{count} {percent}");
    }
    let unlimited = Limits::default();
    assert_eq!(replicas(3, 100).floor(unlimited), unlimited);
}

#[test]
fn a_grant_counts_until_its_end() {
    let mut allowance = Allowance::new(replicas(2, 50));
    let total = Limits::of(100, 8);
    assert_eq!(allowance.limits(total, seconds(9)), Limits::of(25, 2));
    let grant = Grant {
        per_minute: 40,
        per_second: 3,
        until: seconds(10),
    };
    allowance.set_grant(grant);
    assert!(!allowance.end_grant(|| seconds(9)));
    assert_eq!(allowance.limits(total, seconds(9)), Limits::of(65, 5));
    assert_eq!(
        allowance.snapshot(total, seconds(9)).granted.until,
        seconds(1)
    );
    // Whoever does not look for a while finds it ended all the same.
    assert_eq!(allowance.limits(total, seconds(10)), Limits::of(25, 2));
    assert!(allowance.end_grant(|| seconds(10)));
    assert!(!allowance.end_grant(|| seconds(11)), "only once");
    assert_eq!(
        allowance.limits(Limits::default(), seconds(9)),
        Limits::default()
    );
}

#[test]
fn the_busiest_of_the_last_ten_seconds() {
    let mut allowance = Allowance::new(replicas(2, 50));
    let mut takes = |second, takes| {
        for _ in 0..takes {
            allowance.take(seconds(second));
        }
        allowance.busiest_second(seconds(second))
    };
    assert_eq!(takes(100, 5), 5);
    assert_eq!(takes(101, 7), 7);
    assert_eq!(takes(110, 2), 7);
    assert_eq!(takes(111, 1), 2, "second 101 is over");
    assert_eq!(takes(500, 0), 0);
}

#[test]
fn a_part_of_a_number() {
    for (number, own, all, expected) in [
        (400, Some(250), Some(500), 200),
        (1, Some(250), Some(500), 0),
        (3, Some(166), Some(500), 0),
        (4, Some(166), Some(500), 1),
        (400, Some(0), Some(500), 0),
        (400, Some(500), Some(500), 400),
        (400, None, None, 400),
        (u64::MAX, Some(1), Some(2), u64::MAX / 2),
    ] {
        assert_eq!(part(number, own, all), expected, "{number}");
    }
}

proptest! {
    /// The floors of all replicas are at most the budget.
    #[test]
    fn floors_add_up(count in 1..100_u32, percent in 0..=100_u8, minute in 0..10_000_usize) {
        let replicas = replicas(count, percent);
        let total = Limits::of(minute, minute / 7);
        let reserve = replicas.reserve(total);
        prop_assert!(reserve.per_minute.unwrap() <= minute);
        prop_assert!(reserve.per_second.unwrap() <= minute / 7);
    }
}
