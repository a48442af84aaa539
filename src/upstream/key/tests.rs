//! Keys: lists, secrecy, selection, cooldowns, refusals, and shared budgets.

use crate::clock::Clock;
use crate::state::Spent;
use crate::upstream::Priority;
use crate::upstream::charge::Charge;
use crate::upstream::keys::{ApiKey, Budgets, Keys, UNKNOWN};

use super::*;
use crate::identify::Client;
use crate::upstream::RequestPriority;

mod model;

pub(super) fn host(name: &str) -> Host {
    name.into()
}

/// The keys of one upstream that sends them to these hosts.
pub(super) fn keys_at(
    list: &str,
    rates: (u32, u32),
    hosts: &[&str],
    budgets: &Arc<Budgets>,
    clock: &Clock,
) -> Arc<Keys> {
    let list = ApiKey::list(list).unwrap_or_default();
    let queue = AdmissionQueue::new(10, clock.clone());
    let (rates, hosts) = (
        Rates::of(rates.0, rates.1),
        hosts.iter().map(|name| host(name)),
    );
    Keys::new(
        "default",
        (list, rates),
        hosts.collect(),
        budgets.clone(),
        queue,
        clock.clone(),
    )
}

/// So many replicas without an engine.
pub(super) fn replicas(count: u32, clock: &Clock) -> Arc<Shared> {
    let settings = crate::shared::Settings {
        replicas: std::num::NonZeroU32::new(count).unwrap(),
        engine: None,
        prefix: String::new(),
        timeout: Duration::from_secs(1),
        fill_wait: Duration::from_secs(1),
    };
    Shared::new(settings, None, clock)
}

pub(crate) fn keys(list: &str, per_minute: u32, per_second: u32, clock: &Clock) -> Arc<Keys> {
    let budgets = Arc::new(Budgets::new(None, Spent::default()));
    keys_at(
        list,
        (per_minute, per_second),
        &["http://server"],
        &budgets,
        clock,
    )
}

impl Keys {
    /// One request to the only host.
    pub(crate) fn take(self: &Arc<Self>, priority: Priority) -> Result<Charge, Denied> {
        self.take_at(&host("http://server"), priority)
    }

    fn taken(self: &Arc<Self>) -> Charge {
        self.take(Priority::Miss).expect("there is budget")
    }

    fn replace_with(&self, list: &str, rates: (u32, u32)) {
        let list = ApiKey::list(list).unwrap_or_default();
        self.replace(
            list,
            Rates::of(rates.0, rates.1),
            vec![host("http://server")],
        );
    }
}

/// Sends a request, which ends at once.
fn send(charge: Result<Charge, Denied>) -> Option<String> {
    let mut charge = charge.ok()?;
    charge.mark_sent();
    Some(charge.name().to_owned())
}

fn spent_for(millis: u64) -> Denied {
    Denied::SpentFor(Duration::from_millis(millis))
}

#[test]
fn answers_are_searched_for_a_withdrawn_key_for_an_hour() {
    let clock = Clock::manual();
    let keys = keys("short,another-key", 1, 1, &clock);
    let searched = || {
        let searched = keys.searched();
        let values = searched.iter().map(|key| key.value().clone());
        values.collect::<Vec<_>>()
    };
    assert_eq!(searched(), ["another-key"]);
    keys.replace_with("third-key", (1, 1));
    assert_eq!(searched(), ["third-key", "another-key"]);
    clock.advance(Duration::from_hours(1));
    keys.replace_with("third-key", (1, 1));
    assert_eq!(searched(), ["third-key"]);
}

#[test]
fn the_key_with_the_most_left_is_used() {
    let clock = Clock::manual();
    let keys = keys("a,b", 2, 2, &clock);
    let names: Vec<_> = (0..5).map(|_| send(keys.take(Priority::Miss))).collect();
    let expected = [
        Some("key-1"),
        Some("key-2"),
        Some("key-1"),
        Some("key-2"),
        None,
    ];
    assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
    assert_eq!(keys.take(Priority::Miss).err(), Some(spent_for(60_050)));
}

#[test]
fn without_a_key_there_is_no_budget() {
    let clock = Clock::manual();
    let keys = keys("", 0, 0, &clock);
    let under_way: Vec<_> = (0..2_000).map(|_| keys.taken()).collect();
    assert!(under_way[0].header().is_none());
    assert_eq!(keys.snapshots()[0].remaining, None);
    // What the server reports applies all the same.
    under_way[0].start_cooldown(Duration::from_secs(7));
    assert_eq!(keys.take(Priority::Miss).err(), Some(spent_for(7_000)));
}

#[test]
fn a_cooling_key_is_not_used_at_its_host() {
    let clock = Clock::manual();
    let keys = keys("a,b", 10, 10, &clock);
    keys.taken().start_cooldown(Duration::from_secs(7));
    for _ in 0..3 {
        assert_eq!(keys.taken().name(), "key-2");
    }
    let other = keys.take_at(&host("http://other"), Priority::Miss).unwrap();
    assert_eq!(other.name(), "key-1");
    drop(other);
    keys.taken().start_cooldown(Duration::from_secs(9));
    assert_eq!(keys.take(Priority::Miss).err(), Some(spent_for(7_000)));
    clock.advance(Duration::from_secs(7));
    assert_eq!(keys.taken().name(), "key-1");
}

