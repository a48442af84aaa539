//! The provider's keys, and who may use one when.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header. An [`ApiKey`] has no `Display`, its `Debug` says its name alone, and
//! its header value is marked sensitive.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderValue;
use memchr::memmem::Finder;
use tokio::sync::{Notify, Semaphore};

use super::budget::{Budget, Keep, Wait};
use crate::clock::{Clock, Moment};

/// A key of the provider.
#[derive(Clone)]
pub struct ApiKey {
    name: Arc<str>,
    value: HeaderValue,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [redacted]", self.name)
    }
}

/// Why a list of keys cannot be used. Says which one, never what it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A key that no header field can carry.
    #[error(
        "API key number {0} has a character that a header field cannot carry: visible ASCII is allowed"
    )]
    Character(usize),
    /// The list is there, but has no key in it.
    #[error("there is no API key in it: give one or more, separated by commas or line ends")]
    Empty,
}

impl ApiKey {
    /// Reads a list of keys, separated by commas or line ends. One that comes
    /// twice is one key: the provider counts it once, and so must its budget.
    ///
    /// # Errors
    /// Where there is none, or one has characters that it cannot have.
    pub fn list(text: &str) -> Result<Vec<Self>, BadKeys> {
        let parts = text.split([',', '\n', '\r']).map(str::trim);
        let mut keys: Vec<Self> = Vec::new();
        for (at, part) in parts.filter(|part| !part.is_empty()).enumerate() {
            let visible = part.bytes().all(|b| b.is_ascii_graphic());
            let value = HeaderValue::from_str(part).ok().filter(|_| visible);
            let mut value = value.ok_or(BadKeys::Character(at + 1))?;
            if keys.iter().any(|key| key.value == value) {
                continue;
            }
            value.set_sensitive(true);
            keys.push(Self {
                name: format!("key-{}", at + 1).into(),
                value,
            });
        }
        match keys.is_empty() {
            true => Err(BadKeys::Empty),
            false => Ok(keys),
        }
    }

    /// What it is called in logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What gives it away: itself, and as a JSON string spells it, with the
    /// escapes that must be and with the one that some writers add.
    fn traces(&self) -> Vec<Trace> {
        let plain = self.value.to_str().unwrap_or("");
        if plain.len() < LEAST_SEARCHED {
            return Vec::new();
        }
        let escaped = plain.replace('\\', r"\\").replace('"', r#"\""#);
        let slashed = escaped.replace('/', r"\/");
        let mut forms = vec![plain.to_owned(), escaped, slashed];
        forms.dedup();
        let trace = |form: String| Trace {
            name: self.name.clone(),
            finder: Finder::new(form.as_bytes()).into_owned(),
        };
        forms.into_iter().map(trace).collect()
    }
}

/// The keys of one upstream with their budgets; or, where there is none, the
/// budget of asking without. A reload may put others in their place: who waits
/// for budget gets one of those then.
pub struct Keys {
    pool: RwLock<Arc<Pool>>,
    clock: Clock,
    /// Those who wait for budget do so in the order of their coming.
    turnstile: Semaphore,
    ended: Arc<Notify>,
    /// Whether a share is kept for probes.
    with_probes: AtomicBool,
}

/// The keys as of the last reload.
#[derive(Default)]
struct Pool {
    slots: Box<[Arc<Slot>]>,
    /// Those that were withdrawn lately, and when: one that comes back has spent
    /// what it had spent.
    withdrawn: Vec<(Moment, Arc<Slot>)>,
    /// What gives a key away, and whose it is.
    traces: Box<[Trace]>,
}

/// How long a withdrawn key is remembered at the least: far longer than a
/// window of its budget, or an answer that was asked for with it.
const WITHDRAWN: Duration = Duration::from_hours(1);

struct Trace {
    name: Arc<str>,
    finder: Finder<'static>,
}

/// The shortest key that is searched for: a shorter one would be found in
/// answers by chance.
const LEAST_SEARCHED: usize = 8;

struct Slot {
    key: Option<ApiKey>,
    state: Arc<Mutex<State>>,
}

struct State {
    budget: Budget,
    /// No request before then: the upstream has said so.
    cool_until: Moment,
}

/// The right to send one request, with a key or without. It counts against the
/// budget as under way until it is dropped.
pub struct Grant {
    keys: Arc<Keys>,
    slot: Arc<Slot>,
}

/// How urgent a request is: what there is of the budget goes to the more urgent
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// What the tip is. It passes those who wait, and a twentieth of the budget
    /// is kept for it.
    Probe,
    /// What a client waits for.
    Miss,
    /// What may be asked for. It does not wait, and leaves half of the budget.
    LookAhead,
}

