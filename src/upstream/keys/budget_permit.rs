//! The permission to send one request with a key, and what the upstream says of
//! the key in its answer.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::FixedState;
use http::{HeaderValue, StatusCode};
use tokio::sync::watch;

use super::cooldown::{Cooldown, CooldownReason};
use super::refusals::KeyCheckResult;
use super::{Denied, KeyAtHost, Keys, Slot, State, Unanswered};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::units;
use crate::upstream::admission::limit_report::{Reported, ReportedLimit};
use crate::upstream::admission::shared_budget::Counted;
use crate::upstream::client::connection::SendPath;
use crate::upstream::endpoint::given_up::{GivenUpRequest, GivenUpRequests, Gone};
use crate::upstream::{Priority, RequestPriority};

/// The right to send one request, with a key or without. It counts against the
/// budget as under way until it is dropped.
pub struct BudgetPermit {
    pub(super) keys: Arc<Keys>,
    pub(super) slot: Arc<Slot>,
    /// The key at the host that the request goes to.
    pub(super) at_host: Arc<KeyAtHost>,
    pub(super) counted: Counted,
    /// Who gives its request up, if that is a client.
    pub(super) client: Option<Client>,
    /// That it is not answered; `None` once it is.
    pub(super) unanswered: Option<Unanswered>,
    /// Where its request is sent, as long as nothing has come of it.
    pub(super) out: Option<Out>,
    /// Whether its request has ended in the budget's count.
    pub(super) has_ended: bool,
}

/// A request on its way.
pub(super) struct Out {
    at: Moment,
    way: SendPath,
    lates: Arc<GivenUpRequests>,
}

/// What was refused by 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Refused {
    /// The key, which is in quarantine.
    Key,
    /// The target.
    Target,
}

/// What the refusal of a target says of the key that was sent.
pub(in crate::upstream) enum Suspicion {
    /// What was refused is known.
    Known(Refused),
    /// A key check is to be sent.
    Check(Check),
    /// One is under way.
    Wait(watch::Receiver<Option<KeyCheckResult>>),
}

/// A key check; of each key there is one at a time.
pub(in crate::upstream) struct Check {
    at_host: Arc<KeyAtHost>,
    clock: Clock,
    verdict: watch::Sender<Option<KeyCheckResult>>,
}

impl BudgetPermit {
    /// The key's header value, where there is a key.
    pub fn header(&self) -> Option<&HeaderValue> {
        self.slot().key.as_ref().map(|key| &key.value)
    }

    /// The key's name in logs and metrics.
    pub fn name(&self) -> &str {
        self.slot().name()
    }

    /// Its request is sent this way. Those of its endpoint that were given up are
    /// `lates`.
    pub(in crate::upstream) fn send(&mut self, way: SendPath, lates: &Arc<GivenUpRequests>) {
        self.out = Some(Out {
            at: self.keys.clock.now(),
            way,
            lates: lates.clone(),
        });
    }

    /// If its request is given up, that is not its client's doing.
    pub(in crate::upstream) fn not_by_client(&mut self) {
        self.client = None;
    }

    /// An answer has come to its request: the upstream has counted it.
    pub fn answered(&mut self) {
        self.unanswered = None;
        if let Some(out) = self.out.take() {
            out.lates.answered(out.at);
        }
    }

    /// The upstream has counted its request, or never will, though no answer has
    /// come.
    pub fn settle(&mut self) {
        self.unanswered = None;
        self.out = None;
    }

