//! One key of the provider: what it has spent, which of all upstreams use it, and at which
//! hosts it is in cooldown or quarantined.
//!
//! The process has one [`ProviderKey`] for each value
//! ([`Budgets`](super::keys::Budgets)). So a key that several upstreams send has one
//! budget, with the strictest of their limits; and a reload, or a key that is withdrawn and
//! configured again, finds what was spent. A key that nobody uses is forgotten when nothing
//! of it counts any more.
//!
//! Requests without a key have a `ProviderKey` without a value for each upstream, until a
//! reload: it has no limits, but for what its server reports.
//!
//! After a 429 a key is in cooldown at its host; after a refusal it is quarantined there for a
//! minute.
//!
//! Replicas divide each budget ([`Shared::split`]). With an engine, a request is charged to
//! this replica's floor or, if that is spent, to the pool of all replicas, and stays there;
//! the windows of the whole budget count both.
//!
//! Where a key goes to several hosts, one that does not answer leaves a quarter of what
//! may be in flight for the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::hmac;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::budget::Budget;
use super::endpoint::Host;
use super::failure::Failure;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::shared::Shared;
use crate::shared::permits::{Limits, Permits};
use crate::state::{Earlier, KeyDigest};
use crate::sync::lock;

/// How long a key is set aside that a host refuses.
const SET_ASIDE: Duration = Duration::from_secs(60);
/// How soon it is looked again whether a request to a host has ended that has too many.
const SOON: Duration = Duration::from_millis(100);

/// A key of the provider.
pub(crate) struct ProviderKey {
    pub(super) value: Option<HeaderValue>,
    /// Its name in `spent.db` and in the engine, from which nothing can be learned of it.
    pub(super) digest: KeyDigest,
    shared: Option<Arc<Shared>>,
    state: Mutex<KeyState>,
    /// At which hosts a refusal was checked lately, and when. The lock is held during a check.
    pub(super) checks: tokio::sync::Mutex<Vec<(Host, Moment)>>,
}

/// What a key has spent, and where it rests.
pub(super) struct KeyState {
    pub(super) budget: Budget,
    /// With an engine: the floor of this replica.
    floor: Option<Budget>,
    /// The limits of the pool, and until when it has nothing.
    pool: Limits,
    pub(super) pool_spent_until: Moment,
    hosts: BTreeMap<Host, KeyAtHost>,
    has_several_hosts: bool,
}

/// How the upstreams that use a key use it, together.
pub(super) struct KeyUse {
    /// The strictest of their limits.
    pub(super) limits: Limits,
    /// Their tip probes a minute, for which a part is kept.
    pub(super) probes: u32,
    pub(super) hosts: Vec<Host>,
}

/// A key's state at one host.
#[derive(Default)]
struct KeyAtHost {
    in_flight: usize,
    rest: Option<Rest>,
}

/// A host does not accept a key.
#[derive(Clone, Copy)]
struct Rest {
    until: Moment,
    /// With which status the host has refused it; `None` after a 429.
    refused: Option<StatusCode>,
}

impl ProviderKey {
    /// An unused key; `None` for requests without one.
    pub(crate) fn new(value: Option<HeaderValue>, shared: Option<Arc<Shared>>) -> Self {
        let has_engine = shared.as_ref().is_some_and(|shared| shared.has_engine());
        Self {
            digest: value.as_ref().map(digest).unwrap_or_default(),
            value,
            shared,
            state: Mutex::new(KeyState {
                budget: Budget::default(),
                floor: has_engine.then(Budget::default),
                pool: Limits::default(),
                pool_spent_until: Moment::default(),
                hosts: BTreeMap::new(),
                has_several_hosts: false,
            }),
            checks: tokio::sync::Mutex::default(),
        }
    }

    /// From now on upstreams use the key like this. Requests that were taken still count.
    /// Without an engine, this replica has its part of the limits; with one, its floor and
    /// permits of the pool, together no more than the whole.
    pub(super) fn configure(&self, how: KeyUse, now: Moment) {
        let mut state = self.state();
        let split = self.shared.as_ref().map(|shared| shared.split(how.limits));
        let own = match (&mut state.floor, split) {
            (Some(floor), Some(split)) => {
                floor.limits = split.floor;
                state.pool = split.pool;
                how.limits
            }
            (_, Some(split)) => split.floor,
            (_, None) => how.limits,
        };
        (state.budget.limits, state.budget.probes) = (own, how.probes);
        state.has_several_hosts = how.hosts.iter().any(|host| *host != how.hosts[0]);
        state
            .hosts
            .retain(|host, at| at.matters(now) || how.hosts.contains(host));
    }

