//! The permission to send one request: a slot at an endpoint, and one request of a key's
//! budget.
//!
//! A request counts from its permit on. One that was never sent is taken back; any other
//! counts until a window after its answer's head, or after its end if none came.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};

use super::Upstream;
use super::endpoint::{Endpoint, Host};
use super::failure::Failure;
use super::key::{ProviderKey, Taken};
use super::keys::{ApiKey, PooledKey};
use super::queue::Slot;
use super::reported::{self, ReportedLimit};
use super::request::RequestPriority;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::shared::permits::{self, PoolPermit};
use crate::state::SpentId;

/// How long a request is under way at most: then its connection is closed.
const LONGEST: Duration = Duration::from_secs(120);
/// The same of one with a permit of the replicas' pool, which the engine counts for this and
/// the window.
const LONGEST_OF_POOL: Duration = Duration::from_secs(60);
/// No request waits so long.
const NEVER: Duration = Duration::from_hours(48);
/// How soon it is looked again whether a request of any upstream has ended.
const SOON: Duration = Duration::from_millis(100);
/// How long the engine is not asked again while the pool is closed, at most.
const CLOSED: Duration = Duration::from_secs(5);

/// Which upstream a request is sent to, with which key.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) upstream: Arc<Upstream>,
    /// The number of its endpoint.
    pub(super) at: usize,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) key: Arc<PooledKey>,
    taken: Taken,
}

/// The permission to send one request, until this is dropped.
pub(super) struct Permit {
    pub(super) asked: Asked,
    pub(super) request: RequestPriority,
    /// `None` for a probe.
    slot: Option<Slot>,
    /// Its record for the next process.
    spent: Option<SpentId>,
    /// Its permit of the replicas' pool.
    pool: Option<PoolPermit>,
    state: PermitState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PermitState {
    Taken,
    Sent,
    Answered,
}

/// Why a request is not admitted, and when it may be: at the earliest after a time, or when
/// another one to the same endpoint ends.
pub(super) struct Denied {
    pub(super) failure: Failure,
    pub(super) wait: Option<Duration>,
}

impl Denied {
    /// Too many requests are in flight.
    pub(super) fn no_slot() -> Self {
        Self {
            failure: Failure::until(Reason::NoSlot, Duration::from_secs(1)),
            wait: None,
        }
    }

    /// No request is admitted for this time, for this reason.
    pub(super) fn until(reason: Reason, wait: Duration) -> Self {
        Self {
            failure: Failure::until(reason, wait),
            wait: Some(wait),
        }
    }

    /// Too many requests to this host are unanswered: no budget is left until one has ended.
    pub(super) fn spent_until_request_ends() -> Self {
        Self {
            wait: Some(SOON),
            ..Self::until(Reason::OverBudget, Duration::from_secs(1))
        }
    }

    /// A host has refused the key.
    pub(super) fn key_refused(status: StatusCode) -> Self {
        Self {
            failure: Failure::status(Reason::KeyRefused, status),
            wait: Some(NEVER),
        }
    }
}

impl Upstream {
    /// A permit for a request at once, at this endpoint or the selected one.
    pub(super) fn permit(
        self: &Arc<Self>,
        request: RequestPriority,
        at: Option<usize>,
    ) -> Result<Permit, Denied> {
        let at = at.unwrap_or_else(|| self.select_endpoint());
        let Some(endpoint) = self.endpoints.get(at) else {
            // A reload has removed it.
            return Err(Denied::no_slot());
        };
        if let Some(wait) = endpoint.wait(request.is_probe(), self.has_tip()) {
            return Err(Denied::until(Reason::BreakerOpen, wait));
        }
        let most = self.settings.max_in_flight.get();
        if !request.is_probe() && endpoint.in_flight() >= most {
            return Err(Denied::no_slot());
        }
        let (key, taken) = self.keys.take(&endpoint.host, request.is_probe())?;
        Ok(self.granted(at, request, key, taken))
    }

    fn granted(
        self: &Arc<Self>,
        at: usize,
        request: RequestPriority,
        key: Arc<PooledKey>,
        taken: Taken,
    ) -> Permit {
        let endpoint = self.endpoints[at].clone();
        let slot = (!request.is_probe()).then(|| self.queue.slot(&endpoint, request.client));
        Permit {
            asked: Asked {
                upstream: self.clone(),
                at,
                endpoint,
                key,
                taken,
            },
            request,
            slot,
            spent: None,
            pool: None,
            state: PermitState::Taken,
        }
    }
}

impl Asked {
    /// Its key, the host that gets that, and the present.
    fn key_at(&self) -> (&Arc<ProviderKey>, &Host, Moment) {
        let now = self.upstream.clock.now();
        (&self.key.key, &self.endpoint.host, now)
    }

    /// A permit for one more request with the same key to the same endpoint, as urgent as a
    /// probe.
    pub(super) fn again(&self, request: RequestPriority) -> Result<Permit, Denied> {
        let (key, host, now) = self.key_at();
        let taken = key.take(host, true, now)?;
        let key = self.key.clone();
        Ok(self.upstream.granted(self.at, request, key, taken))
    }

