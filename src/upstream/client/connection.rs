//! One connection to a server of the upstream, as its bytes tell: whether the
//! server has sent any, who has ended it, and whether a request that was given up
//! may still arrive.
//!
//! The HTTP client closes an HTTP/1.1 connection when a request on it is given
//! up. What was sent may lie in the receive buffer of a server that does not run
//! just now, and arrive when it runs again. So a connection that has such a
//! request on it lingers: its sending side is closed, by which a server that runs
//! learns that nobody waits, and it is read until the server has closed it too.
//!
//! Deliberately absent: what a request that was given up counts in
//! (`upstream::keys`), and why a connection fails (`upstream::cause`).

mod stream;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use http::uri::Scheme;
use http::{Extensions, Request};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, capture_connection};
pub(in crate::upstream) use stream::Watch;
use tokio::time::Instant;

use crate::upstream::endpoint::given_up::{GivenUpRequest, Gone};

/// A connection, for those who have sent a request on it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<State>);

struct State {
    made: Instant,
    /// In microseconds from then, when bytes came last and when an answer began
    /// last; 0 where that was never.
    read: AtomicU64,
    answered: AtomicU64,
    /// Whether the server has ended it, or its machine is gone.
    has_ended: AtomicBool,
    /// Whether nobody sees it end any more.
    is_left: AtomicBool,
    /// Whether it is given up from here.
    is_given_up: AtomicBool,
    /// Whether its end was counted as a failure.
    is_counted: AtomicBool,
    /// Whether the requests that were lost with it may be sent again.
    goes_on: OnceLock<bool>,
    reader: AtomicWaker,
    /// The requests on it that were given up.
    late: Mutex<Vec<Arc<GivenUpRequest>>>,
}

/// What a request is sent on.
#[derive(Clone)]
pub(crate) struct SendPath {
    to: To,
    /// Whether HTTP/2 is spoken without being agreed on.
    knows_http2: bool,
    sent: Instant,
}

#[derive(Clone)]
enum To {
    /// Known once the request is sent.
    Captured(CaptureConnection),
    #[cfg(test)]
    Known(Connection),
}

impl SendPath {
    /// What this request will be sent on; with `http2`, over HTTP/2 where that can
    /// be.
    pub(crate) fn of<B>(request: &mut Request<B>, http2: bool) -> Self {
        let is_plain = request.uri().scheme() == Some(&Scheme::HTTP);
        Self {
            knows_http2: http2 && is_plain,
            ..Self::to(To::Captured(capture_connection(request)))
        }
    }

    /// This connection.
    #[cfg(test)]
    pub(crate) fn known(connection: Connection) -> Self {
        Self::to(To::Known(connection))
    }

    fn to(to: To) -> Self {
        Self {
            to,
            knows_http2: false,
            sent: Instant::now(),
        }
    }

    /// The connection; `None` where the request was not sent.
    pub(crate) fn connection(&self) -> Option<Connection> {
        match &self.to {
            To::Captured(captured) => {
                let connected = captured.connection_metadata();
                let mut extras = Extensions::new();
                connected.as_ref()?.get_extras(&mut extras);
                extras.get::<Connection>().cloned()
            }
            #[cfg(test)]
            To::Known(connection) => Some(connection.clone()),
        }
    }

    /// Whether other requests may be on the connection at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.knows_http2
            || match &self.to {
                To::Captured(captured) => {
                    let connected = captured.connection_metadata();
                    connected.as_ref().is_some_and(Connected::is_negotiated_h2)
                }
                #[cfg(test)]
                To::Known(_) => false,
            }
    }

    /// The request has waited for too long. A connection that is silent is given
    /// up, and answered with; one that has begun no answer since the request was
    /// sent takes no further request.
    pub(crate) fn overdue(&self) -> Option<Connection> {
        let connection = self.connection()?;
        let state = connection.judge(self.sent);
        if state != Judged::Answers {
            self.retire();
        }
        (state == Judged::Silent).then(|| {
            connection.give_up();
            connection
        })
    }

    /// No further request is sent on the connection.
    fn retire(&self) {
        match &self.to {
            To::Captured(captured) => {
                if let Some(connected) = captured.connection_metadata().as_ref() {
                    connected.poison();
                }
            }
            #[cfg(test)]
            To::Known(_) => {}
        }
    }
}

