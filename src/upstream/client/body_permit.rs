//! The permit of a forwarded request while the body of its response is received.

use crate::upstream::Failure;
use crate::upstream::endpoint::breaker::BreakerState;
use crate::upstream::endpoint::{EndpointPermit, InFlightSlot};

/// The permit of a request while the body of its response is received: it holds
/// the request's slot, and reports to the endpoint how the body ends. A dropped
/// permit reports success, as far as the body was read. The default permit has no
/// slot and reports nothing.
#[derive(Default)]
pub struct BodyPermit {
    /// `None` once the endpoint knows the outcome of the request.
    permit: Option<EndpointPermit>,
    slot: Option<InFlightSlot>,
}

impl BodyPermit {
    /// The permit of a request whose outcome depends on the body.
    pub(super) fn until_body_ends(permit: EndpointPermit) -> Self {
        Self {
            permit: Some(permit),
            slot: None,
        }
    }

    /// The slot of a request whose outcome is known.
    pub(super) fn slot(slot: Option<InFlightSlot>) -> Self {
        Self { permit: None, slot }
    }

    /// Reports that the request has succeeded, however the body ends.
    pub fn answered(&mut self) {
        self.end(None);
    }

    /// Reports how the body has failed.
    pub fn failed(&mut self, failure: &Failure) {
        self.end(Some(failure));
    }

    /// Ends a half-open trial of the endpoint: the response has begun, and other
    /// requests wait for the result.
    pub(super) fn end_trial(&mut self) {
        let permit = self.permit.as_ref();
        if permit.is_some_and(|permit| permit.endpoint().breaker_state() != BreakerState::Closed) {
            self.answered();
        }
    }

    fn end(&mut self, failure: Option<&Failure>) {
        if let Some(permit) = self.permit.take() {
            self.slot = permit.end(failure);
        }
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.answered();
    }
}