    /// A status path has refused the key.
    pub(super) fn mark_refused(&self, status: StatusCode) {
        if self.key.api.is_none() {
            return;
        }
        let (key, host, now) = self.key_at();
        if key.set_aside(host, status, now) {
            tracing::error!(
                upstream = self.upstream.name(),
                key = self.key.name(),
                host = &**host,
                %status,
                "the upstream refuses an API key; it is in quarantine at this host, and is tried again each minute: check ORDGATE_API_KEYS or upstream.api_keys_file"
            );
        }
    }
}

impl Permit {
    /// Records for the next process what the request spends, and takes a permit of the pool
    /// if it is charged to that. Only then may it be sent, and at once, on a connection that
    /// is ready: see [`is_usable`](Self::is_usable). Returns whether it may.
    pub(super) async fn ready(&mut self) -> bool {
        let asked = &self.asked;
        let (key, host, now) = asked.key_at();
        if key.limits().least().is_some() {
            let spent = &asked.upstream.keys.budgets.spent;
            self.spent = Some(spent.begin(key.digest).await);
        }
        let pool = key.pool(host).filter(|_| asked.taken.is_of_pool);
        let Some((permits, pool_key, limits)) = pool else {
            return true;
        };
        let rest = key.unusable_for(host, now);
        let wait = match permits.take(&pool_key, limits, rest).await {
            Ok(permit) => {
                self.pool = Some(permit);
                return true;
            }
            Err(permits::PermitDenied::Resting { rest }) => {
                key.cool_down(host, now + rest);
                return false;
            }
            Err(permits::PermitDenied::Spent { retry_after }) => retry_after,
            // Each engine, and each life of one, begins its own wait with the first call.
            Err(permits::PermitDenied::Closed { opens_in }) => opens_in.min(CLOSED),
            // The engine has a breaker of its own.
            Err(permits::PermitDenied::Absent) => Duration::from_secs(1),
        };
        key.pool_spent(now + wait);
        false
    }

    /// With this permit of the pool.
    #[cfg(test)]
    pub(super) fn set_pool(&mut self, permit: PoolPermit) {
        self.pool = Some(permit);
    }

    /// Whether its permit of the pool, if it has one, is not too old to send the request.
    pub(super) fn is_usable(&self) -> bool {
        self.pool.as_ref().is_none_or(PoolPermit::is_usable)
    }

    /// How long the request may be under way.
    pub(super) fn longest(&self) -> Duration {
        match self.pool {
            Some(_) => LONGEST_OF_POOL,
            None => LONGEST,
        }
    }

    /// The key, as the value of the request's field.
    pub(super) fn header(&self) -> Option<&HeaderValue> {
        self.asked.key.api.as_ref().map(ApiKey::value)
    }

    /// The request is about to be sent; or it was not after all.
    pub(super) fn mark_sent(&mut self, is_sent: bool) {
        self.state = match is_sent {
            true => PermitState::Sent,
            false => PermitState::Taken,
        };
    }

    /// The head of the answer has come: its limits apply, and the request's time in the
    /// budget begins. Returns the slot.
    pub(super) fn answered(
        mut self,
        status: StatusCode,
        fields: &HeaderMap,
        is_typed: bool,
    ) -> Option<Slot> {
        self.state = PermitState::Answered;
        // Without a key of ordgate's, limits on a plain route may be those of the client.
        if is_typed || self.header().is_some() {
            self.apply(status, fields);
        }
        self.slot.take()
    }

    /// Applies what an answer says about the key.
    fn apply(&self, status: StatusCode, fields: &HeaderMap) {
        let asked = &self.asked;
        let (key, host, now) = asked.key_at();
        let wall = asked.upstream.clock.system_time();
        let limits = reported::read(fields, wall);
        let refuses = matches!(status.as_u16(), 401 | 403 | 429);
        // A refusal says until when the host accepts nothing.
        let (empty, limits): (Vec<ReportedLimit>, Vec<ReportedLimit>) = limits
            .into_iter()
            .partition(|limit| refuses && limit.remaining == 0);
        key.apply_report(&limits, asked.taken, now);
        let mut pause = empty.iter().map(|limit| limit.valid_for).max();
        if status == StatusCode::TOO_MANY_REQUESTS {
            pause = pause.max(Some(reported::wait_after_429(fields, wall)));
        }
        if let Some(pause) = pause {
            key.cool_down(host, now + pause);
            // One of the pool tells the other replicas when it ends.
            if self.pool.is_none()
                && let Some((permits, pool_key, _)) = key.pool(host)
            {
                permits.rest(&pool_key, pause);
            }
        }
        if !refuses && !status.is_server_error() && key.accept(host, now) {
            tracing::info!(
                upstream = asked.upstream.name(),
                key = asked.key.name(),
                host = &**host,
                "the API key is in service again"
            );
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let asked = &self.asked;
        let ((key, host, now), queue) = (asked.key_at(), &asked.upstream.queue);
        let spent = &asked.upstream.keys.budgets.spent;
        if self.state == PermitState::Taken {
            key.cancel(host, asked.taken);
            self.spent.inspect(|id| spent.cancel(*id));
            if let Some(permit) = self.pool.take() {
                permit.never_written();
            }
        } else {
            key.end(host, asked.taken, now);
            self.spent.inspect(|id| spent.end(*id));
            // Without a head it may still arrive: the pool's permit counts as long as that
            // may be.
            let answered = self
                .pool
                .take()
                .filter(|_| self.state == PermitState::Answered);
            if let Some(permit) = answered {
                permit.answered(key.unusable_for(host, now));
            }
        }
        drop(self.slot.take());
        queue.pump();
    }
}
