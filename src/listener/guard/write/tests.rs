//! Streams that hold the end of an answer, as TLS does.

use std::net::{IpAddr, Ipv4Addr};
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::identify::TrustedProxies;
use crate::listener::guard::Protocol;
use crate::listener::socket::holding::{BUFFER, HoldingStream};
use crate::listener::watch::{ConnectionTimeouts, WatchAction, next_action};
use crate::unsent::{UnsentBounds, UnsentBytes, UnsentConnection};
use crate::wire::activity::Activity;
use crate::wire::head::HeadBounds;

const SECOND: Duration = Duration::from_secs(1);
const TIMES: ConnectionTimeouts = ConnectionTimeouts::OF_TESTS;

/// A client's connection, and what is known of it.
struct Connection {
    stream: GuardedStream<HoldingStream>,
    activity: Arc<Activity>,
    clock: Clock,
}

impl Connection {
    fn new(unsent: &Arc<UnsentBytes>, number: u64) -> Self {
        let clock = Clock::manual();
        let activity = Arc::new(Activity::new(clock.now()));
        let bounds = HeadBounds {
            head: 1000,
            target: 1000,
            fields: 10,
        };
        let trust = TrustedProxies::default();
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let entry = UnsentConnection::new(unsent, &trust, peer, number);
        let io = HoldingStream::default();
        let (activity_of, clock_of) = (activity.clone(), clock.clone());
        Self {
            stream: GuardedStream::new(
                io,
                bounds,
                TIMES,
                activity_of,
                clock_of,
                entry,
                Protocol::Unknown,
            ),
            activity,
            clock,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_write(&mut cx, bytes)
    }

    fn flush(&mut self) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_flush(&mut cx)
    }

    /// Writes an answer, of which the stream holds all.
    fn answer(&mut self) {
        assert!(matches!(self.write(&[0; 20_000]), Poll::Ready(Ok(20_000))));
        assert!(self.flush().is_pending());
    }

    /// Time passes, and then the client reads so many bytes of the answer.
    fn wait(&mut self, time: Duration, read: u64) -> WatchAction {
        self.clock.advance(time);
        self.stream.io.send(read);
        assert!(self.flush().is_pending());
        next_action(&self.activity, &TIMES, self.clock.now())
    }
}

#[test]
fn what_a_stream_holds_counts_until_it_is_sent() {
    let unsent = Arc::<UnsentBytes>::default();
    let mut both = [1, 2].map(|number| Connection::new(&unsent, number));
    for connection in &mut both {
        connection.answer();
    }
    assert_eq!(unsent.held(), 2 * BUFFER);
    // The same connection counts once, however much more it has to write.
    both[0].answer();
    assert_eq!(unsent.held(), 2 * BUFFER);
    both[0].stream.io.send(40_000);
    assert!(both[0].flush().is_ready());
    assert_eq!(unsent.held(), BUFFER);
    assert_eq!(both[0].activity.stalled_since(), None);
    drop(both);
    assert_eq!(unsent.held(), 0);
}

#[test]
fn a_client_must_read_the_end_of_its_answer_too() {
    let keep = |seconds| WatchAction::Keep(SECOND * seconds);
    let unsent = Arc::<UnsentBytes>::default();
    let mut connection = Connection::new(&unsent, 1);
    connection.answer();
    assert_eq!(connection.wait(SECOND * 10, 0), keep(20));
    assert_eq!(
        connection.wait(SECOND * 10, 5000),
        keep(15),
        "five seconds more"
    );
    assert_eq!(connection.wait(SECOND * 15, 0), WatchAction::Reset);
    // The connection's timer does so.
    connection.activity.request_reset();
    assert!(matches!(connection.flush(), Poll::Ready(Err(_))));
    assert!(connection.stream.io.is_reset());
}

#[test]
fn the_bound_of_a_client_holds_for_what_streams_hold() {
    let unsent = Arc::<UnsentBytes>::default();
    unsent.set(UnsentBounds {
        total: u64::MAX,
        per_client: Some(2 * BUFFER),
    });
    let mut connections = [1, 2, 3].map(|number| Connection::new(&unsent, number));
    for connection in &mut connections {
        connection.answer();
    }
    assert_eq!(unsent.held(), 2 * BUFFER);
    let reset = connections.map(|connection| connection.activity.is_reset_requested());
    assert_eq!(reset.iter().filter(|is_reset| **is_reset).count(), 1);
}
