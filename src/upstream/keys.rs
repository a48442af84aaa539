//! The provider's keys, and who may use one when.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header ([`ApiKey`]).

use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use foldhash::quality::FixedState;
use http::{HeaderValue, StatusCode};
use tokio::sync::watch;

use super::api_key::Traces;
pub use super::api_key::{ApiKey, BadKeys};
use super::budget::{Budget, Keep, Place};
use super::line::Line;
use super::refusals::{Refusals, Verdict};
use super::reported::Reported;
use super::rest::{Rest, Why};
use super::{Priority, Wish};
use crate::clock::{Clock, Moment};
use crate::units;

/// The keys of one upstream with their budgets; or, where there is none, the
/// budget of asking without. A reload may put others in their place: who waits
/// for budget gets one of those then.
pub struct Keys {
    pool: RwLock<Arc<Pool>>,
    clock: Clock,
    /// Those who wait for budget.
    line: Arc<Line>,
    /// So many probes a minute have a share kept for them.
    probes: AtomicU32,
}

/// The keys as of the last reload.
#[derive(Default)]
struct Pool {
    slots: Box<[Arc<Slot>]>,
    /// Those that were withdrawn lately, and when: one that comes back has spent
    /// what it had spent.
    withdrawn: Vec<(Moment, Arc<Slot>)>,
    /// What gives a key away, and whose it is.
    traces: Arc<Traces>,
}

/// How long a withdrawn key is remembered at the least: far longer than a
/// window of its budget, or an answer that was asked for with it.
const WITHDRAWN: Duration = Duration::from_hours(1);

struct Slot {
    key: Option<ApiKey>,
    state: Arc<Mutex<State>>,
}

struct State {
    budget: Budget,
    /// No request before then: the upstream has said so.
    cool_until: Moment,
    /// Where the key is out of service.
    rest: Option<Rest>,
    refusals: Refusals,
    /// Receives the verdict of the key check under way.
    checking: Option<watch::Receiver<Option<Verdict>>>,
}

/// The right to send one request, with a key or without. It counts against the
/// budget as under way until it is dropped.
pub struct Grant {
    keys: Arc<Keys>,
    slot: Arc<Slot>,
    place: Place,
    /// Whether its request is sent, and nothing has come of it yet.
    is_out: bool,
    /// Whether its request has ended in the budget's count.
    has_ended: bool,
}

/// What was refused by 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The key, which is in quarantine.
    Key,
    /// The target.
    Target,
}

/// What the refusal of a target says of the key that was sent.
pub(super) enum Suspicion {
    /// What was refused is known.
    Known(Refused),
    /// A key check is to be sent.
    Check(Check),
    /// One is under way.
    Wait(watch::Receiver<Option<Verdict>>),
}

/// A key check; of each key there is one at a time.
pub(super) struct Check {
    slot: Arc<Slot>,
    clock: Clock,
    verdict: watch::Sender<Option<Verdict>>,
}

/// Why there is no key to ask with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No budget is left: there will be some after so long, at the earliest.
    For(Duration),
    /// Nor until a request under way has ended: it tries the only key.
    UntilOneEnds,
    /// The upstream has refused every key, with this status at last.
    Refused(StatusCode),
}

impl Denied {
    /// The better of two keys' prospects: who waits for one need not wait for
    /// another, and waiting for a key that was refused leads nowhere.
    fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused(_), other) => other,
            (one, Self::Refused(_)) => one,
            (Self::For(one), Self::For(other)) => Self::For(one.min(other)),
            (Self::UntilOneEnds, other) => other,
            (one, Self::UntilOneEnds) => one,
        }
    }
}

/// How a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The key's name, or `none`.
    pub name: String,
    /// Requests left in this minute.
    pub left: usize,
    /// Requests that a minute takes.
    pub per_minute: usize,
    /// How long the upstream wants none at all.
    pub cooling: Duration,
    /// Why it is out of service, if it is.
    pub rests: Option<Why>,
}

impl Standing {
    /// The words for how a key can stand.
    pub const STATES: [&str; 4] = ["ready", "cooling", "quota-spent", "quarantined"];

