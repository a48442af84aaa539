//! The provider's keys, and who may use one when.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

mod api_key;
mod budget_permit;
pub mod cooldown;
mod denied;
mod refusals;
mod snapshot;
mod unanswered;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

pub use budget_permit::BudgetPermit;
pub(super) use budget_permit::{Refused, Suspicion};
pub use denied::Denied;
pub use snapshot::{KeySnapshot, KeySnapshotAtHost};
use tokio::sync::watch;
use unanswered::Unanswered;

use super::admission::budget::Keep;
use super::admission::queue::AdmissionQueue;
use super::admission::shared_budget::{Budgets, Counted, Holder, Payer, REMEMBERED, Terms, Wait};
use super::{Priority, Rates, RequestPriority};
use crate::clock::{Clock, Moment};
pub(crate) use api_key::Traces;
pub use api_key::{ApiKey, BadKeys};
use cooldown::{Cooldown, CooldownReason};
pub(crate) use refusals::KeyCheckResult;
use refusals::Refusals;

/// The keys of one upstream; or, where there is none, asking without. A reload
/// may put others in their place: who waits for budget gets one of those then.
/// What a host of the upstream has said of a key holds for this host alone, and
/// for this upstream; what is spent of the key's budget counts for all that have
/// the key (`upstream::budgets`).
pub struct Keys {
    /// The name of the upstream, for logs.
    upstream: Box<str>,
    pool: RwLock<Arc<Pool>>,
    budgets: Arc<Budgets>,
    clock: Clock,
    /// Those who wait for budget.
    line: Arc<AdmissionQueue>,
    /// So many probes a minute have a share kept for them.
    probes: AtomicU32,
    /// Whether there are several hosts to ask.
    has_several_hosts: AtomicBool,
    /// Whether many requests may be on one connection.
    shares_connections: AtomicBool,
}

/// The keys as of the last reload.
#[derive(Default)]
struct Pool {
    slots: Box<[Arc<Slot>]>,
    /// Those that were withdrawn lately, and when: what was said of one still
    /// holds when it comes back.
    withdrawn: Vec<(Moment, Arc<Slot>)>,
    /// What gives a key away, and whose it is.
    traces: Arc<Traces>,
}

/// So many withdrawn keys are remembered at the most.
const MOST_WITHDRAWN: usize = 1024;

struct Slot {
    key: Option<ApiKey>,
    payer: Payer,
    holder: Arc<Holder>,
    hosts: Arc<Mutex<Vec<Arc<KeyAtHost>>>>,
}

/// A key at one host of the upstream.
struct KeyAtHost {
    host: Host,
    state: Mutex<State>,
    /// Requests that are not answered, and those of them that were given up and
    /// may still arrive.
    unanswered: AtomicUsize,
    given_up: AtomicUsize,
}

/// Scheme, host and port of a base URL.
pub type Host = Arc<str>;

/// What a host of this upstream has said of a key.
#[derive(Default)]
struct State {
    /// No request before then: the host has said so.
    cool_until: Moment,
    /// Where the key is out of service.
    rest: Option<Cooldown>,
    refusals: Refusals,
    /// Receives the verdict of the key check under way.
    checking: Option<watch::Receiver<Option<KeyCheckResult>>>,
}

