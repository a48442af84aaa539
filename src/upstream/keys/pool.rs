//! The keys as of the last reload, each with its budget and its state at each host.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::api_key::ApiKey;
use super::key_patterns::KeyPatterns;
use super::refusals::{KeyCheckResult, Refusals};
use super::suspension::{Suspension, SuspensionReason};
use crate::clock::Moment;
use crate::hidden_keys::HiddenKeys;
use crate::log_writer::LogInterval;
use crate::sync::lock;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::budgets::{BudgetOwner, REMEMBERED};
use crate::upstream::admission::restrictions::{CooldownLeft, HostCooldown, HostName};
use crate::upstream::admission::shared_budget::{BudgetHandle, BudgetWait};
use crate::upstream::admission::{Denied, Reserve};
use crate::upstream::endpoint::Host;

/// The keys as of the last reload.
#[derive(Default)]
pub(super) struct KeyPool {
    pub(super) keys: Box<[Arc<PooledKey>]>,
    /// Keys withdrawn recently, and when. Their state applies again if they are
    /// configured again.
    pub(super) withdrawn: Vec<(Moment, Arc<PooledKey>)>,
    /// What to search responses for, so that no key is passed on.
    pub(super) patterns: Arc<KeyPatterns>,
    /// Keeps the same out of everything that is shown.
    pub(super) _hidden: Option<HiddenKeys>,
}

/// At most this many withdrawn keys are remembered.
const MAX_WITHDRAWN: usize = 1024;

/// A key of the pool, or the entry for requests without a key.
pub(super) struct PooledKey {
    pub(super) key: Option<ApiKey>,
    pub(super) owner: BudgetOwner,
    /// The name of the upstream.
    upstream: Box<str>,
    pub(super) budget: Arc<BudgetHandle>,
    pub(super) hosts: Arc<Mutex<Vec<Arc<KeyAtHost>>>>,
}

/// A key at one host of the upstream.
pub(super) struct KeyAtHost {
    pub(super) host: Host,
    /// Its name for the next process.
    name: HostName,
    pub(super) state: Mutex<KeyState>,
    /// Unanswered requests, and those of them that were given up and may still
    /// arrive.
    pub(super) unanswered: AtomicUsize,
    pub(super) given_up: AtomicUsize,
    /// The number of the last cooldown of another replica that was taken over.
    received: AtomicU64,
    /// When it was last logged that requests without a key are refused.
    pub(super) keyless_refused: LogInterval,
}

/// The state of a key at one host.
#[derive(Default)]
pub(super) struct KeyState {
    /// The end of the cooldown: the host has asked for no request before this moment.
    pub(super) cooldown_until: Moment,
    /// Set while the key is suspended: quarantined, or its quota is spent.
    pub(super) suspension: Option<Suspension>,
    pub(super) refusals: Refusals,
    /// Receives the result of the key check in flight.
    pub(super) checking: Option<watch::Receiver<Option<KeyCheckResult>>>,
}

