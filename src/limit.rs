//! What a caller may ask: governor, keyed by [`Caller`]. The only room that
//! names it (its clock aside).
//!
//! The table of callers is bounded: past the bound, strangers share a few
//! thousand buckets until it has been pruned, so that a flood of addresses
//! costs memory neither here nor elsewhere.
//!
//! Deliberately absent: the upstream's budget, which is `upstream::budget`'s
//! and counts exactly; here a burst may add to the rate in the first window.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use http::HeaderValue;
use serde::Serialize;

use crate::clock::{Clock, Moment};
use crate::identify::Caller;

/// The limit on each caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Off: nobody is limited.
    pub enabled: bool,
    /// Requests a minute, in the long run.
    pub requests_per_minute: NonZeroU32,
    /// Requests at once, after a rest.
    pub burst: NonZeroU32,
    /// Callers that are told apart.
    pub max_callers: NonZeroU32,
}

/// Buckets that callers share while the table is full.
const SHARED: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bucket {
    Own(Caller),
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

/// The limiter of all callers.
pub struct Limit {
    table: Arc<Callers>,
    quota: Quota,
    max_callers: usize,
    policy: HeaderValue,
}

/// What callers have spent.
struct Callers {
    limiter: RateLimiter<
        Bucket,
        DashMapStateStore<Bucket, RandomState>,
        Clock,
        StateInformationMiddleware,
    >,
    /// Callers in the table: exact after pruning, no less than the truth
    /// between.
    known: AtomicUsize,
    hasher: RandomState,
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
        let table = DashMapStateStore::with_hasher(RandomState::default());
        let callers = Callers {
            limiter: RateLimiter::<_, _, _, StateInformationMiddleware>::new(quota, table, clock),
            known: AtomicUsize::new(0),
            hasher: RandomState::default(),
        };
        Some(Self {
            table: Arc::new(callers),
            quota,
            max_callers: settings.max_callers.get() as usize,
            policy: HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("")),
        })
    }

    /// The limiter that comes after another. What callers have spent stays
    /// spent where the quota stays as it is; what they have left of one quota
    /// says nothing of another.
    pub fn after(before: Option<&Self>, settings: &Settings, clock: Clock) -> Option<Self> {
        let mut next = Self::new(settings, clock)?;
        if let Some(before) = before.filter(|before| before.quota == next.quota) {
            next.table = before.table.clone();
        }
        Some(next)
    }

    /// Counts a request.
    ///
    /// # Errors
    /// Where it is one too many; it is not counted then.
    pub fn admit(&self, caller: Caller, now: Moment) -> Result<Permit, TooMany> {
        let table = &*self.table;
        let bucket = match table.known.load(Ordering::Relaxed) < self.max_callers {
            true => Bucket::Own(caller),
            false => Bucket::Shared((table.hasher.hash_one(caller) % u64::from(SHARED)) as u16),
        };
        match table.limiter.check_key(&bucket) {
            Ok(state) => {
                let remaining = state.remaining_burst_capacity();
                let burst = self.quota.burst_size().get();
                if remaining + 1 >= burst {
                    // Perhaps new in the table; pruning sets the count right.
                    table.known.fetch_add(1, Ordering::Relaxed);
                }
                let spent = burst.saturating_sub(remaining);
                let reset = self.quota.replenish_interval() * spent;
                Ok(Permit {
                    remaining,
                    reset: ceil(reset),
                })
            }
            Err(not_until) => Err(TooMany {
                retry_after: ceil(not_until.wait_time_from(now)).max(1),
            }),
        }
    }

    /// Forgets callers whose burst is whole again. Called now and then, off
    /// the walk; answers how many callers remain.
    pub fn prune(&self) -> usize {
        let table = &*self.table;
        table.limiter.retain_recent();
        table.limiter.shrink_to_fit();
        let known = table.limiter.len();
        table.known.store(known, Ordering::Relaxed);
        known
    }

    /// The value of `ratelimit-policy`: what is granted.
    pub fn policy(&self) -> &HeaderValue {
        &self.policy
    }
}

impl Permit {
    /// The value of `ratelimit`: what is left.
    pub fn field(self) -> HeaderValue {
        field(self.remaining, self.reset)
    }
}

impl TooMany {
    /// The value of `ratelimit`: nothing is left.
    pub fn field(self) -> HeaderValue {
        field(0, self.retry_after)
    }
}

fn field(remaining: u32, reset: u64) -> HeaderValue {
    use std::io::Write;
    let mut text = [0; 48];
    let mut rest = &mut text[..];
    let room = rest.len();
    // 48 bytes hold the longest numbers of these types.
    let _ = write!(rest, "\"default\";r={remaining};t={reset}");
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
            max_callers: NonZeroU32::new(max_callers).unwrap(),
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 3, 10), clock.clone()).unwrap();
        let one = Caller::V4(1);
        for left in [2, 1, 0] {
            assert_eq!(limit.admit(one, clock.now()).unwrap().remaining, left);
        }
        assert_eq!(
            limit.admit(one, clock.now()),
            Err(TooMany { retry_after: 1 })
        );
        assert!(
            limit.admit(Caller::V4(2), clock.now()).is_ok(),
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
        let one = Caller::V4(1);
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
            let _ = limit.admit(Caller::V4(n), clock.now());
        }
        assert!(limit.table.limiter.len() <= 100 + SHARED as usize);
        clock.advance(Duration::from_secs(60));
        assert_eq!(limit.prune(), 0);
        assert_eq!(
            limit.admit(Caller::V4(7), clock.now()).unwrap().remaining,
            4
        );
    }

    #[test]
    fn what_is_spent_stays_spent_where_the_quota_does() {
        let clock = Clock::manual();
        let limit = Limit::new(&settings(60, 1, 10), clock.clone()).unwrap();
        assert!(limit.admit(Caller::V4(1), clock.now()).is_ok());
        let next = |settings| Limit::after(Some(&limit), &settings, clock.clone()).unwrap();
        for same in [settings(60, 1, 10), settings(60, 1, 99)] {
            assert!(next(same).admit(Caller::V4(1), clock.now()).is_err());
        }
        let other = next(settings(60, 2, 10));
        assert!(other.admit(Caller::V4(1), clock.now()).is_ok());
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