impl Keys {
    /// The keys of an upstream at this server, each with a budget of these rates.
    pub fn new(
        upstream: &str,
        keys: Vec<ApiKey>,
        server: Payer,
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
            line,
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
    pub fn replace(&self, keys: Vec<ApiKey>, server: Payer, rates: Rates) {
        let now = self.clock.now();
        let mut pool = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let hold = |payer: &Payer| self.budgets.hold(payer, &self.line, now);
        let next = pool.next(keys, server, hold, now);
        let terms = Terms {
            rates,
            probes: self.probes.load(Ordering::Relaxed),
        };
        for slot in &next.slots {
            slot.holder.join(terms);
            // Whoever brings a key back, or takes it elsewhere, wants it tried.
            let stays = pool.slots.iter().any(|before| before.payer == slot.payer);
            for at_host in slot.hosts().iter().filter(|_| !stays) {
                let mut state = at_host.state();
                if matches!(state.rest, Some(rest) if matches!(rest.why, CooldownReason::Refused(_)))
                {
                    state.rest = None;
                }
            }
        }
        for (_, gone) in &next.withdrawn {
            gone.holder.leave();
        }
        let next = Arc::new(next);
        let before = std::mem::replace(&mut *pool, next.clone());
        drop(pool);
        drop(before);
        self.wake(&next);
    }

    /// There may be more to take: of these keys or, for other upstreams, of those
    /// that were withdrawn.
    fn wake(&self, pool: &Pool) {
        let withdrawn = pool.withdrawn.iter().map(|(_, slot)| slot);
        for slot in pool.slots.iter().chain(withdrawn) {
            slot.holder.wake_others();
        }
        self.line.share_second(pool.a_second());
        self.line.wake();
    }

    /// The keys of another server, none as yet. Who waits for one of these is not
    /// given one of those; but what a key has spent here, it has spent there as
    /// well.
    pub fn elsewhere(&self) -> Arc<Self> {
        let pool = self.pool();
        Arc::new(Self {
            upstream: self.upstream.clone(),
            pool: RwLock::new(Arc::new(Pool {
                withdrawn: pool.gone(self.clock.now()),
                ..Pool::default()
            })),
            budgets: self.budgets.clone(),
            clock: self.clock.clone(),
            line: self.line.clone(),
            probes: AtomicU32::new(self.probes.load(Ordering::Relaxed)),
            has_several_hosts: AtomicBool::new(self.has_several_hosts.load(Ordering::Relaxed)),
            shares_connections: AtomicBool::new(self.shares_connections.load(Ordering::Relaxed)),
        })
    }

    /// The upstream is gone: its rates, and its share of a second, count no more
    /// for others that have its keys. What waits still may go.
    pub fn retire(&self) {
        let pool = self.pool();
        for slot in &pool.slots {
            slot.holder.leave();
        }
        self.wake(&pool);
    }

    fn pool(&self) -> Arc<Pool> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.clone()
    }

    /// Keeps a share for so many probes a minute from now on.
    pub fn keep_for_probes(&self, probes: u32) {
        self.probes.store(probes, Ordering::Relaxed);
        for slot in &self.pool().slots {
            slot.holder.keep_for_probes(probes);
        }
    }

    /// Takes the right to send one request to a host, from the key with the most
    /// left, and counts it as its client's.
    ///
    /// # Errors
    /// Where there is none just now.
    pub fn take_at(
        self: &Arc<Self>,
        host: &Host,
        wish: impl Into<RequestPriority>,
    ) -> Result<BudgetPermit, Denied> {
        let wish = wish.into();
        let (now, keep) = (self.clock.now(), self.keep(wish));
        let pool = self.pool();
        // It changes as other upstreams come and go that have the same keys.
        self.line.share_second(pool.a_second());
        let at_hosts: Vec<_> = pool.slots.iter().map(|slot| slot.at(host)).collect();
        let rank = |(at, slot): (usize, &Arc<Slot>)| {
            // A key that has rested is tried, or it would never be used again.
            let rest = at_hosts[at].state().rest;
            let is_due = rest.is_some_and(|rest| rest.is_over(now));
            let left = slot.holder.left(now).unwrap_or(usize::MAX);
            (Reverse(is_due), Reverse(left), at)
        };
        let mut order: Vec<_> = pool.slots.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best = None;
        for (.., at) in order {
            let (slot, at_host) = (&pool.slots[at], &at_hosts[at]);
            let taken = match self.is_held_up(slot, at_host) {
                true => Err(Denied::UntilOneEnds),
                false => slot.take(at_host, now, keep),
            };
            let unfit = match taken {
                Ok(counted) => {
                    if wish.caller.is_some() {
                        self.line.charge(wish.caller);
                    }
                    return Ok(BudgetPermit {
                        keys: self.clone(),
                        slot: slot.clone(),
                        at_host: at_host.clone(),
                        counted,
                        client: wish.caller,
                        unanswered: Some(Unanswered::new(at_host)),
                        out: None,
                        has_ended: false,
                    });
                }
                Err(unfit) => unfit,
            };
            best = Some(best.map_or(unfit, |best: Denied| best.better(unfit)));
        }
        Err(best.unwrap_or(Denied::UntilOneEnds))
    }

