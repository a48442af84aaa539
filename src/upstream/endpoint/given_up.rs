//! Requests that were given up, and may still arrive at the server: they are in
//! the receive buffer of a process that does not run just now, or on their way.
//! Pure but for what it is told.
//!
//! Such a request counts as under way until its connection has ended, or until
//! the same endpoint answers a request that was sent later: then the server runs,
//! and has read by now what it will read.
//!
//! Deliberately absent: connections (`upstream::connection`), and the budget that
//! such a request counts in (`upstream::keys`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::Moment;

/// How it is known that a request arrives no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// Its connection has ended.
    Ended,
    /// It arrives about now, if at all: its server runs.
    Soon,
}

/// What is done once a request arrives no more.
type Then = Box<dyn FnOnce(Gone) + Send>;

/// A request that was given up, and may still arrive.
pub(crate) struct GivenUpRequest {
    given_up: Moment,
    then: Mutex<Option<Then>>,
}

impl GivenUpRequest {
    /// A request that was given up at this moment.
    pub(crate) fn new(given_up: Moment, then: impl FnOnce(Gone) + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            given_up,
            then: Mutex::new(Some(Box::new(then))),
        })
    }

    /// It arrives no more. Only the first to say so is heard.
    pub(crate) fn gone(&self, how: Gone) {
        let then = self.then().take();
        if let Some(then) = then {
            then(how);
        }
    }

    /// Whether it is known that it arrives no more.
    pub(crate) fn is_over(&self) -> bool {
        self.then().is_none()
    }

    fn then(&self) -> MutexGuard<'_, Option<Then>> {
        self.then.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of an endpoint that were given up, and may still arrive there.
#[derive(Default)]
pub(crate) struct GivenUpRequests(Mutex<Vec<Arc<GivenUpRequest>>>);

impl GivenUpRequests {
    /// One more was given up.
    pub(crate) fn add(&self, late: Arc<GivenUpRequest>) {
        let mut lates = self.lates();
        lates.retain(|late| !late.is_over());
        lates.push(late);
    }

    /// The endpoint has answered a request that was sent at this moment.
    pub(crate) fn answered(&self, sent: Moment) {
        let mut lates = self.lates();
        if lates.is_empty() {
            return;
        }
        let arrived = lates.extract_if(.., |late| late.given_up < sent);
        let arrived: Vec<_> = arrived.collect();
        drop(lates);
        for late in arrived {
            late.gone(Gone::Soon);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let lates = self.lates();
        lates.iter().filter(|late| !late.is_over()).count()
    }

    fn lates(&self) -> MutexGuard<'_, Vec<Arc<GivenUpRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