#[test]
fn a_refused_key_is_set_aside_for_longer_each_time() {
    let clock = Clock::manual();
    let (keys, status) = (keys("a", 100, 100, &clock), StatusCode::FORBIDDEN);
    let early = keys.taken();
    let refused = keys.taken();
    refused.mark_refused(status);
    early.mark_refused(status);
    early.mark_accepted();
    drop((early, refused));
    for pause in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
        let at = keys.snapshots()[0].worst();
        assert_eq!(
            (at.refused, at.unusable_for),
            (Some(status), Duration::from_secs(pause))
        );
        clock.advance(Duration::from_secs(pause) - Duration::from_millis(1));
        assert_eq!(
            keys.take(Priority::Miss).err(),
            Some(Denied::KeyRefused(status))
        );
        clock.advance(Duration::from_millis(1));
        let trial = keys.taken();
        assert!(keys.take(Priority::Miss).is_err(), "one request tries it");
        trial.mark_refused(status);
    }
    clock.advance(Duration::from_hours(1));
    keys.taken().mark_accepted();
    assert_eq!(keys.snapshots()[0].worst().state(), "ready");
    // A reload that configures it again tries it at once.
    keys.taken().mark_refused(status);
    keys.replace_with("b", (100, 100));
    keys.replace_with("a", (100, 100));
    assert_eq!(keys.taken().name(), "key-1");
}

#[test]
fn two_upstreams_with_one_key_have_one_budget_and_the_strictest_limits() {
    let clock = Clock::manual();
    let budgets = Arc::new(Budgets::new(None, Spent::default()));
    let new = |rates| keys_at("a", rates, &["http://server"], &budgets, &clock);
    let (one, other) = (new((3, 9)), new((9, 9)));
    assert!(send(one.take(Priority::Miss)).is_some() && send(other.take(Priority::Miss)).is_some());
    assert_eq!(one.snapshots()[0].remaining, Some(1));
    assert_eq!(other.snapshots()[0].per_minute, Some(3));
    // One that is rejected, or removed, leaves nothing behind.
    drop(new((2, 2)));
    assert_eq!(other.snapshots()[0].per_minute, Some(3));
    one.retire();
    assert_eq!(other.snapshots()[0].remaining, Some(7));
    drop((one, other));
    assert_eq!(
        new((9, 9)).snapshots()[0].remaining,
        Some(7),
        "it was not forgotten"
    );
    clock.advance(Duration::from_secs(61));
    assert_eq!(new((9, 9)).snapshots()[0].remaining, Some(9));
}

#[test]
fn replicas_divide_a_budget() {
    let clock = Clock::manual();
    let budgets = Arc::new(Budgets::new(Some(replicas(3, &clock)), Spent::default()));
    let keys = keys_at("a", (10, 5), &["http://server"], &budgets, &clock);
    assert_eq!(keys.snapshots()[0].per_minute, Some(3));
    assert!(send(keys.take(Priority::Probe)).is_some());
    assert!(keys.take(Priority::Probe).is_err());
    clock.advance(Duration::from_millis(1_005));
    assert!(send(keys.take(Priority::Probe)).is_some());
}

#[test]
fn a_silent_host_leaves_a_quarter_to_another() {
    let clock = Clock::manual();
    let budgets = Arc::new(Budgets::new(None, Spent::default()));
    let keys = keys_at(
        "a",
        (0, 20),
        &["http://server", "http://other"],
        &budgets,
        &clock,
    );
    let take = |name: &str| {
        let all = std::iter::from_fn(|| keys.take_at(&host(name), Priority::Probe).ok());
        all.collect::<Vec<_>>()
    };
    let silent = take("http://server");
    assert_eq!(silent.len(), 15);
    assert!(keys.all_unusable_at(&host("http://server"), Duration::MAX));
    assert_eq!(take("http://other").len(), 3);
    drop(silent);
    assert!(!keys.all_unusable_at(&host("http://server"), Duration::MAX));
}

#[test]
fn what_was_spent_before_the_start_may_be_unknown() {
    let clock = Clock::manual();
    let keys = keys("a", 9, 9, &clock);
    let budgets = keys.budgets();
    let key = budgets.key(&HeaderValue::from_static("a"), clock.now());
    let earlier = Earlier {
        ages: vec![Duration::from_secs(50)],
        unknown_for: Duration::from_secs(40),
    };
    key.count_earlier(&earlier, clock.now());
    assert_eq!(keys.take(Priority::Probe).err(), Some(spent_for(40_000)));
    let unknown = budgets.unknown(clock.now());
    assert_eq!(unknown, Some((Duration::from_secs(40), UNKNOWN)));
    assert_eq!(keys.unknown_because(), Some(UNKNOWN));
    clock.advance(Duration::from_secs(40));
    assert!(keys.take(Priority::Probe).is_ok());
    assert_eq!(keys.unknown_because(), None);
}

/// A request that is not sent costs neither the key nor its client anything.
#[test]
fn what_is_not_sent_is_given_back() {
    let clock = Clock::manual();
    let keys = keys("a-key", 2, 2, &clock);
    let client = Client::V4(1);
    let priority = RequestPriority::of(client, Priority::Miss);
    let server = host("http://server");
    for (is_sent, left, recent) in [(false, 2, 0.0), (true, 1, 1.0)] {
        let mut charge = keys.take_at(&server, priority).unwrap();
        if is_sent {
            charge.mark_sent();
        }
        drop(charge);
        assert_eq!(keys.snapshots()[0].remaining, Some(left));
        let usage = keys.queue.busiest_clients(1);
        let usage: f64 = usage.iter().map(|client| client.recent).sum();
        assert!((usage - recent).abs() < 1e-9, "{usage}");
    }
}
