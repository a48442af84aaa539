//! One request against the budget of a key, and what its answer means for the key.
//!
//! A request counts from its [`Charge`] on. One that was never sent is taken back; any
//! other counts until a window after its answer's head, or after its end if none came.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::admission::Denied;
use super::admission::limit_report::{LimitReport, ReportedLimit};
use super::budget::Taken;
use super::endpoint::Host;
use super::key::{Part, ProviderKey};
use super::keys::{Keys, PooledKey};
use crate::identify::Client;
use crate::log_writer::LogInterval;
use crate::shared::permits::{self, PoolPermit};
use crate::state::SpentId;
use crate::units;

/// How long a request is under way at most: then its connection is closed.
const LONGEST: Duration = Duration::from_secs(120);
/// The same of one with a permit of the pool, which the engine counts for this and the
/// window.
const LONGEST_OF_POOL: Duration = Duration::from_secs(60);
/// How long the engine is not asked again while the pool is closed, at most.
const CLOSED: Duration = Duration::from_secs(5);

/// One request against the budget of a key, until this is dropped.
pub(crate) struct Charge {
    keys: Arc<Keys>,
    pooled: Arc<PooledKey>,
    host: Host,
    taken: Taken,
    part: Part,
    /// Its record for the next process.
    spent: Option<SpentId>,
    /// The client whose usage it counts in, unless it is not sent.
    client: Option<Client>,
    /// Its permit of the pool.
    permit: Option<PoolPermit>,
    state: ChargeState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChargeState {
    Taken,
    Sent,
    Answered,
    Ended,
}

impl Charge {
    pub(super) fn take(
        keys: &Arc<Keys>,
        pooled: &Arc<PooledKey>,
        host: &Host,
        is_probe: bool,
        client: Option<Client>,
    ) -> Result<Self, Denied> {
        let (taken, part) = pooled.key.take(host, is_probe, keys.clock.now())?;
        if client.is_some() {
            keys.queue.charge(client, 1.0);
        }
        Ok(Self {
            keys: keys.clone(),
            pooled: pooled.clone(),
            host: host.clone(),
            taken,
            part,
            spent: None,
            client,
            permit: None,
            state: ChargeState::Taken,
        })
    }

    /// One more request with the same key to the same host, as urgent as a probe. If this one
    /// tries a key that was set aside, that one does then.
    ///
    /// # Errors
    /// Why none can be sent now.
    pub(crate) fn again(&self) -> Result<Self, Denied> {
        let now = self.keys.clock.now();
        self.key().pass_trial_on(&self.host, self.taken, now);
        Self::take(&self.keys, &self.pooled, &self.host, true, None)
    }

    /// Records for the next process what the request spends, and takes a permit if it is
    /// charged to the pool. Only then may it be sent, and at once, on a connection that is
    /// ready: see [`is_usable`](Self::is_usable).
    ///
    /// # Errors
    /// If the pool has none.
    pub(crate) async fn ready(&mut self) -> Result<(), Denied> {
        let (key, now) = (&self.pooled.key, self.keys.clock.now());
        if key.limits().least().is_some() {
            self.spent = Some(self.keys.budgets().spent.begin(key.digest).await);
        }
        let pool = key.pool(&self.host).filter(|_| self.part == Part::Pool);
        let Some((permits, pool_key, limits)) = pool else {
            return Ok(());
        };
        let wait = match permits
            .take(&pool_key, limits, key.cooldown(&self.host, now))
            .await
        {
            Ok(permit) => {
                self.permit = Some(permit);
                return Ok(());
            }
            Err(permits::PermitDenied::Resting { rest }) => {
                key.cool_down(&self.host, now + rest);
                return Err(Denied::SpentFor(rest));
            }
            Err(permits::PermitDenied::Spent { retry_after: wait }) => wait,
            // Each engine, and each life of one, begins its own wait with the first call.
            Err(permits::PermitDenied::Closed { opens_in }) => opens_in.min(CLOSED),
            // The engine has a breaker of its own.
            Err(permits::PermitDenied::Absent) => Duration::from_secs(1),
        };
        key.pool_spent(now + wait);
        Err(Denied::SpentFor(wait))
    }

