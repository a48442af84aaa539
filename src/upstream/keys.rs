//! The provider's keys, and who may use one when.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

mod api_key;
mod budget_permit;
mod cooldown;
mod denied;
mod refusals;
mod snapshot;
mod unanswered;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

pub(crate) use budget_permit::BudgetPermit;
pub(super) use budget_permit::{RefusalCause, RefusalCheck};
pub(crate) use denied::Denied;
pub(crate) use snapshot::{KeySnapshot, KeySnapshotAtHost};
use tokio::sync::watch;
use unanswered::Unanswered;

use super::admission::Reserve;
use super::admission::budget::BudgetEntry;
use super::admission::budgets::{BudgetOwner, Budgets, REMEMBERED};
use super::admission::queue::AdmissionQueue;
use super::admission::shared_budget::{BudgetDemand, BudgetHandle, BudgetWait};
use super::{Priority, Rates, RequestPriority};
use crate::clock::{Clock, Moment};
pub(crate) use api_key::KeyPatterns;
pub use api_key::{ApiKey, BadKeys};
use cooldown::{Cooldown, CooldownReason};
pub(crate) use refusals::KeyCheckResult;
use refusals::Refusals;

/// The keys of one upstream; or, where there is none, asking without. A reload
/// may put others in their place: who waits for budget gets one of those then.
/// What a host of the upstream has said of a key holds for this host alone, and
/// for this upstream; what is spent of the key's budget counts for all that have
/// the key (`upstream::budgets`).
pub(crate) struct Keys {
    /// The name of the upstream, for logs.
    upstream: Box<str>,
    pool: RwLock<Arc<KeyPool>>,
    budgets: Arc<Budgets>,
    clock: Clock,
    /// Those who wait for budget.
    queue: Arc<AdmissionQueue>,
    /// So many probes a minute have a share kept for them.
    probes: AtomicU32,
    /// Whether there are several hosts to ask.
    has_several_hosts: AtomicBool,
    /// Whether many requests may be on one connection.
    shares_connections: AtomicBool,
}

/// The keys as of the last reload.
#[derive(Default)]
struct KeyPool {
    keys: Box<[Arc<PooledKey>]>,
    /// Those that were withdrawn lately, and when: what was said of one still
    /// holds when it comes back.
    withdrawn: Vec<(Moment, Arc<PooledKey>)>,
    /// What gives a key away, and whose it is.
    patterns: Arc<KeyPatterns>,
}

/// So many withdrawn keys are remembered at the most.
const MOST_WITHDRAWN: usize = 1024;

struct PooledKey {
    key: Option<ApiKey>,
    owner: BudgetOwner,
    budget: Arc<BudgetHandle>,
    hosts: Arc<Mutex<Vec<Arc<KeyAtHost>>>>,
}

/// A key at one host of the upstream.
struct KeyAtHost {
    host: Host,
    state: Mutex<KeyState>,
    /// Requests that are not answered, and those of them that were given up and
    /// may still arrive.
    unanswered: AtomicUsize,
    given_up: AtomicUsize,
}

/// Scheme, host and port of a base URL.
pub type Host = Arc<str>;

/// What a host of this upstream has said of a key.
#[derive(Default)]
struct KeyState {
    /// No request before then: the host has said so.
    throttled_until: Moment,
    /// Where the key is out of service.
    cooldown: Option<Cooldown>,
    refusals: Refusals,
    /// Receives the verdict of the key check under way.
    checking: Option<watch::Receiver<Option<KeyCheckResult>>>,
}

impl Keys {
    /// The keys of an upstream at this server, each with a budget of these rates.
    pub(crate) fn new(
        upstream: &str,
        keys: Vec<ApiKey>,
        server: BudgetOwner,
        rates: Rates,
        budgets: Arc<Budgets>,
        line: Arc<AdmissionQueue>,
        clock: Clock,
    ) -> Arc<Self> {
        let new = Self {
            upstream: upstream.into(),
            pool: RwLock::default(),
            budgets,
            clock,
            queue: line,
            probes: AtomicU32::new(0),
            has_several_hosts: AtomicBool::new(false),
            shares_connections: AtomicBool::new(false),
        };
        new.replace(keys, server, rates);
        Arc::new(new)
    }

