//! Limits on a manual clock.

use super::*;

const CLIENT: Client = Client::V4(1);

fn settings(per_minute: u32, burst: u32) -> Settings {
    Settings {
        requests_per_minute: NonZeroU32::new(per_minute).unwrap(),
        burst: NonZeroU32::new(burst).unwrap(),
        misses_per_minute: 0,
        ..Settings::default()
    }
}

fn limit(settings: &Settings, clock: &Clock) -> Limit {
    Limit::after(None, settings, clock).unwrap()
}

#[test]
fn a_client_has_its_burst_and_then_its_rate() {
    let clock = Clock::manual();
    let limit = limit(&settings(60, 3), &clock);
    let admit = |client| limit.requests.admit(client, clock.now());
    for left in [2, 1, 0] {
        assert_eq!(admit(CLIENT).unwrap().remaining, left);
    }
    let refused = OverLimit {
        policy: HeaderValue::from_static("\"default\";q=3;w=3"),
        left: HeaderValue::from_static("\"default\";r=0;t=1"),
        retry_after: 1,
    };
    assert_eq!(admit(CLIENT), Err(refused));
    assert!(admit(Client::V4(2)).is_ok(), "another client");
    clock.advance(Duration::from_secs(1));
    let allowance = RequestAllowance {
        remaining: 0,
        reset: 3,
    };
    assert_eq!(admit(CLIENT), Ok(allowance));
    assert_eq!(allowance.field(), "\"default\";r=0;t=3");
    assert!(admit(CLIENT).is_err());
    clock.advance(Duration::from_secs(60));
    assert_eq!(admit(CLIENT).unwrap().remaining, 2);
    assert_eq!(limit.requests.shape(), (60, NonZeroU32::new(3).unwrap()));
}

#[test]
fn memory_is_bounded_and_who_has_used_most_is_forgotten_last() {
    let clock = Clock::manual();
    let limit = limit(&settings(60, 2), &clock);
    let admit = |n| limit.requests.admit(Client::V4(n), clock.now()).is_ok();
    assert!(admit(0) && admit(0) && !admit(0));
    let many = 3 * (MANY * MOST_OF_SET) as u32;
    assert!((1..many).all(admit), "each has a bucket of its own");
    assert!(!admit(0), "it has used up its burst");
    let sets = limit.requests.buckets.sets.iter();
    let sizes: Vec<_> = sets.map(|set| lock(set).len()).collect();
    assert!(sizes.iter().all(|size| (1..=MOST_OF_SET).contains(size)));
}

#[test]
fn misses_are_counted_separately_and_taken_back() {
    let clock = Clock::manual();
    let some = Settings {
        misses_per_minute: 2,
        ..settings(60, 9)
    };
    let limit = limit(&some, &clock);
    let miss = || limit.admit_miss(CLIENT, clock.now());
    assert!(miss().is_ok() && miss().is_ok());
    let refused = miss().unwrap_err();
    assert_eq!(refused.policy, "\"misses\";q=2;w=60");
    assert_eq!(refused.left, "\"misses\";r=0;t=30");
    let allowance = limit.requests.admit(CLIENT, clock.now());
    assert_eq!(allowance.unwrap().remaining, 8);
    assert!(limit.admit_miss(Client::V4(2), clock.now()).is_ok());
    limit.refund_miss(CLIENT);
    assert!(miss().is_ok() && miss().is_err());
    for _ in 0..9 {
        limit.refund_miss(CLIENT);
    }
    assert!(miss().is_ok() && miss().is_ok());
    assert!(miss().is_err(), "no more than the burst");
    clock.advance(Duration::from_secs(30));
    assert!(miss().is_ok() && miss().is_err());
}

#[test]
fn a_reload_keeps_what_was_used_of_an_unchanged_rate() {
    let clock = Clock::manual();
    let some = Settings {
        misses_per_minute: 1,
        ..settings(60, 1)
    };
    let limit = limit(&some, &clock);
    assert!(limit.requests.admit(CLIENT, clock.now()).is_ok());
    assert!(limit.admit_miss(CLIENT, clock.now()).is_ok());
    for (per_minute, burst, misses, is_new, has_misses) in [
        (60, 1, 1, false, false),
        (60, 2, 1, true, false),
        (30, 1, 2, true, true),
        (60, 1, 0, false, true),
    ] {
        let next = Settings {
            misses_per_minute: misses,
            ..settings(per_minute, burst)
        };
        let next = Limit::after(Some(&limit), &next, &clock).unwrap();
        let admitted = next.requests.admit(CLIENT, clock.now());
        assert_eq!(admitted.is_ok(), is_new, "{per_minute} {burst}");
        let admitted = next.admit_miss(CLIENT, clock.now());
        assert_eq!(admitted.is_ok(), has_misses, "{misses}");
    }
    let off = Settings {
        enabled: false,
        ..some
    };
    assert!(Limit::after(Some(&limit), &off, &clock).is_none());
}