    /// The pool that replicas share, its keys in the engine, and its limits.
    pub(super) fn pool(&self, host: &Host) -> Option<(&Arc<Permits>, [String; 2], Limits)> {
        let shared = self.shared.as_ref().filter(|shared| shared.has_engine())?;
        let keys = Permits::keys(&self.digest, host);
        Some((&shared.permits, keys, self.state().pool))
    }

    /// With which status a host has refused the key, until it accepts it again.
    pub(super) fn refused(&self, host: &Host) -> Option<StatusCode> {
        self.state().rest(host)?.refused
    }

    pub(super) fn state(&self) -> MutexGuard<'_, KeyState> {
        lock(&self.state)
    }
}

/// The digest of a key. The key itself is the key of the digest: any other secret could be
/// changed, and would split the budget in two.
fn digest(value: &HeaderValue) -> KeyDigest {
    let key = hmac::Key::new(hmac::HMAC_SHA256, value.as_bytes());
    let mut digest = KeyDigest::default();
    digest.copy_from_slice(hmac::sign(&key, b"ordgate budget").as_ref());
    digest
}

impl KeyUse {
    /// Another upstream uses the key, too.
    pub(super) fn join(&mut self, other: Self) {
        self.limits = self.limits.stricter(other.limits);
        self.probes = self.probes.saturating_add(other.probes);
        self.hosts.extend(other.hosts);
    }
}

impl KeyState {
    /// The windows that count its requests.
    fn budgets(&mut self) -> impl Iterator<Item = &mut Budget> {
        std::iter::once(&mut self.budget).chain(&mut self.floor)
    }

    /// Counts what earlier processes have spent.
    pub(super) fn count_earlier(&mut self, earlier: &Earlier, now: Moment) {
        let ended = earlier.ages.iter().map(|age| now.before(*age));
        let ended: Vec<_> = ended.collect();
        for budget in self.budgets() {
            budget.count_earlier(&ended, now + earlier.unknown_for);
        }
    }

    /// Takes a request to a host. Returns whether it is charged to the pool of all replicas.
    /// [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Why none can be sent now.
    pub(super) fn take(
        &mut self,
        host: &Host,
        is_probe: bool,
        now: Moment,
    ) -> Result<bool, Failure> {
        let over_budget = |wait| Failure::until(Reason::OverBudget, wait);
        self.denied(host, is_probe, now).map_or(Ok(()), Err)?;
        self.budget.take(now, is_probe).map_err(over_budget)?;
        self.at(host).in_flight += 1;
        let floor = self.floor.as_mut();
        Ok(floor.is_some_and(|floor| floor.take(now, true).is_err()))
    }

    /// A request has ended at a moment, or was never sent. It is counted in the windows that it
    /// was taken from.
    pub(super) fn end(&mut self, host: &Host, is_of_pool: bool, ended: Option<Moment>) {
        let windows = self.budgets().take(if is_of_pool { 1 } else { 2 });
        windows.for_each(|budget| budget.end(ended));
        self.at(host).in_flight -= 1;
    }

    /// Why no request can be sent to a host now, and for how long; `None` where one can.
    pub(super) fn denied(&mut self, host: &Host, is_probe: bool, now: Moment) -> Option<Failure> {
        let pool = self.pool_spent_until.since(now);
        let floor = self.floor.as_mut().and_then(|own| own.wait(now, true));
        let parts = floor.map(|floor| floor.min(pool));
        let parts = parts.filter(|wait| !wait.is_zero());
        let spent = self.budget.wait(now, is_probe).max(parts);
        let rest = self.rest(host).filter(|rest| rest.until > now);
        let Some(rest) = rest else {
            let wait = spent.or_else(|| self.is_full(host).then_some(SOON))?;
            return Some(Failure::until(Reason::OverBudget, wait));
        };
        let reason = match rest.refused {
            Some(_) => Reason::KeyRefused,
            None => Reason::Throttled,
        };
        let wait = rest.until.since(now).max(spent.unwrap_or_default());
        Some(Failure {
            received: rest.refused,
            ..Failure::until(reason, wait)
        })
    }

