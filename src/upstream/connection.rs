//! The state of one connection to the server: when bytes were received, whether the
//! server has closed it, and which given-up requests may still arrive.
//!
//! The HTTP client closes an HTTP/1.1 connection when a request on it is given up.
//! The request may lie in the receive buffer of a server that is stopped at the
//! moment, and be processed when the server runs again. So a connection with such a
//! request is drained: ordgate closes its sending side, which tells a running server
//! that the request was given up, and reads until the server has closed it too.
//!
//! Deliberately absent: the budget of a given-up request (`upstream::keys`), and why
//! a connection fails (`cause`).

pub(crate) mod given_up;
mod stream;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use given_up::{GivenUpRequest, Gone};
use http::{Extensions, Request};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
pub(super) use stream::TrackingConnector;
use tokio::time::Instant;

use crate::sync::lock;

/// The state of a connection, shared by the requests on it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<State>);

struct State {
    made: Instant,
    /// When bytes were last received, in microseconds since `made`; 0 for never.
    read: AtomicU64,
    /// When a response last began, in microseconds since `made`; 0 for never.
    answered: AtomicU64,
    /// Whether the server has closed it, or its machine is gone.
    has_ended: AtomicBool,
    /// Whether ordgate no longer watches for its end.
    is_unwatched: AtomicBool,
    is_given_up: AtomicBool,
    /// Whether its end was counted as a failure.
    is_counted: AtomicBool,
    /// Whether the requests that failed with it may be retried.
    may_retry: OnceLock<bool>,
    reader: AtomicWaker,
    /// The requests on it that were given up and may still arrive.
    given_up: Mutex<Vec<Arc<GivenUpRequest>>>,
}

/// What a request is sent on, and when.
#[derive(Clone)]
pub(crate) struct SendPath {
    to: Target,
    sent: Instant,
}

#[derive(Clone)]
enum Target {
    /// The connection is known once the request has been sent.
    Captured(CaptureConnection),
    #[cfg(test)]
    Known(Connection),
}

impl SendPath {
    /// The path of this request.
    pub(crate) fn of<B>(request: &mut Request<B>) -> Self {
        Self::to(Target::Captured(capture_connection(request)))
    }

    /// The path over this connection.
    #[cfg(test)]
    pub(crate) fn known(connection: Connection) -> Self {
        Self::to(Target::Known(connection))
    }

    fn to(to: Target) -> Self {
        Self {
            to,
            sent: Instant::now(),
        }
    }

    /// The connection; `None` if the request was not sent.
    pub(crate) fn connection(&self) -> Option<Connection> {
        match &self.to {
            Target::Captured(captured) => {
                let connected = captured.connection_metadata();
                let mut extras = Extensions::new();
                connected.as_ref()?.get_extras(&mut extras);
                extras.get::<Connection>().cloned()
            }
            #[cfg(test)]
            Target::Known(connection) => Some(connection.clone()),
        }
    }

    /// Called when the request has timed out. Gives up the connection if it is silent,
    /// and returns it; a connection on which no response has begun since the request
    /// was sent is used for no further request.
    pub(crate) fn overdue(&self) -> Option<Connection> {
        let connection = self.connection()?;
        let activity = connection.activity_since(self.sent);
        if activity != ConnectionActivity::Responses {
            self.retire();
        }
        (activity == ConnectionActivity::Silent).then(|| {
            connection.give_up();
            connection
        })
    }

    /// Excludes the connection from further requests.
    fn retire(&self) {
        match &self.to {
            Target::Captured(captured) => {
                if let Some(connected) = captured.connection_metadata().as_ref() {
                    connected.poison();
                }
            }
            #[cfg(test)]
            Target::Known(_) => {}
        }
    }
}

/// What was received on a connection since a request was sent that has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionActivity {
    /// A response has begun.
    Responses,
    /// Bytes, but no beginning of a response.
    Bytes,
    Silent,
}

/// The error of a connection that ordgate has given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(
            "the connection was given up: nothing was received on it within first_byte_timeout",
        )
    }
}

impl std::error::Error for Silent {}

impl Connection {
    /// Whether both are the same connection.
    #[cfg(test)]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Records that a response has begun.
    pub(crate) fn answered(&self) {
        self.0.answered.store(self.0.age(), Relaxed);
    }