/// How a connection is, on which a request has waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// It has begun an answer since.
    Answers,
    /// It has not, but something has come.
    Waits,
    /// Nothing has come.
    Silent,
}

/// That a connection was given up from here, as an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the connection is given up: nothing has come on it within first_byte_timeout")
    }
}

impl std::error::Error for Silent {}

impl Connection {
    /// Whether both are the same connection.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An answer has begun to come on it.
    pub(crate) fn answered(&self) {
        self.0.answered.store(self.0.age(), Relaxed);
    }

    /// Whether an answer has ever begun to come on it.
    pub(crate) fn has_answered(&self) -> bool {
        self.0.answered_at().is_some()
    }

    /// Whether the server has ended it: nothing that was sent on it and not read
    /// will be read.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended.load(SeqCst)
    }

    /// How it is, for a request that was sent then and has waited for too long.
    fn judge(&self, sent: Instant) -> Judged {
        // In the first half of the time there may have been a handshake.
        let half = sent + sent.elapsed() / 2;
        if self.0.read_at().is_none_or(|read| read < half) {
            return Judged::Silent;
        }
        match self.0.answered_at() {
            Some(answered) if answered >= sent => Judged::Answers,
            _ => Judged::Waits,
        }
    }

    /// Gives it up: whatever is under way on it fails.
    fn give_up(&self) {
        self.0.is_given_up.store(true, SeqCst);
        self.0.reader.wake();
    }

    /// Whether it was given up from here.
    pub(crate) fn is_given_up(&self) -> bool {
        self.0.is_given_up.load(SeqCst)
    }

    /// A request has failed since the connection has. Answers whether it is the
    /// first: the end of a connection is one failure, however many requests were
    /// on it.
    pub(crate) fn count_failure(&self) -> bool {
        !self.0.is_counted.swap(true, SeqCst)
    }

    /// Whether the requests that were lost with it may be sent again. The first of
    /// them decides for all.
    pub(crate) fn goes_on(&self, decide: impl FnOnce() -> bool) -> bool {
        *self.0.goes_on.get_or_init(decide)
    }

    /// A request on it was given up: tells it when the connection has ended.
    pub(crate) fn tell(&self, late: Arc<GivenUpRequest>) {
        let mut others = self.late();
        // A connection over HTTP/2 may go on for long.
        others.retain(|other| !other.is_over());
        others.push(late);
        drop(others);
        // That may have come about meanwhile.
        if self.has_ended() {
            self.ended();
        } else if self.0.is_left.load(SeqCst) {
            self.left();
        }
    }

    /// The server has ended it.
    pub(crate) fn ended(&self) {
        self.0.has_ended.store(true, SeqCst);
        self.gone(Gone::Ended);
    }

    /// Nobody will see it end.
    pub(crate) fn left(&self) {
        self.0.is_left.store(true, SeqCst);
        self.gone(Gone::Soon);
    }

    fn gone(&self, how: Gone) {
        let late = std::mem::take(&mut *self.late());
        for late in late {
            late.gone(how);
        }
    }

    /// Whether a request on it that was given up may still arrive.
    fn is_awaited(&self) -> bool {
        let mut late = self.late();
        late.retain(|late| !late.is_over());
        !late.is_empty()
    }

    fn late(&self) -> MutexGuard<'_, Vec<Arc<GivenUpRequest>>> {
        self.0.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        Self {
            made: Instant::now(),
            read: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            goes_on: OnceLock::new(),
            reader: AtomicWaker::new(),
            late: Mutex::default(),
        }
    }

    fn age(&self) -> u64 {
        let age = u64::try_from(self.made.elapsed().as_micros());
        age.unwrap_or(u64::MAX).max(1)
    }

    fn read_at(&self) -> Option<Instant> {
        self.at(&self.read)
    }

    fn answered_at(&self) -> Option<Instant> {
        self.at(&self.answered)
    }

    fn at(&self, age: &AtomicU64) -> Option<Instant> {
        let age = age.load(Relaxed);
        (age > 0).then(|| self.made + Duration::from_micros(age))
    }
}

impl Default for Connection {
    fn default() -> Self {
        Self(Arc::new(State::new()))
    }
}

#[cfg(test)]
mod silence_tests;
