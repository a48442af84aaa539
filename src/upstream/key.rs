//! One key of the provider: what it has spent, which of all upstreams use it, and at which
//! hosts it rests or is set aside.
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
//! After a 429 a key rests at its host, and after a refusal it is set aside there for a minute.
//!
//! Replicas divide each budget ([`Shared::split`]). With an engine, a request is charged to
//! this replica's floor or, if that is spent, to the pool of all replicas, and stays there;
//! the windows of the whole budget count both.
//!
//! Where a key goes to several hosts, one that does not answer leaves a quarter of what
//! may be in flight for the others.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::hmac;
use http::{HeaderValue, StatusCode};

use super::budget::Budget;
use super::endpoint::Host;
use super::permit::Denied;
use super::reported::ReportedLimit;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::shared::Shared;
use crate::shared::permits::{Limits, Permits, PoolKey};
use crate::state::{Earlier, KeyDigest};
use crate::sync::lock;

/// How long a key is set aside that a host refuses.
const SET_ASIDE: Duration = Duration::from_secs(60);

/// A key of the provider.
pub(crate) struct ProviderKey {
    pub(super) value: Option<HeaderValue>,
    /// Its name in `spent.db` and in the engine, from which nothing can be learned of it.
    pub(super) digest: KeyDigest,
    shared: Option<Arc<Shared>>,
    state: Mutex<KeyState>,
    /// Where and when a refusal was last checked. The lock is held during a check.
    pub(super) last_check: tokio::sync::Mutex<Option<(Host, Moment)>>,
}

/// A request that was taken out of a key's budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// How many requests had ended then.
    ended: u64,
    /// Whether it is charged to the pool of all replicas.
    pub(super) is_of_pool: bool,
}

