//! The permit of a request at an endpoint. It reports the outcome to the endpoint's
//! breaker and failure counts.
//!
//! Deliberately absent: whether a request is admitted ([`Endpoint::admit_in`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;

use super::breaker::{BreakerPermit, Change};
use super::{Endpoint, OVERDUE};
use crate::clock::Moment;
use crate::upstream::admission::queue::ClientSlot;
use crate::upstream::failure::{Cause, Failure, RequestOutcome};
use crate::wire::request_id::RequestId;

/// A slot among the requests in flight. The queue is woken when the inner slot is
/// dropped, which is after this.
pub(crate) struct InFlightSlot {
    endpoint: Arc<Endpoint>,
    slot: ClientSlot,
}

impl InFlightSlot {
    pub(super) fn new(endpoint: &Arc<Endpoint>, mut slot: ClientSlot) -> Self {
        slot.mark_used();
        Self {
            endpoint: endpoint.clone(),
            slot,
        }
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        let mut state = self.endpoint.state();
        state.in_flight = state.in_flight.saturating_sub(1);
    }
}

/// The permit of an admitted request. Its outcome is reported when it ends; a permit
/// that is dropped before reports none.
pub(crate) struct EndpointPermit {
    endpoint: Arc<Endpoint>,
    breaker_permit: BreakerPermit,
    slot: Option<Arc<InFlightSlot>>,
    /// When it was sent or, before, when its connection was begun. `None` before that: a
    /// failure then is not the endpoint's.
    sent: Option<Moment>,
    /// Whether its time has been recorded, or must not be.
    is_timed: bool,
    is_probe: bool,
    outcome: RequestOutcome,
    /// Its failure, by RFC 9209's name, and the cause.
    failed: Option<(&'static str, Cause)>,
    /// The same, of a failure that is not the endpoint's.
    other_failure: Option<(&'static str, Cause)>,
    made_for: MadeFor,
    cause: Option<Cause>,
}

/// What a request is made for, for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MadeFor {
    /// The name of its route.
    pub(crate) route: Option<Arc<str>>,
    /// The client's request that has caused it.
    pub(crate) request_id: Option<RequestId>,
}

impl MadeFor {
    pub(crate) fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    pub(crate) fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref().map(RequestId::as_str)
    }
}

impl EndpointPermit {
    /// The permit of a request that is not sent yet.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        breaker_permit: BreakerPermit,
        slot: Option<Arc<InFlightSlot>>,
        is_probe: bool,
    ) -> Self {
        Self {
            endpoint: endpoint.clone(),
            breaker_permit,
            slot,
            sent: None,
            is_timed: false,
            is_probe,
            outcome: RequestOutcome::Unknown,
            failed: None,
            other_failure: None,
            made_for: MadeFor::default(),
            cause: None,
        }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Gives the permit back unused, because no key has budget. The queue is not woken:
    /// the request is still the next one.
    pub(crate) fn back_out(mut self) {
        if let Some(slot) = self.slot.as_mut().and_then(Arc::get_mut) {
            slot.slot.mark_unused();
        }
    }

    /// Records that a connection is made for it.
    pub(crate) fn begin(&mut self) {
        self.sent = Some(self.endpoint.clock.now());
    }

    /// Records that it is sent.
    pub(crate) fn send(&mut self, made_for: MadeFor) {
        self.made_for = made_for;
        self.begin();
        self.endpoint.sent.fetch_add(1, Relaxed);
    }

    /// Records that its response has begun, with this status.
    pub(crate) fn begin_response(&mut self, status: StatusCode) {
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // A rejection shows nothing about how long responses take.
            self.is_timed = true;
            return;
        }
        // A status path is no measure of how long other targets take.
        if std::mem::replace(&mut self.is_timed, true) || self.is_probe {
            return;
        }
        if let Some(sent) = self.sent {
            let now = self.endpoint.clock.now();
            let mut state = self.endpoint.state();
            state.latency.record(now.since(sent), now);
        }
    }

    /// Its slot, which its exchange holds too.
    pub(crate) fn slot(&self) -> Option<Arc<InFlightSlot>> {
        self.slot.clone()
    }

    /// Records the cause of its failure, for the log.
    pub(crate) fn failed_by(&mut self, cause: Cause) {
        self.cause = Some(cause);
    }

    fn reason(&mut self, failure: &Failure) -> (&'static str, Cause) {
        let cause = self.cause.take();
        (failure.name(), cause.unwrap_or_else(|| Cause::of(failure)))
    }

    /// Ends it with this failure, or with success. Returns its slot, which is held until
    /// it is dropped.
    pub(crate) fn end(mut self, failure: Option<&Failure>) -> Option<Arc<InFlightSlot>> {
        if self.sent.is_some() {
            self.outcome = failure.map_or(RequestOutcome::Success, Failure::outcome);
            // A refused connection is not a quick response.
            self.is_timed |= !matches!(failure, Some(Failure::TimedOut(_)));
            if let Some(failure) = failure {
                let reason = self.reason(failure);
                match self.outcome == RequestOutcome::Failure {
                    true => self.failed = Some(reason),
                    false => self.other_failure = Some(reason),
                }
            }
        }
        self.slot.take()
    }

    /// Ends it without an outcome for the endpoint. Returns its slot.
    pub(crate) fn end_without_outcome(mut self) -> Option<Arc<InFlightSlot>> {
        self.is_timed = true;
        self.slot.take()
    }
}

impl Drop for EndpointPermit {
    fn drop(&mut self) {
        let endpoint = &self.endpoint;
        let now = endpoint.clock.now();
        let mut state = endpoint.state();
        if let Some(sent) = self.sent.filter(|_| !self.is_timed) {
            // It was given up: it would have taken at least this long. For a status
            // path that is a failure; for other targets it may be normal.
            let took = now.since(sent);
            if !self.is_probe {
                state.latency.record(took, now);
            } else if took >= OVERDUE {
                self.outcome = RequestOutcome::Failure;
                self.failed = Some(("http_response_timeout", Cause::overdue()));
            }
        }
        let changed = state.breaker.end(self.breaker_permit, self.outcome, now);
        let failed = self.failed.take();
        let other = self.other_failure.take();
        let other = other.and_then(|(reason, cause)| {
            let left_out = state.failures.other(reason, cause.kind, now)?;
            Some((reason, cause, left_out))
        });
        endpoint.count_outcome(state, self.outcome, failed, &self.made_for, now);
        if let Some((reason, cause, left_out)) = other {
            tracing::info!(
                endpoint = endpoint.name(),
                reason,
                kind = cause.kind,
                error = cause.texts.join(": "),
                route = self.made_for.route(),
                request_id = self.made_for.request_id(),
                left_out,
                "a request to the endpoint failed, not through the endpoint's fault"
            );
        }
        let name = endpoint.name();
        match changed {
            None => return,
            Some(Change::Opened(pause)) => tracing::error!(
                endpoint = name,
                ?pause,
                "the upstream keeps failing: it gets no requests for a while; another endpoint is used, or stale answers are served"
            ),
            Some(Change::Reopened(pause)) => {
                tracing::warn!(
                    endpoint = name,
                    ?pause,
                    "the upstream still fails, and gets no requests for a while"
                );
            }
            Some(Change::Closed) => {
                tracing::info!(endpoint = name, "the upstream is healthy again")
            }
        }
        endpoint.queue.wake();
    }
}