/// No budget is left within the caller's patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// When there will be some, at the earliest.
    pub retry_after: Duration,
}

/// How a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The key's name, or `none`.
    pub name: String,
    /// Requests left in this minute.
    pub left: usize,
    /// How long the upstream wants none at all.
    pub cooling: Duration,
}

impl Keys {
    /// Keys of which each has a budget as `budget` makes it.
    pub fn new(keys: Vec<ApiKey>, budget: impl Fn() -> Budget, clock: Clock) -> Arc<Self> {
        let pool = Pool::default().next(keys, budget, clock.now());
        Arc::new(Self {
            pool: RwLock::new(Arc::new(pool)),
            clock,
            turnstile: Semaphore::new(1),
            ended: Arc::default(),
            with_probes: AtomicBool::new(false),
        })
    }

    /// Puts other keys in the place of these, or bounds. A key that stays has
    /// spent what it has spent; one that goes finishes what is under way with
    /// it.
    pub fn replace(&self, keys: Vec<ApiKey>, per_minute: NonZeroU32, per_second: NonZeroU32) {
        let mut pool = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let budget = || Budget::new(per_minute, per_second);
        let next = pool.next(keys, budget, self.clock.now());
        for slot in &next.slots {
            slot.state().budget.bound(per_minute, per_second);
        }
        *pool = Arc::new(next);
        drop(pool);
        // There may be more to take.
        self.ended.notify_waiters();
    }

    /// The keys of another upstream, none as yet. Who waits for one of these is
    /// not given one of those; but what a key has spent here, it has spent there
    /// as well.
    pub fn elsewhere(&self) -> Arc<Self> {
        let now = self.clock.now();
        let pool = self.pool();
        let present = pool.slots.iter().map(|slot| (now, slot.clone()));
        let withdrawn = present.chain(pool.withdrawn.iter().cloned()).collect();
        Arc::new(Self {
            pool: RwLock::new(Arc::new(Pool {
                withdrawn,
                ..Pool::default()
            })),
            clock: self.clock.clone(),
            turnstile: Semaphore::new(1),
            ended: self.ended.clone(),
            with_probes: AtomicBool::new(self.with_probes.load(Ordering::Relaxed)),
        })
    }

