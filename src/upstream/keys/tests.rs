//! Keys: lists, secrecy, selection and suspension.

use super::*;
use crate::upstream::admission::budgets::REMEMBERED;

mod given_up;
mod refusals;
mod shared_budget;

fn host(name: &str) -> Host {
    name.into()
}

impl BudgetPermit {
    /// The request is sent on a connection of its own.
    pub(crate) fn mark_sent_alone(&mut self) {
        use crate::upstream::connection::{Connection, SendPath};
        self.mark_sent(SendPath::known(Connection::default()), &Arc::default());
    }
}

impl Keys {
    /// A permit for a request to the only host.
    pub(crate) fn take(
        self: &Arc<Self>,
        priority: impl Into<RequestPriority>,
    ) -> Result<BudgetPermit, Denied> {
        self.take_at(&host("http://server"), priority)
    }

    /// The same, where a permit is free.
    fn permit(self: &Arc<Self>, priority: impl Into<RequestPriority>) -> BudgetPermit {
        self.take(priority).expect("a permit is free")
    }

    /// How many permits for probes are free.
    fn free_permits(self: &Arc<Self>) -> usize {
        let permits = std::iter::from_fn(|| self.take(Priority::Probe).ok());
        permits.collect::<Vec<_>>().len()
    }

    /// The worst state of the first key at any host.
    fn worst(&self) -> KeySnapshotAtHost {
        self.snapshots()[0].worst()
    }

    /// How many requests the first key has left.
    fn left(&self) -> Option<usize> {
        self.snapshots()[0].remaining
    }

    fn replace_with(&self, list: &str, rates: Rates) {
        self.replace(ApiKey::list(list).unwrap_or_default(), server(), rates);
    }
}

fn server() -> BudgetOwner {
    BudgetOwner::Server("server:80".into())
}

/// The keys of one of several upstreams.
fn upstream(
    list: &str,
    server: BudgetOwner,
    rates: Rates,
    budgets: &Arc<Budgets>,
    clock: &Clock,
) -> Arc<Keys> {
    let list = ApiKey::list(list).unwrap_or_default();
    let (budgets, queue) = (budgets.clone(), AdmissionQueue::new(10, clock.clone()));
    Keys::new(
        "default",
        list,
        server,
        rates,
        budgets,
        queue,
        clock.clone(),
    )
}

fn keys(list: &str, per_minute: u32, per_second: u32, clock: &Clock) -> Arc<Keys> {
    let rates = Rates::of(per_minute, per_second);
    upstream(list, server(), rates, &Budgets::new(), clock)
}

fn spent_for(millis: u64) -> Denied {
    Denied::SpentFor(Duration::from_millis(millis))
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
fn a_key_that_is_listed_twice_has_one_budget() {
    let clock = Clock::manual();
    let keys = keys("a,a,b,a", 1, 1, &clock);
    let mut names = Vec::new();
    while let Ok(permit) = keys.take(Priority::Miss) {
        names.push(permit.name().to_owned());
    }
    assert_eq!(
        names,
        ["key-1", "key-3"],
        "named by their numbers in the list"
    );
}

#[test]
fn a_cooling_key_is_not_used() {
    let clock = Clock::manual();
    let keys = keys("a,b", 10, 10, &clock);
    keys.permit(Priority::Miss)
        .start_cooldown(Duration::from_secs(7));
    for _ in 0..3 {
        assert_eq!(keys.permit(Priority::Miss).name(), "key-2");
    }
    keys.permit(Priority::Miss)
        .start_cooldown(Duration::from_secs(9));
    let spent = keys.take(Priority::Miss).err().unwrap();
    assert_eq!(spent, spent_for(7000));
    clock.advance(Duration::from_secs(7));
    assert_eq!(keys.permit(Priority::Miss).name(), "key-1");
}

#[test]
fn a_removed_key_keeps_its_spent_budget() {
    let clock = Clock::manual();
    let keys = keys("", 1, 1, &clock);
    let without = keys.take(Priority::Miss).ok();
    let replace = |list: &str| keys.replace_with(list, Rates::of(1, 1));
    let take = || {
        let permit = keys.take(Priority::Miss).ok();
        permit.map(|permit| permit.name().to_owned())
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
    let found = keys.find_key_in(b"second-key");
    assert!(found.is_some(), "an answer may still contain it");
    let elsewhere = keys.elsewhere();
    elsewhere.replace_with("third-key", Rates::of(1, 1));
    let spent = elsewhere.take(Priority::Miss);
    assert!(
        spent.is_err(),
        "the provider may count it in the same budget"
    );
    drop(without);
    clock.advance(Duration::from_secs(61));
    assert_eq!(take().as_deref(), Some("none"));
    clock.advance(REMEMBERED);
    replace("");
    assert!(keys.find_key_in(b"second-key").is_none());
}

#[test]
fn without_keys_requests_have_a_budget() {
    let clock = Clock::manual();
    let keys = keys("", 1, 1, &clock);
    let permit = keys.permit(Priority::Miss);
    assert!(permit.header().is_none());
    assert!(keys.take(Priority::Miss).is_err(), "one is under way");
}

#[test]
fn the_wait_for_a_cooling_key_includes_its_budget() {
    let clock = Clock::manual();
    let keys = keys("a", 1, 1, &clock);
    keys.permit(Priority::Miss)
        .start_cooldown(Duration::from_secs(7));
    let spent = keys.take(Priority::Miss).err().unwrap();
    assert_eq!(spent, spent_for(60_050));
}

#[test]
fn a_request_under_way_counts_after_its_key_is_forgotten() {
    let clock = Clock::manual();
    let keys = keys("first-key", 1, 1, &clock);
    let under_way = keys.take(Priority::Miss).ok();
    for list in ["second-key", "third-key", "first-key"] {
        keys.replace_with(list, Rates::of(1, 1));
        clock.advance(REMEMBERED);
    }
    assert!(keys.take(Priority::Miss).is_err(), "it still counts");
    drop(under_way);
}
