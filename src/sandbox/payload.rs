//! Response bodies: whole, in pieces with pauses, truncated, or oversize.
//!
//! Made by `server` from an answer and its fault. Invariant: an oversize body is never held in memory as a whole. Trailers
//! and compression are not implemented; the reference does not use them.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::faults::{OVERSIZE_ENDS, oversize_length};

static SPACES: [u8; 16 * 1024] = [b' '; 16 * 1024];

/// The time between the first half of a truncated body and the close of the connection, so that the half is sent.
const FLUSH: Duration = Duration::from_millis(5);

/// A response body.
#[derive(Debug)]
pub(super) struct Payload {
    pieces: VecDeque<Bytes>,
    /// The number of spaces after the first piece.
    spaces: u64,
    pause: Duration,
    /// Whether the body fails after its last piece.
    fails: bool,
    waiting: Option<Pin<Box<Sleep>>>,
    length: Option<u64>,
}

impl Payload {
    pub(super) fn whole(body: Bytes) -> Self {
        let length = Some(body.len() as u64);
        let pieces = if body.is_empty() {
            VecDeque::new()
        } else {
            VecDeque::from([body])
        };
        Self {
            pieces,
            spaces: 0,
            pause: Duration::ZERO,
            fails: false,
            waiting: None,
            length,
        }
    }

    /// The body in up to sixteen pieces, with a pause before each but the first.
    pub(super) fn drip(body: &Bytes, pause: Duration) -> Self {
        let size = body.len().div_ceil(16).max(1);
        let pieces = (0..body.len())
            .step_by(size)
            .map(|at| body.slice(at..body.len().min(at + size)))
            .collect();
        Self {
            pieces,
            pause,
            ..Self::whole(body.clone())
        }
    }

    /// The body at this many bytes per second: 20 pieces a second, with a pause before each but the first; a long body has
    /// larger pieces, 1,000 at most.
    pub(super) fn paced(body: &Bytes, bandwidth: NonZeroU64) -> Self {
        const MOST_PIECES: usize = 1_000;
        let rate = usize::try_from(bandwidth.get()).unwrap_or(usize::MAX);
        let size = (rate / 20).max(body.len() / MOST_PIECES).max(1);
        let pieces: VecDeque<_> = (0..body.len())
            .step_by(size)
            .map(|at| body.slice(at..body.len().min(at + size)))
            .collect();
        let pause = Duration::from_secs_f64(size as f64 / bandwidth.get() as f64);
        Self {
            pieces,
            pause,
            ..Self::whole(body.clone())
        }
    }

    /// The first half, then a failure.
    pub(super) fn truncated(body: &Bytes) -> Self {
        let half = body.slice(..body.len() / 2);
        Self {
            fails: true,
            length: None,
            ..Self::whole(half)
        }
    }

    /// A JSON body of this length that consists mostly of spaces.
    pub(super) fn oversize(bytes: u64, declared: bool) -> Self {
        let (head, tail) = OVERSIZE_ENDS;
        let total = oversize_length(bytes);
        let spaces = total - (head.len() + tail.len()) as u64;
        let pieces = VecDeque::from([
            Bytes::from_static(head.as_bytes()),
            Bytes::from_static(tail.as_bytes()),
        ]);
        Self {
            pieces,
            spaces,
            length: declared.then_some(total),
            ..Self::whole(Bytes::new())
        }
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        // With one piece left, the start of an oversize body is sent and its end is not.
        if self.spaces > 0 && self.pieces.len() == 1 {
            let size = self.spaces.min(SPACES.len() as u64);
            self.spaces -= size;
            return Some(Bytes::from_static(&SPACES[..size as usize]));
        }
        let piece = self.pieces.pop_front()?;
        if !self.pause.is_zero() && !self.pieces.is_empty() {
            self.waiting = Some(Box::pin(sleep(self.pause)));
        } else if self.fails && self.pieces.is_empty() {
            self.waiting = Some(Box::pin(sleep(FLUSH)));
        }
        Some(piece)
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(waiting) = self.waiting.as_mut() {
            ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
        match self.next_piece() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.fails => Poll::Ready(Some(Err(io::Error::other("truncated on purpose")))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && !self.fails
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
