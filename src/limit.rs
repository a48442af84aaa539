//! What a caller may ask: governor, keyed by [`Client`]. The only room that
//! names it (its clock aside).
//!
//! Two limits: on requests, whatever answers them, and on misses, which go to
//! the upstream. They are counted apart, so that a client whose requests memory
//! answers loses nothing to the one on misses.
//!
//! The table of callers is bounded: past the bound, strangers share a few
//! thousand buckets until it has been pruned, so that a flood of addresses
//! costs memory neither here nor elsewhere.
//!
//! Deliberately absent: the upstream's budget, which is `upstream::budget`'s
//! and counts exactly; here a burst may add to the rate in the first window.

use std::cell::Cell;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::{NotUntil, Quota, RateLimiter};
use http::HeaderValue;
use serde::Serialize;

use crate::clock::{Clock, Moment};
use crate::identify::Client;

/// The limit on each caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Off: nobody is limited, in requests or in misses.
    pub enabled: bool,
    /// Requests a minute, in the long run.
    pub requests_per_minute: NonZeroU32,
    /// Requests at once, after a rest.
    pub burst: NonZeroU32,
    /// Requests a minute that go to the upstream for a caller, in the long run;
    /// after a rest as many at once. 0: no limit on these.
    pub misses_per_minute: u32,
    /// Callers that are told apart.
    pub max_callers: NonZeroU32,
}

/// Buckets that callers share while the table is full.
const SHARED: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bucket {
    Own(Client),
    Shared(u16),
}

/// Proof that a request counts within its caller's limit, with what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Requests left at once.
    pub remaining: u32,
    /// Whole seconds until all of the burst is there again.
    pub reset: u64,
}

/// A request too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// Whole seconds until one more is allowed; at least 1.
    pub retry_after: u64,
}

/// A miss too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyMisses {
    /// Misses that a minute takes.
    pub per_minute: NonZeroU32,
    /// Whole seconds until one more is allowed; at least 1.
    pub retry_after: u64,
}

/// The limiter of all callers.
pub struct Limit {
    requests: Allowance,
    misses: Option<Allowance>,
    policy: HeaderValue,
    refused: Arc<Refused>,
}

/// How many requests were refused, or answered with what is stale, for the limit
/// on misses. It counts on when the limit changes.
#[derive(Debug, Default)]
pub struct Refused {
    /// Refused with 429.
    pub misses: AtomicU64,
    /// Answered with what is stale.
    pub stale: AtomicU64,
}

