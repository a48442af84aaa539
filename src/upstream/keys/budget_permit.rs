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
use super::{Denied, KeyAtHost, KeyState, Keys, PooledKey, Unanswered};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::units;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::limit_report::{LimitReport, ReportedLimit};
use crate::upstream::client::connection::SendPath;
use crate::upstream::endpoint::given_up::{GivenUpRequest, GivenUpRequests, Gone};
use crate::upstream::{Priority, RequestPriority};

/// The right to send one request, with a key or without. It counts against the
/// budget as under way until it is dropped.
pub(crate) struct BudgetPermit {
    pub(super) keys: Arc<Keys>,
    pub(super) key: Arc<PooledKey>,
    /// The key at the host that the request goes to.
    pub(super) at_host: Arc<KeyAtHost>,
    pub(super) counted: BudgetEntry,
    /// Who gives its request up, if that is a client.
    pub(super) client: Option<Client>,
    /// That it is not answered; `None` once it is.
    pub(super) unanswered: Option<Unanswered>,
    /// Where its request is sent, as long as nothing has come of it.
    pub(super) sent: Option<SentRequest>,
    /// Whether its request has ended in the budget's count.
    pub(super) has_ended: bool,
}

/// A request on its way.
pub(super) struct SentRequest {
    at: Moment,
    way: SendPath,
    given_up: Arc<GivenUpRequests>,
}

/// What was refused by 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum RefusalCause {
    /// The key, which is in quarantine.
    Key,
    /// The target.
    Target,
}

/// What the refusal of a target says of the key that was sent.
pub(in crate::upstream) enum RefusalCheck {
    /// What was refused is known.
    Decided(RefusalCause),
    /// A key check is to be sent.
    Send(KeyCheck),
    /// One is under way.
    Wait(watch::Receiver<Option<KeyCheckResult>>),
}

/// A key check; of each key there is one at a time.
pub(in crate::upstream) struct KeyCheck {
    at_host: Arc<KeyAtHost>,
    clock: Clock,
    result: watch::Sender<Option<KeyCheckResult>>,
}

impl BudgetPermit {
    /// The key's header value, where there is a key.
    pub(crate) fn header(&self) -> Option<&HeaderValue> {
        self.slot().key.as_ref().map(|key| &key.value)
    }

    /// The key's name in logs and metrics.
    pub(crate) fn name(&self) -> &str {
        self.slot().name()
    }

    /// Its request is sent this way. Those of its endpoint that were given up are
    /// `lates`.
    pub(in crate::upstream) fn mark_sent(&mut self, way: SendPath, lates: &Arc<GivenUpRequests>) {
        self.sent = Some(SentRequest {
            at: self.keys.clock.now(),
            way,
            given_up: lates.clone(),
        });
    }

    /// If its request is given up, that is not its client's doing.
    pub(in crate::upstream) fn detach_client(&mut self) {
        self.client = None;
    }

    /// An answer has come to its request: the upstream has counted it.
    pub(crate) fn mark_answered(&mut self) {
        self.unanswered = None;
        if let Some(out) = self.sent.take() {
            out.given_up.answered(out.at);
        }
    }

    /// The upstream has counted its request, or never will, though no answer has
    /// come.
    pub(crate) fn mark_resolved(&mut self) {
        self.unanswered = None;
        self.sent = None;
    }

