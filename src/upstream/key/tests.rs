//! Keys: lists, secrecy, selection, cooldowns, refusals, and shared budgets.

use crate::clock::Clock;
use crate::state::Spent;
use crate::upstream::keys::{ApiKey, Budgets, Keys};

use super::*;
use crate::config::Config;
use crate::reason::Reason;
use crate::upstream::Failure;
use crate::upstream::keys::PooledKey;
use crate::upstream::{Priority, ProviderKeys, RequestPriority, Settings, Upstreams};

mod model;

fn host(name: &str) -> Host {
    name.into()
}

/// The keys of one upstream that sends them to these hosts.
fn keys_at(
    list: &str,
    rates: (u32, u32),
    hosts: &[&str],
    budgets: &Arc<Budgets>,
    clock: &Clock,
) -> Keys {
    let list = ApiKey::list(list).unwrap_or_default();
    let keys = Keys::new(list, budgets.clone(), clock.clone());
    configure(&keys, rates, hosts, clock);
    keys
}

fn configure(keys: &Keys, rates: (u32, u32), hosts: &[&str], clock: &Clock) {
    for key in keys.of_process() {
        let how = KeyUse {
            limits: limits(rates),
            probes: 0,
            hosts: hosts.iter().map(|name| host(name)).collect(),
        };
        key.configure(how, clock.now());
    }
}

/// Limits a minute and a second; 0 is none.
fn limits((per_minute, per_second): (u32, u32)) -> Limits {
    let limit = |limit| Some(limit).filter(|limit| *limit > 0);
    Limits {
        per_minute: limit(per_minute),
        per_second: limit(per_second),
    }
}

fn snapshot(keys: &Keys) -> Value {
    keys.snapshots(&[host("http://server")]).remove(0)
}

/// So many replicas without an engine.
fn replicas(count: u32, clock: &Clock) -> Arc<Shared> {
    let settings = crate::shared::Settings::of(std::num::NonZeroU32::new(count).unwrap());
    Shared::new(settings, None, clock)
}

fn keys(list: &str, per_minute: u32, per_second: u32, clock: &Clock) -> Keys {
    let budgets = Arc::default();
    keys_at(
        list,
        (per_minute, per_second),
        &["http://server"],
        &budgets,
        clock,
    )
}

/// A request that counts: one that was not sent is taken back.
struct Charge {
    clock: Clock,
    key: Arc<PooledKey>,
    host: Host,
    is_of_pool: bool,
    is_sent: bool,
}

impl Charge {
    fn name(&self) -> &str {
        self.key.name()
    }

    fn cool_down(&self, seconds: u64) {
        let until = self.clock.now() + Duration::from_secs(seconds);
        self.key.key.state().cool_down(&self.host, until);
    }

    fn refuse(&self, status: StatusCode) {
        let now = self.clock.now();
        self.key.key.state().set_aside(&self.host, status, now);
    }

    fn accept(&self) {
        self.key.key.state().accept(&self.host, self.clock.now());
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let ended = self.is_sent.then(|| self.clock.now());
        self.key.key.state().end(&self.host, self.is_of_pool, ended);
    }
}

/// One request to a host, which is a probe.
fn probe_at(keys: &Keys, to: &str) -> Result<Charge, Failure> {
    take(keys, to, true)
}

fn take(keys: &Keys, to: &str, is_probe: bool) -> Result<Charge, Failure> {
    let host = host(to);
    let (key, is_of_pool) = keys.take(&host, is_probe)?;
    Ok(Charge {
        clock: keys.clock.clone(),
        key,
        host,
        is_of_pool,
        is_sent: false,
    })
}

/// One request for a client to the only host.
fn miss(keys: &Keys) -> Result<Charge, Failure> {
    take(keys, "http://server", false)
}

fn taken(keys: &Keys) -> Charge {
    miss(keys).expect("there is budget")
}

/// For how long a request is denied.
fn denied_for(denied: Result<Charge, Failure>) -> Option<Duration> {
    denied.err()?.retry_after
}