struct KeyState {
    budget: Budget,
    /// With an engine: the floor of this replica.
    floor: Option<Budget>,
    /// The limits of the pool, and until when it has nothing.
    pool: Limits,
    pool_spent_until: Moment,
    hosts: Vec<KeyAtHost>,
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
struct KeyAtHost {
    host: Host,
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

/// The state of a key, for `/status` and `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySnapshot {
    /// `key-1` and so on, or `none`.
    pub(crate) name: String,
    /// The requests left in this minute; `None` if they are not limited.
    pub(crate) remaining: Option<usize>,
    /// The part of them that is kept for probes of the tip.
    pub(crate) kept: usize,
    /// How long the next request for a client has to wait for the budget.
    pub(crate) paused_for: Duration,
    /// The limit per minute.
    pub(crate) per_minute: Option<u32>,
    /// Its state at each host that it was sent to.
    pub(crate) hosts: Vec<(Host, KeySnapshotAtHost)>,
}

/// The state of a key at a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySnapshotAtHost {
    /// How long it is not used there.
    pub(crate) unusable_for: Duration,
    /// With which status the host has refused it.
    pub(crate) refused: Option<StatusCode>,
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
                budget: Budget::new(),
                floor: has_engine.then(Budget::new),
                pool: Limits::default(),
                pool_spent_until: Moment::default(),
                hosts: Vec::new(),
                has_several_hosts: false,
            }),
            last_check: tokio::sync::Mutex::default(),
        }
    }

    /// Counts what earlier processes have spent.
    pub(super) fn count_earlier(&self, earlier: &Earlier, now: Moment) {
        let ended = earlier.ages.iter().map(|age| now.before(*age));
        let ended: Vec<_> = ended.collect();
        for budget in self.state().budgets() {
            budget.count_earlier(&ended);
            budget.block_until(now + earlier.unknown_for);
        }
    }

    /// From now on upstreams use the key like this. Requests that were taken still count.
    pub(super) fn configure(&self, how: KeyUse, now: Moment) {
        let mut state = self.state();
        state.set_limits(how.limits, how.probes, self.shared.as_deref());
        state.has_several_hosts = how.hosts.len() > 1;
        state
            .hosts
            .retain(|at| at.matters(now) || how.hosts.contains(&at.host));
    }

    /// Takes a request to a host. [`end`](Self::end) or [`cancel`](Self::cancel) must
    /// follow.
    ///
    /// # Errors
    /// Why none can be sent now.
    pub(super) fn take(&self, host: &Host, is_probe: bool, now: Moment) -> Result<Taken, Denied> {
        let mut state = self.state();
        if let Some(denied) = state.denied(host, is_probe, now) {
            return Err(denied);
        }
        let taken = state.budget.take(now, is_probe);
        taken.map_err(|wait| Denied::until(Reason::OverBudget, wait))?;
        let floor = &mut state.floor;
        let is_of_pool = floor
            .as_mut()
            .is_some_and(|own| own.take(now, true).is_err());
        let taken = Taken {
            ended: state.budget.ended,
            is_of_pool,
        };
        state.at(host).in_flight += 1;
        Ok(taken)
    }

    /// Why no request can be sent to a host now; `None` where one can.
    pub(super) fn denied(&self, host: &Host, is_probe: bool, now: Moment) -> Option<Denied> {
        self.state().denied(host, is_probe, now)
    }

    /// How long a host does not accept the key, whatever is left of its budget.
    pub(crate) fn unusable_for(&self, host: &Host, now: Moment) -> Duration {
        let state = self.state();
        let at_host = state.known_at(host);
        at_host.map_or(Duration::ZERO, |at_host| at_host.snapshot(now).unusable_for)
    }

    /// Whether a host has as many requests unanswered as it may have.
    pub(crate) fn is_full(&self, host: &Host) -> bool {
        self.state().is_full(host)
    }

    /// Counts the end of a request.
    pub(crate) fn end(&self, host: &Host, taken: Taken, now: Moment) {
        self.state().end(host, taken, |budget| budget.end(now));
    }

    /// Takes back a request that was never sent.
    pub(crate) fn cancel(&self, host: &Host, taken: Taken) {
        self.state().end(host, taken, Budget::cancel);
    }

    /// The pool that replicas share, and its limits.
    pub(super) fn pool(&self, host: &Host) -> Option<(&Arc<Permits>, PoolKey, Limits)> {
        let shared = self.shared.as_ref().filter(|shared| shared.has_engine())?;
        let digest = self.digest.iter().map(|byte| format!("{byte:02x}"));
        let key = PoolKey {
            digest: digest.collect::<String>().into(),
            host: (**host).into(),
        };
        Some((&shared.permits, key, self.state().pool))
    }

    /// The pool has nothing until a moment.
    pub(crate) fn pool_spent(&self, until: Moment) {
        self.state().pool_spent_until = until;
    }

    /// With which status a host has refused the key, until it accepts it again.
    pub(super) fn refused(&self, host: &Host) -> Option<StatusCode> {
        let state = self.state();
        state.known_at(host)?.rest?.refused
    }

    /// Applies the limits in the answer to a request that has not ended yet.
    pub(super) fn apply_report(&self, limits: &[ReportedLimit], taken: Taken, now: Moment) {
        let mut state = self.state();
        state.budget.apply_report(limits, taken.ended, now);
    }

    /// A host accepts no requests with the key until a moment.
    pub(crate) fn cool_down(&self, host: &Host, until: Moment) {
        let mut state = self.state();
        let rest = &mut state.at(host).rest;
        *rest = Some(Rest {
            until: rest.map_or(until, |rest| rest.until.max(until)),
            refused: rest.and_then(|rest| rest.refused),
        });
    }

    /// A host has refused the key. Returns whether it was in service.
    pub(crate) fn set_aside(&self, host: &Host, status: StatusCode, now: Moment) -> bool {
        let mut state = self.state();
        let before = state.at(host).rest.replace(Rest {
            until: now + SET_ASIDE,
            refused: Some(status),
        });
        before.is_none_or(|before| before.refused.is_none())
    }

    /// A host has answered something else than that it does not accept the key, which is used
    /// again if its rest is over. Returns whether it was set aside until now.
    pub(crate) fn accept(&self, host: &Host, now: Moment) -> bool {
        let mut state = self.state();
        let ended = state.at(host).rest.take_if(|rest| rest.until <= now);
        ended.is_some_and(|rest| rest.refused.is_some())
    }

    /// How many requests are left; `None` for any number.
    pub(crate) fn remaining(&self, now: Moment) -> Option<usize> {
        self.state().budget.remaining(now)
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Limits {
        self.state().budget.limits
    }

    /// Its state at these hosts, under this name.
    pub(crate) fn snapshot(&self, name: &str, hosts: &[Host], now: Moment) -> KeySnapshot {
        let mut state = self.state();
        let hosts = state
            .hosts
            .iter()
            .filter(|at_host| hosts.contains(&at_host.host));
        let hosts = hosts.map(|at_host| (at_host.host.clone(), at_host.snapshot(now)));
        let hosts = hosts.collect();
        KeySnapshot {
            name: name.to_owned(),
            remaining: state.budget.remaining(now),
            kept: state.budget.kept_of_minute(),
            paused_for: state.budget.wait(now, false).unwrap_or_default(),
            per_minute: state.budget.limits.per_minute,
            hosts,
        }
    }

    /// Whether something of it counts still.
    pub(super) fn matters(&self, now: Moment) -> bool {
        self.state().matters(now)
    }

    /// How long no request can be taken, since it is not known what was spent before the start.
    pub(super) fn blocked_for(&self, now: Moment) -> Duration {
        self.state().budget.blocked_for(now)
    }

    fn state(&self) -> MutexGuard<'_, KeyState> {
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
        self.hosts.sort_unstable();
        self.hosts.dedup();
    }
}