    /// Its request is given up: it counts until it can arrive no more.
    fn give_up(&mut self, out: &SentRequest, now: Moment) {
        let unanswered = self.unanswered.take();
        let (holder, counted) = (&self.key.budget, self.counted);
        let connection = out.way.connection();
        let Some(connection) = connection.filter(|connection| !connection.has_ended()) else {
            holder.end(counted, now);
            return;
        };
        if holder.max_unanswered().is_none() {
            holder.give_up(now);
            return;
        }
        let (keys, slot) = (self.keys.clone(), self.key.clone());
        let unanswered = unanswered.map(Unanswered::given_up);
        // It has a place of its client's share as long: a client that breaks requests
        // off has no more of them than one that waits.
        let wish = self
            .client
            .map(|client| RequestPriority::of(client, Priority::Miss));
        let held = wish.and_then(|wish| keys.queue.client_slot(wish));
        let late = GivenUpRequest::new(now, move |how| {
            drop((unanswered, held));
            let (holder, now) = (&slot.budget, keys.clock.now());
            match how {
                Gone::Ended => holder.end(counted, now),
                Gone::Soon => holder.give_up(now),
            }
            keys.queue.wake();
            holder.wake_others();
        });
        out.given_up.add(late.clone());
        connection.tell(late);
    }