    /// Puts other keys in the place of these, or rates. A key that stays has
    /// spent what it has spent; one that goes finishes what is under way with
    /// it.
    pub(crate) fn replace(&self, keys: Vec<ApiKey>, server: BudgetOwner, rates: Rates) {
        let now = self.clock.now();
        let mut pool = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let hold = |payer: &BudgetOwner| self.budgets.handle(payer, &self.queue, now);
        let next = pool.next(keys, server, hold, now);
        let terms = BudgetDemand {
            rates,
            probes: self.probes.load(Ordering::Relaxed),
        };
        for slot in &next.keys {
            slot.budget.join(terms);
            // Whoever brings a key back, or takes it elsewhere, wants it tried.
            let stays = pool.keys.iter().any(|before| before.owner == slot.owner);
            for at_host in slot.hosts().iter().filter(|_| !stays) {
                let mut state = at_host.state();
                if matches!(state.cooldown, Some(rest) if matches!(rest.reason, CooldownReason::Refused(_)))
                {
                    state.cooldown = None;
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

    /// There may be more to take: of these keys or, for other upstreams, of those
    /// that were withdrawn.
    fn wake(&self, pool: &KeyPool) {
        let withdrawn = pool.withdrawn.iter().map(|(_, slot)| slot);
        for slot in pool.keys.iter().chain(withdrawn) {
            slot.budget.wake_others();
        }
        self.queue.set_budget_per_second(pool.max_per_second());
        self.queue.wake();
    }

    /// The keys of another server, none as yet. Who waits for one of these is not
    /// given one of those; but what a key has spent here, it has spent there as
    /// well.
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

    /// The upstream is gone: its rates, and its share of a second, count no more
    /// for others that have its keys. What waits still may go.
    pub(crate) fn retire(&self) {
        let pool = self.pool();
        for slot in &pool.keys {
            slot.budget.leave();
        }
        self.wake(&pool);
    }

    fn pool(&self) -> Arc<KeyPool> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.clone()
    }

    /// Keeps a share for so many probes a minute from now on.
    pub(crate) fn set_probes(&self, probes: u32) {
        self.probes.store(probes, Ordering::Relaxed);
        for slot in &self.pool().keys {
            slot.budget.set_probes(probes);
        }
    }

    /// Takes the right to send one request to a host, from the key with the most
    /// left, and counts it as its client's.
    ///
    /// # Errors
    /// Where there is none just now.
    pub(crate) fn take_at(
        self: &Arc<Self>,
        host: &Host,
        wish: impl Into<RequestPriority>,
    ) -> Result<BudgetPermit, Denied> {
        let wish = wish.into();
        let (now, keep) = (self.clock.now(), self.reserve(wish));
        let pool = self.pool();
        // It changes as other upstreams come and go that have the same keys.
        self.queue.set_budget_per_second(pool.max_per_second());
        let at_hosts: Vec<_> = pool.keys.iter().map(|slot| slot.at(host)).collect();
        let rank = |(at, slot): (usize, &Arc<PooledKey>)| {
            // A key that has rested is tried, or it would never be used again.
            let rest = at_hosts[at].state().cooldown;
            let is_due = rest.is_some_and(|rest| rest.is_trial_due(now));
            let left = slot.budget.remaining(now).unwrap_or(usize::MAX);
            (Reverse(is_due), Reverse(left), at)
        };
        let mut order: Vec<_> = pool.keys.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best = None;
        for (.., at) in order {
            let (slot, at_host) = (&pool.keys[at], &at_hosts[at]);
            let taken = match self.is_held_up(slot, at_host) {
                true => Err(Denied::UntilRequestEnds),
                false => slot.take(at_host, now, keep),
            };
            let unfit = match taken {
                Ok(counted) => {
                    if wish.client.is_some() {
                        self.queue.charge(wish.client);
                    }
                    return Ok(BudgetPermit {
                        keys: self.clone(),
                        key: slot.clone(),
                        at_host: at_host.clone(),
                        counted,
                        client: wish.client,
                        unanswered: Some(Unanswered::new(at_host)),
                        sent: None,
                        has_ended: false,
                    });
                }
                Err(unfit) => unfit,
            };
            best = Some(best.map_or(unfit, |best: Denied| best.better(unfit)));
        }
        Err(best.unwrap_or(Denied::UntilRequestEnds))
    }

    /// Why no request can be sent to a host just now; `None` where one can.
    pub(crate) fn denied_at(
        &self,
        host: &Host,
        wish: impl Into<RequestPriority>,
    ) -> Option<Denied> {
        let (now, keep) = (self.clock.now(), self.reserve(wish.into()));
        let pool = self.pool();
        let each = pool.keys.iter();
        let denied = each.map(|slot| {
            let at_host = slot.at(host);
            let is_held_up = self.is_held_up(slot, &at_host);
            let denied = slot.check(&at_host.state(), now, keep).err();
            denied.or(is_held_up.then_some(Denied::UntilRequestEnds))
        });
        // One that is not denied is as good as it gets.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// Whether a host takes none of the keys for longer than this, whatever is
    /// left of their budgets; or has not answered so many that were given up that
    /// no more are sent.
    pub(crate) fn all_unusable_at(&self, host: &Host, longer_than: Duration) -> bool {
        let now = self.clock.now();
        let pool = self.pool();
        let rests = |slot: &Arc<PooledKey>| {
            let at_host = slot.at(host);
            let state = at_host.state();
            let is_tried = state.cooldown.is_some_and(|rest| rest.is_in_trial());
            let rests = is_tried || state.unusable_for(now) > longer_than;
            drop(state);
            rests || self.is_full(slot, &at_host, |at| &at.given_up)
        };
        !pool.keys.is_empty() && pool.keys.iter().all(rests)
    }

    /// What a request leaves for others. The reserve is for clients that have
    /// had little of late: between clients, that decides, and not the priority.
    fn reserve(&self, wish: RequestPriority) -> Reserve {
        // For how many, the budget knows: those of all upstreams that hold it.
        let probes = 0;
        match (wish.priority, wish.client) {
            (Priority::Probe, _) => Reserve::Nothing,
            (Priority::LookAhead, _) => Reserve::Half,
            (Priority::Miss | Priority::Revalidation, Some(caller)) => {
                match self.queue.is_light(caller) {
                    true => Reserve::Probes(probes),
                    false => Reserve::ProbesAndLightClients(probes),
                }
            }
            (Priority::Miss, None) => Reserve::Probes(probes),
            (Priority::Revalidation, None) => Reserve::ProbesAndLightClients(probes),
        }
    }

    /// How each key stands.
    pub(crate) fn snapshots(&self) -> Vec<KeySnapshot> {
        let now = self.clock.now();
        let standing = |slot: &Arc<PooledKey>| {
            let at_hosts = slot.hosts();
            let hosts = at_hosts.iter().map(|at_host| {
                let state = at_host.state();
                let at = KeySnapshotAtHost {
                    unusable_for: state.unusable_for(now),
                    reason: state.cooldown.map(|rest| rest.reason),
                };
                (at_host.host.clone(), at)
            });
            KeySnapshot {
                name: slot.name().to_owned(),
                remaining: slot.budget.remaining(now),
                per_minute: slot.budget.per_minute(),
                hosts: hosts.collect(),
            }
        };
        self.pool().keys.iter().map(standing).collect()
    }

    /// The name of a key that some bytes give away, where they do.
    pub(crate) fn find_key_in(&self, bytes: &[u8]) -> Option<Arc<str>> {
        let pool = self.pool();
        pool.patterns.find(bytes).map(|trace| trace.name.clone())
    }

    /// What gives a key away: of those in service, and of those withdrawn lately.
    pub(super) fn patterns(&self) -> Arc<KeyPatterns> {
        self.pool().patterns.clone()
    }

    /// What holds the budgets of all keys.
    pub(super) fn budgets(&self) -> &Arc<Budgets> {
        &self.budgets
    }

    /// In how many ways the upstream can be asked.
    pub(crate) fn count(&self) -> usize {
        self.pool().keys.len()
    }
}

impl KeyPool {
    /// How many requests of this upstream a second takes that are not answered,
    /// with all keys.
    fn max_per_second(&self) -> u32 {
        let of = |slot: &Arc<PooledKey>| slot.budget.max_per_second().unwrap_or(usize::MAX);
        let requests = self.keys.iter().map(of).fold(0, usize::saturating_add);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The keys that are gone where all of these are.
    fn all_withdrawn(&self, now: Moment) -> Vec<(Moment, Arc<PooledKey>)> {
        let present = self.keys.iter().map(|slot| (now, slot.clone()));
        let before = self.withdrawn.iter().cloned();
        let before = before.filter(|(at, _)| now.since(*at) < REMEMBERED);
        present.chain(before).take(MOST_WITHDRAWN).collect()
    }

    /// The pool that comes after this one.
    fn next(
        &self,
        keys: Vec<ApiKey>,
        server: BudgetOwner,
        hold: impl Fn(&BudgetOwner) -> Arc<BudgetHandle>,
        now: Moment,
    ) -> Self {
        let before = self.all_withdrawn(now);
        let slot = |payer: BudgetOwner, key: Option<ApiKey>| {
            let known = before.iter().find(|(_, slot)| slot.owner == payer);
            let (holder, hosts) = match known {
                Some((_, slot)) => (slot.budget.clone(), slot.hosts.clone()),
                None => (hold(&payer), Arc::default()),
            };
            Arc::new(PooledKey {
                key,
                owner: payer,
                budget: holder,
                hosts,
            })
        };
        let slots: Box<[_]> = match keys.is_empty() {
            true => Box::from([slot(server, None)]),
            false => {
                let of = |key: ApiKey| slot(BudgetOwner::Key(key.value.clone()), Some(key));
                keys.into_iter().map(of).collect()
            }
        };
        let mut withdrawn = before;
        withdrawn.retain(|(_, gone)| !slots.iter().any(|slot| slot.owner == gone.owner));
        let known = slots.iter().chain(withdrawn.iter().map(|(_, slot)| slot));
        let traces = known
            .filter_map(|slot| slot.key.as_ref())
            .flat_map(ApiKey::patterns);
        Self {
            patterns: Arc::new(traces.collect()),
            keys: slots,
            withdrawn,
        }
    }
}

impl KeyState {
    /// How long there is to be no request.
    fn unusable_for(&self, now: Moment) -> Duration {
        let resting = self
            .cooldown
            .map_or(Duration::ZERO, |rest| rest.remaining(now));
        resting.max(self.throttled_until.since(now))
    }
}

impl PooledKey {
    /// Takes a request out of the budget, where the key is in service or may
    /// be tried again.
    fn take(&self, at_host: &KeyAtHost, now: Moment, keep: Reserve) -> Result<BudgetEntry, Denied> {
        let mut state = at_host.state();
        if state.cooldown.is_some() || state.throttled_until > now {
            self.check(&state, now, keep)?;
        }
        let counted = self.budget.take(now, keep)?;
        if let Some(rest) = &mut state.cooldown {
            rest.begin_trial(counted.number());
        }
        Ok(counted)
    }

    /// Whether a request may be taken.
    fn check(&self, state: &KeyState, now: Moment, keep: Reserve) -> Result<(), Denied> {
        if let Some(rest) = &state.cooldown {
            match rest.reason {
                CooldownReason::Refused(status) if !rest.is_trial_due(now) => {
                    return Err(Denied::Refused(status));
                }
                CooldownReason::QuotaSpent if rest.is_in_trial() => {
                    return Err(Denied::UntilRequestEnds);
                }
                CooldownReason::Refused(_) | CooldownReason::QuotaSpent => {}
            }
        }
        let cooling = state.unusable_for(now);
        match self.budget.wait(now, keep) {
            Some(BudgetWait::For(spent)) => Err(Denied::For(cooling.max(spent))),
            _ if !cooling.is_zero() => Err(Denied::For(cooling)),
            Some(BudgetWait::UntilRequestEnds) => Err(Denied::UntilRequestEnds),
            None => Ok(()),
        }
    }

    fn name(&self) -> &str {
        self.key.as_ref().map_or("none", ApiKey::name)
    }

    fn hosts(&self) -> MutexGuard<'_, Vec<Arc<KeyAtHost>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key at a host.
    fn at(&self, host: &Host) -> Arc<KeyAtHost> {
        let mut at_hosts = self.hosts();
        if let Some(known) = at_hosts.iter().find(|at_host| at_host.host == *host) {
            return known.clone();
        }
        let at_host = Arc::new(KeyAtHost {
            host: host.clone(),
            state: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
        });
        at_hosts.push(at_host.clone());
        at_host
    }
}

impl KeyAtHost {
    fn state(&self) -> MutexGuard<'_, KeyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;