    fn pool(&self) -> Arc<Pool> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.clone()
    }

    /// Keeps a share for probes from now on.
    pub fn keep_for_probes(&self) {
        self.with_probes.store(true, Ordering::Relaxed);
    }

    /// Takes the right to send one request, from the key with the most left,
    /// waiting for so long at the most.
    ///
    /// # Errors
    /// Where there will be none within that time.
    pub async fn take(
        self: &Arc<Self>,
        patience: Duration,
        priority: Priority,
    ) -> Result<Grant, Spent> {
        let begun = self.clock.now();
        let left = |now: Moment| patience.saturating_sub(now.since(begun));
        let acquired = match priority {
            Priority::Probe => None,
            Priority::Miss => Some(tokio::time::timeout(patience, self.turnstile.acquire()).await),
            // Where anyone waits there is nothing to spare.
            Priority::LookAhead if self.turnstile.available_permits() == 0 => {
                return Err(Spent {
                    retry_after: Duration::from_secs(1),
                });
            }
            Priority::LookAhead => None,
        };
        let turn = match acquired {
            None => None,
            Some(Ok(turn)) => Some(turn),
            Some(Err(_elapsed)) => {
                let wait = match self.try_take(priority) {
                    Ok(grant) => return Ok(grant),
                    Err(Wait::For(wait)) => wait,
                    Err(Wait::UntilOneEnds) => Duration::from_secs(1),
                };
                return Err(Spent { retry_after: wait });
            }
        };
        loop {
            let ended = self.ended.notified();
            let now = self.clock.now();
            let left = left(now);
            let (wait, pause) = match self.try_take(priority) {
                Ok(grant) => {
                    drop(turn);
                    return Ok(grant);
                }
                Err(Wait::For(wait)) => (wait, wait),
                Err(Wait::UntilOneEnds) => (Duration::from_secs(1), left),
            };
            if left.is_zero() || pause > left || priority == Priority::LookAhead {
                return Err(Spent { retry_after: wait });
            }
            let _woken = tokio::time::timeout(pause, ended).await;
        }
    }

    fn try_take(self: &Arc<Self>, priority: Priority) -> Result<Grant, Wait> {
        let now = self.clock.now();
        let keep = match priority {
            Priority::Probe => Keep::Nothing,
            Priority::Miss if !self.with_probes.load(Ordering::Relaxed) => Keep::Nothing,
            Priority::Miss => Keep::Little,
            Priority::LookAhead => Keep::Half,
        };
        let pool = self.pool();
        let slots = pool.slots.iter().enumerate();
        let mut order: Vec<_> = slots
            .map(|(place, slot)| (slot.state().budget.left(now), place))
            .collect();
        order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut shortest = Wait::UntilOneEnds;
        for (_, place) in order {
            let slot = &pool.slots[place];
            let mut state = slot.state();
            let cooling = state.cool_until.since(now);
            let wait = match cooling.is_zero() {
                false => Wait::For(cooling),
                true => match state.budget.take(now, keep) {
                    Ok(()) => {
                        return Ok(Grant {
                            keys: self.clone(),
                            slot: slot.clone(),
                        });
                    }
                    Err(wait) => wait,
                },
            };
            shortest = match (shortest, wait) {
                (Wait::For(one), Wait::For(other)) => Wait::For(one.min(other)),
                (Wait::UntilOneEnds, other) => other,
                (one, Wait::UntilOneEnds) => one,
            };
        }
        Err(shortest)
    }

    /// How each key stands.
    pub fn standings(&self) -> Vec<Standing> {
        let now = self.clock.now();
        let standing = |slot: &Arc<Slot>| {
            let mut state = slot.state();
            Standing {
                name: slot.key.as_ref().map_or("none", ApiKey::name).to_owned(),
                left: state.budget.left(now),
                cooling: state.cool_until.since(now),
            }
        };
        self.pool().slots.iter().map(standing).collect()
    }

    /// The name of a key that some bytes give away, where they do.
    pub fn given_away(&self, bytes: &[u8]) -> Option<Arc<str>> {
        let found = |trace: &&Trace| trace.finder.find(bytes).is_some();
        let pool = self.pool();
        pool.traces
            .iter()
            .find(found)
            .map(|trace| trace.name.clone())
    }

    /// Whether requests carry a key.
    pub fn are_there(&self) -> bool {
        self.pool().slots.iter().any(|slot| slot.key.is_some())
    }
}

