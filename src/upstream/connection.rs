//! The state of one connection to the server: when bytes were received, whether the
//! server has closed it.
//!
//! Deliberately absent: why a connection fails (`cause`).

mod stream;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Extensions, Request};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
pub(super) use stream::TrackingConnector;
use tokio::time::Instant;

/// The state of a connection, shared by the requests on it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<State>);

struct State {
    made: Instant,
    /// When bytes were last received, in microseconds since `made`; 0 for never.
    read: AtomicU64,
    /// When a response last began, in microseconds since `made`; 0 for never.
    answered: AtomicU64,
    /// Whether its end was counted as a failure.
    is_counted: AtomicBool,
    /// Whether the requests that failed with it may be retried.
    may_retry: OnceLock<bool>,
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

    /// Called when the request has timed out. Returns the connection if it is silent; one on which no response has begun since the request
    /// was sent is used for no further request.
    pub(crate) fn overdue(&self) -> Option<Connection> {
        let connection = self.connection()?;
        let activity = connection.activity_since(self.sent);
        if activity != ConnectionActivity::Responses {
            self.retire();
        }
        (activity == ConnectionActivity::Silent).then_some(connection)
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
}

impl State {
    fn new() -> Self {
        Self {
            made: Instant::now(),
            read: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_counted: AtomicBool::new(false),
            may_retry: OnceLock::new(),
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
