//! One key of the provider: what it has spent, which of all upstreams use it, and at which
//! hosts it rests or is set aside.
//!
//! The process has one [`ProviderKey`] for each value
//! ([`Budgets`](super::keys::Budgets)). So a key that several upstreams send has one
//! budget, with the strictest of their limits; and a reload, or a key that is withdrawn and
//! configured again, finds what was spent. A key that nobody uses is forgotten when nothing
//! of it counts any more.
//!
//! Requests without a key have a `ProviderKey` without a value for each upstream: it has no
//! limits, but for what its server reports.
//!
//! Replicas divide each budget ([`Shared::split`]). With an engine, a request is charged to
//! this replica's floor or, if that is spent, to the pool of all replicas, and stays there;
//! the windows of the whole budget count both.
//!
//! Where a key goes to several hosts, one that does not answer leaves a quarter of what
//! may be in flight for the others.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use aws_lc_rs::hmac;
use http::{HeaderValue, StatusCode};

use super::budget::{Budget, Limits, Taken};
use super::endpoint::Host;
use super::failure::Failure;
use super::limit_report::ReportedLimit;
use super::queue::{Denied, RequestQueue};
use super::rates::Rates;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::shared::Shared;
use crate::shared::permits::{self, Permits, PoolKey};
use crate::state::{Earlier, KeyDigest};
use crate::sync::lock;

/// How long a key is set aside at first; each refusal after that doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// It is never set aside for longer.
const MAX_PAUSE: Duration = Duration::from_hours(1);
/// No request waits so long.
pub(super) const NEVER: Duration = Duration::from_hours(48);
/// How long a request that tries a key again has it for itself.
const TRIAL: Duration = Duration::from_secs(60);

/// A key of the provider.
pub(crate) struct ProviderKey {
    pub(super) value: Option<HeaderValue>,
    /// Its name in `spent.db` and in the engine, from which nothing can be learned of it.
    pub(super) digest: KeyDigest,
    shared: Option<Arc<Shared>>,
    state: Mutex<KeyState>,
    /// The last check of a refusal. The lock is held during a check.
    pub(crate) last_check: tokio::sync::Mutex<Option<LastCheck>>,
}

/// What a check of a refused key has found.
pub(crate) struct LastCheck {
    pub(crate) host: Host,
    pub(crate) at: Moment,
    pub(crate) is_refused: bool,
}

/// What a request is charged to, beside the windows of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing else.
    Own,
    /// The floor of this replica.
    Floor,
    /// The pool of all replicas.
    Pool,
}

struct KeyState {
    budget: Budget,
    /// What earlier processes have spent, for the floor; and until when that is not known.
    earlier: (Vec<Moment>, Moment),
    /// With an engine: the floor of this replica, and the limits of the pool.
    floor: Option<(Budget, permits::PoolLimits)>,
    /// Until when the pool has nothing.
    pool_spent_until: Moment,
    users: Vec<User>,
    hosts: Vec<KeyAtHost>,
    has_several_hosts: bool,
}

/// An upstream that uses a key.
pub(crate) struct User {
    pub(crate) number: u64,
    pub(crate) queue: Weak<RequestQueue>,
    pub(crate) rates: Rates,
    /// Its tip probes a minute, for which a part is kept.
    pub(crate) probes: u32,
    pub(crate) hosts: Vec<Host>,
}

/// A key's state at one host.
struct KeyAtHost {
    host: Host,
    in_flight: usize,
    cooldown_until: Moment,
    set_aside: Option<SetAside>,
}

