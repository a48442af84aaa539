//! Admission of one request: a slot at an endpoint, and budget of a key.

use std::time::Duration;

use super::admission::queue::{AdmissionRetry, ClientSlot, NotAdmitted};
use super::client::attempts::Attempts;
use super::endpoint::EndpointPermit;
use super::keys::{BudgetPermit, Denied};
use super::{Failure, Priority, RequestPriority, Upstream};

impl Upstream {
    /// Waits until the endpoint of the next of these attempts has a slot, and a
    /// key has budget for it; no longer than `max_wait`.
    pub(super) async fn admit(
        &self,
        priority: RequestPriority,
        attempts: &Attempts,
        max_wait: Duration,
    ) -> Result<(EndpointPermit, BudgetPermit), Failure> {
        let admitted = self
            .queue
            .admit(priority, max_wait, |slot| {
                self.try_admit_in(slot, priority, attempts)
            })
            .await;
        if let Err(failure) = &admitted {
            self.counters.refuse(failure);
            self.count_over_share(priority, failure);
        }
        admitted
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
        let selected = self.select_endpoint();
        let at = attempts.next_endpoint().unwrap_or(selected);
        let endpoint = &self.endpoints[at];
        let admitted = endpoint.admit_in(priority.priority, slot);
        let permit = admitted.map_err(|hold| match at == selected {
            true => hold,
            // The requests behind it wait for the selected endpoint: a request that
            // waited at their head for another one would block them.
            false => NotAdmitted {
                retry: AdmissionRetry::Never,
                ..hold
            },
        })?;
        match self.keys.take_at(endpoint.host(), priority) {
            Ok(budget) => Ok((permit, budget)),
            Err(denied) => {
                permit.back_out();
                Err(hold(denied))
            }
        }
    }

    /// Counts a refusal as one for the client's share, if another client would
    /// have been admitted.
    fn count_over_share(&self, priority: RequestPriority, failure: &Failure) {
        if priority.client.is_none() {
            return;
        }
        let is_spent = matches!(failure, Failure::Spent { .. });
        let host = self.endpoints[self.select_endpoint()].host();
        if is_spent && self.keys.denied_at(host, Priority::Miss).is_none() {
            self.counters.count_over_budget_share();
        }
        if *failure == Failure::TooManyInFlight && !self.queue.may_take_slot(priority.client) {
            self.counters.count_over_slot_share();
        }
    }
}

/// Why a request is not admitted for want of a key, and how long it waits.
pub(super) fn hold(denied: Denied) -> NotAdmitted {
    match denied {
        Denied::For(retry_after) => NotAdmitted {
            failure: Failure::Spent { retry_after },
            retry: AdmissionRetry::After(retry_after),
        },
        Denied::UntilRequestEnds => NotAdmitted {
            failure: Failure::Spent {
                retry_after: Duration::from_secs(1),
            },
            retry: AdmissionRetry::WhenRequestEnds,
        },
        Denied::Refused(status) => NotAdmitted {
            failure: Failure::KeyRefused(status),
            retry: AdmissionRetry::Never,
        },
    }
}
