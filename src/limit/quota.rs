//! One quota for every client, in a bounded table of buckets.
//!
//! Once `max_clients` have a bucket of their own, further clients share a few
//! thousand buckets until unused ones are pruned. So requests from very many
//! addresses use a bounded amount of memory.

use std::cell::Cell;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::{NotUntil, Quota, RateLimiter};

use super::{RequestAllowance, ceil};
use crate::clock::{Clock, Moment};
use crate::identify::Client;

/// The number of shared buckets.
pub(super) const SHARED: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bucket {
    Own(Client),
    Shared(u16),
}

/// A quota that each client has.
pub(super) struct ClientQuota {
    usage: Arc<QuotaUsage>,
    quota: Quota,
    max_clients: usize,
}

/// What clients have used of a quota.
struct QuotaUsage {
    limiter: RateLimiter<Bucket, CountingStore, Clock, StateInformationMiddleware>,
    buckets: Arc<Buckets>,
}

/// The buckets. One that is completely replenished stays until it is pruned.
struct Buckets {
    map: DashMapStateStore<Bucket, RandomState>,
    /// Clients with a bucket of their own: never too low, and exact after a
    /// pruning during which no bucket was made.
    own: AtomicUsize,
    hasher: RandomState,
}

/// The buckets as governor sees them. Counts those that it makes.
struct CountingStore(Arc<Buckets>);

impl StateStore for CountingStore {
    type Key = Bucket;

    fn measure_and_replace<T, F, E>(&self, key: &Bucket, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // The last call of the closure decides: governor may call it again.
        let is_new = Cell::new(false);
        let decided = self.0.map.measure_and_replace(key, |before| {
            is_new.set(before.is_none());
            decide(before)
        });
        if is_new.get() && matches!(key, Bucket::Own(_)) {
            self.0.own.fetch_add(1, Ordering::Relaxed);
        }
        decided
    }
}

impl ShrinkableKeyedStateStore<Bucket> for CountingStore {
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
    /// The bucket of a client: its own where there are fewer than `max_clients`,
    /// or where it already has one. A client with a token always has its own, however
    /// many addresses there are; the token file bounds how many there are of those.
    fn of(&self, client: Client, max_clients: usize) -> Bucket {
        let own = Bucket::Own(client);
        let has_room = self.own.load(Ordering::Relaxed) < max_clients;
        match has_room || matches!(client, Client::Token(_)) || self.map.contains_key(&own) {
            true => own,
            false => Bucket::Shared((self.hasher.hash_one(client) % u64::from(SHARED)) as u16),
        }
    }

    /// Corrects `own`, which was `before` when the pruning began. A bucket that is
    /// made meanwhile counts twice until the next one.
    fn recount(&self, before: usize) -> usize {
        let own = self.map.iter();
        let own = own.filter(|entry| matches!(entry.key(), Bucket::Own(_)));
        let own = own.count();
        match own.checked_sub(before) {
            Some(more) => self.own.fetch_add(more, Ordering::Relaxed),
            None => self.own.fetch_sub(before - own, Ordering::Relaxed),
        };
        own
    }
}

impl ClientQuota {
    pub(super) fn new(quota: Quota, max_clients: NonZeroU32, clock: Clock) -> Self {
        let buckets = Arc::new(Buckets {
            map: DashMapStateStore::with_hasher(RandomState::default()),
            own: AtomicUsize::new(0),
            hasher: RandomState::default(),
        });
        let store = CountingStore(buckets.clone());
        let limiter = RateLimiter::<_, _, _, StateInformationMiddleware>::new(quota, store, clock);
        Self {
            usage: Arc::new(QuotaUsage { limiter, buckets }),
            quota,
            max_clients: max_clients.get() as usize,
        }
    }

    /// Takes over what clients have used, where the quota is the same.
    pub(super) fn take_over(&mut self, before: &Self) {
        if before.quota == self.quota {
            self.usage = before.usage.clone();
        }
    }

    /// How many a client may have at once.
    pub(super) fn burst(&self) -> NonZeroU32 {
        self.quota.burst_size()
    }

    /// Counts one more for a client.
    pub(super) fn admit(&self, client: Client) -> Result<RequestAllowance, NotUntil<Moment>> {
        let usage = &*self.usage;
        let bucket = usage.buckets.of(client, self.max_clients);
        let remaining = usage.limiter.check_key(&bucket)?.remaining_burst_capacity();
        let used = self.quota.burst_size().get().saturating_sub(remaining);
        Ok(RequestAllowance {
            remaining,
            reset: ceil(self.quota.replenish_interval() * used),
        })
    }

    /// Counts one less for a client.
    pub(super) fn refund(&self, client: Client) {
        let buckets = &*self.usage.buckets;
        let bucket = buckets.of(client, self.max_clients);
        let interval = Nanos::from(self.quota.replenish_interval());
        // governor takes 0 for a bucket that was never used.
        let least = Nanos::from(1);
        let Ok(()) = buckets.map.measure_and_replace(&bucket, |before| {
            let used = before.map_or(least, |used| used.saturating_sub(interval));
            Ok::<_, Infallible>(((), used.max(least)))
        });
    }

    /// Removes replenished buckets. Returns how many clients have one of their
    /// own.
    pub(super) fn prune(&self) -> usize {
        let usage = &*self.usage;
        let before = usage.buckets.own.load(Ordering::Relaxed);
        usage.limiter.retain_recent();
        usage.limiter.shrink_to_fit();
        usage.buckets.recount(before)
    }

    #[cfg(test)]
    pub(super) fn buckets(&self) -> usize {
        self.usage.limiter.len()
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.usage.buckets.own.load(Ordering::Relaxed)
    }
}