    /// Whether the server has closed it, so that it reads nothing more of what was
    /// sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.has_ended.load(SeqCst)
    }

    /// What was received since a request was sent that has timed out now.
    fn activity_since(&self, sent: Instant) -> ConnectionActivity {
        // Bytes in the first half of the time may be those of a handshake.
        let half = sent + sent.elapsed() / 2;
        if self.0.read_at().is_none_or(|read| read < half) {
            return ConnectionActivity::Silent;
        }
        match self.0.answered_at() {
            Some(answered) if answered >= sent => ConnectionActivity::Responses,
            _ => ConnectionActivity::Bytes,
        }
    }

    /// Gives it up: all requests on it fail.
    fn give_up(&self) {
        self.0.is_given_up.store(true, SeqCst);
        self.0.reader.wake();
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.0.is_given_up.load(SeqCst)
    }

    /// Records that a request has failed with the connection. Returns whether it is
    /// the first: the end of a connection is one failure, however many requests were
    /// on it.
    pub(crate) fn count_failure(&self) -> bool {
        !self.0.is_counted.swap(true, SeqCst)
    }

    /// Whether the requests that failed with it may be retried. The first of them
    /// decides for all.
    pub(crate) fn may_retry(&self, decide: impl FnOnce() -> bool) -> bool {
        *self.0.may_retry.get_or_init(decide)
    }

    /// Adds a given-up request, which is notified when the connection has ended.
    pub(crate) fn add_given_up(&self, request: Arc<GivenUpRequest>) {
        let mut all = self.given_up();
        // An HTTP/2 connection may last for long.
        all.retain(|other| !other.is_over());
        all.push(request);
        drop(all);
        // The connection may have ended meanwhile.
        if self.has_ended() {
            self.ended();
        } else if self.0.is_unwatched.load(SeqCst) {
            self.unwatched();
        }
    }

    /// Records that the server has closed it.
    pub(crate) fn ended(&self) {
        self.0.has_ended.store(true, SeqCst);
        self.gone(Gone::Ended);
    }

    /// Records that ordgate no longer watches for its end.
    pub(crate) fn unwatched(&self) {
        self.0.is_unwatched.store(true, SeqCst);
        self.gone(Gone::Soon);
    }

    fn gone(&self, how: Gone) {
        let given_up = std::mem::take(&mut *self.given_up());
        for request in given_up {
            request.gone(how);
        }
    }

    /// Whether a given-up request on it may still arrive.
    fn is_awaited(&self) -> bool {
        let mut given_up = self.given_up();
        given_up.retain(|request| !request.is_over());
        !given_up.is_empty()
    }

    fn given_up(&self) -> MutexGuard<'_, Vec<Arc<GivenUpRequest>>> {
        lock(&self.0.given_up)
    }
}

impl State {
    fn new() -> Self {
        Self {
            made: Instant::now(),
            read: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            is_unwatched: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            may_retry: OnceLock::new(),
            reader: AtomicWaker::new(),
            given_up: Mutex::default(),
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
mod tests {
    use tokio::time::advance;

    use super::*;

    /// The activity on a connection whose last bytes were received, and last response
    /// began, at these seconds; 0 for never. The request is sent after one second, and
    /// times out after ten more.
    async fn activity(read: u64, answered: u64) -> ConnectionActivity {
        let connection = Connection::default();
        advance(Duration::from_secs(1)).await;
        let path = SendPath::known(connection.clone());
        connection.0.read.store(read * 1_000_000, Relaxed);
        connection.0.answered.store(answered * 1_000_000, Relaxed);
        advance(Duration::from_secs(10)).await;
        let activity = connection.activity_since(path.sent);
        let given_up = path.overdue().is_some();
        assert_eq!(given_up, activity == ConnectionActivity::Silent);
        assert_eq!(connection.is_given_up(), given_up);
        activity
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_bytes_in_the_second_half_is_silent() {
        for (read, answered, expected) in [
            (0, 0, ConnectionActivity::Silent),
            // The handshake only.
            (2, 0, ConnectionActivity::Silent),
            (5, 4, ConnectionActivity::Silent),
            (7, 0, ConnectionActivity::Bytes),
            (10, 0, ConnectionActivity::Bytes),
            (7, 2, ConnectionActivity::Responses),
            (10, 10, ConnectionActivity::Responses),
        ] {
            let found = activity(read, answered).await;
            assert_eq!(found, expected, "{read} {answered}");
        }
        // A response before the request was sent, and only bytes since.
        let connection = Connection::default();
        connection.answered();
        advance(Duration::from_secs(1)).await;
        let sent = Instant::now();
        advance(Duration::from_secs(10)).await;
        connection.0.read.store(connection.0.age(), Relaxed);
        assert_eq!(connection.activity_since(sent), ConnectionActivity::Bytes);
    }

    #[test]
    fn the_end_of_a_connection_counts_and_is_decided_on_once() {
        let (connection, other) = (Connection::default(), Connection::default());
        assert!(connection.count_failure());
        assert!(!connection.clone().count_failure());
        assert!(other.count_failure());
        for (decides, expected) in [(true, true), (false, true)] {
            assert_eq!(connection.may_retry(|| decides), expected);
        }
        assert!(!other.may_retry(|| false));
        assert!(!other.may_retry(|| panic!("it was decided")));
    }
}