    /// One of them.
    pub fn state(&self) -> &'static str {
        let [ready, cooling, quota_spent, quarantined] = Self::STATES;
        match self.rests {
            Some(Why::QuotaSpent) => quota_spent,
            Some(Why::Refused(_)) => quarantined,
            None if self.cooling.is_zero() => ready,
            None => cooling,
        }
    }
}

impl Keys {
    /// Keys of which each has a budget as `budget` makes it.
    pub fn new(
        keys: Vec<ApiKey>,
        budget: impl Fn() -> Budget,
        line: Arc<Line>,
        clock: Clock,
    ) -> Arc<Self> {
        let pool = Pool::default().next(keys, budget, clock.now());
        line.share_second(pool.a_second());
        Arc::new(Self {
            pool: RwLock::new(Arc::new(pool)),
            clock,
            line,
            probes: AtomicU32::new(0),
        })
    }

    /// Puts other keys in the place of these, or bounds. A key that stays has
    /// spent what it has spent; one that goes finishes what is under way with
    /// it.
    pub fn replace(&self, keys: Vec<ApiKey>, per_minute: NonZeroU32, per_second: NonZeroU32) {
        let mut pool = self.pool.write().unwrap_or_else(PoisonError::into_inner);
        let budget = || Budget::new(per_minute, per_second);
        let next = pool.next(keys, budget, self.clock.now());
        for slot in &next.slots {
            let mut state = slot.state();
            state.budget.bound(per_minute, per_second);
            // Whoever brings a key back, or takes it elsewhere, wants it tried.
            let stays = pool.slots.iter().any(|before| before.is_of(&slot.key));
            if !stays && matches!(state.rest, Some(rest) if matches!(rest.why, Why::Refused(_))) {
                state.rest = None;
            }
        }
        self.line.share_second(next.a_second());
        *pool = Arc::new(next);
        drop(pool);
        // There may be more to take.
        self.line.stir();
    }

    /// The keys of another upstream, none as yet. Who waits for one of these is
    /// not given one of those; but what a key has spent here, it has spent there
    /// as well.
    pub fn elsewhere(&self) -> Arc<Self> {
        let now = self.clock.now();
        let pool = self.pool();
        let present = pool.slots.iter().map(|slot| (now, slot.clone()));
        let withdrawn = present.chain(pool.withdrawn.iter().cloned()).collect();
        Arc::new(Self {
            pool: RwLock::new(Arc::new(Pool {
                withdrawn,
                ..Pool::default()
            })),
            clock: self.clock.clone(),
            line: self.line.clone(),
            probes: AtomicU32::new(self.probes.load(Ordering::Relaxed)),
        })
    }

    fn pool(&self) -> Arc<Pool> {
        let pool = self.pool.read().unwrap_or_else(PoisonError::into_inner);
        pool.clone()
    }

    /// Keeps a share for so many probes a minute from now on.
    pub fn keep_for_probes(&self, probes: u32) {
        self.probes.store(probes, Ordering::Relaxed);
    }

    /// Takes the right to send one request, from the key with the most left, and
    /// counts it as its client's.
    ///
    /// # Errors
    /// Where there is none just now.
    pub fn take(self: &Arc<Self>, wish: impl Into<Wish>) -> Result<Grant, Denied> {
        let wish = wish.into();
        let (now, keep) = (self.clock.now(), self.keep(wish));
        let pool = self.pool();
        let rank = |(place, slot): (usize, &Arc<Slot>)| {
            let mut state = slot.state();
            // A key that has rested is tried, or it would never be used again.
            let is_due = state.rest.is_some_and(|rest| rest.is_over(now));
            (Reverse(is_due), Reverse(state.budget.left(now)), place)
        };
        let mut order: Vec<_> = pool.slots.iter().enumerate().map(rank).collect();
        order.sort_unstable();
        let mut best = None;
        for (.., at) in order {
            let slot = &pool.slots[at];
            let mut state = slot.state();
            let unfit = match state.take(now, keep) {
                Ok(()) => {
                    let place = state.budget.place();
                    drop(state);
                    if wish.caller.is_some() {
                        self.line.charge(wish.caller);
                    }
                    return Ok(Grant {
                        keys: self.clone(),
                        slot: slot.clone(),
                        place,
                        is_out: false,
                        has_ended: false,
                    });
                }
                Err(unfit) => unfit,
            };
            best = Some(best.map_or(unfit, |best: Denied| best.better(unfit)));
        }
        Err(best.unwrap_or(Denied::UntilOneEnds))
    }

