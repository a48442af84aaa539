//! Requests that ordgate has given up and that may still arrive at the server: they
//! lie in the receive buffer of a stopped process, or are on the network.
//!
//! Such a request counts as in flight until its connection has ended, or until the
//! endpoint answers a request that was sent later: then the server is running, and
//! has read what it will read.
//!
//! Deliberately absent: connections (`upstream::connection`), and the budget that such
//! a request counts in (`upstream::keys`).

use std::sync::{Arc, Mutex, MutexGuard};

use crate::clock::Moment;
use crate::sync::lock;

/// Why a request cannot arrive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Ended,
    /// Its server is running: it arrives about now, if at all.
    Soon,
}

/// Called once when a request cannot arrive any more.
type Then = Box<dyn FnOnce(Gone) + Send>;

/// A given-up request that may still arrive.
pub(crate) struct GivenUpRequest {
    given_up: Moment,
    then: Mutex<Option<Then>>,
}

impl GivenUpRequest {
    /// A request given up at this time.
    pub(crate) fn new(given_up: Moment, then: impl FnOnce(Gone) + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            given_up,
            then: Mutex::new(Some(Box::new(then))),
        })
    }

    /// Records that it cannot arrive any more. Only the first call has an effect.
    pub(crate) fn gone(&self, how: Gone) {
        let then = self.then().take();
        if let Some(then) = then {
            then(how);
        }
    }

    /// Whether it cannot arrive any more.
    pub(crate) fn is_over(&self) -> bool {
        self.then().is_none()
    }

    fn then(&self) -> MutexGuard<'_, Option<Then>> {
        lock(&self.then)
    }
}

/// The given-up requests of an endpoint that may still arrive there.
#[derive(Default)]
pub(crate) struct GivenUpRequests(Mutex<Vec<Arc<GivenUpRequest>>>);

impl GivenUpRequests {
    pub(crate) fn add(&self, request: Arc<GivenUpRequest>) {
        let mut all = self.lock();
        all.retain(|other| !other.is_over());
        all.push(request);
    }

    /// Records that the endpoint has answered a request sent at this time.
    pub(crate) fn answered(&self, sent: Moment) {
        let mut all = self.lock();
        if all.is_empty() {
            return;
        }
        let arrived = all.extract_if(.., |request| request.given_up < sent);
        let arrived: Vec<_> = arrived.collect();
        drop(all);
        for request in arrived {
            request.gone(Gone::Soon);
        }
    }

    pub(crate) fn len(&self) -> usize {
        let all = self.lock();
        all.iter().filter(|request| !request.is_over()).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<GivenUpRequest>>> {
        lock(&self.0)
    }
}
