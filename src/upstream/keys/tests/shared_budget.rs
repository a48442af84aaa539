//! Budgets that several upstreams share, and limits that the upstream reports.

use std::num::NonZeroU32;

use http::StatusCode;

use super::*;
use crate::upstream::admission::allowance::Replicas;
use crate::upstream::admission::limit_report::{LimitReport, LimitWindow, ReportedLimit};
use crate::upstream::admission::queue::NotAdmitted;
use crate::upstream::admission::restrictions::{CooldownLeft, HostName};

/// Upstreams with the same key share its budget, but not refusals of the key.
#[test]
fn a_refusal_at_one_upstream_does_not_affect_another() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = || upstream("a-key", server(), Rates::of(10, 20), &budgets, &clock);
    let (one, other) = (upstream(), upstream());
    let states = || (one.worst().state(), other.worst().state());
    let left = || (one.left(), other.left());
    let refused = one.permit(Priority::Miss);
    refused.mark_refused(StatusCode::UNAUTHORIZED);
    drop(refused);
    assert_eq!(states(), ("quarantined", "ready"));
    let throttled = other.permit(Priority::Miss);
    throttled.start_cooldown(Duration::from_secs(90));
    drop(throttled);
    clock.advance(Duration::from_secs(59));
    assert_eq!(states(), ("quarantined", "cooling"));
    assert_eq!(left(), (Some(8), Some(8)));
    clock.advance(Duration::from_secs(1));
    let accepted = one.permit(Priority::Miss);
    accepted.mark_accepted();
    assert_eq!(states(), ("ready", "cooling"));
    // A reported limit of the key holds for all.
    accepted.apply_report(&report(LimitWindow::Minute, 3, 30, true));
    assert_eq!(left(), (Some(3), Some(3)));
}

fn report(window: LimitWindow, remaining: u64, seconds: u64, end_is_known: bool) -> LimitReport {
    LimitReport {
        limits: vec![ReportedLimit {
            window,
            remaining,
            valid_for: Duration::from_secs(seconds),
            end_is_known,
        }],
        ..LimitReport::default()
    }
}

#[test]
fn without_a_key_the_budget_is_the_servers() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = |url: &str, list: &str| {
        let server = BudgetOwner::server(&url.parse().unwrap());
        upstream(list, server, Rates::of(5, 0), &budgets, &clock)
    };
    let own = upstream("http://127.0.0.1:3000", "");
    own.permit(Priority::Miss);
    for (url, list, left) in [
        ("http://127.0.0.1:3000/runes", "", 4),
        ("http://127.0.0.1:3001", "", 5),
        ("https://127.0.0.1", "", 5),
        ("http://127.0.0.1:3000", "a-key", 5),
    ] {
        let other = upstream(url, list);
        assert_eq!(other.left(), Some(left), "{url} {list}");
    }
}

#[test]
fn an_unlimited_budget_obeys_reported_limits() {
    let clock = Clock::manual();
    let keys = keys("a-key", 0, 0, &clock);
    let priority = RequestPriority::of(crate::identify::Client::V4(1), Priority::Revalidation);
    let mut under_way: Vec<_> = (0..3_000).map(|_| keys.permit(priority)).collect();
    assert!(keys.take(Priority::LookAhead).is_ok());
    let snapshot = &keys.snapshots()[0];
    assert_eq!((snapshot.remaining, snapshot.per_minute), (None, None));
    let last = under_way.pop().unwrap();
    last.apply_report(&report(LimitWindow::Second, 2, 1, true));
    drop((last, under_way));
    assert_eq!(keys.left(), Some(2));
    for _ in 0..2 {
        keys.permit(priority);
    }
    assert_eq!(keys.take(priority).err(), Some(spent_for(1_000)));
    clock.advance(Duration::from_secs(1));
    keys.permit(priority).start_cooldown(Duration::from_secs(7));
    assert_eq!(keys.take(priority).err(), Some(spent_for(7_000)));
    // Requests from before the limit count.
    keys.replace_with("a-key", Rates::of(2_000, 0));
    assert_eq!(keys.left(), Some(0));
    clock.advance(Duration::from_secs(61));
    assert_eq!(keys.left(), Some(2_000));
}

#[test]
fn a_removed_upstream_leaves_its_share() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = |rates| upstream("a-key", server(), rates, &budgets, &clock);
    let (stays, goes) = (upstream(Rates::of(100, 20)), upstream(Rates::of(50, 10)));
    assert_eq!(stays.snapshots()[0].per_minute, Some(50));
    let late = goes.take(Priority::Probe).ok();
    goes.retire();
    assert_eq!(stays.snapshots()[0].per_minute, Some(100));
    let free = stays.free_permits();
    assert_eq!(free, 15, "while a request of the other is under way");
    drop(late);
    clock.advance(Duration::from_secs(2));
    assert_eq!(stays.free_permits(), 20);
}