    /// Why no request can be sent to a host just now; `None` where one can.
    pub fn denied_at(&self, host: &Host, wish: impl Into<RequestPriority>) -> Option<Denied> {
        let (now, keep) = (self.clock.now(), self.keep(wish.into()));
        let pool = self.pool();
        let each = pool.slots.iter();
        let denied = each.map(|slot| {
            let at_host = slot.at(host);
            let is_held_up = self.is_held_up(slot, &at_host);
            let denied = slot.may(&at_host.state(), now, keep).err();
            denied.or(is_held_up.then_some(Denied::UntilOneEnds))
        });
        // One that is not denied is as good as it gets.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// Whether a host takes none of the keys for longer than this, whatever is
    /// left of their budgets; or has not answered so many that were given up that
    /// no more are sent.
    pub fn all_rest_at(&self, host: &Host, longer_than: Duration) -> bool {
        let now = self.clock.now();
        let pool = self.pool();
        let rests = |slot: &Arc<Slot>| {
            let at_host = slot.at(host);
            let state = at_host.state();
            let is_tried = state.rest.is_some_and(|rest| rest.is_tried());
            let rests = is_tried || state.cooling(now) > longer_than;
            drop(state);
            rests || self.is_full(slot, &at_host, |at| &at.given_up)
        };
        !pool.slots.is_empty() && pool.slots.iter().all(rests)
    }

    /// What a request leaves for others. The reserve is for clients that have
    /// had little of late: between clients, that decides, and not the priority.
    fn keep(&self, wish: RequestPriority) -> Keep {
        // For how many, the budget knows: those of all upstreams that hold it.
        let probes = 0;
        match (wish.priority, wish.caller) {
            (Priority::Probe, _) => Keep::Nothing,
            (Priority::LookAhead, _) => Keep::Half,
            (Priority::Miss | Priority::Revalidation, Some(caller)) => {
                match self.line.is_light(caller) {
                    true => Keep::ForProbes(probes),
                    false => Keep::ForMisses(probes),
                }
            }
            (Priority::Miss, None) => Keep::ForProbes(probes),
            (Priority::Revalidation, None) => Keep::ForMisses(probes),
        }
    }

    /// How each key stands.
    pub fn standings(&self) -> Vec<KeySnapshot> {
        let now = self.clock.now();
        let standing = |slot: &Arc<Slot>| {
            let at_hosts = slot.hosts();
            let hosts = at_hosts.iter().map(|at_host| {
                let state = at_host.state();
                let at = KeySnapshotAtHost {
                    cooling: state.cooling(now),
                    rests: state.rest.map(|rest| rest.why),
                };
                (at_host.host.clone(), at)
            });
            KeySnapshot {
                name: slot.name().to_owned(),
                left: slot.holder.left(now),
                per_minute: slot.holder.per_minute(),
                hosts: hosts.collect(),
            }
        };
        self.pool().slots.iter().map(standing).collect()
    }

    /// The name of a key that some bytes give away, where they do.
    pub fn given_away(&self, bytes: &[u8]) -> Option<Arc<str>> {
        let pool = self.pool();
        pool.traces.find(bytes).map(|trace| trace.name.clone())
    }

    /// What gives a key away: of those in service, and of those withdrawn lately.
    pub(super) fn traces(&self) -> Arc<Traces> {
        self.pool().traces.clone()
    }

    /// What holds the budgets of all keys.
    pub(super) fn budgets(&self) -> &Arc<Budgets> {
        &self.budgets
    }

    /// In how many ways the upstream can be asked.
    pub fn ways(&self) -> usize {
        self.pool().slots.len()
    }

    /// Whether requests carry a key.
    pub fn are_there(&self) -> bool {
        self.pool().slots.iter().any(|slot| slot.key.is_some())
    }
}

impl Pool {
    /// How many requests of this upstream a second takes that are not answered,
    /// with all keys.
    fn a_second(&self) -> u32 {
        let of = |slot: &Arc<Slot>| slot.holder.most_in_a_second().unwrap_or(usize::MAX);
        let requests = self.slots.iter().map(of).fold(0, usize::saturating_add);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The keys that are gone where all of these are.
    fn gone(&self, now: Moment) -> Vec<(Moment, Arc<Slot>)> {
        let present = self.slots.iter().map(|slot| (now, slot.clone()));
        let before = self.withdrawn.iter().cloned();
        let before = before.filter(|(at, _)| now.since(*at) < REMEMBERED);
        present.chain(before).take(MOST_WITHDRAWN).collect()
    }

    /// The pool that comes after this one.
    fn next(
        &self,
        keys: Vec<ApiKey>,
        server: Payer,
        hold: impl Fn(&Payer) -> Arc<Holder>,
        now: Moment,
    ) -> Self {
        let before = self.gone(now);
        let slot = |payer: Payer, key: Option<ApiKey>| {
            let known = before.iter().find(|(_, slot)| slot.payer == payer);
            let (holder, hosts) = match known {
                Some((_, slot)) => (slot.holder.clone(), slot.hosts.clone()),
                None => (hold(&payer), Arc::default()),
            };
            Arc::new(Slot {
                key,
                payer,
                holder,
                hosts,
            })
        };
        let slots: Box<[_]> = match keys.is_empty() {
            true => Box::from([slot(server, None)]),
            false => {
                let of = |key: ApiKey| slot(Payer::Key(key.value.clone()), Some(key));
                keys.into_iter().map(of).collect()
            }
        };
        let mut withdrawn = before;
        withdrawn.retain(|(_, gone)| !slots.iter().any(|slot| slot.payer == gone.payer));
        let known = slots.iter().chain(withdrawn.iter().map(|(_, slot)| slot));
        let traces = known
            .filter_map(|slot| slot.key.as_ref())
            .flat_map(ApiKey::traces);
        Self {
            traces: Arc::new(traces.collect()),
            slots,
            withdrawn,
        }
    }
}

impl State {
    /// How long there is to be no request.
    fn cooling(&self, now: Moment) -> Duration {
        let resting = self.rest.map_or(Duration::ZERO, |rest| rest.left(now));
        resting.max(self.cool_until.since(now))
    }
}

impl Slot {
    /// Takes a request out of the budget, where the key is in service or may
    /// be tried again.
    fn take(&self, at_host: &KeyAtHost, now: Moment, keep: Keep) -> Result<Counted, Denied> {
        let mut state = at_host.state();
        if state.rest.is_some() || state.cool_until > now {
            self.may(&state, now, keep)?;
        }
        let counted = self.holder.take(now, keep)?;
        if let Some(rest) = &mut state.rest {
            rest.begin_trial(counted.number());
        }
        Ok(counted)
    }

    /// Whether a request may be taken.
    fn may(&self, state: &State, now: Moment, keep: Keep) -> Result<(), Denied> {
        if let Some(rest) = &state.rest {
            match rest.why {
                CooldownReason::Refused(status) if !rest.is_over(now) => {
                    return Err(Denied::Refused(status));
                }
                CooldownReason::QuotaSpent if rest.is_tried() => return Err(Denied::UntilOneEnds),
                CooldownReason::Refused(_) | CooldownReason::QuotaSpent => {}
            }
        }
        let cooling = state.cooling(now);
        match self.holder.wait(now, keep) {
            Some(Wait::For(spent)) => Err(Denied::For(cooling.max(spent))),
            _ if !cooling.is_zero() => Err(Denied::For(cooling)),
            Some(Wait::UntilOneEnds) => Err(Denied::UntilOneEnds),
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;
