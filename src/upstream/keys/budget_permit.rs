//! The permission to send one request with a key, and what its answer means for the
//! key.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, timeout};

use super::suspension::Suspension;
use super::{KeyAtHost, KeyState, Keys, PooledKey, Unanswered};
use crate::clock::Moment;
use crate::identify::Client;
use crate::log_writer::LogInterval;
use crate::units;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::limit_report::{LimitReport, ReportedLimit};
use crate::upstream::admission::{Denied, Priority, RequestPriority, Reserve};
use crate::upstream::connection::SendPath;
use crate::upstream::connection::given_up::{GivenUpRequest, GivenUpRequests, Gone};

/// The permission to send one request, with a key or without. The request counts
/// against the budget as in flight until this is dropped.
pub(crate) struct BudgetPermit {
    pub(super) keys: Arc<Keys>,
    pub(super) key: Arc<PooledKey>,
    /// The key at the host that the request goes to.
    pub(super) at_host: Arc<KeyAtHost>,
    pub(super) entry: BudgetEntry,
    /// What it had to leave of the budget.
    pub(super) reserve: Reserve,
    /// The client that gives up the request if this is dropped unanswered.
    pub(super) client: Option<Client>,
    /// Counts the request as unanswered; `None` once it is answered.
    pub(super) unanswered: Option<Unanswered>,
    /// Where the request was sent, until its outcome is known.
    pub(super) sent: Option<SentRequest>,
    /// Whether the budget has counted the end of the request.
    pub(super) has_ended: bool,
}

/// A request has no result in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// A request that was sent.
pub(super) struct SentRequest {
    at: Moment,
    path: SendPath,
    given_up: Arc<GivenUpRequests>,
}

impl BudgetPermit {
    /// The key's header value, where there is a key.
    pub(crate) fn header(&self) -> Option<&HeaderValue> {
        self.key.key.as_ref().map(|key| &key.value)
    }

    /// The key's name in logs and metrics.
    pub(crate) fn name(&self) -> &str {
        self.key.name()
    }

    /// Waits until the request may be sent: until it would still count after a restart,
    /// if there is a state directory. Where replicas share the budget, a request that was
    /// taken too long ago is given back and taken again, as soon as that is possible
    /// within `patience`: the process was stopped meanwhile, and others may have been
    /// granted what it held.
    ///
    /// # Errors
    /// Why it cannot be taken again.
    pub(crate) async fn ready(&mut self, patience: Duration) -> Result<(), Denied> {
        let deadline = Instant::now() + patience;
        loop {
            self.key.budget.journalled(self.entry).await;
            if self.key.budget.is_current(self.entry, Duration::ZERO) {
                return Ok(());
            }
            self.take_again(deadline).await?;
        }
    }

    /// Takes the request out of the budget again, waiting for that until a deadline.
    async fn take_again(&mut self, deadline: Instant) -> Result<(), Denied> {
        loop {
            match self.take_next(self.reserve) {
                Ok(entry) => {
                    (self.entry, self.has_ended) = (entry, false);
                    return Ok(());
                }
                Err(Denied::SpentFor(wait)) if Instant::now() + wait < deadline => {
                    tokio::time::sleep(wait).await;
                }
                Err(denied) => return Err(denied),
            }
        }
    }

    /// The result of a request that was marked as sent, if there is one within `time`.
    /// Where replicas share the budget, it is not written later than that, even if the
    /// machine was suspended while it waited for a connection.
    ///
    /// # Errors
    /// If there is none in time.
    pub(crate) async fn in_time<T>(
        &self,
        time: Duration,
        request: impl Future<Output = T>,
    ) -> Result<T, Late> {
        let mut request = pin!(request);
        let result = poll_fn(|context| {
            let is_written = || {
                let path = self.sent.as_ref().map(|sent| &sent.path);
                path.is_some_and(|path| path.connection().is_some())
            };
            match self.key.budget.is_current(self.entry, time) || is_written() {
                true => request.as_mut().poll(context).map(Ok),
                false => Poll::Ready(Err(Late)),
            }
        });
        timeout(time, result).await.unwrap_or(Err(Late))
    }