impl KeyPool {
    /// How many requests may be unanswered within a second, with all keys.
    pub(super) fn max_per_second(&self) -> u32 {
        let of = |pooled: &Arc<PooledKey>| pooled.budget.max_per_second().unwrap_or(usize::MAX);
        let requests = self.keys.iter().map(of).fold(0, usize::saturating_add);
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The withdrawn keys if all keys of this pool were withdrawn now.
    pub(super) fn all_withdrawn(&self, now: Moment) -> Vec<(Moment, Arc<PooledKey>)> {
        let present = self.keys.iter().map(|pooled| (now, pooled.clone()));
        let before = self.withdrawn.iter().cloned();
        let before = before.filter(|(at, _)| now.since(*at) < REMEMBERED);
        present.chain(before).take(MAX_WITHDRAWN).collect()
    }

    /// The pool of an upstream after a reload. `handle` makes a handle on a budget.
    pub(super) fn next(
        &self,
        upstream: &str,
        keys: Vec<ApiKey>,
        server: BudgetOwner,
        handle: impl Fn(&BudgetOwner) -> Arc<BudgetHandle>,
        now: Moment,
    ) -> Self {
        let before = self.all_withdrawn(now);
        let pooled = |owner: BudgetOwner, key: Option<ApiKey>| {
            let known = before.iter().find(|(_, known)| known.owner == owner);
            let (budget, hosts) = match known {
                Some((_, known)) => (known.budget.clone(), known.hosts.clone()),
                None => (handle(&owner), Arc::default()),
            };
            Arc::new(PooledKey {
                key,
                owner,
                upstream: upstream.into(),
                budget,
                hosts,
            })
        };
        let of_key = |key: ApiKey| pooled(BudgetOwner::Key(key.value.clone()), Some(key));
        let next: Box<[_]> = match keys.is_empty() {
            true => Box::from([pooled(server, None)]),
            false => keys.into_iter().map(of_key).collect(),
        };
        let mut withdrawn = before;
        withdrawn.retain(|(_, gone)| !next.iter().any(|pooled| pooled.owner == gone.owner));
        let known = next
            .iter()
            .chain(withdrawn.iter().map(|(_, pooled)| pooled));
        let patterns = known
            .filter_map(|pooled| pooled.key.as_ref())
            .flat_map(ApiKey::patterns);
        let patterns: KeyPatterns = patterns.collect();
        Self {
            _hidden: Some(patterns.hide()),
            patterns: Arc::new(patterns),
            keys: next,
            withdrawn,
        }
    }
}

/// The longest cooldown that is taken over from another replica at once. After it, a
/// request of this one finds out how long it still lasts.
const MOST_RECEIVED: Duration = Duration::from_secs(60);

impl KeyState {
    /// Takes over the cooldown of an earlier process, where it lasts longer.
    fn restore(&mut self, earlier: HostCooldown) {
        self.cooldown_until = self.cooldown_until.max(earlier.until);
        if let Some(until) = earlier.quota_spent_until {
            let spent = Suspension::quota_spent_until(until);
            self.suspension.get_or_insert(spent);
        }
    }

    /// Takes over the cooldown of another replica, where it lasts longer. It may concern
    /// the address of that replica only. So if the key was refused, one request tries it
    /// here before others are sent.
    fn receive(&mut self, left: CooldownLeft, now: Moment) {
        let cooldown = left.cooldown.min(MOST_RECEIVED);
        self.cooldown_until = self.cooldown_until.max(now + cooldown);
        let refused = left.refused.filter(|(_, left)| !left.is_zero());
        let refused = refused.map(|(status, _)| Suspension::refused_elsewhere(status, now));
        let quota = left.quota.filter(|left| !left.is_zero());
        let quota = quota.map(|left| Suspension::quota_spent(left, now));
        // A suspension of its own has trials of its own.
        if self.suspension.is_none() {
            self.suspension = refused.or(quota);
        }
    }

    /// Whether the upstream has refused the key, which is not in service again yet.
    pub(super) fn is_quarantined(&self) -> bool {
        let reason = self.suspension.map(|suspension| suspension.reason);
        matches!(reason, Some(SuspensionReason::Refused(_)))
    }

    /// How long no request may use the key.
    pub(super) fn unusable_for(&self, now: Moment) -> Duration {
        let suspension = self
            .suspension
            .map_or(Duration::ZERO, |suspension| suspension.remaining(now));
        suspension.max(self.cooldown_until.since(now))
    }
}

impl PooledKey {
    /// Takes a request out of the budget, if the key is in service or due for a
    /// trial.
    pub(super) fn take(
        &self,
        at_host: &KeyAtHost,
        now: Moment,
        reserve: Reserve,
    ) -> Result<BudgetEntry, Denied> {
        let mut state = at_host.state();
        if state.suspension.is_some() || state.cooldown_until > now {
            self.check(&state, now, reserve)?;
        }
        let entry = self.budget.take(now, reserve)?;
        if let Some(suspension) = &mut state.suspension {
            suspension.begin_trial(entry.number());
        }
        Ok(entry)
    }