    /// Its request is given up: it counts until it can arrive no more.
    fn give_up(&mut self, out: &Out, now: Moment) {
        let unanswered = self.unanswered.take();
        let (holder, counted) = (&self.slot.holder, self.counted);
        let connection = out.way.connection();
        let Some(connection) = connection.filter(|connection| !connection.has_ended()) else {
            holder.end(counted, now);
            return;
        };
        if holder.most_unanswered().is_none() {
            holder.give_up(now);
            return;
        }
        let (keys, slot) = (self.keys.clone(), self.slot.clone());
        let unanswered = unanswered.map(Unanswered::given_up);
        // It has a place of its client's share as long: a client that breaks requests
        // off has no more of them than one that waits.
        let wish = self
            .client
            .map(|client| RequestPriority::of(client, Priority::Miss));
        let held = wish.and_then(|wish| keys.line.slot(wish));
        let late = GivenUpRequest::new(now, move |how| {
            drop((unanswered, held));
            let (holder, now) = (&slot.holder, keys.clock.now());
            match how {
                Gone::Ended => holder.end(counted, now),
                Gone::Soon => holder.give_up(now),
            }
            keys.line.wake();
            holder.wake_others();
        });
        out.lates.add(late.clone());
        connection.tell(late);
    }

    /// Holds the key to what the upstream has said of its limits, before the
    /// request ends. Where the answer refuses the key, that nothing is left holds
    /// for its host alone: another may take it.
    pub fn hear(&self, reported: &Reported) {
        let now = self.keys.clock.now();
        let words = reported.words.iter();
        let (empty, words): (Vec<ReportedLimit>, Vec<ReportedLimit>) =
            words.partition(|word| reported.refuses_key && word.left == 0);
        self.slot.holder.hear(&words, self.counted, now);
        if let Some(pause) = empty.iter().map(|word| word.lasts).max() {
            self.cool(pause);
        }
        let mut state = self.at_host.state();
        let Some(lasts) = reported.quota_spent else {
            return;
        };
        // What was sent before the key began to rest tells nothing new.
        let news = state.rest.is_none();
        if news || self.is_trial(&state) {
            state.rest = Some(Cooldown::quota_spent(lasts, now));
        }
        drop(state);
        if news {
            tracing::error!(
                upstream = &*self.keys.upstream,
                key = self.name(),
                host = self.host(),
                "the quota of an API key is spent, and not for this minute alone: it rests, and is tried again after {}",
                units::format(lasts)
            );
        }
    }

    /// Puts the key in quarantine: the upstream has refused it.
    pub fn refused(&self, status: StatusCode) {
        if self.slot().key.is_none() {
            tracing::error!(
                upstream = &*self.keys.upstream,
                host = self.host(),
                %status,
                "the upstream refuses to be asked without an API key: set ORDGATE_API_KEYS or upstream.api_keys_file"
            );
            return;
        }
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        let before = state.rest;
        state.rest = Some(match before {
            None => Cooldown::refused(status, now),
            Some(rest) if self.is_trial(&state) => rest.refused_again(status, now),
            // It was sent before the key began to rest.
            Some(rest) => rest,
        });
        let pause = state.cooling(now);
        let news = !matches!(before, Some(rest) if matches!(rest.why, CooldownReason::Refused(_)))
            && state.rest != before;
        drop(state);
        let (key, pause) = (self.name(), units::format(pause));
        if news {
            tracing::error!(
                upstream = &*self.keys.upstream,
                key,
                host = self.host(),
                %status,
                "the upstream refuses an API key, which is in quarantine at this host, and is tried again after {pause}: look at ORDGATE_API_KEYS or upstream.api_keys_file"
            );
        } else {
            tracing::debug!(upstream = &*self.keys.upstream, key, %status, pause, "the upstream refuses an API key as before");
        }
    }