    /// The request is sent on this path. `given_up` are the requests to its endpoint
    /// that were given up.
    pub(crate) fn mark_sent(&mut self, path: SendPath, given_up: &Arc<GivenUpRequests>) {
        self.sent = Some(SentRequest {
            at: self.keys.clock.now(),
            path,
            given_up: given_up.clone(),
        });
    }

    /// From now on the client is not charged a slot if the request is given up.
    pub(crate) fn detach_client(&mut self) {
        self.client = None;
    }

    /// The request was answered: the upstream has counted it.
    pub(crate) fn mark_answered(&mut self) {
        self.unanswered = None;
        if let Some(out) = self.sent.take() {
            out.given_up.answered(out.at);
        }
    }

    /// The request was not answered, but the upstream has counted it or never will.
    pub(crate) fn mark_resolved(&mut self) {
        self.unanswered = None;
        self.sent = None;
    }

    /// The request is given up: it counts until it can no longer arrive.
    fn give_up(&mut self, out: &SentRequest, now: Moment) {
        let unanswered = self.unanswered.take();
        let (budget, entry) = (&self.key.budget, self.entry);
        let connection = out.path.connection();
        let Some(connection) = connection.filter(|connection| !connection.has_ended()) else {
            budget.end(entry, now);
            return;
        };
        if budget.max_unanswered().is_none() {
            budget.give_up(now);
            return;
        }
        let (keys, pooled) = (self.keys.clone(), self.key.clone());
        let unanswered = unanswered.map(Unanswered::given_up);
        // It keeps a slot of its client meanwhile: a client that aborts requests gets
        // no more of them than one that waits.
        let request = self
            .client
            .map(|client| RequestPriority::of(client, Priority::Miss));
        let held = request.and_then(|request| keys.queue.client_slot(request));
        let late = GivenUpRequest::new(now, move |how| {
            drop((unanswered, held));
            let (budget, now) = (&pooled.budget, keys.clock.now());
            match how {
                Gone::Ended => budget.end(entry, now),
                Gone::Soon => budget.give_up(now),
            }
            keys.queue.wake();
            budget.wake_others();
        });
        out.given_up.add(late.clone());
        connection.add_given_up(late);
    }

    /// Applies the limits reported in the answer, before the request ends. Where the
    /// answer refuses the key, exhausted limits apply to its host alone: another host
    /// may accept the key.
    pub(crate) fn apply_report(&self, report: &LimitReport) {
        let now = self.keys.clock.now();
        let limits = report.limits.iter();
        let (empty, limits): (Vec<ReportedLimit>, Vec<ReportedLimit>) =
            limits.partition(|limit| report.refuses_key && limit.remaining == 0);
        self.key.budget.apply_report(&limits, self.entry, now);
        if let Some(pause) = empty.iter().map(|limit| limit.valid_for).max() {
            self.start_cooldown(pause);
        }
        let mut state = self.at_host.state();
        let Some(lasts) = report.quota_spent else {
            return;
        };
        // A request sent before the suspension began does not extend it.
        let is_new = state.suspension.is_none();
        if is_new || self.is_trial(&state) {
            state.suspension = Some(Suspension::quota_spent(lasts, now));
            self.key.announce_cooldown(&self.at_host, &state, now);
        }
        drop(state);
        if is_new {
            tracing::error!(
                upstream = &*self.keys.upstream,
                key = self.name(),
                host = self.host(),
                "the long-term quota of an API key is spent: the key is not used, and is tried again after {}",
                units::format(lasts)
            );
        }
    }

