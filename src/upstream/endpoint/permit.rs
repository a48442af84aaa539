//! A request that an endpoint has let in: it is sent, heard and ended, and what comes
//! of it is told to the endpoint's breaker, limit and failures.
//!
//! Deliberately absent: whether a request is let in ([`Endpoint::admit_in`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;

use super::{Endpoint, OVERDUE};
use crate::clock::Moment;
use crate::upstream::admission::queue::ClientSlot;
use crate::upstream::client::cause::Cause;
use crate::upstream::client::connection::{Connection, SendPath};
use crate::upstream::endpoint::breaker::{BreakerPermit, Change, RequestOutcome};
use crate::upstream::{Failure, TimedOut};

/// A place among the requests under way. Those who wait learn that it is free
/// when its slot is dropped, which is after this.
pub struct InFlightSlot {
    endpoint: Arc<Endpoint>,
    slot: ClientSlot,
}

impl InFlightSlot {
    /// A place in a slot, which the endpoint has counted.
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

/// A request that was let pass. What came of it is told when it ends; one that
/// is dropped before tells nothing.
pub struct Permit {
    endpoint: Arc<Endpoint>,
    pass: BreakerPermit,
    place: Option<InFlightSlot>,
    /// When it was sent: what fails before is no fault of the endpoint's.
    sent: Option<Sent>,
    /// What it was sent on.
    way: Option<SendPath>,
    /// The connection that has failed beneath it, and whether that was counted
    /// before.
    lost: Option<(Connection, bool)>,
    /// Whether it has been sent again so often that it counts however it fails.
    is_last_resend: bool,
    /// Whether its time counts already, or does not.
    is_timed: bool,
    is_probe: bool,
    health: RequestOutcome,
    /// How it has failed, by RFC 9209's name, and why.
    failed: Option<(&'static str, Cause)>,
    cause: Option<Cause>,
}

/// How a request was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: Moment,
    /// Requests under way then, itself among them.
    in_flight: u32,
    /// Its number among all that were sent.
    number: u64,
}

impl Permit {
    /// A request that is let pass, and not yet sent.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        pass: BreakerPermit,
        place: Option<InFlightSlot>,
        is_probe: bool,
    ) -> Self {
        Self {
            endpoint: endpoint.clone(),
            pass,
            place,
            sent: None,
            way: None,
            lost: None,
            is_last_resend: false,
            is_timed: false,
            is_probe,
            health: RequestOutcome::Unknown,
            failed: None,
            cause: None,
        }
    }

    /// Where it leads.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// It is not sent after all, for want of something else. Those who wait are
    /// not told: who backs out is the one whose turn it is.
    pub fn back_out(mut self) {
        if let Some(place) = &mut self.place {
            place.slot.mark_unused();
        }
    }

    /// It is sent this way.
    pub(in crate::upstream) fn send(&mut self, way: SendPath) {
        self.way = Some(way);
        let at = self.endpoint.clock.now();
        let mut state = self.endpoint.state();
        self.sent = Some(Sent {
            at,
            in_flight: state.in_flight,
            number: state.under_way.send(),
        });
        drop(state);
        self.endpoint.sent.fetch_add(1, Relaxed);
    }

    /// Its time counts for nothing: the client's upload is part of it.
    pub fn untimed(&mut self) {
        self.is_timed = true;
    }

    /// Its answer has begun to come, with this status.
    pub fn heard(&mut self, status: StatusCode) {
        if let Some(connection) = self.connection() {
            connection.answered();
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // What is turned away tells nothing of how long answers take.
            self.is_timed = true;
            return;
        }
        if let Some(sent) = self.sent {
            self.endpoint.state().under_way.answered(sent.number);
        }
        // A status is no measure of what other answers take.
        if std::mem::replace(&mut self.is_timed, true) || self.is_probe {
            return;
        }
        if let Some(sent) = self.sent {
            let now = self.endpoint.clock.now();
            let took = now.since(sent.at);
            let holds_back = self.endpoint.line.is_first_over_its_share();
            let mut state = self.endpoint.state();
            state.latency.record(took, now);
            if holds_back {
                state.concurrency.held_back();
            }
            state.concurrency.record(took, sent.in_flight, now);
        }
    }

    /// The connection on which it was sent; none where it was not.
    pub(in crate::upstream) fn connection(&self) -> Option<Connection> {
        self.way.as_ref()?.connection()
    }

    /// Whether the server has ended its connection, or there is none.
    pub(in crate::upstream) fn has_ended(&self) -> bool {
        let connection = self.connection();
        connection.is_none_or(|connection| connection.has_ended())
    }

    /// It fails since its connection has.
    pub(in crate::upstream) fn lose_connection(&mut self) {
        if self.lost.is_none()
            && let Some(connection) = self.connection()
        {
            let is_first = connection.count_failure();
            self.lost = Some((connection, !is_first));
        }
    }

    /// The connection that has failed beneath it, if one has.
    pub(in crate::upstream) fn lost(&self) -> Option<Connection> {
        let (connection, _) = self.lost.as_ref()?;
        Some(connection.clone())
    }