    /// What the refusal of a target with this status says of the key. `decides`:
    /// whether there is a status path to check the key with.
    pub(in crate::upstream) fn suspect(
        &self,
        target: &str,
        status: StatusCode,
        decides: bool,
    ) -> Suspicion {
        if self.slot().key.is_none() {
            self.refused(status);
            return Suspicion::Known(Refused::Key);
        }
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        let rests =
            matches!(state.rest, Some(rest) if matches!(rest.why, CooldownReason::Refused(_)));
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
            at_host: self.at_host.clone(),
            clock: self.keys.clock.clone(),
            verdict,
        })
    }

    /// What was refused, once a key check has ended.
    pub(in crate::upstream) fn conclude(
        &self,
        verdict: KeyCheckResult,
        target: &str,
        status: StatusCode,
    ) -> Refused {
        match verdict {
            KeyCheckResult::Refused => Refused::Key,
            KeyCheckResult::NoStatus => self.count_refusal(target, status),
            KeyCheckResult::Accepted | KeyCheckResult::Unclear | KeyCheckResult::NotSent => {
                Refused::Target
            }
        }
    }

    /// Counts the refusal of a target against the key, which is in quarantine
    /// where that is enough. A key that is tried after a quarantine needs no
    /// more than one.
    fn count_refusal(&self, target: &str, status: StatusCode) -> Refused {
        let mut state = self.at_host.state();
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
    pub(in crate::upstream) fn renew(&mut self, priority: Priority) -> Result<Self, Denied> {
        let (now, keep) = (
            self.keys.clock.now(),
            self.keys.keep(RequestPriority::own(priority)),
        );
        let (slot, at_host) = (self.slot.clone(), self.at_host.clone());
        let mut state = at_host.state();
        if !std::mem::replace(&mut self.has_ended, true) {
            slot.holder.end(self.counted, now);
        }
        let cooling = state.cool_until.since(now);
        if !cooling.is_zero() {
            return Err(Denied::For(cooling));
        }
        let counted = slot.holder.take(now, keep)?;
        let unanswered = Some(Unanswered::new(&at_host));
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.rest.as_mut().filter(|_| is_trial) {
            rest.begin_trial(counted.number());
        }
        drop(state);
        Ok(Self {
            keys: self.keys.clone(),
            slot,
            at_host,
            counted,
            client: None,
            unanswered,
            out: None,
            has_ended: false,
        })
    }

    /// Says that the upstream has accepted the key.
    pub fn accepted(&self) {
        let mut state = self.at_host.state();
        state.refusals.accepted();
        let rested = self.is_trial(&state);
        if rested {
            state.rest = None;
        }
        drop(state);
        if rested {
            tracing::info!(
                upstream = &*self.keys.upstream,
                key = self.name(),
                host = self.host(),
                "the API key is in service again"
            );
        }
    }

    fn host(&self) -> &str {
        &self.at_host.host
    }

    fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Whether it sees if the key works again, and nothing has been said of
    /// that yet.
    fn is_trial(&self, state: &State) -> bool {
        let number = self.counted.number();
        state.rest.is_some_and(|rest| rest.is_tried_by(number))
    }

    /// Lets the key rest: the upstream has said that it was used too often.
    pub fn cool(&self, time: Duration) {
        let until = self.keys.clock.now() + time;
        let mut state = self.at_host.state();
        state.cool_until = state.cool_until.max(until);
    }
}

impl Check {
    /// Tells all who wait what it has shown.
    pub(in crate::upstream) fn finish(self, verdict: KeyCheckResult) {
        self.verdict.send_replace(Some(verdict));
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        // One that is given up has shown nothing.
        let verdict = self.verdict.borrow().unwrap_or(KeyCheckResult::Unclear);
        let mut state = self.at_host.state();
        state.refusals.checked(verdict, self.clock.now());
        state.checking = None;
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        let now = self.keys.clock.now();
        match self.out.take() {
            _ if self.has_ended => {}
            Some(out) => self.give_up(&out, now),
            None => self.slot.holder.end(self.counted, now),
        }
        // Before those who wait look again.
        self.unanswered = None;
        let mut state = self.at_host.state();
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.rest.as_mut().filter(|_| is_trial) {
            rest.unsettled(now);
        }
        drop(state);
        self.keys.line.wake();
        // What it brought to light of the budget is the others' as well.
        self.slot.holder.wake_others();
    }
}