/// A request that waits for budget at one upstream is admitted as soon as an answer at
/// another upstream reports more budget, or the other upstream is removed.
#[tokio::test(start_paused = true)]
async fn more_budget_at_one_upstream_wakes_requests_at_another() {
    let clock = Clock::manual();
    let (budgets, priority) = (Budgets::new(), RequestPriority::own(Priority::Miss));
    let upstream = || upstream("a-key", server(), Rates::of(500, 20), &budgets, &clock);
    let begun = tokio::time::Instant::now();
    let admit = |keys: &Arc<Keys>| {
        let (keys, max_wait) = (keys.clone(), Duration::from_secs(5));
        tokio::spawn(async move {
            let admitted = keys.queue.admit(priority, max_wait, |_slot| {
                keys.take(priority).map_err(NotAdmitted::from)
            });
            admitted.await.map(|_permit| begun.elapsed())
        })
    };
    let waits = async |keys: &Keys| {
        while keys.queue.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let at_once = Ok(Duration::ZERO);

    let (one, other) = (upstream(), upstream());
    one.permit(priority)
        .apply_report(&report(LimitWindow::Minute, 1, 3, false));
    let last = other.permit(priority);
    let waiting = admit(&one);
    waits(&one).await;
    last.apply_report(&report(LimitWindow::Minute, 400, 60, false));
    drop(last);
    assert_eq!(waiting.await.unwrap(), at_once);

    // It has its whole share unanswered, until the other is removed.
    let mut hanging = Vec::new();
    while let Ok(permit) = one.take(Priority::Probe) {
        hanging.push(permit);
    }
    assert_eq!(
        one.take(priority).err(),
        Some(Denied::SpentUntilRequestEnds)
    );
    let waiting = admit(&one);
    waits(&one).await;
    other.retire();
    assert_eq!(waiting.await.unwrap(), at_once);
}

/// A process that is stopped between the permit and the request may not send it: others
/// may have been granted what it held.
#[tokio::test(start_paused = true)]
async fn a_replica_takes_a_request_again_before_it_sends_it_late() {
    let clock = Clock::manual();
    let replicas = Replicas {
        count: 2.try_into().unwrap(),
        floor_percent: 100,
    };
    let budgets = Budgets::new().shared(replicas, clock.clone());
    let keys = upstream("a-key", server(), Rates::of(20, 4), &budgets, &clock);
    let patience = Duration::from_secs(5);
    let mut first = keys.permit(Priority::Miss);
    let mut second = keys.permit(Priority::Miss);
    clock.advance(Duration::from_secs(2));
    assert_eq!(first.ready(patience).await, Ok(()));
    assert_eq!(keys.left(), Some(8), "it is the same request");
    clock.advance(Duration::from_millis(1));
    // Given back, it counts until a window later; there is no room for another then.
    assert_eq!(first.ready(Duration::ZERO).await, Err(spent_for(1_005)));
    drop(first);
    assert_eq!(keys.left(), Some(8), "it is given back once");
    clock.advance(Duration::from_millis(1_005));
    assert_eq!(second.ready(patience).await, Ok(()));
    assert_eq!(keys.left(), Some(7), "it counts twice");
    // Without other replicas a late request is sent.
    let alone = super::keys("a-key", 20, 4, &clock);
    let mut late = alone.permit(Priority::Miss);
    clock.advance(Duration::from_secs(600));
    assert_eq!(late.ready(Duration::ZERO).await, Ok(()));
    assert_eq!(alone.left(), Some(19));
}

/// A request that waits for a connection while the machine is suspended is not written.
#[tokio::test(start_paused = true)]
async fn a_replica_writes_no_request_that_has_waited_too_long_for_a_connection() {
    let clock = Clock::manual();
    let replicas = Replicas {
        count: 2.try_into().unwrap(),
        floor_percent: 100,
    };
    let budgets = Budgets::new().shared(replicas, clock.clone());
    let keys = upstream("a-key", server(), Rates::of(20, 4), &budgets, &clock);
    let permit = keys.permit(Priority::Miss);
    let time = Duration::from_secs(60);
    let mut polls = 0;
    let request = std::future::poll_fn(|context| {
        polls += 1;
        if polls == 3 {
            return std::task::Poll::Ready("written");
        }
        clock.advance(Duration::from_secs(31));
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    });
    assert_eq!(permit.in_time(time, request).await, Ok("written"));
    let mut polls = 0;
    let request = std::future::poll_fn(|context| {
        polls += 1;
        if polls > 5 {
            return std::task::Poll::Ready("written");
        }
        clock.advance(Duration::from_secs(1));
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    });
    // 62 s have passed since it was taken, by the clock that is never suspended.
    assert_eq!(permit.in_time(time, request).await, Err(Late));
}

/// A replica with a key, or without one.
fn replica(list: &str, clock: &Clock) -> (Arc<Keys>, Arc<Budgets>) {
    let replicas = Replicas {
        count: NonZeroU32::new(2).unwrap(),
        floor_percent: 50,
    };
    let budgets = Budgets::new().shared(replicas, clock.clone());
    let keys = upstream(list, server(), Rates::of(1_000, 1_000), &budgets, clock);
    (keys, budgets)
}

/// A cooldown of the key in another replica, in milliseconds: after 429, of the quota, and
/// after 403.
fn found_elsewhere(times: [u64; 3]) -> CooldownLeft {
    let some = |millis: u64| (millis > 0).then(|| Duration::from_millis(millis));
    CooldownLeft {
        host: HostName::new("default", &host("http://server")),
        cooldown: some(times[0]).unwrap_or_default(),
        quota: some(times[1]),
        refused: some(times[2]).map(|left| (StatusCode::FORBIDDEN, left)),
    }
}

fn receive(budgets: &Budgets, left: CooldownLeft, clock: &Clock) {
    let key = ApiKey::list("a-key").unwrap().remove(0);
    let name = BudgetOwner::Key(key.value).shared_name("ordgate");
    budgets.receive_cooldown(("ordgate", &name), left, clock.now());
}

#[test]
fn what_another_replica_has_found_of_a_key_applies_here() {
    // Its state then, and when one request may be sent.
    for (times, state, wait) in [
        ([30_000, 0, 0], "cooling", 30_000),
        // No longer at once than a request needs to find out.
        ([300_000, 0, 0], "cooling", 60_000),
        ([0, 90_000, 0], "quota-spent", 90_000),
        // It may be the address that was refused: one request tries the key here.
        ([0, 0, 60_000], "quarantined", 0),
        ([30_000, 0, 60_000], "quarantined", 30_000),
        ([0, 90_000, 60_000], "quarantined", 0),
    ] {
        let clock = Clock::manual();
        let (keys, budgets) = replica("a-key", &clock);
        keys.permit(Priority::Miss);
        receive(&budgets, found_elsewhere(times), &clock);
        if wait > 0 {
            assert!(keys.take(Priority::Miss).is_err(), "{times:?}");
            assert_eq!(keys.worst().state(), state, "{times:?}");
            clock.advance(Duration::from_millis(wait - 1));
            assert!(keys.take(Priority::Miss).is_err(), "{times:?}");
            clock.advance(Duration::from_millis(1));
        }
        let trial = keys.take(Priority::Miss);
        assert!(trial.is_ok(), "{times:?}: {:?}", trial.err());
        let second = keys.take(Priority::Miss);
        assert_eq!(second.is_ok(), state == "cooling", "{times:?}");
    }
}

#[test]
fn a_suspension_of_its_own_has_precedence_over_what_another_replica_has_found() {
    let clock = Clock::manual();
    let (keys, budgets) = replica("a-key", &clock);
    let refused = keys.permit(Priority::Miss);
    refused.mark_refused(StatusCode::UNAUTHORIZED);
    drop(refused);
    let own = keys.take(Priority::Miss).err();
    receive(&budgets, found_elsewhere([0, 900_000, 900_000]), &clock);
    assert_eq!(keys.take(Priority::Miss).err(), own);
    assert_eq!(keys.worst().state(), "quarantined");
}

/// A server may refuse requests without a key for the address that they come from: that
/// concerns no other replica.
#[test]
fn the_cooldown_of_an_upstream_without_a_key_stays_here() {
    for (list, announced) in [("a-key", 1), ("", 0)] {
        let clock = Clock::manual();
        let (keys, budgets) = replica(list, &clock);
        keys.permit(Priority::Miss)
            .start_cooldown(Duration::from_secs(60));
        let taken = budgets.take_cooldowns("ordgate", clock.now());
        assert_eq!(taken.len(), announced, "{list:?}");
        assert!(keys.take(Priority::Miss).is_err());
    }
}

/// What was spent before the start matters where it alone keeps a key from being used.
#[test]
fn a_key_in_cooldown_does_not_wait_for_what_was_spent_before_the_start() {
    for (rates, is_cooling, waits) in [
        (Rates::of(60, 8), false, true),
        (Rates::of(60, 8), true, false),
        (Rates::UNLIMITED, false, false),
        (Rates::UNLIMITED, true, false),
    ] {
        let clock = Clock::manual();
        let budgets = Budgets::unknown_before(clock.now(), "a test");
        let keys = upstream("a-key", server(), Rates::UNLIMITED, &budgets, &clock);
        if is_cooling {
            keys.permit(Priority::Miss)
                .start_cooldown(Duration::from_secs(300));
        }
        keys.replace_with("a-key", rates);
        let host = host("http://server");
        let what = format!("{rates:?} {is_cooling}");
        assert_eq!(keys.waits_for_unknown_at(&host), waits, "{what}");
        assert_eq!(keys.have_limit(), rates != Rates::UNLIMITED);
        clock.advance(Duration::from_secs(62));
        assert!(!keys.waits_for_unknown_at(&host), "{what}");
    }
}