impl Refused {
    /// Counts one that was over the limit, and whether something stale is
    /// served for it.
    pub fn count(&self, is_stale: bool) {
        let count = match is_stale {
            true => &self.stale,
            false => &self.misses,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A quota that each caller has.
struct Allowance {
    table: Arc<Callers>,
    quota: Quota,
    max_callers: usize,
}

/// What callers have spent.
struct Callers {
    limiter: RateLimiter<Bucket, Store, Clock, StateInformationMiddleware>,
    buckets: Arc<Buckets>,
}

/// The buckets. One whose quota is whole again stays until it is pruned.
struct Buckets {
    map: DashMapStateStore<Bucket, RandomState>,
    /// Callers that have a bucket of their own: exact after a pruning that
    /// nobody has disturbed, and never less than the truth.
    known: AtomicUsize,
    hasher: RandomState,
}

/// The buckets as governor sees them, which counts those that it makes.
struct Store(Arc<Buckets>);

impl StateStore for Store {
    type Key = Bucket;

    fn measure_and_replace<T, F, E>(&self, key: &Bucket, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // Of two that race for a new bucket, one finds nothing at last.
        let is_new = Cell::new(false);
        let decided = self.0.map.measure_and_replace(key, |before| {
            is_new.set(before.is_none());
            decide(before)
        });
        if is_new.get() && matches!(key, Bucket::Own(_)) {
            self.0.known.fetch_add(1, Ordering::Relaxed);
        }
        decided
    }
}

impl ShrinkableKeyedStateStore<Bucket> for Store {
    fn retain_recent(&self, drop_below: Nanos) {
        self.0.map.retain_recent(drop_below);
    }

    fn shrink_to_fit(&self) {
        self.0.map.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.0.map.len()
    }

    fn is_empty(&self) -> bool {
        self.0.map.is_empty()
    }
}

impl Buckets {
    /// The bucket of a caller, where the table holds so many.
    fn of(&self, caller: Client, max_callers: usize) -> Bucket {
        let own = Bucket::Own(caller);
        // Who is in the table already keeps what it has spent.
        match self.known.load(Ordering::Relaxed) < max_callers || self.map.contains_key(&own) {
            true => own,
            false => Bucket::Shared((self.hasher.hash_one(caller) % u64::from(SHARED)) as u16),
        }
    }

    /// Counts anew after a pruning. A bucket that is made meanwhile counts twice
    /// until the next one.
    fn recount(&self, before: usize) -> usize {
        let own = self.map.iter();
        let own = own.filter(|entry| matches!(entry.key(), Bucket::Own(_)));
        let own = own.count();
        match own.checked_sub(before) {
            Some(more) => self.known.fetch_add(more, Ordering::Relaxed),
            None => self.known.fetch_sub(before - own, Ordering::Relaxed),
        };
        own
    }
}

impl Allowance {
    fn new(quota: Quota, max_callers: NonZeroU32, clock: Clock) -> Self {
        let buckets = Arc::new(Buckets {
            map: DashMapStateStore::with_hasher(RandomState::default()),
            known: AtomicUsize::new(0),
            hasher: RandomState::default(),
        });
        let store = Store(buckets.clone());
        let limiter = RateLimiter::<_, _, _, StateInformationMiddleware>::new(quota, store, clock);
        Self {
            table: Arc::new(Callers { limiter, buckets }),
            quota,
            max_callers: max_callers.get() as usize,
        }
    }

    /// What callers have spent stays spent where the quota stays as it is; what
    /// they have left of one quota says nothing of another.
    fn take_over(&mut self, before: &Self) {
        if before.quota == self.quota {
            self.table = before.table.clone();
        }
    }

    fn admit(&self, caller: Client) -> Result<Permit, NotUntil<Moment>> {
        let table = &*self.table;
        let bucket = table.buckets.of(caller, self.max_callers);
        let remaining = table.limiter.check_key(&bucket)?.remaining_burst_capacity();
        let spent = self.quota.burst_size().get().saturating_sub(remaining);
        Ok(Permit {
            remaining,
            reset: ceil(self.quota.replenish_interval() * spent),
        })
    }

    /// Gives back a request that was admitted.
    fn give_back(&self, caller: Client) {
        let buckets = &*self.table.buckets;
        let bucket = buckets.of(caller, self.max_callers);
        let interval = Nanos::from(self.quota.replenish_interval());
        // Zero would be a bucket that was never used.
        let least = Nanos::from(1);
        let Ok(()) = buckets.map.measure_and_replace(&bucket, |before| {
            let spent = before.map_or(least, |spent| spent.saturating_sub(interval));
            Ok::<_, Infallible>(((), spent.max(least)))
        });
    }

    fn prune(&self) -> usize {
        let table = &*self.table;
        let before = table.buckets.known.load(Ordering::Relaxed);
        table.limiter.retain_recent();
        table.limiter.shrink_to_fit();
        table.buckets.recount(before)
    }
}

impl Limit {
    /// A limiter; `None` where limits are off.
    pub fn new(settings: &Settings, clock: Clock) -> Option<Self> {
        if !settings.enabled {
            return None;
        }
        let quota = Quota::per_minute(settings.requests_per_minute).allow_burst(settings.burst);
        let window = quota.burst_size_replenished_in().as_secs_f64().ceil();
        let policy = format!("\"default\";q={};w={window}", settings.burst);
        let misses = NonZeroU32::new(settings.misses_per_minute).map(Quota::per_minute);
        Some(Self {
            requests: Allowance::new(quota, settings.max_callers, clock.clone()),
            misses: misses.map(|quota| Allowance::new(quota, settings.max_callers, clock)),
            policy: HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("")),
            refused: Arc::default(),
        })
    }

    /// The limiter that comes after another, with what callers have spent of
    /// each quota that stays as it is.
    pub fn after(before: Option<&Self>, settings: &Settings, clock: Clock) -> Option<Self> {
        let mut next = Self::new(settings, clock)?;
        if let Some(before) = before {
            next.requests.take_over(&before.requests);
            if let (Some(next), Some(before)) = (&mut next.misses, &before.misses) {
                next.take_over(before);
            }
            next.refused = before.refused.clone();
        }
        Some(next)
    }

    /// Counts a request.
    ///
    /// # Errors
    /// Where it is one too many; it is not counted then.
    pub fn admit(&self, caller: Client, now: Moment) -> Result<Permit, TooMany> {
        self.requests.admit(caller).map_err(|not_until| TooMany {
            retry_after: ceil(not_until.wait_time_from(now)).max(1),
        })
    }

    /// Counts a request that goes to the upstream for a client which waits for
    /// it. One that waits for another's costs the upstream nothing, and is not
    /// to be counted.
    ///
    /// # Errors
    /// Where it is one too many; it is not counted then.
    pub fn admit_miss(&self, caller: Client, now: Moment) -> Result<(), TooManyMisses> {
        let Some(misses) = &self.misses else {
            return Ok(());
        };
        let admitted = misses.admit(caller).map(drop);
        admitted.map_err(|not_until| TooManyMisses {
            per_minute: misses.quota.burst_size(),
            retry_after: ceil(not_until.wait_time_from(now)).max(1),
        })
    }

    /// Gives back a miss that [`admit_miss`](Self::admit_miss) has counted, for a
    /// request that did not go to the upstream after all.
    pub fn give_back_miss(&self, caller: Client) {
        if let Some(misses) = &self.misses {
            misses.give_back(caller);
        }
    }

    /// Forgets callers whose burst is whole again. Called now and then, off
    /// the walk; answers how many callers remain that are told apart.
    pub fn prune(&self) -> usize {
        if let Some(misses) = &self.misses {
            misses.prune();
        }
        self.requests.prune()
    }

    /// The value of `ratelimit-policy`: what is granted.
    pub fn policy(&self) -> &HeaderValue {
        &self.policy
    }

    /// What has come of misses that were too many.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }
}

impl Permit {
    /// The value of `ratelimit`: what is left.
    pub fn field(self) -> HeaderValue {
        field("default", self.remaining, self.reset)
    }
}

impl TooMany {
    /// The value of `ratelimit`: nothing is left.
    pub fn field(self) -> HeaderValue {
        field("default", 0, self.retry_after)
    }
}

impl TooManyMisses {
    /// The value of `ratelimit`: nothing is left.
    pub fn field(self) -> HeaderValue {
        field("misses", 0, self.retry_after)
    }

    /// The value of `ratelimit-policy`: what is granted.
    pub fn policy(self) -> HeaderValue {
        let policy = format!("\"misses\";q={};w=60", self.per_minute);
        HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static(""))
    }
}

fn field(name: &str, remaining: u32, reset: u64) -> HeaderValue {
    use std::io::Write;
    let mut text = [0; 48];
    let mut rest = &mut text[..];
    let room = rest.len();
    // 48 bytes hold the longest numbers of these types.
    let _ = write!(rest, "\"{name}\";r={remaining};t={reset}");
    let length = room - rest.len();
    HeaderValue::from_bytes(&text[..length]).unwrap_or(HeaderValue::from_static(""))
}

fn ceil(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(per_minute: u32, burst: u32, max_callers: u32) -> Settings {
        Settings {
            enabled: true,
            requests_per_minute: NonZeroU32::new(per_minute).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
            misses_per_minute: 0,
            max_callers: NonZeroU32::new(max_callers).unwrap(),
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 3, 10), clock.clone()).unwrap();
        let one = Client::V4(1);
        for left in [2, 1, 0] {
            assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, left);
        }
        assert_eq!(
            limit.admit(one, clock.now()),
            Err(TooMany { retry_after: 1 })
        );
        assert!(
            limit.admit(Client::V4(2), clock.now()).is_ok(),
            "another caller"
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(
            limit.admit(one, clock.now()),
            Ok(Permit {
                remaining: 0,
                reset: 3
            })
        );
        assert!(limit.admit(one, clock.now()).is_err());
        clock.advance(Duration::from_secs(60));
        assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, 2);
        assert_eq!(limit.policy(), "\"default\";q=3;w=3");
    }

    #[test]
    fn waits_are_rounded_up() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(6, 1, 10), clock.clone()).unwrap();
        let one = Client::V4(1);
        assert!(limit.admit(one, clock.now()).is_ok());
        for (passed, wait) in [(0, 10), (1500, 9), (8400, 1)] {
            clock.advance(Duration::from_millis(passed));
            let refused = limit.admit(one, clock.now()).unwrap_err();
            assert_eq!(refused.retry_after, wait, "after {passed} ms more");
            assert_eq!(refused.field(), format!("\"default\";r=0;t={wait}"));
        }
    }

    #[test]
    fn the_table_is_bounded_and_pruned() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 5, 100), clock.clone()).unwrap();
        for n in 0..100_000 {
            let _ = limit.admit(Client::V4(n), clock.now());
        }
        assert!(limit.requests.table.limiter.len() <= 100 + SHARED as usize);
        clock.advance(Duration::from_secs(60));
        assert_eq!(limit.prune(), 0);
        assert_eq!(
            limit.admit(Client::V4(7), clock.now()).unwrap().remaining,
            4
        );
    }

    #[test]
    fn the_bound_counts_callers_and_not_their_requests() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 1, 100), clock.clone()).unwrap();
        let known = || limit.requests.table.buckets.known.load(Ordering::Relaxed);
        // One caller whose burst is whole each time that it asks.
        for _ in 0..1000 {
            assert!(limit.admit(Client::V4(1), clock.now()).is_ok());
            assert!(limit.admit(Client::V4(1), clock.now()).is_err());
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(known(), 1);
        for n in 2..=100 {
            assert!(limit.admit(Client::V4(n), clock.now()).is_ok());
        }
        assert_eq!(known(), 100);
        // Strangers share buckets now; who is in the table keeps its own, and
        // what it has spent of it.
        assert!(limit.admit(Client::V4(101), clock.now()).is_ok());
        assert_eq!(known(), 100);
        assert!(limit.admit(Client::V4(50), clock.now()).is_err());
        assert_eq!(limit.prune(), 100, "without the shared ones");
        clock.advance(Duration::from_secs(60));
        assert_eq!((limit.prune(), known()), (0, 0));
    }

    #[test]
    fn misses_are_counted_apart() {
        let clock = Clock::manual();
        let some = Settings {
            misses_per_minute: 2,
            ..settings(60, 9, 10)
        };
        let limit = Limit::new(&some, clock.clone()).unwrap();
        let one = Client::V4(1);
        for _ in 0..2 {
            assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
        }
        let refused = limit.admit_miss(one, clock.now()).unwrap_err();
        assert_eq!(refused.field(), "\"misses\";r=0;t=30");
        assert_eq!(refused.policy(), "\"misses\";q=2;w=60");
        assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, 8);
        assert_eq!(limit.admit_miss(Client::V4(2), clock.now()), Ok(()));
        // A reload that leaves this quota as it is leaves what is spent.
        let next = |settings: &Settings| Limit::after(Some(&limit), settings, clock.clone());
        let other = Settings {
            burst: NonZeroU32::MIN,
            ..some.clone()
        };
        assert!(next(&other).unwrap().admit_miss(one, clock.now()).is_err());
        for misses_per_minute in [0, 3] {
            let other = Settings {
                misses_per_minute,
                ..some.clone()
            };
            assert_eq!(next(&other).unwrap().admit_miss(one, clock.now()), Ok(()));
        }
        clock.advance(Duration::from_secs(30));
        assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
        assert!(limit.admit_miss(one, clock.now()).is_err());
        // What is given back can be had again, once.
        limit.give_back_miss(one);
        assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
        assert!(limit.admit_miss(one, clock.now()).is_err());
        for _ in 0..9 {
            limit.give_back_miss(one);
        }
        for _ in 0..2 {
            assert_eq!(limit.admit_miss(one, clock.now()), Ok(()));
        }
        assert!(
            limit.admit_miss(one, clock.now()).is_err(),
            "no more than the burst"
        );
    }

    #[test]
    fn what_is_spent_stays_spent_where_the_quota_does() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 1, 10), clock.clone()).unwrap();
        assert!(limit.admit(Client::V4(1), clock.now()).is_ok());
        let next = |settings| Limit::after(Some(&limit), &settings, clock.clone()).unwrap();
        for same in [settings(60, 1, 10), settings(60, 1, 99)] {
            assert!(next(same).admit(Client::V4(1), clock.now()).is_err());
        }
        let other = next(settings(60, 2, 10));
        assert!(other.admit(Client::V4(1), clock.now()).is_ok());
    }

    #[test]
    fn off_is_off() {
        let off = Settings {
            enabled: false,
            ..settings(1, 1, 1)
        };
        assert!(Limit::new(&off, Clock::manual()).is_none());
    }
}
