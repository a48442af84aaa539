//! The keys of one upstream: which key a request carries.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

use std::cmp::Reverse;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;

use super::endpoint::Host;
pub(crate) use super::key::{KeySnapshot, KeySnapshotAtHost};
use super::key::{ProviderKey, Taken};
use super::queue::Denied;
pub use crate::api_key::{ApiKey, BadKeys};
use crate::clock::{Clock, Moment};
use crate::log_writer::LogInterval;
use crate::shared::Shared;
use crate::state::Spent;
use crate::sync::lock;

/// How long answers are searched for a key that was withdrawn.
const REMEMBERED: Duration = Duration::from_hours(1);
/// At most so many withdrawn keys are searched for.
const MAX_WITHDRAWN: usize = 1024;

/// Why it is not known what was spent before the start.
pub(crate) const UNKNOWN: &str = "spent.db cannot be read, or is of another boot of the machine";

/// The keys of the process.
pub(crate) struct Budgets {
    keys: Mutex<Vec<Arc<ProviderKey>>>,
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
            shared,
            spent,
        }
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

/// The keys of one upstream, or one entry for requests without a key. A reload makes them
/// anew; requests that wait for budget then use the new ones.
pub(crate) struct Keys {
    keys: Box<[Arc<PooledKey>]>,
    /// Those that were withdrawn, and when.
    withdrawn: Vec<(Moment, ApiKey)>,
    searched: Arc<[ApiKey]>,
    /// What counts requests without a key.
    keyless: Arc<ProviderKey>,
    pub(super) keyless_refused: LogInterval,
    pub(super) budgets: Arc<Budgets>,
    pub(super) clock: Clock,
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
    /// The keys of an upstream. They have no limits before [`ProviderKey::configure`].
    pub(super) fn new(keys: Vec<ApiKey>, budgets: Arc<Budgets>, clock: Clock) -> Self {
        let keyless = Arc::new(ProviderKey::new(None, None));
        Self::make(keys, &[], Vec::new(), keyless, budgets, clock)
    }

    /// The keys of the same upstream after a reload. What a key has spent stays as it is;
    /// requests in flight with a withdrawn key finish.
    pub(super) fn after(&self, keys: Vec<ApiKey>) -> Self {
        let now = self.clock.now();
        let present = self.keys.iter().filter_map(|pooled| pooled.api.clone());
        let withdrawn = present.map(|api| (now, api)).chain(self.withdrawn.clone());
        let is_used = |api: &ApiKey| keys.iter().any(|key| key.value() == api.value());
        let is_searched =
            |(at, api): &(Moment, ApiKey)| now.since(*at) < REMEMBERED && !is_used(api);
        let withdrawn = withdrawn.filter(is_searched).take(MAX_WITHDRAWN).collect();
        let (keyless, budgets) = (self.keyless.clone(), self.budgets.clone());
        let clock = self.clock.clone();
        Self::make(keys, &self.keys, withdrawn, keyless, budgets, clock)
    }

    /// A key that was not there `before` is tried again, whatever its hosts have said of it.
    fn make(
        keys: Vec<ApiKey>,
        before: &[Arc<PooledKey>],
        withdrawn: Vec<(Moment, ApiKey)>,
        keyless: Arc<ProviderKey>,
        budgets: Arc<Budgets>,
        clock: Clock,
    ) -> Self {
        let now = clock.now();
        let searched = keys.iter().chain(withdrawn.iter().map(|(_, api)| api));
        let searched = searched.filter(|api| api.is_searched()).cloned().collect();
        let pooled = |api: ApiKey| {
            let key = budgets.key(api.value(), now);
            if !before.iter().any(|old| Arc::ptr_eq(&old.key, &key)) {
                key.try_again();
            }
            Arc::new(PooledKey {
                api: Some(api),
                key,
            })
        };
        let keys = match keys.is_empty() {
            true => {
                let key = keyless.clone();
                [Arc::new(PooledKey { api: None, key })].into()
            }
            false => keys.into_iter().map(pooled).collect(),
        };
        Self {
            keys,
            withdrawn,
            searched,
            keyless,
            keyless_refused: LogInterval::default(),
            budgets,
            clock,
        }
    }

    /// The keys as they are for the process.
    pub(super) fn of_process(&self) -> impl Iterator<Item = &Arc<ProviderKey>> {
        self.keys.iter().map(|pooled| &pooled.key)
    }

    /// Takes one request to a host out of the budget of the key that has most left.
    ///
    /// # Errors
    /// Why no key can be used now.
    pub(super) fn take(
        &self,
        host: &Host,
        is_probe: bool,
    ) -> Result<(Arc<PooledKey>, Taken), Denied> {
        let now = self.clock.now();
        let rank = |(at, pooled): (usize, &Arc<PooledKey>)| {
            // A key that is to be tried again goes first, or that would never happen.
            let is_due = pooled.key.is_trial_due(host, now);
            let left = pooled.key.remaining(now).unwrap_or(usize::MAX);
            (Reverse(is_due), Reverse(left), at)
        };
        let mut order: Vec<_> = self.keys.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best: Option<Denied> = None;
        for (.., at) in order {
            let pooled = &self.keys[at];
            match pooled.key.take(host, is_probe, now) {
                Ok(taken) => return Ok((pooled.clone(), taken)),
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
        let now = self.clock.now();
        let each = self.keys.iter();
        let denied = each.map(|pooled| pooled.key.denied(host, is_probe, now));
        // `None` if any key is usable.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// How many requests may be sent in a second with all keys together.
    pub(super) fn max_per_second(&self) -> u32 {
        let of = |pooled: &Arc<PooledKey>| pooled.key.limits().per_second.unwrap_or(usize::MAX);
        let requests = self.keys.iter().map(of).fold(0, usize::saturating_add);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// Whether a host accepts none of the keys for longer than this, whatever their
    /// budgets; or has so many unanswered requests that no more are sent to it.
    pub(crate) fn all_unusable_at(&self, host: &Host, longer_than: Duration) -> bool {
        let now = self.clock.now();
        let rests = |pooled: &Arc<PooledKey>| {
            pooled.key.unusable_for(host, now) > longer_than || pooled.key.is_full(host)
        };
        !self.keys.is_empty() && self.keys.iter().all(rests)
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
        let keys = self.keys.iter();
        let snapshots = keys.map(|pooled| pooled.key.snapshot(pooled.name(), now));
        snapshots.collect()
    }

    /// What to search for: the keys in service, and those withdrawn recently.
    pub(super) fn searched(&self) -> Arc<[ApiKey]> {
        self.searched.clone()
    }

    /// The number of keys; 1 where requests carry none.
    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }
}
