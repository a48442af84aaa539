//! The permission to send one request: a slot at an endpoint, and one request of a key's
//! budget.
//!
//! A request counts from its permit on. One that was never sent is taken back; any other
//! counts until a window after its answer's head, or after its end if none came.
//!
//! After a 401 or 403 a status path is requested with the same key, which tells whether the
//! target was refused, which clients choose, or the key. Only the latter sets the key aside, so
//! that a target never costs a key. A key is checked at a host at most once a minute; requests
//! that are refused meanwhile wait for the check.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;

use super::endpoint::{Endpoint, Host};
use super::failure::Failure;
use super::key::ProviderKey;
use super::keys::{ApiKey, PooledKey};
use super::queue::{Priority, RequestPriority, Slot, no_slot};
use super::reported;
use super::{Upstream, UpstreamRequest};
use crate::clock::Moment;
use crate::reason::Reason;
use crate::shared::permits::PoolPermit;
use crate::state::SpentId;
use crate::trace::Attempt;

/// How long a request is under way at most: then its connection is closed.
const LONGEST: Duration = Duration::from_secs(120);
/// The same of one with a permit of the replicas' pool, which the engine counts for this and
/// the window.
const LONGEST_OF_POOL: Duration = Duration::from_secs(60);

/// How long a check may take: a client waits for it.
const KEY_CHECK: Duration = Duration::from_secs(5);
/// How long its result holds.
const HOLDS: Duration = Duration::from_secs(60);

/// Which upstream a request is sent to, with which key.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) upstream: Arc<Upstream>,
    /// The number of its endpoint.
    pub(super) at: usize,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) key: Arc<PooledKey>,
    /// Whether it is charged to the pool of all replicas.
    is_of_pool: bool,
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

impl Upstream {
    /// A permit for a request at once, at this endpoint or the selected one.
    ///
    /// # Errors
    /// Why there is none, and when there may be.
    pub(super) fn permit(
        self: &Arc<Self>,
        request: RequestPriority,
        at: Option<usize>,
    ) -> Result<Permit, Failure> {
        let at = at.unwrap_or_else(|| self.select_endpoint());
        let endpoint = self.endpoints.get(at);
        // A reload may have removed it.
        let endpoint = endpoint.ok_or_else(no_slot)?;
        self.closed(endpoint, request.is_probe())
            .map_or(Ok(()), Err)?;
        let (key, is_of_pool) = self.keys.take(&endpoint.host, request.is_probe())?;
        Ok(self.granted(at, request, key, is_of_pool))
    }

    /// Why an endpoint gets no request now, whatever is left of the keys' budgets.
    pub(super) fn closed(&self, endpoint: &Endpoint, is_probe: bool) -> Option<Failure> {
        if let Some(wait) = endpoint.wait(is_probe, self.has_tip()) {
            return Some(Failure::until(Reason::BreakerOpen, wait));
        }
        let is_full = endpoint.in_flight() >= self.settings.max_in_flight.get();
        (is_full && !is_probe).then(no_slot)
    }

