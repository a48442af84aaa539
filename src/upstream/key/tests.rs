//! Keys: lists, secrecy, selection, cooldowns, refusals, and shared budgets.

use crate::clock::Clock;
use crate::state::Spent;
use crate::upstream::keys::{ApiKey, BadKeys, Budgets, Keys, UNKNOWN};

use super::*;
use crate::upstream::keys::PooledKey;

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
    let queue = RequestQueue::new(clock.clone());
    let (rates, hosts) = (
        Rates::of(rates.0, rates.1),
        hosts.iter().map(|name| host(name)),
    );
    Keys::new(
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

/// A request that counts: one that was not sent is taken back.
pub(super) struct Charge {
    clock: Clock,
    key: Arc<PooledKey>,
    host: Host,
    taken: Taken,
    part: Part,
    is_sent: bool,
}

impl Charge {
    fn name(&self) -> &str {
        self.key.name()
    }

    fn cool_down(&self, seconds: u64) {
        let until = self.clock.now() + Duration::from_secs(seconds);
        self.key.key.cool_down(&self.host, until);
    }

    fn refuse(&self, status: StatusCode) {
        let now = self.clock.now();
        self.key.key.set_aside(&self.host, status, self.taken, now);
    }

    fn accept(&self) {
        self.key.key.accept(&self.host, self.taken);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        match self.is_sent {
            true => self.key.key.end(&self.host, self.part, self.clock.now()),
            false => self.key.key.cancel(&self.host, self.part),
        }
    }
}

/// One request to a host, which is a probe.
fn probe_at(keys: &Keys, to: &str) -> Result<Charge, Denied> {
    take(keys, to, true)
}

fn take(keys: &Keys, to: &str, is_probe: bool) -> Result<Charge, Denied> {
    let host = host(to);
    let (key, taken, part) = keys.take(&host, is_probe)?;
    Ok(Charge {
        clock: keys.clock.clone(),
        key,
        host,
        taken,
        part,
        is_sent: false,
    })
}

/// One request for a client to the only host.
fn miss(keys: &Keys) -> Result<Charge, Denied> {
    take(keys, "http://server", false)
}

fn taken(keys: &Keys) -> Charge {
    miss(keys).ok().expect("there is budget")
}

/// For how long a request is denied.
fn denied_for(denied: Result<Charge, Denied>) -> Option<Duration> {
    denied.err()?.wait
}

fn replace_with(keys: &Keys, list: &str, rates: (u32, u32)) {
    let list = ApiKey::list(list).unwrap_or_default();
    keys.replace(
        list,
        Rates::of(rates.0, rates.1),
        vec![host("http://server")],
    );
}

/// Sends a request, which ends at once.
fn send(charge: Result<Charge, Denied>) -> Option<String> {
    let mut charge = charge.ok()?;
    charge.is_sent = true;
    Some(charge.name().to_owned())
}

fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
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
}

#[test]
fn a_key_is_found_in_its_encodings() {
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
    replace_with(&keys, "third-key", (1, 1));
    assert!(
        keys.find_key_in(b"another-key").is_some(),
        "an answer may still contain it"
    );
    clock.advance(Duration::from_hours(1));
    replace_with(&keys, "third-key", (1, 1));
    assert!(keys.find_key_in(b"another-key").is_none());
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
    assert_eq!(keys.snapshots()[0].remaining, None);
    // What the server reports applies all the same.
    under_way[0].cool_down(7);
    assert_eq!(denied_for(miss(&keys)), millis(7_000));
}

#[test]
fn a_cooling_key_is_not_used_at_its_host() {
    let clock = Clock::manual();
    let keys = keys("a,b", 10, 10, &clock);
    taken(&keys).cool_down(7);
    for _ in 0..3 {
        assert_eq!(taken(&keys).name(), "key-2");
    }
    let other = take(&keys, "http://other", false).ok().unwrap();
    assert_eq!(other.name(), "key-1");
    drop(other);
    taken(&keys).cool_down(9);
    assert_eq!(denied_for(miss(&keys)), millis(7_000));
    clock.advance(Duration::from_secs(7));
    assert_eq!(taken(&keys).name(), "key-1");
}

#[test]
fn a_refused_key_is_set_aside_for_longer_each_time() {
    let clock = Clock::manual();
    let (keys, status) = (keys("a", 100, 100, &clock), StatusCode::FORBIDDEN);
    let early = taken(&keys);
    let refused = taken(&keys);
    refused.refuse(status);
    early.refuse(status);
    early.accept();
    drop((early, refused));
    for pause in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
        let at = keys.snapshots()[0].worst();
        assert_eq!(
            (at.refused, at.unusable_for),
            (Some(status), Duration::from_secs(pause))
        );
        clock.advance(Duration::from_secs(pause) - Duration::from_millis(1));
        let denied = miss(&keys).err().unwrap().failure;
        assert_eq!(denied, Failure::status(Reason::KeyRefused, status));
        clock.advance(Duration::from_millis(1));
        let trial = taken(&keys);
        assert!(miss(&keys).is_err(), "one request tries it");
        trial.refuse(status);
    }
    clock.advance(Duration::from_hours(1));
    taken(&keys).accept();
    assert_eq!(keys.snapshots()[0].worst().state(), "ready");
    // A reload that configures it again tries it at once.
    taken(&keys).refuse(status);
    replace_with(&keys, "b", (100, 100));
    replace_with(&keys, "a", (100, 100));
    assert_eq!(taken(&keys).name(), "key-1");
}

#[test]
fn two_upstreams_with_one_key_have_one_budget_and_the_strictest_limits() {
    let clock = Clock::manual();
    let budgets = Arc::new(Budgets::new(None, Spent::default()));
    let new = |rates| keys_at("a", rates, &["http://server"], &budgets, &clock);
    let (one, other) = (new((3, 9)), new((9, 9)));
    assert!(send(miss(&one)).is_some() && send(miss(&other)).is_some());
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
    assert!(send(probe_at(&keys, "http://server")).is_some());
    assert!(probe_at(&keys, "http://server").is_err());
    clock.advance(Duration::from_millis(1_005));
    assert!(send(probe_at(&keys, "http://server")).is_some());
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
    let all = |name: &str| {
        let all = std::iter::from_fn(|| probe_at(&keys, name).ok());
        all.collect::<Vec<_>>()
    };
    let silent = all("http://server");
    assert_eq!(silent.len(), 15);
    assert!(keys.all_unusable_at(&host("http://server"), Duration::MAX));
    assert_eq!(all("http://other").len(), 3);
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
    assert_eq!(denied_for(probe_at(&keys, "http://server")), millis(40_000));
    let unknown = budgets.unknown(clock.now());
    assert_eq!(unknown, Some((Duration::from_secs(40), UNKNOWN)));
    assert_eq!(keys.unknown_because(), Some(UNKNOWN));
    clock.advance(Duration::from_secs(40));
    assert!(probe_at(&keys, "http://server").is_ok());
    assert_eq!(keys.unknown_because(), None);
}
