//! Admission of one request: a slot at an endpoint, and budget of a key.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

use super::admission::Denied;
use super::admission::queue::{ClientSlot, NotAdmitted};
use super::client::attempts::Attempts;
use super::endpoint::{Endpoint, EndpointPermit};
use super::keys::BudgetPermit;
use super::{Failure, Priority, QueueWatch, RequestPriority, Upstream};
use crate::trace;
use crate::trace::span::SpanKind;
use crate::trace::steps::{StepTimer, UpstreamStep};

/// A request that waits for longer for its admission counts as queued.
const SHORT_WAIT: Duration = Duration::from_millis(250);

/// Stops a queued request where it could be admitted, until it is known whether it is
/// still needed.
#[derive(Default)]
struct QueueStop {
    is_closed: AtomicBool,
    /// Whether a request has come to it while it was closed.
    is_reached: AtomicBool,
}

impl Upstream {
    /// Admits a request that may no longer be needed when it could be admitted; `None` if
    /// it is not. Nothing is taken for it before that is known, since what is taken out
    /// of a budget counts even if no request is sent. It keeps its position meanwhile.
    pub(super) async fn admit_watched(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
        watch: &dyn QueueWatch,
    ) -> Result<Option<(EndpointPermit, BudgetPermit)>, Failure> {
        let stop = QueueStop::default();
        let max_wait = watch.max_wait(self.settings.admission.queue_timeout);
        let admission = self.admit_by(priority, max_wait, |slot| {
            match stop.is_closed.load(Relaxed) {
                true => Err(self.check_in(slot, priority, attempts, &stop)),
                false => self.try_admit_in(slot, priority, attempts),
            }
        });
        let mut admission = pin!(admission);
        // Without a wait there is no timer.
        if let Poll::Ready(admitted) =
            poll_fn(|context| Poll::Ready(admission.as_mut().poll(context))).await
        {
            return admitted.map(Some);
        }
        loop {
            if let Ok(admitted) = timeout(SHORT_WAIT, admission.as_mut()).await {
                return admitted.map(Some);
            }
            stop.is_closed.store(true, Relaxed);
            watch.queued().await;
            let admitted = poll_fn(|context| match admission.as_mut().poll(context) {
                Poll::Ready(admitted) => Poll::Ready(Some(admitted)),
                Poll::Pending if stop.is_reached.swap(false, Relaxed) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            if let Some(admitted) = admitted.await {
                return admitted.map(Some);
            }
            if !watch.is_needed().await {
                return Ok(None);
            }
            stop.is_closed.store(false, Relaxed);
            self.queue.wake();
        }
    }

    /// Waits until the endpoint of the next of these attempts has a slot, and a
    /// key has budget for it; no longer than `max_wait`.
    pub(super) async fn admit(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
        max_wait: Duration,
    ) -> Result<(EndpointPermit, BudgetPermit), Failure> {
        let attempt = |slot| self.try_admit_in(slot, priority, attempts);
        self.admit_by(priority, max_wait, attempt).await
    }

    async fn admit_by(
        &self,
        priority: RequestPriority,
        max_wait: Duration,
        mut attempt: impl FnMut(
            Option<ClientSlot>,
        ) -> Result<(EndpointPermit, BudgetPermit), NotAdmitted>,
    ) -> Result<(EndpointPermit, BudgetPermit), Failure> {
        let mut span = trace::begin("queue", SpanKind::Internal);
        span.set("ordgate.upstream", || self.name().to_owned());
        span.set("ordgate.priority", || priority.priority.name());
        let mut step = StepTimer::begin(UpstreamStep::Queue, &self.clock);
        let timed = |slot| {
            let admitted = attempt(slot);
            if let Err(NotAdmitted { denied, .. }) = &admitted {
                // At the head of the queue it waits for this alone.
                step.change(match denied.budget_after() {
                    Some(_) => UpstreamStep::Budget,
                    None => UpstreamStep::Queue,
                });
            }
            admitted
        };
        let admitted = self.queue.admit(priority, max_wait, timed).await;
        drop(step);
        admitted.map_err(|denied| {
            self.counters.count_denied(denied);
            self.count_over_share(priority, denied);
            let mut failure = denied.into();
            if let Failure::Spent {
                unknown_because, ..
            } = &mut failure
            {
                let unknown = self.budgets().unknown_spending(self.clock.now());
                *unknown_because = unknown.map(|(_, reason)| reason);
            }
            span.fail(failure.reason().name());
            failure
        })
    }

    /// Admits a request without queueing, if that is possible now.
    pub(super) fn try_admit(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
    ) -> Result<(EndpointPermit, BudgetPermit), NotAdmitted> {
        self.try_admit_in(self.queue.client_slot(priority), priority, attempts)
    }

    fn try_admit_in(
        &self,
        slot: Option<ClientSlot>,
        priority: RequestPriority,
        attempts: &Attempts,
    ) -> Result<(EndpointPermit, BudgetPermit), NotAdmitted> {
        let (endpoint, permit) = self.endpoint_permit(slot, priority, attempts)?;
        match self.keys.take_at(endpoint.host(), priority) {
            Ok(budget) => Ok((permit, budget)),
            Err(denied) => {
                permit.back_out();
                Err(denied.into())
            }
        }
    }

    /// Why a request cannot be admitted now. If it could be, it is stopped.
    fn check_in(
        &self,
        slot: Option<ClientSlot>,
        priority: RequestPriority,
        attempts: &Attempts,
        stop: &QueueStop,
    ) -> NotAdmitted {
        let (endpoint, permit) = match self.endpoint_permit(slot, priority, attempts) {
            Ok(permitted) => permitted,
            Err(denied) => return denied,
        };
        permit.back_out();
        let denied = self.keys.denied_at(endpoint.host(), priority);
        if denied.is_none() {
            stop.is_reached.store(true, Relaxed);
        }
        denied.unwrap_or(Denied::NoSlot).into()
    }

    fn endpoint_permit(
        &self,
        slot: Option<ClientSlot>,
        priority: RequestPriority,
        attempts: &Attempts,
    ) -> Result<(&Arc<Endpoint>, EndpointPermit), NotAdmitted> {
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
        Ok((endpoint, permit))
    }

    /// Counts a denied request as one beyond the client's share, if another client
    /// would have been admitted.
    fn count_over_share(&self, priority: RequestPriority, denied: Denied) {
        if priority.client.is_none() {
            return;
        }
        let is_spent = denied.budget_after().is_some();
        let host = self.endpoints[self.select_endpoint()].host();
        if is_spent && self.keys.denied_at(host, Priority::Miss).is_none() {
            self.counters.count_over_budget_share();
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
