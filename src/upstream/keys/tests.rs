//! Who may use which key when, and what never shows.

use std::num::NonZeroU32;

use http::StatusCode;

use super::*;
use crate::upstream::admission::budgets::REMEMBERED;
use crate::upstream::admission::limit_report::{LimitReport, LimitWindow, ReportedLimit};
use crate::upstream::{Failure, Rate, admit::hold};

/// 0 for any number.
fn rates(per_minute: u32, per_second: u32) -> Rates {
    let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
    Rates {
        per_minute: rate(per_minute),
        per_second: rate(per_second),
    }
}

fn host(name: &str) -> Host {
    name.into()
}

impl Keys {
    /// A permit for a request to the only host that there is.
    pub(in crate::upstream) fn take(
        self: &Arc<Self>,
        wish: impl Into<RequestPriority>,
    ) -> Result<BudgetPermit, Denied> {
        self.take_at(&host("http://server"), wish)
    }
}

fn server() -> BudgetOwner {
    BudgetOwner::Server("server:80".into())
}

fn upstream(list: &str, rates: Rates, budgets: &Arc<Budgets>, clock: &Clock) -> Arc<Keys> {
    let keys = ApiKey::list(list).unwrap_or_default();
    let (budgets, line) = (budgets.clone(), AdmissionQueue::new(10, clock.clone()));
    Keys::new(
        "default",
        keys,
        server(),
        rates,
        budgets,
        line,
        clock.clone(),
    )
}

fn keys(list: &str, per_minute: u32, per_second: u32, clock: &Clock) -> Arc<Keys> {
    let rates = rates(per_minute, per_second);
    upstream(list, rates, &Budgets::new(), clock)
}

fn spent_for(millis: u64) -> Denied {
    Denied::For(Duration::from_millis(millis))
}

#[test]
fn lists_of_keys() {
    let names = |text| ApiKey::list(text).map(|keys| keys.len());
    assert_eq!(names("one"), Ok(1));
    assert_eq!(names(" one , two\nthree\r\n"), Ok(3));
    assert_eq!(names("one,two,one\n one"), Ok(2));
    assert_eq!(names(" , "), Err(BadKeys::Empty));
    assert_eq!(names("one,t wo"), Err(BadKeys::Character(2)));
    assert_eq!(names("one,tw\u{f6}"), Err(BadKeys::Character(2)));
}

#[test]
fn a_key_is_never_shown() {
    let clock = Clock::manual();
    let pool = keys("s3cret-value", 1, 1, &clock);
    let keys = ApiKey::list("s3cret-value").unwrap();
    let shown = format!("{keys:?} {:?} {:?}", pool.snapshots(), keys[0].value);
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("key-1 [redacted]"));
    let panicked = std::panic::catch_unwind(|| panic!("with {:?}", ApiKey::list("s3cret-value")));
    let message = panicked.unwrap_err();
    assert!(!message.downcast_ref::<String>().unwrap().contains("s3cret"));
}