/// A host has refused a key.
#[derive(Clone, Copy)]
struct SetAside {
    status: StatusCode,
    /// When one request may try it again.
    until: Moment,
    pause: Duration,
    /// Requests up to this number were sent before.
    since: u64,
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
    pub(crate) per_minute: Option<usize>,
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
        Self {
            digest: value.as_ref().map(digest).unwrap_or_default(),
            value,
            shared,
            state: Mutex::new(KeyState {
                budget: Budget::new(),
                earlier: Default::default(),
                floor: None,
                pool_spent_until: Moment::default(),
                users: Vec::new(),
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
        let mut state = self.state();
        state.budget.count_earlier(&ended);
        state.budget.block_until(now + earlier.unknown_for);
        state.earlier = (ended, now + earlier.unknown_for);
    }

    /// From now on an upstream uses the key like this.
    pub(crate) fn join(&self, user: User, now: Moment) {
        let mut state = self.state();
        state.users.retain(|known| known.number != user.number);
        state.users.push(user);
        state.apply_users(self.shared.as_deref(), now);
    }

    /// An upstream no longer uses the key, except for requests that were admitted.
    pub(crate) fn leave(&self, number: u64, now: Moment) {
        let mut state = self.state();
        state.users.retain(|known| known.number != number);
        state.apply_users(self.shared.as_deref(), now);
    }

    /// Sets the tip probes a minute of an upstream that uses the key.
    pub(crate) fn set_probes(&self, number: u64, probes: u32, now: Moment) {
        let mut state = self.state();
        let mut users = state.users.iter_mut();
        if let Some(user) = users.find(|known| known.number == number) {
            user.probes = probes;
        }
        state.apply_users(self.shared.as_deref(), now);
    }

    /// Takes a request to a host. [`end`](Self::end) or [`cancel`](Self::cancel) must
    /// follow.
    ///
    /// # Errors
    /// Why none can be sent now.
    pub(super) fn take(
        &self,
        host: &Host,
        is_probe: bool,
        now: Moment,
    ) -> Result<(Taken, Part), Denied> {
        let mut state = self.state();
        if let Some(denied) = state.denied(host, is_probe, now) {
            return Err(denied);
        }
        let taken = state
            .budget
            .take(now, is_probe)
            .map_err(Denied::spent_for)?;
        let at_host = state.at(host);
        at_host.in_flight += 1;
        if let Some(aside) = &mut at_host.set_aside {
            aside.until = now + TRIAL;
        }
        let part = match &mut state.floor {
            None => Part::Own,
            Some((floor, _)) => match floor.take(now, true) {
                Ok(_) => Part::Floor,
                Err(_) => Part::Pool,
            },
        };
        Ok((taken, part))
    }

    /// Why no request can be sent to a host now; `None` where one can.
    pub(super) fn denied(&self, host: &Host, is_probe: bool, now: Moment) -> Option<Denied> {
        self.state().denied(host, is_probe, now)
    }

    /// Whether one request may try the key at a host again that has refused it.
    pub(crate) fn is_trial_due(&self, host: &Host, now: Moment) -> bool {
        let state = self.state();
        let aside = state.known_at(host).and_then(|at_host| at_host.set_aside);
        aside.is_some_and(|aside| aside.until <= now)
    }

    /// A request that tries the key again at a host leaves the trial to the next one.
    pub(crate) fn pass_trial_on(&self, host: &Host, taken: Taken, now: Moment) {
        let mut state = self.state();
        if let Some(aside) = &mut state.at(host).set_aside
            && taken.number() > aside.since
        {
            aside.until = now;
        }
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
    pub(crate) fn end(&self, host: &Host, part: Part, now: Moment) {
        let mut state = self.state();
        state.budget.end(now);
        if let Some((floor, _)) = state.floor.as_mut().filter(|_| part == Part::Floor) {
            floor.end(now);
        }
        state.at(host).in_flight -= 1;
    }

    /// Takes back a request that was never sent.
    pub(crate) fn cancel(&self, host: &Host, part: Part) {
        let mut state = self.state();
        state.budget.cancel();
        if let Some((floor, _)) = state.floor.as_mut().filter(|_| part == Part::Floor) {
            floor.cancel();
        }
        state.at(host).in_flight -= 1;
    }

    /// The pool that replicas share, and its limits.
    pub(super) fn pool(
        &self,
        host: &Host,
    ) -> Option<(&Arc<Permits>, PoolKey, permits::PoolLimits)> {
        let permits = &self.shared.as_ref()?.permits;
        let (_, limits) = self.state().floor.as_ref().map(|(_, pool)| ((), *pool))?;
        let digest: String = self
            .digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let key = PoolKey {
            digest: digest.into(),
            host: (**host).into(),
        };
        Some((permits, key, limits))
    }

    /// The pool has nothing until a moment.
    pub(crate) fn pool_spent(&self, until: Moment) {
        self.state().pool_spent_until = until;
    }

    /// How long a host has asked for a pause.
    pub(crate) fn cooldown(&self, host: &Host, now: Moment) -> Duration {
        let state = self.state();
        let at_host = state.known_at(host);
        at_host.map_or(Duration::ZERO, |at_host| at_host.cooldown_until.since(now))
    }

    /// Applies the limits in the answer to a request that has not ended yet.
    pub(crate) fn apply_report(&self, limits: &[ReportedLimit], taken: Taken, now: Moment) {
        self.state().budget.apply_report(limits, taken, now);
    }

    /// A host accepts no requests with the key until a moment.
    pub(crate) fn cool_down(&self, host: &Host, until: Moment) {
        let mut state = self.state();
        let at_host = state.at(host);
        at_host.cooldown_until = at_host.cooldown_until.max(until);
    }

    /// A host has refused the key. Returns for how long it is set aside, if it was in
    /// service.
    pub(crate) fn set_aside(
        &self,
        host: &Host,
        status: StatusCode,
        taken: Taken,
        now: Moment,
    ) -> Option<Duration> {
        let mut state = self.state();
        let since = state.budget.sent();
        let at_host = state.at(host);
        let before = at_host.set_aside;
        let pause = match before {
            None => FIRST_PAUSE,
            // It was sent before the key was set aside.
            Some(before) if taken.number() <= before.since => return None,
            Some(before) => (before.pause * 2).min(MAX_PAUSE),
        };
        at_host.set_aside = Some(SetAside {
            status,
            until: now + pause,
            pause,
            since,
        });
        before.is_none().then_some(pause)
    }

    /// A host has accepted the key. Returns whether it was set aside until now.
    pub(crate) fn accept(&self, host: &Host, taken: Taken) -> bool {
        let mut state = self.state();
        let at_host = state.at(host);
        let aside = &mut at_host.set_aside;
        aside
            .take_if(|aside| taken.number() > aside.since)
            .is_some()
    }

    /// Lets a host try the key again at once.
    pub(crate) fn try_again(&self, hosts: &[Host]) {
        let mut state = self.state();
        for host in hosts {
            state.at(host).set_aside = None;
        }
    }

    /// Pumps the queues of the upstreams that use the key, but for this one.
    pub(crate) fn pump_others(&self, own: &Arc<RequestQueue>) {
        let others = {
            let state = self.state();
            let queues = state.users.iter().filter_map(|user| user.queue.upgrade());
            let others = queues.filter(|queue| !Arc::ptr_eq(queue, own));
            others.collect::<Vec<_>>()
        };
        for queue in others {
            queue.pump();
        }
    }

    /// How many requests are left; `None` for any number.
    pub(crate) fn remaining(&self, now: Moment) -> Option<usize> {
        self.state().budget.remaining(now)
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Limits {
        self.state().budget.limits()
    }

    /// Its state, under this name.
    pub(crate) fn snapshot(&self, name: &str, now: Moment) -> KeySnapshot {
        let mut state = self.state();
        let hosts = state.hosts.iter();
        let hosts = hosts.map(|at_host| (at_host.host.clone(), at_host.snapshot(now)));
        let hosts = hosts.collect();
        KeySnapshot {
            name: name.to_owned(),
            remaining: state.budget.remaining(now),
            kept: state.budget.kept_of_minute(),
            paused_for: state.budget.wait(now, false).unwrap_or_default(),
            per_minute: state.budget.limits().per_minute,
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

impl KeyState {
    /// Applies the strictest of the limits, and the probes of all. Where nobody uses the
    /// key, the last limits stay in force.
    fn apply_users(&mut self, shared: Option<&Shared>, now: Moment) {
        let rates = self.users.iter().map(|user| user.rates);
        if let Some(rates) = rates.reduce(Rates::stricter) {
            let probes = self.users.iter().map(|user| user.probes);
            let probes = probes.fold(0, u32::saturating_add);
            self.set_limits(rates, probes, shared);
        }
        let mut hosts: Vec<_> = self.users.iter().flat_map(|user| &user.hosts).collect();
        hosts.sort_unstable();
        hosts.dedup();
        self.has_several_hosts = hosts.len() > 1;
        self.hosts
            .retain(|at_host| at_host.matters(now) || hosts.contains(&&at_host.host));
    }

    /// Sets the limits. Without an engine, this replica has its part; with one, its floor
    /// and permits of the pool, together no more than the whole.
    fn set_limits(&mut self, rates: Rates, probes: u32, shared: Option<&Shared>) {
        let Some(shared) = shared else {
            self.budget.set_limits(rates.into(), probes);
            return;
        };
        let split = shared.split(permits::PoolLimits {
            per_minute: rates.per_minute.limit(),
            per_second: rates.per_second.limit(),
        });
        if !shared.has_engine() {
            self.budget.set_limits(split.floor.into(), probes);
            return;
        }
        self.budget.set_limits(rates.into(), probes);
        let (ended, unknown_until) = &self.earlier;
        let (floor, pool) = self.floor.get_or_insert_with(|| {
            let mut floor = Budget::new();
            floor.count_earlier(ended);
            floor.block_until(*unknown_until);
            (floor, split.pool)
        });
        floor.set_limits(split.floor.into(), 0);
        *pool = split.pool;
    }

    /// How long neither the floor nor the pool has anything.
    fn parts_wait(&mut self, now: Moment) -> Option<Duration> {
        let (floor, _) = self.floor.as_mut()?;
        let pool = self.pool_spent_until.since(now);
        Some(floor.wait(now, true)?.min(pool)).filter(|wait| !wait.is_zero())
    }

    fn denied(&mut self, host: &Host, is_probe: bool, now: Moment) -> Option<Denied> {
        let spent = self.budget.wait(now, is_probe).max(self.parts_wait(now));
        let at_host = self.known_at(host);
        if let Some(aside) = at_host.and_then(|at_host| at_host.set_aside)
            && aside.until > now
        {
            return Some(Denied {
                failure: Failure::status(Reason::KeyRefused, aside.status),
                wait: Some(NEVER),
            });
        }
        let cooldown = at_host.map(|at_host| at_host.cooldown_until.since(now));
        let cooldown = cooldown.filter(|cooldown| !cooldown.is_zero());
        if let Some(wait) = spent.max(cooldown) {
            return Some(Denied::spent_for(wait));
        }
        self.is_full(host).then(Denied::spent_until_request_ends)
    }

    /// Whether a host has three quarters of what may be in flight beside the other hosts.
    fn is_full(&self, host: &Host) -> bool {
        let Some(most) = self
            .budget
            .limits()
            .least()
            .filter(|_| self.has_several_hosts)
        else {
            return false;
        };
        let others = self.hosts.iter().filter(|other| other.host != *host);
        let at_others: usize = others.map(|other| other.in_flight).sum();
        let kept = self.budget.kept_of_second();
        let most = (most.saturating_sub(kept + at_others) * 3 / 4).max(1);
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
                cooldown_until: Moment::default(),
                set_aside: None,
            });
            self.hosts.len() - 1
        });
        &mut self.hosts[at]
    }

    /// Whether something of the key counts still.
    fn matters(&self, now: Moment) -> bool {
        let mut hosts = self.hosts.iter();
        self.budget.is_in_use(now) || hosts.any(|at_host| at_host.matters(now))
    }
}

impl KeyAtHost {
    fn matters(&self, now: Moment) -> bool {
        self.in_flight > 0 || self.snapshot(now).unusable_for > Duration::ZERO
    }

    fn snapshot(&self, now: Moment) -> KeySnapshotAtHost {
        let aside = self.set_aside.map(|aside| aside.until.since(now));
        let cooldown = self.cooldown_until.since(now);
        KeySnapshotAtHost {
            unusable_for: cooldown.max(aside.unwrap_or_default()),
            refused: self.set_aside.map(|aside| aside.status),
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
    /// The words for its state, from the best to the worst.
    pub(crate) const STATES: [&str; 3] = ["ready", "cooling", "quarantined"];

    /// The word for its state.
    pub(crate) fn state(&self) -> &'static str {
        let [ready, cooling, quarantined] = Self::STATES;
        match self.refused {
            Some(_) => quarantined,
            None if self.unusable_for.is_zero() => ready,
            None => cooling,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
