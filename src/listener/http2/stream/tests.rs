//! Streams that hold the end of what was written, as TLS does.

use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::listener::socket::holding::{BUFFER, HoldingStream};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_a_stream_holds_is_blocked_until_it_is_sent() {
    let times = ConnectionTimeouts::OF_TESTS;
    let clock = Clock::manual();
    let activity = Arc::new(Activity::new(clock.now()));
    let io = HoldingStream::default();
    let stream = Http2Stream::new(io, Bytes::new(), times, activity, &clock);
    let shared = SharedStream::new(stream);
    let mut cx = Context::from_waker(Waker::noop());
    // A frame of an unknown type (RFC 9113 §4.1), longer than what is held back.
    let mut frame = vec![0; 9 + 8000];
    frame[..4].copy_from_slice(&[0, 0x1f, 0x40, 0xee]);
    let written = Pin::new(&mut shared.share()).poll_write(&mut cx, &frame);
    assert!(matches!(written, Poll::Ready(Ok(8009))));
    let begin = clock.now();
    let mut flush = |time: Duration, sent: u64| {
        clock.advance(time);
        let mut stream = shared.lock();
        stream.io.send(sent);
        let is_flushed = stream.flush(&mut cx).is_ready();
        let left = stream.blocked().map(|(_, deadline)| deadline.since(begin));
        (is_flushed, left, stream.held())
    };
    let seconds = |n| Some(SECOND * n);
    assert_eq!(flush(Duration::ZERO, 0), (false, seconds(30), BUFFER));
    assert_eq!(flush(SECOND * 10, 0), (false, seconds(30), BUFFER));
    assert_eq!(flush(SECOND * 10, 5000), (false, seconds(35), BUFFER));
    assert_eq!(flush(SECOND, 0), (false, seconds(35), BUFFER));
    assert_eq!(flush(SECOND, 5000), (true, None, 0));
}
