//! Rate limits per client: requests, and misses, which cause an upstream request.
//!
//! The two are counted separately: a client that is over its limit on misses is
//! still answered from the cache.
//!
//! The upstream's budget is `upstream::budget`'s, which never exceeds its rate.
//! Here a client may use its burst and the rate within the same minute.

use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::quality::RandomState;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{NotUntil, Quota, RateLimiter};
use http::HeaderValue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::sync::lock;
use crate::wire::unindexed;

/// The largest rate and burst: larger ones count as this, since they may exceed governor's 64
/// bits.
pub(crate) const MAX_RATE: NonZeroU32 = NonZeroU32::new(60_000_000).expect("it is not 0");

/// What one client may use. A client is an IPv4 address, an IPv6 /64, or a name of the token
/// file, which may have other numbers of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether the limits on clients apply. Limits that the token file sets apply in any
    /// case.
    pub enabled: bool,
    /// The requests per minute that each client may send. Further ones get 429 with
    /// retry-after. Every request counts, also refused ones and CORS preflights.
    pub requests_per_minute: NonZeroU32,
    /// The most requests that a client may send at once, after a pause.
    pub burst: NonZeroU32,
    /// Of these, the requests per minute that may go to the upstream because nothing fresh
    /// is stored; 0 for no such limit.
    ///
    /// After a pause, a client may send as many at once. Beyond the limit, it gets a stale
    /// answer within the bounds of its route, or 429. A request that waits for another
    /// client's fetch does not count. This limit is for single clients that send far too
    /// much: the upstream's budget is shared between clients in any case.
    pub misses_per_minute: u32,
    /// The most connections of one client at once. For a further one, ordgate closes the one
    /// that has been idle or stalled longest; where none is, the new one. Trusted proxies may
    /// have any number.
    pub(crate) connections: NonZeroU32,
    /// The TLS handshakes per second of one client. Further connections are closed. Trusted
    /// proxies may do any number.
    pub(crate) tls_handshakes_per_second: NonZeroU32,
}

impl Default for Settings {
    fn default() -> Self {
        let number = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Self {
            enabled: true,
            requests_per_minute: number(3000),
            burst: number(3000),
            misses_per_minute: 1200,
            connections: number(512),
            tls_handshakes_per_second: number(10),
        }
    }
}

/// Proof that a request is within its client's limit, and what remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAllowance {
    /// Requests that the client may send at once.
    pub remaining: u32,
    /// Whole seconds until the whole burst is available again.
    pub reset: u64,
}

/// A request or a miss over its client's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The value of `ratelimit-policy`.
    pub(crate) policy: HeaderValue,
    /// The value of `ratelimit`.
    pub(crate) left: HeaderValue,
    /// Whole seconds until one more is allowed; at least 1.
    pub retry_after: u64,
}

/// A rate, and what each client has used of it.
pub struct ClientRate {
    name: &'static str,
    quota: Quota,
    limiter: RateLimiter<Client, Buckets, Clock, StateInformationMiddleware>,
    buckets: Buckets,
    /// The value of `ratelimit-policy`.
    pub policy: HeaderValue,
}

/// What clients have used of a rate: for each, when nothing of it will be used any more.
///
/// A client is in the set that its hash names, and most sets have one client or none. In a full
/// set a new client takes the place of the one that has used least. So memory is bounded by
/// 131,072 clients, no client ever counts for another, and who has used up its rate is forgotten
/// last. Nothing is pruned, and a check costs a hit less than in governor's own map.
#[derive(Clone)]
struct Buckets {
    sets: Arc<[Mutex<Set>]>,
    hasher: RandomState,
}

type Set = Vec<(Client, Nanos)>;

/// The sets of a rate that one client has.
pub const ONE: usize = 1;
/// The sets of a rate that many clients have, a power of two.
pub(crate) const MANY: usize = 4096;
/// The most clients of a set.
const MOST_OF_SET: usize = 32;

impl Buckets {
    #[inline]
    fn set(&self, client: &Client) -> MutexGuard<'_, Set> {
        let hash = self.hasher.hash_one(client) as usize;
        lock(&self.sets[hash & (self.sets.len() - 1)])
    }
}

impl StateStore for Buckets {
    type Key = Client;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, client: &Client, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut set = self.set(client);
        let known = set.iter_mut().find(|(known, _)| known == client);
        let (decision, used) = decide(known.as_ref().map(|(_, used)| *used))?;
        if let Some(known) = known {
            known.1 = used;
        } else if set.len() < MOST_OF_SET {
            set.push((*client, used));
        } else if let Some(least) = set.iter_mut().min_by_key(|(_, used)| *used) {
            *least = (*client, used);
        }
        Ok(decision)
    }
}

