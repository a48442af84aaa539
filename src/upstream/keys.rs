//! The provider's API keys: which key a request carries, and when one is usable.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

mod api_key;
mod budget_permit;
mod key_check;
mod key_patterns;
mod pool;
mod refusals;
mod snapshot;
mod suspension;
mod unanswered;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

pub use api_key::{ApiKey, BadKeys};
pub(crate) use budget_permit::{BudgetPermit, Late};
pub(super) use key_check::{RefusalCause, RefusalCheck};
pub(crate) use key_patterns::{KeyPattern, KeyPatterns};
use pool::{KeyAtHost, KeyPool, KeyState, PooledKey};
pub(crate) use refusals::KeyCheckResult;
pub(crate) use snapshot::{KeySnapshot, KeySnapshotAtHost};
use unanswered::Unanswered;

use super::admission::budgets::{BudgetOwner, Budgets};
use super::admission::queue::AdmissionQueue;
use super::admission::shared_budget::BudgetDemand;
use super::admission::{Denied, Priority, Rates, RequestPriority, Reserve};
use super::endpoint::Host;
use crate::clock::Clock;
use crate::sync::{read, write};

/// The keys of one upstream, or one entry for requests without a key. A reload may
/// replace them; requests that wait for budget then use the new keys. The state of a
/// key at a host (cooldown, suspension) belongs to this upstream and host; the use of
/// its budget counts for all upstreams that have the key
/// (`upstream::admission::budgets`).
pub(crate) struct Keys {
    /// The name of the upstream, for logs.
    upstream: Box<str>,
    pool: RwLock<Arc<KeyPool>>,
    budgets: Arc<Budgets>,
    clock: Clock,
    /// Requests that wait for budget.
    queue: Arc<AdmissionQueue>,
    /// Tip probes a minute, for which a part of the budget is reserved.
    probes: AtomicU32,
    has_several_hosts: AtomicBool,
    /// Whether connections carry several requests at once (HTTP/2).
    shares_connections: AtomicBool,
}

impl Keys {
    /// The keys of an upstream, each with a budget of these rates. Without keys,
    /// requests count against the budget of `server`.
    pub(crate) fn new(
        upstream: &str,
        keys: Vec<ApiKey>,
        server: BudgetOwner,
        rates: Rates,
        budgets: Arc<Budgets>,
        queue: Arc<AdmissionQueue>,
        clock: Clock,
    ) -> Arc<Self> {
        let new = Self {
            upstream: upstream.into(),
            pool: RwLock::default(),
            budgets,
            clock,
            queue,
            probes: AtomicU32::new(0),
            has_several_hosts: AtomicBool::new(false),
            shares_connections: AtomicBool::new(false),
        };
        new.replace(keys, server, rates);
        Arc::new(new)
    }

    /// Replaces the keys and the rates. The budget of a key that stays is unchanged;
    /// requests in flight with a withdrawn key finish.
    pub(crate) fn replace(&self, keys: Vec<ApiKey>, server: BudgetOwner, rates: Rates) {
        let now = self.clock.now();
        let mut pool = write(&self.pool);
        let handle = |owner: &BudgetOwner| self.budgets.handle(owner, &self.queue, now);
        let next = pool.next(&self.upstream, keys, server, handle, now);
        let terms = BudgetDemand {
            rates,
            probes: self.probes.load(Ordering::Relaxed),
        };
        for pooled in &next.keys {
            pooled.budget.join(terms);
            // A key that is configured again, or for another server, leaves
            // quarantine.
            let stays = pool.keys.iter().any(|before| before.owner == pooled.owner);
            for at_host in pooled.hosts().iter().filter(|_| !stays) {
                let mut state = at_host.state();
                if state.is_quarantined() {
                    state.suspension = None;
                }
            }
        }
        for (_, gone) in &next.withdrawn {
            gone.budget.leave();
        }
        let next = Arc::new(next);
        let before = std::mem::replace(&mut *pool, next.clone());
        drop(pool);
        drop(before);
        self.wake(&next);
    }