impl Pool {
    /// The pool that comes after this one.
    fn next(&self, keys: Vec<ApiKey>, budget: impl Fn() -> Budget, now: Moment) -> Self {
        let slot = |key: Option<ApiKey>| {
            let withdrawn = self.withdrawn.iter().map(|(_, slot)| slot);
            let known = self
                .slots
                .iter()
                .chain(withdrawn)
                .find(|slot| slot.is_of(&key));
            let state = known.map(|slot| slot.state.clone()).unwrap_or_else(|| {
                Arc::new(Mutex::new(State {
                    budget: budget(),
                    cool_until: Moment::default(),
                }))
            });
            Arc::new(Slot { key, state })
        };
        let slots: Box<[_]> = match keys.is_empty() {
            true => Box::from([slot(None)]),
            false => keys.into_iter().map(|key| slot(Some(key))).collect(),
        };
        let present = self.slots.iter().map(|slot| (now, slot.clone()));
        let before = self
            .withdrawn
            .iter()
            .filter(|(at, slot)| now.since(*at) < WITHDRAWN || Arc::strong_count(&slot.state) > 1);
        let mut withdrawn: Vec<_> = present.chain(before.cloned()).collect();
        withdrawn.retain(|(_, gone)| !slots.iter().any(|slot| slot.is_of(&gone.key)));
        let known = slots.iter().chain(withdrawn.iter().map(|(_, slot)| slot));
        let traces = known
            .filter_map(|slot| slot.key.as_ref())
            .flat_map(ApiKey::traces);
        Self {
            traces: traces.collect(),
            slots,
            withdrawn,
        }
    }
}