    /// Whether a host has as many requests unanswered as it may have beside other hosts: three
    /// quarters of all.
    pub(super) fn is_full(&self, host: &Host) -> bool {
        let least = self.budget.limits.least();
        let Some(most) = least.filter(|_| self.has_several_hosts) else {
            return false;
        };
        let known = self.hosts.get(host);
        known.is_some_and(|at| at.in_flight >= (most as usize * 3 / 4).max(1))
    }

    fn rest(&self, host: &Host) -> Option<Rest> {
        self.hosts.get(host)?.rest
    }

    fn at(&mut self, host: &Host) -> &mut KeyAtHost {
        self.hosts.entry(host.clone()).or_default()
    }

    /// How long a host does not accept the key, whatever is left of its budget.
    pub(super) fn unusable_for(&self, host: &Host, now: Moment) -> Duration {
        let rest = self.rest(host).map(|rest| rest.until.since(now));
        rest.unwrap_or_default()
    }

    /// A host accepts no requests with the key until a moment.
    pub(super) fn cool_down(&mut self, host: &Host, until: Moment) {
        let rest = &mut self.at(host).rest;
        *rest = Some(Rest {
            until: rest.map_or(until, |rest| rest.until.max(until)),
            refused: rest.and_then(|rest| rest.refused),
        });
    }

    /// A host has refused the key. Returns whether it was in service.
    pub(super) fn set_aside(&mut self, host: &Host, status: StatusCode, now: Moment) -> bool {
        let rest = &mut self.at(host).rest;
        let until = rest.as_ref().map_or(now, |rest| rest.until);
        let before = rest.replace(Rest {
            until: until.max(now + SET_ASIDE),
            refused: Some(status),
        });
        before.is_none_or(|before| before.refused.is_none())
    }

    /// A host has answered something else than that it does not accept the key, which is used
    /// again if its rest is over. Returns whether it was set aside until now.
    pub(super) fn accept(&mut self, host: &Host, now: Moment) -> bool {
        let ended = self.at(host).rest.take_if(|rest| rest.until <= now);
        ended.is_some_and(|rest| rest.refused.is_some())
    }

    /// Its state at these hosts, under this name, for `/status` and `/metrics`.
    pub(super) fn snapshot(&mut self, name: &str, hosts: &[Host], now: Moment) -> Value {
        let rests = hosts.iter().filter_map(|host| self.rest(host));
        let worst = rests.max_by_key(|rest| (rest.refused.is_some(), rest.until));
        let unusable = worst.map_or(Duration::ZERO, |rest| rest.until.since(now));
        let paused = self.budget.wait(now, false).unwrap_or_default();
        json!({
            // `key-1` and so on, or `none`.
            "name": name,
            // The limit per minute, and what is left of it; `null` if there is none.
            "budget": self.budget.limits.per_minute,
            "budget_left": self.budget.remaining(now),
            // The part that is kept for probes of the tip.
            "kept_for_probes": self.budget.kept_of_minute(),
            // How long the next request for a client has to wait for the budget.
            "paused_seconds": paused.as_secs_f64(),
            // At the host where it is worst: cooling after a 429, quarantined after a refusal.
            "state": match worst {
                Some(rest) if rest.refused.is_some() => "quarantined",
                Some(_) if !unusable.is_zero() => "cooling",
                _ => "ready",
            },
            // How long it is not used there.
            "unusable_seconds": unusable.as_secs_f64(),
        })
    }

    /// Whether something of the key counts still.
    pub(super) fn matters(&self, now: Moment) -> bool {
        let mut hosts = self.hosts.values();
        self.budget.is_in_use(now) || hosts.any(|at| at.matters(now))
    }
}

impl KeyAtHost {
    fn matters(&self, now: Moment) -> bool {
        self.in_flight > 0 || self.rest.is_some_and(|rest| rest.until > now)
    }
}

#[cfg(test)]
pub(crate) mod tests;
