//! Rate limits per client: requests, and misses, which cause an upstream request.
//!
//! The two are counted separately: a client that is over its limit on misses is
//! still answered from the cache.
//!
//! The upstream's budget is `upstream::budget`'s, which never exceeds its rate.
//! Here a client may use its burst and the rate within the same minute.

mod quota;
pub mod tokens;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::Quota;
use http::HeaderValue;
use quota::ClientQuota;
use serde::Serialize;

use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::wire::unindexed;

/// The limits on each client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Whether there are limits, on requests and on misses.
    pub enabled: bool,
    /// Requests per minute, sustained.
    pub requests_per_minute: NonZeroU32,
    /// Requests at once.
    pub burst: NonZeroU32,
    /// Misses per minute, sustained and at once. 0: no limit on misses.
    pub misses_per_minute: u32,
    /// Clients with a bucket of their own. While there are as many, further
    /// clients share buckets.
    pub max_clients: NonZeroU32,
}

/// Proof that a request is within its client's limit, and what remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAllowance {
    /// Requests that the client may send at once.
    pub remaining: u32,
    /// Whole seconds until the whole burst is available again.
    pub reset: u64,
}

/// A request over its client's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRequests {
    /// Whole seconds until one more is allowed; at least 1.
    pub retry_after: u64,
}

/// A miss over its client's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyMisses {
    /// The limit on misses per minute.
    pub per_minute: NonZeroU32,
    /// Whole seconds until one more is allowed; at least 1.
    pub retry_after: u64,
}

/// The rate limiter.
pub struct Limit {
    requests: ClientQuota,
    misses: Option<ClientQuota>,
    policy: HeaderValue,
    refused: Arc<MissRefusals>,
}

/// How many requests were over the limit on misses. The counts survive a change of
/// the limit.
#[derive(Debug, Default)]
pub struct MissRefusals {
    /// Refused with 429.
    pub misses: AtomicU64,
    /// Answered with a stale response.
    pub stale: AtomicU64,
}

impl MissRefusals {
    /// Counts one of either.
    pub fn count(&self, is_stale: bool) {
        let count = match is_stale {
            true => &self.stale,
            false => &self.misses,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Limit {
    /// A limiter; `None` where limits are disabled.
    pub fn new(settings: &Settings, clock: Clock) -> Option<Self> {
        if !settings.enabled {
            return None;
        }
        let quota = Quota::per_minute(settings.requests_per_minute).allow_burst(settings.burst);
        let misses = NonZeroU32::new(settings.misses_per_minute).map(Quota::per_minute);
        Some(Self {
            requests: ClientQuota::new(quota, settings.max_clients, clock.clone()),
            misses: misses.map(|quota| ClientQuota::new(quota, settings.max_clients, clock)),
            policy: policy(quota),
            refused: Arc::default(),
        })
    }

    /// The limiter after a reload. Clients keep what they have used of each quota
    /// that has not changed.
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
    /// Where it exceeds the limit; it is not counted then.
    pub fn admit(&self, client: Client, now: Moment) -> Result<RequestAllowance, TooManyRequests> {
        self.requests
            .admit(client)
            .map_err(|not_until| TooManyRequests {
                retry_after: ceil(not_until.wait_time_from(now)).max(1),
            })
    }

    /// Counts an upstream request that a client waits for. A request that waits
    /// for another one's answer causes none, and must not be counted.
    ///
    /// # Errors
    /// Where it exceeds the limit; it is not counted then.
    pub fn admit_miss(&self, client: Client, now: Moment) -> Result<(), TooManyMisses> {
        let Some(misses) = &self.misses else {
            return Ok(());
        };
        let admitted = misses.admit(client).map(drop);
        admitted.map_err(|not_until| TooManyMisses {
            per_minute: misses.burst(),
            retry_after: ceil(not_until.wait_time_from(now)).max(1),
        })
    }

    /// Takes back a count of [`admit_miss`](Self::admit_miss), since no upstream
    /// request was sent after all.
    pub fn refund_miss(&self, client: Client) {
        if let Some(misses) = &self.misses {
            misses.refund(client);
        }
    }

    /// Removes clients whose burst is available again. Called periodically, off
    /// the request path. Returns how many clients have a bucket of their own.
    pub fn prune(&self) -> usize {
        if let Some(misses) = &self.misses {
            misses.prune();
        }
        self.requests.prune()
    }

    /// The value of `ratelimit-policy`.
    pub fn policy(&self) -> &HeaderValue {
        &self.policy
    }

    /// How many requests were over the limit on misses.
    pub fn refused(&self) -> &MissRefusals {
        &self.refused
    }
}

impl RequestAllowance {
    /// The value of `ratelimit`.
    pub fn field(self) -> HeaderValue {
        field("default", self.remaining, self.reset)
    }
}

impl TooManyRequests {
    /// The value of `ratelimit`.
    pub fn field(self) -> HeaderValue {
        field("default", 0, self.retry_after)
    }
}

impl TooManyMisses {
    /// The value of `ratelimit`.
    pub fn field(self) -> HeaderValue {
        field("misses", 0, self.retry_after)
    }

    /// The value of `ratelimit-policy`.
    pub fn policy(self) -> HeaderValue {
        let policy = format!("\"misses\";q={};w=60", self.per_minute);
        HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The value of `ratelimit-policy` for a quota.
fn policy(quota: Quota) -> HeaderValue {
    let window = quota.burst_size_replenished_in().as_secs_f64().ceil();
    let policy = format!("\"default\";q={};w={window}", quota.burst_size());
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static(""))
}

fn field(name: &str, remaining: u32, reset: u64) -> HeaderValue {
    use std::io::Write;
    // Enough for the longest numbers of these types.
    let mut text = [0; 48];
    let mut rest = &mut text[..];
    let size = rest.len();
    let _ = write!(rest, "\"{name}\";r={remaining};t={reset}");
    let length = size - rest.len();
    unindexed(HeaderValue::from_bytes(&text[..length]).unwrap_or(HeaderValue::from_static("")))
}

fn ceil(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