/// The limits that all clients have.
pub struct Limit {
    /// On requests.
    pub requests: Arc<ClientRate>,
    misses: Option<Arc<ClientRate>>,
    /// How many requests were over the limit on misses, also before a reload: those that were
    /// refused with 429, and those that were answered with a stale response.
    pub refused: Arc<[AtomicU64; 2]>,
}

impl ClientRate {
    /// So many per minute, and at once, under the name that clients see. Where that is as
    /// `before`, it keeps what was used of it.
    pub fn new(
        name: &'static str,
        (per_minute, burst): (NonZeroU32, NonZeroU32),
        sets: usize,
        clock: &Clock,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let quota = Quota::per_minute(per_minute.min(MAX_RATE)).allow_burst(burst.min(MAX_RATE));
        match before.filter(|before| before.quota == quota) {
            Some(same) => same.clone(),
            None => {
                let buckets = Buckets {
                    sets: (0..sets).map(|_| Mutex::default()).collect(),
                    hasher: RandomState::default(),
                };
                let window = ceil(quota.burst_size_replenished_in());
                let policy = format!("\"{name}\";q={};w={window}", quota.burst_size());
                Arc::new(Self {
                    name,
                    policy: HeaderValue::try_from(policy).unwrap_or(EMPTY),
                    quota,
                    limiter: RateLimiter::new(quota, buckets.clone(), clock.clone()),
                    buckets,
                })
            }
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// Where it exceeds the limit; it is not counted then.
    #[inline]
    pub fn admit(&self, client: Client, now: Moment) -> Result<RequestAllowance, OverLimit> {
        let burst = self.quota.burst_size();
        let wait = |not_until: NotUntil<Nanos>| {
            let retry_after = ceil(not_until.wait_time_from(now.nanos().into())).max(1);
            OverLimit {
                policy: self.policy.clone(),
                left: field(self.name, 0, retry_after),
                retry_after,
            }
        };
        let remaining = self.limiter.check_key(&client).map_err(wait)?;
        let remaining = remaining.remaining_burst_capacity();
        let used = burst.get().saturating_sub(remaining);
        Ok(RequestAllowance {
            remaining,
            reset: ceil(self.quota.replenish_interval() * used),
        })
    }

    /// Requests per minute, and at once.
    pub fn shape(&self) -> (u32, NonZeroU32) {
        let interval = self.quota.replenish_interval().as_secs_f64();
        ((60.0 / interval).round() as u32, self.quota.burst_size())
    }
}

impl Limit {
    /// The limits after a reload; `None` where they are disabled. Clients keep what they
    /// have used of each rate that has not changed.
    pub fn after(before: Option<&Self>, settings: &Settings, clock: &Clock) -> Option<Self> {
        if !settings.enabled {
            return None;
        }
        let requests = (settings.requests_per_minute, settings.burst);
        let known = before.map(|before| &before.requests);
        let misses = NonZeroU32::new(settings.misses_per_minute);
        let known_misses = before.and_then(|before| before.misses.as_ref());
        Some(Self {
            requests: ClientRate::new("default", requests, MANY, clock, known),
            misses: misses.map(|n| ClientRate::new("misses", (n, n), MANY, clock, known_misses)),
            refused: before.map_or_else(Arc::default, |before| before.refused.clone()),
        })
    }

    /// Counts an upstream request that a client waits for. A request that waits
    /// for another one's answer causes none, and must not be counted.
    ///
    /// # Errors
    /// Where it exceeds the limit; it is not counted then.
    pub fn admit_miss(&self, client: Client, now: Moment) -> Result<(), OverLimit> {
        let misses = self.misses.as_ref();
        misses.map_or(Ok(()), |misses| misses.admit(client, now).map(drop))
    }

    /// Takes back a count of [`admit_miss`](Self::admit_miss), since no upstream
    /// request was sent after all.
    pub fn refund_miss(&self, client: Client) {
        if let Some(misses) = &self.misses {
            let one = Nanos::from(misses.quota.replenish_interval());
            let mut set = misses.buckets.set(&client);
            for (_, used) in set.iter_mut().filter(|(known, _)| *known == client) {
                *used = used.saturating_sub(one);
            }
        }
    }
}

impl RequestAllowance {
    /// The value of `ratelimit`.
    pub fn field(self) -> HeaderValue {
        field("default", self.remaining, self.reset)
    }
}

const EMPTY: HeaderValue = HeaderValue::from_static("");

fn field(name: &str, remaining: u32, reset: u64) -> HeaderValue {
    use std::io::Write;
    // Enough for the longest numbers of these types.
    let mut text = [0; 48];
    let mut rest = &mut text[..];
    let size = rest.len();
    let _ = write!(rest, "\"{name}\";r={remaining};t={reset}");
    let length = size - rest.len();
    unindexed(HeaderValue::from_bytes(&text[..length]).unwrap_or(EMPTY))
}

/// Whole seconds, rounded up.
pub(crate) fn ceil(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
