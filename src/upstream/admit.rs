//! Admission of one request: a slot at an endpoint, and budget of a key.

use tokio::time::Instant;

use super::admission::Denied;
use super::admission::queue::{ClientSlot, NotAdmitted};
use super::charge::Charge;
use super::client::attempts::Attempts;
use super::client::pool::{Connection, ConnectionError};
use super::endpoint::EndpointPermit;
use super::{Failure, RequestPriority, Upstream};
use crate::trace;
use crate::trace::span::SpanKind;
use crate::trace::steps::{StepTimer, UpstreamStep};

/// A request that may be sent now.
pub(super) struct Admission {
    pub(super) permit: EndpointPermit,
    pub(super) sending: Sending,
}

/// What a request is sent with: a connection and its charge, or why there is no connection.
pub(super) type Sending = Result<(Connection, Charge), ConnectionError>;

impl Upstream {
    /// Waits until the endpoint of the next of these attempts has a slot and a key has
    /// budget for it, no longer than until `deadline`; then until a connection is ready.
    ///
    /// A permit of the replicas' pool is taken last, since it must be used at once. Where the
    /// pool has none, the request waits in the queue again.
    pub(super) async fn admit(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
        deadline: Instant,
    ) -> Result<Admission, Failure> {
        let admitted = loop {
            let (permit, charge) = match self.wait_for_admission(priority, attempts, deadline).await
            {
                Ok(admitted) => admitted,
                Err(denied) => break Err(denied),
            };
            match self.make_ready(permit, charge).await {
                // The queue knows how soon the floor or another key has budget.
                Err(_) if Instant::now() < deadline => {}
                admitted => break admitted,
            }
        };
        admitted.map_err(|denied| {
            self.counters.count_denied(denied);
            self.count_over_share(priority, denied);
            let mut failure = denied.into();
            if let Failure::Spent {
                unknown_because, ..
            } = &mut failure
            {
                *unknown_because = self.keys.unknown_because();
            }
            failure
        })
    }

    async fn wait_for_admission(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
        deadline: Instant,
    ) -> Result<(EndpointPermit, Charge), Denied> {
        let mut span = trace::begin("queue", SpanKind::Internal);
        span.set("ordgate.upstream", || self.name().to_owned());
        span.set("ordgate.priority", || priority.priority.name());
        let mut step = StepTimer::begin(UpstreamStep::Queue, &self.clock);
        let max_wait = deadline.saturating_duration_since(Instant::now());
        let admitted = self.queue.admit(priority, max_wait, |slot| {
            let admitted = self.try_admit_in(slot, priority, attempts);
            if let Err(NotAdmitted { denied, .. }) = &admitted {
                // At the head of the queue it waits for this alone.
                step.change(match denied.budget_after() {
                    Some(_) => UpstreamStep::Budget,
                    None => UpstreamStep::Queue,
                });
            }
            admitted
        });
        admitted.await.inspect_err(|denied| {
            span.fail(Failure::from(*denied).reason().name());
        })
    }

    /// Makes an admitted request ready to be sent. A connection that cannot be made costs no
    /// budget.
    ///
    /// # Errors
    /// If the pool of the replicas has no permit for it.
    pub(super) async fn make_ready(
        &self,
        mut permit: EndpointPermit,
        mut charge: Charge,
    ) -> Result<Admission, Denied> {
        let mut step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        permit.begin();
        let connection = match self.pool.connect(permit.endpoint().url()).await {
            Ok(connection) => connection,
            Err(error) => {
                let sending = Err(error);
                return Ok(Admission { permit, sending });
            }
        };
        step.change(UpstreamStep::Budget);
        match charge.ready().await {
            Ok(()) => Ok(Admission {
                permit,
                sending: Ok((connection, charge)),
            }),
            Err(denied) => {
                connection.put_back();
                drop(permit.end_without_outcome());
                Err(denied)
            }
        }
    }

    /// Admits a request without queueing, if that is possible now.
    pub(super) fn try_admit(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
    ) -> Result<(EndpointPermit, Charge), NotAdmitted> {
        self.try_admit_in(self.queue.client_slot(priority), priority, attempts)
    }

    fn try_admit_in(
        &self,
        slot: Option<ClientSlot>,
        priority: RequestPriority,
        attempts: &Attempts,
    ) -> Result<(EndpointPermit, Charge), NotAdmitted> {
        let selected = self.select_endpoint();
        let at = attempts.next_endpoint().unwrap_or(selected);
        let endpoint = &self.endpoints[at];
        let permit = endpoint.admit_in(priority.priority, slot);
        let permit = permit.map_err(|denied| NotAdmitted {
            denied,
            // The requests behind it wait for the selected endpoint: a request that
            // waited at their head for another one would block them.
            may_wait: at == selected,
        })?;
        match self.keys.take_at(endpoint.host(), priority) {
            Ok(budget) => Ok((permit, budget)),
            Err(denied) => {
                permit.back_out();
                Err(denied.into())
            }
        }
    }

    /// Counts a denied request as one beyond the client's share, if another client
    /// would have been admitted.
    fn count_over_share(&self, priority: RequestPriority, denied: Denied) {
        if priority.client.is_none() {
            return;
        }
        if denied == Denied::NoSlot && !self.queue.may_take_slot(priority.client) {
            self.counters.count_over_slot_share();
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        match (denied, denied.budget_after()) {
            (_, Some(retry_after)) => Self::Spent {
                retry_after,
                unknown_because: None,
            },
            (Denied::BreakerOpen(retry_after), None) => Self::BreakerOpen { retry_after },
            (Denied::KeyRefused(status), None) => Self::KeyRefused(status),
            (_, None) => Self::TooManyInFlight,
        }
    }
}