    /// Holds the key to what the upstream has said of its limits, before the
    /// request ends. Where the answer refuses the key, that nothing is left holds
    /// for its host alone: another may take it.
    pub(crate) fn apply_report(&self, reported: &LimitReport) {
        let now = self.keys.clock.now();
        let words = reported.limits.iter();
        let (empty, words): (Vec<ReportedLimit>, Vec<ReportedLimit>) =
            words.partition(|word| reported.refuses_key && word.remaining == 0);
        self.key.budget.apply_report(&words, self.counted, now);
        if let Some(pause) = empty.iter().map(|word| word.valid_for).max() {
            self.throttle(pause);
        }
        let mut state = self.at_host.state();
        let Some(lasts) = reported.quota_spent else {
            return;
        };
        // What was sent before the key began to rest tells nothing new.
        let news = state.cooldown.is_none();
        if news || self.is_trial(&state) {
            state.cooldown = Some(Cooldown::quota_spent(lasts, now));
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
    pub(crate) fn mark_refused(&self, status: StatusCode) {
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
        let before = state.cooldown;
        state.cooldown = Some(match before {
            None => Cooldown::refused(status, now),
            Some(rest) if self.is_trial(&state) => rest.refused_again(status, now),
            // It was sent before the key began to rest.
            Some(rest) => rest,
        });
        let pause = state.unusable_for(now);
        let news = !matches!(before, Some(rest) if matches!(rest.reason, CooldownReason::Refused(_)))
            && state.cooldown != before;
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
    pub(in crate::upstream) fn check_refusal(
        &self,
        target: &str,
        status: StatusCode,
        decides: bool,
    ) -> RefusalCheck {
        if self.slot().key.is_none() {
            self.mark_refused(status);
            return RefusalCheck::Decided(RefusalCause::Key);
        }
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        let rests = matches!(state.cooldown, Some(rest) if matches!(rest.reason, CooldownReason::Refused(_)));
        if rests && !self.is_trial(&state) {
            // It has been refused since this request was sent.
            return RefusalCheck::Decided(RefusalCause::Key);
        }
        if !decides || (state.refusals.has_no_status() && !state.refusals.may_check(now)) {
            drop(state);
            return RefusalCheck::Decided(self.count_refusal(target, status));
        }
        if let Some(checking) = &state.checking {
            return RefusalCheck::Wait(checking.clone());
        }
        if !state.refusals.may_check(now) {
            return RefusalCheck::Decided(RefusalCause::Target);
        }
        let (verdict, checking) = watch::channel(None);
        state.checking = Some(checking);
        RefusalCheck::Send(KeyCheck {
            at_host: self.at_host.clone(),
            clock: self.keys.clock.clone(),
            result: verdict,
        })
    }

    /// What was refused, once a key check has ended.
    pub(in crate::upstream) fn refusal_cause(
        &self,
        verdict: KeyCheckResult,
        target: &str,
        status: StatusCode,
    ) -> RefusalCause {
        match verdict {
            KeyCheckResult::Refused => RefusalCause::Key,
            KeyCheckResult::NoStatus => self.count_refusal(target, status),
            KeyCheckResult::Accepted | KeyCheckResult::Unclear | KeyCheckResult::NotSent => {
                RefusalCause::Target
            }
        }
    }

    /// Counts the refusal of a target against the key, which is in quarantine
    /// where that is enough. A key that is tried after a quarantine needs no
    /// more than one.
    fn count_refusal(&self, target: &str, status: StatusCode) -> RefusalCause {
        let mut state = self.at_host.state();
        let target = FixedState::default().hash_one(target);
        let enough = self.is_trial(&state) || state.refusals.count_target(target);
        drop(state);
        if !enough {
            return RefusalCause::Target;
        }
        self.mark_refused(status);
        RefusalCause::Key
    }

    /// A further request out of the same key's budget, after this one has ended.
    /// It tries the key if this one did.
    ///
    /// # Errors
    /// Where there is none just now.
    pub(in crate::upstream) fn renew(&mut self, priority: Priority) -> Result<Self, Denied> {
        let (now, keep) = (
            self.keys.clock.now(),
            self.keys.reserve(RequestPriority::own(priority)),
        );
        let (slot, at_host) = (self.key.clone(), self.at_host.clone());
        let mut state = at_host.state();
        if !std::mem::replace(&mut self.has_ended, true) {
            slot.budget.end(self.counted, now);
        }
        let cooling = state.throttled_until.since(now);
        if !cooling.is_zero() {
            return Err(Denied::For(cooling));
        }
        let counted = slot.budget.take(now, keep)?;
        let unanswered = Some(Unanswered::new(&at_host));
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.cooldown.as_mut().filter(|_| is_trial) {
            rest.begin_trial(counted.number());
        }
        drop(state);
        Ok(Self {
            keys: self.keys.clone(),
            key: slot,
            at_host,
            counted,
            client: None,
            unanswered,
            sent: None,
            has_ended: false,
        })
    }

    /// Says that the upstream has accepted the key.
    pub(crate) fn mark_accepted(&self) {
        let mut state = self.at_host.state();
        state.refusals.record_acceptance();
        let rested = self.is_trial(&state);
        if rested {
            state.cooldown = None;
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

    fn slot(&self) -> &PooledKey {
        &self.key
    }

    /// Whether it sees if the key works again, and nothing has been said of
    /// that yet.
    fn is_trial(&self, state: &KeyState) -> bool {
        let number = self.counted.number();
        state.cooldown.is_some_and(|rest| rest.is_trial(number))
    }

    /// Lets the key rest: the upstream has said that it was used too often.
    pub(crate) fn throttle(&self, time: Duration) {
        let until = self.keys.clock.now() + time;
        let mut state = self.at_host.state();
        state.throttled_until = state.throttled_until.max(until);
    }
}

impl KeyCheck {
    /// Tells all who wait what it has shown.
    pub(in crate::upstream) fn finish(self, verdict: KeyCheckResult) {
        self.result.send_replace(Some(verdict));
    }
}

impl Drop for KeyCheck {
    fn drop(&mut self) {
        // One that is given up has shown nothing.
        let verdict = self.result.borrow().unwrap_or(KeyCheckResult::Unclear);
        let mut state = self.at_host.state();
        state.refusals.record_check(verdict, self.clock.now());
        state.checking = None;
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        let now = self.keys.clock.now();
        match self.sent.take() {
            _ if self.has_ended => {}
            Some(out) => self.give_up(&out, now),
            None => self.key.budget.end(self.counted, now),
        }
        // Before those who wait look again.
        self.unanswered = None;
        let mut state = self.at_host.state();
        let is_trial = self.is_trial(&state);
        if let Some(rest) = state.cooldown.as_mut().filter(|_| is_trial) {
            rest.end_trial_without_result(now);
        }
        drop(state);
        self.keys.queue.wake();
        // What it brought to light of the budget is the others' as well.
        self.key.budget.wake_others();
    }
}