    /// Wakes the queues of all upstreams that may be able to send more: with these
    /// keys or with those that were withdrawn.
    fn wake(&self, pool: &KeyPool) {
        let withdrawn = pool.withdrawn.iter().map(|(_, pooled)| pooled);
        for pooled in pool.keys.iter().chain(withdrawn) {
            pooled.budget.wake_others();
        }
        self.queue.set_budget_per_second(pool.max_per_second());
        self.queue.wake();
    }

    /// Empty keys for another server. Requests that wait for a key of this pool get
    /// none of that one; the budgets stay the same.
    pub(crate) fn elsewhere(&self) -> Arc<Self> {
        let pool = self.pool();
        Arc::new(Self {
            upstream: self.upstream.clone(),
            pool: RwLock::new(Arc::new(KeyPool {
                withdrawn: pool.all_withdrawn(self.clock.now()),
                ..KeyPool::default()
            })),
            budgets: self.budgets.clone(),
            clock: self.clock.clone(),
            queue: self.queue.clone(),
            probes: AtomicU32::new(self.probes.load(Ordering::Relaxed)),
            has_several_hosts: AtomicBool::new(self.has_several_hosts.load(Ordering::Relaxed)),
            shares_connections: AtomicBool::new(self.shares_connections.load(Ordering::Relaxed)),
        })
    }

    /// The upstream was removed: its rates and its share no longer limit other
    /// upstreams with the same keys. Requests that wait still may be sent.
    pub(crate) fn retire(&self) {
        let pool = self.pool();
        for pooled in &pool.keys {
            pooled.budget.leave();
        }
        self.wake(&pool);
    }

    fn pool(&self) -> Arc<KeyPool> {
        let pool = read(&self.pool);
        pool.clone()
    }

    /// Takes over the cooldowns of a process that has just ended.
    pub(crate) fn restore_cooldowns(&self) {
        for pooled in &self.pool().keys {
            pooled.restore_cooldowns();
        }
    }

    /// Sets the number of tip probes a minute.
    pub(crate) fn set_probes(&self, probes: u32) {
        self.probes.store(probes, Ordering::Relaxed);
        for pooled in &self.pool().keys {
            pooled.budget.set_probes(probes);
        }
    }

    /// Takes a permit to send one request to a host, with the key that has the most
    /// budget left, and charges it to its client.
    ///
    /// # Errors
    /// Why no key can be used now.
    pub(crate) fn take_at(
        self: &Arc<Self>,
        host: &Host,
        request: impl Into<RequestPriority>,
    ) -> Result<BudgetPermit, Denied> {
        let request = request.into();
        let (now, reserve) = (self.clock.now(), self.reserve(request));
        let pool = self.pool();
        // It changes when other upstreams with the same keys are added or removed.
        self.queue.set_budget_per_second(pool.max_per_second());
        let at_hosts: Vec<_> = pool
            .keys
            .iter()
            .map(|pooled| pooled.at(host, now))
            .collect();
        let rank = |(at, pooled): (usize, &Arc<PooledKey>)| {
            // A key whose suspension is over goes first, or its trial would never
            // come.
            let suspension = at_hosts[at].state().suspension;
            let is_due = suspension.is_some_and(|suspension| suspension.is_trial_due(now));
            let left = pooled.budget.remaining(now).unwrap_or(usize::MAX);
            (Reverse(is_due), Reverse(left), at)
        };
        let mut order: Vec<_> = pool.keys.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best = None;
        for (.., at) in order {
            let (pooled, at_host) = (&pool.keys[at], &at_hosts[at]);
            let taken = match self.is_held_up(pooled, at_host) {
                true => Err(Denied::SpentUntilRequestEnds),
                false => pooled.take(at_host, now, reserve),
            };
            let unfit = match taken {
                Ok(entry) => {
                    if request.client.is_some() {
                        self.queue.charge(request.client);
                    }
                    return Ok(BudgetPermit {
                        keys: self.clone(),
                        key: pooled.clone(),
                        at_host: at_host.clone(),
                        entry,
                        reserve,
                        client: request.client,
                        unanswered: Some(Unanswered::new(at_host)),
                        sent: None,
                        has_ended: false,
                    });
                }
                Err(unfit) => unfit,
            };
            best = Some(best.map_or(unfit, |best: Denied| best.better(unfit)));
        }
        Err(best.unwrap_or(Denied::SpentUntilRequestEnds))
    }