    /// Why no request can be sent just now; `None` where one can.
    pub fn denied(&self, wish: impl Into<Wish>) -> Option<Denied> {
        let (now, keep) = (self.clock.now(), self.keep(wish.into()));
        let pool = self.pool();
        let each = pool.slots.iter();
        let denied = each.map(|slot| slot.state().may(now, keep).err());
        // One that is not denied is as good as it gets.
        denied.reduce(|one, other| Some(one?.better(other?)))?
    }

    /// What a request leaves for others. The reserve is for clients that have
    /// had little of late: between clients, that decides, and not the priority.
    fn keep(&self, wish: Wish) -> Keep {
        let probes = self.probes.load(Ordering::Relaxed);
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
    pub fn standings(&self) -> Vec<Standing> {
        let now = self.clock.now();
        let standing = |slot: &Arc<Slot>| {
            let mut state = slot.state();
            Standing {
                name: slot.name().to_owned(),
                left: state.budget.left(now),
                per_minute: state.budget.per_minute(),
                cooling: state.cooling(now),
                rests: state.rest.map(|rest| rest.why),
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
    /// How many requests a second takes with all keys.
    fn a_second(&self) -> u32 {
        let of = |slot: &Arc<Slot>| slot.state().budget.per_second();
        let requests: usize = self.slots.iter().map(of).sum();
        u32::try_from(requests).unwrap_or(u32::MAX)
    }

    /// The pool that comes after this one.
    fn next(&self, keys: Vec<ApiKey>, budget: impl Fn() -> Budget, now: Moment) -> Self {
        let slot = |key: Option<ApiKey>| {
            let withdrawn = self.withdrawn.iter().map(|(_, slot)| slot);
            let known = self
                .slots
                .iter()
                .chain(withdrawn)
                .find(|slot| slot.is_of(&key));
            let state = known.map(|slot| slot.state.clone()).unwrap_or_else(|| {
                Arc::new(Mutex::new(State {
                    budget: budget(),
                    cool_until: Moment::default(),
                    rest: None,
                    refusals: Refusals::default(),
                    checking: None,
                }))
            });
            Arc::new(Slot { key, state })
        };
        let slots: Box<[_]> = match keys.is_empty() {
            true => Box::from([slot(None)]),
            false => keys.into_iter().map(|key| slot(Some(key))).collect(),
        };
        let present = self.slots.iter().map(|slot| (now, slot.clone()));
        // Its state is another's as well where it is in service elsewhere.
        let is_in_use =
            |slot: &Slot| Arc::strong_count(&slot.state) > 1 || slot.state().budget.is_under_way();
        let before = self
            .withdrawn
            .iter()
            .filter(|(at, slot)| now.since(*at) < WITHDRAWN || is_in_use(slot));
        let mut withdrawn: Vec<_> = present.chain(before.cloned()).collect();
        withdrawn.retain(|(_, gone)| !slots.iter().any(|slot| slot.is_of(&gone.key)));
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
    /// Takes a request out of the budget, where the key is in service or may
    /// be tried again.
    fn take(&mut self, now: Moment, keep: Keep) -> Result<(), Denied> {
        self.may(now, keep)?;
        self.budget.take(now, keep).map_err(Denied::For)?;
        if let Some(rest) = &mut self.rest {
            rest.begin_trial(self.budget.place().number());
        }
        Ok(())
    }

    /// Whether a request may be taken.
    fn may(&mut self, now: Moment, keep: Keep) -> Result<(), Denied> {
        if let Some(rest) = &self.rest {
            match rest.why {
                Why::Refused(status) if !rest.is_over(now) => return Err(Denied::Refused(status)),
                Why::QuotaSpent if rest.is_tried() => return Err(Denied::UntilOneEnds),
                Why::Refused(_) | Why::QuotaSpent => {}
            }
        }
        let cooling = self.cooling(now);
        let spent = self.budget.wait(now, keep).unwrap_or_default();
        match cooling.max(spent) {
            Duration::ZERO => Ok(()),
            wait => Err(Denied::For(wait)),
        }
    }

    /// How long there is to be no request.
    fn cooling(&self, now: Moment) -> Duration {
        let resting = self.rest.map_or(Duration::ZERO, |rest| rest.left(now));
        resting.max(self.cool_until.since(now))
    }
}

impl Slot {
    /// Whether this has the budget of a key, or of asking without.
    fn is_of(&self, key: &Option<ApiKey>) -> bool {
        let value = |key: &Option<ApiKey>| key.as_ref().map(|key| key.value.clone());
        value(&self.key) == value(key)
    }

    fn name(&self) -> &str {
        self.key.as_ref().map_or("none", ApiKey::name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grant {
    /// The key's header value, where there is a key.
    pub fn header(&self) -> Option<&HeaderValue> {
        self.slot().key.as_ref().map(|key| &key.value)
    }

    /// The key's name in logs and metrics.
    pub fn name(&self) -> &str {
        self.slot().name()
    }

    /// Its request is sent.
    pub fn send(&mut self) {
        self.is_out = true;
    }

    /// An answer has come to its request, or the connection has ended: the
    /// upstream has counted it, or never will.
    pub fn settle(&mut self) {
        self.is_out = false;
    }

    /// Holds the key to what the upstream has said of its limits, before the
    /// request ends.
    pub fn hear(&self, reported: &Reported) {
        let now = self.keys.clock.now();
        let mut state = self.slot().state();
        state.budget.hear(&reported.words, self.place, now);
        let Some(lasts) = reported.quota_spent else {
            return;
        };
        // What was sent before the key began to rest tells nothing new.
        let news = state.rest.is_none();
        if news || self.is_trial(&state) {
            state.rest = Some(Rest::quota_spent(lasts, now));
        }
        drop(state);
        if news {
            tracing::error!(
                key = self.name(),
                "the quota of an API key is spent, and not for this minute alone: it rests, and is tried again after {}",
                units::format(lasts)
            );
        }
    }

    /// Puts the key in quarantine: the upstream has refused it.
    pub fn refused(&self, status: StatusCode) {
        if self.slot().key.is_none() {
            tracing::error!(
                %status,
                "the upstream refuses to be asked without an API key: set ORDGATE_API_KEYS or upstream.api_keys_file"
            );
            return;
        }
        let now = self.keys.clock.now();
        let mut state = self.slot().state();
        let before = state.rest;
        state.rest = Some(match before {
            None => Rest::refused(status, now),
            Some(rest) if self.is_trial(&state) => rest.refused_again(status, now),
            // It was sent before the key began to rest.
            Some(rest) => rest,
        });
        let pause = state.cooling(now);
        let news = !matches!(before, Some(rest) if matches!(rest.why, Why::Refused(_)))
            && state.rest != before;
        drop(state);
        let (key, pause) = (self.name(), units::format(pause));
        if news {
            tracing::error!(
                key,
                %status,
                "the upstream refuses an API key, which is in quarantine, and is tried again after {pause}: look at ORDGATE_API_KEYS or upstream.api_keys_file"
            );
        } else {
            tracing::debug!(key, %status, pause, "the upstream refuses an API key as before");
        }
    }

    /// What the refusal of a target with this status says of the key. `decides`:
    /// whether there is a status path to check the key with.
    pub(super) fn suspect(&self, target: &str, status: StatusCode, decides: bool) -> Suspicion {
        if self.slot().key.is_none() {
            self.refused(status);
            return Suspicion::Known(Refused::Key);
        }
        let now = self.keys.clock.now();
        let mut state = self.slot().state();
        let rests = matches!(state.rest, Some(rest) if matches!(rest.why, Why::Refused(_)));
        if rests && !self.is_trial(&state) {
            // It has been refused since this request was sent.
            return Suspicion::Known(Refused::Key);
        }
        if !decides || (state.refusals.has_no_status() && !state.refusals.may_check(now)) {
            drop(state);
            return Suspicion::Known(self.count_refusal(target, status));
        }
        if let Some(checking) = &state.checking {
            return Suspicion::Wait(checking.clone());
        }
        if !state.refusals.may_check(now) {
            return Suspicion::Known(Refused::Target);
        }
        let (verdict, checking) = watch::channel(None);
        state.checking = Some(checking);
        Suspicion::Check(Check {
            slot: self.slot.clone(),
            clock: self.keys.clock.clone(),
            verdict,
        })
    }

    /// What was refused, once a key check has ended.
    pub(super) fn conclude(&self, verdict: Verdict, target: &str, status: StatusCode) -> Refused {
        match verdict {
            Verdict::Refused => Refused::Key,
            Verdict::NoStatus => self.count_refusal(target, status),
            Verdict::Accepted | Verdict::Unclear | Verdict::NotSent => Refused::Target,
        }
    }

    /// Counts the refusal of a target against the key, which is in quarantine
    /// where that is enough. A key that is tried after a quarantine needs no
    /// more than one.
    fn count_refusal(&self, target: &str, status: StatusCode) -> Refused {
        let mut state = self.slot().state();
        let target = FixedState::default().hash_one(target);
        let enough = self.is_trial(&state) || state.refusals.count(target);
        drop(state);
        if !enough {
            return Refused::Target;
        }
        self.refused(status);
        Refused::Key
    }

    /// A further request out of the same key's budget, after this one has ended.
    /// It tries the key if this one did.
    ///
    /// # Errors
    /// Where there is none just now.
    pub(super) fn renew(&mut self, priority: Priority) -> Result<Self, Denied> {
        let (now, keep) = (self.keys.clock.now(), self.keys.keep(Wish::own(priority)));
        let slot = self.slot.clone();
        let mut state = slot.state();
        if !std::mem::replace(&mut self.has_ended, true) {
            state.budget.end(now);
        }
        let cooling = state.cool_until.since(now);
        if !cooling.is_zero() {
            return Err(Denied::For(cooling));
        }
        state.budget.take(now, keep).map_err(Denied::For)?;
        let place = state.budget.place();
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.rest.as_mut().filter(|_| is_trial) {
            rest.begin_trial(place.number());
        }
        drop(state);
        Ok(Self {
            keys: self.keys.clone(),
            slot,
            place,
            is_out: false,
            has_ended: false,
        })
    }

    /// Says that the upstream has accepted the key.
    pub fn accepted(&self) {
        let mut state = self.slot().state();
        state.refusals.accepted();
        let rested = self.is_trial(&state);
        if rested {
            state.rest = None;
        }
        drop(state);
        if rested {
            tracing::info!(key = self.name(), "the API key is in service again");
        }
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Whether it sees if the key works again, and nothing has been said of
    /// that yet.
    fn is_trial(&self, state: &State) -> bool {
        let number = self.place.number();
        state.rest.is_some_and(|rest| rest.is_tried_by(number))
    }

    /// Lets the key rest: the upstream has said that it was used too often.
    pub fn cool(&self, time: Duration) {
        let until = self.keys.clock.now() + time;
        let mut state = self.slot().state();
        state.cool_until = state.cool_until.max(until);
    }
}

impl Check {
    /// Tells all who wait what it has shown.
    pub(super) fn finish(self, verdict: Verdict) {
        self.verdict.send_replace(Some(verdict));
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // One that is given up has shown nothing.
        let verdict = self.verdict.borrow().unwrap_or(Verdict::Unclear);
        let mut state = self.slot.state();
        state.refusals.checked(verdict, self.clock.now());
        state.checking = None;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let now = self.keys.clock.now();
        let mut state = self.slot().state();
        match self.is_out {
            _ if self.has_ended => {}
            true => state.budget.give_up(now),
            false => state.budget.end(now),
        }
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.rest.as_mut().filter(|_| is_trial) {
            rest.unsettled(now);
        }
        drop(state);
        self.keys.line.stir();
    }
}

#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;