    fn granted(
        self: &Arc<Self>,
        at: usize,
        request: RequestPriority,
        key: Arc<PooledKey>,
        is_of_pool: bool,
    ) -> Permit {
        let endpoint = self.endpoints[at].clone();
        let slot = (!request.is_probe()).then(|| self.queue.slot(&endpoint, request.client));
        Permit {
            asked: Asked {
                upstream: self.clone(),
                at,
                endpoint,
                key,
                is_of_pool,
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
    pub(super) fn again(&self, request: RequestPriority) -> Result<Permit, Failure> {
        let (key, host, now) = self.key_at();
        let is_of_pool = key.state().take(host, true, now)?;
        let key = self.key.clone();
        Ok(self.upstream.granted(self.at, request, key, is_of_pool))
    }

    /// A status path has refused the key.
    pub(super) fn mark_refused(&self, status: StatusCode) {
        if self.key.api.is_none() {
            return;
        }
        let (key, host, now) = self.key_at();
        if key.state().set_aside(host, status, now) {
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
        if key.state().budget.limits.least().is_some() {
            let spent = &asked.upstream.keys.budgets.spent;
            let (id, committed) = spent.begin(key.digest);
            self.spent = Some(id);
            committed.await;
        }
        if !asked.is_of_pool {
            return true;
        }
        let Some((permits, keys, limits)) = key.pool(host) else {
            return true;
        };
        let rest = key.state().unusable_for(host, now);
        match permits.take(keys, limits, rest).await {
            Ok(permit) => self.pool = Some(permit),
            Err(denied) if denied.outcome == "resting" => {
                key.state().cool_down(host, now + denied.wait);
            }
            Err(denied) => key.state().pool_spent_until = now + denied.wait,
        }
        self.pool.is_some()
    }

    /// With this permit of the pool.
    #[cfg(test)]
    pub(super) fn set_pool(&mut self, permit: Option<PoolPermit>) {
        self.pool = permit;
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
        let wall = asked.upstream.clock.wall_now();
        if status == StatusCode::TOO_MANY_REQUESTS {
            let pause = reported::wait_after_429(fields, wall);
            // Other replicas learn it with the return of a permit, not from one of the floor.
            key.state().cool_down(host, now + pause);
            return;
        }
        let limits = reported::read(fields, wall);
        key.state().budget.apply_report(&limits, now);
        let refuses = matches!(status.as_u16(), 401 | 403);
        if !refuses && !status.is_server_error() && key.state().accept(host, now) {
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
            key.state().end(host, asked.is_of_pool, None);
            self.spent.inspect(|id| spent.cancel(*id));
            if let Some(permit) = self.pool.take() {
                permit.never_written();
            }
        } else {
            key.state().end(host, asked.is_of_pool, Some(now));
            self.spent.inspect(|id| spent.end(*id));
            // Without a head it may still arrive: the pool's permit counts as long as that
            // may be.
            let answered = self
                .pool
                .take()
                .filter(|_| self.state == PermitState::Answered);
            if let Some(permit) = answered {
                permit.answered(key.state().unusable_for(host, now));
            }
        }
        drop(self.slot.take());
        queue.pump();
    }
}

impl Upstream {
    /// Finds out whether the target or the key was refused; a key that was is set aside then.
    /// Where that is not known, a status path is requested with the same key.
    pub(super) async fn resolve_refusal(
        self: &Arc<Self>,
        asked: &Asked,
        request: RequestPriority,
        target: &str,
        refused: Failure,
    ) -> Failure {
        let status = refused.received.unwrap_or(StatusCode::FORBIDDEN);
        if self.is_status_path(target) || asked.key.api.is_none() {
            asked.mark_refused(status);
            return refused;
        }
        let of_target = Failure::status(Reason::TargetRefused, status);
        let Some(path) = self.status_path() else {
            return of_target;
        };
        let (key, host) = (&asked.key.key, &asked.endpoint.host);
        let mut checks = key.checks.lock().await;
        let now = self.clock.now();
        checks.retain(|(_, checked)| now.since(*checked) < HOLDS);
        let is_known = checks.iter().any(|(at, _)| at == host);
        let check = RequestPriority {
            priority: Priority::Probe,
            client: None,
            purpose: "key-check",
            ..request
        };
        // Like a probe of the tip it takes no slot.
        if !is_known && let Ok(permit) = asked.again(check) {
            let (status, span) = (UpstreamRequest::typed(&path), Attempt::begin(Vec::new));
            // What it says of the key is applied there.
            let checked = Box::pin(self.attempt(&status, permit, &span));
            if !matches!(timeout(KEY_CHECK, checked).await, Ok(Ok(None))) {
                checks.push((host.clone(), self.clock.now()));
            }
        }
        match key.refused(host) {
            Some(_) => refused,
            None => of_target,
        }
    }
}