    /// With this permit of the pool.
    #[cfg(test)]
    pub(super) fn with_permit(mut self, permit: PoolPermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Whether its permit of the pool, if it has one, is not too old to send the request.
    pub(crate) fn is_usable(&self) -> bool {
        self.permit.as_ref().is_none_or(PoolPermit::is_usable)
    }

    /// How long the request may be under way.
    pub(crate) fn longest(&self) -> Duration {
        match self.permit {
            Some(_) => LONGEST_OF_POOL,
            None => LONGEST,
        }
    }

    /// The key, as the value of the request's field.
    pub(crate) fn header(&self) -> Option<&HeaderValue> {
        self.pooled.api.as_ref().map(|api| &api.value)
    }

    /// The name of the key.
    pub(crate) fn name(&self) -> &str {
        self.pooled.name()
    }

    pub(super) fn key(&self) -> &ProviderKey {
        &self.pooled.key
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// The request is about to be sent.
    pub(crate) fn mark_sent(&mut self) {
        self.state = ChargeState::Sent;
    }

    /// The head of the answer has come.
    pub(crate) fn mark_answered(&mut self) {
        self.state = ChargeState::Answered;
    }

    /// The request was not sent after all.
    pub(crate) fn mark_unsent(&mut self) {
        self.state = ChargeState::Taken;
    }

    /// Counts the end of the request, if it has not ended.
    pub(crate) fn end(&mut self) {
        let (key, now) = (&self.pooled.key, self.keys.clock.now());
        let (spent, id, permit) = (&self.keys.budgets().spent, self.spent, self.permit.take());
        match std::mem::replace(&mut self.state, ChargeState::Ended) {
            ChargeState::Ended => return,
            state @ (ChargeState::Sent | ChargeState::Answered) => {
                key.end(&self.host, self.part, now);
                id.inspect(|id| spent.end(*id));
                // Without a head it may still arrive: the permit counts as long as that may be.
                if let Some(permit) = permit.filter(|_| state == ChargeState::Answered) {
                    permit.answered(key.cooldown(&self.host, now));
                }
            }
            ChargeState::Taken => {
                key.cancel(&self.host, self.part);
                id.inspect(|id| spent.cancel(*id));
                if let Some(permit) = permit {
                    permit.never_written();
                }
                if self.client.is_some() {
                    self.keys.queue.charge(self.client, -1.0);
                }
            }
        }
        self.keys.queue.wake();
        key.wake_others(&self.keys.queue);
    }

    /// Applies the limits that the answer reports.
    pub(crate) fn apply_report(&self, report: &LimitReport) {
        let now = self.keys.clock.now();
        let limits = report.limits.iter();
        // A refusal says until when the host accepts nothing.
        let (empty, limits): (Vec<ReportedLimit>, Vec<ReportedLimit>) =
            limits.partition(|limit| report.refuses_key && limit.remaining == 0);
        self.key().apply_report(&limits, self.taken, now);
        if let Some(pause) = empty.iter().map(|limit| limit.valid_for).max() {
            self.start_cooldown(pause);
        }
    }

    /// The host accepts no requests with the key for this time.
    pub(crate) fn start_cooldown(&self, time: Duration) {
        let now = self.keys.clock.now();
        self.key().cool_down(&self.host, now + time);
        // One of the pool tells the other replicas when it ends.
        if self.permit.is_none()
            && let Some((permits, pool_key, _)) = self.key().pool(&self.host)
        {
            permits.rest(&pool_key, time);
        }
    }

    /// The host has accepted the key.
    pub(crate) fn mark_accepted(&self) {
        if self.key().accept(&self.host, self.taken) {
            tracing::info!(
                upstream = &*self.keys.upstream,
                key = self.name(),
                host = &*self.host,
                "the API key is in service again"
            );
        }
    }

    /// A status path has refused the key.
    pub(crate) fn mark_refused(&self, status: StatusCode) {
        let now = self.keys.clock.now();
        if self.pooled.api.is_none() {
            if self.keys.keyless_refused.is_due(LogInterval::MINUTE, now) {
                tracing::error!(
                    upstream = &*self.keys.upstream,
                    host = &*self.host,
                    %status,
                    "the upstream refuses requests without an API key: set ORDGATE_API_KEYS or upstream.api_keys_file; this is logged again a minute later at the earliest"
                );
            }
            return;
        }
        if let Some(pause) = self.key().set_aside(&self.host, status, self.taken, now) {
            tracing::error!(
                upstream = &*self.keys.upstream,
                key = self.name(),
                host = &*self.host,
                %status,
                "the upstream refuses an API key; it is in quarantine at this host, and is tried again after {}: check ORDGATE_API_KEYS or upstream.api_keys_file",
                units::format(pause)
            );
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.end();
    }
}