impl KeyState {
    /// The windows that count its requests.
    fn budgets(&mut self) -> impl Iterator<Item = &mut Budget> {
        std::iter::once(&mut self.budget).chain(&mut self.floor)
    }

    /// Sets the limits. Without an engine, this replica has its part; with one, its floor
    /// and permits of the pool, together no more than the whole.
    fn set_limits(&mut self, limits: Limits, probes: u32, shared: Option<&Shared>) {
        let split = shared.map(|shared| shared.split(limits));
        let own = match (&mut self.floor, split) {
            (Some(floor), Some(split)) => {
                floor.set_limits(split.floor, 0);
                self.pool = split.pool;
                limits
            }
            (_, Some(split)) => split.floor,
            (_, None) => limits,
        };
        self.budget.set_limits(own, probes);
    }

    /// A request has ended, which is counted in the windows that it was taken from.
    fn end(&mut self, host: &Host, taken: Taken, count: impl Fn(&mut Budget)) {
        let windows = self.budgets().take(if taken.is_of_pool { 1 } else { 2 });
        windows.for_each(count);
        self.at(host).in_flight -= 1;
    }

    /// How long neither the floor nor the pool has anything.
    fn parts_wait(&mut self, now: Moment) -> Option<Duration> {
        let pool = self.pool_spent_until.since(now);
        let floor = self.floor.as_mut()?.wait(now, true)?;
        Some(floor.min(pool)).filter(|wait| !wait.is_zero())
    }

    fn denied(&mut self, host: &Host, is_probe: bool, now: Moment) -> Option<Denied> {
        let spent = self.budget.wait(now, is_probe).max(self.parts_wait(now));
        let rest = self.known_at(host).and_then(|at_host| at_host.rest);
        let rest = rest.filter(|rest| rest.until > now);
        if let Some(status) = rest.and_then(|rest| rest.refused) {
            return Some(Denied::key_refused(status));
        }
        let rest = rest.map(|rest| rest.until.since(now));
        match spent.max(rest) {
            Some(wait) if rest == Some(wait) => Some(Denied::until(Reason::Throttled, wait)),
            Some(wait) => Some(Denied::until(Reason::OverBudget, wait)),
            None => self.is_full(host).then(Denied::spent_until_request_ends),
        }
    }

    /// Whether a host has three quarters of what may be in flight beside the other hosts.
    fn is_full(&self, host: &Host) -> bool {
        let least = self.budget.limits.least();
        let Some(most) = least.filter(|_| self.has_several_hosts) else {
            return false;
        };
        let others = self.hosts.iter().filter(|other| other.host != *host);
        let at_others: usize = others.map(|other| other.in_flight).sum();
        let kept = self.budget.kept_of_second();
        let most = ((most as usize).saturating_sub(kept + at_others) * 3 / 4).max(1);
        self.known_at(host)
            .is_some_and(|at_host| at_host.in_flight >= most)
    }

    fn known_at(&self, host: &Host) -> Option<&KeyAtHost> {
        self.hosts.iter().find(|at_host| at_host.host == *host)
    }

    fn at(&mut self, host: &Host) -> &mut KeyAtHost {
        let known = self.hosts.iter().position(|at_host| at_host.host == *host);
        let at = known.unwrap_or_else(|| {
            self.hosts.push(KeyAtHost {
                host: host.clone(),
                in_flight: 0,
                rest: None,
            });
            self.hosts.len() - 1
        });
        &mut self.hosts[at]
    }

    /// Whether something of the key counts still.
    fn matters(&self, now: Moment) -> bool {
        let mut hosts = self.hosts.iter();
        self.budget.minute.is_in_use(now) || hosts.any(|at_host| at_host.matters(now))
    }
}

impl KeyAtHost {
    fn matters(&self, now: Moment) -> bool {
        self.in_flight > 0 || self.snapshot(now).unusable_for > Duration::ZERO
    }

    fn snapshot(&self, now: Moment) -> KeySnapshotAtHost {
        let rest = self.rest.map(|rest| rest.until.since(now));
        KeySnapshotAtHost {
            unusable_for: rest.unwrap_or_default(),
            refused: self.rest.and_then(|rest| rest.refused),
        }
    }
}

impl KeySnapshot {
    /// Its worst state at any host; ready if it was sent to none.
    pub(crate) fn worst(&self) -> KeySnapshotAtHost {
        let all = self.hosts.iter().map(|(_, at)| *at);
        all.max_by_key(|at| (at.refused.is_some(), at.unusable_for))
            .unwrap_or_default()
    }
}

impl KeySnapshotAtHost {
    /// The word for its state.
    pub(crate) fn state(&self) -> &'static str {
        match self.refused {
            Some(_) => "quarantined",
            None if self.unusable_for.is_zero() => "ready",
            None => "cooling",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
