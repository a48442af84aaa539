//! Refusals of a key, key checks, and a key's state at each host.

use http::StatusCode;

use super::*;

#[test]
fn one_request_at_a_time_tries_a_refused_key() {
    let clock = Clock::manual();
    let keys = keys("a", 10, 10, &clock);
    let (take, permit) = (|| keys.take(Priority::Miss), || keys.permit(Priority::Miss));
    let (early, late) = (permit(), permit());
    early.mark_refused(StatusCode::UNAUTHORIZED);
    let refused = |status| Some(Denied::KeyRefused(status));
    assert_eq!(take().err(), refused(StatusCode::UNAUTHORIZED));
    // A request that was under way then changes nothing.
    late.mark_accepted();
    late.mark_refused(StatusCode::FORBIDDEN);
    assert_eq!(keys.worst().unusable_for, Duration::from_secs(60));
    clock.advance(Duration::from_secs(60));
    let trial = permit();
    assert_eq!(take().err(), refused(StatusCode::UNAUTHORIZED));
    trial.mark_refused(StatusCode::FORBIDDEN);
    drop(trial);
    assert_eq!(keys.worst().unusable_for, Duration::from_secs(120));
    clock.advance(Duration::from_secs(120));
    // A trial that is given up starts the shortest quarantine.
    drop(permit());
    assert_eq!(keys.worst().unusable_for, Duration::from_secs(60));
    clock.advance(Duration::from_secs(60));
    permit().mark_accepted();
    assert_eq!(keys.worst().state(), "ready");
    assert!(take().is_ok() && take().is_ok());
}

#[test]
fn a_trial_of_an_earlier_quarantine_does_not_end_a_later_one() {
    let clock = Clock::manual();
    let keys = keys("first-key", 10, 10, &clock);
    let minute = Duration::from_secs(60);
    let (take, permit) = (|| keys.take(Priority::Miss), || keys.permit(Priority::Miss));
    permit().mark_refused(StatusCode::FORBIDDEN);
    clock.advance(minute);
    let early = permit();
    // Meanwhile the key is removed, configured again and refused again.
    keys.replace_with("second-key", Rates::of(10, 10));
    keys.replace_with("first-key", Rates::of(10, 10));
    permit().mark_refused(StatusCode::FORBIDDEN);
    clock.advance(minute);
    let trial = permit();
    early.mark_accepted();
    assert_eq!(keys.worst().state(), "quarantined");
    drop(early);
    clock.advance(minute);
    assert!(take().is_err(), "another request tries it");
    trial.mark_accepted();
    assert!(take().is_ok());
}

/// The key check decides; without one, refusals of different targets do.
#[test]
fn a_refusal_is_attributed_to_the_target_or_the_key() {
    use RefusalCheck::{Decided, Send, Wait};
    let clock = Clock::manual();
    let keys = keys("a", 100, 100, &clock);
    let forbidden = StatusCode::FORBIDDEN;
    let take = || keys.permit(Priority::Miss);
    let state = || keys.worst().state();

    let (one, other) = (take(), take());
    let Send(check) = one.check_refusal("/a", forbidden, true) else {
        panic!("the first refusal is checked");
    };
    assert!(matches!(
        other.check_refusal("/b", forbidden, true),
        Wait(_)
    ));
    check.finish(KeyCheckResult::Accepted);
    let cause = other.check_refusal("/b", forbidden, true);
    assert!(
        matches!(cause, Decided(RefusalCause::Target)),
        "so soon after a check"
    );
    clock.advance(Duration::from_secs(1));
    let Send(check) = other.check_refusal("/b", forbidden, true) else {
        panic!("a second has passed");
    };
    // After a check that is given up, the next one waits a second too.
    drop(check);
    assert!(matches!(
        other.check_refusal("/b", forbidden, true),
        Decided(RefusalCause::Target)
    ));
    assert_eq!(state(), "ready");

    for target in ["/a", "/a", "/b"] {
        let cause = one.check_refusal(target, forbidden, false);
        assert!(matches!(cause, Decided(RefusalCause::Target)), "{target}");
    }
    assert!(matches!(
        one.check_refusal("/c", forbidden, false),
        Decided(RefusalCause::Key)
    ));
    assert_eq!(state(), "quarantined");
    let late = other.check_refusal("/d", forbidden, true);
    assert!(
        matches!(late, Decided(RefusalCause::Key)),
        "it was sent before the quarantine"
    );
}

/// A key check counts in the budget, and replaces the request that tried the key.
#[test]
fn a_key_check_is_a_request_of_the_same_key() {
    let clock = Clock::manual();
    let keys = keys("a", 2, 2, &clock);
    let take = || keys.take(Priority::Miss).ok();
    let mut first = take().unwrap();
    let check = first.renew(Priority::Miss).unwrap();
    assert!(first.renew(Priority::Miss).is_err(), "two are counted");
    assert!(take().is_none());
    check.mark_refused(StatusCode::FORBIDDEN);
    drop((first, check));
    clock.advance(Duration::from_secs(61));
    let mut trial = take().unwrap();
    let check = trial.renew(Priority::Miss).unwrap();
    drop(trial);
    assert_eq!(
        keys.worst().unusable_for,
        Duration::ZERO,
        "the check still tries it"
    );
    check.mark_refused(StatusCode::FORBIDDEN);
    assert_eq!(keys.worst().unusable_for, Duration::from_secs(120));
    drop(check);
    clock.advance(Duration::from_secs(120));
    let mut trial = take().unwrap();
    trial.renew(Priority::Miss).unwrap().mark_accepted();
    assert_eq!(keys.worst().state(), "ready");
}

#[test]
fn a_key_is_refused_and_throttled_per_host() {
    let clock = Clock::manual();
    let keys = keys("a-key", 4, 0, &clock);
    let [one, other] = ["http://one", "http://other"].map(host);
    let take = |host: &Host| keys.take_at(host, Priority::Miss);
    take(&one).unwrap().mark_refused(StatusCode::UNAUTHORIZED);
    take(&other).unwrap().start_cooldown(Duration::from_secs(5));
    let denied = |host: &Host| take(host).err();
    assert_eq!(
        denied(&one),
        Some(Denied::KeyRefused(StatusCode::UNAUTHORIZED))
    );
    assert_eq!(denied(&other), Some(spent_for(5_000)));
    for (host, seconds, is_unusable) in [(&one, 59, true), (&one, 60, false), (&other, 4, true)] {
        let longer_than = Duration::from_secs(seconds);
        assert_eq!(
            keys.all_unusable_at(host, longer_than),
            is_unusable,
            "{host} {seconds}"
        );
    }
    let snapshot = &keys.snapshots()[0];
    assert_eq!(snapshot.worst().state(), "quarantined");
    let states = snapshot.hosts.iter().map(|(_, at)| at.state());
    assert_eq!(states.collect::<Vec<_>>(), ["quarantined", "cooling"]);
    // All hosts share one budget.
    clock.advance(Duration::from_secs(5));
    for _ in 0..2 {
        take(&other).unwrap();
    }
    assert!(matches!(denied(&other), Some(Denied::SpentFor(_))));
    assert!(matches!(
        denied(&host("http://third")),
        Some(Denied::SpentFor(_))
    ));
    // A key that is removed and configured again is tried at each host.
    for list in ["another", "a-key"] {
        keys.replace_with(list, Rates::of(4, 0));
    }
    assert!(!keys.all_unusable_at(&one, Duration::ZERO));
}