    /// Checks whether a request may be taken.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(
        &self,
        state: &KeyState,
        now: Moment,
        reserve: Reserve,
    ) -> Result<(), Denied> {
        if let Some(suspension) = &state.suspension {
            match suspension.reason {
                SuspensionReason::Refused(status) if !suspension.is_trial_due(now) => {
                    return Err(Denied::KeyRefused(status));
                }
                SuspensionReason::QuotaSpent if suspension.is_in_trial() => {
                    return Err(Denied::SpentUntilRequestEnds);
                }
                SuspensionReason::Refused(_) | SuspensionReason::QuotaSpent => {}
            }
        }
        let unusable_for = state.unusable_for(now);
        match self.budget.wait(now, reserve) {
            Some(BudgetWait::For(spent)) => Err(Denied::SpentFor(unusable_for.max(spent))),
            _ if !unusable_for.is_zero() => Err(Denied::SpentFor(unusable_for)),
            Some(BudgetWait::UntilRequestEnds) => Err(Denied::SpentUntilRequestEnds),
            None => Ok(()),
        }
    }

    /// Takes over the cooldowns of a process that has just ended.
    pub(super) fn restore_cooldowns(&self) {
        for at_host in self.hosts().iter() {
            let mut state = at_host.state();
            if let Some(cooldown) = self.budget.cooldown_at(at_host.name) {
                state.restore(cooldown);
            }
        }
    }

    /// Lets the next process know of the cooldown at a host, and of a quota that is spent.
    pub(super) fn keep_cooldown(&self, at_host: &KeyAtHost, state: &KeyState, now: Moment) {
        let suspension = state.suspension.as_ref();
        let cooldown = HostCooldown {
            host: at_host.name,
            until: state.cooldown_until,
            quota_spent_until: suspension.and_then(Suspension::quota_ends),
        };
        self.budget.set_cooldown(cooldown, now);
    }

    /// The same after the upstream has said so; it is sent to other replicas. Where no
    /// key is sent, it may concern this address only.
    pub(super) fn announce_cooldown(&self, at_host: &KeyAtHost, state: &KeyState, now: Moment) {
        self.keep_cooldown(at_host, state, now);
        if self.key.is_none() {
            return;
        }
        let suspension = state.suspension.as_ref();
        let left = |suspension: &Suspension| match suspension.reason {
            SuspensionReason::Refused(status) => Some((status, suspension.remaining(now))),
            SuspensionReason::QuotaSpent => None,
        };
        let left = CooldownLeft {
            host: at_host.name,
            cooldown: state.cooldown_until.since(now),
            quota: suspension
                .and_then(Suspension::quota_ends)
                .map(|until| until.since(now)),
            refused: suspension.and_then(left),
        };
        self.budget.announce_cooldown(left, now);
    }

    /// Takes over what other replicas have found since the last time.
    pub(super) fn receive_cooldowns(&self, at_host: &KeyAtHost, now: Moment) {
        let last = self.budget.last_received();
        if at_host.received.load(Relaxed) == last {
            return;
        }
        let number = at_host.received.fetch_max(last, Relaxed);
        if number >= last {
            return;
        }
        if let Some(left) = self.budget.received_after(number, at_host.name, now) {
            at_host.state().receive(left, now);
            tracing::info!(
                upstream = &*self.upstream,
                key = self.name(),
                host = &*at_host.host,
                "an API key is not used for a while, since the upstream has told another replica so"
            );
        }
    }

    pub(super) fn name(&self) -> &str {
        self.key.as_ref().map_or("none", ApiKey::name)
    }

    pub(super) fn hosts(&self) -> MutexGuard<'_, Vec<Arc<KeyAtHost>>> {
        lock(&self.hosts)
    }

    /// The state of the key at a host, with what other replicas have found.
    pub(super) fn at(&self, host: &Host, now: Moment) -> Arc<KeyAtHost> {
        let at_host = self.known_at(host);
        self.receive_cooldowns(&at_host, now);
        at_host
    }

    fn known_at(&self, host: &Host) -> Arc<KeyAtHost> {
        let mut at_hosts = self.hosts();
        if let Some(known) = at_hosts.iter().find(|at_host| at_host.host == *host) {
            return known.clone();
        }
        let name = HostName::new(&self.upstream, host);
        let mut state = KeyState::default();
        if let Some(cooldown) = self.budget.cooldown_at(name) {
            state.restore(cooldown);
        }
        let at_host = Arc::new(KeyAtHost {
            host: host.clone(),
            name,
            state: Mutex::new(state),
            unanswered: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            keyless_refused: LogInterval::default(),
        });
        at_hosts.push(at_host.clone());
        at_host
    }
}

impl KeyAtHost {
    pub(super) fn state(&self) -> MutexGuard<'_, KeyState> {
        lock(&self.state)
    }
}