    /// The upstream has refused the key: puts it in quarantine.
    pub(crate) fn mark_refused(&self, status: StatusCode) {
        let now = self.keys.clock.now();
        if self.key.key.is_none() {
            if (self.at_host.keyless_refused).is_due(LogInterval::MINUTE, now) {
                tracing::error!(
                    upstream = &*self.keys.upstream,
                    host = self.host(),
                    %status,
                    "the upstream refuses requests without an API key: set ORDGATE_API_KEYS or upstream.api_keys_file; this is logged again a minute later at the earliest"
                );
            }
            return;
        }
        let mut state = self.at_host.state();
        let (before, was_quarantined) = (state.suspension, state.is_quarantined());
        state.suspension = Some(match before {
            None => Suspension::refused(status, now),
            Some(suspension) if self.is_trial(&state) => suspension.refused_again(status, now),
            // The request was sent before the suspension began.
            Some(suspension) => suspension,
        });
        let pause = state.unusable_for(now);
        let is_new = !was_quarantined && state.suspension != before;
        if is_new {
            self.key.announce_cooldown(&self.at_host, &state, now);
        }
        drop(state);
        let (key, pause) = (self.name(), units::format(pause));
        if is_new {
            tracing::error!(
                upstream = &*self.keys.upstream,
                key,
                host = self.host(),
                %status,
                "the upstream refuses an API key; it is in quarantine at this host, and is tried again after {pause}: check ORDGATE_API_KEYS or upstream.api_keys_file"
            );
        } else {
            tracing::debug!(upstream = &*self.keys.upstream, key, %status, pause, "the upstream still refuses an API key");
        }
    }

    /// A permit for a further request with the same key, after this one has ended. It
    /// takes over the key's trial.
    ///
    /// # Errors
    /// Why the key cannot be used now.
    pub(crate) fn renew(&mut self, priority: Priority) -> Result<Self, Denied> {
        let reserve = self.keys.reserve(RequestPriority::own(priority));
        let entry = self.take_next(reserve)?;
        Ok(Self {
            keys: self.keys.clone(),
            key: self.key.clone(),
            at_host: self.at_host.clone(),
            entry,
            reserve,
            client: None,
            unanswered: Some(Unanswered::new(&self.at_host)),
            sent: None,
            has_ended: false,
        })
    }

    /// Ends this request, and takes another out of the budget of the same key. It takes
    /// over the key's trial.
    fn take_next(&mut self, reserve: Reserve) -> Result<BudgetEntry, Denied> {
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        if !std::mem::replace(&mut self.has_ended, true) {
            self.key.budget.end(self.entry, now);
        }
        let cooldown = state.cooldown_until.since(now);
        if !cooldown.is_zero() {
            return Err(Denied::SpentFor(cooldown));
        }
        let entry = self.key.budget.take(now, reserve)?;
        let is_trial = self.is_trial(&state);
        if let Some(suspension) = state.suspension.as_mut().filter(|_| is_trial) {
            suspension.begin_trial(entry.number());
        }
        Ok(entry)
    }

    /// The upstream has accepted the key: ends its suspension if this was the trial.
    pub(crate) fn mark_accepted(&self) {
        let mut state = self.at_host.state();
        state.refusals.record_acceptance();
        let is_back = self.is_trial(&state);
        if is_back {
            state.suspension = None;
            let now = self.keys.clock.now();
            self.key.keep_cooldown(&self.at_host, &state, now);
        }
        drop(state);
        if is_back {
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

    /// Whether this is the trial of the key, without a result yet.
    pub(super) fn is_trial(&self, state: &KeyState) -> bool {
        let number = self.entry.number();
        state
            .suspension
            .is_some_and(|suspension| suspension.is_trial(number))
    }

    /// The upstream accepts no request for this time (429).
    pub(crate) fn start_cooldown(&self, time: Duration) {
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        state.cooldown_until = state.cooldown_until.max(now + time);
        self.key.announce_cooldown(&self.at_host, &state, now);
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        let now = self.keys.clock.now();
        match self.sent.take() {
            _ if self.has_ended => {}
            Some(out) => self.give_up(&out, now),
            None => self.key.budget.end(self.entry, now),
        }
        // Before waiting requests are woken.
        self.unanswered = None;
        let mut state = self.at_host.state();
        let is_trial = self.is_trial(&state);
        if let Some(suspension) = state.suspension.as_mut().filter(|_| is_trial) {
            suspension.end_trial_without_result(now);
            self.key.keep_cooldown(&self.at_host, &state, now);
        }
        drop(state);
        self.keys.queue.wake();
        // Other upstreams share the budget.
        self.key.budget.wake_others();
    }
}
