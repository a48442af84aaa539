//! The keys of one upstream: which key a request carries.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use http::HeaderValue;

pub use super::api_key::{ApiKey, BadKeys};
use super::budget::Taken;
use super::endpoint::Host;
pub(crate) use super::key::{KeySnapshot, KeySnapshotAtHost};
use super::key::{Part, ProviderKey, User};
pub(crate) use super::key_patterns::{KeyPattern, KeyPatterns};
use super::queue::{Denied, RequestQueue};
use super::rates::Rates;
use crate::clock::{Clock, Moment};
use crate::hidden_keys::HiddenKeys;
use crate::log_writer::LogInterval;
use crate::shared::Shared;
use crate::state::Spent;
use crate::sync::{lock, read, write};

/// How long answers are searched for a key that was withdrawn.
const REMEMBERED: Duration = Duration::from_hours(1);
/// At most so many withdrawn keys are searched for.
const MAX_WITHDRAWN: usize = 1024;

/// Why it is not known what was spent before the start.
pub(crate) const UNKNOWN: &str = "spent.db cannot be read, or is of another boot of the machine";

/// The keys of the process.
pub(crate) struct Budgets {
    keys: Mutex<Vec<Arc<ProviderKey>>>,
    next_user: AtomicU64,
    /// What replicas share, if there are several.
    shared: Option<Arc<Shared>>,
    /// What is kept for the next process.
    pub(super) spent: Spent,
}

impl Budgets {
    /// No keys. What they spend is kept in `spent`.
    pub(crate) fn new(shared: Option<Arc<Shared>>, spent: Spent) -> Self {
        Self {
            keys: Mutex::default(),
            next_user: AtomicU64::new(0),
            shared,
            spent,
        }
    }

    /// The number of the next user of keys.
    pub(crate) fn next_user(&self) -> u64 {
        self.next_user.fetch_add(1, Ordering::Relaxed)
    }

    /// The key of this value.
    pub(crate) fn key(&self, value: &HeaderValue, now: Moment) -> Arc<ProviderKey> {
        let mut keys = lock(&self.keys);
        keys.retain(|key| Arc::strong_count(key) > 1 || key.matters(now));
        let known = keys.iter().find(|key| key.value.as_ref() == Some(value));
        known.cloned().unwrap_or_else(|| {
            let key = Arc::new(ProviderKey::new(Some(value.clone()), self.shared.clone()));
            key.count_earlier(&self.spent.earlier(&key.digest), now);
            keys.push(key.clone());
            key
        })
    }

    /// For how long and why keys with a limit are not used, because what they have spent
    /// before the start is not known.
    pub(crate) fn unknown(&self, now: Moment) -> Option<(Duration, &'static str)> {
        let keys = lock(&self.keys);
        let each = keys.iter().map(|key| key.blocked_for(now));
        let wait = each.max().filter(|wait| !wait.is_zero())?;
        Some((wait, UNKNOWN))
    }
}

/// The keys of one upstream, or one entry for requests without a key. A reload may
/// replace them; requests that wait for budget then use the new keys.
pub(crate) struct Keys {
    /// Its number as a user of keys.
    number: u64,
    pool: RwLock<Arc<KeyPool>>,
    budgets: Arc<Budgets>,
    /// What counts requests without a key.
    keyless: Arc<ProviderKey>,
    pub(super) clock: Clock,
    /// Requests that wait for budget.
    pub(super) queue: Arc<RequestQueue>,
    /// Tip probes a minute and key, for which a part of the budget is kept.
    probes: AtomicU32,
    pub(super) keyless_refused: LogInterval,
}

/// The keys as of the last reload.
#[derive(Default)]
struct KeyPool {
    keys: Box<[Arc<PooledKey>]>,
    /// Those that were withdrawn, and when.
    withdrawn: Vec<(Moment, ApiKey)>,
    patterns: Arc<KeyPatterns>,
    _hidden: Option<HiddenKeys>,
}

/// A key, and its name in this upstream.
pub(super) struct PooledKey {
    /// `None` for requests without a key.
    pub(super) api: Option<ApiKey>,
    pub(super) key: Arc<ProviderKey>,
}