#[test]
fn what_gives_a_key_away() {
    let clock = Clock::manual();
    let keys = keys("short,s3cret/va\"l\\ue,another-key", 1, 1, &clock);
    for (text, name) in [
        (r#"{"error":"bad key another-key"}"#, Some("key-3")),
        ("another-key", Some("key-3")),
        (r#"s3cret/va"l\ue"#, Some("key-2")),
        (r#"["s3cret/va\"l\\ue"]"#, Some("key-2")),
        (r#"["s3cret\/va\"l\\ue"]"#, Some("key-2")),
        ("s3cret/va", None),
        ("short", None),
        ("", None),
    ] {
        assert_eq!(keys.find_key_in(text.as_bytes()).as_deref(), name, "{text}");
    }
}

#[test]
fn the_key_with_the_most_left_is_used() {
    let clock = Clock::manual();
    let keys = keys("a,b", 2, 2, &clock);
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(keys.take(Priority::Miss).ok().map(|g| g.name().to_owned()));
    }
    let expected = ["key-1", "key-2", "key-1", "key-2"].map(|n| Some(n.to_owned()));
    assert_eq!(names, expected);
    let spent = keys.take(Priority::Miss).err().unwrap();
    assert_eq!(spent, spent_for(60_050));
}

#[test]
fn a_key_that_comes_twice_has_one_budget() {
    let clock = Clock::manual();
    let keys = keys("a,a,b,a", 1, 1, &clock);
    let mut names = Vec::new();
    while let Ok(grant) = keys.take(Priority::Miss) {
        names.push(grant.name().to_owned());
    }
    assert_eq!(names, ["key-1", "key-3"], "named by their places");
}

#[test]
fn a_cooling_key_is_left_alone() {
    let clock = Clock::manual();
    let keys = keys("a,b", 10, 10, &clock);
    keys.take(Priority::Miss)
        .ok()
        .unwrap()
        .throttle(Duration::from_secs(7));
    for _ in 0..3 {
        assert_eq!(keys.take(Priority::Miss).ok().unwrap().name(), "key-2");
    }
    keys.take(Priority::Miss)
        .ok()
        .unwrap()
        .throttle(Duration::from_secs(9));
    let spent = keys.take(Priority::Miss).err().unwrap();
    assert_eq!(spent, spent_for(7000));
    clock.advance(Duration::from_secs(7));
    assert_eq!(keys.take(Priority::Miss).ok().unwrap().name(), "key-1");
}

#[test]
fn what_a_key_has_spent_outlives_its_withdrawal() {
    let clock = Clock::manual();
    let keys = keys("", 1, 1, &clock);
    let without = keys.take(Priority::Miss).ok();
    let replace = |list: &str| {
        let list = ApiKey::list(list).unwrap_or_default();
        keys.replace(list, server(), rates(1, 1));
    };
    let take = || {
        let grant = keys.take(Priority::Miss).ok();
        grant.map(|grant| grant.name().to_owned())
    };
    for (list, expected) in [
        ("first-key,second-key", Some("key-1")),
        ("second-key", Some("key-1")),
        ("first-key", None),
        ("second-key,first-key", None),
        ("third-key,first-key", Some("key-1")),
        ("", None),
    ] {
        replace(list);
        assert_eq!(take().as_deref(), expected, "{list}");
    }
    let given_away = keys.find_key_in(b"second-key");
    assert!(given_away.is_some(), "it may yet come back in an answer");
    let elsewhere = keys.elsewhere();
    elsewhere.replace(ApiKey::list("third-key").unwrap(), server(), rates(1, 1));
    let spent = elsewhere.take(Priority::Miss);
    assert!(spent.is_err(), "whoever counts may be the same");
    drop(without);
    clock.advance(Duration::from_secs(61));
    assert_eq!(take().as_deref(), Some("none"));
    clock.advance(REMEMBERED);
    replace("");
    assert!(keys.find_key_in(b"second-key").is_none());
}

#[test]
fn a_key_that_was_refused_is_tried_by_one_request_at_a_time() {
    let clock = Clock::manual();
    let keys = keys("a", 10, 10, &clock);
    let take = || keys.take(Priority::Miss);
    let (early, late) = (take().ok().unwrap(), take().ok().unwrap());
    early.mark_refused(StatusCode::UNAUTHORIZED);
    let refused = |status| Some(Denied::Refused(status));
    assert_eq!(take().err(), refused(StatusCode::UNAUTHORIZED));
    // What was under way then neither heals nor hurts it.
    late.mark_accepted();
    late.mark_refused(StatusCode::FORBIDDEN);
    assert_eq!(
        keys.snapshots()[0].worst().unusable_for,
        Duration::from_secs(60)
    );
    clock.advance(Duration::from_secs(60));
    let trial = take().ok().unwrap();
    assert_eq!(take().err(), refused(StatusCode::UNAUTHORIZED));
    trial.mark_refused(StatusCode::FORBIDDEN);
    drop(trial);
    assert_eq!(
        keys.snapshots()[0].worst().unusable_for,
        Duration::from_secs(120)
    );
    clock.advance(Duration::from_secs(120));
    // One that is given up tells nothing, but has been a trial.
    drop(take().ok().unwrap());
    assert_eq!(
        keys.snapshots()[0].worst().unusable_for,
        Duration::from_secs(60)
    );
    clock.advance(Duration::from_secs(60));
    take().ok().unwrap().mark_accepted();
    assert_eq!(keys.snapshots()[0].worst().state(), "ready");
    assert!(take().is_ok() && take().is_ok());
}

#[test]
fn without_keys_there_is_a_budget_as_well() {
    let clock = Clock::manual();
    let keys = keys("", 1, 1, &clock);
    let grant = keys.take(Priority::Miss).ok().unwrap();
    assert!(grant.header().is_none());
    assert!(keys.take(Priority::Miss).is_err(), "one is under way");
}

#[test]
fn a_trial_of_an_earlier_rest_says_nothing_of_a_later_one() {
    let clock = Clock::manual();
    let keys = keys("first-key", 10, 10, &clock);
    let minute = Duration::from_secs(60);
    let replace = |list: &str| {
        let list = ApiKey::list(list).unwrap_or_default();
        keys.replace(list, server(), rates(10, 10));
    };
    let take = || keys.take(Priority::Miss);
    take().ok().unwrap().mark_refused(StatusCode::FORBIDDEN);
    clock.advance(minute);
    let early = take().ok().unwrap();
    // The key is brought back, and is refused anew, while that is under way.
    replace("second-key");
    replace("first-key");
    take().ok().unwrap().mark_refused(StatusCode::FORBIDDEN);
    clock.advance(minute);
    let trial = take().ok().unwrap();
    early.mark_accepted();
    assert_eq!(keys.snapshots()[0].worst().state(), "quarantined");
    drop(early);
    clock.advance(minute);
    assert!(take().is_err(), "one tries it still");
    trial.mark_accepted();
    assert!(take().is_ok());
}

#[test]
fn who_is_told_to_wait_for_a_cooling_key_is_told_of_its_budget_too() {
    let clock = Clock::manual();
    let keys = keys("a", 1, 1, &clock);
    keys.take(Priority::Miss)
        .ok()
        .unwrap()
        .throttle(Duration::from_secs(7));
    let spent = keys.take(Priority::Miss).err().unwrap();
    assert_eq!(spent, spent_for(60_050));
}

#[test]
fn a_request_under_way_outlives_the_memory_of_its_key() {
    let clock = Clock::manual();
    let keys = keys("first-key", 1, 1, &clock);
    let replace = |list: &str| {
        keys.replace(ApiKey::list(list).unwrap(), server(), rates(1, 1));
    };
    let under_way = keys.take(Priority::Miss).ok();
    for list in ["second-key", "third-key", "first-key"] {
        replace(list);
        clock.advance(REMEMBERED);
    }
    assert!(keys.take(Priority::Miss).is_err(), "it counts still");
    drop(under_way);
}

/// The status path decides; where there is none, different targets do.
#[test]
fn what_a_refused_target_says_of_a_key() {
    use RefusalCheck::{Decided, Send, Wait};
    let clock = Clock::manual();
    let keys = keys("a", 100, 100, &clock);
    let forbidden = StatusCode::FORBIDDEN;
    let take = || keys.take(Priority::Miss).ok().unwrap();
    let state = || keys.snapshots()[0].worst().state();

    let (one, other) = (take(), take());
    let Send(check) = one.check_refusal("/a", forbidden, true) else {
        panic!("the first is checked");
    };
    assert!(matches!(
        other.check_refusal("/b", forbidden, true),
        Wait(_)
    ));
    check.finish(KeyCheckResult::Accepted);
    let suspicion = other.check_refusal("/b", forbidden, true);
    assert!(
        matches!(suspicion, Decided(RefusalCause::Target)),
        "so soon after a check"
    );
    clock.advance(Duration::from_secs(1));
    let Send(check) = other.check_refusal("/b", forbidden, true) else {
        panic!("it may be checked again");
    };
    // One that is given up makes way for the next, in its time.
    drop(check);
    assert!(matches!(
        other.check_refusal("/b", forbidden, true),
        Decided(RefusalCause::Target)
    ));
    assert_eq!(state(), "ready");

    for target in ["/a", "/a", "/b"] {
        let suspicion = one.check_refusal(target, forbidden, false);
        assert!(
            matches!(suspicion, Decided(RefusalCause::Target)),
            "{target}"
        );
    }
    assert!(matches!(
        one.check_refusal("/c", forbidden, false),
        Decided(RefusalCause::Key)
    ));
    assert_eq!(state(), "quarantined");
    let late = other.check_refusal("/d", forbidden, true);
    assert!(
        matches!(late, Decided(RefusalCause::Key)),
        "it was sent before"
    );
}

/// A key check is paid for, and takes over from the request that tried the key.
#[test]
fn a_key_check_is_a_request_of_the_same_key() {
    let clock = Clock::manual();
    let keys = keys("a", 2, 2, &clock);
    let take = || keys.take(Priority::Miss).ok();
    let mut first = take().unwrap();
    let check = first.renew(Priority::Miss).ok().unwrap();
    assert!(first.renew(Priority::Miss).is_err(), "two are counted");
    assert!(take().is_none());
    check.mark_refused(StatusCode::FORBIDDEN);
    drop((first, check));
    clock.advance(Duration::from_secs(61));
    let mut trial = take().unwrap();
    let check = trial.renew(Priority::Miss).ok().unwrap();
    drop(trial);
    assert_eq!(
        keys.snapshots()[0].worst().unusable_for,
        Duration::ZERO,
        "it is tried yet"
    );
    check.mark_refused(StatusCode::FORBIDDEN);
    assert_eq!(
        keys.snapshots()[0].worst().unusable_for,
        Duration::from_secs(120)
    );
    drop(check);
    clock.advance(Duration::from_secs(120));
    let mut trial = take().unwrap();
    trial.renew(Priority::Miss).ok().unwrap().mark_accepted();
    assert_eq!(keys.snapshots()[0].worst().state(), "ready");
}

/// The budget is a key's, whoever sends it; what an upstream says of a key is its
/// own.
#[test]
fn one_upstreams_refusals_leave_the_key_to_another() {
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
    // What it says is left of the key's windows holds for all.
    accepted.apply_report(&said(LimitWindow::Minute, 3, 30, true));
    assert_eq!((left(&one), left(&other)), (Some(3), Some(3)));
}

fn said(window: LimitWindow, left: u64, seconds: u64, told: bool) -> LimitReport {
    let lasts = Duration::from_secs(seconds);
    LimitReport {
        limits: vec![ReportedLimit {
            window,
            remaining: left,
            valid_for: lasts,
            end_is_known: told,
        }],
        ..LimitReport::default()
    }
}

#[test]
fn without_a_key_the_budget_is_the_servers() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = |url: &str, list: &str| {
        let (list, line) = (ApiKey::list(list), AdmissionQueue::new(10, clock.clone()));
        let server = BudgetOwner::server(&url.parse().unwrap());
        let (budgets, clock) = (budgets.clone(), clock.clone());
        let list = list.unwrap_or_default();
        Keys::new("default", list, server, rates(5, 0), budgets, line, clock)
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
fn an_unlimited_budget_is_held_to_what_the_upstream_says() {
    let clock = Clock::manual();
    let keys = keys("a-key", 0, 0, &clock);
    let wish = RequestPriority::of(crate::identify::Client::V4(1), Priority::Revalidation);
    let mut under_way: Vec<_> = (0..3_000).map(|_| keys.take(wish).ok().unwrap()).collect();
    assert!(keys.take(Priority::LookAhead).is_ok());
    let standing = &keys.snapshots()[0];
    assert_eq!((standing.remaining, standing.per_minute), (None, None));
    let last = under_way.pop().unwrap();
    last.apply_report(&said(LimitWindow::Second, 2, 1, true));
    drop((last, under_way));
    assert_eq!(keys.snapshots()[0].remaining, Some(2));
    for _ in 0..2 {
        keys.take(wish).ok().unwrap();
    }
    assert_eq!(keys.take(wish).err(), Some(spent_for(1_000)));
    clock.advance(Duration::from_secs(1));
    keys.take(wish)
        .ok()
        .unwrap()
        .throttle(Duration::from_secs(7));
    assert_eq!(keys.take(wish).err(), Some(spent_for(7_000)));
    // What was sent before there was a limit counts.
    keys.replace(ApiKey::list("a-key").unwrap(), server(), rates(2_000, 0));
    assert_eq!(keys.snapshots()[0].remaining, Some(0));
    clock.advance(Duration::from_secs(61));
    assert_eq!(keys.snapshots()[0].remaining, Some(2_000));
}

#[test]
fn who_is_gone_leaves_its_share() {
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

/// A request that waits for budget at one upstream goes as soon as an answer to
/// another upstream's request says that there is more, or that one is gone.
#[tokio::test(start_paused = true)]
async fn what_one_upstream_learns_of_the_budget_wakes_anothers() {
    let clock = Clock::manual();
    let (budgets, wish) = (Budgets::new(), RequestPriority::own(Priority::Miss));
    let upstream = |rates| {
        let (list, line) = (
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
            line.clone(),
            clock,
        );
        (keys, line)
    };
    let begun = tokio::time::Instant::now();
    let passes = |keys: Arc<Keys>, line: Arc<AdmissionQueue>| {
        let patience = Duration::from_secs(5);
        tokio::spawn(async move {
            let passed = line.admit(wish, patience, |_slot| keys.take(wish).map_err(hold));
            passed.await.map(|_granted| begun.elapsed())
        })
    };
    let waits = async |line: &AdmissionQueue| {
        while line.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let at_once = Ok::<_, Failure>(Duration::ZERO);

    let (one, line) = upstream(rates(500, 20));
    let (other, _) = upstream(rates(500, 20));
    one.take(wish)
        .ok()
        .unwrap()
        .apply_report(&said(LimitWindow::Minute, 1, 3, false));
    let last = other.take(wish).ok().unwrap();
    let waiting = passes(one.clone(), line.clone());
    waits(&line).await;
    last.apply_report(&said(LimitWindow::Minute, 400, 60, false));
    drop(last);
    assert_eq!(waiting.await.unwrap(), at_once);

    // It has all that it may have unanswered, until the other is gone.
    let mut hanging = Vec::new();
    while let Ok(grant) = one.take(Priority::Probe) {
        hanging.push(grant);
    }
    assert_eq!(one.take(wish).err(), Some(Denied::UntilRequestEnds));
    let waiting = passes(one.clone(), line.clone());
    waits(&line).await;
    other.retire();
    assert_eq!(waiting.await.unwrap(), at_once);
}

#[test]
fn what_one_host_says_of_a_key_holds_for_that_host() {
    let clock = Clock::manual();
    let keys = keys("a-key", 4, 0, &clock);
    let [one, other] = ["http://one", "http://other"].map(host);
    let take = |host: &Host| keys.take_at(host, Priority::Miss);
    take(&one)
        .ok()
        .unwrap()
        .mark_refused(StatusCode::UNAUTHORIZED);
    take(&other).ok().unwrap().throttle(Duration::from_secs(5));
    let denied = |host: &Host| take(host).err();
    assert_eq!(
        denied(&one),
        Some(Denied::Refused(StatusCode::UNAUTHORIZED))
    );
    assert_eq!(denied(&other), Some(spent_for(5_000)));
    for (host, seconds, rests) in [(&one, 59, true), (&one, 60, false), (&other, 4, true)] {
        let longer_than = Duration::from_secs(seconds);
        assert_eq!(
            keys.all_unusable_at(host, longer_than),
            rests,
            "{host} {seconds}"
        );
    }
    let standing = &keys.snapshots()[0];
    assert_eq!(standing.worst().state(), "quarantined");
    let states = standing.hosts.iter().map(|(_, at)| at.state());
    assert_eq!(states.collect::<Vec<_>>(), ["quarantined", "cooling"]);
    // The budget is one for all hosts.
    clock.advance(Duration::from_secs(5));
    for _ in 0..2 {
        take(&other).ok().unwrap();
    }
    assert!(matches!(denied(&other), Some(Denied::For(_))));
    assert!(matches!(
        denied(&host("http://third")),
        Some(Denied::For(_))
    ));
    // One that is brought back is tried at each host.
    for list in ["another", "a-key"] {
        keys.replace(ApiKey::list(list).unwrap(), server(), rates(4, 0));
    }
    assert!(!keys.all_unusable_at(&one, Duration::ZERO));
}