/// The keys after a reload.
fn after(keys: &Keys, list: &str, rates: (u32, u32), clock: &Clock) -> Keys {
    let list = ApiKey::list(list).unwrap_or_default();
    let next = Keys::new(list, keys.budgets.clone(), clock.clone());
    configure(&next, rates, &["http://server"], clock);
    next
}

/// Sends a request, which ends at once.
fn send(charge: Result<Charge, Failure>) -> Option<String> {
    let mut charge = charge.ok()?;
    charge.is_sent = true;
    Some(charge.name().to_owned())
}

fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

/// A request in flight keeps its key after it was withdrawn.
#[test]
fn answers_are_searched_for_keys_that_are_in_use() {
    let clock = Clock::manual();
    let old = keys("withdrawn-key-one", 1, 1, &clock);
    let in_flight = taken(&old);
    let new = after(&old, "present-key-one", (1, 1), &clock);
    drop(old);
    let is_searched = |value: &str| new.searched().iter().any(|key| *key.value() == value);
    assert!(is_searched("present-key-one") && is_searched("withdrawn-key-one"));
    drop(in_flight);
    // Other tests may hold it for a moment, when they read the list of all keys.
    let pause = || std::thread::sleep(Duration::from_millis(1));
    assert!((0..5_000).any(|_| {
        pause();
        !is_searched("withdrawn-key-one")
    }));
    assert!(after(&new, "", (0, 0), &clock).searched().is_empty());
}

#[test]
fn the_key_with_the_most_left_is_used() {
    let clock = Clock::manual();
    let keys = keys("a,b", 2, 2, &clock);
    let names: Vec<_> = (0..5).map(|_| send(miss(&keys))).collect();
    let expected = [
        Some("key-1"),
        Some("key-2"),
        Some("key-1"),
        Some("key-2"),
        None,
    ];
    assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
    assert_eq!(denied_for(miss(&keys)), millis(60_050));
}

#[test]
fn without_a_key_there_is_no_budget() {
    let clock = Clock::manual();
    let keys = keys("", 0, 0, &clock);
    let under_way: Vec<_> = (0..2_000).map(|_| taken(&keys)).collect();
    assert!(under_way[0].key.api.is_none());
    assert_eq!(snapshot(&keys)["budget_left"], Value::Null);
    // What the server reports applies all the same.
    under_way[0].cool_down(7);
    assert_eq!(denied_for(miss(&keys)), millis(7_000));
}

#[test]
fn a_refused_key_is_tried_each_minute() {
    let clock = Clock::manual();
    let (keys, status) = (keys("a", 100, 100, &clock), StatusCode::FORBIDDEN);
    let early = taken(&keys);
    taken(&keys).refuse(status);
    early.accept();
    for _ in 0..3 {
        let at = snapshot(&keys);
        assert_eq!(
            [&at["state"], &at["unusable_seconds"]],
            [&json!("quarantined"), &json!(60.0)]
        );
        clock.advance(SET_ASIDE - Duration::from_millis(1));
        let denied = miss(&keys).err().unwrap();
        let found = (denied.reason, denied.received, denied.retry_after);
        assert_eq!(found, (Reason::KeyRefused, Some(status), millis(1)));
        clock.advance(Duration::from_millis(1));
        taken(&keys).refuse(status);
    }
    clock.advance(SET_ASIDE);
    taken(&keys).accept();
    assert_eq!(snapshot(&keys)["state"], "ready");
}

#[test]
fn a_silent_host_leaves_a_quarter_to_another() {
    let clock = Clock::manual();
    let budgets = Arc::default();
    let keys = keys_at(
        "a",
        (0, 20),
        &["http://server", "http://other"],
        &budgets,
        &clock,
    );
    let all = |name: &str| {
        let all = std::iter::from_fn(|| probe_at(&keys, name).ok());
        all.collect::<Vec<_>>()
    };
    let silent = all("http://server");
    assert_eq!(silent.len(), 15);
    assert!(keys.all_unusable_at(&host("http://server"), Duration::MAX));
    assert_eq!(all("http://other").len(), 5);
    drop(silent);
    assert!(!keys.all_unusable_at(&host("http://server"), Duration::MAX));
}