impl PooledKey {
    pub(super) fn name(&self) -> &str {
        self.api.as_ref().map_or("none", ApiKey::name)
    }
}

impl Keys {
    /// The keys of an upstream that sends them to these hosts, each with a budget of these
    /// rates.
    pub(crate) fn new(
        (keys, rates): (Vec<ApiKey>, Rates),
        hosts: Vec<Host>,
        budgets: Arc<Budgets>,
        queue: Arc<RequestQueue>,
        clock: Clock,
    ) -> Arc<Self> {
        let new = Self {
            number: budgets.next_user(),
            pool: RwLock::default(),
            budgets,
            keyless: Arc::new(ProviderKey::new(None, None)),
            clock,
            queue,
            probes: AtomicU32::new(0),
            keyless_refused: LogInterval::default(),
        };
        new.replace(keys, rates, hosts);
        Arc::new(new)
    }

    /// Replaces the keys, the rates and the hosts. What a key has spent stays as it is;
    /// requests in flight with a withdrawn key finish.
    pub(crate) fn replace(&self, keys: Vec<ApiKey>, rates: Rates, hosts: Vec<Host>) {
        let now = self.clock.now();
        let mut pool = write(&self.pool);
        let is_used = |api: &ApiKey| keys.iter().any(|key| key.value == api.value);
        let mut withdrawn = pool.withdrawn.clone();
        withdrawn.retain(|(at, api)| now.since(*at) < REMEMBERED && !is_used(api));
        let gone = pool.keys.iter().filter(|pooled| {
            let is_gone = !pooled.api.as_ref().is_some_and(is_used);
            if is_gone {
                pooled.key.leave(self.number, now);
            }
            is_gone
        });
        let gone: Vec<_> = gone.filter_map(|pooled| pooled.api.clone()).collect();
        withdrawn.splice(0..0, gone.into_iter().map(|api| (now, api)));
        withdrawn.truncate(MAX_WITHDRAWN);
        let is_known =
            |key: &Arc<ProviderKey>| pool.keys.iter().any(|old| Arc::ptr_eq(&old.key, key));
        let pooled = |(key, api): (Arc<ProviderKey>, Option<ApiKey>)| {
            // A key that is configured again is tried again.
            if !is_known(&key) {
                key.try_again(&hosts);
            }
            key.join(
                User {
                    number: self.number,
                    queue: Arc::downgrade(&self.queue),
                    rates,
                    probes: self.probes.load(Ordering::Relaxed),
                    hosts: hosts.clone(),
                },
                now,
            );
            Arc::new(PooledKey { api, key })
        };
        let keys: Box<[_]> = match keys.is_empty() {
            true => [pooled((self.keyless.clone(), None))].into(),
            false => {
                let keys = keys.into_iter();
                let known = keys.map(|api| (self.budgets.key(&api.value, now), Some(api)));
                known.map(pooled).collect()
            }
        };
        let searched = keys.iter().filter_map(|pooled| pooled.api.as_ref());
        let searched = searched.chain(withdrawn.iter().map(|(_, api)| api));
        let patterns: KeyPatterns = searched.flat_map(ApiKey::patterns).collect();
        let next = Arc::new(KeyPool {
            _hidden: Some(patterns.hide()),
            patterns: Arc::new(patterns),
            keys,
            withdrawn,
        });
        let before = std::mem::replace(&mut *pool, next.clone());
        drop(pool);
        self.wake(&before);
        self.wake(&next);
    }

    /// Wakes the queues of all upstreams that may be able to send more.
    fn wake(&self, pool: &KeyPool) {
        for pooled in &pool.keys {
            pooled.key.pump_others(&self.queue);
        }
        self.queue.pump();
    }

    /// The upstream was removed: its rates no longer limit other upstreams with the same
    /// keys. Requests that wait still may be sent.
    pub(crate) fn retire(&self) {
        let (pool, now) = (self.pool(), self.clock.now());
        for pooled in &pool.keys {
            pooled.key.leave(self.number, now);
        }
        self.wake(&pool);
    }

    fn pool(&self) -> Arc<KeyPool> {
        let pool = read(&self.pool);
        pool.clone()
    }