    /// Why no request can be sent to a host now; `None` where one can.
    pub(crate) fn denied_at(
        &self,
        host: &Host,
        request: impl Into<RequestPriority>,
    ) -> Option<Denied> {
        let (now, reserve) = (self.clock.now(), self.reserve(request.into()));
        let pool = self.pool();
        let each = pool.keys.iter();
        let denied = each.map(|pooled| {
            let at_host = pooled.at(host, now);
            let is_held_up = self.is_held_up(pooled, &at_host);
            let denied = pooled.check(&at_host.state(), now, reserve).err();
            denied.or(is_held_up.then_some(Denied::SpentUntilRequestEnds))
        });
        // `None` if any key is usable.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// Whether a host accepts none of the keys for longer than this, whatever their
    /// budgets; or has so many unanswered requests that were given up that no more
    /// are sent to it.
    pub(crate) fn all_unusable_at(&self, host: &Host, longer_than: Duration) -> bool {
        let now = self.clock.now();
        let pool = self.pool();
        let rests = |pooled: &Arc<PooledKey>| {
            let at_host = pooled.at(host, now);
            let state = at_host.state();
            let is_tried = state
                .suspension
                .is_some_and(|suspension| suspension.is_in_trial());
            let rests = is_tried || state.unusable_for(now) > longer_than;
            drop(state);
            rests || self.is_full(pooled, &at_host, |at| &at.given_up)
        };
        !pool.keys.is_empty() && pool.keys.iter().all(rests)
    }

    /// Whether a key could be used at a host, but for what was spent before the start, which
    /// is not known.
    pub(crate) fn waits_for_unknown_at(&self, host: &Host) -> bool {
        let now = self.clock.now();
        let waits = |pooled: &Arc<PooledKey>| {
            let unusable_for = pooled.at(host, now).state().unusable_for(now);
            unusable_for.is_zero() && pooled.budget.is_blocked(now)
        };
        self.pool().keys.iter().any(waits)
    }

    /// Whether a key has a limit.
    pub(crate) fn have_limit(&self) -> bool {
        let pool = self.pool();
        let mut keys = pool.keys.iter();
        keys.any(|pooled| pooled.budget.max_unanswered().is_some())
    }

    /// The reserve that a request must leave. Of clients, those with little recent
    /// usage may use the reserve, whatever the priority.
    fn reserve(&self, request: RequestPriority) -> Reserve {
        // The budget replaces this with the probes of all upstreams that share it.
        let probes = 0;
        match (request.priority, request.client) {
            (Priority::Probe, _) => Reserve::Nothing,
            (Priority::LookAhead, _) => Reserve::Half,
            (Priority::Miss | Priority::Revalidation, Some(client)) => {
                match self.queue.is_light(client) {
                    true => Reserve::Probes(probes),
                    false => Reserve::ProbesAndLightClients(probes),
                }
            }
            (Priority::Miss, None) => Reserve::Probes(probes),
            (Priority::Revalidation, None) => Reserve::ProbesAndLightClients(probes),
        }
    }

    /// The state of each key.
    pub(crate) fn snapshots(&self) -> Vec<KeySnapshot> {
        let now = self.clock.now();
        let snapshot = |pooled: &Arc<PooledKey>| {
            let at_hosts = pooled.hosts();
            let hosts = at_hosts.iter().map(|at_host| {
                pooled.receive_cooldowns(at_host, now);
                let state = at_host.state();
                let at = KeySnapshotAtHost {
                    unusable_for: state.unusable_for(now),
                    reason: state.suspension.map(|suspension| suspension.reason),
                };
                (at_host.host.clone(), at)
            });
            KeySnapshot {
                name: pooled.name().to_owned(),
                remaining: pooled.budget.remaining(now),
                per_minute: pooled.budget.per_minute(),
                allowance: pooled.budget.allowance(),
                hosts: hosts.collect(),
            }
        };
        self.pool().keys.iter().map(snapshot).collect()
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

#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;