impl Slot {
    /// Whether this has the budget of a key, or of asking without.
    fn is_of(&self, key: &Option<ApiKey>) -> bool {
        let value = |key: &Option<ApiKey>| key.as_ref().map(|key| key.value.clone());
        value(&self.key) == value(key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grant {
    /// The key's header value, where there is a key.
    pub fn header(&self) -> Option<&HeaderValue> {
        self.slot.key.as_ref().map(|key| &key.value)
    }

    /// The key's name in logs and metrics.
    pub fn name(&self) -> &str {
        self.slot.key.as_ref().map_or("none", ApiKey::name)
    }

    /// Lets the key rest: the upstream has said that it was used too often.
    pub fn cool(&self, time: Duration) {
        let until = self.keys.clock.now() + time;
        let mut state = self.slot.state();
        state.cool_until = state.cool_until.max(until);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let now = self.keys.clock.now();
        self.slot.state().budget.end(now);
        self.keys.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn keys(list: &str, per_minute: u32, per_second: u32, clock: &Clock) -> Arc<Keys> {
        let number = |n| NonZeroU32::new(n).unwrap();
        let keys = ApiKey::list(list).unwrap_or_default();
        let budget = || Budget::new(number(per_minute), number(per_second));
        Keys::new(keys, budget, clock.clone())
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
        let keys = ApiKey::list("s3cret-value").unwrap();
        let pool = Keys::new(
            keys.clone(),
            || Budget::new(NonZeroU32::MIN, NonZeroU32::MIN),
            clock,
        );
        let shown = format!("{keys:?} {:?} {:?}", pool.standings(), keys[0].value);
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("key-1 [redacted]"));
        let panicked =
            std::panic::catch_unwind(|| panic!("with {:?}", ApiKey::list("s3cret-value")));
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
            assert_eq!(keys.given_away(text.as_bytes()).as_deref(), name, "{text}");
        }
    }

    #[tokio::test]
    async fn the_key_with_the_most_left_is_used() {
        let clock = Clock::manual();
        let keys = keys("a,b", 2, 2, &clock);
        let mut names = Vec::new();
        for _ in 0..4 {
            names.push(
                keys.take(Duration::ZERO, Priority::Miss)
                    .await
                    .ok()
                    .map(|g| g.name().to_owned()),
            );
        }
        let expected = ["key-1", "key-2", "key-1", "key-2"].map(|n| Some(n.to_owned()));
        assert_eq!(names, expected);
        let spent = keys
            .take(Duration::ZERO, Priority::Miss)
            .await
            .err()
            .unwrap();
        assert_eq!(spent.retry_after, Duration::from_millis(60_050));
    }

    #[tokio::test]
    async fn a_key_that_comes_twice_has_one_budget() {
        let clock = Clock::manual();
        let keys = keys("a,a,b,a", 1, 1, &clock);
        let mut names = Vec::new();
        while let Ok(grant) = keys.take(Duration::ZERO, Priority::Miss).await {
            names.push(grant.name().to_owned());
        }
        assert_eq!(names, ["key-1", "key-3"], "named by their places");
    }

    #[tokio::test]
    async fn a_cooling_key_is_left_alone() {
        let clock = Clock::manual();
        let keys = keys("a,b", 10, 10, &clock);
        keys.take(Duration::ZERO, Priority::Miss)
            .await
            .ok()
            .unwrap()
            .cool(Duration::from_secs(7));
        for _ in 0..3 {
            assert_eq!(
                keys.take(Duration::ZERO, Priority::Miss)
                    .await
                    .ok()
                    .unwrap()
                    .name(),
                "key-2"
            );
        }
        keys.take(Duration::ZERO, Priority::Miss)
            .await
            .ok()
            .unwrap()
            .cool(Duration::from_secs(9));
        let spent = keys
            .take(Duration::ZERO, Priority::Miss)
            .await
            .err()
            .unwrap();
        assert_eq!(spent.retry_after, Duration::from_secs(7));
        clock.advance(Duration::from_secs(7));
        assert_eq!(
            keys.take(Duration::ZERO, Priority::Miss)
                .await
                .ok()
                .unwrap()
                .name(),
            "key-1"
        );
    }

    #[tokio::test]
    async fn what_a_key_has_spent_outlives_its_withdrawal() {
        let clock = Clock::manual();
        let number = |n| NonZeroU32::new(n).unwrap();
        let keys = keys("", 1, 1, &clock);
        let without = keys.take(Duration::ZERO, Priority::Miss).await.ok();
        let replace = |list: &str| {
            let list = ApiKey::list(list).unwrap_or_default();
            keys.replace(list, number(1), number(1));
        };
        let take = async || {
            let grant = keys.take(Duration::ZERO, Priority::Miss).await.ok();
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
            assert_eq!(take().await.as_deref(), expected, "{list}");
        }
        let given_away = keys.given_away(b"second-key");
        assert!(given_away.is_some(), "it may yet come back in an answer");
        let elsewhere = keys.elsewhere();
        elsewhere.replace(ApiKey::list("third-key").unwrap(), number(1), number(1));
        let spent = elsewhere.take(Duration::ZERO, Priority::Miss).await;
        assert!(spent.is_err(), "whoever counts may be the same");
        drop(without);
        clock.advance(Duration::from_secs(61));
        assert_eq!(take().await.as_deref(), Some("none"));
        clock.advance(WITHDRAWN);
        replace("");
        assert!(keys.given_away(b"second-key").is_none());
    }

    #[tokio::test]
    async fn without_keys_there_is_a_budget_as_well() {
        let clock = Clock::manual();
        let keys = keys("", 1, 1, &clock);
        let grant = keys
            .take(Duration::ZERO, Priority::Miss)
            .await
            .ok()
            .unwrap();
        assert!(grant.header().is_none() && !keys.are_there());
        assert!(
            keys.take(Duration::ZERO, Priority::Miss).await.is_err(),
            "one is under way"
        );
    }

    #[tokio::test]
    async fn who_waits_is_woken_when_a_request_ends() {
        // One under way fills the second's window; when it ends, a second has
        // to pass. The machine's clock and tokio's agree here.
        let clock = Clock::machine();
        let keys = keys("a", 100, 1, &clock);
        let grant = keys
            .take(Duration::ZERO, Priority::Miss)
            .await
            .ok()
            .unwrap();
        let waiting = {
            let keys = keys.clone();
            tokio::spawn(async move {
                keys.take(Duration::from_secs(5), Priority::Miss)
                    .await
                    .is_ok()
            })
        };
        tokio::task::yield_now().await;
        drop(grant);
        assert!(waiting.await.unwrap());
    }
}
