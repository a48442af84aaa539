//! Budgets that several upstreams share, and limits that the upstream reports.

use http::StatusCode;

use super::*;
use crate::upstream::admission::limit_report::{LimitReport, LimitWindow, ReportedLimit};
use crate::upstream::admission::queue::NotAdmitted;

/// Upstreams with the same key share its budget, but not refusals of the key.
#[test]
fn a_refusal_at_one_upstream_does_not_affect_another() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = || upstream("a-key", rates(10, 20), &budgets, &clock);
    let (one, other) = (upstream(), upstream());
    let left = |keys: &Keys| keys.snapshots()[0].remaining;
    let state = |keys: &Keys| keys.snapshots()[0].worst().state();
    let refused = one.take(Priority::Miss).ok().unwrap();
    refused.mark_refused(StatusCode::UNAUTHORIZED);
    drop(refused);
    assert_eq!((state(&one), state(&other)), ("quarantined", "ready"));
    let throttled = other.take(Priority::Miss).ok().unwrap();
    throttled.throttle(Duration::from_secs(90));
    drop(throttled);
    clock.advance(Duration::from_secs(59));
    assert_eq!((state(&one), state(&other)), ("quarantined", "cooling"));
    assert_eq!((left(&one), left(&other)), (Some(8), Some(8)));
    clock.advance(Duration::from_secs(1));
    let accepted = one.take(Priority::Miss).ok().unwrap();
    accepted.mark_accepted();
    assert_eq!((state(&one), state(&other)), ("ready", "cooling"));
    // A reported limit of the key holds for all.
    accepted.apply_report(&report(LimitWindow::Minute, 3, 30, true));
    assert_eq!((left(&one), left(&other)), (Some(3), Some(3)));
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
        let (list, queue) = (ApiKey::list(list), AdmissionQueue::new(10, clock.clone()));
        let server = BudgetOwner::server(&url.parse().unwrap());
        let (budgets, clock) = (budgets.clone(), clock.clone());
        let list = list.unwrap_or_default();
        Keys::new("default", list, server, rates(5, 0), budgets, queue, clock)
    };
    let own = upstream("http://127.0.0.1:3000", "");
    own.take(Priority::Miss).ok().unwrap();
    for (url, list, left) in [
        ("http://127.0.0.1:3000/runes", "", 4),
        ("http://127.0.0.1:3001", "", 5),
        ("https://127.0.0.1", "", 5),
        ("http://127.0.0.1:3000", "a-key", 5),
    ] {
        let other = upstream(url, list);
        assert_eq!(other.snapshots()[0].remaining, Some(left), "{url} {list}");
    }
}

#[test]
fn an_unlimited_budget_obeys_reported_limits() {
    let clock = Clock::manual();
    let keys = keys("a-key", 0, 0, &clock);
    let priority = RequestPriority::of(crate::identify::Client::V4(1), Priority::Revalidation);
    let mut under_way: Vec<_> = (0..3_000)
        .map(|_| keys.take(priority).ok().unwrap())
        .collect();
    assert!(keys.take(Priority::LookAhead).is_ok());
    let snapshot = &keys.snapshots()[0];
    assert_eq!((snapshot.remaining, snapshot.per_minute), (None, None));
    let last = under_way.pop().unwrap();
    last.apply_report(&report(LimitWindow::Second, 2, 1, true));
    drop((last, under_way));
    assert_eq!(keys.snapshots()[0].remaining, Some(2));
    for _ in 0..2 {
        keys.take(priority).ok().unwrap();
    }
    assert_eq!(keys.take(priority).err(), Some(spent_for(1_000)));
    clock.advance(Duration::from_secs(1));
    keys.take(priority)
        .ok()
        .unwrap()
        .throttle(Duration::from_secs(7));
    assert_eq!(keys.take(priority).err(), Some(spent_for(7_000)));
    // Requests from before the limit count.
    keys.replace(ApiKey::list("a-key").unwrap(), server(), rates(2_000, 0));
    assert_eq!(keys.snapshots()[0].remaining, Some(0));
    clock.advance(Duration::from_secs(61));
    assert_eq!(keys.snapshots()[0].remaining, Some(2_000));
}

#[test]
fn a_removed_upstream_leaves_its_share() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = |rates| upstream("a-key", rates, &budgets, &clock);
    let (stays, goes) = (upstream(rates(100, 20)), upstream(rates(50, 10)));
    assert_eq!(stays.snapshots()[0].per_minute, Some(50));
    let late = goes.take(Priority::Probe).ok();
    goes.retire();
    assert_eq!(stays.snapshots()[0].per_minute, Some(100));
    let most = || {
        let takes = std::iter::from_fn(|| stays.take(Priority::Probe).ok());
        takes.collect::<Vec<_>>().len()
    };
    assert_eq!(most(), 15, "while a request of the other is under way");
    drop(late);
    clock.advance(Duration::from_secs(2));
    assert_eq!(most(), 20);
}

/// A request that waits for budget at one upstream is admitted as soon as an answer at
/// another upstream reports more budget, or the other upstream is removed.
#[tokio::test(start_paused = true)]
async fn more_budget_at_one_upstream_wakes_requests_at_another() {
    let clock = Clock::manual();
    let (budgets, priority) = (Budgets::new(), RequestPriority::own(Priority::Miss));
    let upstream = |rates| {
        let (list, queue) = (
            ApiKey::list("a-key"),
            AdmissionQueue::new(10, clock.clone()),
        );
        let (budgets, clock) = (budgets.clone(), clock.clone());
        let keys = Keys::new(
            "default",
            list.unwrap(),
            server(),
            rates,
            budgets,
            queue.clone(),
            clock,
        );
        (keys, queue)
    };
    let begun = tokio::time::Instant::now();
    let admit = |keys: Arc<Keys>, queue: Arc<AdmissionQueue>| {
        let max_wait = Duration::from_secs(5);
        tokio::spawn(async move {
            let admitted = queue.admit(priority, max_wait, |_slot| {
                keys.take(priority).map_err(NotAdmitted::from)
            });
            admitted.await.map(|_permit| begun.elapsed())
        })
    };
    let waits = async |queue: &AdmissionQueue| {
        while queue.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let at_once = Ok(Duration::ZERO);

    let (one, queue) = upstream(rates(500, 20));
    let (other, _) = upstream(rates(500, 20));
    one.take(priority)
        .ok()
        .unwrap()
        .apply_report(&report(LimitWindow::Minute, 1, 3, false));
    let last = other.take(priority).ok().unwrap();
    let waiting = admit(one.clone(), queue.clone());
    waits(&queue).await;
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
    let waiting = admit(one.clone(), queue.clone());
    waits(&queue).await;
    other.retire();
    assert_eq!(waiting.await.unwrap(), at_once);
}
