//! The keys of one upstream: which key a request carries.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

use std::cmp::Reverse;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;

use super::endpoint::Host;
use super::failure::Failure;
use super::key::ProviderKey;
pub use crate::api_key::{ApiKey, BadKeys};
use crate::clock::{Clock, Moment};
use crate::reason::Reason;
use crate::shared::Shared;
use crate::state::Spent;
use crate::sync::lock;

/// The keys of the process.
#[derive(Default)]
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
        keys.retain(|key| Arc::strong_count(key) > 1 || key.state().matters(now));
        let known = keys.iter().find(|key| key.value.as_ref() == Some(value));
        known.cloned().unwrap_or_else(|| {
            let key = Arc::new(ProviderKey::new(Some(value.clone()), self.shared.clone()));
            let earlier = self.spent.earlier(&key.digest);
            key.state().count_earlier(&earlier, now);
            keys.push(key.clone());
            key
        })
    }
}

/// The keys of one upstream, or one entry for requests without a key. A reload makes them
/// anew; requests that wait for budget then use the new ones.
pub(crate) struct Keys {
    pub(super) keys: Box<[Arc<PooledKey>]>,
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
    /// The keys of an upstream. They have no limits before [`ProviderKey::configure`]. What a
    /// key has spent stays as it is.
    pub(super) fn new(keys: Vec<ApiKey>, budgets: Arc<Budgets>, clock: Clock) -> Self {
        let pooled = |api: ApiKey| PooledKey {
            key: budgets.key(api.value(), clock.now()),
            api: Some(api),
        };
        let mut all: Vec<_> = keys.into_iter().map(pooled).map(Arc::new).collect();
        if all.is_empty() {
            let key = Arc::new(ProviderKey::new(None, None));
            all.push(Arc::new(PooledKey { api: None, key }));
        }
        Self {
            keys: all.into(),
            budgets,
            clock,
        }
    }

    /// The keys as they are for the process.
    pub(super) fn of_process(&self) -> impl Iterator<Item = &Arc<ProviderKey>> {
        self.keys.iter().map(|pooled| &pooled.key)
    }

    /// Takes one request to a host out of the budget of the key that has most left. Returns
    /// also whether it is charged to the pool of all replicas.
    ///
    /// # Errors
    /// Why no key can be used now, and when the first can.
    pub(super) fn take(
        &self,
        host: &Host,
        is_probe: bool,
    ) -> Result<(Arc<PooledKey>, bool), Failure> {
        let now = self.clock.now();
        let mut order: Vec<_> = self.keys.iter().collect();
        order.sort_by_cached_key(|pooled| {
            let left = pooled.key.state().budget.remaining(now);
            Reverse(left.unwrap_or(usize::MAX))
        });
        let mut all_denied = Vec::new();
        for pooled in order {
            match pooled.key.state().take(host, is_probe, now) {
                Ok(is_of_pool) => return Ok((pooled.clone(), is_of_pool)),
                Err(denied) => all_denied.push(denied),
            }
        }
        let first = all_denied.into_iter().min_by_key(|one| one.retry_after);
        Err(first.unwrap_or(Failure::new(Reason::OverBudget)))
    }

    /// Why no request for a client can be sent to a host now; `None` where one can.
    pub(super) fn denied(&self, host: &Host) -> Option<Failure> {
        let (each, now) = (self.of_process(), self.clock.now());
        let denied = each.map(|key| key.state().denied(host, false, now));
        // `None` if any key is usable.
        let all_denied = denied.collect::<Option<Vec<_>>>()?;
        all_denied.into_iter().min_by_key(|one| one.retry_after)
    }

    /// How many requests may be sent in a second with all keys together.
    pub(super) fn max_per_second(&self) -> u32 {
        let of = |key: &Arc<ProviderKey>| key.state().budget.limits.per_second.unwrap_or(u32::MAX);
        self.of_process().map(of).fold(0, u32::saturating_add)
    }

    /// Whether a host accepts none of the keys for longer than this, whatever their
    /// budgets; or has so many unanswered requests that no more are sent to it.
    pub(crate) fn all_unusable_at(&self, host: &Host, longer_than: Duration) -> bool {
        let now = self.clock.now();
        self.of_process().all(|key| {
            let state = key.state();
            state.unusable_for(host, now) > longer_than || state.is_full(host)
        })
    }

    /// The state of each key at these hosts.
    pub(crate) fn snapshots(&self, hosts: &[Host]) -> Vec<Value> {
        let now = self.clock.now();
        let keys = self.keys.iter();
        let snapshots = keys.map(|pooled| pooled.key.state().snapshot(pooled.name(), hosts, now));
        snapshots.collect()
    }

    /// What answers are searched for: if requests carry a key, each that is in use in the
    /// process, those of requests in flight included.
    pub(super) fn searched(&self) -> Arc<[ApiKey]> {
        match self.keys[0].api {
            Some(_) => ApiKey::in_use().into(),
            None => Arc::default(),
        }
    }
}