    /// It has been sent again often enough: it counts as a failure if the server
    /// does not process it.
    pub(in crate::upstream) fn set_last_resend(&mut self) {
        self.is_last_resend = true;
    }

    /// Whether it counts as a failure if the server does not process it.
    pub(in crate::upstream) fn is_last_resend(&self) -> bool {
        self.is_last_resend
    }

    /// Sees to its connection, where it was given up after too long.
    pub(in crate::upstream) fn overdue(&mut self, failure: Option<&Failure>) {
        let is_overdue = matches!(
            failure,
            Some(Failure::TimedOut(
                TimedOut::FirstByte | TimedOut::Whole | TimedOut::Body
            ))
        );
        if is_overdue && self.way.as_ref().and_then(SendPath::overdue).is_some() {
            self.lose_connection();
        }
    }

    /// Keeps why it fails, for the operator.
    pub(in crate::upstream) fn failed_by(&mut self, cause: Cause) {
        self.cause = Some(cause);
    }

    /// What a failure is here: [`Failure::Excess`] where the endpoint turns this
    /// request away and answers others. Fewer are sent at once from then on, and
    /// the breaker does not count it. `is_alone`: whether no other endpoint can be
    /// asked.
    #[must_use]
    pub fn weigh(&mut self, failure: Failure, is_alone: bool) -> Failure {
        let Some((sent, excess)) = self.sent.zip(failure.as_excess()) else {
            return failure;
        };
        if let Some((connection, _)) = &self.lost {
            // The others that are lost with a connection are no others. One that
            // has answered before was idle: any server closes such ones.
            let is_shared = self.way.as_ref().is_some_and(SendPath::is_shared);
            if is_shared || connection.has_answered() {
                return failure;
            }
        }
        let now = self.endpoint.clock.now();
        let mut state = self.endpoint.state();
        // Until a cap is known a probe has no place, but a connection: it needs one
        // beside the others.
        let others = state.in_flight.saturating_sub(1);
        if !state.under_way.answers_others(sent.number, is_alone)
            || !state.concurrency.turned_away(others, sent.at, now)
        {
            return failure;
        }
        drop(state);
        self.failed = Some(self.reason(&failure));
        excess
    }

    fn reason(&mut self, failure: &Failure) -> (&'static str, Cause) {
        let cause = self.cause.take();
        (failure.name(), cause.unwrap_or_else(|| Cause::of(failure)))
    }

    /// It has come to its end; answers with its place, which is held until
    /// that is dropped.
    pub fn end(mut self, failure: Option<&Failure>) -> Option<InFlightSlot> {
        self.overdue(failure);
        let is_counted = matches!(self.lost, Some((_, true)));
        if is_counted {
            // The end of a connection is one failure.
            self.is_timed = true;
        } else if self.sent.is_some() {
            self.health = failure.map_or(RequestOutcome::Well, Failure::health);
            // What is refused at once was not quick to answer.
            self.is_timed |= !matches!(failure, Some(Failure::TimedOut(_)));
            if let Some(failure) = failure.filter(|_| self.health == RequestOutcome::Failed) {
                self.failed = Some(self.reason(failure));
            }
            if failure.is_some_and(Failure::is_overload) {
                let now = self.endpoint.clock.now();
                self.endpoint.state().concurrency.overloaded(now);
            }
        }
        self.place.take()
    }

    /// It has come to its end, and says nothing of the endpoint; answers with
    /// its place.
    pub fn end_untold(mut self) -> Option<InFlightSlot> {
        self.is_timed = true;
        self.place.take()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let endpoint = &self.endpoint;
        let now = endpoint.clock.now();
        let mut state = endpoint.state();
        if let Some(sent) = self.sent {
            state.under_way.end(sent.number);
        }
        if let Some(sent) = self.sent.filter(|_| !self.is_timed) {
            // It was given up: it would have taken so long at the least. A
            // status that takes long is no sign of health; of what clients
            // ask nobody knows.
            let took = now.since(sent.at);
            if !self.is_probe {
                state.latency.record(took, now);
            } else if took >= OVERDUE {
                self.health = RequestOutcome::Failed;
                self.failed = Some(("http_response_timeout", Cause::overdue()));
            }
        }
        let changed = state.breaker.end(self.pass, self.health, now);
        let failed = self.failed.take();
        endpoint.note_failure(state, self.health, failed, now);
        let name = endpoint.name();
        match changed {
            None => return,
            Some(Change::Opened(pause)) => tracing::error!(
                endpoint = name,
                ?pause,
                "the upstream goes on failing: it is left alone for a while, and another is asked or what is stale is served"
            ),
            Some(Change::Reopened(pause)) => {
                tracing::warn!(
                    endpoint = name,
                    ?pause,
                    "the upstream still fails, and is left alone again"
                );
            }
            Some(Change::Closed) => tracing::info!(endpoint = name, "the upstream is well again"),
        }
        endpoint.line.wake();
    }
}
