//! Limits on a manual clock.

use super::quota::SHARED;
use super::*;
use crate::client_tokens;

fn settings(per_minute: u32, burst: u32, max_clients: u32) -> Settings {
    Settings {
        enabled: true,
        requests_per_minute: NonZeroU32::new(per_minute).unwrap(),
        burst: NonZeroU32::new(burst).unwrap(),
        misses_per_minute: 0,
        max_clients: NonZeroU32::new(max_clients).unwrap(),
    }
}

#[test]
fn a_client_has_its_burst_and_then_its_rate() {
    let clock = Clock::manual();
    let limit = Limit::new(&settings(60, 3, 10), clock.clone()).unwrap();
    let one = Client::V4(1);
    for left in [2, 1, 0] {
        assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, left);
    }
    assert_eq!(
        limit.admit(one, clock.now()),
        Err(TooManyRequests { retry_after: 1 })
    );
    assert!(
        limit.admit(Client::V4(2), clock.now()).is_ok(),
        "another client"
    );
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        limit.admit(one, clock.now()),
        Ok(RequestAllowance {
            remaining: 0,
            reset: 3
        })
    );
    assert!(limit.admit(one, clock.now()).is_err());
    clock.advance(Duration::from_secs(60));
    assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, 2);
    assert_eq!(limit.policy(), "\"default\";q=3;w=3");
}

#[test]
fn waits_are_rounded_up() {
    let clock = Clock::manual();
    let limit = Limit::new(&settings(6, 1, 10), clock.clone()).unwrap();
    let one = Client::V4(1);
    assert!(limit.admit(one, clock.now()).is_ok());
    for (passed, wait) in [(0, 10), (1500, 9), (8400, 1)] {
        clock.advance(Duration::from_millis(passed));
        let refused = limit.admit(one, clock.now()).unwrap_err();
        assert_eq!(refused.retry_after, wait, "after {passed} ms more");
        assert_eq!(refused.field(), format!("\"default\";r=0;t={wait}"));
    }
}

#[test]
fn the_table_is_bounded_and_pruned() {
    let clock = Clock::manual();
    let limit = Limit::new(&settings(60, 5, 100), clock.clone()).unwrap();
    for n in 0..100_000 {
        let _ = limit.admit(Client::V4(n), clock.now());
    }
    assert!(limit.requests.buckets() <= 100 + SHARED as usize);
    clock.advance(Duration::from_secs(60));
    assert_eq!(limit.prune(), 0);
    assert_eq!(
        limit.admit(Client::V4(7), clock.now()).unwrap().remaining,
        4
    );
}

#[test]
fn the_bound_counts_clients_and_not_their_requests() {
    let clock = Clock::manual();
    let limit = Limit::new(&settings(60, 1, 100), clock.clone()).unwrap();
    let clients = || limit.requests.clients();
    // One client whose burst is replenished before each request.
    for _ in 0..1000 {
        assert!(limit.admit(Client::V4(1), clock.now()).is_ok());
        assert!(limit.admit(Client::V4(1), clock.now()).is_err());
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(clients(), 1);
    for n in 2..=100 {
        assert!(limit.admit(Client::V4(n), clock.now()).is_ok());
    }
    assert_eq!(clients(), 100);
    // Further clients share buckets; the others keep their own, with what
    // they have used of it.
    assert!(limit.admit(Client::V4(101), clock.now()).is_ok());
    assert_eq!(clients(), 100);
    assert!(limit.admit(Client::V4(50), clock.now()).is_err());
    assert_eq!(limit.prune(), 100, "without the shared ones");
    clock.advance(Duration::from_secs(60));
    assert_eq!((limit.prune(), clients()), (0, 0));
}

#[test]
fn misses_are_counted_separately() {
    let clock = Clock::manual();
    let some = Settings {
        misses_per_minute: 2,
        ..settings(60, 9, 10)
    };
    let limit = Limit::new(&some, clock.clone()).unwrap();
    let one = Client::V4(1);
    for _ in 0..2 {
        assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
    }
    let refused = limit.admit_miss(one, clock.now()).unwrap_err();
    assert_eq!(refused.field(), "\"misses\";r=0;t=30");
    assert_eq!(refused.policy(), "\"misses\";q=2;w=60");
    assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, 8);
    assert_eq!(limit.admit_miss(Client::V4(2), clock.now()), Ok(()));
    // A reload that does not change this quota keeps what was used of it.
    let next = |settings: &Settings| Limit::after(Some(&limit), settings, clock.clone());
    let other = Settings {
        burst: NonZeroU32::MIN,
        ..some.clone()
    };
    assert!(next(&other).unwrap().admit_miss(one, clock.now()).is_err());
    for misses_per_minute in [0, 3] {
        let other = Settings {
            misses_per_minute,
            ..some.clone()
        };
        assert_eq!(next(&other).unwrap().admit_miss(one, clock.now()), Ok(()));
    }
    clock.advance(Duration::from_secs(30));
    assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
    assert!(limit.admit_miss(one, clock.now()).is_err());
    // A refunded miss is available again, once.
    limit.refund_miss(one);
    assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
    assert!(limit.admit_miss(one, clock.now()).is_err());
    for _ in 0..9 {
        limit.refund_miss(one);
    }
    for _ in 0..2 {
        assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
    }
    assert!(
        limit.admit_miss(one, clock.now()).is_err(),
        "no more than the burst"
    );
}

#[test]
fn a_reload_keeps_what_was_used_of_an_unchanged_quota() {
    let clock = Clock::manual();
    let limit = Limit::new(&settings(60, 1, 10), clock.clone()).unwrap();
    assert!(limit.admit(Client::V4(1), clock.now()).is_ok());
    let next = |settings| Limit::after(Some(&limit), &settings, clock.clone()).unwrap();
    for same in [settings(60, 1, 10), settings(60, 1, 99)] {
        assert!(next(same).admit(Client::V4(1), clock.now()).is_err());
    }
    let other = next(settings(60, 2, 10));
    assert!(other.admit(Client::V4(1), clock.now()).is_ok());
}

#[test]
fn disabled_limits_make_no_limiter() {
    let off = Settings {
        enabled: false,
        ..settings(1, 1, 1)
    };
    assert!(Limit::new(&off, Clock::manual()).is_none());
}

#[test]
fn a_client_with_a_token_has_its_own_bucket_however_many_addresses_there_are() {
    let clock = Clock::manual();
    let some = Settings {
        misses_per_minute: 1,
        ..settings(60, 1, 1)
    };
    let limit = Limit::new(&some, clock.clone()).unwrap();
    assert_eq!(limit.admit_miss(Client::V4(1), clock.now()), Ok(()));
    let most = client_tokens::file::MAX_TOKENS as u32;
    let admitted = |client: fn(u32) -> Client| {
        let admitted = (0..most).filter(|n| limit.admit_miss(client(*n), clock.now()).is_ok());
        admitted.count() as u32
    };
    assert_eq!(admitted(Client::Token), most);
    assert!(admitted(Client::V4) <= SHARED, "addresses share");
    assert_eq!(admitted(Client::Token), 0);
}