    /// Sets the number of tip probes a minute and key.
    pub(crate) fn set_probes(&self, probes: u32) {
        self.probes.store(probes, Ordering::Relaxed);
        for pooled in &self.pool().keys {
            pooled.key.set_probes(self.number, probes, self.clock.now());
        }
    }

    /// Takes one request to a host out of the budget of the key that has most left.
    ///
    /// # Errors
    /// Why no key can be used now.
    pub(super) fn take(
        &self,
        host: &Host,
        is_probe: bool,
    ) -> Result<(Arc<PooledKey>, Taken, Part), Denied> {
        let (pool, now) = (self.pool(), self.clock.now());
        let rank = |(at, pooled): (usize, &Arc<PooledKey>)| {
            // A key that is to be tried again goes first, or that would never happen.
            let is_due = pooled.key.is_trial_due(host, now);
            let left = pooled.key.remaining(now).unwrap_or(usize::MAX);
            (Reverse(is_due), Reverse(left), at)
        };
        let mut order: Vec<_> = pool.keys.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best: Option<Denied> = None;
        for (.., at) in order {
            let pooled = &pool.keys[at];
            match pooled.key.take(host, is_probe, now) {
                Ok((taken, part)) => return Ok((pooled.clone(), taken, part)),
                Err(denied) => {
                    best = Some(match best {
                        Some(best) => best.better(denied),
                        None => denied,
                    });
                }
            }
        }
        Err(best.unwrap_or_else(Denied::spent_until_request_ends))
    }

    /// Why no request can be sent to a host now; `None` where one can.
    pub(super) fn denied(&self, host: &Host, is_probe: bool) -> Option<Denied> {
        let (pool, now) = (self.pool(), self.clock.now());
        let each = pool.keys.iter();
        let denied = each.map(|pooled| pooled.key.denied(host, is_probe, now));
        // `None` if any key is usable.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// How many requests may be sent in a second with all keys together.
    pub(super) fn max_per_second(&self) -> u32 {
        let of = |pooled: &Arc<PooledKey>| pooled.key.limits().per_second.unwrap_or(usize::MAX);
        let requests = self
            .pool()
            .keys
            .iter()
            .map(of)
            .fold(0, usize::saturating_add);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// Whether a host accepts none of the keys for longer than this, whatever their
    /// budgets; or has so many unanswered requests that no more are sent to it.
    pub(crate) fn all_unusable_at(&self, host: &Host, longer_than: Duration) -> bool {
        let (pool, now) = (self.pool(), self.clock.now());
        let rests = |pooled: &Arc<PooledKey>| {
            pooled.key.unusable_for(host, now) > longer_than || pooled.key.is_full(host)
        };
        !pool.keys.is_empty() && pool.keys.iter().all(rests)
    }

    /// Why keys are not used, if that is because what they have spent before the start is
    /// not known.
    pub(crate) fn unknown_because(&self) -> Option<&'static str> {
        let (_, why) = self.budgets.unknown(self.clock.now())?;
        Some(why)
    }

    /// The state of each key.
    pub(crate) fn snapshots(&self) -> Vec<KeySnapshot> {
        let now = self.clock.now();
        let pool = self.pool();
        let keys = pool.keys.iter();
        let snapshots = keys.map(|pooled| pooled.key.snapshot(pooled.name(), now));
        snapshots.collect()
    }

    /// The name of a key that these bytes contain, if any.
    pub(crate) fn find_key_in(&self, bytes: &[u8]) -> Option<Arc<str>> {
        let pool = self.pool();
        pool.patterns
            .find(bytes)
            .map(|pattern| pattern.name.clone())
    }

    /// What to search for: the keys in service, and those withdrawn recently.
    pub(super) fn patterns(&self) -> Arc<KeyPatterns> {
        self.pool().patterns.clone()
    }

    /// The budgets of all keys.
    pub(super) fn budgets(&self) -> &Arc<Budgets> {
        &self.budgets
    }

    /// The number of keys; 1 where requests carry none.
    pub(crate) fn count(&self) -> usize {
        self.pool().keys.len()
    }
}

impl Drop for Keys {
    /// A configuration that was rejected leaves no limits behind.
    fn drop(&mut self) {
        self.retire();
    }
}
